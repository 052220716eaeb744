"""Text to numbers and dates. The format is chosen once per column and applies to every row.

Numbers have a decimal point, or a decimal comma if all training rows of the column agree. Dates are ISO
(``2024-05-31``, optionally with a time and a zone), or have the year last; the training rows decide whether
day or month comes first.
"""

from __future__ import annotations

import datetime
import math
import numbers
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsebnn.checks import invalid

__all__ = [
    "absent",
    "date_form",
    "days",
    "kind_of",
    "label",
    "labels",
    "may_be_thousands",
    "number",
    "number_form",
    "to_days",
    "to_float",
]

_DAY = 86400.0
_DATE_EXAMPLES = {
    "": "2024-05-31 or 2024-05-31 14:00",
    "day first": "31/05/2024 or 2024-05-31",
    "month first": "05/31/2024 or 2024-05-31",
}
_COMMA = re.compile(r"[+-]?\d*,\d+|[+-]?\d+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
_TIME = r"\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?"
_ISO = re.compile(rf"(\d{{4}}-\d{{2}}-\d{{2}})(?:[T ]({_TIME})\s?(Z|[+-]\d{{2}}:?\d{{2}})?)?")
_YEAR_LAST = re.compile(
    r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(?:,?[T ]\s*(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?)?"
)


def number(text: str, form: str = "") -> float | None:
    """Text as a number; None if it is not one.

    >>> number("1.5"), number("1,5"), number("1,5", "comma"), number("often")
    (1.5, None, 1.5, None)
    """
    plain = text.strip()
    if form == "comma" and _COMMA.fullmatch(plain):
        plain = plain.replace(",", ".")
    try:
        # Python accepts 2000_01, but in a table it is not a number.
        return None if "_" in plain else float(plain)
    except ValueError:
        return None


def number_form(texts: Sequence[str]) -> str | None:
    """The format of numbers as text: ``""`` (decimal point) or ``"comma"``; None if some are not numbers.

    Commas that may all separate thousands are not read as decimal commas.

    >>> number_form(["1", "2.5"]), number_form(["1", "2,5"]), number_form(["1,000", "2,500"])
    ('', 'comma', None)
    """
    if all(number(text) is not None for text in texts):
        return ""
    if may_be_thousands(texts) or not all(_COMMA.fullmatch(text.strip()) for text in texts):
        return None
    return "comma"


def may_be_thousands(texts: Sequence[str]) -> bool:
    """Whether all commas may separate thousands, so that the numbers are ambiguous."""
    with_comma = [text.strip() for text in texts if "," in text]
    others = [text for text in texts if "," not in text]
    thousands = bool(with_comma) and all(map(_THOUSANDS.fullmatch, with_comma))
    return thousands and all(number(text) is not None for text in others)


def days(text: str, form: str = "") -> float | None:
    """Text as days since 1970, in UTC if it has a zone; None if it is not a date.

    >>> days("1970-01-02"), days("1970-01-01T13:00:00+01:00"), days("02/01/1970", "day first")
    (1.0, 0.5, 1.0)
    """
    plain = text.strip()
    found = _ISO.fullmatch(plain)
    if found is not None:
        return _iso_days(*found.groups())
    found = _YEAR_LAST.fullmatch(plain) if form else None
    if found is None:
        return None
    first, separator, second, year, hour, minute, seconds = found.groups()
    if form == "month first" and separator == ".":
        return None
    day, month = (first, second) if form == "day first" else (second, first)
    try:
        moment = datetime.datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(seconds or 0)
        )
    except ValueError:
        return None
    return (moment - datetime.datetime(1970, 1, 1)).total_seconds() / _DAY


def _iso_days(date: str, time: str | None, zone: str | None) -> float | None:
    try:
        moment = np.datetime64(f"{date}T{time or '00:00'}", "ms")
    except ValueError:
        return None
    ahead = 0
    if zone and zone != "Z":
        ahead = (-1 if zone[0] == "-" else 1) * (60 * int(zone[1:3]) + int(zone[-2:]))
    return float(int(moment.astype(np.int64)) - 60_000 * ahead) / (1000.0 * _DAY)


def date_form(texts: Sequence[str]) -> tuple[str, bool] | None:
    """The format of dates given as text, ``(form, sure)``; None if some are not dates.

    If no row distinguishes day and month, the day comes first and ``sure`` is False.

    >>> date_form(["2024-05-31"]), date_form(["31/12/2023", "1/2/2024"]), date_form(["12/31/2023"])
    (('', True), ('day first', True), ('month first', True))
    >>> date_form(["01/02/2023"]), date_form(["01.02.2023"]), date_form(["soon"])
    (('day first', False), ('day first', True), None)
    """
    if all(_ISO.fullmatch(text.strip()) for text in texts):
        return "", True
    fits = [
        form for form in ("day first", "month first") if all(days(text, form) is not None for text in texts)
    ]
    return (fits[0], len(fits) == 1) if fits else None


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
    """The name of a level; 1, 1.0 and numpy's 1 have the same name.

    >>> label(1.0), label("a"), label(True)
    ('1', 'a', 'True')
    """
    if isinstance(value, bool | np.bool_ | str):
        return str(value)
    if isinstance(value, numbers.Real) and float(value).is_integer():
        return str(int(float(value)))
    return str(value)


# -- one column ----------------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    """Whether a value that is not text is a number or a duration."""
    kinds = (numbers.Real, np.bool_, datetime.timedelta, np.timedelta64)
    return isinstance(value, kinds) or type(value).__name__ == "Decimal"


def _is_date(value: Any) -> bool:
    return isinstance(value, datetime.date | np.datetime64)


def kind_of(values: np.ndarray) -> tuple[str, str, str]:
    """Kind and format of a column of objects, and a note if the format is unusual."""
    there = [v for v in values.tolist() if not absent(v)]
    texts = [v for v in there if isinstance(v, str)]
    others = [v for v in there if not isinstance(v, str)]
    if there and all(map(_is_date, others)) and (dates := date_form(texts)) is not None:
        form, sure = dates
        order = {"day first": "day/month/year", "month first": "month/day/year"}.get(form)
        note = "" if order is None else f"dates are read as {order}"
        return "date", form, note if sure else f"{note}, but no row confirms the order"
    if all(map(_is_number, others)) and (form_of_numbers := number_form(texts)) is not None:
        note = "commas are read as decimal commas" if form_of_numbers == "comma" else ""
        return "number", form_of_numbers, note
    return "category", "", ""


def to_float(value: Any, name: str, form: str) -> float:
    """A value of column ``name`` as a number, a duration in seconds, a gap as NaN."""
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
    found = number(value, form) if isinstance(value, str) else None
    if found is None and not _is_number(value):
        advice = "In training this column held numbers only."
        raise invalid(name, "the table", "numbers", repr(value), advice)
    return float(value) if found is None else found


def to_days(values: np.ndarray, name: str, form: str) -> np.ndarray:
    """Dates as days since 1970, gaps as NaN."""
    if values.dtype.kind == "M":
        seconds = values.astype("datetime64[ms]")
        return np.where(np.isnat(seconds), np.nan, seconds.astype(np.float64) / (1000.0 * _DAY))
    return np.array([_day(v, name, form) for v in values.tolist()], dtype=np.float64)


def _day(value: Any, name: str, form: str) -> float:
    if absent(value):
        return math.nan
    if isinstance(value, str):
        found = days(value, form)
        if found is not None:
            return found
    elif _is_date(value):
        if isinstance(value, datetime.datetime) and value.tzinfo is not None:
            value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
        return float(np.datetime64(value, "ms").astype(np.int64)) / (1000.0 * _DAY)
    advice = f"In training this column held dates only, such as {_DATE_EXAMPLES[form]}."
    raise invalid(name, "the table", "dates", repr(value), advice)


def labels(values: np.ndarray) -> list[str | None]:
    """The level of each value, None where it is missing."""
    return [None if absent(v) else label(v) for v in values.tolist()]
