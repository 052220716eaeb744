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

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

from sparsebnn.kernels.dispatch import kernel, stacked

Geometry = tuple[list[int], list[int], list[int]]


class Shape(NamedTuple):
    """All sizes of a convolution: channels, image, filters, output image, taps, and its geometry."""

    c: int
    h: int
    w: int
    o: int
    oh: int
    ow: int
    kh: int
    kw: int
    sh: int
    sw: int
    ph: int
    pw: int
    dh: int
    dw: int

    @property
    def depth(self) -> int:
        """Weights per filter."""
        return self.c * self.kh * self.kw

    @property
    def geometry(self) -> Geometry:
        return [self.sh, self.sw], [self.ph, self.pw], [self.dh, self.dw]


def _shape(x: Tensor, w: Tensor, geometry: Geometry) -> Shape:
    """Of stacked inputs and weights."""
    sizes: list[int] = []
    for d, (stride, padding, dilation) in enumerate(zip(*geometry)):
        span = dilation * (w.shape[3 + d] - 1) + 1
        sizes.append((x.shape[3 + d] + 2 * padding - span) // stride + 1)
    (sh, sw), (ph, pw), (dh, dw) = geometry
    c, h, width = x.shape[2:]
    kh, kw = w.shape[3:]
    return Shape(c, h, width, w.shape[1], sizes[0], sizes[1], kh, kw, sh, sw, ph, pw, dh, dw)


# Kernels for many channels want them last, so that neighbouring threads read neighbouring numbers. The
# copies are made out here, where the compiler joins them with whatever made the tensor.
_LAST = (0, 1, 3, 4, 2)
_TAPS_IN_OUT = (0, 3, 4, 2, 1)
_TAPS_OUT_IN = (0, 3, 4, 1, 2)


def _on_triton(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32


def _many(x: Tensor, channels: int) -> bool:
    """Whether one tap's channels fill a tile of the matrix units."""
    return _on_triton(x) and channels >= 16


def _copy(t: Tensor, order: tuple[int, ...]) -> Tensor:
    return t.permute(order).contiguous() if t.numel() else t


@torch.library.custom_op("sparsebnn::conv2d_forward", mutates_args=())
def _forward(
    x: Tensor, wm: Tensor, wv: Tensor, bm: Tensor, bv: Tensor, shape: list[int], pair: bool, last: bool
) -> tuple[Tensor, Tensor]:
    """With ``last``, x is (K, B, H, W, C) and weights are (K, kh, kw, C, O)."""
    if _on_triton(x):
        from sparsebnn.kernels import triton_convolution

        return triton_convolution.forward(x, wm, wv, bm, bv, Shape(*shape), pair, last)
    some, options = bm.numel() > 0, Shape(*shape).geometry
    means, variances = [], []
    for k in range(len(x)):
        means.append(F.conv2d(x[k], wm[k], bm[k] if some else None, *options))
        if pair:
            variances.append(F.conv2d(x[k] ** 2, wv[k], bv[k] if some else None, *options))
    return torch.stack(means), torch.stack(variances) if pair else x.new_empty(0)


@_forward.register_fake
def _(
    x: Tensor, wm: Tensor, wv: Tensor, bm: Tensor, bv: Tensor, shape: list[int], pair: bool, last: bool
) -> tuple[Tensor, Tensor]:
    full = Shape(*shape)
    mean = x.new_empty(x.shape[0], x.shape[1], full.o, full.oh, full.ow)
    return mean, torch.empty_like(mean) if pair else x.new_empty(0)


@torch.library.custom_op("sparsebnn::conv2d_weight_grad", mutates_args=())
def _weight_grad(
    dm: Tensor, dv: Tensor, x: Tensor, shape: list[int], splits: int, pair: bool, bias: bool, last: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums over parts of the output pixels: weights (splits, K, O, C·kh·kw), biases (splits, K, O).

    With ``last``, x is (K, B, H, W, C), gradients are (K, B, H', W', O) and weights (…, O, kh·kw·C).
    """
    if _on_triton(x):
        from sparsebnn.kernels import triton_convolution

        return triton_convolution.weight_grad(dm, dv, x, Shape(*shape), splits, pair, bias, last)
    full = Shape(*shape)
    size, options = (full.o, full.c, full.kh, full.kw), full.geometry
    sums = []
    for used, power, grad in ((True, 1, dm), (pair, 2, dv)):
        weights = [conv2d_weight(a**power, size, g, *options) for a, g in zip(x, grad)] if used else []
        sums.append(torch.stack(weights).flatten(2)[None] if used else x.new_empty(0))
        sums.append(grad.sum((1, 3, 4))[None] if used and bias else x.new_empty(0))
    return sums[0], sums[2], sums[1], sums[3]


@_weight_grad.register_fake
def _(
    dm: Tensor, dv: Tensor, x: Tensor, shape: list[int], splits: int, pair: bool, bias: bool, last: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    full, k = Shape(*shape), x.shape[0]

    def like(there: bool, *sizes: int) -> Tensor:
        return x.new_empty(splits, k, *sizes) if there else x.new_empty(0)

    return (
        like(True, full.o, full.depth),
        like(pair, full.o, full.depth),
        like(bias, full.o),
        like(bias and pair, full.o),
    )


@torch.library.custom_op("sparsebnn::conv2d_input_grad", mutates_args=())
def _input_grad(
    dm: Tensor, dv: Tensor, x: Tensor, wm: Tensor, wv: Tensor, shape: list[int], pair: bool, last: bool
) -> Tensor:
    """With ``last``, gradients are (K, B, H', W', O) and weights (K, kh, kw, O, C)."""
    if _on_triton(x):
        from sparsebnn.kernels import triton_convolution

        return triton_convolution.input_grad(dm, dv, x, wm, wv, Shape(*shape), pair)
    size, options = x.shape[1:], Shape(*shape).geometry
    grad = torch.stack([conv2d_input(size, w, g, *options) for w, g in zip(wm, dm)])
    if pair:
        grad = grad + 2.0 * x * torch.stack([conv2d_input(size, w, g, *options) for w, g in zip(wv, dv)])
    return grad


@_input_grad.register_fake
def _(
    dm: Tensor, dv: Tensor, x: Tensor, wm: Tensor, wv: Tensor, shape: list[int], pair: bool, last: bool
) -> Tensor:
    return torch.empty_like(x)


def _splits(x: Tensor, shape: Shape) -> int:
    """Into how many parts the sums over pixels are cut: enough programs to fill the device twice over.

    Every part writes its own sum, and the sums are added in a fixed order, so the result does not
    depend on timing.
    """
    if not _on_triton(x):
        return 1
    rows = x.shape[1] * shape.oh * shape.ow
    tiles = -(-shape.o // 64) * -(-shape.depth // 128) * x.shape[0]
    # Small sums of large weights would cost more to add up than they save.
    affordable = max(8, 2**20 // (x.shape[0] * shape.o * shape.depth))
    wanted = max(1, min(-(-rows // 128), 528 // tiles + 1, affordable))
    each = -(-rows // (wanted * 32)) * 32
    return -(-rows // each)


# The compiler may put a short sum into one kernel with a long one, whose tiles then serve neither.
_FEW = 16


def _added(parts: Tensor) -> Tensor:
    """The sum over the first axis; of few parts in a chain, which the compiler joins with what follows."""
    if len(parts) > _FEW:
        return parts.sum(0)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


# The stacked products, each in the layout its kernel wants.


def _moments(
    x: Tensor, wm: Tensor, wv: Tensor, bm: Tensor, bv: Tensor, *, geometry: Geometry, pair: bool
) -> tuple[Tensor, Tensor]:
    shape = _shape(x, wm, geometry)
    last = _many(x, shape.c)
    if last:
        x, wm, wv = _copy(x, _LAST), _copy(wm, _TAPS_IN_OUT), _copy(wv, _TAPS_IN_OUT) if pair else wv
    return kernel(_forward)(x, wm, wv, bm, bv, list(shape), pair, last)


def _weight_sums(
    dm: Tensor, dv: Tensor, x: Tensor, wm: Tensor, *, geometry: Geometry, pair: bool, bias: bool
) -> tuple[Tensor, ...]:
    shape = _shape(x, wm, geometry)
    splits, last = _splits(x, shape), _many(x, shape.c)
    if last:
        dm, dv, x = _copy(dm, _LAST), _copy(dv, _LAST), _copy(x, _LAST)
    parts = kernel(_weight_grad)(dm, dv, x, list(shape), splits, pair, bias, last)
    gm, gv, sm, sv = (_added(part) if part.numel() else part for part in parts)

    def as_weights(sums: Tensor) -> Tensor:
        if not last:
            return sums.unflatten(-1, (shape.c, shape.kh, shape.kw))
        return sums.unflatten(-1, (shape.kh, shape.kw, shape.c)).movedim(-1, 2)

    return as_weights(gm), as_weights(gv) if pair else gv, sm, sv


def _input_sums(
    dm: Tensor, dv: Tensor, x: Tensor, wm: Tensor, wv: Tensor, *, geometry: Geometry, pair: bool
) -> Tensor:
    shape = _shape(x, wm, geometry)
    last = _on_triton(x)
    if last:
        dm, wm = _copy(dm, _LAST), _copy(wm, _TAPS_OUT_IN)
        if pair:
            dv, wv = _copy(dv, _LAST), _copy(wv, _TAPS_OUT_IN)
    return kernel(_input_grad)(dm, dv, x, wm, wv, list(shape), pair, last)


def _dims(outputs: tuple[Tensor, ...]) -> tuple[int | None, ...]:
    """The replicate axis of stacked outputs; an absent one has none."""
    return tuple(0 if t.numel() else None for t in outputs)


class _WeightGrad(torch.autograd.Function):
    """First derivatives only; the rule for a batch of replicates is the stacked kernel."""

    @staticmethod
    def forward(
        dm: Tensor, dv: Tensor, x: Tensor, wm: Tensor, geometry: Geometry, pair: bool, bias: bool
    ) -> Any:
        found = _weight_sums(dm[None], dv[None], x[None], wm[None], geometry=geometry, pair=pair, bias=bias)
        return tuple(t[0] if t.numel() else t for t in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
        geometry, pair, bias = inputs[4:]
        given = stacked(inputs[:4], dims[:4], info.batch_size)
        outputs = _weight_sums(*given, geometry=geometry, pair=pair, bias=bias)
        return outputs, _dims(outputs)


class _InputGrad(torch.autograd.Function):
    """As above, for the inputs."""

    @staticmethod
    def forward(
        dm: Tensor, dv: Tensor, x: Tensor, wm: Tensor, wv: Tensor, geometry: Geometry, pair: bool
    ) -> Any:
        given = (dm[None], dv[None], x[None], wm[None], wv[None])
        return _input_sums(*given, geometry=geometry, pair=pair)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
        geometry, pair = inputs[5:]
        return _input_sums(*stacked(inputs[:5], dims[:5], info.batch_size), geometry=geometry, pair=pair), 0


class _Convolution(torch.autograd.Function):
    """Means and variances (or means alone) of a convolution's outputs."""

    @staticmethod
    def forward(
        x: Tensor, wm: Tensor, wv: Tensor, bm: Tensor, bv: Tensor, geometry: Geometry, pair: bool
    ) -> Any:
        given = (x[None], wm[None], wv[None], bm[None], bv[None])
        m, v = _moments(*given, geometry=geometry, pair=pair)
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
        outputs = _moments(*stacked(inputs[:5], dims[:5], info.batch_size), geometry=geometry, pair=pair)
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
