"""A table (array, sparse matrix, pandas or polars frame) to a matrix of inputs."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sparsebnn.checks import check_choice, invalid
from sparsebnn.estimators.columns import (
    Column,
    ColumnWarning,
    MakeSignal,
    encode,
    encode_training,
    learn,
)
from sparsebnn.io.cells import UNITS, labels, to_floats, to_objects

__all__ = [
    "KINDS",
    "Encoder",
    "Table",
    "checked_kinds",
    "counts_rows",
    "is_frame",
    "is_sparse",
    "names_apart",
    "numbers_rows",
    "shared_names",
    "values_of",
    "warn_of_columns",
]

_TYPED = ("float", "int", "uint", "bool", "datetime", "date", "timedelta", "duration")
_MOST_SPARSE_BYTES = 4 << 30
_MOST_NAMED = 10  # columns that a warning names
_CALLER_OF_FIT = 4  # stack level of the line that called ``fit``
KINDS = ("number", "category", "drop", "id")  # how a column may be read; "id" is left out, and names the row
_ROW_NAMES = re.compile(
    r"(?i:(unnamed: ?\d+|column 1|\.\.\.1)?|(row|obs)?[ _.]?(index|idx|id|uid|uuid|guid|names?)?"
    r"|(row|obs)[ _.]?(number|num|nr|no)|.*[ _.]id)|.*[a-z]I[Dd]"
)
_ARRAY_NAME = re.compile(r"x\d+")
_NUMBERS_ROWS = "it has another value in each row and the name of an identifier"
_COUNTS_ROWS = "it counts the rows: leave it out if it is only their number"
_LEAST_COUNTED = 10
_EXACT = 2.0**53  # up to here floats hold all whole numbers


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
        if found.dtype.kind == "f" and "int" in str(series.dtype).lower() and _inexact(found):
            return to_objects(series.to_list())  # whole numbers with gaps, which polars makes floats
        return found if found.dtype.kind in "biufMm" else found.astype(object)
    return to_objects(series.to_list())


def _inexact(values: np.ndarray) -> bool:
    """Whether some are so large that neighboring whole numbers are the same float."""
    return bool((np.abs(values) >= _EXACT).any())


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
    def learned(
        cls,
        table: Table,
        weight: np.ndarray,
        kinds: Mapping[str, str] | None = None,
        make_signal: MakeSignal | None = None,
    ) -> Encoder:
        """``kinds`` overrides how columns are read (:data:`KINDS`); ``make_signal`` returns what
        many levels are coded by.
        """
        found = []
        for name, values, categorical in zip(table.names, table.values, table.categorical):
            kind = (kinds or {}).get(name, "category" if categorical else None)
            if kind in ("drop", "id"):
                found.append(Column(name, "dropped", "as asked for", identifier=kind == "id", asked=True))
            elif kind is None and numbers_rows(name, values):
                found.append(Column(name, "dropped", _NUMBERS_ROWS, identifier=True))
            else:
                column = learn(name, values, weight, kind, make_signal)
                if (kind, column.kind, column.form) == (None, "number", "") and counts_rows(name, values):
                    note = ", ".join(filter(None, [column.note, _COUNTS_ROWS]))
                    column = dataclasses.replace(column, note=note, identifier=True)
                found.append(column)
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
        """A sentence on each column that is left out, clipped, coded by the target, in a unit or doubtful."""
        noted = [c for c in self.columns if _remarkable(c) or c.codes or c.form in UNITS]
        return [_sentence(column) for column in noted]

    def transform_training(self, table: Table, weight: np.ndarray, make_signal: MakeSignal) -> np.ndarray:
        """Like :meth:`transform` for the rows of training: codes of levels do not depend on their own
        target.
        """
        return self._joined(
            table, lambda column, values: encode_training(column, values, weight, make_signal)
        )

    def transform(self, table: Table, free: bool = False) -> np.ndarray:
        """``(rows, inputs)``, float64; ``free`` numbers may lie outside the range of the training rows."""
        return self._joined(table, lambda column, values: encode(column, values, free))

    def _joined(self, table: Table, encode: Callable[[Column, np.ndarray], np.ndarray]) -> np.ndarray:
        # Without any usable column the network still needs an input: a constant one.
        out = np.zeros((len(table), max(1, len(self.input_names))))
        start = 0
        for column, values in zip(self.columns, table.values):
            width = len(column.inputs)
            if width:
                out[:, start : start + width] = encode(column, values)
            start += width
        return out

    def anywhere(self) -> Encoder:
        """The encoder without the range of the training rows, for rows of which more are to come."""
        return Encoder(tuple(dataclasses.replace(column, reach=()) for column in self.columns))

    def record(self) -> list[dict[str, Any]]:
        """Plain JSON values."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def of_record(cls, record: Sequence[Mapping[str, Any]]) -> Encoder:
        known = [field.name for field in dataclasses.fields(Column)]
        made: list[dict[str, Any]] = [
            {k: _tuples(v) for k, v in entry.items() if k in known} for entry in record
        ]
        return cls(tuple(Column(**entry) for entry in made))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def numbers_rows(name: str, values: np.ndarray) -> bool:
    """Whether a column only numbers or names the rows: it has such a name, and no value occurs twice.

    The name is empty, ``id``, ``index``, ``row``, ``rownames``, ``Unnamed: 0`` or the like, or ends in
    ``_id`` or ``ID``; the values are whole numbers or text without gaps.

    >>> numbers_rows("rownames", np.arange(5)), numbers_rows("patient_id", np.array([7, 3, 9]))
    (True, True)
    >>> numbers_rows("id", np.array([1, 1, 2])), numbers_rows("width", np.arange(5))
    (False, False)
    """
    if not _ROW_NAMES.fullmatch(name.strip()):
        return False
    found = labels(values)
    if values.dtype.kind == "f" and not (values == np.round(values)).all():
        return False
    return len(found) > 1 and None not in found and len(set(found.tolist())) == len(found)


def counts_rows(name: str, values: np.ndarray) -> bool:
    """Whether whole numbers rise with the rows from 0 or 1 on, as a row number does; some rows may be held
    out.

    A time of measurement can look the same, so such a column is pointed out and kept. Columns of arrays
    have no names (``x0``, ``x1``, …) and are not looked at.

    >>> rising = np.array([1, 2, 4, 5, 6, 7, 9, 10, 11, 12])
    >>> counts_rows("no", rising), counts_rows("year", 1990 + rising), counts_rows("no", rising[::-1])
    (True, False, False)
    """
    if len(values) < _LEAST_COUNTED or _ARRAY_NAME.fullmatch(name):
        return False
    for some in (values[:_LEAST_COUNTED], values):  # most columns end at a look at the first rows
        found = to_floats(some, "number", "", name)
        rising = bool((np.diff(found) > 0).all() and (found == np.round(found)).all())
        if not (rising and 0 <= found[0] < _LEAST_COUNTED and found[-1] <= 2 * len(values)):
            return False
    return True


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


def shared_names(names: Sequence[str]) -> list[str]:
    """A sentence on each name that several columns have.

    >>> shared_names(["x", "y", "x"])
    ["Several columns are named 'x': they are read as 'x', 'x.2'."]
    """
    read: dict[str, list[str]] = {}
    for name, own in zip(names, names_apart(names)):
        read.setdefault(name, []).append(own)
    return [
        f"Several columns are named {name!r}: they are read as {', '.join(map(repr, own))}."
        for name, own in read.items()
        if len(own) > 1
    ]


def _remarkable(column: Column) -> bool:
    doubtful = column.identifier or column.doubtful or bool(column.limits) or column.sentinel is not None
    return column.kind == "dropped" or doubtful


def _sentence(column: Column) -> str:
    return f"Column {column.name!r}{' is left out' if column.kind == 'dropped' else ''}: {column.note}."


def warn_of_columns(encoder: Encoder, more: Sequence[str] = ()) -> None:
    """Warn of columns that vary but are left out, of doubtful values, and of ``more``, in one warning."""
    named = [c for c in encoder.columns if _remarkable(c) and not (c.constant or c.asked)]
    said = [*more, *map(_sentence, named)]
    if said:
        rest = f" And {len(said) - _MOST_NAMED} more: see notes_." if len(said) > _MOST_NAMED else ""
        warnings.warn(" ".join(said[:_MOST_NAMED]) + rest, ColumnWarning, stacklevel=_CALLER_OF_FIT)


def checked_kinds(kinds: Any, names: Sequence[str], owner: str) -> dict[str, str]:
    """How columns are to be read, by name."""
    if kinds is not None and not isinstance(kinds, Mapping):
        advice = "For example {'zip': 'category', 'id': 'drop'}."
        raise invalid("column_kinds", owner, "a dict of columns", repr(kinds), advice)
    for name, kind in (kinds or {}).items():
        check_choice(name, names, "column_kinds", owner)
        check_choice(kind, KINDS, f"column_kinds[{name!r}]", owner)
    return dict(kinds or {})
