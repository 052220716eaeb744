"""``dependent``: spike and slab with inclusions that depend on each other through a few latent numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import check_count
from sparsebnn.init import Initial, Normal, fill
from sparsebnn.posteriors.base import Moments, Sample
from sparsebnn.posteriors.mean_field import SpikeSlab
from sparsebnn.posteriors.priors import Prior
from sparsebnn.random.noise import Noise

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
_SHARES = _WEIGHTS / _WEIGHTS.sum()
_UNIT = math.log(math.e - 1.0)  # softplus of this is 1


class Dependent(SpikeSlab):
    r"""The logits of all inclusions share a latent vector u of ``rank`` normal numbers.

    .. math::
        u \sim \mathcal N(0, I), \qquad
        q(\gamma_{ij} = 1 \mid u) = \operatorname{sigmoid}\Big(\tilde\lambda_{ij} + \sum_r F_{rij} u_r\Big)

    so that "one of these two" can be said: opposite signs of F exclude each other. Slabs are independent as
    in ``spike_slab`` (Hubin and Storvik, Mathematics 12:788). The KL has no closed form, because the
    marginal :math:`q(\gamma)` is an integral over u. It is replaced by its upper bound with an auxiliary
    distribution,

    .. math::
        \mathrm{KL}[q(W,\Gamma)\|p(W,\Gamma)] \le \mathbb E_u\big[\mathrm{KL}[q(W,\Gamma|u)\|p(W,\Gamma)]
        + \log q(u) - \mathbb E_{\gamma|u} \log r(u \mid \Gamma)\big]

    .. math::
        r(u \mid \Gamma) = \prod_r \mathcal N\Big(u_r;\, c_r + \sum_{ij} B_{rij}(\gamma_{ij} -
        \operatorname{sigmoid}\tilde\lambda_{ij}),\, s_r^2\Big)

    whose expectation over :math:`\gamma` given u is in closed form. What is returned is a **one-draw estimate
    of that bound**, from the u that also made the moments. Without the last two terms it would not be a
    bound.
    """

    name = "dependent"
    dependent = True

    def __init__(
        self, shape: Sequence[int], prior: Prior | None = None, initial: Initial = Initial(), *, rank: int = 2
    ) -> None:
        self.rank = 0
        super().__init__(shape, prior, initial)
        self.rank = check_count(rank, "rank", "the 'dependent' family")
        self.factor = nn.Parameter(torch.empty(rank, *self.shape))
        self.auxiliary_weight = nn.Parameter(torch.empty(rank, *self.shape))
        self.auxiliary_mean = nn.Parameter(torch.empty(rank))
        self.auxiliary_raw_std = nn.Parameter(torch.empty(rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.rank:
            # Exactly 0 would stay there: u and its sign are exchangeable.
            fill(self.factor, Normal(0.0, 0.5))
            fill(self.auxiliary_weight, Normal(0.0, 0.0))
            fill(self.auxiliary_mean, Normal(0.0, 0.0))
            fill(self.auxiliary_raw_std, Normal(_UNIT, 0.0))

    def group_prob(self) -> Tensor:
        """The marginal probability of each inclusion, by quadrature over its logit's normal distribution."""
        spread = self.factor.square().sum(0).sqrt()
        nodes = [self.inclusion_logit + float(node) * spread for node in _NODES]
        return torch.stack([float(w) * torch.sigmoid(z) for w, z in zip(_SHARES, nodes)]).sum(0)

    def draw_u(self, noise: Noise) -> Tensor:
        """A draw of the latent numbers."""
        return noise.normal((self.rank,), self.mean)

    def logit(self, u: Tensor) -> Tensor:
        """The inclusion logits given u."""
        return self.inclusion_logit + torch.tensordot(u, self.factor, 1)

    def moments(self, scale: Tensor | None = None) -> Moments:
        """Mean and variance of each weight, inclusions and u averaged over."""
        return self._given(self.group_prob())

    def _given(self, inclusion: Tensor) -> Moments:
        mean = self.mean
        return Moments(inclusion * mean, inclusion * (self.std**2 + (1.0 - inclusion) * mean**2))

    def local(self, noise: Noise, batch: int = 1) -> Moments:
        return self._given(torch.sigmoid(self.logit(self.draw_u(noise))))

    def draw(self, noise: Noise, scale: Tensor | None = None) -> Tensor:
        included = self.logit(self.draw_u(noise)) + noise.logistic(self.shape, self.mean) > 0
        return self._slab(noise, scale) * included

    def draw_for_gradient(self, noise: Noise, scale: Tensor | None = None) -> Tensor:
        logit = self.logit(self.draw_u(noise))
        noisy = logit + noise.logistic(self.shape, self.mean)
        relaxed = torch.sigmoid(2.0 * noisy)
        return self._slab(noise, scale) * ((noisy > 0).to(relaxed.dtype) + (relaxed - relaxed.detach()))

    def log_auxiliary(self, u: Tensor, inclusion: Tensor) -> Tensor:
        """log r(u | Γ), averaged over inclusions with these probabilities."""
        std = F.softplus(self.auxiliary_raw_std)
        away = (inclusion - torch.sigmoid(self.inclusion_logit)).flatten()
        weight = self.auxiliary_weight.flatten(1)
        mean = self.auxiliary_mean + weight @ away
        var = weight.square() @ (inclusion * (1.0 - inclusion)).flatten()
        return (-0.5 * math.log(2.0 * math.pi) - std.log() - 0.5 * ((u - mean) ** 2 + var) / std**2).sum()

    def _kl_given(self, u: Tensor, logit: Tensor, inclusion: Tensor) -> Tensor:
        """The estimate of the bound from one u."""
        error = (self.mean - self.prior.mean) ** 2  # type: ignore[operator]
        structure = self.prior.kl(logit, inclusion, self.std, error)  # type: ignore[operator]
        log_q = (-0.5 * math.log(2.0 * math.pi) - 0.5 * u**2).sum()
        return structure + log_q - self.log_auxiliary(u, inclusion)

    def sample(self, noise: Noise, batch: int = 1) -> Sample:
        u = self.draw_u(noise)
        logit = self.logit(u)
        inclusion = torch.sigmoid(logit)
        return Sample(self._given(inclusion), None, self._kl_given(u, logit, inclusion))

    def sample_weights(self, noise: Noise) -> Sample:
        moments, _, kl = self.sample(noise)
        assert moments is not None
        tiny = torch.finfo(self.mean.dtype).tiny ** 0.75
        spread = moments.var.clamp_min(tiny).sqrt()
        return Sample(None, moments.mean + spread * noise.normal(self.shape, self.mean), kl)

    def kl(self, noise: Noise) -> Tensor:
        """One-draw estimate of the bound on the KL."""
        return self.sample(noise).kl
