"""Counts: Poisson and negative binomial, with exposure and with more zeros than they explain."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import check_finite, check_number, invalid
from sparsebnn.likelihoods.base import Likelihood, scipy_special

__all__ = ["NegativeBinomial", "Poisson"]

_MOST = 25.0  # of a log rate, which keeps the loss finite while training goes astray
_LEAST_DISPERSION = 1e-4


class _Counts(Likelihood):
    """Counts y with the rate μ = exposure · exp(``log_rate`` + f(x)).

    ``log_rate`` is learned, from log(``rate``). Targets are counts or, with ``exposure=True``, two columns:
    counts and exposures (the time or the population that they were counted in). Predictions are for
    an exposure of 1; ``with_exposure`` changes the outputs to those of another one.
    """

    discrete = True

    def __init__(self, rate: float = 1.0, exposure: bool = False, zero_inflated: bool = False) -> None:
        super().__init__()
        owner = type(self).__name__
        check_number(rate, "rate", owner, "positive and finite", lambda v: 0.0 < v < math.inf)
        self.rate, self.exposure, self.zero_inflated = float(rate), bool(exposure), bool(zero_inflated)
        self.log_rate = nn.Parameter(torch.tensor(math.log(rate)))
        if zero_inflated:
            self.zero_logit = nn.Parameter(torch.tensor(-2.0))

    @classmethod
    def of(cls, y: Tensor, zero_inflated: bool = False) -> _Counts:
        """With the rate of these counts; a second column holds exposures."""
        columns = y.double().reshape(len(y), -1)
        exposed = columns.shape[1] == 2
        total = float(columns[:, 1].sum()) if exposed else max(1, len(y))
        rate = float(columns[:, 0].sum()) / total
        return cls(rate if 0.0 < rate < math.inf else 1.0, exposed, zero_inflated)

    # What a kind of count has: log probability, variance and CDF for a log rate.

    def _log_prob(self, log_rate: Tensor, count: Tensor) -> Tensor:
        raise NotImplementedError

    def _variance(self, rate: Tensor) -> Tensor:
        raise NotImplementedError

    def _cdf(self, rate: Tensor, count: Tensor) -> Tensor:
        raise NotImplementedError

    def prepare(self, y: Tensor) -> Tensor:
        owner, columns = type(self).__name__, 2 if self.exposure else 1
        shaped = y.unsqueeze(-1) if y.dim() == 1 else y
        if shaped.dim() != 2 or shaped.shape[1] != columns:
            expected = "of shape (rows, 2): counts and exposures" if self.exposure else "a vector of counts"
            raise invalid("y", owner, expected, f"shape {tuple(y.shape)}")
        real = shaped if shaped.is_floating_point() else shaped.to(torch.get_default_dtype())
        check_finite(real, "y", owner)
        count = real[:, 0]
        wrong = (count < 0) | (count != count.round())
        if bool(wrong.any()):
            advice = "Use a Gaussian or Student-t likelihood for other numbers."
            raise invalid("y", owner, "counts: whole numbers from 0", float(count[wrong][0]), advice)
        if self.exposure and not bool((real[:, 1] > 0).all()):
            advice = "Drop the rows without exposure."
            raise invalid("exposure", owner, "positive", float(real[:, 1].min()), advice)
        return real

    def n_outputs(self, y: Tensor) -> int:
        return 2 if self.zero_inflated else 1

    def with_exposure(self, outputs: Tensor, exposure: Tensor) -> Tensor:
        """Outputs for rows with these exposures."""
        shifted = outputs[..., :1] + torch.log(exposure).unsqueeze(-1)
        return torch.cat([shifted, outputs[..., 1:]], dim=-1)

    def _log_rates(self, outputs: Tensor) -> Tensor:
        return (self.log_rate + outputs[..., :1]).clamp_max(_MOST)

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self.exposure:
            outputs = self.with_exposure(outputs, y[..., 1])
        # Without an axis of targets, so that parameters (K, 1) of K replicates broadcast to their rows.
        count = y[..., 0]
        found = self._log_prob((self.log_rate + outputs[..., 0]).clamp_max(_MOST), count)
        if self.zero_inflated:
            logit = self.zero_logit + outputs[..., 1]
            counted = F.logsigmoid(-logit) + found
            found = torch.where(count == 0, torch.logaddexp(F.logsigmoid(logit), counted), counted)
        return -found

    def _zero_prob(self, outputs: Tensor) -> Tensor | float:
        return torch.sigmoid(self.zero_logit + outputs[..., 1:]) if self.zero_inflated else 0.0

    def mean(self, outputs: Tensor) -> Tensor:
        return (1.0 - self._zero_prob(outputs)) * torch.exp(self._log_rates(outputs))

    def variance(self, outputs: Tensor) -> Tensor:
        rate, zero = torch.exp(self._log_rates(outputs)), self._zero_prob(outputs)
        return (1.0 - zero) * (self._variance(rate) + zero * rate**2)

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        zero, count = self._zero_prob(outputs), torch.floor(y)
        below = self._cdf(torch.exp(self._log_rates(outputs)), count.clamp_min(0.0))
        return torch.where(count < 0, 0.0, zero + (1.0 - zero) * below)


class Poisson(_Counts):
    r"""Counts with the variance of their mean; outputs are logarithms of rates.

    .. math:: \mu = e \cdot \exp(b + f(x)), \qquad p(y) = \mu^y e^{-\mu} / y!

    b is learned, from log(``rate``). With ``exposure=True`` the targets have a second column e > 0. With
    ``zero_inflated=True`` a second output, added to a learned ``zero_logit``, is the logit of the probability
    that the count is 0 whatever its rate.

    >>> Poisson(rate=2.0).mean(torch.zeros(1, 1)).item()
    2.0
    """

    def _log_prob(self, log_rate: Tensor, count: Tensor) -> Tensor:
        return count * log_rate - torch.exp(log_rate) - torch.lgamma(count + 1.0)

    def _variance(self, rate: Tensor) -> Tensor:
        return rate

    def _cdf(self, rate: Tensor, count: Tensor) -> Tensor:
        return torch.special.gammaincc(*torch.broadcast_tensors(count + 1.0, rate.to(count.dtype)))


class NegativeBinomial(_Counts):
    r"""Counts that vary more than Poisson counts: variance :math:`\mu + \alpha \mu^2`.

    The dispersion α, the softplus of ``raw_dispersion``, is learned. Otherwise as :class:`Poisson`. ``cdf``
    needs SciPy.
    """

    def __init__(
        self,
        rate: float = 1.0,
        exposure: bool = False,
        zero_inflated: bool = False,
        dispersion: float = 0.5,
    ) -> None:
        super().__init__(rate, exposure, zero_inflated)
        owner = "NegativeBinomial"
        check_number(dispersion, "dispersion", owner, "positive and finite", lambda v: 0.0 < v < math.inf)
        self.dispersion = float(dispersion)
        self.raw_dispersion = nn.Parameter(torch.tensor(math.log(math.expm1(dispersion))))

    def _size(self) -> Tensor:
        """1/α, the number of failures where it is whole."""
        return 1.0 / F.softplus(self.raw_dispersion).clamp_min(_LEAST_DISPERSION)

    def _log_prob(self, log_rate: Tensor, count: Tensor) -> Tensor:
        size = self._size()
        log_size = torch.log(size)
        total = torch.logaddexp(log_size, log_rate)
        ways = torch.lgamma(count + size) - torch.lgamma(size) - torch.lgamma(count + 1.0)
        return ways + size * (log_size - total) + count * (log_rate - total)

    def _variance(self, rate: Tensor) -> Tensor:
        return rate + rate**2 / self._size()

    def _cdf(self, rate: Tensor, count: Tensor) -> Tensor:
        special = scipy_special("NegativeBinomial.cdf")
        size = self._size().detach()
        found = special.betainc(
            float(size), (count + 1.0).detach().cpu().numpy(), (size / (size + rate)).detach().cpu().numpy()
        )
        return torch.as_tensor(found, dtype=rate.dtype, device=rate.device)
