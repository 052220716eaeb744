"""Columns that can stand in for each other: drawn structures, correlations, and credible sets.

With correlated columns each replicate settles on some of them. Together the replicates show which columns
replace each other: a credible set has one of its columns in nearly every drawn structure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsebnn.checks import check_count, check_seed, invalid
from sparsebnn.estimators.encoding import Encoder
from sparsebnn.estimators.ensemble import merged
from sparsebnn.selection.credible_sets import CredibleSet, absolute_correlations, credible_sets, with_copies
from sparsebnn.selection.sources import sample_inputs

__all__ = ["correlations", "credible", "sampled"]


def sampled(networks: Sequence[nn.Module], encoder: Encoder, n_draws: int, seed: int) -> np.ndarray:
    """``(draws, columns)``: whether a column reaches an output, in structures drawn from all networks."""
    check_count(n_draws, "n_draws", "sample_inclusions", least=len(networks))
    seed = check_seed(seed, "seed", "sample_inclusions", least=0)
    column_of = encoder.column_of
    used = np.unique(column_of)
    found = np.zeros((n_draws, len(encoder.columns)), dtype=bool)
    if len(used):
        found[:, used] = sample_inputs([merged(each, column_of) for each in networks], n_draws, seed=seed)
    return found


def correlations(x: np.ndarray, encoder: Encoder) -> np.ndarray:
    """Absolute correlations between columns: the largest between an input of the one and of the other.

    Inputs that mark missing values do not count: columns that are missing in the same rows are no copies.
    """
    column_of, count = encoder.column_of, len(encoder.columns)
    of_inputs = torch.from_numpy(absolute_correlations(x.astype(np.float64)))
    marks = [np.flatnonzero(column_of == j)[-1] for j in range(count) if encoder.columns[j].gaps]
    of_inputs[marks], of_inputs[:, marks] = 0.0, 0.0
    places = torch.from_numpy(column_of.astype(np.int64))
    rows = torch.zeros(count, len(column_of), dtype=torch.float64)
    rows.scatter_reduce_(0, places.unsqueeze(1).expand_as(of_inputs), of_inputs, "amax")
    found = torch.zeros(count, count, dtype=torch.float64)
    found.scatter_reduce_(1, places.expand_as(rows), rows, "amax")
    return found.numpy()


def credible(estimator: Any, X: Any, n_draws: int, seed: int, **options: Any) -> list[CredibleSet]:
    """The credible sets of an estimator's columns."""
    reason = estimator.inclusions_are_no_posterior
    if reason is not None:
        expected = "a model whose inclusions are posterior probabilities"
        advice = "Fit with temperature='auto' or 1, no target density and enough steps."
        raise invalid("estimator", "credible_sets", expected, f"one {reason}", advice)
    samples = estimator.sample_inclusions(n_draws, seed=seed)
    alike = estimator.column_correlations(X)
    found = credible_sets(samples, correlations=alike, names=estimator.names_, **options)
    return with_copies(found, samples, alike, estimator.names_)
