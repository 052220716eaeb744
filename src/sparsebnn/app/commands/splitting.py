"""The target of a table, the task, and which rows are held out."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sparsebnn.checks import InvalidInput, check_choice, invalid
from sparsebnn.estimators.cross_fitting import copies
from sparsebnn.estimators.encoding import values_of
from sparsebnn.io.cells import MISSING, MOSTLY, SIGNS, absent, kind_of, label, number_of, to_objects

if TYPE_CHECKING:
    import polars

__all__ = ["Problem", "posed", "spellings", "split", "typed"]

_LEAST_ROWS = 10
_MOST_CLASSES = 20
_GAPS_AMONG_NUMBERS = set(MISSING) - {"none"}  # "none" may mean 0


@dataclass(frozen=True)
class Problem:
    """A table split into inputs and target, and its rows into training and test."""

    task: str
    target: str
    inputs: polars.DataFrame
    y: np.ndarray
    rows: np.ndarray
    training: np.ndarray
    test: np.ndarray
    notes: tuple[str, ...]


def posed(table: polars.DataFrame, target: str, task: str, test_share: float, seed: int) -> Problem:
    """Split a table into inputs and target, and its rows into training and test."""
    check_choice(target, table.columns, "target", "sparsebnn fit")
    values = values_of(table[target])
    inputs = table.drop(target)
    if not inputs.columns:
        raise invalid("data", "sparsebnn fit", "a table with at least one column besides the target", "none")
    values, task = typed(values, task)
    notes: list[str] = []
    known = ~np.array([absent(v) for v in values.tolist()])
    if not known.all():
        notes.append(f"{int((~known).sum())} rows have no {target} and are left out")
    values, inputs = values[known], inputs.filter(known)
    if len(values) < _LEAST_ROWS:
        rows = f"{len(values)} row{'' if len(values) == 1 else 's'}"
        raise invalid(
            "data", "sparsebnn fit", f"a table with at least {_LEAST_ROWS} rows with a target", rows
        )
    if task == "regression":
        y = values.astype(np.float64)
        if not np.isfinite(y).all():
            raise invalid("target", "sparsebnn fit", "finite", "infinite values")
    else:
        y, more = _labels(values)
        notes += more
    group = _copies(inputs, y)
    if group is not None:
        notes.append(
            f"{len(y) - len(np.unique(group))} of {len(y)} rows are copies of others; copies are trained on "
            "or tested together"
        )
    training, test = split(y, task, test_share, seed, group)
    return Problem(task, target, inputs, y, np.flatnonzero(known), training, test, tuple(notes))


def typed(values: np.ndarray, task: str) -> tuple[np.ndarray, str]:
    """The target as numbers or labels, and the task; text among numbers is an error."""
    if values.dtype.kind in "mM":
        raise _of_times("dates or durations")
    values = _as_numbers(values)
    if task == "classification":
        return values, task
    if values.dtype.kind in "biuf":
        return values, _task(values[~np.isnan(values.astype(np.float64))]) if task == "auto" else task
    cells = [None if absent(v) else str(v).strip() for v in values.tolist()]
    there = [cell for cell in cells if cell is not None and cell.lower() not in _GAPS_AMONG_NUMBERS]
    numbers = [number_of(SIGNS.sub("", cell)) for cell in there]
    known = np.array([number for number in numbers if number is not None])
    mostly = len(known) >= max(1.0, MOSTLY * len(there)) and _task(known) == "regression"
    if task == "auto" and not mostly:
        kind, form = kind_of(to_objects(cells))
        if (kind == "date" or form) and len(set(cells)) > _MOST_CLASSES:
            raise _of_times(repr(there[0]))
        return values, "classification"
    slips = Counter(cell for cell in there if number_of(cell) is None)
    if slips:
        listed = ", ".join(f"{cell!r} ({count}×)" for cell, count in slips.most_common(5))
        got = listed + (" and others" if len(slips) > 5 else "")
        advice = "Correct those cells or leave them empty; --task classification takes each value as a class."
        raise invalid("target", "sparsebnn fit", "numbers for a regression", got, advice)
    found = [None if cell is None else number_of(cell) for cell in cells]
    return np.array([np.nan if number is None else number for number in found]), "regression"


def _of_times(got: str) -> InvalidInput:
    advice = "Convert it to a number first, such as hours, or days since a date."
    return invalid("target", "sparsebnn fit", "numbers or classes", got, advice)


def _as_numbers(values: np.ndarray) -> np.ndarray:
    """Text as numbers if it is how they are usually written; 007 and 1.0 stay text, as they may be labels."""
    cells = [math.nan if absent(v) else number_of(v) if isinstance(v, str) else None for v in values.tolist()]
    same = all(v is not None and (v != v or label(v) == cell) for v, cell in zip(cells, values.tolist()))
    return np.array(cells, dtype=np.float64) if same else values


def _task(values: np.ndarray) -> str:
    """Classification if the numbers are few and whole, regression otherwise."""
    if values.dtype.kind == "b":
        return "classification"
    distinct = np.unique(values)
    whole = bool((distinct == np.round(distinct)).all())
    few = len(distinct) <= min(_MOST_CLASSES, max(2, len(values) // 5))
    return "classification" if whole and few else "regression"


def _labels(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Class labels with one spelling each, and notes on doubtful ones."""
    y, notes = spellings(_as_labels(values))
    y = y.astype(str) if y.dtype.kind == "O" else y
    if len(np.unique(y)) < 2:
        got = f"{str(y[0])!r} in all rows"
        advice = "Choose another target."
        raise invalid("target", "sparsebnn fit", "a column with at least 2 classes", got, advice)
    for word, count in Counter(map(str, y.tolist())).items():
        if word.lower() in MISSING:
            notes.append(f"{word!r} is taken as a class ({count} rows): empty its cells if it means missing")
    return y, notes


def spellings(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Labels in one spelling each, and notes on those that were joined.

    Labels that differ in capitals and surrounding blanks only are one class, in its most frequent spelling;
    so are numbers of one value (1 and 1.0), unless some have leading zeros (1 and 001).

    >>> spellings(np.array(["Yes", "yes", "no", "Yes"], dtype=object))
    (array(['Yes', 'Yes', 'no', 'Yes'], dtype=object),
     ["the labels 'Yes', 'yes' are taken as one class: 'Yes'"])
    """
    if values.dtype.kind in "biuf":
        return values, []
    words = [str(value).strip() for value in values.tolist()]
    counts = Counter(words)
    padded = any(re.fullmatch(r"0\d+", word) for word in counts)
    numeric = not padded and all(number_of(word) is not None for word in counts)
    groups: dict[str | float | None, list[str]] = {}
    for word in sorted(counts, key=lambda w: (-counts[w], w)):
        key = number_of(word) if numeric else " ".join(word.casefold().split())
        groups.setdefault(key, []).append(word)
    chosen = {word: group[0] for group in groups.values() for word in group}
    notes = [
        f"the labels {', '.join(map(repr, group))} are taken as one class: {group[0]!r}"
        for group in groups.values()
        if len(group) > 1
    ]
    return to_objects([chosen[word] for word in words]), notes


def _as_labels(values: np.ndarray) -> np.ndarray:
    """Whole numbers as int (1, not 1.0), other numbers as text."""
    if values.dtype.kind != "f":
        return values
    if bool((values == np.round(values)).all()) and float(np.abs(values).max()) < 2.0**53:
        return values.astype(np.int64)
    return np.array([label(v) for v in values.tolist()], dtype=object)


def _copies(inputs: polars.DataFrame, y: np.ndarray) -> np.ndarray | None:
    """The group of every row, where rows are copies of each other (see ``cross_fitting.copies``)."""
    import torch

    keys = inputs.hash_rows().to_numpy().astype(np.uint64).view(np.int64)
    return copies(keys[:, None], torch.from_numpy(np.unique(y, return_inverse=True)[1]))


def split(
    y: np.ndarray, task: str, share: float, seed: int, copied: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers for training and test, split by class; a class with one row stays in training.

    ``copied`` are the groups of rows that are copies, and stay together.
    """
    if copied is not None:
        _, first, place = np.unique(copied, return_index=True, return_inverse=True)
        parts = split(y[first], task, share, seed)
        return np.flatnonzero(np.isin(place, parts[0])), np.flatnonzero(np.isin(place, parts[1]))
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
            advice = "Choose another target, or merge classes."
            raise invalid(
                "target", "sparsebnn fit", "a column of classes with several rows each", got, advice
            )
        test = [int(random.choice(largest))]
    held = np.zeros(len(y), dtype=bool)
    held[test] = True
    return np.flatnonzero(~held), np.flatnonzero(held)
