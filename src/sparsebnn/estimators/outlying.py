"""The scale of numbers, and numbers apart from all others: those that hide the rest, words for "missing"."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["NINES", "far_limits", "middle_and_std", "nines"]

# What is said of a number that may be a word for "missing".
NINES = "far from all others: if it stands for a missing value, leave those cells empty"
# Values are far off where the middle 80% would lie within a thousandth of a standard deviation; they may be
# ten times as far from that middle as it is wide.
_MIDDLE, _HIDDEN, _REACH = (0.1, 0.9), 1e-3, 10.0
_MOST_NINES = 1e7
# A spread of fewer last digits than this is rounding.
_DIGITS = 8 * float(np.finfo(np.float64).eps)


def middle_and_std(x: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation; a spread that is only rounding counts as the size of the numbers.

    Numbers may be as large or small as floats are, or far from 0 beside their spread (times, for example).

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
    """Lowest and highest value to be taken as it is; nothing where no value is far off.

    A value of 1e12 among ordinary ones would be all that a standard deviation sees: standardised, the others
    would all be one number.

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


def nines(known: np.ndarray) -> float | None:
    """A repeated number of nines (99, 999, −9, −999 …), farther from the others than these lie apart.

    Many tables write a missing value so. Read as a number it misleads, but only the table's owner can know.

    >>> nines(np.array([3.0, 5.0, -999.0, 4.0, -999.0])), nines(np.array([97.0, 98.0, 99.0, 99.0]))
    (-999.0, None)
    """
    for end in (float(known.min()), float(known.max())):
        others = known[known != end]
        if not (end.is_integer() and abs(end) < _MOST_NINES and set(str(abs(int(end)))) == {"9"}):
            continue
        # 9 may be a number like any other.
        if end == 9.0 or len(others) == 0 or len(known) - len(others) < 2:
            continue
        if np.abs(others - end).min() > np.ptp(others) > 0.0:
            return end
    return None
