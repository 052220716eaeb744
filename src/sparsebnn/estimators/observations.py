"""Targets from outputs: means, spreads, quantiles and draws of every likelihood that a regressor offers."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparsebnn.estimators.ensemble import Ensemble
from sparsebnn.inference.prediction import mixture_quantiles
from sparsebnn.likelihoods import Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT
from sparsebnn.likelihoods.real import unpositive

__all__ = ["DRAWS_OUTSIDE", "Observations", "doubled", "gaussian_quantiles"]

DRAWS_OUTSIDE = 4  # the first ones of every network, for rows outside the training range


def doubled(forms: Sequence[Likelihood], device: torch.device | str = "cpu") -> list[Likelihood]:
    """Copies of likelihoods, as they predict: in double precision, without gradients."""
    return [copy.deepcopy(form).to(device).double().requires_grad_(False) for form in forms]


@dataclass(frozen=True)
class Observations:
    """The observation models of all replicates; outputs are ``(replicates, draws, rows, outputs)``.

    ``exposure`` is that of the rows, for counts. ``spread`` is a standard deviation to add to Gaussian or
    Student-t noise, of rows outside the training range.
    """

    ensemble: Ensemble
    exposure: Tensor | None = None
    spread: Tensor | None = None

    def _each(self, outputs: Tensor) -> list[tuple[Likelihood, Tensor]]:
        forms = doubled(self.ensemble.likelihoods, outputs.device)
        if self.exposure is None:
            return [(self._widened(form), each) for form, each in zip(forms, outputs)]
        found: list[tuple[Likelihood, Tensor]] = []
        for form, each in zip(forms, outputs):
            assert isinstance(form, Poisson | NegativeBinomial)
            found.append((form, form.with_exposure(each, self.exposure.to(each))))
        return found

    def _widened(self, form: Likelihood) -> Likelihood:
        """With ``spread`` in the standard deviation, and as many degrees of freedom as before."""
        if self.spread is None or not isinstance(form, StudentT):
            return form
        scale, df = form.scale_and_df()
        wide = torch.sqrt(scale**2 + self.spread.to(scale) ** 2 * (df - 2.0) / df)
        form.raw_scale = nn.Parameter(unpositive(wide), requires_grad=False)
        return form

    @property
    def _gaussian(self) -> bool:
        return isinstance(self.ensemble.likelihoods[0], Gaussian)

    def _means_and_stds(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = self.ensemble.means_and_stds(outputs)
        return mean, std if self.spread is None else torch.sqrt(std**2 + self.spread.to(std) ** 2)

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the target in every draw, ``(replicates · draws, rows, targets)``."""
        if self._gaussian:
            mean, std = self._means_and_stds(outputs)
            return mean, std**2
        pairs = [(form.mean(each), form.variance(each)) for form, each in self._each(outputs)]
        return torch.cat([m for m, _ in pairs]), torch.cat([v for _, v in pairs])

    def quantiles(self, outputs: Tensor, levels: list[float]) -> Tensor:
        """Quantiles of the mixture over draws, ``(levels, rows, targets)``."""
        if self._gaussian:
            return gaussian_quantiles(*self._means_and_stds(outputs), levels)
        forms, shifted = zip(*self._each(outputs))
        return mixture_quantiles(forms, shifted, levels)

    def samples(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """One target per draw; ``noise`` is standard normal, of the shape of the result."""
        if self._gaussian:
            mean, std = self._means_and_stds(outputs)
            return mean + std * noise
        count = outputs.shape[1]
        pieces = self._each(outputs)
        drawn = [form.sample(o, noise[k * count : (k + 1) * count]) for k, (form, o) in enumerate(pieces)]
        return torch.cat(drawn)


def gaussian_quantiles(mean: Tensor, std: Tensor, levels: Sequence[float]) -> Tensor:
    r"""Quantiles of an equal mixture of Gaussians: the q with

    .. math:: \frac1D \sum_d \Phi\!\left(\frac{q - \mu_d}{\sigma_d}\right) = \text{level}

    ``mean`` and ``std`` are ``(draws, …)``, the result ``(levels, …)``; by bisection, to 1e-12 of the range.

    >>> gaussian_quantiles(torch.zeros(1, 1), torch.ones(1, 1), [0.975]).item()
    1.95996...
    """
    found = []
    for level in levels:
        low = (mean - 40.0 * std).min(0).values
        high = (mean + 40.0 * std).max(0).values
        for _ in range(60):
            middle = 0.5 * (low + high)
            mass = torch.special.erfc((mean - middle) / (std * math.sqrt(2.0))).mean(0) / 2.0
            low = torch.where(mass < level, middle, low)
            high = torch.where(mass < level, high, middle)
        found.append(0.5 * (low + high))
    return torch.stack(found)
