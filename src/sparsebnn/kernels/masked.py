r"""Networks of folded triangular maps (``posteriors.masked``) for a single vector, K replicates at once.

.. math:: h_l = \operatorname{leaky}(W_l h_{l-1} + b_l), \qquad h_0 = x

A product with one vector only moves memory: the kernels read each weight once, forwards and
backwards, add the bias and bend the result on the way out, one kernel per layer and direction. The
gradients of the weights are left to the compiler as the outer products they are, so that the
optimizer's pass can make them on the fly instead of reading them. Where Triton or CUDA is missing, an
eager twin computes the same.

Shapes of a layer: x ``(inputs,)``, weight ``(rows, width)`` with two outputs to a row, bias and y
``(outputs,)``; stacked, each has a leading K. ``long`` and ``short`` say how many inputs the outputs
of a row see, ``order`` sorts the inputs (empty: they are sorted), ``places`` gives the outputs of all
rows, long ones first (a place past the end is none).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsebnn.kernels.dispatch import kernel, stacked

Fold = tuple[Tensor, Tensor, Tensor, Tensor]


def _on_triton(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32


def _halves(weight: Tensor, long: Tensor, short: Tensor) -> tuple[Tensor, Tensor]:
    width = weight.shape[-1]
    column = torch.arange(width, device=weight.device)
    return weight * (column < long[:, None]), weight * (column >= width - short[:, None])


def _leaky_grad(grad: Tensor, y: Tensor, slope: float) -> Tensor:
    return torch.where(y > 0, grad, grad * slope)


@torch.library.custom_op("sparsebnn::masked_forward", mutates_args=())
def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    long: Tensor,
    short: Tensor,
    order: Tensor,
    places: Tensor,
    slope: float,
) -> tuple[Tensor, Tensor]:
    """y, and the sorted inputs padded to the rows' width, which the weights' gradient needs."""
    if _on_triton(x):
        from sparsebnn.kernels import triton_masked

        return triton_masked.forward(x, weight, bias, long, short, order, places, slope)
    width, outputs = weight.shape[-1], bias.shape[-1]
    sorted_x = (x[:, order] if len(order) else x)[:, :width]
    folded = F.pad(sorted_x, (0, width - sorted_x.shape[-1]))
    to_long, to_short = _halves(weight, long, short)
    sums = [(to_long * folded[:, None]).sum(-1), (to_short * folded.flip(-1)[:, None]).sum(-1)]
    y = torch.cat(sums, -1)[:, torch.argsort(places)][:, :outputs] + bias
    return F.leaky_relu(y, slope), folded


@_forward.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    long: Tensor,
    short: Tensor,
    order: Tensor,
    places: Tensor,
    slope: float,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(bias), x.new_empty(x.shape[0], weight.shape[-1])


def rows_at_once(replicates: int, rows: int, width: int) -> int:
    """How many rows one part of the backward sums takes: few enough to give the whole device work."""
    columns = -(-((width + 1) // 2) // 32)
    size = 128
    while size > 16 and replicates * columns * -(-rows // size) < 200 and 8 * (size // 2) >= rows:
        size //= 2
    return max(size, -(-rows // 8))


@torch.library.custom_op("sparsebnn::masked_backward", mutates_args=())
def _backward(
    grad: Tensor,
    y: Tensor,
    weight: Tensor,
    long: Tensor,
    short: Tensor,
    order: Tensor,
    places: Tensor,
    slope: float,
    inputs: int,
) -> tuple[Tensor, Tensor]:
    """From y's gradient ``(K, parts, outputs)``: the inputs' in parts too, and the rows' ``(K, 2·rows)``."""
    k, rows, width = weight.shape
    each = rows_at_once(k, rows, width)
    if _on_triton(grad):
        from sparsebnn.kernels import triton_masked

        return triton_masked.backward(grad, y, weight, long, short, order, places, slope, each, inputs)
    padded = F.pad(_leaky_grad(grad.sum(1), y, slope), (0, 2 * rows - y.shape[-1]))
    folded = padded[:, places]
    to_long, to_short = _halves(weight, long, short)
    left = (to_long * folded[:, :rows, None]).sum(1)
    right = (to_short * folded[:, rows:, None]).sum(1).flip(-1)
    total = F.pad(left + right, (0, max(0, inputs - width)))[:, :inputs]
    out = grad.new_zeros(k, -(-rows // each), inputs)
    out[:, 0] = total[:, torch.argsort(order)] if len(order) else total
    return out, folded


@_backward.register_fake
def _(
    grad: Tensor,
    y: Tensor,
    weight: Tensor,
    long: Tensor,
    short: Tensor,
    order: Tensor,
    places: Tensor,
    slope: float,
    inputs: int,
) -> tuple[Tensor, Tensor]:
    k, rows, width = weight.shape
    parts = -(-rows // rows_at_once(k, rows, width))
    return grad.new_empty(k, parts, inputs), grad.new_empty(k, 2 * rows)


def _forwards(tensors: Sequence[Tensor], folds: Sequence[Fold], slopes: Sequence[float]) -> list[Tensor]:
    """From x and each layer's weight and bias, stacked: every y, then every folded input."""
    h, ys, inputs = tensors[0], [], []
    for i, (fold, slope) in enumerate(zip(folds, slopes)):
        h, folded = kernel(_forward)(h, tensors[1 + 2 * i], tensors[2 + 2 * i], *fold, slope)
        ys.append(h)
        inputs.append(folded)
    return ys + inputs


def _backwards(
    tensors: Sequence[Tensor], folds: Sequence[Fold], slopes: Sequence[float], inputs: int
) -> list[Tensor]:
    """From the last gradient, every y and every weight, stacked: per layer, the gradient of what goes
    into it, in parts, and the gradients of its rows."""
    grad, count = tensors[0].unsqueeze(1), len(folds)
    ys, weights = tensors[1 : 1 + count], tensors[1 + count :]
    sizes = [inputs, *(y.shape[-1] for y in ys)]
    found: list[Tensor] = []
    for i in reversed(range(count)):
        grad, rows = kernel(_backward)(grad, ys[i], weights[i], *folds[i], slopes[i], sizes[i])
        found = [grad, rows, *found]
    return found


class _Gradient(torch.autograd.Function):
    """First derivatives only; the rule for a batch of replicates is the stacked kernels."""

    @staticmethod
    def forward(folds: Sequence[Fold], slopes: Sequence[float], inputs: int, *tensors: Tensor) -> Any:
        given = [t[None].contiguous() for t in tensors]
        return tuple(t[0] for t in _backwards(given, folds, slopes, inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, dims: Any, folds: Any, slopes: Any, inputs: int, *tensors: Tensor) -> Any:
        found = _backwards(stacked(tensors, dims[3:], info.batch_size), folds, slopes, inputs)
        return tuple(found), (0,) * len(found)


class _Network(torch.autograd.Function):
    """The last y, followed by the inputs and outputs of the layers, which have no gradient."""

    @staticmethod
    def forward(folds: Sequence[Fold], slopes: Sequence[float], *tensors: Tensor) -> Any:
        made = [t[0] for t in _forwards([t[None] for t in tensors], folds, slopes)]
        count = len(folds)
        return (made[count - 1], *made[: count - 1], *made[count:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.folds, ctx.slopes, x, *parameters = inputs
        ctx.inputs = x.shape[-1]
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output, *parameters[::2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        count = len(ctx.folds)
        last, *rest = ctx.saved_tensors
        ys, rest = [*rest[: count - 1], last], rest[count - 1 :]
        inputs, weights = rest[:count], rest[count:]
        found = _Gradient.apply(ctx.folds, ctx.slopes, ctx.inputs, grad, *ys, *weights)
        into, rows = found[::2], found[1::2]
        out: list[Tensor | None] = []
        for i, (fold, slope) in enumerate(zip(ctx.folds, ctx.slopes)):
            after = grad if i == count - 1 else into[i + 1].sum(0)
            out += [_outer(rows[i], inputs[i], fold), _leaky_grad(after, ys[i], slope)]
        return (None, None, into[0].sum(0), *out)

    @staticmethod
    def vmap(info: Any, dims: Any, folds: Any, slopes: Any, *tensors: Tensor) -> Any:
        made = _forwards(stacked(tensors, dims[2:], info.batch_size), folds, slopes)
        count = len(folds)
        return (made[count - 1], *made[: count - 1], *made[count:]), (0,) * len(made)


def _outer(rows: Tensor, folded: Tensor, fold: Fold) -> Tensor:
    """The weights' gradient: a row's two gradients times the inputs, from the left and from the right."""
    long, short, *_ = fold
    width = folded.shape[-1]
    column = torch.arange(width, device=folded.device)
    to_long, to_short = rows.chunk(2, -1)
    from_left = torch.where(column < long[:, None], to_long[:, None] * folded, 0.0)
    is_short = column >= width - short[:, None]
    return from_left + torch.where(is_short, to_short[:, None] * folded.flip(-1), 0.0)


def masked_network(
    x: Tensor, parameters: Sequence[tuple[Tensor, Tensor]], folds: Sequence[Fold], slope: float
) -> Tensor:
    """The network of one vector: per layer (weight, bias) and a fold (long, short, order, places).

    All layers but the last are followed by a leaky ReLU of that slope.
    """
    slopes = [slope] * (len(folds) - 1) + [1.0]
    return _Network.apply(list(folds), slopes, x, *(t for pair in parameters for t in pair))[0]
