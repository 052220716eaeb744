"""The contribution of each column of a table to a prediction, average effects, and what-if curves.

:mod:`sparsebnn.inference.explanation` and :mod:`~sparsebnn.inference.curves` do so for the inputs of a
network. Inputs are standardized, so a
contribution is the effect of the column's distance from its average.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsebnn.checks import check_choice, check_count, invalid
from sparsebnn.estimators.columns import Column
from sparsebnn.estimators.encoding import checked_table
from sparsebnn.inference.curves import WhatIf, grids
from sparsebnn.inference.explanation import Explanation, check_level, interval, slopes_of_draws
from sparsebnn.io.cells import absent, label, to_floats, to_objects
from sparsebnn.likelihoods import Gaussian, StudentT

__all__ = ["Effects", "Explanation", "WhatIf", "effects", "explain", "signed", "what_if"]

_BYTES = 1 << 27


@dataclass(frozen=True)
class Effects:
    """Each column's average effect over rows, with its 95% interval over draws.

    For one output, ``value`` is the mean slope per standard deviation of the column, and ``direction`` its
    sign, or "mixed" if the interval contains 0. For several outputs, and for columns with several inputs
    (:func:`signed`), it is the mean absolute contribution and has no direction.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    direction: tuple[str | None, ...]

    def record(self) -> dict[str, Any]:
        ends = {name: getattr(self, name).tolist() for name in ("value", "low", "high")}
        return {**ends, "direction": list(self.direction)}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Effects:
        value, low, high = (np.array(record[name], dtype=np.float64) for name in ("value", "low", "high"))
        return cls(value, low, high, tuple(record["direction"]))


def _slopes(estimator: Any, x: Tensor, n_draws: int, model: str = "average") -> tuple[Tensor, Tensor]:
    """Outputs ``(draws, rows, outputs)`` and slopes ``(draws, rows, inputs, outputs)`` of all draws."""
    each = -(-n_draws // len(estimator.networks_))
    return slopes_of_draws(estimator.networks_, x, each, model, estimator._seed)


def _in_units(estimator: Any, values: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Regression: means only, in units of the target."""
    form = estimator._likelihoods[0]
    if not isinstance(form, Gaussian | StudentT):
        return estimator.logit_scale_ * values, estimator.logit_scale_ * slopes
    scale, shift = torch.from_numpy(estimator._y_std), torch.from_numpy(estimator._y_mean)
    count = form.n_targets
    return values[..., :count] * scale + shift, slopes[..., :count] * scale


def _by_column(estimator: Any, by_input: Tensor) -> Tensor:
    """Sums over the inputs of a column, ``(draws, rows, inputs, outputs)`` to columns."""
    columns = len(estimator._encoder.columns)
    index = torch.from_numpy(estimator._encoder.column_of)
    found = torch.zeros((*by_input.shape[:2], columns, by_input.shape[3]), dtype=by_input.dtype)
    return found.index_add_(2, index, by_input[:, :, : len(index)])


def explain(estimator: Any, x: np.ndarray, n_draws: int, level: float, model: str) -> Explanation:
    """Contributions for encoded rows, in chunks that bound the memory."""
    check_count(n_draws, "n_draws", "explain")
    check_level(level, "explain")
    names = estimator._output_names()
    chunk = max(1, _BYTES // (8 * (n_draws + len(estimator.networks_)) * x.shape[1] * len(names) * 4))
    parts: list[tuple[Tensor, ...]] = []
    for start in range(0, len(x), chunk):
        rows = torch.from_numpy(x[start : start + chunk])
        values, slopes = _in_units(estimator, *_slopes(estimator, rows, n_draws, model))
        by_input = slopes * rows[None, :, :, None]
        columns = _by_column(estimator, by_input)
        parts.append((*interval(columns, level), (values - by_input.sum(2)).mean(0)))
    contributions, low, high, base = (torch.cat(found).numpy() for found in zip(*parts))
    columns_names = tuple(column.name for column in estimator._encoder.columns)
    return Explanation(columns_names, names, contributions, low, high, base, level)


def signed(estimator: Any) -> np.ndarray:
    """Which columns have an effect with a sign: one output, and one input not counting that for gaps."""
    single = len(estimator._output_names()) == 1
    columns = estimator._encoder.columns
    return np.array([single and not c.codes and len(c.inputs) - c.gaps == 1 for c in columns])


def effects(estimator: Any, x: np.ndarray, n_draws: int) -> Effects:
    """Average effects over encoded rows; see :class:`Effects`."""
    rows = torch.from_numpy(x)
    budget = _BYTES // (8 * n_draws * x.shape[1] * max(1, len(estimator._output_names())) * 4)
    rows = rows[: max(2, budget)]
    _, slopes = _in_units(estimator, *_slopes(estimator, rows, n_draws))
    columns = estimator._encoder.columns
    size = _by_column(estimator, slopes * rows[None, :, :, None]).abs().mean((1, 3))
    by_slope = signed(estimator)
    # The first input of the column; a second one only marks gaps.
    first = np.searchsorted(estimator._encoder.column_of, np.arange(len(columns)))
    slope = slopes[:, :, np.minimum(first, slopes.shape[2] - 1), 0].mean(1)
    each = torch.where(torch.from_numpy(by_slope), slope, size)
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low, high = torch.quantile(each, ends, dim=0).numpy()
    direction = [_direction(float(a), float(b)) if s else None for a, b, s in zip(low, high, by_slope)]
    return Effects(each.mean(0).numpy(), low, high, tuple(direction))


def _direction(low: float, high: float) -> str | None:
    if low == high == 0.0:
        return None
    return "+" if low > 0.0 else "-" if high < 0.0 else "mixed"


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
