"""Priors, and the divergence of a posterior from them. Values are tensors that broadcast to the weights.

Values are buffers (or parameters, where a prior learns), never Python floats, so that they can
differ from weight to weight, input to input, layer to layer and replicate to replicate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import (
    check_finite,
    check_probability,
    check_scale,
    check_tensor,
    invalid,
)

__all__ = [
    "GaussianPrior",
    "Prior",
    "SpikeSlabPrior",
    "bernoulli_kl",
    "gaussian_kl",
    "gaussian_log_prob",
    "spike_slab_kl",
]

Value = float | Sequence[float] | Tensor


_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def gaussian_log_prob(value: Tensor, mean: Tensor, log_var: Tensor) -> Tensor:
    r"""Log density of :math:`\mathcal N(\text{mean}, e^{\text{log\_var}})`."""
    return -_HALF_LOG_TWO_PI - 0.5 * log_var - 0.5 * (value - mean) ** 2 * torch.exp(-log_var)


def gaussian_kl(std: Tensor, squared_error: Tensor, prior_std: Tensor) -> Tensor:
    r"""Divergence of one Gaussian from another; ``squared_error`` is :math:`(\tilde\mu - \mu)^2`.

    .. math::
        \log\frac{\sigma}{\tilde\sigma} - \frac12
        + \frac{\tilde\sigma^2 + (\tilde\mu - \mu)^2}{2\sigma^2}

    >>> one = torch.tensor(1.0)
    >>> gaussian_kl(std=one, squared_error=one, prior_std=one).item()
    0.5
    """
    log_ratio = torch.log(prior_std) - torch.log(std.clamp_min(torch.finfo(std.dtype).tiny))
    return log_ratio - 0.5 + (std**2 + squared_error) / (2.0 * prior_std**2)


def bernoulli_kl(logit: Tensor, inclusion: Tensor, prior_logit: Tensor) -> Tensor:
    r"""Divergence of one Bernoulli from another; ``inclusion`` is ``sigmoid(logit)``.

    .. math::
        \tilde\alpha \log\frac{\tilde\alpha}{\alpha}
        + (1-\tilde\alpha) \log\frac{1-\tilde\alpha}{1-\alpha}
        = \tilde\alpha(\tilde\lambda - \lambda)
        + \operatorname{softplus}(\lambda) - \operatorname{softplus}(\tilde\lambda)

    with :math:`\tilde\lambda, \lambda` the logits: no logarithm of a small number is taken.

    >>> logit = torch.tensor([-40.0, 0.0, 40.0])
    >>> bernoulli_kl(logit, torch.sigmoid(logit), torch.tensor(0.0)).tolist()
    [0.6931471824645996, 0.0, 0.693145751953125]
    """
    return inclusion * (logit - prior_logit) + F.softplus(prior_logit) - F.softplus(logit)


def spike_slab_kl(slab_kl: Tensor, logit: Tensor, inclusion: Tensor, prior_logit: Tensor) -> Tensor:
    r"""Divergence between two spike-and-slab distributions with the same spike.

    .. math::
        \tilde\alpha\,\mathrm{KL}(\text{slab}) +
        \mathrm{KL}(\operatorname{Bernoulli}(\tilde\alpha) \,\|\, \operatorname{Bernoulli}(\alpha))

    The spikes are the same point mass, so an excluded weight costs nothing but its exclusion.
    """
    return inclusion * slab_kl + bernoulli_kl(logit, inclusion, prior_logit)


def checked_args(value: Value, what: str, owner: str) -> tuple[Tensor, str, str]:
    """A value and what it is; in double precision until a layer, which knows its dtype, adopts the prior.

    Numbers stay on the CPU until then, too: on the meta device there would be nothing to check.
    """
    if isinstance(value, Tensor):
        if value.is_meta:
            raise invalid(what, owner, "a tensor with values", "one on the meta device")
        return check_tensor(value.detach(), what, owner).to(torch.float64, copy=True), what, owner
    with torch.device("cpu"):
        return check_tensor(value, what, owner, torch.float64).clone(), what, owner


def _range(value: Tensor) -> str:
    if value.is_meta:
        return "?"
    low, high = (f"{float(end):.7g}" for end in value.aminmax())
    return low if low == high else f"{low} to {high}"


def inverse_softplus(value: Tensor) -> Tensor:
    return value + torch.log(-torch.expm1(-value))


class Prior(nn.Module):
    """Base of all priors. ``drawn`` says whether its divergence needs drawn weights."""

    drawn = False

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Complain unless the values can be used in that precision."""

    def given(self) -> dict[str, Tensor]:
        """The values that were given rather than drawn, by name."""
        return dict(self.named_buffers())

    def extra_repr(self) -> str:
        """The values: one each, or from the least to the largest.

        >>> SpikeSlabPrior(inclusion_prob=[0.1, 0.5])
        SpikeSlabPrior(inclusion_prob=0.1 to 0.5, mean=0, std=1)
        """
        return ", ".join(f"{name}={_range(value)}" for name, value in self.named_buffers())

    def check_shape(self, shape: Sequence[int]) -> None:
        """Complain unless every value broadcasts to weights of this shape without enlarging them."""
        for name, value in (*self.named_buffers(), *self.named_parameters()):
            try:
                # NumPy's: torch.broadcast_shapes imports a computer algebra system first.
                fits = np.broadcast_shapes(tuple(value.shape), tuple(shape)) == tuple(shape)
            except ValueError:
                fits = False
            if not fits:
                raise invalid(
                    name,
                    type(self).__name__,
                    f"a scalar or a tensor that broadcasts to weights of shape {tuple(shape)}",
                    f"shape {tuple(value.shape)}",
                    "For one value per input of a dense layer use shape (in_features,).",
                )


class GaussianPrior(Prior):
    r""":math:`p(w) = \mathcal N(\mu, \sigma^2)`.

    >>> GaussianPrior(std=0.5).std
    tensor(0.5000, dtype=torch.float64)
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Value = 0.0, std: Value = 1.0) -> None:
        super().__init__()
        self.register_buffer("mean", check_finite(*checked_args(mean, "mean", "GaussianPrior"), ""))
        self.register_buffer("std", check_scale(*checked_args(std, "std", "GaussianPrior")))

    def check_dtype(self, dtype: torch.dtype) -> None:
        check_finite(self.mean.to(dtype), "mean", type(self).__name__, "")
        check_scale(self.std, "std", type(self).__name__, dtype)

    def slab_kl(self, std: Tensor, squared_error: Tensor) -> Tensor:
        """Elementwise divergence of a Gaussian with this std and squared distance of means."""
        return gaussian_kl(std, squared_error, self.std)


def grouped_kl(slab_kl: Tensor, logit: Tensor, inclusion: Tensor, prior_logit: Tensor) -> Tensor:
    """Slabs count once a weight, inclusions once a group."""
    if logit.shape == slab_kl.shape:
        return spike_slab_kl(slab_kl, logit, inclusion, prior_logit).sum()
    return (inclusion * slab_kl).sum() + bernoulli_kl(logit, inclusion, prior_logit).sum()


class SpikeSlabPrior(Prior):
    r"""A weight is included with probability :math:`\alpha`, and then Gaussian.

    .. math::
        p(w \mid \gamma) = \gamma\,\mathcal N(\mu, \sigma^2) + (1-\gamma)\,\delta_0,
        \qquad p(\gamma) = \operatorname{Bernoulli}(\alpha)

    >>> SpikeSlabPrior(inclusion_prob=[0.1, 0.5, 0.1]).inclusion_logit[1].item()
    0.0
    """

    inclusion_prob: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, inclusion_prob: Value = 0.1, mean: Value = 0.0, std: Value = 1.0) -> None:
        super().__init__()
        probability = check_probability(*checked_args(inclusion_prob, "inclusion_prob", "SpikeSlabPrior"))
        self.register_buffer("inclusion_prob", probability)
        self.register_buffer("mean", check_finite(*checked_args(mean, "mean", "SpikeSlabPrior"), ""))
        self.register_buffer("std", check_scale(*checked_args(std, "std", "SpikeSlabPrior")))

    def check_dtype(self, dtype: torch.dtype) -> None:
        owner = type(self).__name__
        check_probability(self.inclusion_prob, "inclusion_prob", owner, dtype)
        check_finite(self.mean.to(dtype), "mean", owner, "")
        check_scale(self.std, "std", owner, dtype)

    @property
    def inclusion_logit(self) -> Tensor:
        return torch.logit(self.inclusion_prob)

    def check_groups(self, shape: Sequence[int]) -> None:
        """Complain if the inclusion probability is finer than the groups that share an inclusion."""
        own = tuple(self.inclusion_prob.shape)
        fits = len(own) <= len(shape) and all(n in (1, m) for n, m in zip(own[::-1], tuple(shape)[::-1]))
        if not fits:
            expected = f"one value, or one per group (shape {tuple(shape)})"
            raise invalid("inclusion_prob", type(self).__name__, expected, f"shape {own}")

    def slab_kl(self, std: Tensor, squared_error: Tensor) -> Tensor:
        """Elementwise divergence of a slab with this std and squared distance of means."""
        return gaussian_kl(std, squared_error, self.std)

    def values(self, inclusion: Tensor, std: Tensor, squared_error: Tensor) -> tuple[Tensor, Tensor]:
        """The slab's std and the inclusion probability as they stand for this posterior: here, as given."""
        return self.std, self.inclusion_prob

    def kl(self, logit: Tensor, inclusion: Tensor, std: Tensor, squared_error: Tensor) -> Tensor:
        """Divergence of weights with these inclusions, slab stds and squared distances, summed.

        Logits and inclusions may be fewer than the weights and broadcast to them: each then stands for a
        group that is included or excluded as a whole, and counts once.
        """
        return grouped_kl(self.slab_kl(std, squared_error), logit, inclusion, self.inclusion_logit)
