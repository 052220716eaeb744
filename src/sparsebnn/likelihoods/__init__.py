"""How outputs become probabilities of targets: labels, real numbers, counts and times until an event."""

from __future__ import annotations

from collections.abc import Callable

import torch  # noqa: F401  (for the examples)
from torch import Tensor

from sparsebnn.checks import check_choice
from sparsebnn.likelihoods.base import ClassLikelihood, Likelihood
from sparsebnn.likelihoods.classes import Bernoulli, Categorical, Multilabel, NoisyCategorical, Ordinal
from sparsebnn.likelihoods.counts import NegativeBinomial, Poisson
from sparsebnn.likelihoods.positions import PerPosition
from sparsebnn.likelihoods.real import Gaussian, StudentT
from sparsebnn.likelihoods.survival import (
    Cox,
    DiscreteHazard,
    PiecewiseExponential,
    ProportionalHazards,
    SurvivalLikelihood,
)

__all__ = [
    "Likelihood",
    "ClassLikelihood",
    "Categorical",
    "Bernoulli",
    "Ordinal",
    "NoisyCategorical",
    "Multilabel",
    "Gaussian",
    "StudentT",
    "Poisson",
    "NegativeBinomial",
    "SurvivalLikelihood",
    "PiecewiseExponential",
    "DiscreteHazard",
    "Cox",
    "ProportionalHazards",
    "PerPosition",
    "likelihood",
]


def _classes(y: Tensor) -> int:
    return max(2, int(y.max()) + 1) if y.numel() and not y.is_floating_point() else 2


def _columns(y: Tensor) -> int:
    return 1 if y.dim() == 1 else y.shape[1]


def _rate(y: Tensor) -> float:
    """Counts per exposure."""
    y = y.double()
    total = float(y.sum()) if y.dim() == 1 else float(y[:, 0].sum())
    return max(1e-6, total / (float(y[:, 1].sum()) if _columns(y) == 2 else max(1, len(y))))


NAMED: dict[str, Callable[[Tensor], Likelihood]] = {
    "categorical": lambda y: Categorical(_classes(y)),
    "bernoulli": lambda y: Bernoulli(),
    "gaussian": lambda y: Gaussian(_columns(y)),
    "student_t": lambda y: StudentT(_columns(y)),
    "poisson": lambda y: Poisson(_rate(y), exposure=_columns(y) == 2),
    "negative_binomial": lambda y: NegativeBinomial(_rate(y), exposure=_columns(y) == 2),
    "zero_inflated_poisson": lambda y: Poisson(_rate(y), _columns(y) == 2, zero_inflated=True),
    "zero_inflated_negative_binomial": lambda y: NegativeBinomial(
        _rate(y), _columns(y) == 2, zero_inflated=True
    ),
    "ordinal": lambda y: Ordinal(_classes(y)),
    "noisy_categorical": lambda y: NoisyCategorical(_classes(y)),
    "multilabel": lambda y: Multilabel(_columns(y)),
    "piecewise_exponential": lambda y: PiecewiseExponential.of(y),
    "discrete_hazard": lambda y: DiscreteHazard.of(y),
    "cox": lambda y: Cox(),
}


def likelihood(name: str, y: Tensor) -> Likelihood:
    """The likelihood of that name, sized by the targets.

    Counts with exposures have two columns, times have two or three (:class:`SurvivalLikelihood`).

    >>> likelihood("categorical", torch.tensor([0, 1, 2])).n_classes
    3
    """
    return NAMED[check_choice(name, NAMED, "likelihood", "train")](y)
