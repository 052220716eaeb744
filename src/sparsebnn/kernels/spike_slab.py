r"""Moments and KL of independent weights in one pass, and their gradients in another, for captured steps.

.. math::
    \mathbb E\,w = \tilde\alpha\tilde\mu, \qquad
    \operatorname{Var} w = \tilde\alpha\,(\tilde\sigma^2 + (1-\tilde\alpha)\,\tilde\mu^2), \qquad
    \mathrm{KL} = \sum \tilde\alpha\,\mathrm{KL}(\text{slab})
    + \mathrm{KL}(\operatorname{Bernoulli}(\tilde\alpha)\,\|\,\operatorname{Bernoulli}(\alpha))

Operation by operation they take some fifty passes over the weights. A compiler fuses them; a step that is
captured without one uses these kernels. The eager twin is the family's own ``moments_and_kl``.

Shapes: mean, raw_std and logit ``(…)``; the prior's (mean, std, logit) ``(3,)``; an empty logit is that of
weights that are all there. Stacked, each has a leading K.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsebnn.kernels.dispatch import stacked


def applies(mean: Tensor, *values: Tensor) -> bool:
    """Whether the kernels know weights and prior: single precision, and one value each of the prior."""
    return mean.is_cuda and mean.dtype == torch.float32 and all(v.dim() == 0 for v in values)


def _forward(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    from sparsebnn.kernels import triton_spike_slab

    return triton_spike_slab.forward(*tensors)


def _backward(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    from sparsebnn.kernels import triton_spike_slab

    return triton_spike_slab.backward(*tensors)


class _Gradient(torch.autograd.Function):
    """First derivatives only; the rule for a batch of replicates is the stacked kernel."""

    @staticmethod
    def forward(*tensors: Tensor) -> Any:
        return tuple(t[0] for t in _backward([t[None].contiguous() for t in tensors]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, dims: Any, *tensors: Tensor) -> Any:
        return _backward(stacked(tensors, dims, info.batch_size)), (0, 0, 0)


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(*tensors: Tensor) -> Any:
        return tuple(t[0] for t in _forward([t[None].contiguous() for t in tensors]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *_Gradient.apply(*grads, *ctx.saved_tensors), None

    @staticmethod
    def vmap(info: Any, dims: Any, *tensors: Tensor) -> Any:
        return _forward(stacked(tensors, dims, info.batch_size)), (0, 0, 0)


def moments_and_kl(
    mean: Tensor, raw_std: Tensor, logit: Tensor | None, prior: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and KL of weights under a prior's (mean, std, inclusion logit), which get no gradient.

    Without a ``logit`` every weight is there, and the prior is (mean, std).
    """
    values = [*prior, torch.zeros_like(prior[0])][:3]
    given = torch.stack([v.detach().to(mean.dtype) for v in values])
    return _Moments.apply(mean, raw_std, mean.new_empty(0) if logit is None else logit, given)
