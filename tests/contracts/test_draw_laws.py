"""Draws have the distribution they claim: moments, inclusion frequencies, the median model."""

import pytest
import torch
import torch.nn.functional as F

from contracts.members import FAMILIES, WITH_Z, WITHOUT_Z, make_family, over_tapes
from contracts.oracles import SIGMAS, moment_errors
from sparsebnn.nn.description import density
from sparsebnn.nn.layers import Linear
from sparsebnn.random.noise import NoiseBuffer, NoiseCounter

SHAPE = (3, 4)
DRAWS = 40_000
SCALE = torch.tensor([0.4, -1.3, 2.0, 1.0], dtype=torch.float64)


def inner(family):
    return getattr(family, "conditional", family)


def draws_of(verb, draws=DRAWS, seed=1):
    """Many draws of a verb, as one batched call."""
    meter = NoiseCounter()
    verb(meter)
    return over_tapes(verb, meter.size, draws, seed)


def conditional_draws(family, verb, seed=1):
    """Draws of a verb given z: the flow's conditional at a fixed scale, else the family itself."""
    if hasattr(family, "conditional"):
        return draws_of(lambda noise: getattr(family.conditional, verb)(noise, SCALE), seed=seed), SCALE
    return draws_of(getattr(family, verb), seed=seed), torch.ones(()).double()


def alpha_of(family):
    own = inner(family)
    if hasattr(own, "factor"):  # marginal over u, by a fine grid
        grid = torch.linspace(-9.0, 9.0, 4001, dtype=torch.float64)
        mass = torch.exp(-0.5 * grid**2)
        spread = own.factor.square().sum(0).sqrt()
        probs = torch.sigmoid(own.inclusion_logit + grid[:, None, None] * spread)
        return torch.tensordot(mass / mass.sum(), probs, 1)
    if hasattr(own, "inclusion_logit"):
        return 1.0 / (1.0 + torch.exp(-own.inclusion_logit))
    return torch.ones(SHAPE, dtype=torch.float64)


def within(ours, oracle, error):
    """Everywhere within 4 standard errors; where the error is 0, equal."""
    assert bool(((ours - oracle).abs() <= SIGMAS * error + 1e-12).all()), (
        ((ours - oracle) / error).abs().max()
    )


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_mean_and_variance_of_draws(name):
    """E w = αμ and Var w = α(σ² + (1−α)μ²) of exact draws, with μ → zμ given z."""
    for seed in range(3):
        family = make_family(name, SHAPE, seed)
        w, scale = conditional_draws(family, "draw", seed)
        alpha, mu, sigma = alpha_of(family), inner(family).mean * scale, F.softplus(inner(family).raw_std)
        mean, mean_error, var, var_error = moment_errors(w)
        within(mean, alpha * mu, mean_error)
        within(var, alpha * (sigma**2 + (1 - alpha) * mu**2), var_error)


@pytest.mark.parametrize("name", WITH_Z)
@torch.no_grad()
def test_local_and_draw_use_a_fresh_z(name):
    """``local`` and ``draw`` are the conditional's verbs at the z of the first numbers of the tape."""
    family = make_family(name, SHAPE, 5)
    meter = NoiseCounter()
    family.draw(meter)
    normals, logistics = (torch.randn(n, dtype=torch.float64) for n in meter.size)
    tape = NoiseBuffer(normals, logistics)
    z0 = family.z0_mean + torch.exp(0.5 * family.z0_log_var) * tape.normal((4,), normals)
    z, _ = family.q_flow(z0)
    assert torch.allclose(
        family.draw(NoiseBuffer(normals, logistics)), family.conditional.draw(tape, z), atol=1e-12
    )
    moments = family.local(NoiseBuffer(normals, logistics))
    mean = family.conditional.inclusion_prob() * family.conditional.mean * z
    ours = moments.mean if moments.scale is None else moments.mean * moments.scale[0]
    assert float((ours - mean).abs().max()) < 1e-10


@pytest.mark.parametrize("name", WITH_Z)
@torch.no_grad()
def test_draws_of_a_flow_share_z(name):
    """Cov(w_ij, w_il) = α_ij α_il Cov(z_j μ_ij, z_l μ_il): z ties weights together; oracle: draws of z."""
    family = make_family(name, SHAPE, 6)
    w = draws_of(family.draw, seed=3)
    alpha, mu = alpha_of(family), inner(family).mean
    z = family.q_flow(
        family.z0_mean + torch.exp(0.5 * family.z0_log_var) * torch.randn(DRAWS, 4, dtype=torch.float64)
    )[0]
    tied = alpha * mu * z[:, None, :]

    def covariances(t):
        centred = t - t.mean(0)
        products = torch.einsum("di,di->d", centred[:, :, 0], centred[:, :, 0].roll(1, 1))
        return products.mean(), products.std() / len(t) ** 0.5

    (a, error_a), (b, error_b) = covariances(w), covariances(tied)
    assert float(b.abs()) > 10 * float(error_b)
    assert float((a - b).abs()) < SIGMAS * float(torch.hypot(error_a, error_b))


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_inclusion_frequency(name):
    """A weight of ``draw`` is not 0 with frequency sigmoid(logit); inclusion_prob says the same."""
    family = make_family(name, SHAPE, 2)
    alpha = alpha_of(family)
    quadrature = 1e-6 if name == "dependent" else 1e-10
    assert float((family.inclusion_prob() - alpha).abs().max()) < quadrature
    frequency = (draws_of(family.draw) != 0).double().mean(0)
    within(frequency, alpha, (alpha * (1 - alpha) / DRAWS).sqrt())


@torch.no_grad()
def test_dependent_inclusions_share_u():
    """Cov(γ_i, γ_j) = Cov(α_i(u), α_j(u)); oracle: draws of u."""
    family = make_family("dependent", SHAPE, 6)
    gamma = (draws_of(family.draw, seed=3) != 0).double().flatten(1)
    u = torch.randn(DRAWS, family.rank, dtype=torch.float64)
    alpha = torch.sigmoid(family.inclusion_logit + torch.einsum("dr,rij->dij", u, family.factor)).flatten(1)
    ours, oracle = torch.cov(gamma.T), torch.cov(alpha.T)
    apart = ~torch.eye(len(ours), dtype=torch.bool)
    assert float(oracle[apart].abs().max()) > 0.02
    assert float((ours - oracle)[apart].abs().max()) < 5.5 * 0.25 * 2**0.5 / DRAWS**0.5


@pytest.mark.parametrize("name", [name for name in WITHOUT_Z if name != "dependent"])
@torch.no_grad()
def test_inclusions_are_independent(name):
    """Mean field: inclusions (or, where all are there, values) of different weights are uncorrelated."""
    family = make_family(name, SHAPE, 2)
    if not hasattr(family, "inclusion_logit"):
        w = draws_of(family.draw).flatten(1)
    else:
        w = (draws_of(family.draw) != 0).double().flatten(1)
    correlation = torch.corrcoef(w.T) - torch.eye(w.shape[1])
    assert float(correlation.abs().max()) < 4.5 / DRAWS**0.5  # 66 pairs: the largest of them


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_median_draw(name):
    """Weights with inclusion ≤ 0.5 are exactly 0, the others N(zμ, σ²) and never 0."""
    family = make_family(name, SHAPE, 3)
    own = inner(family)
    if hasattr(own, "inclusion_logit"):
        own.inclusion_logit[0, 0] = 0.0  # a half is not above a half
        own.inclusion_logit[0, 1] = 1e-3
        own.inclusion_logit[0, 2] = -1e-3
    w, scale = conditional_draws(family, "median_draw")
    kept = family.inclusion_prob() > 0.5
    assert torch.equal((w != 0).all(0), kept)
    assert torch.equal((w != 0).any(0), kept)
    mean, mean_error, var, var_error = moment_errors(w)
    sigma = F.softplus(own.raw_std)
    within(mean[kept], (own.mean * scale)[kept], mean_error[kept])
    within(var[kept], (sigma**2)[kept], var_error[kept])
    outer = draws_of(family.median_draw, 50)
    assert torch.equal((outer != 0).all(0), kept)


@torch.no_grad()
def test_median_draw_and_density_agree_to_the_last_bit():
    """A logit so small that its probability rounds to one half is excluded by both."""
    layer = Linear(2, 1, bias=False)
    layer.weights.inclusion_logit.copy_(torch.tensor([[1e-9, 1.0]]))
    kept = draws_of(lambda noise: layer.weights.median_draw(noise), 1) != 0
    assert int(kept.sum()) == density(layer).overall * 2


@pytest.mark.parametrize("name", FAMILIES)
def test_draw_for_gradient_has_the_value_of_a_draw(name):
    """From the same numbers the value is that of an exact draw, and every parameter gets a gradient."""
    family = inner(make_family(name, SHAPE, 4))
    meter = NoiseCounter()
    family.draw_for_gradient(meter, SCALE)
    normals, logistics = (torch.randn(n, dtype=torch.float64) for n in meter.size)
    ours = family.draw_for_gradient(NoiseBuffer(normals, logistics), SCALE)
    exact = family.draw(NoiseBuffer(normals, logistics), SCALE)
    assert float((ours - exact).detach().abs().max()) < 1e-10
    assert torch.equal(ours == 0, exact == 0)
    ours.sum().backward()
    for parameter_name in ("mean", "raw_std", "inclusion_logit"):
        parameter = getattr(family, parameter_name, None)
        if parameter is not None:
            assert float(parameter.grad.abs().max()) > 0


@pytest.mark.parametrize("name", ["concrete", "concrete_hierarchical"])
@torch.no_grad()
def test_concrete_training_draw_becomes_exact(name):
    """As the relaxation falls the relaxed draw is the exact one from the same numbers."""
    family = make_family(name, SHAPE, 4, relaxation=1e-9)
    meter = NoiseCounter()
    family.sample(meter)
    normals, logistics = (torch.randn(n, dtype=torch.float64) for n in meter.size)
    relaxed = family.sample(NoiseBuffer(normals, logistics)).weight
    exact = family.draw(NoiseBuffer(normals, logistics))
    assert float((relaxed - exact).abs().max()) < 1e-10


@pytest.mark.parametrize("name", ["concrete", "concrete_hierarchical"])
@torch.no_grad()
def test_concrete_relaxation(name):
    """γ̂ = sigmoid((λ + ℓ)/T) with ℓ logistic, times μ + σε, written out."""
    family = make_family(name, SHAPE, 4, relaxation=0.7)
    normals, logistics = (torch.randn(12, dtype=torch.float64) for _ in range(2))
    gamma = 1 / (1 + torch.exp(-(family.inclusion_logit + logistics.reshape(SHAPE)) / 0.7))
    slab = family.mean + F.softplus(family.raw_std) * normals.reshape(SHAPE)
    ours = family.sample(NoiseBuffer(normals, logistics)).weight
    assert float((ours - gamma * slab).abs().max()) < 1e-10
