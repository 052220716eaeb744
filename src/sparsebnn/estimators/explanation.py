"""The contribution of each column of a table to a prediction, and what-if curves.

:mod:`sparsebnn.inference.explanation` and :mod:`~sparsebnn.inference.curves` do so for the inputs of a
network. Inputs are standardized, so a contribution is the effect of the column's distance from its average.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsebnn.checks import check_choice, check_count, invalid
from sparsebnn.estimators.columns import Column
from sparsebnn.estimators.encoding import checked_table
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

__all__ = ["Explanation", "WhatIf", "effects", "explain", "what_if"]


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
