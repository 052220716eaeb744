"""What an estimator says about its columns: contributions to a prediction, what-if curves, credible sets.

:mod:`sparsebnn.inference.explanation` and :mod:`~sparsebnn.inference.curves` explain the inputs of a network.
Inputs are standardized, so a contribution is the effect of the column's distance from its average.

With correlated columns each replicate settles on some of them. Together the replicates show which columns
replace each other: a credible set has one of its columns in nearly every drawn structure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.checks import check_choice, check_count, check_seed, invalid
from sparsebnn.estimators.checks import checked_table
from sparsebnn.estimators.columns import Column
from sparsebnn.estimators.encoding import Encoder
from sparsebnn.estimators.ensemble import merged
from sparsebnn.estimators.feature_selection import (
    BYTES,
    by_column,
    effects,
    in_units,
    slopes_of,
)
from sparsebnn.inference.curves import WhatIf, grids
from sparsebnn.inference.explanation import Explanation, check_level, interval
from sparsebnn.io.cells import absent, label, to_floats, to_objects
from sparsebnn.selection.credible_sets import CredibleSet, absolute_correlations, credible_sets, with_copies
from sparsebnn.selection.sources import Components, sample_inputs

__all__ = ["Explanation", "WhatIf", "correlations", "credible", "effects", "explain", "sampled", "what_if"]


def explain(estimator: Any, x: np.ndarray, n_draws: int, level: float, model: str) -> Explanation:
    """Contributions for encoded rows, in chunks that bound the memory."""
    check_count(n_draws, "n_draws", "explain")
    check_level(level, "explain")
    names = estimator._output_names()
    chunk = max(1, BYTES // (8 * (n_draws + len(estimator.networks_)) * x.shape[1] * len(names) * 4))
    parts: list[tuple[Tensor, ...]] = []
    for start in range(0, len(x), chunk):
        rows = torch.from_numpy(x[start : start + chunk])
        values, slopes = in_units(estimator, *slopes_of(estimator, rows, n_draws, model))
        by_input = slopes * rows[None, :, :, None]
        columns = by_column(estimator, by_input)
        parts.append((*interval(columns, level), (values - by_input.sum(2)).mean(0)))
    contributions, low, high, base = (torch.cat(found).numpy() for found in zip(*parts))
    columns_names = tuple(column.name for column in estimator._encoder.columns)
    return Explanation(columns_names, names, contributions, low, high, base, level)


def what_if(
    estimator: Any, X: Any, columns: Any, grid: Any, points: int, n_draws: int, level: float, model: str
) -> WhatIf:
    """Predictions for the rows of ``X`` with other values of one or two columns, averaged over the rows."""
    check_level(level, "what_if")
    check_count(n_draws, "n_draws", "what_if")
    table = checked_table(estimator, X, reset=False)
    chosen = _places(estimator, columns)
    learned = [estimator._encoder.columns[i] for i in chosen]
    if grid is None:
        shown = [_grid(column, table.values[i], points) for column, i in zip(learned, chosen)]
    else:
        shown = grids(grid, [table.values[i] for i in chosen], points, "what_if")
    mesh = np.meshgrid(*(np.arange(len(each)) for each in shown), indexing="ij")
    wide = table.rows(np.tile(np.arange(len(table)), mesh[0].size))
    cells = list(wide.values)
    for i, at, values in zip(chosen, mesh, shown):
        own = values if table.values[i].dtype != object else to_objects(values.tolist())
        cells[i] = own[np.repeat(at.reshape(-1), len(table))]
    x = estimator._encoder.transform(replace(wide, values=tuple(cells)))
    averaged = _predictions(estimator, x, n_draws, model).unflatten(1, (*mesh[0].shape, -1)).mean(-2)
    outputs = estimator._expected_names()
    mean, low, high = (part.numpy() for part in interval(averaged, level))
    return WhatIf(tuple(column.name for column in learned), outputs, tuple(shown), mean, low, high, level)


def _predictions(estimator: Any, x: np.ndarray, n_draws: int, model: str) -> Tensor:
    """Class probabilities, means in units of the target, or risks: ``(draws, rows, outputs)``."""
    ensemble = estimator._ensemble
    each = -(-n_draws // len(estimator.networks_))
    parts = []
    for _, outputs in ensemble.draws(x, each, model, estimator._seed, "cpu"):
        parts.append(estimator._expected(outputs))
    return torch.cat(parts, 1)


def _places(estimator: Any, columns: Any) -> list[int]:
    """The numbers of one or two columns, given by number or name."""
    names = [column.name for column in estimator._encoder.columns]
    listed = list(columns) if isinstance(columns, list | tuple) else [columns]
    found = []
    for each in listed:
        if isinstance(each, str):
            check_choice(each, names, "columns", "what_if")
            found.append(names.index(each))
        elif isinstance(each, int) and 0 <= each < len(names):
            found.append(each)
    if len(found) != len(listed) or len(found) not in (1, 2):
        raise invalid("columns", "what_if", "names or numbers of one or two columns", repr(columns))
    return found


def _grid(column: Column, values: np.ndarray, points: int) -> np.ndarray:
    """The categories among these values, or a regular grid from the smallest number to the largest."""
    if column.kind == "category":
        known = {label(value): value for value in values if not absent(value)}
        return to_objects([known[name] for name in sorted(known)])
    if column.kind != "number":
        expected = "given for a column that is neither a number nor a category"
        raise invalid("grid", "what_if", expected, "None", f"'{column.name}' is: {column.kind}.")
    numbers = to_floats(values, column.kind, column.form, column.name)
    return grids(None, [numbers], points, "what_if")[0]


def sampled(
    networks: Sequence[nn.Module], weights: np.ndarray, encoder: Encoder, n_draws: int, seed: int
) -> np.ndarray:
    """``(draws, columns)``: whether a column reaches an output in structures drawn from weighted networks."""
    check_count(n_draws, "n_draws", "sample_inclusions", least=len(networks))
    seed = check_seed(seed, "seed", "sample_inclusions", least=0)
    column_of = encoder.column_of
    used = np.unique(column_of)
    found = np.zeros((n_draws, len(encoder.columns)), dtype=bool)
    if len(used):
        parts = Components([merged(each, column_of) for each in networks], torch.from_numpy(weights))
        found[:, used] = sample_inputs(parts, n_draws, seed=seed)
    return found


def correlations(x: np.ndarray, encoder: Encoder, among: np.ndarray | None = None) -> np.ndarray:
    """Absolute correlations between columns: the largest between an input of the one and of the other.

    ``among`` are the numbers of the columns, in order; all by default. Inputs that mark missing values do not
    count: columns that are missing in the same rows are no copies.
    """
    chosen = np.arange(len(encoder.columns)) if among is None else among
    count, own = len(chosen), np.flatnonzero(np.isin(encoder.column_of, chosen))
    column_of = np.searchsorted(chosen, encoder.column_of[own])
    if not len(column_of):
        return np.zeros((count, count))
    of_inputs = torch.from_numpy(absolute_correlations(x[:, own].astype(np.float64)))
    marks = [np.flatnonzero(column_of == i)[-1] for i, j in enumerate(chosen) if encoder.columns[j].gaps]
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
