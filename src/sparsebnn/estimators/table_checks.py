"""Checks of a table that an estimator was given."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data
from torch import Tensor

from sparsebnn.checks import InvalidInput, invalid
from sparsebnn.estimators.encoding import Table, is_frame, is_sparse

__all__ = ["checked_table"]

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
