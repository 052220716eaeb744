"""How words spell numbers and dates: decided once for a column, then read the same way in every row.

A number has a decimal point, or a decimal comma if all of its column's training rows agree with one. Whole
numbers of which one begins with a zero (``007``) are codes: their column holds categories. A date
is ISO (``2024-05-31``, with a time and a zone if there is one), or day and month before the year; which of
the two comes first, the training rows decide.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence

import numpy as np

__all__ = ["DATE_EXAMPLES", "DAY", "codes", "date_form", "days", "may_be_thousands", "number", "number_form"]

DAY = 86400.0
DATE_EXAMPLES = {
    "": "2024-05-31 or 2024-05-31 14:00",
    "day first": "31/05/2024 or 2024-05-31",
    "month first": "05/31/2024 or 2024-05-31",
}
_CODE = re.compile(r"0\d+", re.ASCII)
_DIGITS = re.compile(r"\d+", re.ASCII)
_COMMA = re.compile(r"[+-]?\d*,\d+|[+-]?\d+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
_TIME = r"\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?"
_ISO = re.compile(rf"(\d{{4}}-\d{{2}}-\d{{2}})(?:[T ]({_TIME})\s?(Z|[+-]\d{{2}}:?\d{{2}})?)?")
_YEAR_LAST = re.compile(
    r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(?:,?[T ]\s*(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?)?"
)


def number(text: str, form: str = "") -> float | None:
    """The number a word spells; None if it spells none.

    >>> number("1.5"), number("1,5"), number("1,5", "comma"), number("often")
    (1.5, None, 1.5, None)
    """
    plain = text.strip()
    if form == "comma" and _COMMA.fullmatch(plain):
        plain = plain.replace(",", ".")
    try:
        # Python reads 2000_01 as a number; in a table it is a word.
        return None if "_" in plain else float(plain)
    except ValueError:
        return None


def codes(texts: Sequence[str]) -> str | None:
    """The first of these words that begins with a zero as a number would not, if all are made of digits.

    >>> codes(["12", "007"]), codes(["0", "12"]), codes(["0.5", "007"]), codes(["A1", "007"])
    ('007', None, None, None)
    """
    first = next((text.strip() for text in texts if _CODE.fullmatch(text.strip())), None)
    return first if first and all(_DIGITS.fullmatch(text.strip()) for text in texts) else None


def number_form(texts: Sequence[str]) -> str | None:
    """How these words spell numbers: ``""`` by a point, ``"comma"``; None if they do not.

    Codes are no numbers, and commas that may all stand before thousands are no decimal commas.

    >>> number_form(["1", "2.5"]), number_form(["1", "2,5"]), number_form(["1,000", "2,500"])
    ('', 'comma', None)
    """
    if codes(texts):
        return None
    if all(number(text) is not None for text in texts):
        return ""
    if may_be_thousands(texts) or not all(_COMMA.fullmatch(text.strip()) for text in texts):
        return None
    return "comma"


def may_be_thousands(texts: Sequence[str]) -> bool:
    """Whether every comma may stand before thousands, so that nobody can tell what the numbers are."""
    with_comma = [text.strip() for text in texts if "," in text]
    others = [text for text in texts if "," not in text]
    thousands = bool(with_comma) and all(map(_THOUSANDS.fullmatch, with_comma))
    return thousands and all(number(text) is not None for text in others)


def days(text: str, form: str = "") -> float | None:
    """Days from 1970 to the moment a word spells, in UTC where it names a zone; None if it spells none.

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
    return (moment - datetime.datetime(1970, 1, 1)).total_seconds() / DAY


def _iso_days(date: str, time: str | None, zone: str | None) -> float | None:
    try:
        moment = np.datetime64(f"{date}T{time or '00:00'}", "ms")
    except ValueError:
        return None
    ahead = 0
    if zone and zone != "Z":
        ahead = (-1 if zone[0] == "-" else 1) * (60 * int(zone[1:3]) + int(zone[-2:]))
    return float(int(moment.astype(np.int64)) - 60_000 * ahead) / (1000.0 * DAY)


def date_form(texts: Sequence[str]) -> tuple[str, bool] | None:
    """How these words spell dates, ``(form, sure)``; None if they do not.

    Where no row tells day and month apart, the day comes first, and that is not sure.

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
