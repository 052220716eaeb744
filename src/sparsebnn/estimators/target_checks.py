"""Checks of targets: labels of one type without gaps, and numbers that are numbers."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, column_or_1d

from sparsebnn.checks import invalid
from sparsebnn.io.cells import absent, number_of, to_objects

__all__ = ["check_numbers", "checked_labels", "is_multilabel", "padded"]

_OWNER = "SparseBNNClassifier"
_PANDAS = ("boolean", "Int64", "Int32", "Int16", "Int8", "category")
_CONVERT = "Convert them, for example to text: [str(label) for label in y]."


def check_numbers(y: Any, owner: str) -> None:
    """Refuse dates, and text that is no number."""
    given = np.asarray(y)
    if given.dtype.kind in "mM":
        advice = "Convert them first, such as to days since a date."
        raise invalid("y", owner, "numbers", "dates or durations", advice)
    for cell in given.ravel().tolist() if given.dtype.kind in "OU" else ():
        if isinstance(cell, str) and number_of(cell) is None:
            raise invalid(
                "y", owner, "numbers", repr(cell), "Classes need SparseBNNClassifier and one column."
            )


def is_multilabel(y: Any) -> bool:
    shape: Any = getattr(y, "shape", None)
    shape = np.asarray(y).shape if shape is None else shape
    return len(shape) == 2 and shape[1] > 1


def checked_labels(y: Any) -> np.ndarray:
    if y is None:
        raise ValueError("SparseBNNClassifier requires y to be passed, but the target y is None")
    labels = column_or_1d(_cells(y), warn=True)
    if labels.dtype.kind in "OmM":
        labels = _of_one_type(labels)
    assert_all_finite(labels, input_name="y")
    check_classification_targets(labels)
    return labels


def _cells(y: Any) -> Any:
    """As objects: a list of text and other labels, which NumPy would make text, and types of pandas."""
    if str(getattr(y, "dtype", "")) in _PANDAS:
        return to_objects(y.tolist())
    text = [isinstance(v, str) for v in y] if isinstance(y, list | tuple) else []
    return to_objects(list(y)) if any(text) and not all(text) else y


def _of_one_type(labels: np.ndarray) -> np.ndarray:
    """Objects that are all text, all numbers or all truth values."""
    cells = list(labels)
    if any(absent(v) for v in cells):
        advice = "Drop the rows without a label."
        raise invalid("y", _OWNER, "free of missing labels", "missing ones", advice)
    kinds = {_kind(v): v for v in cells}
    if len(kinds) > 1:
        listed = " and ".join(repr(v) for v in kinds.values())
        raise invalid("y", _OWNER, "labels of one type", listed, _CONVERT)
    (kind,) = kinds
    if kind not in (bool, float, str, bytes, list, tuple):  # scikit-learn has messages for the last three
        raise invalid("y", _OWNER, "text, numbers or truth values", f"a {kind.__name__}", _CONVERT)
    return np.array(cells) if kind in (bool, float) else labels


def _kind(value: Any) -> type:
    """The type of a label, in which all numbers are alike."""
    for kind, types in ((bool, bool | np.bool_), (float, numbers.Real), (str, str)):
        if isinstance(value, types):
            return kind
    return type(value)


def padded(classes: np.ndarray) -> list[str]:
    """Notes on labels that differ in white space around them only."""
    groups: dict[str, list[str]] = {}
    for label in classes.tolist():
        if isinstance(label, str):
            groups.setdefault(label.strip(), []).append(label)
    return [
        f"The labels {', '.join(map(repr, group))} differ in white space only and are several classes."
        for group in groups.values()
        if len(group) > 1
    ]
