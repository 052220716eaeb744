"""The compiled loops of a training step against PyTorch, in double precision where that is the reference."""

import math

import pytest
import torch
import torch.nn.functional as F

from sparsebnn.kernels import training as kernels
from sparsebnn.kernels.compiler import find_compiler
from sparsebnn.posteriors.learned_priors import EmpiricalPrior
from sparsebnn.random import noise
from sparsebnn.training import engine

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler was found")
SIZES = [1, 15, 16, 17, 2047, 2048, 2049, 5000]  # around the lanes and the chunks of the loops


def weights(k, n, sparse=True):
    """Means, raw standard deviations and logits over the range that training visits."""
    g = torch.Generator().manual_seed(n)
    mean = torch.randn(k, n, generator=g)
    raw = torch.empty(k, n).uniform_(-12.0, 4.0, generator=g)
    return mean, raw, torch.empty(k, n).uniform_(-20.0, 20.0, generator=g) if sparse else None


@pytest.mark.parametrize("count", [1, 2, 3, 4095, 4096, 70001])
def test_normals_are_those_of_the_eager_twin(count):
    seeds = noise.seed_tensor([0, 7, 2**40])
    twin = noise.normals(seeds, 12345, 678, count)
    torch.testing.assert_close(
        noise.normals(seeds, 12345, 678, count, fused=True), twin, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("sparse", [True, False])
def test_moments(n, sparse):
    mean, raw, logit = weights(3, n, sparse)
    centre = torch.tensor([0.0, 0.5, -1.0])
    first, var, sums = kernels.moments(mean, raw, logit, centre)
    m, std = mean.double(), F.softplus(raw.double())
    a = torch.ones_like(m) if logit is None else torch.sigmoid(logit.double())
    rest = torch.zeros_like(m) if logit is None else torch.sigmoid(-logit.double())
    torch.testing.assert_close(first.double(), a * m, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(var.double(), a * (std**2 + rest * m**2), rtol=2e-6, atol=0.0)
    if sparse:
        square = (a * (std**2 + (m - centre[:, None].double()) ** 2)).sum(1)
        torch.testing.assert_close(sums.sum(1), torch.stack([a.sum(1), square], 1), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("sparse", [True, False])
def test_gradients_are_those_of_automatic_differentiation(n, sparse):
    values = weights(2, n, sparse)
    g = torch.Generator().manual_seed(1)
    by_mean, by_var = torch.randn(2, n, generator=g), torch.randn(2, n, generator=g)
    prior = torch.tensor([[0.0, 0.0, -2.0], [0.3, math.log(0.5), 1.0]])
    share = torch.tensor([0.3, 1.0])
    leaves = [v.double().requires_grad_() for v in values if v is not None]
    mean, raw = leaves[:2]
    centre, log_std, rate = (prior[:, i : i + 1].double() for i in range(3))
    std, logit = F.softplus(raw), leaves[2] if sparse else torch.full_like(mean, 40.0)
    a, rest = torch.sigmoid(logit), torch.sigmoid(-logit)
    slab = log_std - torch.log(std) - 0.5 + (std**2 + (mean - centre) ** 2) / (2.0 * torch.exp(2.0 * log_std))
    kl = slab
    if sparse:
        kl = a * slab + a * (F.logsigmoid(logit) - F.logsigmoid(rate))
        kl = (kl + rest * (F.logsigmoid(-logit) - F.logsigmoid(-rate))).sum(1)
    else:
        kl = kl.sum(1)
    loss = (a * mean * by_mean + a * (std**2 + rest * mean**2) * by_var).sum() + (share * kl).sum()
    expected = torch.autograd.grad(loss, leaves)
    found, divergence = kernels.gradients(*values, prior, share, by_mean.clone(), by_var.clone())
    for one, other in zip(found, expected):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(divergence, kl.detach(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "options", [{}, {"learn_inclusion": True}, {"learn_inclusion": True, "learn_std": False}]
)
def test_learned_priors(options):
    prior = EmpiricalPrior(0.2, 0.1, 0.7, max_inclusion=0.6, **options).float()
    mean, raw, logit = weights(2, 3000)
    sums = kernels.moments(mean, raw, logit, prior.mean)[2]
    strengths = (
        prior.strength if prior.learn_std else -1.0,
        prior.inclusion_strength if prior.learn_inclusion else -1.0,
        prior.max_inclusion,
    )
    found = kernels.priors(3000, sums, prior.mean, prior.std, prior.inclusion_prob, strengths)
    for k in range(2):
        inclusion, std = torch.sigmoid(logit[k : k + 1]), F.softplus(raw[k : k + 1])
        scale, rate = prior.values(inclusion, std, (mean[k : k + 1] - prior.mean) ** 2)
        expected = torch.tensor([0.1, float(torch.log(scale)), float(torch.logit(rate))])
        torch.testing.assert_close(found[k], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("skipped", [0, 3])
def test_units(skipped):
    k, rows, units, least = 2, 5, 7, 1e-12
    g = torch.Generator().manual_seed(0)
    mean, var = torch.randn(k, rows, units, generator=g), torch.rand(k, rows, units, generator=g)
    var[0, 0, 0] = 0.0
    block = torch.randn(k, 4 + rows * units, generator=g)
    eps = block[:, 4:].reshape(k, rows, units)
    x = torch.randn(k, rows, skipped, generator=g) if skipped else None
    outputs, std = mean.clone(), var.clone()
    kernels.outputs(outputs, std, block, 4, least)
    torch.testing.assert_close(std, var.clamp_min(least).sqrt())
    torch.testing.assert_close(outputs, mean + var.clamp_min(least).sqrt() * eps)
    z, square = kernels.inputs(outputs, x)
    expected = outputs.relu() if x is None else torch.cat([outputs.relu(), x], -1)
    torch.testing.assert_close(z, expected)
    torch.testing.assert_close(square, expected**2)
    a, b = torch.randn(k, rows, units, generator=g), torch.randn(k, rows, units, generator=g)
    slope = torch.where(outputs > 0, a + 2.0 * outputs * b, 0.0)
    noisy = torch.where(var > least, slope * eps / (2.0 * std), 0.0)
    found = a.clone()
    torch.testing.assert_close(kernels.slopes(found, b, outputs, std, block, 4, least**0.5), noisy)
    torch.testing.assert_close(found, slope)
    last = a.clone()
    noisy = torch.where(var > least, a * eps / (2.0 * std), 0.0)
    torch.testing.assert_close(kernels.slopes(last, None, outputs, std, block, 4, least**0.5), noisy)
    assert torch.equal(last, a)


def test_adam_has_a_rate_per_replicate_and_leaves_the_dead_alone():
    g = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 40, 70), "b": (3, 1), "c": (3, 17)}
    tensors = [{n: torch.rand(s, generator=g) for n, s in shapes.items()} for _ in range(4)]
    tensors[1]["c"][0, 3] = torch.inf
    group_of = {"a": 0, "b": 1, "c": 1}
    rates = torch.tensor([[1e-2, 2e-2, 3e-2], [1e-3, 0.0, 1e-1]])
    alive = torch.tensor([True, False, True])
    mine = [{n: t.clone() for n, t in kind.items()} for kind in tensors]
    corrected, root = engine.corrected(rates, torch.tensor(5))
    kernels.adam(*mine, corrected, group_of, float(root), alive, engine.BETAS, engine.EPS)
    engine.adam(*tensors, corrected, group_of, root, alive)
    for kind, twin in zip(mine, tensors):
        for name in shapes:
            torch.testing.assert_close(kind[name], twin[name], rtol=1e-6, atol=1e-7, equal_nan=True)


def test_numbers_that_are_not_finite_are_found():
    tensors = [torch.ones(2, 100), torch.ones(2, 3, 7), torch.ones(2, 1)]
    tensors[0][1, 99], tensors[1][0, 2, 6] = torch.nan, -torch.inf
    assert kernels.finite(tensors, 2).tolist() == [[True, False], [False, True], [True, True]]


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch):
    values = weights(3, 50_000)
    share, prior = torch.ones(3), torch.tensor([[0.0, 0.0, -2.0]] * 3)
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(kernels, "_threads", lambda _, threads=threads: threads)
        by = torch.ones(3, 50_000), torch.ones(3, 50_000)
        made, kl = kernels.gradients(*values, prior, share, *by)
        moments = kernels.moments(*values, torch.zeros(1))
        normals = kernels.normals(noise.seed_tensor([1, 2, 3]), 4, 5, 50_001)
        found.append([*made, kl, *moments, normals])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other))
