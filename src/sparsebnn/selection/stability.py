r"""Stability selection with complementary pairs: choose what a method chooses on most halves of the rows.

The rows are divided into halves B times. With :math:`\hat\Pi_j` the share of the 2B halves on which input j
is chosen, the stable inputs are those with :math:`\hat\Pi_j \ge \tau`. For inputs whose chance to be chosen
on a half is at most :math:`\theta = q/p` (q inputs are chosen on average), Shah and Samworth (JRSS-B 75:55)
bound the expected number that are stable all the same,

.. math::
    \mathbb E\,|\hat S_\tau \cap L_\theta| \le C(\tau, B)\, \theta\, q, \qquad
    C = \frac{1}{2\tau - 1} \;\text{ or, if unimodal, }\;
    \begin{cases} \frac{1}{2(2\tau - 1 - 1/(2B))} & \tau \le 3/4 \\
    \frac{4(1 - \tau + 1/(2B))}{1 + 1/B} & \tau > 3/4 \end{cases}

The first constant needs no assumption on the method, the model or the inputs. The second needs the number of
pairs in which both halves choose j to have a unimodal distribution, and :math:`\theta \le 1/\sqrt 3`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsebnn.checks import check_count, check_number, check_seed, invalid

__all__ = ["Stability", "error_constant", "stability_selection"]


@dataclass(frozen=True)
class Stability:
    """How often each input was chosen on halves of the rows, and which are stable.

    ``expected_false`` bounds the expected number of stable inputs among those that are chosen on a half with
    a probability of at most ``mean_chosen / inputs``; ``expected_false_unimodal`` is the sharper bound.
    """

    frequency: np.ndarray
    chosen: np.ndarray
    threshold: float
    mean_chosen: float
    expected_false: float
    expected_false_unimodal: float
    pairs: int


def error_constant(threshold: float, pairs: int, theta: float, unimodal: bool = False) -> float:
    """C of the bound; infinity where the unimodal one does not apply.

    >>> round(error_constant(0.6, 50, 0.1), 6), round(error_constant(0.9, 50, 0.1, unimodal=True), 4)
    (5.0, 0.4314)
    """
    if not unimodal:
        return 1.0 / (2.0 * threshold - 1.0)
    least = min(0.5 + theta**2, 0.5 + 0.5 / pairs + 0.75 * theta**2)
    if theta > 1.0 / math.sqrt(3.0) or threshold <= least:
        return math.inf
    if threshold <= 0.75:
        return 1.0 / (2.0 * (2.0 * threshold - 1.0 - 0.5 / pairs))
    return 4.0 * (1.0 - threshold + 0.5 / pairs) / (1.0 + 1.0 / pairs)


def stability_selection(
    choose: Callable[[np.ndarray, np.ndarray], Any],
    X: Any,
    y: Any,
    *,
    n_pairs: int = 50,
    threshold: float = 0.75,
    seed: int = 0,
    n_jobs: int | None = None,
) -> Stability:
    """Choose inputs by how often ``choose(X, y)`` chooses them on halves of the rows.

    ``choose`` returns True or False for each column, or the numbers of the chosen columns. Let it choose a
    fixed number of inputs, such as the q most probable: the fewer it chooses, the smaller the bound.
    ``n_jobs`` halves are worked on at a time, through joblib and the backend of ``joblib.parallel_config``;
    None is one after the other, without joblib.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 20))
    >>> y = X[:, 3] + rng.standard_normal(200)
    >>> found = stability_selection(lambda X, y: np.argsort(-np.abs(X.T @ y))[:2], X, y)
    >>> np.nonzero(found.chosen)[0].tolist(), round(found.expected_false, 3)
    ([3], 0.4)
    """
    owner = "stability_selection"
    x, target = np.asarray(X), np.asarray(y)
    if x.ndim != 2 or len(x) < 4 or len(target) != len(x):
        expected = "a table with at least 4 rows, and a target for each"
        raise invalid("X", owner, expected, f"shapes {x.shape} and {target.shape}")
    pairs = check_count(n_pairs, "n_pairs", owner)
    said = "above 0.5 and at most 1"
    threshold = check_number(threshold, "threshold", owner, said, lambda v: 0.5 < v <= 1.0)
    rng = np.random.default_rng(check_seed(seed, "seed", owner, least=0))
    half = len(x) // 2
    orders = [rng.permutation(len(x)) for _ in range(pairs)]
    halves = [rows for order in orders for rows in (order[:half], order[half : 2 * half])]
    if n_jobs is None:
        found = [choose(x[rows], target[rows]) for rows in halves]
    else:
        from joblib import Parallel, delayed

        found = Parallel(n_jobs=n_jobs)(delayed(choose)(x[rows], target[rows]) for rows in halves)
    frequency = np.sum([_mask(each, x.shape[1], owner) for each in found], 0) / (2 * pairs)
    mean = float(frequency.sum())
    theta = mean / x.shape[1]
    bounds = [error_constant(threshold, pairs, theta, unimodal) * theta * mean for unimodal in (False, True)]
    # Shares are multiples of 1/(2B): rounding must not lose one that equals the threshold.
    chosen = frequency >= threshold - 1e-9
    return Stability(frequency, chosen, threshold, mean, bounds[0], min(bounds), pairs)


def _mask(given: Any, width: int, owner: str) -> np.ndarray:
    found = np.asarray(given)
    if found.dtype == bool and found.shape == (width,):
        return found
    whole = found.ndim == 1 and (found.size == 0 or np.issubdtype(found.dtype, np.integer))
    if not whole or (found.size and not (found.min() >= 0 and found.max() < width)):
        expected = f"True or False for each of {width} columns, or column numbers"
        raise invalid("choose", owner, f"a function that returns {expected}", f"shape {found.shape}")
    mask = np.zeros(width, dtype=bool)
    mask[found.astype(int)] = True
    return mask
