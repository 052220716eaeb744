"""How outputs become probabilities of targets: labels, real numbers, counts and times until an event."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch  # noqa: F401  (for the examples)
from torch import Tensor

from sparsebnn.checks import check_choice
from sparsebnn.likelihoods.base import ClassLikelihood, Likelihood, PerPosition
from sparsebnn.likelihoods.classes import Bernoulli, Categorical, Multilabel, NoisyCategorical, Ordinal
from sparsebnn.likelihoods.counts import NegativeBinomial, Poisson
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


NAMED: dict[str, Callable[[Tensor], Likelihood]] = {
    "categorical": Categorical.of,
    "bernoulli": Bernoulli.of,
    "gaussian": Gaussian.of,
    "student_t": StudentT.of,
    "poisson": Poisson.of,
    "negative_binomial": NegativeBinomial.of,
    "zero_inflated_poisson": partial(Poisson.of, zero_inflated=True),
    "zero_inflated_negative_binomial": partial(NegativeBinomial.of, zero_inflated=True),
    "ordinal": Ordinal.of,
    "noisy_categorical": NoisyCategorical.of,
    "multilabel": Multilabel.of,
    "piecewise_exponential": PiecewiseExponential.of,
    "discrete_hazard": DiscreteHazard.of,
    "cox": Cox.of,
}


def likelihood(name: str, y: Tensor) -> Likelihood:
    """The likelihood of that name, sized by the targets.

    Counts with exposures have two columns, times have two or three (:class:`SurvivalLikelihood`).

    >>> likelihood("categorical", torch.tensor([0, 1, 2])).n_classes
    3
    """
    return NAMED[check_choice(name, NAMED, "likelihood", "train")](y)
