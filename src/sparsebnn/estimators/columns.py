"""One column of a table as standardized inputs.

Numbers are standardized, categories become one input per level, dates become time and season, durations
become seconds. More than 30 levels become the mean of the target at each level
(:mod:`sparsebnn.estimators.target_codes`). A missing value counts as the average of its column, and a
column with gaps in training gets one more input that marks them. A level that training never saw is none of
the known levels; in a column of two levels, which share one input, it counts as the average, and so it does
among coded levels. Values so extreme that they alone would set the scale of the column are clipped
(:func:`far_limits`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sparsebnn.estimators import target_codes
from sparsebnn.estimators.target_codes import Signal
from sparsebnn.io.cells import UNITS, among_numbers, kind_of, labels, to_floats, to_objects

_LEVELS = 30  # with more, levels are coded by the target
_MOST_CODED = 10_000  # levels; rarer ones count as the average
_LEAST_STD = 0.1  # an indicator that is nearly always 0 must not become a huge number
_YEAR = 365.2425
_MOST_NAMED = 3  # cells that a note names

# Values are extreme if the middle 80% lies within a thousandth of a standard deviation. They are clipped at
# ten times the width of that middle.
_MIDDLE, _HIDDEN, _REACH = (0.1, 0.9), 1e-3, 10.0
_BEYOND = 0.1  # of the range of the training rows
# A spread below this share of the size of the numbers is rounding.
_DIGITS = 8 * float(np.finfo(np.float64).eps)


MakeSignal = Callable[[], Signal]


class ColumnWarning(UserWarning):
    """Columns that were left out, have extreme values, or a number that may mean "missing"."""


@dataclass(frozen=True)
class Column:
    """How a column becomes inputs, learned from the training rows. All values can be stored as JSON.

    ``kind`` is ``number``, ``date``, ``category`` or ``dropped``, which has no inputs. ``centre`` and
    ``scale`` standardize each input. With two levels there is one input, and ``reference`` is the level where
    it is 0. ``form`` is how dates, percentages or times are written
    (:func:`~sparsebnn.io.cells.kind_of`). ``limits`` clip extreme values.
    ``reach`` is the range of the training rows and a tenth of it on both sides: beyond, a number counts as
    the end of it, so that predictions do not grow without limit where there were no data.
    ``constant`` marks a dropped column with a single value; ``sentinel`` is a number such as −999 that may
    mean "missing". ``codes`` are the numbers of the levels, one row each, if they are coded by the target.
    ``identifier`` marks a column that numbers or names the rows, ``asked`` one that was left out on request,
    ``merged`` counts levels that are too rare to be known, and ``doubtful`` marks a category of which most
    values are numbers.
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
    reach: tuple[float, ...] = ()
    constant: bool = False
    sentinel: float | None = None
    codes: tuple[tuple[float, ...], ...] = ()
    identifier: bool = False
    asked: bool = False
    merged: int = 0
    doubtful: bool = False

    @property
    def ends(self) -> tuple[float, ...]:
        """Where numbers are clipped."""
        return self.limits or self.reach

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs this column becomes."""
        own: tuple[str, ...] = tuple(f"{self.name}={level}" for level in self.levels)
        if self.codes:
            count = len(self.codes[0])
            own = tuple(f"{self.name} (by target{f' {i + 1}' if count > 1 else ''})" for i in range(count))
        if self.kind == "number":
            own = (self.name,)
        elif self.kind == "date":
            own = (f"{self.name} (time)", f"{self.name} (season, sine)", f"{self.name} (season, cosine)")
        return (*own, f"{self.name} missing") if self.gaps else own


def _raw_inputs(column: Column, found: np.ndarray, free: bool = False) -> np.ndarray:
    """``(rows, inputs)`` of levels or numbers, before standardizing; NaN where the value is missing."""
    if column.codes:
        missing = found == None  # noqa: E711
        table = np.array([*column.codes, [math.nan] * len(column.codes[0])])
        own = table[target_codes.places(found, column.levels)]
    elif column.kind == "category":
        missing = found == None  # noqa: E711
        own = (found[:, None] == to_objects(list(column.levels))).astype(np.float64)
        own[missing] = np.nan
        if column.reference is not None:
            # All zeros would be the reference level; an unknown level counts as the average.
            own[(own[:, 0] == 0.0) & (found != column.reference)] = np.nan
    else:
        missing = np.isnan(found)
        own = found[:, None]
        if column.kind == "date":
            turn = 2.0 * np.pi * own / _YEAR
            own = np.concatenate([own, np.sin(turn), np.cos(turn)], axis=1)
        ends = column.limits if free else column.ends
        if ends:
            own[:, 0] = np.clip(own[:, 0], ends[0], ends[1])
    return np.concatenate([own, missing[:, None]], axis=1) if column.gaps else own


def encode(column: Column, values: np.ndarray, free: bool = False) -> np.ndarray:
    """``(rows, inputs)`` standardized numbers; a missing value becomes 0, the average.

    ``free`` numbers may lie anywhere outside the range of the training rows.
    """
    if column.kind == "dropped":
        return np.empty((len(values), 0))
    category = column.kind == "category"
    found = labels(values) if category else to_floats(values, column.kind, column.form, column.name)
    raw = _raw_inputs(column, found, free)
    scaled = (raw - np.array(column.centre)) / np.array(column.scale)
    return np.nan_to_num(scaled, copy=False, nan=0.0)


def encode_training(
    column: Column, values: np.ndarray, weight: np.ndarray, make_signal: MakeSignal
) -> np.ndarray:
    """Like :func:`encode` for the rows of training, whose codes do not depend on their own target."""
    if not column.codes:
        return encode(column, values)
    raw = _training_inputs(column, labels(values), weight, make_signal())
    return np.nan_to_num((raw - np.array(column.centre)) / np.array(column.scale), copy=False, nan=0.0)


def _training_inputs(column: Column, found: np.ndarray, weight: np.ndarray, signal: Signal) -> np.ndarray:
    place = target_codes.places(found, column.levels)
    raw = target_codes.cross_fitted(place, len(column.levels), weight, signal)
    return np.concatenate([raw, (found == None)[:, None]], axis=1) if column.gaps else raw  # noqa: E711


def learn(
    name: str,
    values: np.ndarray,
    weight: np.ndarray,
    kind: str | None = None,
    make_signal: MakeSignal | None = None,
) -> Column:
    """Learn from the training rows how a column becomes inputs.

    ``kind`` is ``number`` or ``category`` if it is known; ``make_signal`` is called for a column of many
    levels only and returns what they are coded by.
    """
    if kind == "category":
        return _learn_category(name, values, weight, make_signal)
    found, form = kind_of(values)
    kind, form = (found, form) if kind in (None, found) else (kind, "")
    if kind == "ambiguous":
        return Column(name, "dropped", "no row tells the day from the month: write dates as 2024-05-31")
    if kind == "category":
        return _among_numbers(_learn_category(name, values, weight, make_signal), values)
    known = to_floats(values, kind, form, name, asked=True)  # otherwise the kind fits
    gaps = np.isnan(known)
    if gaps.all():
        return Column(name, "dropped", "always missing")
    low, high = known[~gaps].min(), known[~gaps].max()
    if low == high and not gaps.any():
        return Column(name, "dropped", "always the same", constant=True)
    notes = [f"read as numbers, in {UNITS[form]}"] if form in UNITS else []
    notes += [f"always the same or missing ({gaps.mean():.0%})"] if low == high else []
    if gaps.any() and low < high:
        notes.append(f"missing in {gaps.mean():.1%} of the rows")
    limits = far_limits(known[~gaps], weight[~gaps])
    if limits:
        far = int(((known[~gaps] < limits[0]) | (known[~gaps] > limits[1])).sum())
        ends = [_shown(value, kind) for value in (low, high, *limits)]
        notes.append("extreme values in {} rows (range {} to {}), clipped to {} to {}".format(far, *ends))
    code = sentinel(known[~gaps]) if kind == "number" else None
    if code is not None:
        share = np.mean(known[~gaps] == code)
        notes.append(f"{code:g} in {share:.1%} of the rows: if it means missing, leave those cells empty")
    note = ", ".join(notes)
    reach = float(low - _BEYOND * (high - low)), float(high + _BEYOND * (high - low))
    column = Column(
        name, kind, note, gaps=bool(gaps.any()), form=form, limits=limits, reach=reach, sentinel=code
    )
    return _standardized(column, _raw_inputs(column, known), weight)


def _shown(value: float, kind: str) -> str:
    return f"{value:.4g}" if kind == "number" else str(np.datetime64(math.floor(value), "D"))


def _among_numbers(column: Column, values: np.ndarray) -> Column:
    """The same column, with a note if most of its values are numbers."""
    others = among_numbers(values)
    if not others:
        return column
    listed = ", ".join(f"{cell!r} ({count}×)" for cell, count in others.most_common(_MOST_NAMED))
    listed += " and others" if len(others) > _MOST_NAMED else ""
    note = f"{column.note}; nearly all values are numbers, but not {listed}: if the column holds numbers, "
    note += "correct or empty those cells"
    return replace(column, note=note, doubtful=True)


def _learn_category(
    name: str, values: np.ndarray, weight: np.ndarray, make_signal: MakeSignal | None
) -> Column:
    found = labels(values)
    counts = Counter(level for level in found.tolist() if level is not None)
    gaps = len(found) - counts.total()
    if not counts:
        return Column(name, "dropped", "always missing")
    if len(counts) == 1 and not gaps:
        return Column(name, "dropped", "always the same", constant=True)
    if len(counts) > max(_LEVELS, len(found) // 2):
        return Column(name, "dropped", f"{len(counts)} different levels, nearly one per row")
    # The most frequent first; ties must not depend on the order of the rows.
    ordered = sorted(counts, key=lambda level: (-counts[level], level))
    coded = len(ordered) > _LEVELS and make_signal is not None
    most = _MOST_CODED if coded else _LEVELS
    note = f"{len(counts)} levels"
    if coded:
        note += ", each coded by the mean of the target in its rows"
    merged = max(0, len(ordered) - most)
    if merged:
        note += f", the {merged} rarest merged ({sum(counts[level] for level in ordered[most:])} rows)"
    if gaps:
        note += f", missing in {gaps / len(found):.1%} of the rows"
    kept, reference = (ordered[1:], ordered[0]) if len(ordered) == 2 else (ordered[:most], None)
    column = Column(name, "category", note, tuple(sorted(kept)), gaps > 0, reference=reference, merged=merged)
    if make_signal is None or not coded:
        return _standardized(column, _raw_inputs(column, found), weight)
    signal, place = make_signal(), target_codes.places(found, column.levels)
    codes = target_codes.codes(place, len(column.levels), weight, signal)
    column = replace(column, codes=tuple(map(tuple, codes.tolist())))
    return _standardized(column, _training_inputs(column, found, weight, signal), weight)


def _standardized(column: Column, raw: np.ndarray, weight: np.ndarray) -> Column:
    """The same column with the centre and scale of its inputs."""
    plain = 0 if column.kind == "category" else raw.shape[1] - int(column.gaps)
    centre, scale = [], []
    for i in range(raw.shape[1]):
        there = ~np.isnan(raw[:, i])
        middle, std = middle_and_std(raw[there, i], weight[there]) if there.any() else (0.0, 1.0)
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
    """A repeated number of nines (99, −9, −999, …) that is farther from the others than their range.

    Many tables mark missing values like this. The number is kept, since only the owner of the table can know.

    >>> sentinel(np.array([3.0, 5.0, -999.0, 4.0, -999.0])), sentinel(np.array([97.0, 98.0, 99.0, 99.0]))
    (-999.0, None)
    """
    for end in (float(known.min()), float(known.max())):
        others = known[known != end]
        nines = end.is_integer() and abs(end) < 1e7 and set(str(abs(int(end)))) == {"9"}
        repeated = len(others) > 0 and len(known) - len(others) > 1
        if nines and end != 9.0 and repeated and np.abs(others - end).min() > np.ptp(others) > 0.0:
            return end
    return None
