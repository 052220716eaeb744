"""What the report draws of a fitted model: effect curves, confusion, ROC and precision–recall, residuals."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsebnn.app.commands.splitting import Problem
from sparsebnn.estimators.columns import Column
from sparsebnn.estimators.encoding import values_of
from sparsebnn.io.cells import labels, to_floats

__all__ = ["curves_of_classes", "effect_curves", "is_posterior", "residuals"]

_MOST_CURVES = 9
_MOST_LEVELS = 12
_MOST_OUTPUTS = 6
_ROWS = 80
_DRAWS = 60
_POINTS = 25
_FEW_VALUES = 8
_MOST_CLASSES = 12
_MOST_POINTS = 400


def is_posterior(model: Any) -> bool:
    """Whether inclusion probabilities are posterior probabilities."""
    return model.inclusions_are_no_posterior is None


def effect_curves(model: Any, problem: Problem) -> list[dict[str, Any]]:
    """Predictions averaged over held-out rows, along each of the columns with the largest gain in use."""
    columns = model._encoder.columns
    shown = [j for j in np.argsort(-model.gain_, kind="stable") if model.used_[j]]
    rows = problem.inputs[problem.test][:_ROWS]
    found = []
    for j in shown[:_MOST_CURVES]:
        column = columns[j]
        grid = _grid(column, values_of(problem.inputs[column.name]))
        if len(grid) < 2:
            continue
        curve = model.what_if(rows, column.name, grid=grid, n_draws=_DRAWS, level=0.95)
        # Of two classes, the second says it all.
        kept = slice(-1, None) if len(curve.outputs) <= 2 else slice(0, _MOST_OUTPUTS)
        found.append(
            {
                "name": column.name,
                "kind": column.kind,
                "outputs": [str(name) for name in curve.outputs][kept],
                "grid": [value.item() if hasattr(value, "item") else value for value in curve.grid[0]],
                **{part: getattr(curve, part)[:, kept].T.tolist() for part in ("mean", "low", "high")},
            }
        )
    return found


def _grid(column: Column, values: np.ndarray) -> list[Any]:
    """The most frequent levels, or numbers from the 1% to the 99% quantile; empty for dates."""
    if column.kind == "category":
        known = {*column.levels, column.reference} - {None}  # None: most values are missing
        levels, counts = np.unique([v for v in labels(values) if v in known], return_counts=True)
        return sorted(levels[np.argsort(-counts, kind="stable")][:_MOST_LEVELS].tolist())
    if column.kind != "number":
        return []
    numbers = to_floats(values, column.kind, column.form, column.name)
    distinct = np.unique(numbers[~np.isnan(numbers)])
    if len(distinct) <= _FEW_VALUES:
        return distinct.tolist()
    low, high = np.nanquantile(numbers, [0.01, 0.99])
    return np.linspace(low, high, _POINTS).tolist() if low < high else distinct[[0, -1]].tolist()


def curves_of_classes(probs: np.ndarray, codes: np.ndarray, classes: Any) -> dict[str, Any]:
    """The confusion matrix, and ROC and precision–recall of each class against the others."""
    from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_curve

    count = len(classes)
    found: dict[str, Any] = {"confusion": None, "ranking": []}
    if count <= _MOST_CLASSES:
        table = np.zeros((count, count), dtype=int)
        np.add.at(table, (codes, probs.argmax(1)), 1)
        found["confusion"] = table.tolist()
    for k in [1] if count == 2 else range(min(count, _MOST_OUTPUTS)):
        own = codes == k
        if own.all() or not own.any():
            continue
        wrong, right, _ = roc_curve(own, probs[:, k])
        precision, recall, _ = precision_recall_curve(own, probs[:, k])
        found["ranking"].append(
            {
                "name": str(classes[k]),
                "share": float(own.mean()),
                "auc": float(auc(wrong, right)),
                "precision": float(average_precision_score(own, probs[:, k])),
                "roc": _thinned(wrong, right),
                "recall": _thinned(recall[::-1], precision[::-1]),
            }
        )
    return found


def _thinned(x: np.ndarray, y: np.ndarray, most: int = 100) -> list[list[float]]:
    kept = np.unique(np.linspace(0, len(x) - 1, min(most, len(x))).astype(int))
    return [[float(a), float(b)] for a, b in zip(x[kept], y[kept])]


def residuals(mean: np.ndarray, std: np.ndarray, y: np.ndarray) -> list[list[float]]:
    """Prediction, truth and standard deviation of at most 400 held-out rows."""
    step = -(-len(y) // _MOST_POINTS)
    return [[float(value) for value in row] for row in zip(mean[::step], y[::step], std[::step])]
