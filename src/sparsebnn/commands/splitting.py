"""The target of a table, the task it means, and which rows are held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsebnn.checks import check_choice, invalid
from sparsebnn.commands.reading import spellings
from sparsebnn.estimators.columns import absent
from sparsebnn.estimators.encoding import Table

__all__ = ["Problem", "posed"]

_LEAST_ROWS = 10
_MOST_CLASSES = 20


@dataclass(frozen=True)
class Problem:
    """A table split into inputs and target, and its rows into training and test."""

    task: str
    target: str
    inputs: Table
    y: np.ndarray
    rows: np.ndarray
    training: np.ndarray
    test: np.ndarray
    notes: tuple[str, ...]


def posed(table: Table, target: str, task: str, test_share: float, seed: int) -> Problem:
    """What is to be learned from a table; complains where nothing can be."""
    check_choice(task, ("auto", "classification", "regression"), "task", "sparsebnn fit")
    check_choice(target, table.names, "target", "sparsebnn fit")
    if not 0.0 < test_share < 1.0:
        raise invalid("test-share", "sparsebnn fit", "strictly between 0 and 1", test_share)
    if f"{target}.2" in table.names:
        advice = "Rename the columns of that name."
        got = f"{target!r}, twice or more,"
        raise invalid("target", "sparsebnn fit", "the name of one column", got, advice)
    values = table.values[table.names.index(target)]
    inputs = table.without(target)
    if not inputs.names:
        raise invalid("data", "sparsebnn fit", "of at least one column beside the target", "none")
    notes: list[str] = []
    there = ~np.array([absent(v) for v in values.tolist()])
    if not there.all():
        notes.append(f"{int((~there).sum())} rows have no {target} and are left out")
    values, inputs = values[there], inputs.rows(there)
    if len(values) < _LEAST_ROWS:
        rows = f"{len(values)} row{'' if len(values) == 1 else 's'}"
        raise invalid("data", "sparsebnn fit", f"of at least {_LEAST_ROWS} rows with a target", rows)
    if task == "auto":
        task = _task(values)
    if task == "regression":
        if values.dtype.kind not in "biuf":
            got = f"words such as {values[0]!r}"
            advice = "Use --task classification, or correct the column."
            raise invalid("target", "sparsebnn fit", "numbers for a regression", got, advice)
        y = values.astype(np.float64)
        if not np.isfinite(y).all():
            raise invalid("target", "sparsebnn fit", "finite", "infinite values")
    else:
        y, joined = spellings(_as_labels(values))
        notes += joined
        y = y.astype(str) if y.dtype.kind == "O" else y
        if len(np.unique(y)) < 2:
            got = f"{str(y[0])!r} in all rows"
            advice = "There is nothing to learn."
            raise invalid("target", "sparsebnn fit", "of at least 2 classes", got, advice)
    training, test = _split(y, task, test_share, seed)
    return Problem(task, target, inputs, y, np.flatnonzero(there), training, test, tuple(notes))


def _task(values: np.ndarray) -> str:
    if values.dtype.kind not in "iuf":
        return "classification"
    distinct = np.unique(values)
    whole = bool((distinct == np.round(distinct)).all())
    few = len(distinct) <= min(_MOST_CLASSES, max(2, len(values) // 5))
    return "classification" if whole and few else "regression"


def _as_labels(values: np.ndarray) -> np.ndarray:
    """Whole numbers read as 1.0 are labels 1."""
    if values.dtype.kind == "f" and bool((values == np.round(values)).all()):
        return values.astype(np.int64)
    return values


def _split(y: np.ndarray, task: str, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers; a class gives its share, a class of one row stays in training."""
    random = np.random.RandomState(seed)
    groups: list[np.ndarray] = [np.arange(len(y))]
    if task == "classification":
        groups = [np.flatnonzero(y == label) for label in np.unique(y)]
    test: list[int] = []
    for group in groups:
        count = min(len(group) - 1, round(share * len(group)))
        test += random.permutation(group)[: max(0, count)].tolist()
    if not test:
        largest = max(groups, key=len)
        if len(largest) < 2:
            got = f"{len(y)} classes in {len(y)} rows"
            advice = "Choose another target, or join classes."
            raise invalid("target", "sparsebnn fit", "of classes with several rows", got, advice)
        test = [int(random.choice(largest))]
    held = np.zeros(len(y), dtype=bool)
    held[test] = True
    return np.flatnonzero(~held), np.flatnonzero(held)
