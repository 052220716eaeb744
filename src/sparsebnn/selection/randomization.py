r"""Conditional randomization: p-values for "y depends on input j given all others".

If the distribution of :math:`x_j` given the other inputs is known, copies of the column can be drawn that
have nothing to do with y, and a statistic of the column compared with those of its copies (Candès et al.,
JRSS-B 80:551). Here the inputs are Gaussian, so :math:`x_j = X_{-j} b + e`, :math:`e \sim \mathcal N(0,
s^2)`, and the statistic is the distilled one (Liu et al., Biometrika 109:277)

.. math::
    T = |r^\top (x_j - X_{-j} b)|, \qquad r = y - f(X_{-j})

with f any prediction of y from the *other* inputs. Copies have :math:`T \sim |\mathcal N(0, s^2
\|r\|^2)|` given :math:`X_{-j}` and y, so the p-value needs no simulation:

.. math:: p = 2\,\Phi\!\left(-\frac{T}{s\,\|r\|}\right)

It is valid whatever the distribution of y and however poor f, under the assumption that rows of X are
independent and Gaussian with the covariance that is given or estimated. A better f gives more power.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsebnn.checks import check_number, check_table_of_numbers, invalid

__all__ = ["adjusted_p_values", "randomization_p_values"]

_SINGULAR = 1e-10  # the smallest eigenvalue of correlations
_PENALTIES = 10.0 ** np.arange(-3.0, 3.1, 0.5)


def _ridge(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Ridge predictions of the rows, with the penalty that generalized cross-validation prefers."""
    u, d, _ = np.linalg.svd(x, full_matrices=False)
    along = u.T @ y
    best, found = math.inf, np.zeros_like(y)
    for penalty in _PENALTIES * len(y):
        shrink = d**2 / (d**2 + penalty)
        fitted = u @ (shrink * along)
        score = ((y - fitted) ** 2).sum() / (1.0 - shrink.sum() / len(y)) ** 2
        if score < best:
            best, found = score, fitted
    return found


def randomization_p_values(
    X: Any,
    y: Any,
    *,
    covariance: Any = None,
    predict: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """A p-value for each column of Gaussian inputs ``X``: does ``y`` depend on it given the others?

    ``covariance`` is that of the inputs; without it the sample covariance is used, which needs many more rows
    than columns (at least twice as many are required) and makes the p-values approximate.
    ``predict(others, y)`` returns predictions of y from the other columns, such as a network's; by default
    ridge regression.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((300, 4))
    >>> p = randomization_p_values(X, X[:, 1] + rng.standard_normal(300), covariance=np.eye(4))
    >>> (p < 0.01).tolist()
    [False, True, False, False]
    """
    owner = "randomization_p_values"
    check_table_of_numbers(X, owner)
    x, target = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] < 2 or target.shape != x.shape[:1]:
        expected = "a table with at least 2 columns, and a target for each row"
        raise invalid("X", owner, expected, f"shapes {x.shape} and {target.shape}")
    rows, width = x.shape
    x, target = x - x.mean(0), target - target.mean()
    if covariance is None:
        if rows < 2 * width:
            advice = "Pass the covariance of the inputs, known or estimated from other rows."
            raise invalid("covariance", owner, f"given for {rows} rows of {width} columns", None, advice)
        # Residuals of an estimated regression are shorter than those of the true one.
        cov, spread = x.T @ x / (rows - 1), (rows - 1) / (rows - width)
    else:
        cov, spread = np.asarray(covariance, dtype=np.float64), 1.0
        if cov.shape != (width, width):
            raise invalid("covariance", owner, f"of shape ({width}, {width})", f"shape {cov.shape}")
    std = np.sqrt(np.maximum(np.diag(cov), 0.0))
    # In units of the columns: rounding can make the inverse of a singular matrix look fine.
    if not (std > 0.0).all() or np.linalg.eigvalsh(cov / np.outer(std, std))[0] < _SINGULAR:
        advice = "Remove duplicated and constant columns, or add a small multiple of the identity."
        raise invalid("covariance", owner, "invertible", "a singular matrix", advice)
    precision = np.linalg.inv(cov)
    made = predict or _ridge
    found = np.ones(width)
    for j in range(width):
        others = np.delete(np.arange(width), j)
        residual = target - np.asarray(made(x[:, others], target), dtype=np.float64)
        away = x[:, j] + x[:, others] @ precision[others, j] / precision[j, j]
        size = math.sqrt(spread / max(precision[j, j], 1e-300) * float(residual @ residual))
        if size > 0.0:
            found[j] = math.erfc(abs(float(residual @ away)) / size / math.sqrt(2.0))
    return found


def adjusted_p_values(p: Any) -> np.ndarray:
    """Benjamini and Hochberg's adjustment: those at most a level have a false discovery rate at most there.

    For p-values that are independent or positively dependent.

    >>> adjusted_p_values([0.01, 0.04, 0.03, 0.5]).round(4).tolist()
    [0.04, 0.0533, 0.0533, 0.5]
    """
    values = np.asarray(p, dtype=np.float64)
    if values.ndim != 1:
        raise invalid("p", "adjusted_p_values", "a vector", f"shape {values.shape}")
    for value in values:
        check_number(float(value), "p", "adjusted_p_values", "from 0 to 1", lambda v: 0.0 <= v <= 1.0)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * len(values) / np.arange(1, len(values) + 1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return adjusted
