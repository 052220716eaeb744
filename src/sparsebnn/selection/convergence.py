r"""Have chains of inclusions converged? Split :math:`\hat R` and effective sample sizes.

Each chain is cut in half. With W the mean variance within halves and B/n the variance of their n-draw means

.. math::
    \hat R = \sqrt{\frac{(n-1)W/n + B/n}{W}}, \qquad
    \mathrm{ESS} = \frac{m n}{1 + 2\sum_t \hat\rho_t}

where the autocorrelations of all m halves are pooled and summed while neighboring pairs stay positive
(Geyer).
"""

from __future__ import annotations

import numpy as np


def _halves(draws: np.ndarray) -> np.ndarray:
    """(draws, chains, …) to (draws / 2, 2 · chains, …)."""
    half = len(draws) // 2
    return np.concatenate([draws[:half], draws[len(draws) - half :]], axis=1).astype(np.float64)


def _variances(halves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n = len(halves)
    within = halves.var(0, ddof=1).mean(0)
    return within, (n - 1) / n * within + halves.mean(0).var(0, ddof=1)


def split_rhat(draws: np.ndarray) -> np.ndarray:
    """Split R̂ of (draws, chains, variables); 1 where nothing varies at all.

    >>> stuck = np.zeros((100, 2, 1)) + np.array([0.0, 1.0])[None, :, None]
    >>> split_rhat(stuck).tolist()
    [inf]
    """
    within, total = _variances(_halves(draws))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt(total / within)
    return np.where(total <= 0.0, 1.0, np.where(within <= 0.0, np.inf, ratio))


def effective_sample_size(draws: np.ndarray) -> np.ndarray:
    """Effective sample size of (draws, chains, variables); the number of draws where nothing varies.

    >>> rng = np.random.default_rng(0)
    >>> bool(700 < effective_sample_size(rng.random((500, 2, 1)) < 0.3)[0] <= 1000)
    True
    """
    halves = _halves(draws)
    n, m = halves.shape[:2]
    within, total = _variances(halves)
    centered = halves - halves.mean(0)
    spectrum = np.fft.rfft(centered, 2 * n, axis=0)
    covariance = np.fft.irfft((spectrum * spectrum.conj()).real, 2 * n, axis=0)[:n].mean(1) / n
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1.0 - (within - covariance * n / (n - 1)) / total
    pairs = rho[: n - n % 2].reshape(n // 2, 2, -1).sum(1)
    # The initial positive and monotone sequence of sums of neighbors.
    positive = np.cumprod(pairs > 0.0, axis=0).astype(bool)
    pairs = np.minimum.accumulate(np.where(positive, pairs, 0.0), axis=0)
    time = np.maximum(2.0 * pairs.sum(0) - 1.0, 1.0)
    return np.where(total > 0.0, m * n / time, m * n)
