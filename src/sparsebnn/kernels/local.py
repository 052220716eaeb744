r"""Outputs sampled from their means and variances, for captured bfloat16 steps of a single replicate.

.. math:: h = m + \sqrt{v}\,\varepsilon, \qquad m = x * \mathbb E w, \quad v = x^2 * \operatorname{Var} w

The convolutions are cuDNN's: that of means in bfloat16, that of variances in float32 (TF32 where the run
allows it). Gradients are convolved in bfloat16, those through variances too. Around the convolutions there
are four elementwise passes, one kernel each: squares, outputs, and the gradients of both.
The noise has the order of contiguous images whatever the layout of the outputs: a layout changes no numbers.

Shapes: images ``(B, C, H, W)``, stored with the channels last, noise ``(B, C, H, W)`` contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsebnn.kernels.dispatch import for_single

# The floor of a variance: at exactly 0 the square root has no gradient.
FLOOR = torch.finfo(torch.float32).tiny ** 0.75
_LAST = torch.channels_last


class Options(NamedTuple):
    """How images are convolved."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int


def applies(x: Tensor) -> bool:
    """Whether the kernels run for these images: a captured step of one replicate, in bfloat16."""
    return x.is_cuda and x.dim() == 4 and for_single() and torch.is_autocast_enabled("cuda")


class _Sampled(torch.autograd.Function):
    """Outputs of images; what the way back convolves is kept in bfloat16."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mean: Tensor,
        var: Tensor,
        bias_mean: Tensor | None,
        bias_var: Tensor | None,
        options: Options,
        normal: Callable[[torch.Size, Tensor], Tensor],
    ) -> Tensor:
        # A view that is in bfloat16 already keeps its strides unless it is made contiguous.
        rounded = x.to(torch.bfloat16).contiguous(memory_format=_LAST)
        means, variances = mean.bfloat16(), var.bfloat16()
        bias = None if bias_mean is None else bias_mean.bfloat16()
        with torch.autocast(x.device.type, enabled=False):
            m = _convolved(rounded, means, bias, options)
            v = _convolved(_made("squares", x.contiguous(memory_format=_LAST)), var, bias_var, options)
        noise = normal(m.shape, m.new_empty(0, dtype=torch.float32))
        ctx.save_for_backward(rounded, means, variances, v, noise)
        ctx.options, ctx.bias = options, None if bias is None else list(bias.shape)
        return _made("sampled", m, v, noise)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, means, variances, v, noise = ctx.saved_tensors
        grad = grad.contiguous(memory_format=_LAST)
        by_x, by_mean, by_bias = _way_back(ctx, grad, x, means)
        grad = _made("to_variance", grad, v, noise)
        by_square, by_var, by_bias_var = _way_back(ctx, grad, x * x, variances)
        joined = _made("joined", by_x, by_square, x) if ctx.needs_input_grad[0] else None
        return joined, by_mean, by_var, by_bias, by_bias_var, None, None


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None, options: Options) -> Tensor:
    found = torch.conv2d(x, weight, bias, *options)
    return found.contiguous(memory_format=_LAST)


def _way_back(ctx: Any, grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a convolution by images, weights and biases."""
    *shape, groups = ctx.options
    wanted = [ctx.needs_input_grad[0], True, ctx.bias is not None]
    backward = torch.ops.aten.convolution_backward
    found: tuple[Tensor, Tensor, Tensor] = backward(
        grad, x, weight, ctx.bias, *shape, False, [0, 0], groups, wanted
    )
    return found


def _made(name: str, *given: Tensor) -> Tensor:
    """What one of the kernels gives, or without CUDA its twin; squares are in float32."""
    first = given[0]
    if not first.is_cuda:
        made = TWINS[name](*(one.float() for one in given))
        return made if name == "squares" else made.to(first.dtype)
    from sparsebnn.kernels import triton_local

    found: Tensor = getattr(triton_local, name)(*given)
    return found


TWINS: dict[str, Callable[..., Tensor]] = {
    "squares": lambda x: x * x,
    "joined": lambda grad, grad_square, x: grad + 2.0 * x * grad_square,
    "sampled": lambda mean, var, noise: mean + var.clamp_min(FLOOR).sqrt() * noise,
    "to_variance": lambda grad, var, noise: torch.where(
        var >= FLOOR, 0.5 * grad * noise / var.clamp_min(FLOOR).sqrt(), 0.0
    ),
}


def sampled(
    x: Tensor,
    moments: tuple[Tensor, Tensor],
    biases: tuple[Tensor | None, Tensor | None],
    options: Options,
    normal: Callable[[torch.Size, Tensor], Tensor],
) -> Tensor:
    """An output of images ``x`` for weights and biases with these means and variances."""
    found: Tensor = _Sampled.apply(x, *moments, *biases, options, normal)
    return found
