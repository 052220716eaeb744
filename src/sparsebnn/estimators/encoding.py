"""A table (array, sparse matrix, pandas or polars frame) to a matrix of inputs, and how to do it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sparsebnn.checks import invalid
from sparsebnn.estimators.columns import Column, encode, learn, names_apart
from sparsebnn.estimators.outlying import NINES

__all__ = ["Encoder", "Table", "is_frame", "is_sparse"]

_MOST_SPARSE_BYTES = 4 << 30


def is_sparse(x: Any) -> bool:
    """Whether this is a scipy.sparse matrix or array; scipy itself need not be there."""
    return hasattr(x, "tocsr") and hasattr(x, "nnz")


def is_frame(x: Any) -> bool:
    """Whether this is a pandas or polars frame (or anything with the same methods), or our own table."""
    framed = hasattr(x, "columns") and (hasattr(x, "iloc") or hasattr(x, "get_columns"))
    return isinstance(x, Table) or framed


@dataclass(frozen=True)
class Table:
    """Named columns of equal length: what every kind of table becomes first.

    ``categorical`` marks columns that are categories whatever their values look like.
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
        # A month or a year counts as the moment it begins.
        return np.asarray(series.dt.to_timestamp())
    if name.startswith(("float", "int", "uint", "bool", "datetime", "date", "timedelta", "duration")):
        # Extension types: their own conversion turns gaps into NaN or NaT, or into objects.
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
        """What a reader must know of the columns: left out, read by a guess, cut off, or oddly coded."""
        said = []
        for column in self.columns:
            if column.kind == "dropped":
                said.append(f"Column {column.name!r} is left out: {column.note}.")
            elif column.form or column.limits or NINES in column.note:
                said.append(f"Column {column.name!r}: {column.note}.")
        return said

    def transform(self, table: Table) -> np.ndarray:
        """``(rows, inputs)``, float64."""
        # Without any usable column the network still needs an input: one that says nothing.
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
