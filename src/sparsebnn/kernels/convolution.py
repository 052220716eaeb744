r"""Convolutions of K replicates at once, means and variances together.

``torch.func.vmap`` turns K convolutions with K different weights into one grouped convolution, which
runs far from what the hardware can do. Here the replicate is one more axis of the grid of an
implicit matrix product, and the two convolutions of the local reparametrization,

.. math:: m = x * w_m, \qquad v = x^2 * w_v,

share every load of x. Where Triton or CUDA is missing, an eager twin computes the same.

The biases are added, and their gradients summed, in the same passes; an absent bias is empty.

Shapes: x ``(B, C, H, W)``, weights ``(O, C, kh, kw)``, biases ``(O,)``, outputs
``(B, O, H', W')``; stacked, each has a leading K.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

__all__ = ["conv2d_moments", "conv2d_replicated"]

Geometry = tuple[list[int], list[int], list[int]]


def _output_size(x: Tensor, w: Tensor, geometry: Geometry) -> tuple[int, int]:
    stride, padding, dilation = geometry
    sizes = []
    for d in range(2):
        span = dilation[d] * (w.shape[-2 + d] - 1) + 1
        sizes.append((x.shape[-2 + d] + 2 * padding[d] - span) // stride[d] + 1)
    return sizes[0], sizes[1]


def _on_triton(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32


@torch.library.custom_op("sparsebnn::conv2d_forward", mutates_args=())
def _forward(
    x: Tensor,
    wm: Tensor,
    wv: Tensor,
    bm: Tensor,
    bv: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    pair: bool,
) -> tuple[Tensor, Tensor]:
    if _on_triton(x):
        from sparsebnn.kernels import triton_convolution

        return triton_convolution.forward(x, wm, wv, bm, bv, (stride, padding, dilation), pair)
    some = bm.numel() > 0
    means, variances = [], []
    for k in range(len(x)):
        options = (stride, padding, dilation)
        means.append(F.conv2d(x[k], wm[k], bm[k] if some else None, *options))
        if pair:
            variances.append(F.conv2d(x[k] ** 2, wv[k], bv[k] if some else None, *options))
    return torch.stack(means), torch.stack(variances) if pair else x.new_empty(0)


@_forward.register_fake
def _(
    x: Tensor,
    wm: Tensor,
    wv: Tensor,
    bm: Tensor,
    bv: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    pair: bool,
) -> tuple[Tensor, Tensor]:
    size = _output_size(x, wm, (stride, padding, dilation))
    mean = x.new_empty(x.shape[0], x.shape[1], wm.shape[1], *size)
    return mean, torch.empty_like(mean) if pair else x.new_empty(0)


@torch.library.custom_op("sparsebnn::conv2d_weight_grad", mutates_args=())
def _weight_grad(
    dm: Tensor,
    dv: Tensor,
    x: Tensor,
    wm: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    pair: bool,
    bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if _on_triton(x):
        from sparsebnn.kernels import triton_convolution

        return triton_convolution.weight_grad(dm, dv, x, wm, (stride, padding, dilation), pair, bias)
    shape, options = wm.shape[1:], (stride, padding, dilation)
    sums = []
    for used, power, grad in ((True, 1, dm), (pair, 2, dv)):
        weights = [conv2d_weight(a**power, shape, g, *options) for a, g in zip(x, grad)] if used else []
        sums.append(torch.stack(weights) if used else x.new_empty(0))
        sums.append(grad.sum((1, 3, 4)) if used and bias else x.new_empty(0))
    return sums[0], sums[2], sums[1], sums[3]


@_weight_grad.register_fake
def _(
    dm: Tensor,
    dv: Tensor,
    x: Tensor,
    wm: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    pair: bool,
    bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def like(shape: torch.Size, there: bool) -> Tensor:
        return x.new_empty(shape) if there else x.new_empty(0)

    row = wm.shape[:2]
    return like(wm.shape, True), like(wm.shape, pair), like(row, bias), like(row, bias and pair)


@torch.library.custom_op("sparsebnn::conv2d_input_grad", mutates_args=())
def _input_grad(
    dm: Tensor,
    dv: Tensor,
    x: Tensor,
    wm: Tensor,
    wv: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    pair: bool,
) -> Tensor:
    if _on_triton(x):
        from sparsebnn.kernels import triton_convolution

        return triton_convolution.input_grad(dm, dv, x, wm, wv, (stride, padding, dilation), pair)
    shape, options = x.shape[1:], (stride, padding, dilation)
    grad = torch.stack([conv2d_input(shape, w, g, *options) for w, g in zip(wm, dm)])
    if pair:
        grad = grad + 2.0 * x * torch.stack([conv2d_input(shape, w, g, *options) for w, g in zip(wv, dv)])
    return grad


@_input_grad.register_fake
def _(
    dm: Tensor,
    dv: Tensor,
    x: Tensor,
    wm: Tensor,
    wv: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    pair: bool,
) -> Tensor:
    return torch.empty_like(x)


def _stack(tensors: tuple[Tensor, ...], dims: tuple[int | None, ...], k: int) -> list[Tensor]:
    """Every tensor with the replicate axis in front, repeated where it has none."""
    moved = [t.expand(k, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(tensors, dims)]
    return [t.contiguous() for t in moved]


def _dims(outputs: tuple[Tensor, ...]) -> tuple[int | None, ...]:
    """The replicate axis of stacked outputs; an absent one has none."""
    return tuple(0 if t.numel() else None for t in outputs)


class _WeightGrad(torch.autograd.Function):
    """First derivatives only; the rule for a batch of replicates is the stacked kernel."""

    @staticmethod
    def forward(
        dm: Tensor, dv: Tensor, x: Tensor, wm: Tensor, geometry: Geometry, pair: bool, bias: bool
    ) -> Any:
        stacked = _weight_grad(dm[None], dv[None], x[None], wm[None], *geometry, pair, bias)
        return tuple(t[0] if t.numel() else t for t in stacked)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
        geometry, pair, bias = inputs[4:]
        outputs = _weight_grad(*_stack(inputs[:4], dims[:4], info.batch_size), *geometry, pair, bias)
        return outputs, _dims(outputs)


class _InputGrad(torch.autograd.Function):
    """As above, for the inputs."""

    @staticmethod
    def forward(
        dm: Tensor, dv: Tensor, x: Tensor, wm: Tensor, wv: Tensor, geometry: Geometry, pair: bool
    ) -> Any:
        return _input_grad(dm[None], dv[None], x[None], wm[None], wv[None], *geometry, pair)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
        geometry, pair = inputs[5:]
        return _input_grad(*_stack(inputs[:5], dims[:5], info.batch_size), *geometry, pair), 0


class _Convolution(torch.autograd.Function):
    """Means and variances (or means alone) of a convolution's outputs."""

    @staticmethod
    def forward(
        x: Tensor, wm: Tensor, wv: Tensor, bm: Tensor, bv: Tensor, geometry: Geometry, pair: bool
    ) -> Any:
        m, v = _forward(x[None], wm[None], wv[None], bm[None], bv[None], *geometry, pair)
        return m[0], v[0] if pair else v

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, wm, wv, bm, _, ctx.geometry, ctx.pair = inputs
        ctx.bias = bm.numel() > 0
        ctx.save_for_backward(x, wm, wv)

    @staticmethod
    def backward(ctx: Any, dm: Tensor, dv: Tensor) -> Any:
        x, wm, wv = ctx.saved_tensors
        dx = _InputGrad.apply(dm, dv, x, wm, wv, ctx.geometry, ctx.pair)
        gm, gv, sm, sv = _WeightGrad.apply(dm, dv, x, wm, ctx.geometry, ctx.pair, ctx.bias)
        both = ctx.pair and ctx.bias
        return dx, gm, gv if ctx.pair else None, sm if ctx.bias else None, sv if both else None, None, None

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
        geometry, pair = inputs[5:]
        outputs = _forward(*_stack(inputs[:5], dims[:5], info.batch_size), *geometry, pair)
        return outputs, _dims(outputs)


def conv2d_moments(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    bias_mean: Tensor | None,
    bias_var: Tensor | None,
    geometry: Geometry,
) -> tuple[Tensor, Tensor]:
    """``(conv2d(x, mean), conv2d(x², var))``; ``geometry`` is (stride, padding, dilation)."""
    none = x.new_empty(0)
    biases = (none, none) if bias_mean is None or bias_var is None else (bias_mean, bias_var)
    return _Convolution.apply(x, mean, var, *biases, geometry, True)


def conv2d_replicated(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """``conv2d(x, weight)``, fast also when ``vmap`` gives every replicate its own weight."""
    none = x.new_empty(0)
    given = none if bias is None else bias
    return _Convolution.apply(x, weight, weight.detach(), given, none, geometry, False)[0]
