"""Divergences between a posterior and its prior, as pure functions of tensors.

Every function is elementwise and in nats; whoever calls it sums. Probabilities are passed with
their logits, so that no logarithm of a small number is ever taken.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["gaussian_log_prob", "gaussian_kl", "bernoulli_kl", "spike_slab_kl"]

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
