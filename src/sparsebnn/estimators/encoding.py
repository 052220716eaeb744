"""A table (array, sparse matrix, pandas or polars frame) to a matrix of inputs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data
from torch import Tensor

from sparsebnn.checks import invalid
from sparsebnn.estimators.columns import Column, ColumnWarning, encode, learn
from sparsebnn.estimators.parsing import number_form

__all__ = ["Encoder", "Table", "checked_table", "is_frame", "is_sparse", "names_apart", "warn_of_columns"]

_MOST_SPARSE_BYTES = 4 << 30
_MOST_NAMED = 10  # columns that a warning names
_CALLER_OF_FIT = 4  # stack level of the line that called ``fit``


def is_sparse(x: Any) -> bool:
    """Whether this is a scipy.sparse matrix or array, without importing scipy."""
    return hasattr(x, "tocsr") and hasattr(x, "nnz")


def is_frame(x: Any) -> bool:
    """Whether this is a pandas or polars frame (or has the same methods), or a :class:`Table`."""
    framed = hasattr(x, "columns") and (hasattr(x, "iloc") or hasattr(x, "get_columns"))
    return isinstance(x, Table) or framed


@dataclass(frozen=True)
class Table:
    """Named columns of equal length, the common form of all input types.

    ``categorical`` marks columns that are categorical whatever their values are.
    """

    names: tuple[str, ...]
    values: tuple[np.ndarray, ...]
    categorical: tuple[bool, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self.values[0]) if self.values else 0), len(self.values)

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, index: Any) -> Table:
        """Some of the rows."""
        return Table(self.names, tuple(v[index] for v in self.values), self.categorical)

    def without(self, name: str) -> Table:
        """All columns but one."""
        keep = [i for i, other in enumerate(self.names) if other != name]
        return self.of_columns(keep)

    def of_columns(self, index: Sequence[int]) -> Table:
        """Some of the columns, by number."""
        return Table(
            tuple(self.names[i] for i in index),
            tuple(self.values[i] for i in index),
            tuple(self.categorical[i] for i in index),
        )

    @classmethod
    def of(cls, x: Any) -> Table:
        """The columns of a frame, a sparse matrix, or a two-dimensional array."""
        if isinstance(x, Table):
            return x
        if hasattr(x, "get_columns"):
            series = list(x.get_columns())
            names = [s.name for s in series]
        elif is_frame(x):
            series = [x.iloc[:, i] for i in range(x.shape[1])]
            names = list(x.columns)
        else:
            array = _dense(x) if is_sparse(x) else np.asarray(x)
            count = array.shape[1]
            return cls(tuple(f"x{i}" for i in range(count)), tuple(array.T), (False,) * count)
        kinds = [str(s.dtype).lower().startswith(("categor", "enum")) for s in series]
        apart = names_apart([str(name) for name in names])
        return cls(tuple(apart), tuple(map(_values, series)), tuple(kinds))


def _dense(x: Any) -> np.ndarray:
    size = 8 * x.shape[0] * x.shape[1]
    if size > _MOST_SPARSE_BYTES:
        got = f"one that takes {size / 2**30:.1f} GiB with its zeros"
        advice = "Reduce its columns first, for example by TruncatedSVD."
        raise invalid("X", "fit", "a sparse matrix of at most 4 GiB with its zeros", got, advice)
    return np.asarray(x.toarray())


def _values(series: Any) -> np.ndarray:
    """A column of a frame as a numpy array: numbers, dates and durations as such, all else as objects."""
    dtype = getattr(series, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "biufMm":
        return np.asarray(series)
    name = str(dtype).lower()
    if name.startswith("period"):
        # A month or a year becomes its first moment.
        return np.asarray(series.dt.to_timestamp())
    if name.startswith(("float", "int", "uint", "bool", "datetime", "date", "timedelta", "duration")):
        # Extension types convert gaps to NaN, NaT or objects.
        found = np.asarray(series.to_numpy())
        return found if found.dtype.kind in "biufMm" else found.astype(object)
    listed = series.to_list() if hasattr(series, "to_list") else list(series)
    found = np.empty(len(listed), dtype=object)
    found[:] = listed
    return found


@dataclass(frozen=True)
class Encoder:
    """Columns to inputs, as learned from the training rows.

    >>> table = np.array([[1.0, 5.0], [3.0, 5.0]])
    >>> encoder = Encoder.learned(Table.of(table), np.ones(2))
    >>> encoder.transform(Table.of(table)).tolist(), encoder.columns[1].note
    ([[-1.0], [1.0]], 'always the same')
    """

    columns: tuple[Column, ...]

    @classmethod
    def learned(cls, table: Table, weight: np.ndarray) -> Encoder:
        found = [
            learn(name, values, weight, categorical)
            for name, values, categorical in zip(table.names, table.values, table.categorical)
        ]
        return cls(tuple(found))

    @property
    def input_names(self) -> list[str]:
        return [name for column in self.columns for name in column.inputs]

    @property
    def column_of(self) -> np.ndarray:
        """For every input, the number of the column it comes from."""
        return np.repeat(np.arange(len(self.columns)), [len(c.inputs) for c in self.columns])

    @property
    def notes(self) -> list[str]:
        """Columns that are left out, were parsed by a guess, are clipped, or contain a sentinel."""
        said = []
        for column in self.columns:
            if column.kind == "dropped":
                said.append(f"Column {column.name!r} is left out: {column.note}.")
            elif column.form or column.limits or column.sentinel is not None:
                said.append(f"Column {column.name!r}: {column.note}.")
        return said

    def transform(self, table: Table) -> np.ndarray:
        """``(rows, inputs)``, float64."""
        # Without any usable column the network still needs an input: a constant one.
        out = np.zeros((len(table), max(1, len(self.input_names))))
        start = 0
        for column, values in zip(self.columns, table.values):
            width = len(column.inputs)
            if width:
                out[:, start : start + width] = encode(column, values)
            start += width
        return out

    def record(self) -> list[dict[str, Any]]:
        """Plain JSON values."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def of_record(cls, record: Sequence[Mapping[str, Any]]) -> Encoder:
        made: list[dict[str, Any]] = [
            {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()} for entry in record
        ]
        return cls(tuple(Column(**entry) for entry in made))


def names_apart(names: Sequence[str]) -> list[str]:
    """Unique names: the second 'x' becomes 'x.2', or the next number that is not taken.

    >>> names_apart(["x", "y", "x"]), names_apart(["x", "x", "x.2"])
    (['x', 'y', 'x.2'], ['x', 'x.3', 'x.2'])
    """
    seen: set[str] = set()
    own = set(names)
    apart = []
    for name in names:
        given, count = name, 1
        while given in seen or (count > 1 and given in own):
            count += 1
            given = f"{name}.{count}"
        seen.add(given)
        apart.append(given)
    return apart


def warn_of_columns(encoder: Encoder, more: Sequence[str] = ()) -> None:
    """Warn once for each kind of problem: columns that vary but are left out, extreme values, sentinels.

    ``more`` are warnings on the target and the sample weights.
    """
    for sentence in more:
        warnings.warn(sentence, ColumnWarning, stacklevel=_CALLER_OF_FIT)
    gone = [c for c in encoder.columns if c.kind == "dropped" and not c.constant]
    words = [c for c in encoder.columns if c.sentinel is not None and not c.limits]
    missing = "a number that may stand for a missing value"
    for columns, one, many in (
        (gone, "is left out", "are left out"),
        ([c for c in encoder.columns if c.limits], "has extreme values", "have extreme values"),
        (words, f"has {missing}", f"have {missing}"),
    ):
        if columns:
            listed = ", ".join(f"{c.name!r} ({c.note})" for c in columns[:_MOST_NAMED])
            rest = len(columns) - _MOST_NAMED
            listed += f" and {rest} more (notes_ has all)" if rest > 0 else ""
            what = f"1 column {one}" if len(columns) == 1 else f"{len(columns)} columns {many}"
            warnings.warn(f"{what}: {listed}.", ColumnWarning, stacklevel=_CALLER_OF_FIT)


# -- checks ---------------------------------------------------------------------------------------------


def checked_table(estimator: Any, X: Any, reset: bool) -> Table:
    """Any kind of table as named columns, with scikit-learn's checks of shape and names."""
    least = 2 if reset else 1
    if isinstance(X, Table):
        _check_names(estimator, X.names, reset)
        return X
    if is_frame(X) or _holds_words(X):
        X = X if is_frame(X) else np.asarray(X, dtype=object)
        given = list(X.columns) if is_frame(X) else []
        if hasattr(X, "get_columns") or len(set(given)) < len(given):
            # Not every scikit-learn reads the names of every polars (older ones would lose them), or
            # takes a frame with two columns of one name.
            _check_names(estimator, tuple(names_apart([str(name) for name in given])), reset)
        else:
            validate_data(estimator, X=X, reset=reset, skip_check_array=True)
        rows = X.shape[0]
        if rows < least:
            found = f"Found array with {rows} sample(s) (shape={X.shape})"
            raise ValueError(f"{found} while a minimum of {least} is required.")
        return Table.of(X)
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
    elif names != tuple(known):
        expected = f"those of training: {', '.join(map(str, known))}"
        raise invalid("columns", type(estimator).__name__, expected, ", ".join(names))


def _holds_words(x: Any) -> bool:
    """Whether an array or list of rows contains text that is not a number."""
    if is_sparse(x) or isinstance(x, Tensor):
        return False
    try:
        array = x if isinstance(x, np.ndarray) else np.asarray(x, dtype=object)
    except ValueError:
        return False
    if array.ndim != 2 or array.dtype.kind not in "OUS":
        return False
    return any(isinstance(v, str) and number_form([v]) != "" for v in array.ravel().tolist())
