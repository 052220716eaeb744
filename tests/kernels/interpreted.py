"""All Triton kernels on a CPU, by Triton's interpreter, against their twins; runs in a process of its own.

The interpreter is chosen when a kernel is defined, so ``TRITON_INTERPRET=1`` must be set at the start:
``TRITON_INTERPRET=1 PYTHONPATH=src:tests python tests/kernels/interpreted.py``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.test_contraction import numbers
from kernels.test_masked import layer_of, stacked_of
from sparsebnn.kernels import contraction, masked
from sparsebnn.kernels import convolution as conv
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.networks import mlp
from sparsebnn.posteriors import EmpiricalPrior, Gaussian, SpikeSlab
from sparsebnn.posteriors import flows as flow_steps
from sparsebnn.random import noise as counter
from sparsebnn.training.batches import Batch, gather
from sparsebnn.training.captured import Adam, CapturedDense
from sparsebnn.training.objective import Objective, Parts, Replicates
from sparsebnn.training.optimizers import BETAS, EPS, adam, corrected, count_step, mark_stopped

# batch, channels, size, filters, taps, stride, padding, dilation
_CASES = [
    (3, 1, 9, 6, 5, [1, 1], [0, 0], [1, 1]),
    (2, 32, 8, 20, 5, [1, 1], [0, 0], [1, 1]),
    (3, 18, 9, 5, 3, [2, 2], [0, 1], [2, 1]),
    (2, 20, 7, 17, 3, [2, 1], [1, 2], [1, 2]),
]
_REPLICATES = 2


def _same(name: str, ours: Tensor, twin: Tensor) -> None:
    assert ours.shape == twin.shape, name
    apart = float((ours.double() - twin.double()).abs().max()) if ours.numel() else 0.0
    assert apart < 1e-4 * (1.0 + float(twin.abs().max())), f"{name}: {apart}"


def _last(t: Tensor) -> Tensor:
    return t.permute(conv._LAST).contiguous()


def convolutions() -> None:
    """Forward, gradients of inputs and of weights, in both layouts."""
    from sparsebnn.kernels import triton_convolution

    torch.set_float32_matmul_precision("highest")
    for batch, channels, size, filters, taps, *geometry in _CASES:
        torch.manual_seed(channels)
        x = torch.randn(_REPLICATES, batch, channels, size, size)
        w = torch.randn(_REPLICATES, filters, channels, taps, taps)
        v, bm, bv = w**2, torch.randn(_REPLICATES, filters), torch.rand(_REPLICATES, filters)
        shape = conv._shape(x, w, tuple(geometry))
        twins = conv._forward(x, w, v, bm, bv, list(shape), True, False)
        dm, dv = (torch.randn_like(t) for t in twins)
        for last in (False, True):
            given = (_last(x), *(t.permute(conv._TAPS_IN_OUT).contiguous() for t in (w, v)))
            made = triton_convolution.forward(*(given if last else (x, w, v)), bm, bv, shape, True, last)
            for name, ours, twin in zip(("mean", "variance"), made, twins):
                _same(f"forward, {name}", ours, twin)
            sums = conv._weight_grad(dm, dv, x, list(shape), 1, True, True, False)
            sides = [_last(t) for t in (dm, dv, x)] if last else [dm, dv, x]
            parts = triton_convolution.weight_grad(*sides, shape, 2, True, True, last)
            for name, part, twin in zip(("mean", "variance", "bias", "bias variance"), parts, sums):
                ours = part.sum(0)
                if last and "bias" not in name:
                    ours = ours.unflatten(-1, (taps, taps, channels)).movedim(-1, 2).flatten(2)
                _same(f"weights, {name}", ours, twin.sum(0))
        weights = [t.permute(conv._TAPS_OUT_IN).contiguous() for t in (w, v)]
        ours = triton_convolution.input_grad(_last(dm), _last(dv), x, *weights, shape, True)
        _same("inputs", ours, conv._input_grad(dm, dv, x, w, v, list(shape), True, False))


def flows() -> None:
    """The folded products and their gradients; the column sums of the auxiliary's."""
    from sparsebnn.kernels import triton_contraction, triton_masked

    for size in ((5, 8, False), (8, 5, True), (40, 33, False), (33, 81, True)):
        layer = layer_of(*size)
        x, weight, bias, direction = (t.float() for t in stacked_of([layer]))
        in_parts = torch.stack([direction, 0.5 * direction, -2.0 * direction], 1)
        made = triton_masked.forward(x, weight, bias, *layer.fold, 0.001)
        for name, ours, twin in zip(
            ("product", "folded"), made, masked._forward(x, weight, bias, *layer.fold, 0.001)
        ):
            _same(name, ours, twin)
        known = (in_parts, made[0], weight, *layer.fold, 0.001)
        twins = masked._backward(*known, layer.inputs)
        each = -(-weight.shape[1] // twins[0].shape[1])
        ours, rows = triton_masked.backward(*known, each, layer.inputs)
        _same("gradient of the inputs", ours.sum(1), twins[0].sum(1))
        _same("gradient of the rows", rows, twins[1])
    for size in ((10, 60), (64, 5), (150, 33)):
        weight, _, direction = (t.float() for t in numbers(size))
        ours = triton_contraction.column_sums(weight, direction, contraction._ROWS_PER_PART)
        _same("column sums", ours, contraction._column_sums(weight, direction))


def weights() -> None:
    """Moments and KL with their gradients, of weights that may be excluded and of weights that are not."""
    from sparsebnn.kernels import triton_spike_slab

    for family, prior in ((SpikeSlab((9, 150)), (0.3, 0.7, -1.2)), (Gaussian((70,)), (0.3, 0.7, 0.0))):
        given = [2.0 * torch.randn(_REPLICATES, *family.shape) - 1.0 for _ in family.parameters()]
        values = torch.tensor([prior, prior])
        stacked = [given[0], given[1], given[2] if len(given) == 3 else torch.empty(_REPLICATES, 0)]
        made = triton_spike_slab.forward(*stacked, values)
        twins, grads = [], []
        directions = [torch.randn(_REPLICATES, *family.shape) for _ in range(2)] + [torch.randn(_REPLICATES)]
        for k in range(_REPLICATES):
            own = [t[k].double().requires_grad_() for t in given]
            twins.append(moments_of(own, prior))
            total = sum((d[k] * t).sum() for d, t in zip(directions, twins[-1]))
            grads.append(torch.autograd.grad(total, own))
        for name, ours, twin in zip(("mean", "variance", "KL"), made, zip(*twins)):
            _same(name, ours, torch.stack(twin).detach())
        back = triton_spike_slab.backward(*directions, *stacked, values)
        for name, ours, twin in zip(("mean", "raw_std", "logit"), back, zip(*grads)):
            _same(f"gradient of {name}", ours, torch.stack(twin))


def moments_of(given: list[Tensor], prior: tuple[float, float, float]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and KL by the textbook, in double precision."""
    mean, std = given[0], F.softplus(given[1])
    ours, theirs = torch.distributions.Normal(mean, std), torch.distributions.Normal(prior[0], prior[1])
    slab = torch.distributions.kl_divergence(ours, theirs)
    if len(given) == 2:
        return mean, std**2, slab.sum()
    there = torch.distributions.Bernoulli(logits=given[2])
    fair = torch.distributions.Bernoulli(logits=torch.full_like(mean, prior[2]))
    kl = there.probs * slab + torch.distributions.kl_divergence(there, fair)
    second = there.probs * (std**2 + mean**2)
    return there.probs * mean, second - (there.probs * mean) ** 2, kl.sum()


def optimizer() -> None:
    """Adam, with a replicate that has stopped and a gradient that is not finite."""
    from sparsebnn.kernels import triton_adam

    rates, alive = torch.tensor([[1e-2, 2e-2, 3e-2]]), torch.tensor([True, False, True])
    values = [torch.randn(3, 37, 40) for _ in range(4)]
    values[3] = values[3].abs()
    values[1][2, 0, 0] = float("nan")
    twins = [t.clone() for t in values]
    own, root = corrected(rates, torch.tensor(4))
    adam(*({"w": t} for t in twins), own, {"w": 0}, root, alive)
    triton_adam.update(*values, own[0], root, alive, BETAS, EPS)
    for name, ours, twin in zip(("parameter", "gradient", "first", "second"), values, twins):
        assert torch.equal(ours.isnan(), twin.isnan()), name
        _same(name, ours.nan_to_num(), twin.nan_to_num())


def outputs() -> None:
    """Samples of images with the channels last, and their gradients; one variance is 0."""
    from sparsebnn.kernels import local, triton_local

    for shape in ((2, 5, 3, 7), (3, 70, 9, 9)):
        images = [torch.randn(shape).contiguous(memory_format=torch.channels_last) for _ in range(2)]
        images[1] = images[1].abs()
        images[1][0, 0, 0, 0] = 0.0
        for name, twin in local.TWINS.items():
            third = images[0] if name == "joined" else torch.randn(shape)
            given = images[:1] if name == "squares" else [*images, third]
            ours = getattr(triton_local, name)(*given)
            assert ours.is_contiguous(memory_format=torch.channels_last)
            _same(name, ours, twin(*given))


def noise() -> None:
    from sparsebnn.kernels import triton_noise

    keys = counter.keys(counter.seed_tensor([3, 5, 9]), 7, 4)
    for count in (1, 100, 101, 3000):
        for normal, plain in ((True, counter.normals), (False, counter.logistics)):
            expected = plain(counter.seed_tensor([3, 5, 9]), 7, 4, count)
            _same("noise", triton_noise.block(*keys, count, normal), expected)
            made = triton_noise.block(counter.seed_tensor([3, 5, 9]), torch.tensor(4), count, normal, 7)
            _same("noise of a step", made, expected)


def dense() -> None:
    """Steps of dense networks: loss and gradients, and Adam's step with them; one replicate has stopped."""
    torch.set_float32_matmul_precision("highest")
    learned = EmpiricalPrior(0.2, learn_inclusion=True)
    flow_steps._WORTH_FOLDING = 0
    flow = {"family": "flow", "family_options": {"hidden": (13, 6)}}
    mnf = {"family": "mnf", "family_options": {"hidden": (7,), "length": 1}}
    skip = {"input_skip": True}
    for options in ({}, skip, {"family": "gaussian"}, {**skip, "prior": learned}, flow, mnf, flow | skip):
        objective = Objective(mlp([20, 33, 18, 3], **options), Categorical(3), 500)
        replicates = Replicates(objective, [1, 2], torch.device("cpu"))
        x, y, weight = torch.randn(2, 70, 20), torch.randint(0, 3, (2, 70)), torch.rand(2, 70)
        replicates.measure(x[0])
        given = Batch(x, y, weight, torch.tensor(70.0)), torch.tensor([0.5, 1.0])
        given = *given, replicates.noise(replicates.seed_tensor, 3)
        state = replicates.tensors()
        for kind in ("first", "second"):
            state[kind] = {n: 0.01 * torch.rand_like(p) for n, p in state["trained"].items()}
        ours = CapturedDense.of(replicates.objective)
        (found, parts), (expected, loss) = ours(state, *given), replicates.gradients(state, *given)
        for one, other in zip(parts, loss):
            _same("loss", one, other)
        for name, gradient in expected.items():
            apart = (found[name] - gradient).abs().max()
            assert apart < 1e-4 * gradient.abs().max(), f"{name}: {apart}"
        names = sorted(expected)
        group_of, alive = {name: k % 2 for k, name in enumerate(names)}, torch.tensor([True, False])
        rates, root = corrected(torch.tensor([[0.01, 0.02], [0.03, 0.04]]), torch.tensor(5))
        kinds = "trained", "first", "second"
        copies = [{n: t.clone() for n, t in state[kind].items()} for kind in kinds]
        adam(copies[0], expected, *copies[1:], rates, group_of, root, alive)
        batch, beta, noise_of_step = given
        begun = ours.begin(state, lambda noise_of_step=noise_of_step: noise_of_step, 70)
        share = batch.rows / 500 * beta
        ours.forward(state, batch, x * x, share, begun)[1](Adam(rates, root, alive, group_of), None)
        for kind, copy in zip(kinds, copies):
            for name, values in copy.items():
                _same(f"{kind}, {name}", state[kind][name], values)


def batches() -> None:
    """Rows of tables and of pixels with their weights; the account of a step in which a replicate stops."""
    from sparsebnn.kernels import triton_batch

    order = torch.stack([torch.randperm(11), torch.randperm(11)])
    order = torch.cat([order, order[:, :1]], 1)
    masks = torch.ones(3, 4)
    masks[2, 3] = 0.0
    loop = {"order": order, "masks": masks, "position": torch.tensor(2), "beta": torch.tensor([0.5, 2.0])}
    tables = {"x": torch.randn(11, 5), "y": torch.randint(0, 9, (11,))}
    pixels = {"x": torch.randint(0, 256, (11, 7), dtype=torch.uint8), "y": torch.randn(11, 3)}
    for data in (tables, pixels, tables | {"weight": torch.rand(11)}):
        x, squares, y, weight, share = triton_batch.gather(data, loop, 50)
        twin = gather(data, order[:, 8:], masks[2])
        for name, ours, expected in zip(("x", "y", "weight"), (x, y, weight), twin):
            assert torch.equal(ours, expected), name
        assert torch.equal(squares, x * x)
        _same("share", share, twin.rows / 50 * loop["beta"])
    terms, kl, share = torch.rand(3, 2), torch.rand(3, 4), torch.rand(3)
    kl[1, 2] = float("inf")
    loops = []
    for _ in range(2):
        made = {"alive": torch.tensor([True, True, False]), "stopped_at": torch.tensor([-1, -1, 3])}
        made |= {"position": torch.tensor(4), "step": torch.tensor(9)}
        loops.append(made | {"totals": torch.ones(3, 3).double(), "kl_by_layer": torch.zeros(3, 4)})
    triton_batch.account(loops[0], terms, kl, share)
    parts = Parts(terms.sum(1) + share * kl.sum(1), terms.sum(1), kl.sum(1), kl)
    mark_stopped(loops[1], torch.isfinite(parts.loss))
    count_step(loops[1], parts)
    rates = torch.tensor([[1e-4, 2e-4], [3.0, 0.0]])
    for step in (0, 1, 200_000):
        ours = triton_batch.corrected({"rates": rates, "step": torch.tensor(step)}, BETAS)
        for one, other in zip(ours, corrected(rates, torch.tensor(step + 1))):
            torch.testing.assert_close(one, other, rtol=2e-7, atol=0.0)
    for name, expected in loops[1].items():
        _same(name, loops[0][name].nan_to_num(posinf=9.0).double(), expected.nan_to_num(posinf=9.0).double())


if __name__ == "__main__":
    for check in (batches, noise, weights, dense, outputs, optimizer, flows, convolutions):
        check()
        print(check.__name__, "as the twins", flush=True)
