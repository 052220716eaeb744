"""The KL is the KL: every family against its definition, by Monte Carlo, enumeration and quadrature."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Bernoulli, Normal, kl_divergence

from contracts.members import (
    FAMILIES,
    LAYERS,
    WITH_Z,
    block,
    generator,
    make_family,
    make_input,
    make_layer,
    over_tapes,
)
from contracts.oracles import (
    assert_agree,
    gamma_precision_log_density,
    gaussian_log_ratio,
    mean_and_error,
    spike_slab_log_ratio,
    structure_log_mass,
)
from sparsebnn.nn.passes import PosteriorPass
from sparsebnn.random.noise import NoiseBuffer, NoiseCounter

SHAPE = (3, 4)
SETTINGS = range(20)
DRAWS = 20_000


def estimates(family, draws, seed, batch=1):
    """Independent one-draw estimates of the KL, as training uses them."""
    meter = NoiseCounter()
    with torch.no_grad():
        family.sample(meter, batch)
        return over_tapes(lambda tape: family.sample(tape, batch).kl, meter.size, draws, seed)


def value_and_error(family, draws, seed, batch=1):
    """The family's KL: exact with error 0, or the mean of many one-draw estimates."""
    samples = estimates(family, draws, seed, batch)
    if float(samples.std()) < 1e-12 * abs(float(samples.mean())):
        return float(samples[0]), 0.0
    return mean_and_error(samples)


def draw(family, draws, g, mean=None):
    """Slab values and inclusions drawn by the test."""
    mean = family.mean if mean is None else mean
    shape = (draws, *family.shape)
    w = mean + F.softplus(family.raw_std) * torch.randn(shape, generator=g, dtype=torch.float64)
    if not hasattr(family, "inclusion_logit"):
        return w, torch.ones_like(w)
    alpha = torch.sigmoid(family.inclusion_logit)
    return w, (torch.rand(shape, generator=g, dtype=torch.float64) < alpha).double()


def conditional_log_ratio(family, w, gamma, mean):
    """log q(W, Γ) − log p(W, Γ) of a mean-field family, summed over weights."""
    prior, std = family.prior, F.softplus(family.raw_std)
    if not hasattr(family, "inclusion_logit"):
        return gaussian_log_ratio(w, mean, std, prior.mean, prior.std).flatten(1).sum(1)
    alpha = torch.sigmoid(family.inclusion_logit)
    believed = (prior.inclusion_prob, prior.mean, prior.std)
    return spike_slab_log_ratio(w, gamma, mean, std, alpha, believed).flatten(1).sum(1)


@pytest.mark.parametrize("name", ["gaussian", "spike_slab", "concrete"])
@torch.no_grad()
def test_mean_field_kl_is_the_expected_log_ratio(name):
    """KL(q‖p) = E_q[log q − log p]; oracle: draws and densities from torch.distributions."""
    pairs = []
    for seed in SETTINGS:
        family = make_family(name, SHAPE, seed)
        w, gamma = draw(family, DRAWS, generator(seed))
        ratio = conditional_log_ratio(family, w, gamma, family.mean)
        pairs.append((value_and_error(family, 2, seed), mean_and_error(ratio)))
    assert_agree(pairs)


@torch.no_grad()
def test_gaussian_kl_from_a_gamma_precision_prior():
    """The one-draw estimate has mean E_q[log q − log p]; oracle: p as scipy's multivariate t."""
    pairs = []
    for seed in SETTINGS:
        family = make_family("gaussian_gamma", SHAPE, seed)
        a, b = (float(F.softplus(p)) for p in (family.prior.raw_shape, family.prior.raw_rate))
        w, _ = draw(family, DRAWS, generator(seed))
        log_q = Normal(family.mean, F.softplus(family.raw_std)).log_prob(w).flatten(1).sum(1)
        squares = (w**2).flatten(1).sum(1).numpy()
        log_p = gamma_precision_log_density(w[0].numel(), squares, a, b)
        pairs.append(
            (value_and_error(family, DRAWS, 100 + seed), mean_and_error(log_q - torch.tensor(log_p)))
        )
    assert_agree(pairs)


@torch.no_grad()
def test_concrete_kl_from_a_hierarchical_prior():
    """As the temperature falls the estimate has mean E_q[log q(w,γ) − log p(w,γ)] with hard γ.

    Oracle: Bernoulli draws, the multivariate t of the included weights, the Beta-Binomial of how many.
    """
    pairs = []
    for seed in SETTINGS:
        family = make_family("concrete_hierarchical", SHAPE, seed, relaxation=1e-6)
        prior = family.prior
        a, b, c, d = (
            float(F.softplus(p))
            for p in (prior.raw_shape, prior.raw_rate, prior.raw_included, prior.raw_excluded)
        )
        w, gamma = draw(family, DRAWS, generator(seed))
        log_q = Bernoulli(torch.sigmoid(family.inclusion_logit)).log_prob(gamma) + gamma * Normal(
            family.mean, F.softplus(family.raw_std)
        ).log_prob(w)
        log_q = log_q.flatten(1).sum(1)
        count = gamma.flatten(1).sum(1).numpy()
        squares = (gamma * w**2).flatten(1).sum(1).numpy()
        log_p = structure_log_mass(count, w[0].numel(), c, d)
        for n in np.unique(count):
            rows = count == n
            log_p[rows] += gamma_precision_log_density(int(n), squares[rows], a, b)
        pairs.append(
            (value_and_error(family, DRAWS, 100 + seed), mean_and_error(log_q - torch.tensor(log_p)))
        )
    assert_agree(pairs)


@torch.no_grad()
def bound_samples(family, draws, g):
    """Draws of log q(W,Γ|z) + log q(z) − log r(z|W,Γ) − log p(W,Γ), everything but the nets written here.

    With ``auxiliary="moments"`` s is a Gaussian with the mean and variance of eᵀ(W⊙Γ) instead.
    """
    axis, inner = family.z_axis, family.conditional
    z0_std = torch.exp(0.5 * family.z0_log_var)
    z0 = family.z0_mean + z0_std * torch.randn(draws, family.dim, generator=g, dtype=torch.float64)
    z, log_det = family.q_flow(z0)
    log_q = Normal(family.z0_mean, z0_std).log_prob(z0).sum(1) - log_det

    mean = inner.mean * z.reshape(draws, *[-1 if i == axis else 1 for i in range(len(family.shape))])
    w, gamma = draw(inner, draws, g, mean)
    ratio = conditional_log_ratio(inner, w, gamma, mean)

    def rows(t):
        """One row per remaining index, one column per entry of z."""
        return t.movedim(axis + 1, -1).flatten(1, -2)

    e = family.auxiliary_direction
    if family.auxiliary == "drawn":
        s = (rows(w * gamma) * e).sum(-1)
    else:
        alpha = (
            torch.sigmoid(inner.inclusion_logit) if hasattr(inner, "inclusion_logit") else torch.tensor(1.0)
        )
        var = alpha * (F.softplus(inner.raw_std) ** 2 + (1 - alpha) * mean**2)
        s_mean, s_var = (rows(alpha * mean) * e).sum(-1), (rows(var) * e**2).sum(-1)
        s = s_mean + s_var.sqrt() * torch.randn(s_mean.shape, generator=g, dtype=torch.float64)
    squash = {"hardtanh": lambda t: t.clamp(-1, 1), "tanh": torch.tanh, "identity": lambda t: t}[
        family.squash
    ]
    activation = squash(s).mean(-1, keepdim=True)
    nu, tau = family.auxiliary_mean * activation, torch.exp(0.5 * family.auxiliary_log_var * activation)
    z_b, log_det_b = family.r_flow(z)
    log_r = Normal(nu, tau).log_prob(z_b).sum(1) + log_det_b
    return ratio + log_q - log_r


DENSE = {"z_axis": 1, "squash": "hardtanh"}
CONV = {"z_axis": 0, "squash": "identity"}


@pytest.mark.parametrize("name", WITH_Z)
@pytest.mark.parametrize(("shape", "options"), [(SHAPE, DENSE), ((3, 2, 2), CONV)], ids=["dense", "conv"])
@torch.no_grad()
def test_flow_kl_of_one_draw(name, shape, options):
    """KL given z + log q(z) − log r(z|s), from the same numbers, written out; no luck involved.

    Oracle: torch.distributions for every density and divergence; the nets give z and their log_det.
    """
    for seed in range(5):
        family = make_family(name, shape, seed, **options)
        inner, axis = family.conditional, family.z_axis
        batch, meter = (3 if family.z_per == "example" else 1), NoiseCounter()
        family.sample(meter, batch)
        normals, logistics = block(meter.size, seed)
        ours = float(family.sample(NoiseBuffer(normals, logistics), batch).kl)

        eps, rest = normals[: batch * family.dim].reshape(batch, -1), normals[batch * family.dim :]
        z0_std = torch.exp(0.5 * family.z0_log_var)
        z0 = family.z0_mean + z0_std * eps
        z, log_det = family.q_flow(z0)
        log_q = Normal(family.z0_mean, z0_std).log_prob(z0).sum(1) - log_det
        mean = inner.mean * z.reshape(batch, *[-1 if i == axis else 1 for i in range(len(shape))])
        std, prior = F.softplus(inner.raw_std), inner.prior
        alpha = torch.ones(shape).double()
        divergence = kl_divergence(Normal(mean, std), Normal(prior.mean, prior.std))
        if hasattr(inner, "inclusion_logit"):
            alpha = torch.sigmoid(inner.inclusion_logit)
            structure = kl_divergence(Bernoulli(alpha), Bernoulli(prior.inclusion_prob))
            divergence = alpha * divergence + structure

        def rows(t, axis=axis):
            return t.movedim(axis + 1, -1).flatten(1, -2)

        e = family.auxiliary_direction
        if family.auxiliary == "drawn":
            there = (
                (logistics.reshape(shape) + torch.logit(alpha) > 0) if len(logistics) else torch.ones(shape)
            )
            s = (rows((mean + std * rest.reshape(shape)) * there) * e).sum(-1)
        else:
            var = alpha * (std**2 + (1 - alpha) * mean**2)
            s_mean, s_var = (rows(alpha * mean) * e).sum(-1), (rows(var) * e**2).sum(-1)
            s = s_mean + s_var.sqrt() * rest.reshape(s_mean.shape)
        activation = (s.clamp(-1, 1) if family.squash == "hardtanh" else s).mean(-1, keepdim=True)
        z_b, log_det_b = family.r_flow(z)
        r = Normal(family.auxiliary_mean * activation, torch.exp(0.5 * family.auxiliary_log_var * activation))
        log_r = r.log_prob(z_b).sum(1) + log_det_b
        oracle = (divergence.flatten(1).sum(1) + log_q - log_r).mean()
        assert abs(ours - float(oracle)) < 1e-10


@pytest.mark.parametrize("name", WITH_Z)
@pytest.mark.parametrize(
    ("shape", "options"),
    [(SHAPE, DENSE), ((3, 2, 2), CONV)],
    ids=["dense", "conv"],
)
def test_flow_kl_is_its_bound(name, shape, options):
    """The one-draw estimates have the bound's value as their mean; oracle: a joint Monte Carlo.

    ``drawn`` families against E[log q(W,Γ|z) + log q(z) − log r(z|W,Γ) − log p(W,Γ)] over (z, Γ, W);
    ``moments`` families against the same with s from its Gaussian. With one z per example the batch's
    value is the mean over its examples, so its expectation is the same.
    """
    pairs = []
    for seed in SETTINGS:
        family = make_family(name, shape, seed, **options)
        batch = 3 if family.z_per == "example" else 1
        ours = value_and_error(family, DRAWS // batch, 100 + seed, batch)
        pairs.append((ours, mean_and_error(bound_samples(family, DRAWS, generator(seed)))))
    assert_agree(pairs)


@pytest.mark.parametrize("kind", ["flow", "mnf"])
def test_flow_kl_with_tanh(kind):
    """The third squashing function, as above."""
    pairs = []
    for seed in range(5):
        family = make_family(kind, SHAPE, seed, z_axis=1, squash="tanh")
        ours = value_and_error(family, DRAWS, 100 + seed)
        pairs.append((ours, mean_and_error(bound_samples(family, DRAWS, generator(seed)))))
    assert_agree(pairs)


@torch.no_grad()
def test_drawn_bound_exceeds_the_kl_by_the_divergence_of_r():
    """E[bound] = KL(q(w,γ)‖p) + E KL(q(z|w,γ) ‖ r(z|w,γ)), so it is a bound; oracle: quadrature.

    With one weight and flows of length 0, z and w are jointly Gaussian given γ: q(w|γ=1) and
    q(z|w,γ) are known, and only one integral over w is left.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    nodes, weights = torch.tensor(nodes), torch.tensor(weights / weights.sum())
    pairs = []
    for seed in SETTINGS:
        family = make_family("flow_drawn", (1, 1), seed, length=0, squash="tanh")
        inner, prior = family.conditional, family.conditional.prior
        m, v = family.z0_mean[0], torch.exp(family.z0_log_var[0])
        mu, sigma = inner.mean[0, 0], F.softplus(inner.raw_std[0, 0])
        alpha = torch.sigmoid(inner.inclusion_logit[0, 0])
        marginal = Normal(mu * m, (mu**2 * v + sigma**2).sqrt())
        exact = alpha * kl_divergence(marginal, Normal(prior.mean[0, 0], prior.std[0, 0])) + kl_divergence(
            Bernoulli(alpha), Bernoulli(prior.inclusion_prob[0, 0])
        )

        def auxiliary(w, family=family):
            s = torch.tanh(family.auxiliary_direction * w)
            return Normal(family.auxiliary_mean * s, torch.exp(0.5 * family.auxiliary_log_var * s))

        w = marginal.mean + marginal.stddev * nodes
        gain = mu * v / marginal.variance
        given = Normal(m + gain * (w - marginal.mean), (v - gain * mu * v).sqrt())
        there = (weights * kl_divergence(given, auxiliary(w))).sum()
        gone = kl_divergence(Normal(m, v.sqrt()), auxiliary(torch.zeros(()).double()))[0]
        gap = alpha * there + (1 - alpha) * gone
        assert gap > 0
        pairs.append((value_and_error(family, DRAWS, seed), (float(exact + gap), 0.0)))
    assert_agree(pairs)


@pytest.mark.parametrize("scale", [None, 1.7, (0.3, -1.1, 2.0)], ids=["plain", "scaled", "averaged"])
@torch.no_grad()
def test_spike_slab_kl_is_the_sum_over_structures(scale):
    """Σ_γ q(γ) [log q(γ)/p(γ) + KL of the slabs of γ] over all 2³ structures of three weights.

    Also with the means multiplied by a scale, and averaged over three scales given their moments.
    """
    for seed in SETTINGS:
        family = make_family("spike_slab", (1, 3), seed)
        prior = family.prior
        alpha, std = torch.sigmoid(family.inclusion_logit)[0], F.softplus(family.raw_std)[0]
        scales = torch.tensor([1.0] if scale is None else scale, dtype=torch.float64).reshape(-1)
        total = 0.0
        for one in scales:
            slabs = kl_divergence(Normal(one * family.mean[0], std), Normal(prior.mean[0], prior.std[0]))
            for structure in itertools.product((0.0, 1.0), repeat=3):
                gamma = torch.tensor(structure, dtype=torch.float64)
                log_q = Bernoulli(alpha).log_prob(gamma).sum()
                log_p = Bernoulli(prior.inclusion_prob[0]).log_prob(gamma).sum()
                total = total + log_q.exp() * (log_q - log_p + (gamma * slabs).sum()) / len(scales)
        if scale is None:
            ours = family.closed_form_kl()
        elif len(scales) == 1:
            ours = family.closed_form_kl(scales[0])
        else:
            ours = family.closed_form_kl(scales.mean(), (scales**2).mean())
        assert abs(float(ours - total)) < 1e-10


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_layer_kl_is_weights_plus_biases(family, layer):
    """forward_with_kl adds the biases' divergence to that of the weights, from the same draw.

    Oracle: the same family asked alone with the same numbers, and torch.distributions for the biases.
    """
    built = make_layer(layer, family, seed=3)
    prior = built.biases.prior
    x, meter = make_input(layer), NoiseCounter()
    with PosteriorPass(meter):
        built(x)
    g = generator(7)
    normals = torch.randn(meter.size.normal, generator=g, dtype=torch.float64)
    logistics = torch.randn(meter.size.logistic, generator=g, dtype=torch.float64)
    _, kl = built.forward_with_kl(x, NoiseBuffer(normals, logistics))

    tape = NoiseBuffer(normals, logistics)
    alone = built.weights.sample(tape, len(x)).kl
    std = F.softplus(built.biases.raw_std)
    if hasattr(prior, "mean"):
        bias = kl_divergence(Normal(built.biases.mean, std), Normal(prior.mean, prior.std)).sum()
    else:
        b = built.biases.mean + std * tape.normal(std.shape, std)
        a, rate = (float(F.softplus(p)) for p in (prior.raw_shape, prior.raw_rate))
        log_p = gamma_precision_log_density(b.numel(), (b**2).sum().numpy(), a, rate)
        bias = -Normal(built.biases.mean, std).entropy().sum() - float(log_p)
    assert abs(float(kl - alone - bias)) < 1e-10


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_kl_verb_is_the_kl_of_sample(name):
    """``kl(noise)`` is what ``sample(noise)`` charges: to the digit without noise, else in the mean."""
    family = make_family(name, SHAPE, 4)
    meter = NoiseCounter()
    family.kl(meter)
    verb = over_tapes(family.kl, meter.size, DRAWS, 8)
    if meter.size == (0, 0):
        assert float((verb - estimates(family, 2, 9)[0]).abs().max()) < 1e-10
    else:
        ours = value_and_error(family, DRAWS, 9)
        if ours[1] == 0.0:
            assert abs(float(verb[0]) - ours[0]) < 1e-10
        else:
            assert_agree([(mean_and_error(verb), ours)])


@torch.no_grad()
def test_dependent_kl_is_bounded_from_above():
    """The estimate has the mean of log q(W,Γ|u) + log q(u) − log r(u|Γ) − log p(W,Γ) over drawn Γ.

    It is no less than the KL of the structures, q(Γ) integrated over u on a grid, plus that of the slabs.
    """
    pairs = []
    for seed in range(10):
        family = make_family("dependent", (1, 4), seed, rank=1)
        value, error = value_and_error(family, DRAWS, 100 + seed)
        g = generator(seed)
        u = torch.randn(DRAWS, 1, generator=g, dtype=torch.float64)
        alpha = torch.sigmoid(family.inclusion_logit + u[:, :, None] * family.factor)
        gamma = (torch.rand(alpha.shape, generator=g, dtype=torch.float64) < alpha).double()
        std, prior = F.softplus(family.raw_std), family.prior
        w = family.mean + std * torch.randn(alpha.shape, generator=g, dtype=torch.float64)
        believed = (prior.inclusion_prob, prior.mean, prior.std)
        ratio = spike_slab_log_ratio(w, gamma, family.mean, std, alpha, believed).flatten(1).sum(1)
        center = family.auxiliary_mean + (
            (gamma - torch.sigmoid(family.inclusion_logit)) * family.auxiliary_weight
        ).sum((1, 2))
        log_r = Normal(center, F.softplus(family.auxiliary_raw_std)).log_prob(u[:, 0])
        ratio += Normal(0.0, 1.0).log_prob(u[:, 0]) - log_r
        pairs.append(((value, error), mean_and_error(ratio)))
        grid = torch.linspace(-8.0, 8.0, 2001, dtype=torch.float64)
        mass = Normal(0.0, 1.0).log_prob(grid).softmax(0)
        given = torch.sigmoid(family.inclusion_logit + grid[:, None, None] * family.factor).flatten(1)
        structures = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)), dtype=torch.float64)
        q = torch.where(structures[:, None] > 0, given, 1 - given).prod(-1) @ mass
        p = torch.where(structures > 0, prior.inclusion_prob, 1 - prior.inclusion_prob).prod(-1)
        slabs = kl_divergence(Normal(family.mean, std), Normal(prior.mean, prior.std)).flatten()
        exact = (q * (q.log() - p.log())).sum() + (q @ structures) @ slabs
        assert value + 4 * error > float(exact)
    assert_agree(pairs)
