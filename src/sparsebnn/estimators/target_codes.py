r"""Levels of a column as numbers: the mean of the target at each level, shrunk towards the mean of all rows.

A column of hundreds of levels, such as a postal code, would become hundreds of inputs. Instead each level l
with weight :math:`W_l` gets

.. math:: c_l = \frac{W_l \bar y_l + m \bar y}{W_l + m}, \qquad m = \sigma^2_w / \sigma^2_b,

the posterior mean of a random effect, with the variances within and between levels of a one-way analysis of
variance. Each class has a code, the log odds of the shrunk share. A training row must not see its own target,
so its code is learned from the other folds, as in scikit-learn's ``TargetEncoder``.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from sparsebnn.estimators.cross_fitting import folds

__all__ = ["Signal", "codes", "cross_fitted", "places", "signal"]

_MOST_SHRINKAGE = 1e6  # rows; if levels do not differ, every code is nearly the mean


class Signal:
    """What levels are coded by: ``values`` of shape (rows, codes), shares of classes or numbers, and
    folds.
    """

    def __init__(self, values: np.ndarray, shares: bool, fold: np.ndarray) -> None:
        self.values, self.shares, self.fold = values, shares, fold

    def rows(self, kept: np.ndarray) -> Signal:
        return Signal(self.values[kept], self.shares, self.fold[kept])


def signal(targets: Tensor, count: int, seed: int, classes: bool, copies: np.ndarray | None = None) -> Signal:
    """Targets as an estimator trains on them (class numbers, 0 and 1, or numbers), in folds of cross-
    fitting, which do not separate ``copies``.
    """
    fold = folds(targets, count, seed, classes, copies)
    y = targets.numpy()
    if y.dtype.kind == "i":
        values = (y.reshape(-1, 1) == np.arange(y.max() + 1)).astype(np.float64)
    else:
        values = y.reshape(len(y), -1).astype(np.float64)
    return Signal(values, bool(np.isin(values, (0.0, 1.0)).all()), fold.numpy())


def places(found: np.ndarray, levels: tuple[str, ...]) -> np.ndarray:
    """The place of each label in ``levels``, −1 for others and for gaps."""
    place = {level: i for i, level in enumerate(levels)}
    return np.array([place.get(label, -1) for label in found.tolist()], dtype=np.int64)


def codes(place: np.ndarray, count: int, weight: np.ndarray, given: Signal) -> np.ndarray:
    """``(levels, codes)``: the code of every level; NaN for a level without rows.

    >>> place, y = np.array([0, 0, 1, 1]), np.array([[1.0], [3.0], [11.0], [13.0]])
    >>> codes(place, 2, np.ones(4), Signal(y, False, place)).round(2).tolist()
    [[2.1], [11.9]]
    """
    kept = place >= 0
    place, weight, values = place[kept], weight[kept], given.values[kept]
    total = np.bincount(place, weight, count)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = [_one(place, total, weight, column, given.shares) for column in values.T]
    return np.stack(found, axis=1)


def _one(place: np.ndarray, total: np.ndarray, weight: np.ndarray, y: np.ndarray, shares: bool) -> np.ndarray:
    rows, there = float(total.sum()), total > 0.0
    sums = np.bincount(place, weight * y, len(total))
    means = sums / total
    mean = float(sums.sum()) / rows
    levels = int(there.sum())
    within = float((weight * (y - means[place]) ** 2).sum()) / max(rows - levels, 1.0)
    spread = float((total[there] * (means[there] - mean) ** 2).sum()) / max(levels - 1, 1)
    size = (rows - float((total**2).sum()) / rows) / max(levels - 1, 1)
    between = max(0.0, spread - within) / max(size, 1e-12)
    shrinkage = min(_MOST_SHRINKAGE, within / between) if between > 0.0 else _MOST_SHRINKAGE
    if not shares:
        return np.where(there, (sums + shrinkage * mean) / (total + shrinkage), np.nan)
    shrinkage = max(1.0, shrinkage)  # keeps the log odds finite
    mean = min(max(mean, 0.5 / rows), 1.0 - 0.5 / rows)
    share = (sums + shrinkage * mean) / (total + shrinkage)
    return np.where(there, np.log(share / (1.0 - share)), np.nan)


def cross_fitted(place: np.ndarray, count: int, weight: np.ndarray, given: Signal) -> np.ndarray:
    """``(rows, codes)``: the code of each training row, learned from the rows of the other folds."""
    raw = np.full((len(place), given.values.shape[1]), np.nan)
    for fold in np.unique(given.fold):
        own = given.fold == fold
        if own.all():
            break
        learned = codes(place[~own], count, weight[~own], given.rows(~own))
        raw[own] = np.where(place[own, None] >= 0, learned[place[own]], np.nan)
    return raw
