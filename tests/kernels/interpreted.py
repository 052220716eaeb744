"""All Triton kernels on a CPU, by Triton's interpreter, against their twins; runs in a process of its own.

The interpreter is chosen when a kernel is defined, so ``TRITON_INTERPRET=1`` must be set at the start:
``TRITON_INTERPRET=1 PYTHONPATH=src:tests python tests/kernels/interpreted.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.test_contraction import numbers
from kernels.test_masked import layer_of, stacked_of
from sparsebnn.kernels import contraction, masked
from sparsebnn.kernels import convolution as conv
from sparsebnn.random import noise as counter

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


def noise() -> None:
    from sparsebnn.kernels import triton_noise

    keys = counter.keys(counter.seed_tensor([3, 5, 9]), 7, 4)
    for count in (1, 100, 101, 3000):
        for normal, plain in ((True, counter.normals), (False, counter.logistics)):
            expected = plain(counter.seed_tensor([3, 5, 9]), 7, 4, count)
            _same("noise", triton_noise.block(*keys, count, normal), expected)


if __name__ == "__main__":
    for check in (noise, flows, convolutions):
        check()
        print(check.__name__, "as the twins", flush=True)
