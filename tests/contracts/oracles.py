"""What the library is compared with: log densities from their definitions, and the statistics of a test.

Nothing here imports sparsebnn: densities come from torch.distributions and scipy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.special
import scipy.stats
from torch import Tensor
from torch.distributions import Bernoulli, Normal

SIGMAS = 4.0


def mean_and_error(samples: Tensor) -> tuple[float, float]:
    """Mean of independent samples and its computed standard error."""
    return float(samples.mean()), float(samples.std()) / len(samples) ** 0.5


def assert_agree(pairs: Sequence[tuple[tuple[float, float], tuple[float, float]]]) -> None:
    """Each (value, standard error) agrees with its partner, and together they show no drift.

    One comparison cannot see a bias of one standard error; the sum of twenty can.
    """
    z = np.array([(a - b) / np.hypot(sa, sb) for (a, sa), (b, sb) in pairs])
    assert np.isfinite(z).all(), z
    assert np.abs(z).max() < SIGMAS, f"worst {z[np.abs(z).argmax()]:.2f} standard errors: {np.round(z, 2)}"
    drift = z.sum() / len(z) ** 0.5
    assert abs(drift) < SIGMAS, f"drift of {drift:.2f} standard errors: {np.round(z, 2)}"


def moment_errors(samples: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, its error, variance, its error (from the fourth moment), over the first axis."""
    n = len(samples)
    mean, var = samples.mean(0), samples.var(0)
    fourth = ((samples - mean) ** 4).mean(0)
    return mean, (var / n).sqrt(), var, ((fourth - var**2).clamp_min(0) / n).sqrt()


# --- log q − log p ----------------------------------------------------------------------------------


def gaussian_log_ratio(w: Tensor, mean: Tensor, std: Tensor, prior_mean: Tensor, prior_std: Tensor) -> Tensor:
    """log N(w; mean, std²) − log N(w; prior), elementwise."""
    return Normal(mean, std).log_prob(w) - Normal(prior_mean, prior_std).log_prob(w)


def spike_slab_log_ratio(
    w: Tensor, gamma: Tensor, mean: Tensor, std: Tensor, alpha: Tensor, prior: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """log q(w, γ) − log p(w, γ), elementwise; where γ = 0 both are the same point mass.

    ``prior`` is (inclusion probability, mean, std).
    """
    prior_alpha, prior_mean, prior_std = prior
    structure = Bernoulli(alpha).log_prob(gamma) - Bernoulli(prior_alpha).log_prob(gamma)
    return structure + gamma * gaussian_log_ratio(w, mean, std, prior_mean, prior_std)


def gamma_precision_log_density(count: int, sum_squares: np.ndarray, shape: float, rate: float) -> np.ndarray:
    """Log density of ``count`` weights whose shared precision is Gamma(shape, rate).

    Integrating the precision out gives a multivariate t with 2·shape degrees of freedom; it is
    spherical, so any vector of the right length will do.
    """
    if count == 0:
        return np.zeros_like(sum_squares)
    at = np.zeros((*np.shape(sum_squares), count))
    at[..., 0] = np.sqrt(sum_squares)
    t = scipy.stats.multivariate_t(shape=np.eye(count) * rate / shape, df=2.0 * shape)
    return np.asarray(t.logpdf(at))


def structure_log_mass(included: np.ndarray, total: int, c: float, d: float) -> np.ndarray:
    """Log mass of one structure with that many weights when its inclusion rate is Beta(c, d)."""
    return scipy.stats.betabinom(total, c, d).logpmf(included) - np.log(scipy.special.comb(total, included))
