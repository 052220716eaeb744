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
from sparsebnn.estimators.columns import Column, ColumnWarning, encode, learn, to_objects

__all__ = [
    "Encoder",
    "Table",
    "checked_table",
    "is_frame",
    "is_sparse",
    "names_apart",
    "values_of",
    "warn_of_columns",
]

_TYPED = ("float", "int", "uint", "bool", "datetime", "date", "timedelta", "duration")
_MOST_SPARSE_BYTES = 4 << 30
_MOST_NAMED = 10  # columns that a warning names
_CALLER_OF_FIT = 4  # stack level of the line that called ``fit``


def is_sparse(x: Any) -> bool:
    """Whether this is a scipy.sparse matrix or array, without importing scipy."""
    return hasattr(x, "tocsr") and hasattr(x, "nnz")


def is_frame(x: Any) -> bool:
    """Whether this is a pandas or polars frame (or has the same methods)."""
    return hasattr(x, "columns") and (hasattr(x, "iloc") or hasattr(x, "get_columns"))


@dataclass(frozen=True)
class Table:
    """Named columns of equal length, the common form of all input types.

    ``categorical`` marks columns that are categorical whatever their values are.
    """

    names: tuple[str, ...]
    values: tuple[np.ndarray, ...]
    categorical: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.values[0]) if self.values else 0

    def rows(self, index: Any) -> Table:
        """Some of the rows."""
        return Table(self.names, tuple(v[index] for v in self.values), self.categorical)

    @classmethod
    def of(cls, x: Any) -> Table:
        """The columns of a frame, a sparse matrix, or a two-dimensional array."""
        if not is_frame(x):
            array = _dense(x) if is_sparse(x) else np.asarray(x)
            count = array.shape[1]
            return cls(tuple(f"x{i}" for i in range(count)), tuple(array.T), (False,) * count)
        polars = hasattr(x, "get_columns")
        series = x.get_columns() if polars else [x.iloc[:, i] for i in range(x.shape[1])]
        kinds = [str(s.dtype).lower().startswith(("categor", "enum")) for s in series]
        names = names_apart([str(name) for name in x.columns])
        return cls(tuple(names), tuple(map(values_of, series)), tuple(kinds))


def _dense(x: Any) -> np.ndarray:
    size = 8 * x.shape[0] * x.shape[1]
    if size > _MOST_SPARSE_BYTES:
        got = f"one that takes {size / 2**30:.1f} GiB with its zeros"
        advice = "Reduce its columns first, for example by TruncatedSVD."
        raise invalid("X", "fit", "a sparse matrix of at most 4 GiB with its zeros", got, advice)
    return np.asarray(x.toarray())


def values_of(series: Any) -> np.ndarray:
    """A column of a frame as a numpy array: numbers, dates and durations as such, all else as objects."""
    if str(series.dtype).startswith("period"):
        series = series.dt.to_timestamp()  # a month or a year becomes its first moment
    elif str(series.dtype) == "object":
        series = series.infer_objects() if hasattr(series, "infer_objects") else series
    if str(series.dtype).lower().startswith(_TYPED):
        # Extension types convert gaps to NaN, NaT or objects.
        found = np.asarray(series.to_numpy())
        return found if found.dtype.kind in "biufMm" else found.astype(object)
    return to_objects(series.to_list())


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
        """A sentence on each column that is left out, is clipped, or has a number that may mean "missing"."""
        return [_sentence(column) for column in self.columns if _remarkable(column)]

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
        known = [field.name for field in dataclasses.fields(Column)]
        made: list[dict[str, Any]] = [
            {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items() if k in known}
            for entry in record
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


def _remarkable(column: Column) -> bool:
    return column.kind == "dropped" or bool(column.limits) or column.sentinel is not None


def _sentence(column: Column) -> str:
    return f"Column {column.name!r}{' is left out' if column.kind == 'dropped' else ''}: {column.note}."


def warn_of_columns(encoder: Encoder, more: Sequence[str] = ()) -> None:
    """Warn of columns that vary but are left out, of doubtful values, and of ``more``, in one warning."""
    named = [column for column in encoder.columns if _remarkable(column) and not column.constant]
    said = [*more, *map(_sentence, named)]
    if said:
        rest = f" And {len(said) - _MOST_NAMED} more: see notes_." if len(said) > _MOST_NAMED else ""
        warnings.warn(" ".join(said[:_MOST_NAMED]) + rest, ColumnWarning, stacklevel=_CALLER_OF_FIT)


# -- checks ---------------------------------------------------------------------------------------------


def checked_table(estimator: Any, X: Any, reset: bool) -> Table:
    """Any kind of table as named columns, with scikit-learn's checks of shape and names."""
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
        if X.shape[0] < least:
            found = f"Found array with {X.shape[0]} sample(s) (shape={X.shape})"
            raise ValueError(f"{found} while a minimum of {least} is required.")
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
    elif names != tuple(known):
        expected = f"those of training: {', '.join(map(str, known))}"
        raise invalid("columns", type(estimator).__name__, expected, ", ".join(names))


def _holds_text(x: Any) -> bool:
    """Whether an array or a list of rows contains text."""
    if is_sparse(x) or isinstance(x, Tensor):
        return False
    try:
        array = x if isinstance(x, np.ndarray) else np.asarray(x, dtype=object)
    except ValueError:
        return False
    return array.ndim == 2 and array.dtype.kind in "OU" and any(isinstance(v, str) for v in array.flat)
