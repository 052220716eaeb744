"""Cells of a table: which are missing, which are numbers, dates or levels. NumPy converts text."""

from __future__ import annotations

import datetime
import functools
import numbers
import re
import warnings
from collections import Counter
from typing import Any

import numpy as np

from sparsebnn.checks import invalid

MISSING = (
    "",
    "na",
    "n/a",
    "#n/a",
    "<na>",
    "nan",
    "null",
    "none",
    "?",
    ".",
)  # among numbers and dates, in upper or lower case
_TRUTHS = {"true": 1.0, "false": 0.0}
_ISO = re.compile(r"\d{4}-\d{2}(-\d{2})?")
_DATES = [
    *("%Y/%m", "%m/%Y"),
    *(
        date + time
        for date in ("%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%d.%m.%Y", "%Y/%m/%d")
        for time in ("", " %H:%M", " %H:%M:%S")
    ),
]
_CLOCK = re.compile(r"(\d{1,4}):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?")
SIGNED = {"%": "45%", "h:m": "14:30", "h:m:s": "14:30:00"}  # text that is a number, with an example
UNITS = {"%": "percent", "h:m": "hours", "h:m:s": "hours"}
MOSTLY = 0.9  # with this share of numbers, other cells are reported as mistakes
SIGNS = re.compile(r"[\s,'’$€£¥%]")  # thousands separators, currency and percent signs


def absent(value: Any) -> bool:
    """Whether an entry is missing: None, NaN, NaT, pandas' NA or an empty string."""
    if isinstance(value, str):
        return not value.strip()
    if value is None or type(value).__name__ == "NAType":
        return True
    return getattr(value, "ndim", 0) == 0 and bool(value != value)


def label(value: Any) -> str:
    """The name of a level, without white space around it; 1, 1.0 and numpy's 1 have the same name.

    >>> label(1.0), label("a "), label(True), label(2**60 + 1)
    ('1', 'a', 'True', '1152921504606846977')
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return str(value).strip()
    if isinstance(value, numbers.Integral):
        return str(int(value))
    return str(int(float(value))) if float(value).is_integer() else str(value)


def labels(values: np.ndarray) -> np.ndarray:
    """The level of each value, None where it is missing."""
    return to_objects([None if absent(v) else label(v) for v in values.tolist()])


def to_objects(cells: list[Any]) -> np.ndarray:
    found = np.empty(len(cells), dtype=object)
    found[:] = cells
    return found


def kind_of(values: np.ndarray) -> tuple[str, str]:
    """``number``, ``date`` or ``category``, and how text is written: the ``strptime`` format of dates that
    are not ISO dates, one of :data:`SIGNED` for percentages and times of day.

    Dates are ``ambiguous`` if no row tells day and month apart.

    >>> kind_of(to_objects(["00200", "?", "1e3"])), kind_of(to_objects(["2024-05-31 14:00", None]))
    (('number', ''), ('date', ''))
    >>> kind_of(to_objects(["31/05/2024", "01/02/2024"])), kind_of(to_objects(["01/02/2024"]))
    (('date', '%d/%m/%Y'), ('ambiguous', ''))
    >>> kind_of(to_objects(["4.5%", "12 %"])), kind_of(to_objects(["9:30", "14:05"]))
    (('number', '%'), ('number', 'h:m'))
    """
    if _fits(values, "number"):
        return "number", ""
    if _fits(values, "date"):
        return "date", ""
    signed = [form for form in SIGNED if _fits(values, "number", form)]
    if signed:
        return "number", signed[0]
    forms = [form for form in _DATES if _fits(values, "date", form)]
    if len(forms) > 1:
        return "ambiguous", ""
    return ("date", forms[0]) if forms else ("category", "")


def among_numbers(values: np.ndarray) -> Counter[str]:
    """The text in a column that is otherwise numbers, with its counts; empty if fewer than nine tenths of
    the cells are numbers, with or without thousands separators and signs.

    >>> among_numbers(to_objects(["$1,200", *range(9)])), among_numbers(to_objects(["low", 1, 2]))
    (Counter({'$1,200': 1}), Counter())
    """
    cells = [str(v) for v in _known(values) if v is not None]
    numeric = sum(number_of(SIGNS.sub("", cell)) is not None for cell in cells)
    if numeric < max(1.0, MOSTLY * len(cells)):
        return Counter()
    return Counter(cell for cell in cells if number_of(cell) is None)


def number_of(text: str) -> float | None:
    """The number that text is, None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def to_floats(values: np.ndarray, kind: str, form: str, name: str, asked: bool = False) -> np.ndarray:
    """Numbers, durations in seconds, or dates in days since 1970 as float64; NaN where missing.

    Truth values written as text, as in CSV files that pandas writes, are 1 and 0. Percentages are the number
    before the sign, times of day are hours; cells that are numbers already stay as they are. ``asked`` is for
    messages: the column is read as ``kind`` on request, not because it was so in training.

    >>> to_floats(to_objects(["True", "False", ""]), "number", "", "smoker")
    array([ 1.,  0., nan])
    >>> to_floats(to_objects(["14:30", None]), "number", "h:m", "departure")
    array([14.5,  nan])
    """
    try:
        found = _converted(_truths(values) if kind == "number" else values, kind, form)
    except (TypeError, ValueError):
        bad = next(i for i in range(len(values)) if not _fits(values[i : i + 1], kind, form))
        example = SIGNED.get(form) or f"{datetime.date(2024, 5, 31):{form}}"
        shown = f", such as {example}" if form else ""
        why, advice = "in training", ""
        if asked:
            why, advice = "asked for", "Correct or empty such cells, or read the column as a category."
        raise invalid(name, "the table", f"{kind}s, as {why}{shown}", repr(values[bad]), advice) from None
    if np.isinf(found).any():
        advice = "Replace infinite values, or leave them empty."
        raise invalid(name, "the table", "finite", "infinity", advice)
    return found


def _fits(values: np.ndarray, kind: str, form: str = "") -> bool:
    try:
        _converted(values, kind, form)
    except (TypeError, ValueError):
        return False
    return True


def _converted(values: np.ndarray, kind: str, form: str) -> np.ndarray:
    if kind == "date":
        moments = values if values.dtype.kind == "M" else _dates(values, form)
        moments = moments.astype("datetime64[ms]")
        return np.where(np.isnat(moments), np.nan, moments.astype(np.float64) / 86_400_000.0)
    if values.dtype.kind == "m":
        return values / np.timedelta64(1, "s")
    if values.dtype.kind == "M":
        raise TypeError("dates are not numbers")
    return values.astype(np.float64) if values.dtype.kind in "biuf" else _numbers(values, form)


def _truths(values: np.ndarray) -> np.ndarray:
    """The same values, but 1 and 0 for "true" and "false", in any case, if there is nothing else."""
    if values.dtype.kind not in "OUS":
        return values
    cells = _known(values)
    if not all(v is None or isinstance(v, bool) or str(v).lower() in _TRUTHS for v in cells):
        return values
    return to_objects([v if v is None or isinstance(v, bool) else _TRUTHS[str(v).lower()] for v in cells])


def _known(values: np.ndarray) -> list[Any]:
    """The cells, None where they are missing or say so."""
    cells = [v.strip() if isinstance(v, str) else v for v in values.tolist()]
    return [None if absent(v) or (isinstance(v, str) and v.lower() in MISSING) else v for v in cells]


def _numbers(values: np.ndarray, form: str) -> np.ndarray:
    cells = _known(values)
    if form:
        cells = [_unsigned(v, form) if isinstance(v, str | datetime.time) else v for v in cells]
    if any(isinstance(v, np.datetime64) or (isinstance(v, str) and "_" in v) for v in cells):
        raise ValueError("float() would accept dates and text such as 2000_01")
    return to_objects(cells).astype(np.float64)


def _unsigned(cell: str | datetime.time, form: str) -> str | float:
    """A percentage without its sign, or a time in hours."""
    text = str(cell)
    if form == "%":
        if not text.endswith("%"):
            raise ValueError("a percent sign is missing")
        return text[:-1]
    found = _CLOCK.fullmatch(text)
    if found is None or (found[3] is not None) != (form == "h:m:s"):
        raise ValueError("no time of day")
    return int(found[1]) + int(found[2]) / 60.0 + float(found[3] or 0.0) / 3600.0


def _dates(values: np.ndarray, form: str) -> np.ndarray:
    cells = [_parsed(v, form) if isinstance(v, str) and not _ISO.match(v) else v for v in _known(values)]
    if not all(isinstance(v, str | datetime.date | np.datetime64 | None) for v in cells):
        raise TypeError("NumPy would read numbers as dates")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # NumPy converts zones to UTC
        return to_objects(cells).astype("datetime64[ms]")


@functools.lru_cache(maxsize=65536)
def _parsed(text: str, form: str) -> datetime.datetime:
    return datetime.datetime.strptime(text, form)
