"""Measures of held-out predictions with 95% intervals, and simple baselines."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from sparsebnn import metrics
from sparsebnn.app.commands.splitting import Problem
from sparsebnn.app.report.charts import wilson

__all__ = ["baselines", "calibration", "class_measures", "real_measures", "with_intervals"]

_RESAMPLES = 300
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


def baselines(problem: Problem, x: np.ndarray, seed: int) -> list[dict[str, Any]]:
    """Majority or mean, logistic or ridge regression, and gradient boosting on the same encoded rows."""
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge

    y, training, test = problem.y, problem.training, problem.test
    classify = problem.task == "classification"
    models: dict[str, Any] = (
        {
            "majority": DummyClassifier(strategy="prior"),
            "logistic regression": LogisticRegression(max_iter=1000),
            "gradient boosting": HistGradientBoostingClassifier(random_state=seed),
        }
        if classify
        else {
            "mean": DummyRegressor(),
            "ridge regression": Ridge(),
            "gradient boosting": HistGradientBoostingRegressor(random_state=seed),
        }
    )
    found = []
    for name, model in models.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no convergence warnings for baselines
            model.fit(x[training], y[training])
        if classify:
            codes = np.searchsorted(model.classes_, y[test])
            measures = class_measures(model.predict_proba(x[test]).astype(np.float64), codes, seed)
        else:
            measures = real_measures(model.predict(x[test]), None, y[test], seed)
        found.append({"name": name, "metrics": measures})
    return found
