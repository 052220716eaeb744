"""Checks of the tables and targets that an estimator was given."""

from __future__ import annotations

import dataclasses
import math
import numbers
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, column_or_1d, validate_data
from torch import Tensor

from sparsebnn.checks import InvalidInput, invalid
from sparsebnn.estimators.encoding import Table, is_frame, is_sparse
from sparsebnn.io.cells import absent, number_of, to_objects

__all__ = [
    "check_numbers",
    "checked_labels",
    "checked_table",
    "class_weights",
    "is_multilabel",
    "notes_on_order",
    "notes_on_padding",
]

_CLASSIFIER = "SparseBNNClassifier"
_PANDAS = ("boolean", "Int64", "Int32", "Int16", "Int8", "category")
_CONVERT = "Convert them, for example to text: [str(label) for label in y]."
_MOST_NAMED = 10  # columns that a message names


def checked_table(estimator: Any, X: Any, reset: bool) -> Table:
    """Any kind of table as named columns, with scikit-learn's checks of shape and names."""
    _check_type(X, type(estimator).__name__)
    least = 2 if reset else 1
    if is_frame(X) or _holds_text(X):
        X = X if is_frame(X) else np.asarray(X, dtype=object)
        table = Table.of(X)
        if hasattr(X, "get_columns") or (is_frame(X) and len(set(X.columns)) < len(X.columns)):
            # Not every scikit-learn reads the names of every polars (older ones would lose them), or
            # takes a frame with two columns of one name.
            _check_names(estimator, table.names, reset)
        else:
            validate_data(estimator, X=X, reset=reset, skip_check_array=True)
            if is_frame(X) and not reset:
                _check_order(estimator, table.names)
        for count, few, what in zip(X.shape, (least, 1), ("sample", "feature")):
            if count < few:  # in scikit-learn's words
                found = f"Found array with {count} {what}(s) (shape={X.shape})"
                raise ValueError(f"{found} while a minimum of {few} is required.")
        return table
    checked = validate_data(
        estimator,
        X=X,
        reset=reset,
        accept_sparse="csr",
        dtype=[np.float64, np.float32],
        ensure_all_finite="allow-nan",
        ensure_min_samples=least,
    )
    table = Table.of(checked)
    names = getattr(estimator, "feature_names_in_", None)
    return table if names is None else dataclasses.replace(table, names=tuple(map(str, names)))


def _check_names(estimator: Any, names: tuple[str, ...], reset: bool) -> None:
    if reset:
        estimator.feature_names_in_ = np.array(names, dtype=object)
        estimator.n_features_in_ = len(names)
        return
    known = getattr(estimator, "feature_names_in_", None)
    if known is None:  # trained on an array
        if len(names) != estimator.n_features_in_:
            expected = f"{estimator.n_features_in_}, as in training"
            raise invalid("number of columns", type(estimator).__name__, expected, len(names))
        _check_order(estimator, names)
    elif names != tuple(known):
        raise _other_names(estimator, names, [str(name) for name in known])


def _check_order(estimator: Any, names: tuple[str, ...]) -> None:
    """Whether the columns of a frame have the order of training; scikit-learn compares names of text only."""
    known = getattr(estimator, "names_", names)
    if names != known and sorted(names) == sorted(known):
        raise _other_names(estimator, names, known)


def _other_names(estimator: Any, names: Sequence[str], known: Sequence[str]) -> InvalidInput:
    lost, new = [n for n in known if n not in names], [n for n in names if n not in known]
    parts = {"no column": lost, "the new column": new}
    got = " and ".join(f"{what} {_listed(which)}" for what, which in parts.items() if which)
    expected = "those of training, in the same order"
    advice = "" if lost else "Select them by name: X[list(model.feature_names_in_)]."
    if not hasattr(estimator, "feature_names_in_"):
        advice = f"The order was {_listed(known)}."
    return invalid("columns", type(estimator).__name__, expected, got or "another order", advice)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_MOST_NAMED])) + (", …" if len(names) > _MOST_NAMED else "")


def _check_type(X: Any, owner: str) -> None:
    """Refuse what is no table; scikit-learn checks the shape of arrays."""
    advice = "Make it a frame: pd.DataFrame(X)."
    if isinstance(X, str | bytes | Path):
        advice = "Read the file first: pd.read_csv(X)."
    elif hasattr(X, "collect_schema") and not hasattr(X, "get_columns"):
        advice = "Read its rows first: X.collect()."
    elif hasattr(X, "to_frame") and getattr(X, "ndim", 1) == 1:
        advice = "Pass one row as frame.iloc[[0]], one column as X.to_frame()."
    elif isinstance(X, list | tuple):
        if not any(isinstance(row, Mapping | str) for row in X):
            return
    elif not isinstance(X, Mapping | Set | Iterator):
        return
    raise invalid("X", owner, "a frame, an array or a sparse matrix", f"a {type(X).__name__}", advice)


def _holds_text(x: Any) -> bool:
    """Whether an array or a list of rows contains text."""
    if is_sparse(x) or isinstance(x, Tensor):
        return False
    try:
        array = x if isinstance(x, np.ndarray) else np.asarray(x, dtype=object)
    except ValueError:
        return False
    return array.ndim == 2 and array.dtype.kind in "OU" and any(isinstance(v, str) for v in array.flat)


# -- targets ------------------------------------------------------------------------------------------


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


def notes_on_order(y: Any, classes: np.ndarray) -> list[str]:
    """A note that names the order of text classes. An order declared by ``y`` must be the sorted one."""
    declared = getattr(y, "cat", y)
    if getattr(declared, "ordered", False):
        order = [c for c in declared.categories.tolist() if c in set(classes.tolist())]
        if order != classes.tolist():
            got = f"{order}, of which the sorted order is {classes.tolist()}"
            advice = "Fit to numbers, for example y.cat.codes."
            raise invalid("y", _CLASSIFIER, "ordered as its labels are sorted", got, advice)
    elif classes.dtype.kind in "OU":
        note = (
            f"The order of the classes is taken to be {' < '.join(map(str, classes))}; fit to numbers if not."
        )
        warnings.warn(note, UserWarning, stacklevel=5)
        return [note]
    return []


def class_weights(given: Any, classes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The weight of each row's class; ``given`` is the parameter ``class_weight``."""
    if isinstance(given, Mapping):
        missing = [c for c in classes.tolist() if c not in given]
        wrong = [
            v
            for v in given.values()
            if isinstance(v, bool) or not isinstance(v, numbers.Real) or not 0.0 <= float(v) < math.inf
        ]
        if missing or wrong:
            got = f"none for {missing[0]!r}" if missing else repr(wrong[0])
            raise invalid("class_weight", _CLASSIFIER, "a number of at least 0 for every class", got)
    elif given != "balanced":
        raise invalid("class_weight", _CLASSIFIER, "None, 'balanced' or a dict", repr(given))
    return np.asarray(compute_sample_weight(given, labels))


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
        raise invalid("y", _CLASSIFIER, "free of missing labels", "missing ones", advice)
    kinds = {_kind(v): v for v in cells}
    if len(kinds) > 1:
        listed = " and ".join(repr(v) for v in kinds.values())
        raise invalid("y", _CLASSIFIER, "labels of one type", listed, _CONVERT)
    (kind,) = kinds
    if kind not in (bool, float, str, bytes, list, tuple):  # scikit-learn has messages for the last three
        raise invalid("y", _CLASSIFIER, "text, numbers or truth values", f"a {kind.__name__}", _CONVERT)
    return np.array(cells) if kind in (bool, float) else labels


def _kind(value: Any) -> type:
    """The type of a label, in which all numbers are alike."""
    for kind, types in ((bool, bool | np.bool_), (float, numbers.Real), (str, str)):
        if isinstance(value, types):
            return kind
    return type(value)


def notes_on_padding(classes: np.ndarray) -> list[str]:
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
