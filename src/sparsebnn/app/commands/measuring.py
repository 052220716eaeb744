"""What the record holds of held-out predictions: measures with 95% intervals, baselines, and curves."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from sparsebnn import metrics
from sparsebnn.app.commands.splitting import Problem
from sparsebnn.app.report.charts import wilson
from sparsebnn.estimators import Encoder, Table
from sparsebnn.estimators.columns import Column
from sparsebnn.estimators.encoding import values_of
from sparsebnn.estimators.ensemble import some_rows
from sparsebnn.estimators.target_codes import places
from sparsebnn.io.cells import labels, to_floats

__all__ = [
    "baselines",
    "calibration",
    "class_measures",
    "curves_of_classes",
    "differences",
    "effect_curves",
    "is_posterior",
    "real_measures",
    "residuals",
    "with_intervals",
]

_RESAMPLES = 300
_MOST_TREE_LEVELS = 254  # of scikit-learn's boosted trees
Measures = dict[str, dict[str, float]]


def with_intervals(measures: dict[str, Callable[[np.ndarray], float]], rows: int, seed: int) -> Measures:
    """Each measure on all rows, with its 95% bootstrap interval over rows."""
    random = np.random.RandomState(seed)
    samples = [random.randint(rows, size=rows) for _ in range(_RESAMPLES)]
    found = {}
    for name, measure in measures.items():
        values = [measure(sample) for sample in samples]
        low, high = np.quantile(values, [0.025, 0.975])
        found[name] = {"value": measure(np.arange(rows)), "low": float(low), "high": float(high)}
    return found


def class_measures(probs: np.ndarray, codes: np.ndarray, seed: int) -> Measures:
    """Accuracy with Wilson's interval, log-loss, Brier score and calibration error.

    Bootstrap intervals fail for an accuracy of 1 and for a small calibration error, so these two have
    other intervals.
    """
    p, y = torch.from_numpy(np.ascontiguousarray(probs)), torch.from_numpy(codes)

    def of(measure: Any) -> Callable[[np.ndarray], float]:
        return lambda sample: float(measure(p[sample], y[sample]))

    value = metrics.accuracy(p, y)
    low, high = wilson(value, len(codes))
    found: Measures = {"accuracy": {"value": value, "low": low, "high": high}}
    found |= with_intervals({"nll": of(metrics.nll), "brier": of(metrics.brier)}, len(codes), seed)
    low, high = metrics.calibration_interval(p, y, seed=seed)
    return found | {"ece": {"value": metrics.calibration_error(p, y), "low": low, "high": min(1.0, high)}}


def real_measures(mean: np.ndarray, std: np.ndarray | None, y: np.ndarray, seed: int) -> Measures:
    """R², root mean squared error and, given ``std``, the negative log density of N(mean, std²)."""

    def r2(sample: np.ndarray) -> float:
        total = float(((y[sample] - y[sample].mean()) ** 2).sum())
        return 1.0 - float(((y - mean)[sample] ** 2).sum()) / total if total > 0.0 else 0.0

    named: dict[str, Callable[[np.ndarray], float]] = {
        "r2": r2,
        "rmse": lambda sample: float(np.sqrt(((y - mean)[sample] ** 2).mean())),
    }
    if std is not None:
        each = 0.5 * ((y - mean) / std) ** 2 + np.log(std) + 0.5 * np.log(2.0 * np.pi)
        named["nll"] = lambda sample: float(each[sample].mean())
    return with_intervals(named, len(y), seed)


def calibration(probs: np.ndarray, codes: np.ndarray, bins: int = 10) -> dict[str, list[float]]:
    """Confidence and accuracy of the most probable class, in the bins of confidence that are not empty."""
    confidence, right = probs.max(1), probs.argmax(1) == codes
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    used = [b for b in range(bins) if (place == b).any()]
    return {
        "confidence": [float(confidence[place == b].mean()) for b in used],
        "accuracy": [float(right[place == b].mean()) for b in used],
        "rows": [int((place == b).sum()) for b in used],
    }


def differences(task: str, ours: np.ndarray, theirs: np.ndarray, y: np.ndarray, seed: int) -> Measures:
    """Our measures minus those of another model, with 95% bootstrap intervals over pairs on the same rows.

    ``ours`` and ``theirs`` are class probabilities, with ``y`` class numbers, or means. Rows that are hard
    for both models do not widen the interval, as they do those of each model.
    """
    if task == "classification":
        rows, truth = np.arange(len(y)), np.eye(ours.shape[1])[y]

        def each(probs: np.ndarray) -> dict[str, np.ndarray]:
            tiny = np.finfo(np.float64).tiny
            return {
                "accuracy": (probs.argmax(1) == y).astype(np.float64),
                "nll": -np.log(np.maximum(probs[rows, y], tiny)),
                "brier": ((probs - truth) ** 2).sum(1),
            }

        one, other = each(ours), each(theirs)

        def difference(name: str) -> Callable[[np.ndarray], float]:
            gap = one[name] - other[name]
            return lambda sample: float(gap[sample].mean())

        return with_intervals({name: difference(name) for name in one}, len(y), seed)
    squares = [(y - ours) ** 2, (y - theirs) ** 2]

    def r2(sample: np.ndarray) -> float:
        total = float(((y[sample] - y[sample].mean()) ** 2).sum())
        return float((squares[1] - squares[0])[sample].sum()) / total if total > 0.0 else 0.0

    def rmse(sample: np.ndarray) -> float:
        first, second = (float(np.sqrt(square[sample].mean())) for square in squares)
        return first - second

    return with_intervals({"r2": r2, "rmse": rmse}, len(y), seed)


def _for_trees(columns: Sequence[Column], table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Columns as boosted trees take them: numbers with gaps, and categories by number; which are
    categories.
    """
    parts: list[np.ndarray] = []
    categories: list[bool] = []
    for column, values in zip(columns, table.values):
        if column.kind == "category":
            known = (*column.levels, *([] if column.reference is None else [column.reference]))
            place = places(labels(values), known[:_MOST_TREE_LEVELS]).astype(np.float64)
            parts.append(np.where(place < 0, np.nan, place))
            categories.append(True)
        elif column.kind != "dropped":
            parts.append(to_floats(values, column.kind, column.form, column.name))
            categories.append(False)
    if not parts:
        return np.zeros((len(table), 1)), np.zeros(1, dtype=bool)
    return np.stack(parts, axis=1), np.array(categories)


def _for_lines(columns: Sequence[Column], table: Table, training: np.ndarray) -> Any:
    """Columns as linear models take them: standardized, one input for each level, also of many levels."""
    from scipy.sparse import csr_matrix, hstack
    from sklearn.preprocessing import OneHotEncoder

    plain = Encoder(tuple(c if not c.codes else Column(c.name, "dropped") for c in columns)).transform(table)
    coded = [labels(values) for c, values in zip(columns, table.values) if c.codes]
    if not coded:
        return plain
    cells = np.array([["" if cell is None else cell for cell in column] for column in coded], dtype=object).T
    encoder = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=2).fit(cells[training])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # levels that only the held-out rows have
        return hstack([csr_matrix(plain), encoder.transform(cells)]).tocsr()


def baselines(
    problem: Problem, columns: Sequence[Column], ours: np.ndarray, seed: int
) -> list[dict[str, Any]]:
    """Majority or mean, logistic or ridge regression, and gradient boosting, each with the encoding it likes.

    ``ours`` are the probabilities or means that our model predicts for the held-out rows.
    """
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, RidgeCV

    y, training, test = problem.y, problem.training, problem.test
    table = Table.of(problem.inputs)
    trees, categories = _for_trees(columns, table)
    lines = _for_lines(columns, table, training)
    options: dict[str, Any] = {"categorical_features": categories, "random_state": seed}
    classify = problem.task == "classification"
    models: dict[str, tuple[Any, Any]] = (
        {
            "majority": (DummyClassifier(strategy="prior"), trees),
            "logistic regression": (LogisticRegression(max_iter=1000), lines),
            "gradient boosting": (HistGradientBoostingClassifier(**options), trees),
        }
        if classify
        else {
            "mean": (DummyRegressor(), trees),
            "ridge regression": (RidgeCV(np.logspace(-2, 4, 13)), lines),
            "gradient boosting": (HistGradientBoostingRegressor(**options), trees),
        }
    )
    found = []
    for name, (model, x) in models.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no convergence warnings for baselines
            model.fit(x[training], y[training])
        truth = np.searchsorted(model.classes_, y[test]) if classify else y[test]
        theirs = model.predict_proba(x[test]).astype(np.float64) if classify else model.predict(x[test])
        measures = (
            class_measures(theirs, truth, seed) if classify else real_measures(theirs, None, truth, seed)
        )
        gaps = differences(problem.task, ours, theirs, truth, seed)
        found.append({"name": name, "metrics": measures, "difference": gaps})
    return found


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
    rows = problem.inputs[problem.test[some_rows(len(problem.test), _ROWS)]]
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
