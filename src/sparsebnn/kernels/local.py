r"""Outputs sampled from their means and variances in bfloat16, for captured steps of a single replicate.

.. math:: h = m + \sqrt{v}\,\varepsilon, \qquad m = x * \mathbb E w, \quad v = x^2 * \operatorname{Var} w

The two convolutions are cuDNN's, in bfloat16. A variance is a sum of positive terms, so no digits cancel:
rounding its terms to 8 bits changes a standard deviation by less than half a percent. Around the
convolutions there are four elementwise passes, one kernel each: squares, outputs, and the gradients of both.
The noise has the order of contiguous images whatever the layout of the outputs: a layout changes no numbers.

Shapes: images ``(B, C, H, W)``, stored with the channels last, noise ``(B, C, H, W)`` contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsebnn.kernels.dispatch import for_single

# The floor of a variance: at exactly 0 the square root has no gradient.
FLOOR = torch.finfo(torch.float32).tiny ** 0.75
_LAST = torch.channels_last


def applies(x: Tensor) -> bool:
    """Whether the kernels run for these images: a captured step of one replicate, in bfloat16."""
    return x.is_cuda and x.dim() == 4 and for_single() and torch.is_autocast_enabled("cuda")


class _WithSquares(torch.autograd.Function):
    """x and x², whose two gradients are joined in one pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.view_as(x), x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_square: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return _made("joined", grad, grad_square, x)


class _Sampled(torch.autograd.Function):
    """Means plus noise of these variances."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, noise: Tensor) -> Any:
        ctx.save_for_backward(var, noise)
        return _made("sampled", mean, var, noise)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        var, noise = ctx.saved_tensors
        grad = grad.contiguous(memory_format=_LAST)
        return grad, _made("to_variance", grad, var, noise), None


def _made(name: str, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """What one of the kernels gives, or without CUDA its twin."""
    if not first.is_cuda:
        return TWINS[name](first.float(), second.float(), third.float()).to(first.dtype)
    from sparsebnn.kernels import triton_local

    found: Tensor = getattr(triton_local, name)(first, second, third)
    return found


TWINS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "joined": lambda grad, grad_square, x: grad + 2.0 * x * grad_square,
    "sampled": lambda mean, var, noise: mean + var.clamp_min(FLOOR).sqrt() * noise,
    "to_variance": lambda grad, var, noise: torch.where(
        var >= FLOOR, 0.5 * grad * noise / var.clamp_min(FLOOR).sqrt(), 0.0
    ),
}


def sampled(
    x: Tensor, op: Callable[[Tensor, bool], Tensor], normal: Callable[[torch.Size, Tensor], Tensor]
) -> Tensor:
    """An output of images ``x``; ``op`` convolves x with the means, and x² (True) with the variances."""
    rounded, squares = _WithSquares.apply(x.to(torch.bfloat16, memory_format=_LAST))
    mean, var = op(rounded, False), op(squares, True)
    noise = normal(mean.shape, mean.new_empty(0, dtype=torch.float32))
    return _Sampled.apply(mean.contiguous(memory_format=_LAST), var.contiguous(memory_format=_LAST), noise)
