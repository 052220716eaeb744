"""One column of a table: what kind it is, and its values as standardised numbers.

Numbers are standardised, words become one input per level, dates become time and season. A value that
is missing counts as the average of its column, and a column with gaps in training gets one more input
that says where they are.
"""

from __future__ import annotations

import datetime
import math
import numbers
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsebnn.checks import InvalidInput, invalid

__all__ = ["Column", "absent", "encode", "label", "learn"]

_LEVELS = 30  # more become "all others"
_LEAST_STD = 0.1  # an indicator that is nearly always 0 must not become a huge number
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?)?")
_DAY = 86400.0
_YEAR = 365.2425


@dataclass(frozen=True)
class Column:
    """How a column becomes inputs, learned from the training rows; plain values, so JSON can hold it.

    ``centre`` and ``scale`` standardise each input of the column. A column of kind ``dropped`` has none.
    """

    name: str
    kind: str
    note: str = ""
    levels: tuple[str, ...] = ()
    gaps: bool = False
    centre: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs this column becomes."""
        if self.kind == "dropped":
            return ()
        if self.kind == "number":
            own: tuple[str, ...] = (self.name,)
        elif self.kind == "date":
            own = (f"{self.name} (time)", f"{self.name} (season, sine)", f"{self.name} (season, cosine)")
        else:
            own = tuple(f"{self.name}={level}" for level in self.levels)
        return (*own, f"{self.name} missing") if self.gaps else own


def absent(value: Any) -> bool:
    """Whether an entry is missing: None, NaN, NaT, pandas' NA or an empty string."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, str):
        return not value.strip()
    return isinstance(value, float) and math.isnan(value)


def label(value: Any) -> str:
    """A level's name: the same for 1, 1.0 and numpy's 1.

    >>> label(1.0), label("a"), label(True)
    ('1', 'a', 'True')
    """
    if isinstance(value, bool | np.bool_ | str):
        return str(value)
    if isinstance(value, numbers.Real) and float(value).is_integer():
        return str(int(float(value)))
    return str(value)


# -- raw values ---------------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    if isinstance(value, numbers.Real | np.bool_):
        return True
    if not isinstance(value, str):
        return type(value).__name__ == "Decimal"
    try:
        float(value)
    except ValueError:
        return False
    return True


def _is_date(value: Any) -> bool:
    if isinstance(value, datetime.date | np.datetime64):
        return True
    return isinstance(value, str) and _ISO.fullmatch(value.strip()) is not None


def _kind_of(values: np.ndarray, categorical: bool) -> str:
    if categorical:
        return "category"
    if values.dtype.kind in "biufm":
        return "number"
    if values.dtype.kind == "M":
        return "date"
    there = [v for v in values.tolist() if not absent(v)]
    if there and all(map(_is_date, there)):
        return "date"
    return "number" if all(map(_is_number, there)) else "category"


def _floats(values: np.ndarray, name: str) -> np.ndarray:
    """Numbers as float64, gaps as NaN."""
    if values.dtype.kind == "m":
        seconds = values.astype("timedelta64[s]").astype(np.float64)
        return np.where(np.isnat(values), np.nan, seconds)
    if values.dtype.kind in "biuf":
        found = values.astype(np.float64)
    else:
        found = np.array([_float(v, name) for v in values.tolist()], dtype=np.float64)
    if np.isinf(found).any():
        raise _unusable(name, "finite", "infinity", "Replace infinite values, or leave them empty.")
    return found


def _float(value: Any, name: str) -> float:
    if absent(value):
        return math.nan
    if isinstance(value, dict | list | tuple | set):
        raise TypeError(
            f"Each value of column {name!r} must be a number: "
            f"float() argument must be a string or a real number, not {type(value).__name__!r}"
        )
    if not _is_number(value):
        advice = "In training this column held numbers only."
        raise _unusable(name, "numbers", repr(value), advice)
    return float(value)


def _days(values: np.ndarray, name: str) -> np.ndarray:
    """Dates as days since 1970, gaps as NaN."""
    if values.dtype.kind == "M":
        seconds = values.astype("datetime64[ms]")
        return np.where(np.isnat(seconds), np.nan, seconds.astype(np.float64) / (1000.0 * _DAY))
    return np.array([_day(v, name) for v in values.tolist()], dtype=np.float64)


def _day(value: Any, name: str) -> float:
    if absent(value):
        return math.nan
    if not _is_date(value):
        advice = "In training this column held dates only, such as 2024-05-31 or 2024-05-31 14:00."
        raise _unusable(name, "dates", repr(value), advice)
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    text = value.strip().replace(" ", "T") if isinstance(value, str) else value
    try:
        return float(np.datetime64(text, "ms").astype(np.int64)) / (1000.0 * _DAY)
    except ValueError as error:
        raise _unusable(name, "dates", repr(value)) from error


def _unusable(name: str, expected: str, got: str, advice: str = "") -> InvalidInput:
    return invalid(name, "the table", expected, got, advice)


def _labels(values: np.ndarray) -> list[str | None]:
    return [None if absent(v) else label(v) for v in values.tolist()]


# -- kinds to inputs ----------------------------------------------------------------------------------


def _raw_inputs(column: Column, values: np.ndarray) -> np.ndarray:
    """``(rows, inputs)`` before standardising; NaN where the value is missing."""
    if column.kind == "number":
        own = _floats(values, column.name)[:, None]
    elif column.kind == "date":
        days = _days(values, column.name)
        turn = 2.0 * np.pi * days / _YEAR
        own = np.stack([days, np.sin(turn), np.cos(turn)], axis=1)
    else:
        place = {level: i for i, level in enumerate(column.levels)}
        found = _labels(values)
        own = np.zeros((len(found), len(place)))
        for row, level in enumerate(found):
            if level is None:
                own[row] = np.nan
            elif level in place:
                own[row, place[level]] = 1.0
    if not column.gaps:
        return own
    return np.concatenate([own, np.isnan(own[:, :1]).astype(np.float64)], axis=1)


def encode(column: Column, values: np.ndarray) -> np.ndarray:
    """``(rows, inputs)`` standardised numbers; a missing value becomes 0, the average."""
    if column.kind == "dropped":
        return np.empty((len(values), 0))
    raw = _raw_inputs(column, values)
    scaled = (raw - np.array(column.centre)) / np.array(column.scale)
    return np.nan_to_num(scaled, copy=False, nan=0.0)


def learn(name: str, values: np.ndarray, weight: np.ndarray, categorical: bool = False) -> Column:
    """What a column is and how it becomes inputs, from the training rows."""
    kind = _kind_of(values, categorical)
    if kind == "category":
        return _learn_category(name, values, weight)
    known = _days(values, name) if kind == "date" else _floats(values, name)
    gaps = np.isnan(known)
    if gaps.all():
        return Column(name, "dropped", "always missing")
    low, high = known[~gaps].min(), known[~gaps].max()
    if low == high and not gaps.any():
        return Column(name, "dropped", "always the same")
    if low == high:
        note = f"always the same or missing ({gaps.mean():.0%})"
    else:
        note = f"missing in {gaps.mean():.1%} of the rows" if gaps.any() else ""
    column = Column(name, kind, note, gaps=bool(gaps.any()))
    return _standardised(column, values, weight)


def _learn_category(name: str, values: np.ndarray, weight: np.ndarray) -> Column:
    found = _labels(values)
    counts = Counter(level for level in found if level is not None)
    gaps = any(level is None for level in found)
    if not counts:
        return Column(name, "dropped", "always missing")
    if len(counts) == 1 and not gaps:
        return Column(name, "dropped", "always the same")
    if len(counts) > max(_LEVELS, len(found) // 2):
        return Column(name, "dropped", f"{len(counts)} different words, nearly one per row")
    # The most frequent first; the order of equals must not depend on the order of the rows.
    ordered = sorted(counts, key=lambda level: (-counts[level], level))
    note = f"{len(counts)} levels"
    if len(ordered) > _LEVELS:
        note += f", the {_LEVELS} most frequent told apart"
    kept = ordered[:_LEVELS] if len(ordered) != 2 else ordered[1:]
    if gaps:
        note += f", missing in {sum(level is None for level in found) / len(found):.1%} of the rows"
    return _standardised(Column(name, "category", note, tuple(sorted(kept)), gaps), values, weight)


def _standardised(column: Column, values: np.ndarray, weight: np.ndarray) -> Column:
    """The same column with the centre and scale of its inputs."""
    raw = _raw_inputs(column, values)
    plain = 0 if column.kind == "category" else raw.shape[1] - int(column.gaps)
    centre, scale = [], []
    for i in range(raw.shape[1]):
        there = ~np.isnan(raw[:, i])
        x, w = raw[there, i], weight[there]
        # Squares of very large or very small numbers would leave the range of floats.
        unit = float(np.abs(x).max()) or 1.0
        middle = float(np.average(x / unit, weights=w))
        std = unit * math.sqrt(float(np.average((x / unit - middle) ** 2, weights=w)))
        middle = unit * middle
        if i >= plain:
            std = max(std, _LEAST_STD)
        elif not std > 1e-9 * max(abs(middle), 1e-300):
            std = 1.0
        centre.append(middle)
        scale.append(std)
    return Column(
        column.name, column.kind, column.note, column.levels, column.gaps, tuple(centre), tuple(scale)
    )


def names_apart(names: Sequence[str]) -> list[str]:
    """Names told apart: the second 'x' becomes 'x.2', or the next number that is nobody's name.

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
