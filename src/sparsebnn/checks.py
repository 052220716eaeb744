"""Messages for bad input, in one grammar: what must be what, what came instead, what to do."""

from __future__ import annotations

import difflib
import math
import numbers
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Control characters, line separators, marks that turn the direction of text, halves of characters.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class InvalidInput(ValueError):
    """Input that cannot be used; the message says what was expected, what came, and what to do."""


def invalid(what: str, owner: str, expected: str, got: Any, advice: str = "") -> InvalidInput:
    """The library's one form of complaint.

    >>> str(invalid("std", "GaussianPrior", "positive", -1.0, "Pass a scale, not a variance."))
    "The 'std' of GaussianPrior must be positive. Got -1.0 instead. Pass a scale, not a variance."
    """
    message = f"The '{what}' of {owner} must be {expected}. Got {got} instead."
    return InvalidInput(f"{message} {advice}".rstrip())


def printable(text: object) -> str:
    """Text as one line that is safe to print: names and paths can hold codes that a terminal would obey.

    >>> printable("a\\x1b[2Jb\\nc")
    'a\\\\x1b[2Jb\\\\nc'
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), str(text))


def check_table_of_numbers(X: Any, owner: str, advice: str = "") -> None:
    """Complain of columns that hold text, categories, times, or missing or infinite values, by their names.

    What is no table passes, and so do cells of other kinds: they are checked elsewhere.

    >>> check_table_of_numbers([[1.0, 2.0], [float("nan"), 3.0]], "fit")
    Traceback (most recent call last):
    sparsebnn.checks.InvalidInput: The 'X' of fit must be finite numbers. Got NaN in column 0 (1 row) instead.
    """
    if hasattr(X, "columns"):
        names = [str(name) for name in X.columns]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise invalid("X", owner, "a table with a name for each column", f"{twice[0]!r} twice", advice)
        named = [(repr(str(name)), X[name]) for name in X.columns]
    else:
        cells = np.asarray(X) if isinstance(X, list | tuple | np.ndarray) else np.empty(0)
        if cells.ndim != 2 or cells.dtype.kind in "buic":
            return
        named = [(f"column {j}", cells[:, j]) for j in range(cells.shape[1])]
    found: dict[str, list[str]] = {"text": [], "categories": [], "times": [], "NaN": [], "inf": []}
    for name, column in named:
        if kind := _kind_of(column):
            found[kind].append(name)
            continue
        try:
            values = np.asarray(column, dtype=np.float64)
        except (TypeError, ValueError):
            continue
        for kind, bad in (("NaN", np.isnan(values)), ("inf", np.isinf(values))):
            if count := int(bad.sum()):
                found[kind].append(f"{name} ({count:,} row{'s' if count > 1 else ''})")
    got = [
        f"{kind} in {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
        for kind, names in found.items()
        if names
    ]
    if got:
        raise invalid("X", owner, "finite numbers", " and ".join(got), advice)


def _kind_of(column: Any) -> str:
    """What a column holds that is no number: text, categories or times; empty if that is unknown."""
    dtype = getattr(column, "dtype", np.dtype(object))
    name = str(dtype).lower()
    if name.startswith(("category", "categorical", "enum")):
        return "categories"
    if getattr(dtype, "kind", "") in ("M", "m") or name.startswith(("date", "time", "duration", "period")):
        return "times"
    cells = column if name.startswith(("object", "str", "<u", "|s")) else ()
    return "text" if any(isinstance(cell, str) for cell in cells) else ""


def check_choice(value: str, choices: Iterable[str], what: str, owner: str) -> str:
    """Return ``value`` when it is one of ``choices``; otherwise say which one was probably meant."""
    names = list(choices)
    if isinstance(value, str) and value in names:
        return value
    close = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    advice = f"Did you mean {close[0]!r}?" if close else ""
    raise invalid(what, owner, "one of " + ", ".join(map(repr, names)), repr(value), advice)


def check_switch(value: Any, what: str, owner: str) -> bool:
    """Return ``value`` as a bool when it is True or False, of Python's or NumPy's.

    >>> check_switch("no", "calibrate", "f")
    Traceback (most recent call last):
    sparsebnn.checks.InvalidInput: The 'calibrate' of f must be True or False. Got 'no' instead.
    """
    if not isinstance(value, bool | np.bool_):
        raise invalid(what, owner, "True or False", repr(value))
    return bool(value)


def check_count(value: Any, what: str, owner: str, least: int = 1) -> int:
    """Return ``value`` as an int when it is a whole number of at least ``least``, NumPy's kinds included."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise invalid(what, owner, f"a whole number of at least {least}", repr(value))
    return int(value)


def check_seed(value: Any, what: str, owner: str, least: int = -(2**63), most: int = 2**63 - 1) -> int:
    """Return ``value`` as an int when it is a whole number that a generator takes.

    >>> check_seed(-1, "seed", "f", least=0)
    Traceback (most recent call last):
    sparsebnn.checks.InvalidInput: The 'seed' of f must be a whole number from 0 to 2**63 - 1. Got -1 instead.
    """
    number = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if isinstance(number, bool) or not isinstance(number, numbers.Integral):
        raise invalid(what, owner, "a whole number", repr(value))
    seed = int(number)
    if not least <= seed <= most:
        low = f"-2**{(-least).bit_length() - 1}" if least < 0 else least
        expected = f"a whole number from {low} to 2**{most.bit_length()} - 1"
        raise invalid(what, owner, expected, seed)
    return seed


def check_number(value: Any, what: str, owner: str, expected: str, fits: Callable[[float], bool]) -> float:
    """Return ``value`` as a float when it is a number that fits; numeric strings are rejected.

    >>> check_number("0.1", "level", "select", "between 0 and 1", lambda level: 0.0 < level < 1.0)
    Traceback (most recent call last):
    sparsebnn.checks.InvalidInput: The 'level' of select must be between 0 and 1. Got '0.1' instead.
    """
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a tensor of several
        number = math.nan
    if not fits(number):
        raise invalid(what, owner, expected, repr(value) if math.isnan(number) else value)
    return number


def _check_all(
    value: Tensor,
    fits: Callable[[Tensor], Tensor],
    what: str,
    owner: str,
    expected: str,
    advice: str,
    dtype: torch.dtype | None,
) -> Tensor:
    """Return ``value`` when every entry fits, and still does when it is cast to ``dtype``."""
    good = fits(value)
    if not bool(good.all()):
        raise invalid(what, owner, expected, float(value[~good].flatten()[0]), advice)
    if dtype is not None and dtype != value.dtype and not bool((good := fits(value.to(dtype))).all()):
        expected = f"{expected} in {str(dtype).removeprefix('torch.')}"
        given = float(value[~good].flatten()[0])
        raise invalid(what, owner, expected, given, "Change the value, or use a wider dtype.")
    return value


def _tiny(value: Tensor) -> float:
    """The smallest number that every device handles."""
    return torch.finfo(value.dtype).tiny if value.is_floating_point() else 1.0


def check_positive(
    value: Tensor, what: str, owner: str, advice: str = "", dtype: torch.dtype | None = None
) -> Tensor:
    """Return ``value`` when every entry is positive and finite, in ``dtype`` too if given."""

    def fits(v: Tensor) -> Tensor:
        return (v > 0) & v.isfinite()

    return _check_all(value, fits, what, owner, "positive and finite", advice, dtype)


def check_scale(value: Tensor, what: str, owner: str, dtype: torch.dtype | None = None) -> Tensor:
    """Return ``value`` when every entry is a standard deviation: its square is positive and finite too."""
    check_positive(value, what, owner)

    def fits(v: Tensor) -> Tensor:
        return (v**2 >= _tiny(v)) & (v**2).isfinite()

    return _check_all(value, fits, what, owner, "positive and finite when squared", "", dtype)


def check_probability(value: Tensor, what: str, owner: str, dtype: torch.dtype | None = None) -> Tensor:
    """Return ``value`` when every entry lies strictly between 0 and 1, in ``dtype`` too if given."""

    def fits(v: Tensor) -> Tensor:
        return (v > 0) & (v >= _tiny(v)) & (v < 1)

    advice = (
        "A probability of 0 or 1 leaves nothing to learn; "
        "use the 'gaussian' family or the MNF form for weights that are always included."
    )
    return _check_all(value, fits, what, owner, "strictly between 0 and 1", advice, dtype)


def check_finite(
    value: Tensor, what: str, owner: str, advice: str = "Impute or drop those rows first."
) -> Tensor:
    """Return ``value`` when it holds neither NaN nor infinities; otherwise say how many and where."""
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        bad = ~torch.isfinite(value)
        first = tuple(int(i) for i in bad.nonzero()[0])
        got = f"{int(bad.sum())} NaN or infinite values, the first at {first},"
        raise invalid(what, owner, "finite", got, advice)
    return value


def check_tensor(values: Any, what: str, owner: str, dtype: torch.dtype | None = None) -> Tensor:
    """``values`` as a tensor: one already, or an array or list of numbers."""
    if isinstance(values, Tensor) and (values.layout != torch.strided or values.is_nested):
        got = "a nested one" if values.is_nested else f"one of layout {values.layout}"
        raise invalid(what, owner, "a dense tensor", got, "Make it dense first (values.to_dense()).")
    if isinstance(values, np.ndarray) and (min(values.strides, default=0) < 0 or not values.dtype.isnative):
        # Torch takes neither views that run backwards nor foreign byte orders.
        values = np.array(values, dtype=values.dtype.newbyteorder("="))
    try:
        return torch.as_tensor(values, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, KeyError, OverflowError) as error:
        advice = "Pass the numbers of a table (frame.to_numpy(float))."
        advice = "Pass the .probs of a prediction." if hasattr(values, "probs") else advice
        advice = "Make it dense first (values.toarray())." if hasattr(values, "toarray") else advice
        got = f"a {type(values).__name__}"
        raise invalid(what, owner, "a tensor or an array of numbers", got, advice) from error


def check_rows(sizes: Sequence[tuple[str, int]], owner: str) -> int:
    """Return the common number of rows of several arrays; it must be one number, at least 1."""
    (first, rows), *others = sizes
    for name, count in others:
        if count != rows:
            advice = "Every array needs one row per example."
            raise invalid(name, owner, f"as long as '{first}' ({rows} rows)", f"{count} rows", advice)
    if rows == 0:
        raise invalid(first, owner, "of at least one row", "an empty batch", "Check the filter before.")
    return rows
