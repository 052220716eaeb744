r"""Convolutions of K replicates at once, means and variances together.

``torch.func.vmap`` turns K convolutions with K different weights into one grouped convolution, which
runs far from what the hardware can do. Here the replicate is one more axis of the grid of an
implicit matrix product, and the two convolutions of the local reparametrization,

.. math:: m = x * w_m, \qquad v = x^2 * w_v,

share every load of x. Where Triton or CUDA is missing, an eager twin computes the same.

Shapes: x ``(B, C, H, W)``, weights ``(O, C, kh, kw)``, outputs ``(B, O, H', W')``; stacked, each has a
leading K.
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
    x: Tensor, wm: Tensor, wv: Tensor, stride: list[int], padding: list[int], dilation: list[int], pair: bool
) -> tuple[Tensor, Tensor]:
    if _on_triton(x):
        from sparsebnn.kernels import triton_convolution

        return triton_convolution.forward(x, wm, wv, (stride, padding, dilation), pair)
    options = (None, stride, padding, dilation)
    mean = torch.stack([F.conv2d(a, w, *options) for a, w in zip(x, wm)])
    if not pair:
        return mean, x.new_empty(0)
    return mean, torch.stack([F.conv2d(a * a, w, *options) for a, w in zip(x, wv)])


@_forward.register_fake
def _(
    x: Tensor, wm: Tensor, wv: Tensor, stride: list[int], padding: list[int], dilation: list[int], pair: bool
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
) -> tuple[Tensor, Tensor]:
    if _on_triton(x):
        from sparsebnn.kernels import triton_convolution

        return triton_convolution.weight_grad(dm, dv, x, wm, (stride, padding, dilation), pair)
    shape, options = wm.shape[1:], (stride, padding, dilation)
    weight = conv2d_weight
    gm = torch.stack([weight(a, shape, g, *options) for a, g in zip(x, dm)])
    if not pair:
        return gm, x.new_empty(0)
    return gm, torch.stack([weight(a * a, shape, g, *options) for a, g in zip(x, dv)])


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
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(wm), torch.empty_like(wm) if pair else x.new_empty(0)


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
    inputs = conv2d_input
    grad = torch.stack([inputs(shape, w, g, *options) for w, g in zip(wm, dm)])
    if pair:
        grad = grad + 2.0 * x * torch.stack([inputs(shape, w, g, *options) for w, g in zip(wv, dv)])
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


class _WeightGrad(torch.autograd.Function):
    """First derivatives only; the rule for a batch of replicates is the stacked kernel."""

    @staticmethod
    def forward(dm: Tensor, dv: Tensor, x: Tensor, wm: Tensor, geometry: Geometry, pair: bool) -> Any:
        gm, gv = _weight_grad(dm[None], dv[None], x[None], wm[None], *geometry, pair)
        return gm[0], gv[0] if pair else gv

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(
        info: Any, dims: Any, dm: Tensor, dv: Tensor, x: Tensor, wm: Tensor, geometry: Geometry, pair: bool
    ) -> Any:
        stacked = _stack((dm, dv, x, wm), dims[:4], info.batch_size)
        return _weight_grad(*stacked, *geometry, pair), (0, 0 if pair else None)


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
    def vmap(
        info: Any,
        dims: Any,
        dm: Tensor,
        dv: Tensor,
        x: Tensor,
        wm: Tensor,
        wv: Tensor,
        geometry: Geometry,
        pair: bool,
    ) -> Any:
        stacked = _stack((dm, dv, x, wm, wv), dims[:5], info.batch_size)
        return _input_grad(*stacked, *geometry, pair), 0


class _Convolution(torch.autograd.Function):
    """Means and variances (or means alone) of a convolution's outputs."""

    @staticmethod
    def forward(x: Tensor, wm: Tensor, wv: Tensor, geometry: Geometry, pair: bool) -> Any:
        m, v = _forward(x[None], wm[None], wv[None], *geometry, pair)
        return m[0], v[0] if pair else v

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, wm, wv, ctx.geometry, ctx.pair = inputs
        ctx.save_for_backward(x, wm, wv)

    @staticmethod
    def backward(ctx: Any, dm: Tensor, dv: Tensor) -> Any:
        x, wm, wv = ctx.saved_tensors
        dx = _InputGrad.apply(dm, dv, x, wm, wv, ctx.geometry, ctx.pair)
        gm, gv = _WeightGrad.apply(dm, dv, x, wm, ctx.geometry, ctx.pair)
        return dx, gm, gv if ctx.pair else None, None, None

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, wm: Tensor, wv: Tensor, geometry: Geometry, pair: bool) -> Any:
        stacked = _stack((x, wm, wv), dims[:3], info.batch_size)
        return _forward(*stacked, *geometry, pair), (0, 0 if pair else None)


def conv2d_moments(x: Tensor, mean: Tensor, var: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """``(conv2d(x, mean), conv2d(x², var))``; ``geometry`` is (stride, padding, dilation)."""
    return _Convolution.apply(x, mean, var, geometry, True)


def conv2d_replicated(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """``conv2d(x, weight)``, fast also when ``vmap`` gives every replicate its own weight."""
    return _Convolution.apply(x, weight, weight.detach(), geometry, False)[0]
