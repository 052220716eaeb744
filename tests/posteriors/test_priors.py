"""priors.py: densities integrate to one, equal their integrals, and refuse what makes no sense."""

import itertools
import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import integrate, stats

import sparsebnn
from contracts.members import generator
from sparsebnn.checks import InvalidInput
from sparsebnn.nn.layers import Linear
from sparsebnn.nn.networks import initialize
from sparsebnn.posteriors.learned_priors import EmpiricalPrior, GammaPrecisionPrior, HierarchicalPrior
from sparsebnn.posteriors.priors import GaussianPrior, SpikeSlabPrior, bernoulli_kl, gaussian_kl
from sparsebnn.random.noise import RandomNoise

HYPER = [(1.0, 1.0, 1.0, 1.0), (2.3, 0.7, 0.4, 3.1), (0.8, 2.5, 5.0, 0.9)]


def precision_integral(w, a, b):
    """∫ Gamma(τ; a, b) ∏ N(w_i; 0, 1/τ) dτ, by quadrature over log τ."""

    def integrand(log_tau):
        tau = math.exp(log_tau)
        slabs = np.prod(stats.norm.pdf(w, scale=tau**-0.5))
        return stats.gamma.pdf(tau, a, scale=1 / b) * slabs * tau

    return integrate.quad(integrand, -60, 12, epsabs=1e-14, epsrel=1e-12, limit=400, points=[-4, 0, 3])[0]


def rate_integral(n, total, c, d):
    """∫ Beta(ψ; c, d) ψⁿ(1−ψ)^{N−n} dψ, by quadrature over logit ψ, the Beta's constant included."""

    def beta_function(p, q):
        def integrand(t):
            return math.exp(-p * np.logaddexp(0, -t) - q * np.logaddexp(0, t))

        return integrate.quad(integrand, -90, 90, epsabs=0, epsrel=1e-12, limit=400, points=[-5, 0, 5])[0]

    return beta_function(c + n, d + total - n) / beta_function(c, d)


@torch.no_grad()
def log_prob(prior, *values):
    return float(prior.log_prob(*(torch.tensor(v, dtype=torch.float64) for v in values)))


@pytest.mark.parametrize(("a", "b"), [h[:2] for h in HYPER])
def test_gamma_precision_is_the_integral_over_the_precision(a, b):
    """log p(w) against quadrature over τ, for one to three weights."""
    prior = GammaPrecisionPrior(a, b)
    for w in ([0.3], [1.2, -0.4], [0.1, 2.0, -1.5]):
        assert abs(log_prob(prior, w) - math.log(precision_integral(np.array(w), a, b))) < 1e-8


@pytest.mark.parametrize(("a", "b"), [h[:2] for h in HYPER])
def test_gamma_precision_density_integrates_to_one(a, b):
    """∫ p(w) dw = 1 for one weight, and for two (over the radius, p being spherical)."""
    prior = GammaPrecisionPrior(a, b)
    # w = sinh u tames the heavy tails.
    one = integrate.quad(
        lambda u: math.exp(log_prob(prior, [math.sinh(u)])) * math.cosh(u), -40, 40, limit=400
    )[0]
    assert abs(one - 1) < 1e-7

    def ring(u):
        r = math.sinh(u)
        return 2 * math.pi * r * math.exp(log_prob(prior, [r, 0.0])) * math.cosh(u)

    assert abs(integrate.quad(ring, 0, 40, limit=400)[0] - 1) < 1e-7


@pytest.mark.parametrize(("a", "b", "c", "d"), HYPER)
def test_hierarchical_is_its_two_integrals(a, b, c, d):
    """log p(w, γ) against quadrature over the precision and over the inclusion rate, all γ of 3 weights."""
    prior = HierarchicalPrior(a, b, c, d)
    w = np.array([0.7, -1.6, 0.2])
    for gamma in itertools.product((0.0, 1.0), repeat=3):
        n = int(sum(gamma))
        slab = precision_integral(w[np.array(gamma) > 0], a, b) if n else 1.0
        oracle = math.log(slab) + math.log(rate_integral(n, 3, c, d))
        assert abs(log_prob(prior, w, gamma) - oracle) < 1e-8
        # What an excluded weight would have been has no density.
        assert log_prob(prior, np.where(np.array(gamma) > 0, w, 9.0), gamma) == log_prob(prior, w, gamma)
    assert abs(float(prior.inclusion_prob.detach()) - c / (c + d)) < 1e-10


@pytest.mark.parametrize(("a", "b", "c", "d"), HYPER)
def test_hierarchical_density_sums_to_one(a, b, c, d):
    """Σ_γ ∫ p(w, γ) dw over included weights = 1, for two weights."""
    prior = HierarchicalPrior(a, b, c, d)

    def line(u, gamma):
        w = math.sinh(u)
        return math.exp(log_prob(prior, [w * gamma[0], w * gamma[1]], gamma)) * math.cosh(u)

    def ring(u):
        r = math.sinh(u)
        return 2 * math.pi * r * math.exp(log_prob(prior, [r, 0.0], [1.0, 1.0])) * math.cosh(u)

    total = math.exp(log_prob(prior, [0.3, 0.4], [0.0, 0.0])) + integrate.quad(ring, 0, 40, limit=400)[0]
    for gamma in ([1.0, 0.0], [0.0, 1.0]):
        total += integrate.quad(line, -40, 40, args=(gamma,), limit=400)[0]
    assert abs(total - 1) < 1e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kl_at_the_edges(dtype):
    """Limits: α → 0 gives −log(1−α₀), α → 1 gives −log α₀; zero distance gives 0."""
    prior = torch.tensor(0.1, dtype=dtype)
    logit = torch.tensor([-200.0, 200.0], dtype=dtype)
    ours = bernoulli_kl(logit, torch.sigmoid(logit), torch.logit(prior))
    oracle = torch.stack([-torch.log1p(-prior), -torch.log(prior)])
    assert torch.allclose(ours, oracle, rtol=0, atol=2e-5 if dtype is torch.float32 else 1e-10)
    one = torch.ones((), dtype=dtype)
    assert float(gaussian_kl(0.3 * one, 0.0 * one, 0.3 * one).abs()) < 1e-6
    assert bool(gaussian_kl(0.0 * one, one, one).isfinite())


def test_each_layer_owns_its_prior():
    """What one layer learns of its prior does not move another's, nor the one that was passed.

    Hyperparameters start where they were put; dtype and device are the layer's.
    """
    prior = HierarchicalPrior(shape=3.0, rate=0.25, included=2.0, excluded=7.0)
    before = {name: value.detach().clone() for name, value in prior.named_parameters()}
    first, second = (Linear(2, 2, family="concrete", prior=prior) for _ in range(2))
    with torch.no_grad():
        for value in first.weights.prior.parameters():
            value.fill_(9.0)
    for name, value in before.items():
        assert torch.equal(prior.get_parameter(name), value)
        ours = second.weights.prior.get_parameter(name)
        assert float(F.softplus(ours.detach())) == pytest.approx(float(F.softplus(value)), abs=1e-6)
    prior = SpikeSlabPrior([0.1, 0.3])
    with torch.device("meta"):
        assert Linear(2, 3, prior=prior).weights.prior.inclusion_prob.is_meta
    assert prior.inclusion_prob.dtype == torch.float64
    assert not prior.inclusion_prob.is_meta
    assert Linear(2, 2, prior=prior).weights.prior.inclusion_prob.dtype == torch.float32
    wide = Linear(2, 2, prior=prior, dtype=torch.float64)
    assert wide.weights.prior.inclusion_prob.tolist() == [0.1, 0.3]


# --- a prior that the posterior chooses ---------------------------------------------------------------


def posterior(seed=0, shape=(4, 3)):
    """Logits, stds and squared means of some weights."""
    g = generator(seed)
    logit, raw, mean = (torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(3))
    return logit, torch.exp(raw - 1.0), mean**2


def total(prior, logit, std, error):
    return prior.kl(logit, torch.sigmoid(logit), std, error).sum()


@pytest.mark.parametrize("per", ["layer", "input", "output"])
@pytest.mark.parametrize("learn", [False, True])
def test_the_fitted_prior_is_the_one_with_the_largest_bound(per, learn):
    """No other scale (or rate) of the same sharing gives a smaller divergence; pseudo-weights aside."""
    logit, std, error = posterior()
    options = {"strength": 1e-12, "inclusion_strength": 1e-12, "learn_inclusion": learn, "per": per}
    prior = EmpiricalPrior(0.2, **options)
    inclusion = torch.sigmoid(logit)
    scale = prior.fitted_std(inclusion, std, error)
    rate = prior.fitted_inclusion(inclusion)
    best = total(prior, logit, std, error)
    fixed = SpikeSlabPrior(rate.expand_as(logit), std=scale.expand_as(logit))
    assert abs(float(total(fixed, logit, std, error) - best)) < 1e-10
    shape = {"layer": (1, 1), "input": (1, 3), "output": (4, 1)}[per]
    assert scale.shape == shape
    for factor in (0.98, 1.02):
        for place in range(scale.numel()):
            other = scale.clone()
            other.view(-1)[place] *= factor
            worse = SpikeSlabPrior(rate.expand_as(logit), std=other.expand_as(logit))
            assert float(total(worse, logit, std, error)) > float(best)
            if learn:
                other = rate.clone()
                other.view(-1)[place] *= factor
                worse = SpikeSlabPrior(other.expand_as(logit), std=scale.expand_as(logit))
                assert float(total(worse, logit, std, error)) > float(best)


def test_the_gradient_is_that_of_the_fitted_divergence():
    """Differences of the divergence, prior refitted each time, against autograd."""
    values = [t.requires_grad_() for t in posterior(1)]
    prior = EmpiricalPrior(0.2, strength=1e-12, inclusion_strength=1e-12, learn_inclusion=True)
    slopes = torch.autograd.grad(total(prior, *values), values)
    for i, slope in enumerate(slopes):
        for place in ((0, 0), (2, 1), (3, 2)):
            sides = []
            for step in (1e-5, -1e-5):
                moved = [t.detach().clone() for t in values]
                moved[i][place] += step
                sides.append(float(total(prior, *moved)))
            assert abs((sides[0] - sides[1]) / 2e-5 - float(slope[place])) < 1e-6


def test_a_layer_without_weights_keeps_the_prior_it_was_given():
    logit, std, error = posterior()
    prior = EmpiricalPrior(0.3, std=0.7, learn_inclusion=True, inclusion_strength=0.5)
    none = torch.zeros_like(logit)
    assert abs(float(prior.fitted_std(none, std, error)) - 0.7) < 1e-12
    assert abs(float(prior.fitted_inclusion(none)) - 0.1) < 1e-12
    gone = torch.full_like(logit, -80.0)
    assert bool(torch.isfinite(prior.kl(gone, torch.sigmoid(gone), std, error)).all())


def test_pseudo_weights_by_hand():
    """Two of four weights, squares 1 and 3: (2·0.25 + 4)/(2 + 2)."""
    prior = EmpiricalPrior(std=0.5, strength=2.0)
    there = torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    squares = torch.tensor([[1.0, 3.0], [9.0, 9.0]], dtype=torch.float64)
    assert abs(float(prior.fitted_std(there, 0.0 * there, squares)) ** 2 - 4.5 / 4.0) < 1e-12


@pytest.mark.parametrize("family", ["spike_slab", "concrete", "flow"])
def test_networks_train_with_it(family):
    """And their KL is the one under the fitted values."""
    layer = sparsebnn.Linear(3, 4, family=family, prior=EmpiricalPrior(0.2), dtype=torch.float64)
    x, y = torch.randn(20, 3, dtype=torch.float64), torch.randint(4, (20,))
    settings = sparsebnn.Settings(epochs=2, batch_size=10)
    run = sparsebnn.train(layer, (x, y), settings=settings, replicates=2, progress=False)
    assert all(value == value for value in run.history[-1].loss)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: EmpiricalPrior(per="row"), "'per' of EmpiricalPrior"),
        (lambda: EmpiricalPrior(strength=0.0), "'strength' of EmpiricalPrior"),
    ],
)
def test_empirical_messages(build, named):
    with pytest.raises(InvalidInput, match=re.escape(f"The {named} must be ")):
        build()


# --- the precision in use, and values that no draw can replace ------------------------------------------


@pytest.mark.parametrize(
    ("what", "build"),
    [
        ("inclusion_prob", lambda: Linear(4, 2, prior=SpikeSlabPrior(1 - 1e-12))),
        ("inclusion_prob", lambda: Linear(4, 2, prior=SpikeSlabPrior(1e-60))),
        ("inclusion_prob", lambda: Linear(4, 2, prior=SpikeSlabPrior([0.1, 0.1, 0.1, 1 - 1e-12]))),
        ("inclusion_prob", lambda: Linear(4, 2, prior=SpikeSlabPrior(0.9999)).to(torch.bfloat16)),
        ("inclusion_prob", lambda: Linear(4, 2, prior=SpikeSlabPrior(0.9999), dtype=torch.bfloat16)),
        ("inclusion_prob", lambda: Linear(4, 2, family="flow", prior=SpikeSlabPrior(0.9999)).bfloat16()),
        ("std", lambda: Linear(4, 2, prior=SpikeSlabPrior(std=1e-30))),
        ("std", lambda: Linear(4, 2, prior=EmpiricalPrior(std=1e30))),
        ("std", lambda: Linear(4, 2, family="gaussian", prior=GaussianPrior(std=1e-4)).half()),
        ("std", lambda: Linear(4, 2, bias_prior=GaussianPrior(std=1e-30))),
        ("std", lambda: GaussianPrior(std=1e-200)),
        ("mean", lambda: Linear(4, 2, prior=SpikeSlabPrior(mean=1e6)).half()),
        ("relaxation", lambda: Linear(4, 2, family="concrete", family_options={"relaxation": 1e-9}).half()),
    ],
)
def test_values_are_checked_in_the_precision_in_use(what, build):
    """A wider precision takes what a narrow one does not."""
    with pytest.raises(InvalidInput, match=f"The '{what}' of "):
        build()
    layer = Linear(4, 2, prior=SpikeSlabPrior(1 - 1e-12, std=1e-30), dtype=torch.float64)
    assert torch.isfinite(layer.weights.kl(RandomNoise()))


META_CASES = {
    "spike_slab": {"prior": SpikeSlabPrior([0.1, 0.2, 0.3, 0.4], std=2.0)},
    "concrete": {"prior": HierarchicalPrior(shape=3.0, included=2.0), "family_options": {"relaxation": 0.3}},
    "gaussian": {"prior": GaussianPrior(std=[0.5, 1.0, 2.0, 0.7])},
    "flow": {"family_options": {"hidden": (8, 8)}},
    "mnf": {"family_options": {"hidden": (8, 8), "kind": "coupling"}},
}


@pytest.mark.parametrize("way", ["context", "device", "moved", "emptied"])
@pytest.mark.parametrize("family", META_CASES)
def test_constants_survive_the_meta_device_and_to_empty(family, way):
    """Priors, relaxations and the orders of flows: nothing would draw them again."""
    options = {"family": family, **META_CASES[family]}
    straight = Linear(4, 3, **options)
    with torch.device("meta" if way == "context" else "cpu"):
        layer = Linear(4, 3, device="meta" if way == "device" else None, **options)
    if way == "moved":
        layer = layer.to("meta")
    if way != "emptied":
        assert all(t.is_meta for t in (*layer.parameters(), *layer.buffers()))
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        layer.to_empty(device="cpu")
    finally:
        torch.use_deterministic_algorithms(False)
    initialize(layer, 7)
    initialize(straight, 7)
    mine = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    for name, value in (*straight.named_parameters(), *straight.named_buffers()):
        assert torch.equal(mine[name], value), name


@pytest.mark.parametrize(
    ("build", "named"),
    [
        *(
            (lambda p=p: SpikeSlabPrior(p), "'inclusion_prob' of SpikeSlabPrior")
            for p in (1.0, -0.25, math.nan)
        ),
        (lambda: SpikeSlabPrior(inclusion_prob=[0.5, 0.0]), "'inclusion_prob' of SpikeSlabPrior"),
        (lambda: SpikeSlabPrior(std=-1.0), "'std' of SpikeSlabPrior"),
        (lambda: GaussianPrior(std=[1.0, 0.0]), "'std' of GaussianPrior"),
        (lambda: GaussianPrior(std=math.inf), "'std' of GaussianPrior"),
        (lambda: GaussianPrior(std=torch.ones(3, device="meta")), "'std' of GaussianPrior"),
        (lambda: GammaPrecisionPrior(rate=-2.0), "'rate' of GammaPrecisionPrior"),
        (lambda: HierarchicalPrior(included=[1.0, 2.0]), "'included' of HierarchicalPrior"),
    ],
)
def test_priors_that_make_no_sense(build, named):
    with pytest.raises(InvalidInput, match=f"The {named} must be "):
        build()


@pytest.mark.parametrize(
    ("family", "options", "named"),
    [
        ("spike_slab", {"prior": SpikeSlabPrior([0.1, 0.2])}, "'inclusion_prob' of SpikeSlabPrior"),
        ("spike_slab", {"prior": SpikeSlabPrior(mean=torch.zeros(4, 2, 3))}, "'mean' of SpikeSlabPrior"),
        ("gaussian", {"prior": GaussianPrior(std=torch.ones(5, 1))}, "'std' of GaussianPrior"),
        ("spike_slab", {"prior": GaussianPrior()}, "'prior' of the 'spike_slab' family"),
        ("concrete", {"prior": GaussianPrior()}, "'prior' of the 'concrete' family"),
        ("flow", {"prior": HierarchicalPrior()}, "'prior' of the 'flow' family"),
        ("mnf", {"prior": SpikeSlabPrior()}, "'prior' of the 'mnf' family"),
        ("spike_slab", {"bias_prior": GammaPrecisionPrior()}, "'bias_prior' of a layer"),
    ],
)
def test_priors_that_do_not_fit_their_layer(family, options, named):
    with pytest.raises(InvalidInput, match=f"The {named}"):
        Linear(3, 2, family=family, **options)
