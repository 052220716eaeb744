"""Cross-fitting: networks are judged, chosen and calibrated by rows that they have not seen.

Replicate k does not train on folds k and k + 1, so its predictions there are honest. They choose the networks
that predict, and set one number, which makes all predictions sharper or flatter
(:func:`sparsebnn.inference.calibration.logit_scale`). As two replicates leave out a row, it is known how much
flatter an average is than one network.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import expit, logit
from torch import Tensor

from sparsebnn.estimators.ensemble import Ensemble, some_rows
from sparsebnn.inference import calibration
from sparsebnn.likelihoods import Categorical, Likelihood
from sparsebnn.random.noise import content_keys

__all__ = ["Choice", "Folded", "choose", "copies", "folds", "leaves_out", "of_all_rows", "repeated"]

# To choose networks and the logit scale.
_MOST_ROWS = 2000
_LEAST_ROWS = 10
_DRAWS = 20
# When equal rows count as copies.
_LEAST_AGREEMENT, _MOST_COPIES = 0.9, 0.05
_MOST_REPEATED = 20_000  # rows


class Folded(Likelihood):
    """A likelihood that ignores the rows of two folds; the last column of y is the fold.

    Of ``replicates``, replicate k leaves out the folds k and k + 1, the last one the first fold, too. So two
    replicates leave out each of these folds, and later folds are left out by none. ``held`` is a buffer, so
    it can differ between replicates.
    """

    held: Tensor

    def __init__(self, inner: Likelihood, replicates: int) -> None:
        super().__init__()
        self.inner, self.replicates = inner, replicates
        self.register_buffer("held", torch.tensor(0.0))

    def _targets(self, y: Tensor) -> Tensor:
        if self.inner.target_columns:
            return y[..., :-1]
        return y[..., 0].long() if isinstance(self.inner, Categorical) else y[..., 0]

    def prepare(self, y: Tensor) -> Tensor:
        prepared = self.inner.prepare(self._targets(y))
        return torch.cat([prepared.reshape(len(y), -1).to(y.dtype), y[:, -1:]], dim=1)

    def n_outputs(self, y: Tensor) -> int:
        return self.inner.n_outputs(y)

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.weighted_nll(outputs, y, torch.ones_like(y[..., -1]))

    def weighted_nll(self, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return self.inner.weighted_nll(outputs, self._targets(y), self._seen(y, weight))

    def weighted_slope(self, outputs: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor] | None:
        return self.inner.weighted_slope(outputs, self._targets(y), self._seen(y, weight))

    def _seen(self, y: Tensor, weight: Tensor) -> Tensor:
        """The weights, 0 in the two folds."""
        fold, second = y[..., -1], torch.remainder(self.held + 1.0, self.replicates)
        return weight * ((fold != self.held) & (fold != second))


def copies(x: np.ndarray, y: Tensor) -> np.ndarray | None:
    r"""The number of its group for every row, where rows are copies of each other; None where none are.

    A copy among the training rows would tell a network the target of a row that it leaves out. Among few
    categories many rows are equal without being copies, but then equal inputs have different targets, too.
    So equal rows are copies if the targets of equal inputs agree far more often than by chance,

    .. math:: \kappa = \frac{P(y_i = y_j \mid x_i = x_j) - P(y_i = y_j)}{1 - P(y_i = y_j)} \ge 0.9,

    and no group holds more than a twentieth of the rows.
    """
    by_input = content_keys(torch.from_numpy(x)).numpy()
    pairs = _equal_pairs(by_input)
    if pairs == 0:
        return None
    by_target = content_keys(y.reshape(len(y), -1)).numpy()
    _, group, sizes = np.unique(
        np.stack([by_input, by_target]), axis=1, return_inverse=True, return_counts=True
    )
    chance = _equal_pairs(by_target) / (len(x) * (len(x) - 1.0))
    agreement = (_equal_pairs(group) / pairs - chance) / max(1.0 - chance, 1e-9)
    if agreement < _LEAST_AGREEMENT or sizes.max() > _MOST_COPIES * len(x):
        return None
    return group.reshape(-1)


def repeated(x: np.ndarray, y: Tensor, weight: np.ndarray) -> np.ndarray | None:
    """Row numbers, each repeated as often as its weight says; None if the rows need no repetition.

    In a table of counts (whole weights, equal inputs with different targets), leaving out a row would leave
    out a whole cell. Repeated rows are left out one by one.
    """
    if weight.max() <= 1.0 or (weight != np.round(weight)).any():
        return None
    most = max(_MOST_REPEATED, 2 * len(x))
    by_input = content_keys(torch.from_numpy(x)).numpy()
    by_both = np.stack([by_input, content_keys(y.reshape(len(y), -1)).numpy()])
    if weight.sum() > most or len(np.unique(by_input)) == np.unique(by_both, axis=1).shape[1]:
        return None
    return np.repeat(np.arange(len(x)), weight.astype(np.int64))


def _equal_pairs(keys: np.ndarray) -> float:
    """How many ordered pairs of different rows have the same key."""
    sizes = np.unique(keys, return_counts=True)[1].astype(np.float64)
    return float((sizes * (sizes - 1.0)).sum())


def folds(y: Tensor, count: int, seed: int, classes: bool, group: np.ndarray | None = None) -> Tensor:
    """A fold for every row, stratified by class; one for all rows of a ``group``."""
    if group is not None:
        _, first, place = np.unique(group, return_index=True, return_inverse=True)
        return folds(y[torch.from_numpy(first)], count, seed, classes)[torch.from_numpy(place.reshape(-1))]
    random = np.random.RandomState(seed)
    found = np.empty(len(y))
    labels = y.numpy() if classes else np.zeros(len(y))
    start = 0
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        found[rows] = (start + np.arange(len(rows))) % count
        start += len(rows)
    return torch.from_numpy(found).float()


@dataclass(frozen=True)
class Choice:
    """The places of the networks that predict, the scale of their outputs, the correction of intervals.

    Several targets of a regression have a scale and a correction each.
    """

    places: list[int]
    logit_scale: float | np.ndarray = 1.0
    levels: tuple[calibration.CentralLevels, ...] = (calibration.CentralLevels(),)


def leaves_out(k: int, replicates: int) -> tuple[int, int]:
    """The folds that replicate k leaves out; see :class:`Folded`.

    >>> [leaves_out(k, 5) for k in range(5)]
    [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]
    """
    return k, (k + 1) % replicates


def of_all_rows(inclusion: np.ndarray, count: int) -> np.ndarray:
    r"""Inclusion probabilities given all rows, from networks that leave out two of ``count`` folds.

    Rows add evidence to the prior log-odds of a column, roughly in proportion to their number. So networks
    that miss a share of the rows have probabilities too close to the prior one, :math:`\rho`, and

    .. math:: \operatorname{logit} p' = \operatorname{logit} \rho
        + \frac{n}{n - 2} (\operatorname{logit} p - \operatorname{logit} \rho)

    with n the number of folds and :math:`\rho` the mean inclusion, which a learned inclusion rate tends to.
    Columns that were dropped have an inclusion of 0 and keep it.

    This does not hold for columns that can replace each other: which of them a network includes is chance,
    whatever the number of rows.

    >>> of_all_rows(np.array([0.9, 0.3, 0.1, 0.1, 0.1, 0.0]), 10).round(2).tolist()
    [0.95, 0.3, 0.07, 0.07, 0.07, 0.0]
    """
    inclusion = inclusion.clip(0.0, 1.0)  # sums of probabilities may end a rounding error above 1
    possible = inclusion[inclusion > 0.0]
    rate = float(possible.mean()) if len(possible) else 0.0
    if count <= 2 or not 0.0 < rate < 1.0:
        return inclusion
    return np.asarray(expit(logit(rate) + count / (count - 2.0) * (logit(inclusion) - logit(rate))))


def _drawn_left_out(
    ensemble: Ensemble, sets: Sequence[Sequence[int]], x: np.ndarray, fold: Tensor, count: int
) -> Tensor:
    """Outputs of the networks that did not see a row, ``(sets, 2, draws, rows, outputs)``.

    First those of the networks whose first fold it is, then those of the networks whose second fold it is.
    """
    found = torch.empty(0)
    for k in range(count):
        after = (fold - k) % count
        mine = torch.nonzero(after <= 1).flatten()
        if not len(mine):
            continue
        chosen = [each[k] for each in sets]
        parts = [o for _, o in ensemble.draws(x[mine.numpy()], _DRAWS, "average", 0, "cpu", chosen)]
        outputs = torch.cat(parts, dim=2)
        if not len(found):
            found = outputs.new_empty(len(sets), 2, _DRAWS, len(x), *outputs.shape[3:])
        for which in (0, 1):
            own = after[mine] == which
            found[:, which, :, mine[own]] = outputs[:, :, own]
    return found


def choose(
    ensemble: Ensemble,
    sets: Sequence[Sequence[int]],
    x: np.ndarray,
    y: Tensor,
    fold: Tensor,
    weight: np.ndarray,
    calibrate: bool,
    effort: float = 1.0,
    safe: int | None = None,
    most: int = 2,
) -> Choice:
    """The networks that predict left-out rows best, and the scale of their outputs.

    Network k of each of the ``sets`` leaves out two folds (:func:`leaves_out`), so two networks of a set did
    not see a row of these folds, and their average predicts it. One set predicts, or up to ``most`` of them
    together; the ``safe`` set, unless others are better by more than the standard error of the difference.
    ``effort`` reduces the number of rows, for a fit with little time.
    """
    count = min(map(len, sets))
    rows = np.flatnonzero(fold.numpy() < count)
    rows = rows[some_rows(len(rows), max(1, int(effort * _MOST_ROWS)))]
    if len(rows) < _LEAST_ROWS:
        return Choice(list(sets[0]))
    own, w, at_row = fold[rows].long(), torch.from_numpy(weight[rows]), {}
    drawn = _drawn_left_out(ensemble, sets, x[rows], own, count)
    for i, after in itertools.product(range(len(sets)), (0, 1)):
        at = torch.tensor(list(sets[i]))[(own - after) % count]
        data = drawn[i][after], y[rows], w, ensemble.likelihoods, at.expand(_DRAWS, -1)
        at_row[i, after] = calibration.HeldOut(*data)

    def predicted(chosen: Sequence[int], which: Sequence[int]) -> calibration.HeldOut:
        """The rows as predicted by the first, the second or both of the networks that did not see them."""
        return calibration.Joined([at_row[i, after] for i in chosen for after in which])

    found = []
    for size in range(1, min(most, len(sets)) + 1):
        for chosen in itertools.combinations(range(len(sets)), size):
            held = predicted(chosen, (0, 1))
            found.append((held.coarse() if calibrate else (held(0.0), 0.0), chosen, held))
    if found[0][2].std is not None:
        found = _accurate(found, w)
    best = min(found, key=lambda each: each[0][0])
    if safe is not None:
        other = next(each for each in found if each[1] == (safe,))
        best = best if _is_better(best, other, w) else other
    _, chosen, held = best
    places = [k for i in chosen for k in sets[i]]
    if not calibrate:
        return Choice(places)
    alone = [predicted(chosen, (which,)).targets() for which in (0, 1)]
    scales, levels = [], []
    for both, first, second in zip(held.targets(), *alone):
        scale, of_target = both.fine(both.coarse()[1])
        log_alone = sum(math.log(each.fine(each.coarse()[1])[0]) for each in (first, second)) / 2.0
        # The more networks are averaged, the better and the flatter the average: the logarithm of its scale
        # is nearly linear in the inverse of their number.
        log_pair = math.log(scale)
        scales.append(math.exp(log_pair + (1.0 - 2.0 / count) * (log_pair - log_alone)))
        levels.append(of_target)
    return Choice(places, scales[0] if len(scales) == 1 else np.array(scales), tuple(levels))


def _accurate(found: list[tuple[Any, ...]], weight: Tensor) -> list[tuple[Any, ...]]:
    """The candidates whose squared error is not above the lowest by more than the standard error.

    A mixture with a poor model may have a higher likelihood, since its tails are heavier, and a worse mean.
    """
    errors = [weight * each[2].squared_errors() for each in found]
    excess = [error - min(errors, key=lambda each: float(each.sum())) for error in errors]
    allowed = [float(each.std()) * math.sqrt(len(each)) for each in excess]
    return [each for each, more, most in zip(found, excess, allowed) if float(more.sum()) <= most]


def _is_better(one: tuple[Any, ...], other: tuple[Any, ...], weight: Tensor) -> bool:
    """Whether one candidate is better than another by more than the standard error of the difference."""
    gain = weight * (other[2].by_row(other[0][1]) - one[2].by_row(one[0][1]))
    return bool(gain.sum() > gain.std() * math.sqrt(len(gain)))
