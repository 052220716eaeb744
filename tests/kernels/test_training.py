"""The compiled loops of a training step against PyTorch, in double precision where that is the reference."""

import pytest
import torch
import torch.nn.functional as F

from sparsebnn.kernels import training as kernels
from sparsebnn.kernels.compiler import find_compiler
from sparsebnn.kernels.training import Compiled, Weights
from sparsebnn.posteriors.learned_priors import EmpiricalPrior
from sparsebnn.random import noise
from sparsebnn.training import optimizers
from sparsebnn.training.dense import Eager

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler was found")
SIZES = [1, 15, 16, 17, 2047, 2048, 2049, 5000]  # around the lanes and the chunks of the loops


FIXED = (None, None, 1.0)


def weights(k, n, sparse=True, strengths=FIXED):
    """Weights over the range that training visits, with a prior for each replicate."""
    g = torch.Generator().manual_seed(n)
    mean = torch.randn(k, n, generator=g)
    raw = torch.empty(k, n).uniform_(-12.0, 4.0, generator=g)
    logit = torch.empty(k, n).uniform_(-20.0, 20.0, generator=g) if sparse else None
    columns = (torch.linspace(low, high, k).unsqueeze(1) for low, high in ((-1, 0.5), (0.5, 2.0), (0.1, 0.6)))
    centre, scale, inclusion = columns
    return Weights(mean, raw, logit, centre, scale, inclusion if sparse else None, strengths)


def doubled(w):
    return Weights(*(v.double() if isinstance(v, torch.Tensor) else v for v in w))


@pytest.mark.parametrize("count", [1, 2, 3, 4095, 4096, 70001])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("make", [noise.normals, noise.logistics])
def test_random_numbers_are_those_of_the_eager_twin(make, dtype, near, count):
    seeds = noise.seed_tensor([0, 7, 2**40])
    twin, found = (make(seeds, 12345, 678, count, dtype, fused=fused) for fused in (False, True))
    assert found.dtype == dtype
    torch.testing.assert_close(found, twin, rtol=10 * near, atol=near)


@pytest.mark.parametrize("make", [noise.normals, noise.logistics])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_random_numbers_of_many_steps_are_those_of_each(make, dtype, near):
    seeds, steps = noise.seed_tensor([7]), torch.tensor([0, 5, -(2**50), 2**62])
    found = make(seeds, 12345, steps, 77, dtype, fused=True)
    for row, step in zip(found, steps.tolist()):
        assert torch.equal(row, make(seeds, 12345, step, 77, dtype, fused=True)[0])
    torch.testing.assert_close(found, make(seeds, 12345, steps, 77, dtype), rtol=10 * near, atol=near)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("sparse", [True, False])
def test_moments(n, sparse):
    w = weights(3, n, sparse)
    assert Compiled.takes(w)
    for found, twin in zip(Compiled.moments(w)[:2], Eager.moments(doubled(w))):
        torch.testing.assert_close(found.double(), twin, rtol=2e-6, atol=0.0)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("sparse", [True, False])
def test_gradients_are_those_of_automatic_differentiation(n, sparse):
    w = weights(2, n, sparse)
    g = torch.Generator().manual_seed(1)
    by_mean, by_var = torch.randn(2, n, generator=g), torch.randn(2, n, generator=g)
    share = torch.tensor([0.3, 1.0])
    leaves = [v.double().requires_grad_() for v in w[:3] if v is not None]
    mean, raw = leaves[:2]
    centre, scale = w.prior_mean.double(), w.prior_std.double()
    std = F.softplus(raw)
    kl = torch.log(scale / std) - 0.5 + (std**2 + (mean - centre) ** 2) / (2.0 * scale**2)
    a, rest = torch.ones_like(mean), torch.zeros_like(mean)
    if sparse:
        a, rest, rate = torch.sigmoid(leaves[2]), torch.sigmoid(-leaves[2]), w.prior_inclusion.double()
        kl = a * kl + a * (F.logsigmoid(leaves[2]) - torch.log(rate))
        kl = kl + rest * (F.logsigmoid(-leaves[2]) - torch.log(1.0 - rate))
    kl = kl.sum(1)
    loss = (a * mean * by_mean + a * (std**2 + rest * mean**2) * by_var).sum() + (share * kl).sum()
    expected = torch.autograd.grad(loss, leaves)
    for ops, own, close in ((Compiled, w, 1e-5), (Eager, doubled(w), 1e-10)):
        by = [each.clone().to(own.mean.dtype) for each in (by_mean, by_var)]
        known = ops.moments(own)[2]
        found, divergence = ops.gradients(own, known, share.to(own.mean.dtype), *by)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=close, atol=close)
        torch.testing.assert_close(divergence.double(), kl.detach(), rtol=close, atol=10 * close)


@pytest.mark.parametrize(
    "options", [{}, {"learn_inclusion": True}, {"learn_inclusion": True, "learn_std": False}]
)
def test_learned_priors(options):
    """The KL, and so the gradients, are those of the prior as learned."""
    prior = EmpiricalPrior(0.2, 0.1, 0.7, max_inclusion=0.6, **options).double()
    strengths = (
        prior.strength if prior.learn_std else None,
        prior.inclusion_strength if prior.learn_inclusion else None,
        prior.max_inclusion,
    )
    w = weights(2, 3000)._replace(strengths=strengths)
    w = w._replace(prior_mean=prior.mean.float(), prior_std=prior.std.float())
    w = w._replace(prior_inclusion=prior.inclusion_prob.float())
    zeros, share = torch.zeros(2, 3000), torch.ones(2)
    _, compiled = Compiled.gradients(w, Compiled.moments(w)[2], share, zeros.clone(), zeros.clone())
    exact = doubled(w)
    _, eager = Eager.gradients(exact, Eager.moments(exact)[2], share.double(), zeros, zeros)
    for k in range(2):
        std, inclusion = F.softplus(exact.raw_std[k : k + 1]), torch.sigmoid(exact.logit[k : k + 1])
        squares = (exact.mean[k : k + 1] - prior.mean) ** 2
        expected = prior.kl(exact.logit[k : k + 1], inclusion, std, squares).sum()
        torch.testing.assert_close(eager[k], expected, rtol=1e-6, atol=0.0)
        torch.testing.assert_close(compiled[k].double(), expected, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("ops", [Compiled, Eager])
@pytest.mark.parametrize("skipped", [0, 3])
def test_units(ops, skipped):
    k, rows, units, least = 2, 5, 7, 1e-12
    g = torch.Generator().manual_seed(0)
    mean, var = torch.randn(k, rows, units, generator=g), torch.rand(k, rows, units, generator=g)
    var[0, 0, 0] = 0.0
    block = torch.randn(k, 4 + rows * units, generator=g)
    eps = block[:, 4:].reshape(k, rows, units)
    x = torch.randn(k, rows, skipped, generator=g) if skipped else None
    outputs, std = mean.clone(), var.clone()
    ops.outputs(outputs, std, block, 4, least)
    torch.testing.assert_close(std, var.clamp_min(least).sqrt())
    torch.testing.assert_close(outputs, mean + var.clamp_min(least).sqrt() * eps)
    z, square = ops.inputs(outputs, x)
    expected = outputs.relu() if x is None else torch.cat([outputs.relu(), x], -1)
    torch.testing.assert_close(z, expected)
    torch.testing.assert_close(square, expected**2)
    a, b = torch.randn(k, rows, units, generator=g), torch.randn(k, rows, units, generator=g)
    slope = torch.where(outputs > 0, a + 2.0 * outputs * b, 0.0)
    noisy = torch.where(var > least, slope * eps / (2.0 * std), 0.0)
    found = a.clone()
    torch.testing.assert_close(ops.slopes(found, b, outputs, std, block, 4, least**0.5), noisy)
    torch.testing.assert_close(found, slope)
    last = a.clone()
    noisy = torch.where(var > least, a * eps / (2.0 * std), 0.0)
    torch.testing.assert_close(ops.slopes(last, None, outputs, std, block, 4, least**0.5), noisy)
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
    corrected, root = optimizers.corrected(rates, torch.tensor(5))
    kernels.adam(*mine, corrected, group_of, float(root), alive, optimizers.BETAS, optimizers.EPS)
    optimizers.adam(*tensors, corrected, group_of, root, alive)
    for kind, twin in zip(mine, tensors):
        for name in shapes:
            torch.testing.assert_close(kind[name], twin[name], rtol=1e-6, atol=1e-7, equal_nan=True)


def test_numbers_that_are_not_finite_are_found():
    tensors = [torch.ones(2, 100), torch.ones(2, 3, 7), torch.ones(2, 1)]
    tensors[0][1, 99], tensors[1][0, 2, 6] = torch.nan, -torch.inf
    assert kernels.finite(tensors, 2).tolist() == [[True, False], [False, True], [True, True]]


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch):
    w, share = weights(3, 50_000), torch.ones(3)
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(kernels, "_threads", lambda _, threads=threads: threads)
        moments = Compiled.moments(w)
        made, kl = Compiled.gradients(w, moments[2], share, torch.ones(3, 50_000), torch.ones(3, 50_000))
        normals = kernels.normals(noise.seed_tensor([1, 2, 3]), 4, 5, 50_001)
        found.append([*made, kl, *moments, normals])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other))
