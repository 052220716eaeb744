"""Real numbers: Gaussian and Student-t noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import check_choice, check_count, check_finite, check_number, check_positive, invalid
from sparsebnn.likelihoods.base import Likelihood, scipy_special

__all__ = ["Gaussian", "StudentT"]

_NOISE_SCALE = 0.2  # of the outputs that say how the noise differs from row to row


class Gaussian(Likelihood):
    r"""Real targets with Gaussian noise.

    ``noise="fixed"`` keeps ``std``; ``"learned"`` starts there and learns one noise std per target, the
    softplus of ``raw_std``. With ``"heteroscedastic"`` noise the network has twice as many outputs, the means
    followed by how the noise of a row differs from that level:

    .. math:: \sigma(x) = \mathrm{softplus}(\texttt{raw\_std} + 0.2\, g\, f_\sigma(x))

    Two things make that trainable. The factor 0.2 keeps the noise of an untrained network nearly the same for
    all rows. Without it, rows whose std happens to start small have gradients so large that Adam, which
    remembers them for a thousand steps, hardly moves afterwards. And noise that may differ too early explains
    errors away before the means have had the time to correct them. So :func:`~sparsebnn.train` sets the
    buffer ``noise_switch``, g, to 0 for the first 70% of the epochs: the means are learned with one noise
    level, and :math:`f_\sigma` is fitted to their errors without changing how rows are weighted. After that g
    is 1, as everywhere else, and the objective is the evidence lower bound of this likelihood.

    >>> Gaussian(std=1.0).nll(torch.zeros(1, 1), torch.ones(1, 1)).item()
    1.418938...
    """

    raw_std: Tensor
    noise_switch: Tensor

    def __init__(self, n_targets: int = 1, noise: str = "learned", std: float = 1.0) -> None:
        super().__init__()
        self.n_targets = check_count(n_targets, "n_targets", "Gaussian")
        self.noise = check_choice(noise, ("fixed", "learned", "heteroscedastic"), "noise", "Gaussian")
        value = check_positive(torch.full((n_targets,), std, dtype=torch.float64), "std", "Gaussian")
        raw = unpositive(value).to(torch.get_default_dtype())
        if noise == "fixed":
            self.register_buffer("raw_std", raw)
        else:
            self.raw_std = nn.Parameter(raw)
        if noise == "heteroscedastic":
            self.register_buffer("noise_switch", torch.ones((), dtype=raw.dtype))

    @classmethod
    def of(cls, y: Tensor) -> Gaussian:
        return cls(1 if y.dim() == 1 else y.shape[1])

    def prepare(self, y: Tensor) -> Tensor:
        return _columns(y, self.n_targets, "Gaussian")

    def n_outputs(self, y: Tensor) -> int:
        return self.n_targets * (2 if self.noise == "heteroscedastic" else 1)

    def mean_and_std(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and noise std of each target."""
        mean = outputs[..., : self.n_targets]
        if self.noise == "heteroscedastic":
            return mean, self._std(outputs, self.raw_std, self.noise_switch)
        return mean, _positive(self.raw_std).expand_as(mean)

    def _std(self, outputs: Tensor, level: Tensor, switch: Tensor | float = 1.0) -> Tensor:
        """Of every row, given the raw std of all."""
        return _positive(level + _NOISE_SCALE * switch * outputs[..., self.n_targets :])

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, std = self.mean_and_std(outputs)
        found = _gaussian_nll(y - mean, std)
        if self.noise == "heteroscedastic":
            # While it is switched off, the noise of rows is fitted to the errors: a gradient without a value.
            aside = _gaussian_nll(y - mean.detach(), self._std(outputs, self.raw_std.detach()))
            found = found + (1.0 - self.noise_switch) * (aside - aside.detach())
        return found

    def mean(self, outputs: Tensor) -> Tensor:
        return self.mean_and_std(outputs)[0]

    def variance(self, outputs: Tensor) -> Tensor:
        return self.mean_and_std(outputs)[1] ** 2

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, std = self.mean_and_std(outputs)
        return torch.special.ndtr((y - mean) / std)

    def quantile(self, outputs: Tensor, level: Tensor) -> Tensor:
        return self.sample(outputs, torch.special.ndtri(level))

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        mean, std = self.mean_and_std(outputs)
        return mean + std * noise


class StudentT(Likelihood):
    r"""Real targets with heavy-tailed noise: Student's t distribution around the outputs.

    One scale per target, the softplus of ``raw_scale``, and one number of degrees of freedom,
    :math:`\nu = 2 + \mathrm{softplus}(\texttt{raw\_df})`, are learned; ν > 2, so that the variance is finite.
    A few extreme targets have little influence on the means. ``cdf`` needs SciPy.

    >>> StudentT(df=5.0).variance(torch.zeros(1, 1)).item()
    1.666...
    """

    def __init__(self, n_targets: int = 1, scale: float = 1.0, df: float = 5.0) -> None:
        super().__init__()
        self.n_targets = check_count(n_targets, "n_targets", "StudentT")
        check_number(df, "df", "StudentT", "above 2 and finite", lambda v: 2.0 < v < math.inf)
        value = check_positive(torch.full((n_targets,), scale, dtype=torch.float64), "scale", "StudentT")
        self.scale, self.df = float(scale), float(df)
        self.raw_scale = nn.Parameter(unpositive(value).to(torch.get_default_dtype()))
        self.raw_df = nn.Parameter(torch.tensor(math.log(math.expm1(df - 2.0)) if df < 700 else df - 2.0))

    @classmethod
    def of(cls, y: Tensor) -> StudentT:
        return cls(1 if y.dim() == 1 else y.shape[1])

    def prepare(self, y: Tensor) -> Tensor:
        return _columns(y, self.n_targets, "StudentT")

    def n_outputs(self, y: Tensor) -> int:
        return self.n_targets

    def scale_and_df(self) -> tuple[Tensor, Tensor]:
        """The scale of each target, and the degrees of freedom."""
        return _positive(self.raw_scale), 2.0 + _positive(self.raw_df)

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        scale, df = self.scale_and_df()
        df = df.unsqueeze(-1)  # an axis of targets, also for the (K, 1) values of K replicates
        constant = torch.lgamma(0.5 * df) - torch.lgamma(0.5 * df + 0.5) + 0.5 * torch.log(math.pi * df)
        spread = 0.5 * (df + 1.0) * torch.log1p(((y - outputs) / scale) ** 2 / df)
        return (constant + torch.log(scale) + spread).sum(-1)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs

    def variance(self, outputs: Tensor) -> Tensor:
        scale, df = self.scale_and_df()
        return (scale**2 * df / (df - 2.0)).expand_as(outputs)

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        scale, df = (v.detach() for v in self.scale_and_df())
        return _of_numpy(scipy_special("StudentT.cdf").stdtr, df, (y - outputs) / scale)

    def quantile(self, outputs: Tensor, level: Tensor) -> Tensor:
        scale, df = (v.detach() for v in self.scale_and_df())
        return outputs + scale * _of_numpy(scipy_special("StudentT.quantile").stdtrit, df, level)


def _of_numpy(function: Callable[..., Any], df: Tensor, values: Tensor) -> Tensor:
    found = function(float(df), values.detach().cpu().numpy())
    return torch.as_tensor(found, dtype=values.dtype, device=values.device)


def _columns(y: Tensor, count: int, owner: str) -> Tensor:
    """Finite targets of shape (rows, count)."""
    shaped = y.unsqueeze(-1) if y.dim() == 1 else y
    if shaped.dim() != 2 or shaped.shape[1] != count:
        raise invalid("y", owner, f"of shape (rows, {count})", f"shape {tuple(y.shape)}")
    # Real numbers stay as exact as they are: the network they are for may have double precision.
    real = shaped if shaped.is_floating_point() else shaped.to(torch.get_default_dtype())
    return check_finite(real, "y", owner)


def unpositive(value: Tensor) -> Tensor:
    """The inverse of softplus."""
    return value + torch.log(-torch.expm1(-value))


def _positive(raw_std: Tensor) -> Tensor:
    return F.softplus(raw_std).clamp_min(1e-6)


def _gaussian_nll(error: Tensor, std: Tensor) -> Tensor:
    """Summed over targets."""
    return (0.5 * (error / std) ** 2 + torch.log(std) + 0.5 * math.log(2.0 * math.pi)).sum(-1)
