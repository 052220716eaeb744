"""Where training starts: a record of distributions, one for each kind of parameter."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebnn.checks import check_number

__all__ = ["Uniform", "Normal", "He", "Initial", "Start"]


@dataclass(frozen=True)
class Uniform:
    """U(low, high)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        low = check_number(self.low, "low", "Uniform", "finite", math.isfinite)
        expected = "finite and at least 'low'"
        check_number(self.high, "high", "Uniform", expected, lambda high: low <= high < math.inf)

    def fill(self, parameter: Tensor) -> None:
        parameter.uniform_(self.low, self.high)


@dataclass(frozen=True)
class Normal:
    """N(mean, std²)."""

    mean: float
    std: float

    def __post_init__(self) -> None:
        check_number(self.mean, "mean", "Normal", "finite", math.isfinite)
        check_number(self.std, "std", "Normal", "finite and at least 0", lambda std: 0.0 <= std < math.inf)

    def fill(self, parameter: Tensor) -> None:
        parameter.normal_(self.mean, self.std)


@dataclass(frozen=True)
class He:
    """N(0, 2·gain²/fan_in): variance kept through layers of rectified units."""

    gain: float = 1.0

    def __post_init__(self) -> None:
        check_number(self.gain, "gain", "He", "finite and at least 0", lambda gain: 0.0 <= gain < math.inf)

    def fill(self, parameter: Tensor) -> None:
        fan_in = max(1, parameter[0].numel()) if parameter.ndim > 1 else max(1, parameter.numel())
        parameter.normal_(0.0, self.gain * math.sqrt(2.0 / fan_in))


Start = Uniform | Normal | He


@dataclass(frozen=True)
class Initial:
    """The start of every parameter of a layer; the defaults begin dense, so that sparsity is learned.

    >>> Initial(inclusion_logit=Uniform(-15.0, 10.0)).inclusion_logit.low
    -15.0
    """

    mean: Start = He()
    raw_std: Start = Normal(-5.0, 0.1)
    inclusion_logit: Start = Uniform(2.0, 4.0)
    bias_mean: Start = Normal(0.0, 0.0)
    bias_raw_std: Start = Normal(-5.0, 0.1)
    z0_mean: Start = Normal(1.0, 0.1)
    z0_log_var: Start = Normal(-4.0, 0.1)
    auxiliary: Start = Normal(0.0, 0.1)


@torch.no_grad()
def fill(parameter: Tensor, start: Start) -> None:
    """Draw ``parameter`` from ``start`` with torch's generator.

    Torch draws in the order of memory; here a value depends on its index alone, in any memory format.
    """
    if parameter.is_contiguous():
        start.fill(parameter)
    else:
        drawn = torch.empty_like(parameter, memory_format=torch.contiguous_format)
        start.fill(drawn)
        parameter.copy_(drawn)
