"""One column of a table as standardized inputs.

Numbers are standardized, categories become one input per level, dates become time and season, durations
become seconds. A missing value counts as the average of its column, and a column with gaps in training gets
one more input that marks them. A level that training never saw is none of the known levels; in a column of
two levels, which share one input, it counts as the average. Values so extreme that they alone would set the
scale of the column are clipped (:func:`far_limits`).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from sparsebnn.checks import invalid
from sparsebnn.estimators import parsing

__all__ = [
    "Column",
    "ColumnWarning",
    "encode",
    "far_limits",
    "learn",
    "middle_and_std",
    "sentinel",
    "strange_levels",
]

_LEVELS = 30  # more become "all others"
_LEAST_STD = 0.1  # an indicator that is nearly always 0 must not become a huge number
_YEAR = 365.2425

# Values are extreme if the middle 80% lies within a thousandth of a standard deviation. They are clipped at
# ten times the width of that middle.
_MIDDLE, _HIDDEN, _REACH = (0.1, 0.9), 1e-3, 10.0
_MOST_NINES = 1e7
# A spread below this share of the size of the numbers is rounding.
_DIGITS = 8 * float(np.finfo(np.float64).eps)


class ColumnWarning(UserWarning):
    """Columns that were left out, have extreme values, or a number that may mean "missing"."""


@dataclass(frozen=True)
class Column:
    """How a column becomes inputs, learned from the training rows. All values can be stored as JSON.

    ``centre`` and ``scale`` standardize each input of the column; a column of kind ``dropped`` has no inputs.
    With two levels there is one input, and ``reference`` is the level where it is 0. ``form`` is the format
    of numbers and dates given as text (:mod:`sparsebnn.estimators.parsing`). ``limits`` clip extreme values.
    ``constant`` marks a dropped column with a single value; ``sentinel`` is a number such as −999 that may
    stand for a missing value.
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
    constant: bool = False
    sentinel: float | None = None

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


# -- kinds to inputs ----------------------------------------------------------------------------------


def _floats(values: np.ndarray, name: str, form: str) -> np.ndarray:
    """Numbers as float64, durations in seconds, gaps as NaN."""
    if values.dtype.kind == "m":
        return values / np.timedelta64(1, "s")
    if values.dtype.kind in "biuf":
        found = values.astype(np.float64)
    else:
        found = np.array([parsing.to_float(v, name, form) for v in values.tolist()], dtype=np.float64)
    if np.isinf(found).any():
        advice = "Replace infinite values, or leave them empty."
        raise invalid(name, "the table", "finite", "infinity", advice)
    return found


def _raw_inputs(column: Column, values: np.ndarray) -> np.ndarray:
    """``(rows, inputs)`` before standardizing; NaN where the value is missing."""
    if column.kind == "number":
        own = _floats(values, column.name, column.form)[:, None]
    elif column.kind == "date":
        days = parsing.to_days(values, column.name, column.form)
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
    """One input per level, and one that marks gaps if training had any."""
    place = {level: i for i, level in enumerate(column.levels)}
    found = parsing.labels(values)
    own = np.zeros((len(found), len(place)))
    for row, level in enumerate(found):
        if level is None:
            own[row] = np.nan
        elif level in place:
            own[row, place[level]] = 1.0
        elif column.reference is not None and level != column.reference:
            # All zeros would be the reference level; an unknown level counts as the average.
            own[row] = np.nan
    if not column.gaps:
        return own
    missing = np.array([level is None for level in found], dtype=np.float64)
    return np.concatenate([own, missing[:, None]], axis=1)


def strange_levels(column: Column, values: np.ndarray) -> Counter[str]:
    """Levels that training did not have, with their counts; empty if rare levels were merged.

    >>> column = learn("w", np.array(["Yes", "No", "No"], dtype=object), np.ones(3))
    >>> strange_levels(column, np.array(["yes", "No", "yes"], dtype=object))
    Counter({'yes': 2})
    """
    if column.kind != "category" or len(column.levels) >= _LEVELS:
        return Counter()
    known = {*column.levels, column.reference}
    return Counter(level for level in parsing.labels(values) if level is not None and level not in known)


def encode(column: Column, values: np.ndarray) -> np.ndarray:
    """``(rows, inputs)`` standardized numbers; a missing value becomes 0, the average."""
    if column.kind == "dropped":
        return np.empty((len(values), 0))
    raw = _raw_inputs(column, values)
    scaled = (raw - np.array(column.centre)) / np.array(column.scale)
    return np.nan_to_num(scaled, copy=False, nan=0.0)


def learn(name: str, values: np.ndarray, weight: np.ndarray, categorical: bool = False) -> Column:
    """Learn from the training rows how a column becomes inputs."""
    if categorical:
        kind, form, remark = "category", "", ""
    elif values.dtype.kind in "biufmM":
        kind, form, remark = ("date" if values.dtype.kind == "M" else "number"), "", ""
    else:
        kind, form, remark = parsing.kind_of(values)
    if kind == "category":
        return _learn_category(name, values, weight)
    known = parsing.to_days(values, name, form) if kind == "date" else _floats(values, name, form)
    gaps = np.isnan(known)
    if gaps.all():
        return Column(name, "dropped", "always missing")
    low, high = known[~gaps].min(), known[~gaps].max()
    if low == high and not gaps.any():
        return Column(name, "dropped", "always the same", constant=True)
    if low == high:
        note = f"always the same or missing ({gaps.mean():.0%})"
    else:
        note = f"missing in {gaps.mean():.1%} of the rows" if gaps.any() else ""
    bounds = far_limits(known[~gaps], weight[~gaps])
    if bounds:
        far = int(((known[~gaps] < bounds[0]) | (known[~gaps] > bounds[1])).sum())
        ends = [_shown(value, kind) for value in (low, high, *bounds)]
        count = "1 extreme value" if far == 1 else f"{far} extreme values"
        clipped = "{} (range {} to {}), clipped to {} to {}".format(count, *ends)
        remark = ", ".join(filter(None, (remark, clipped)))
    missing = sentinel(known[~gaps]) if kind == "number" else None
    if missing is not None:
        share = np.mean(known[~gaps] == missing)
        doubt = f"{missing:g} in {share:.1%} of the rows: if it means missing, leave those cells empty"
        remark = ", ".join(filter(None, (remark, doubt)))
    note = ", ".join(filter(None, (note, remark)))
    column = Column(name, kind, note, gaps=bool(gaps.any()), form=form, limits=bounds, sentinel=missing)
    return _standardized(column, values, weight)


def _shown(value: float, kind: str) -> str:
    return f"{value:.4g}" if kind == "number" else str(np.datetime64(math.floor(value), "D"))


def _learn_category(name: str, values: np.ndarray, weight: np.ndarray) -> Column:
    found = parsing.labels(values)
    counts = Counter(level for level in found if level is not None)
    gaps = any(level is None for level in found)
    if not counts:
        return Column(name, "dropped", "always missing")
    if len(counts) == 1 and not gaps:
        return Column(name, "dropped", "always the same", constant=True)
    if len(counts) > max(_LEVELS, len(found) // 2):
        note = f"{len(counts)} different levels, nearly one per row"
        if parsing.may_be_thousands(list(counts)):
            note += "; their commas may be decimal or separate thousands: do not separate thousands"
        return Column(name, "dropped", note)
    # The most frequent first; ties must not depend on the order of the rows.
    ordered = sorted(counts, key=lambda level: (-counts[level], level))
    note = f"{len(counts)} levels"
    if len(ordered) > _LEVELS:
        note += f", the {_LEVELS} most frequent kept"
    kept = ordered[:_LEVELS] if len(ordered) != 2 else ordered[1:]
    if gaps:
        note += f", missing in {sum(level is None for level in found) / len(found):.1%} of the rows"
    reference = ordered[0] if len(ordered) == 2 else None
    column = Column(name, "category", note, tuple(sorted(kept)), gaps, reference=reference)
    return _standardized(column, values, weight)


def _standardized(column: Column, values: np.ndarray, weight: np.ndarray) -> Column:
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


# -- scale ----------------------------------------------------------------------------------------------


def middle_and_std(x: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation; if the spread is only rounding, the size of the numbers is the scale.

    Works for the whole range of floats and for numbers far from 0 relative to their spread, such as times.

    >>> middle_and_std(1.7e18 + 1e9 * np.array([0.0, 2.0]), np.ones(2))
    (1.700000001e+18, 1000000000.0)
    >>> middle_and_std(np.array([0.1 + 0.2, 0.3]), np.ones(2))[1] > 0.2
    True
    """
    largest = float(np.abs(x).max())
    # The difference of two floats may be too large for one.
    half = 2.0 if largest > 1e307 else 1.0
    first = float(x[0]) / half
    apart = x / half - first
    unit = float(np.abs(apart).max())
    if not unit > _DIGITS * largest:
        return half * first, largest if unit else 1.0
    # Squares of very large or very small numbers would leave the range of floats.
    apart /= unit
    middle = float(np.average(apart, weights=weight))
    std = unit * math.sqrt(float(np.average((apart - middle) ** 2, weights=weight)))
    return half * (first + unit * middle), half * std or 1.0


def far_limits(known: np.ndarray, weight: np.ndarray) -> tuple[float, ...]:
    """Limits to clip extreme values at; empty if there are none.

    A single 1e12 among ordinary values would set the standard deviation, and standardizing would make all
    other values equal.

    >>> x = np.arange(101.0)
    >>> far_limits(x, np.ones(101)), far_limits(np.append(x, 1e12), np.ones(102))
    ((), (-800.0, 901.0))
    """
    order = np.argsort(known, kind="stable")
    share = np.cumsum(weight[order]) / weight.sum()
    low, high = (float(known[order][np.searchsorted(share, level)]) for level in _MIDDLE)
    std = middle_and_std(known, weight)[1]
    width = high - low
    if not 0.0 < width < _HIDDEN * std:
        return ()
    return low - _REACH * width, high + _REACH * width


def sentinel(known: np.ndarray) -> float | None:
    """A repeated number of nines (99, 999, −9, −999 …) that is farther from the others than their range.

    Many tables mark missing values like this. The number is kept, since only the owner of the table can know.

    >>> sentinel(np.array([3.0, 5.0, -999.0, 4.0, -999.0])), sentinel(np.array([97.0, 98.0, 99.0, 99.0]))
    (-999.0, None)
    """
    for end in (float(known.min()), float(known.max())):
        others = known[known != end]
        if not (end.is_integer() and abs(end) < _MOST_NINES and set(str(abs(int(end)))) == {"9"}):
            continue
        # 9 is usually an ordinary number.
        if end == 9.0 or len(others) == 0 or len(known) - len(others) < 2:
            continue
        if np.abs(others - end).min() > np.ptp(others) > 0.0:
            return end
    return None
