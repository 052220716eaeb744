"""Times until an event in the command ``fit``: columns, measures, and what the report shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sparsebnn import metrics
from sparsebnn.app.commands.measuring import with_intervals
from sparsebnn.app.commands.splitting import Problem, split, typed
from sparsebnn.checks import check_choice, invalid
from sparsebnn.estimators.encoding import values_of
from sparsebnn.estimators.survival_targets import columns_of
from sparsebnn.io.cells import absent

if TYPE_CHECKING:
    import polars

__all__ = ["Times", "measured", "posed", "predictions"]

_FIT = "sparsebnn fit"
_YES, _NO = ("true", "yes", "1", "1.0"), ("false", "no", "0", "0.0")
_GROUPS = {3: ("lowest risk", "middle", "highest risk"), 2: ("lower risk", "higher risk"), 1: ("all rows",)}
_LEAST_IN_GROUP = 10
_POINTS = 60  # of a curve in the report


@dataclass(frozen=True)
class Times:
    """The columns that hold times, events and, if given, times of entry."""

    time: str
    event: str
    entry: str | None = None

    @property
    def named(self) -> dict[str, str]:
        return {k: v for k, v in vars(self).items() if v is not None}


def posed(table: polars.DataFrame, times: Times, test_share: float, seed: int) -> Problem:
    """Split a table into inputs and times, and its rows into training and test, stratified by event."""
    found = {}
    for role, column in times.named.items():
        check_choice(column, table.columns, role, _FIT)
        values = values_of(table[column])
        found[role] = _events(values, column) if role == "event" else _numbers(values, role, column)
    inputs = table.drop(list(times.named.values()))
    if not inputs.columns:
        raise invalid("data", _FIT, "a table with at least one column besides times and events", "none")
    known = ~np.any([np.isnan(values) for values in found.values()], axis=0)
    notes = [] if known.all() else [f"{int((~known).sum())} rows have no time or event and are left out"]
    kept = {role: values[known] for role, values in found.items()}
    dtype = [("event", bool), ("time", float)] + ([("entry", float)] if times.entry else [])
    y = np.zeros(int(known.sum()), dtype=dtype)
    for role, values in kept.items():
        y[role] = values
    if len(y) < 10:
        raise invalid("data", _FIT, "a table with at least 10 rows with a time", f"{len(y)} rows")
    columns_of(y)  # raises before any work
    training, test = split(y["event"], "classification", test_share, seed)
    if not y["event"][training].any():
        raise invalid("event", _FIT, "True for some training rows", "only censored rows")
    name = times.event
    return Problem(
        "survival", name, inputs.filter(known), y, np.flatnonzero(known), training, test, tuple(notes)
    )


def _numbers(values: np.ndarray, role: str, column: str) -> np.ndarray:
    if values.dtype.kind in "mM":
        advice = "Convert it first, such as days since a date."
        raise invalid(role, _FIT, "a column of numbers", f"dates in {column!r}", advice)
    return typed(values, "regression")[0].astype(np.float64)


def _events(values: np.ndarray, column: str) -> np.ndarray:
    found = np.full(len(values), np.nan)
    for i, value in enumerate(values.tolist()):
        word = str(value).strip().lower()
        if absent(value):
            continue
        if word not in (*_YES, *_NO):
            advice = "Write 1 for an event and 0 for a censored row."
            raise invalid("event", _FIT, "a column of 0 and 1", f"{value!r} in {column!r}", advice)
        found[i] = word in _YES
    return found


def measured(model: Any, problem: Problem, seed: int) -> dict[str, Any]:
    """Concordance with its interval, and observed and predicted survival by risk."""
    test, y = problem.inputs[problem.test], problem.y[problem.test]
    time, event = (torch.from_numpy(np.ascontiguousarray(y[name])) for name in ("time", "event"))
    found: dict[str, Any] = {"metrics": {}}
    for kind in ("median", "average"):
        risk = torch.from_numpy(model.predict(test, model=kind))

        def concordance(sample: np.ndarray, risk: torch.Tensor = risk) -> float:
            try:
                return metrics.concordance(risk[sample], time[sample], event[sample])
            except ValueError:  # a sample without comparable pairs
                return 0.5

        found["metrics"][kind] = with_intervals({"concordance": concordance}, len(y), seed)
    groups = _by_risk(risk.numpy())
    curves = model.predict_survival_function(test, return_array=True)
    found["survival"] = {
        "groups": [
            _curve(name, y[rows], model.unique_times_, curves[rows])
            for name, rows in zip(_GROUPS[len(groups)], groups)
        ]
    }
    return found


def _by_risk(risk: np.ndarray) -> list[np.ndarray]:
    """Rows in up to three groups of equal size, from the lowest risk to the highest."""
    count = max(1, min(3, len(risk) // _LEAST_IN_GROUP))
    return [np.sort(rows) for rows in np.array_split(np.argsort(risk, kind="stable"), count)]


def _curve(name: str, y: np.ndarray, times: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    """Kaplan–Meier with its 95% interval, and the mean predicted survival, at the same times."""
    entry = torch.from_numpy(y["entry"].copy()) if "entry" in (y.dtype.names or ()) else None
    at, survival, error = (
        v.numpy()
        for v in metrics.kaplan_meier(
            torch.from_numpy(y["time"].copy()), torch.from_numpy(y["event"].copy()), entry
        )
    )
    shown = times[np.unique(np.linspace(0, len(times) - 1, _POINTS).round().astype(int))]
    shown = shown[shown <= y["time"].max()]
    place = np.searchsorted(at, shown, side="right")
    observed, spread = (np.concatenate([[start], v])[place] for start, v in ((1.0, survival), (0.0, error)))
    means = predicted[:, np.searchsorted(times, shown)].mean(0)
    return {
        "name": name,
        "rows": len(y),
        "events": int(y["event"].sum()),
        "times": shown.tolist(),
        "observed": observed.tolist(),
        "low": np.clip(observed - 1.96 * spread, 0.0, 1.0).tolist(),
        "high": np.clip(observed + 1.96 * spread, 0.0, 1.0).tolist(),
        "predicted": means.tolist(),
    }


def predictions(model: Any, inputs: Any) -> dict[str, list[Any]]:
    """The columns of a predictions file: risk, its spread, the median time, survival at three times."""
    risk, std = model.predict(inputs, return_std=True)
    median = model.predict_quantiles(inputs, 0.5)
    times = np.unique(np.quantile(model.unique_times_, [0.25, 0.5, 0.75], method="nearest"))
    survival = model.predict_survival_function(inputs, times=times)
    found: dict[str, list[Any]] = {
        "risk": risk.tolist(),
        "risk std": std.tolist(),
        "median time": [t if np.isfinite(t) else None for t in median.tolist()],
    }
    return found | {f"survival at {t:g}": survival[:, i].tolist() for i, t in enumerate(times)}
