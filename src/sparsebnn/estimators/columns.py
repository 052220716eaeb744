"""One column of a table: what kind it is, and its values as standardised numbers.

Numbers are standardised, words become one input per level, dates become time and season, durations
seconds. A value that is missing counts as the average of its column, and a column with gaps in training gets
one more input that says where they are. A word that training never saw is none of the levels; in a column of
two levels, which share one input, it counts as the average. Values so far off that they alone would set a
column's scale (:mod:`sparsebnn.estimators.outlying`) are moved up to a limit.
"""

from __future__ import annotations

import datetime
import math
import numbers
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsebnn.checks import InvalidInput, invalid
from sparsebnn.estimators import spelling
from sparsebnn.estimators.outlying import NINES, far_limits, middle_and_std, nines
from sparsebnn.estimators.spelling import DAY

__all__ = [
    "CONSTANT",
    "Column",
    "ColumnWarning",
    "absent",
    "encode",
    "label",
    "learn",
    "strange_levels",
]

_LEVELS = 30  # more become "all others"
_LEAST_STD = 0.1  # an indicator that is nearly always 0 must not become a huge number
_YEAR = 365.2425


_FAR = "{} far off (from {} to {}): what is below {} or above {} counts as that"

# Why a column that says nothing is left out.
CONSTANT = "always the same"


class ColumnWarning(UserWarning):
    """Columns of a table that were left out, have values far off, or a number that may mean "missing"."""


@dataclass(frozen=True)
class Column:
    """How a column becomes inputs, learned from the training rows; plain values, so JSON can hold it.

    ``centre`` and ``scale`` standardise each input of the column. A column of kind ``dropped`` has none.
    ``reference`` is the level without an input of its own, where there are two; ``form`` says how words
    spell the column's numbers, codes or dates (:mod:`sparsebnn.estimators.spelling`). ``limits`` are those
    of a column with values far off, lowest and highest.
    """

    name: str
    kind: str
    note: str = ""
    levels: tuple[str, ...] = ()
    gaps: bool = False
    centre: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    reference: str | None = None
    form: str = ""
    limits: tuple[float, ...] = ()

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
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
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
    """Whether a value that is no word is a number, or a duration."""
    kinds = (numbers.Real, np.bool_, datetime.timedelta, np.timedelta64)
    return isinstance(value, kinds) or type(value).__name__ == "Decimal"


def _is_date(value: Any) -> bool:
    return isinstance(value, datetime.date | np.datetime64)


def _kind_of(values: np.ndarray, categorical: bool) -> tuple[str, str, str]:
    """What a column is, how its words spell that, and a note on it if that is not the usual way."""
    if categorical:
        return "category", "", ""
    if values.dtype.kind in "biufm":
        return "number", "", ""
    if values.dtype.kind == "M":
        return "date", "", ""
    there = [v for v in values.tolist() if not absent(v)]
    texts = [v for v in there if isinstance(v, str)]
    others = [v for v in there if not isinstance(v, str)]
    if there and all(map(_is_date, others)) and (dates := spelling.date_form(texts)) is not None:
        form, sure = dates
        order = {"day first": "day/month/year", "month first": "month/day/year"}.get(form)
        note = "" if order is None else f"dates are read as {order}"
        return "date", form, note if sure else f"{note}, which no row confirms"
    if all(map(_is_number, others)) and (form_of_numbers := spelling.number_form(texts)) is not None:
        note = "commas are read as decimal commas" if form_of_numbers == "comma" else ""
        return "number", form_of_numbers, note
    code = spelling.codes(texts)
    if code is not None and all(map(_is_number, others)):
        return "category", "code", f"numbers with leading zeros, such as {code!r}, are read as codes"
    return "category", "", ""


def _floats(values: np.ndarray, name: str, form: str) -> np.ndarray:
    """Numbers as float64, durations in seconds, gaps as NaN."""
    if values.dtype.kind == "m":
        return values / np.timedelta64(1, "s")
    if values.dtype.kind in "biuf":
        found = values.astype(np.float64)
    else:
        found = np.array([_float(v, name, form) for v in values.tolist()], dtype=np.float64)
    if np.isinf(found).any():
        raise _unusable(name, "finite", "infinity", "Replace infinite values, or leave them empty.")
    return found


def _float(value: Any, name: str, form: str) -> float:
    if absent(value):
        return math.nan
    if isinstance(value, dict | list | tuple | set):
        raise TypeError(
            f"Each value of column {name!r} must be a number: "
            f"float() argument must be a string or a real number, not {type(value).__name__!r}"
        )
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, np.timedelta64):
        return float(value / np.timedelta64(1, "s"))
    found = spelling.number(value, form) if isinstance(value, str) else None
    if found is None and not _is_number(value):
        advice = "In training this column held numbers only."
        raise _unusable(name, "numbers", repr(value), advice)
    return float(value) if found is None else found


def _days(values: np.ndarray, name: str, form: str) -> np.ndarray:
    """Dates as days since 1970, gaps as NaN."""
    if values.dtype.kind == "M":
        seconds = values.astype("datetime64[ms]")
        return np.where(np.isnat(seconds), np.nan, seconds.astype(np.float64) / (1000.0 * DAY))
    return np.array([_day(v, name, form) for v in values.tolist()], dtype=np.float64)


def _day(value: Any, name: str, form: str) -> float:
    if absent(value):
        return math.nan
    if isinstance(value, str):
        found = spelling.days(value, form)
        if found is not None:
            return found
    elif _is_date(value):
        if isinstance(value, datetime.datetime) and value.tzinfo is not None:
            value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
        return float(np.datetime64(value, "ms").astype(np.int64)) / (1000.0 * DAY)
    advice = f"In training this column held dates only, such as {spelling.DATE_EXAMPLES[form]}."
    raise _unusable(name, "dates", repr(value), advice)


def _unusable(name: str, expected: str, got: str, advice: str = "") -> InvalidInput:
    return invalid(name, "the table", expected, got, advice)


def _labels(values: np.ndarray) -> list[str | None]:
    return [None if absent(v) else label(v) for v in values.tolist()]


# -- kinds to inputs ----------------------------------------------------------------------------------


def _raw_inputs(column: Column, values: np.ndarray) -> np.ndarray:
    """``(rows, inputs)`` before standardising; NaN where the value is missing."""
    if column.kind == "number":
        own = _floats(values, column.name, column.form)[:, None]
    elif column.kind == "date":
        days = _days(values, column.name, column.form)
        turn = 2.0 * np.pi * days / _YEAR
        own = np.stack([days, np.sin(turn), np.cos(turn)], axis=1)
    else:
        return _indicators(column, values)
    if column.limits:
        low, high = column.limits
        own[:, 0] = np.clip(own[:, 0], low, high)
    if not column.gaps:
        return own
    return np.concatenate([own, np.isnan(own[:, :1]).astype(np.float64)], axis=1)


def _indicators(column: Column, values: np.ndarray) -> np.ndarray:
    """One input per level, and one for gaps if training had any."""
    place = {level: i for i, level in enumerate(column.levels)}
    found = _labels(values)
    own = np.zeros((len(found), len(place)))
    for row, level in enumerate(found):
        if level is None:
            own[row] = np.nan
        elif level in place:
            own[row, place[level]] = 1.0
        elif column.reference is not None and level != column.reference:
            # All zeros would be the other level: a word that is neither stands between the two.
            own[row] = np.nan
    if not column.gaps:
        return own
    missing = np.array([level is None for level in found], dtype=np.float64)
    return np.concatenate([own, missing[:, None]], axis=1)


def strange_levels(column: Column, values: np.ndarray) -> Counter[str]:
    """Words that training did not have and how often they occur; none where rare ones were put together.

    >>> column = learn("w", np.array(["Yes", "No", "No"], dtype=object), np.ones(3))
    >>> strange_levels(column, np.array(["yes", "No", "yes"], dtype=object))
    Counter({'yes': 2})
    """
    if column.kind != "category" or len(column.levels) >= _LEVELS:
        return Counter()
    known = {*column.levels, column.reference}
    return Counter(level for level in _labels(values) if level is not None and level not in known)


def encode(column: Column, values: np.ndarray) -> np.ndarray:
    """``(rows, inputs)`` standardised numbers; a missing value becomes 0, the average."""
    if column.kind == "dropped":
        return np.empty((len(values), 0))
    raw = _raw_inputs(column, values)
    scaled = (raw - np.array(column.centre)) / np.array(column.scale)
    return np.nan_to_num(scaled, copy=False, nan=0.0)


def learn(name: str, values: np.ndarray, weight: np.ndarray, categorical: bool = False) -> Column:
    """What a column is and how it becomes inputs, from the training rows."""
    kind, form, remark = _kind_of(values, categorical)
    if kind == "category":
        return _learn_category(name, values, weight, form, remark)
    known = _days(values, name, form) if kind == "date" else _floats(values, name, form)
    gaps = np.isnan(known)
    if gaps.all():
        return Column(name, "dropped", "always missing")
    low, high = known[~gaps].min(), known[~gaps].max()
    if low == high and not gaps.any():
        return Column(name, "dropped", CONSTANT)
    if low == high:
        note = f"always the same or missing ({gaps.mean():.0%})"
    else:
        note = f"missing in {gaps.mean():.1%} of the rows" if gaps.any() else ""
    bounds = far_limits(known[~gaps], weight[~gaps])
    if bounds:
        far = int(((known[~gaps] < bounds[0]) | (known[~gaps] > bounds[1])).sum())
        ends = [_shown(value, kind) for value in (low, high, *bounds)]
        count = "1 value is" if far == 1 else f"{far} values are"
        remark = ", ".join(filter(None, (remark, _FAR.format(count, *ends))))
    word = nines(known[~gaps]) if kind == "number" else None
    if word is not None:
        share = np.mean(known[~gaps] == word)
        remark = ", ".join(filter(None, (remark, f"{word:g} in {share:.1%} of the rows, {NINES}")))
    note = ", ".join(filter(None, (note, remark)))
    column = Column(name, kind, note, gaps=bool(gaps.any()), form=form, limits=bounds)
    return _standardised(column, values, weight)


def _shown(value: float, kind: str) -> str:
    return f"{value:.4g}" if kind == "number" else str(np.datetime64(math.floor(value), "D"))


def _learn_category(name: str, values: np.ndarray, weight: np.ndarray, form: str, remark: str) -> Column:
    found = _labels(values)
    counts = Counter(level for level in found if level is not None)
    gaps = any(level is None for level in found)
    if not counts:
        return Column(name, "dropped", "always missing")
    if len(counts) == 1 and not gaps:
        return Column(name, "dropped", CONSTANT)
    if len(counts) > max(_LEVELS, len(found) // 2):
        note = f"{len(counts)} different words, nearly one per row"
        if spelling.may_be_thousands(list(counts)):
            note += "; their commas may be decimal or stand before thousands: write numbers without"
        note += f"; {remark}" if remark else ""
        return Column(name, "dropped", note)
    # The most frequent first; the order of equals must not depend on the order of the rows.
    ordered = sorted(counts, key=lambda level: (-counts[level], level))
    note = f"{len(counts)} levels"
    if len(ordered) > _LEVELS:
        note += f", the {_LEVELS} most frequent told apart"
    kept = ordered[:_LEVELS] if len(ordered) != 2 else ordered[1:]
    if gaps:
        note += f", missing in {sum(level is None for level in found) / len(found):.1%} of the rows"
    note = ", ".join(filter(None, (note, remark)))
    reference = ordered[0] if len(ordered) == 2 else None
    column = Column(name, "category", note, tuple(sorted(kept)), gaps, reference=reference, form=form)
    return _standardised(column, values, weight)


def _standardised(column: Column, values: np.ndarray, weight: np.ndarray) -> Column:
    """The same column with the centre and scale of its inputs."""
    raw = _raw_inputs(column, values)
    plain = 0 if column.kind == "category" else raw.shape[1] - int(column.gaps)
    centre, scale = [], []
    for i in range(raw.shape[1]):
        there = ~np.isnan(raw[:, i])
        middle, std = middle_and_std(raw[there, i], weight[there])
        if i >= plain:
            std = max(std, _LEAST_STD)
        centre.append(middle)
        scale.append(std)
    return replace(column, centre=tuple(centre), scale=tuple(scale))


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
