"""A table of inputs: numbers with the names of their columns, whatever it came as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from sparsebnn.checks import invalid

__all__ = ["Columns", "columns", "duplicated", "refuse_constant", "standardised"]


class Columns(NamedTuple):
    """``values`` is (rows, inputs) in float64; ``names`` has one name per input."""

    values: np.ndarray
    names: tuple[str, ...]


def _list(names: Sequence[Any], most: int = 5) -> str:
    shown = ", ".join(repr(str(name)) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _named(x: Any, width: int, names: Sequence[str] | None, owner: str) -> tuple[str, ...]:
    if names is None:
        given = getattr(x, "columns", None)
        names = [f"x{i + 1}" for i in range(width)] if given is None else [str(name) for name in given]
    if len(names) != width:
        raise invalid("names", owner, f"one name per column ({width})", f"{len(names)} names")
    if len(set(names)) != width:
        twice = sorted({name for name in names if list(names).count(name) > 1})
        raise invalid("names", owner, "different from each other", f"{_list(twice)} more than once")
    return tuple(names)


def columns(x: Any, owner: str, names: Sequence[str] | None = None) -> Columns:
    """Inputs as float64 with names: a data frame's own, the given ones, or x1, x2, ….

    A data frame is anything with ``columns``; whole numbers and booleans count as numbers. Text and
    missing values are refused, with the names of the columns that hold them.

    >>> columns([[1.0, 2.0], [3.0, 4.0]], "fit").names
    ('x1', 'x2')
    """
    frame = hasattr(x, "columns")
    if frame:
        _refuse_text(x, owner)
        # Nullable integer columns (pandas' Int64) need a dtype to become a float array.
        values = np.stack([_numbers(x.iloc[:, i], owner) for i in range(len(x.columns))], axis=1)
    else:
        raw = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
        values = _numbers(raw, owner)
    if values.ndim != 2 or 0 in values.shape:
        advice = "Pass one row per example and one column per input."
        raise invalid("x", owner, "of shape (rows, inputs)", f"shape {values.shape}", advice)
    named = _named(x, values.shape[1], names, owner)
    bad = ~np.isfinite(values)
    if bad.any():
        where = [named[i] for i in np.flatnonzero(bad.any(0))]
        got = f"{int(bad.sum())} missing or infinite values in {_list(where)}"
        raise invalid("x", owner, "finite", got, "Impute or drop those rows or columns first.")
    return Columns(values, named)


def _refuse_text(frame: Any, owner: str) -> None:
    text = [name for name, kind in zip(frame.columns, frame.dtypes) if not _is_number(kind)]
    if text:
        advice = "Encode categories as 0/1 columns, or drop them."
        raise invalid("x", owner, "numeric", f"columns of other kinds, {_list(text)},", advice)


def _is_number(kind: Any) -> bool:
    # numpy's dtypes and pandas' own both say what they are by `kind`: b, i, u or f.
    return getattr(kind, "kind", "O") in "biuf"


def _numbers(values: Any, owner: str) -> np.ndarray:
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    if values.dtype.kind not in "biuf":
        advice = "Encode categories as 0/1 columns."
        raise invalid("x", owner, "numeric", f"an array of {values.dtype}", advice)
    return values.astype(np.float64)


def refuse_constant(table: Columns, owner: str) -> None:
    """A constant column says nothing that the intercept does not; it is refused by name."""
    constant = [n for n, spread in zip(table.names, np.ptp(table.values, axis=0)) if spread == 0.0]
    if constant:
        advice = "Drop them: the intercept already stands for a constant."
        raise invalid("x", owner, "free of constant columns", _list(constant), advice)


def duplicated(table: Columns) -> list[tuple[str, str]]:
    """Pairs (earlier, later) of columns that hold the same numbers.

    >>> duplicated(columns([[1.0, 2.0, 1.0], [3.0, 4.0, 3.0]], "fit"))
    [('x1', 'x3')]
    """
    first: dict[bytes, str] = {}
    pairs = []
    # Adding 0 makes -0 and 0 the same bytes.
    for name, column in zip(table.names, table.values.T + 0.0):
        key = column.tobytes()
        if key in first:
            pairs.append((first[key], name))
        else:
            first[key] = name
    return pairs


def standardised(values: np.ndarray, which: slice = slice(None)) -> np.ndarray:
    """Columns ``which`` with mean 0 and standard deviation 1 (divisor rows − 1).

    >>> standardised(np.array([[1.0, 5.0], [3.0, 6.0]]), slice(0, 1)).round(3).tolist()
    [[-0.707, 5.0], [0.707, 6.0]]
    """
    scaled = np.array(values, dtype=np.float64)
    part = scaled[:, which]
    scaled[:, which] = (part - part.mean(0)) / part.std(0, ddof=1)
    return scaled
