r"""The shared part of the spike-and-slab estimators: priors, sampling, fitted attributes.

.. math::
    \eta = b + \sum_j \gamma_j w_j x_j, \qquad \gamma_j \sim \operatorname{Bernoulli}(\alpha), \quad
    w_j \sim \mathcal N(0, \tau)

The posterior over :math:`\gamma` is sampled (:mod:`sparsebnn.selection.structure`), so that inclusion
probabilities are right under correlation, up to Monte Carlo error, where variational ones are not.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from sparsebnn.checks import check_choice, check_count, check_number, check_table_of_numbers, invalid
from sparsebnn.io.cells import absent
from sparsebnn.selection.credible_sets import RARE, credible_sets
from sparsebnn.selection.glm_marginal import GLMEvidence
from sparsebnn.selection.structure import Evidence, sample_structures, size_log_prior

SLAB_GRID = tuple(float(10.0**power) for power in np.arange(-3.0, 2.01, 0.5))


class SpikeSlab(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """The shared part of :class:`SpikeSlabRegression` and :class:`SpikeSlabClassifier`; not used alone."""

    _kind = "gaussian"

    def __init__(
        self,
        *,
        inclusion_prob: Any = "learned",
        slab_var: Any = "learned",
        standardize: bool = True,
        intercept_std: float | None = None,
        n_iter: int = 3000,
        burn_in: int = 500,
        n_chains: int = 4,
        temperatures: Sequence[float] = (1.0, 0.6, 0.3),
        target_ess: float | None = 4000.0,
        n_draws: int = 1000,
        start: Any = None,
        coverage: float = 0.95,
        min_purity: float = 0.5,
        min_probability: float | None = None,
        max_false_members: float | None = 2.0,
        importance_draws: int = 64,
        max_seconds: float | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.inclusion_prob = inclusion_prob
        self.slab_var = slab_var
        self.standardize = standardize
        self.intercept_std = intercept_std
        self.n_iter = n_iter
        self.burn_in = burn_in
        self.n_chains = n_chains
        self.temperatures = temperatures
        self.target_ess = target_ess
        self.n_draws = n_draws
        self.start = start
        self.coverage = coverage
        self.min_purity = min_purity
        self.min_probability = min_probability
        self.max_false_members = max_false_members
        self.importance_draws = importance_draws
        self.max_seconds = max_seconds
        self.random_state = random_state
        self.verbose = verbose

    def _evidence(
        self, x: np.ndarray, y: np.ndarray, slab_vars: np.ndarray, var: float, seed: int
    ) -> Evidence:
        draws = check_count(self.importance_draws, "importance_draws", type(self).__name__, least=0)
        return GLMEvidence(x, y, slab_vars, self._kind, var, draws, seed)

    def _priors(self, p: int) -> tuple[np.ndarray, np.ndarray, float]:
        """The log prior by size, the grid of slab variances, and the prior variance of the intercept."""
        owner = type(self).__name__
        prob: Any = self.inclusion_prob
        if isinstance(prob, str):
            check_choice(prob, ("learned",), "inclusion_prob", owner)
            prob = (1.0, float(p))
        elif np.ndim(prob) == 1:
            if len(prob) != 2 or not all(isinstance(v, float | int) and v > 0 for v in prob):
                raise invalid("inclusion_prob", owner, "a probability or two positive numbers", prob)
            prob = (float(prob[0]), float(prob[1]))
        else:
            said = "strictly between 0 and 1"
            prob = check_number(prob, "inclusion_prob", owner, said, lambda v: 0.0 < v < 1.0)
        slab: Any = self.slab_var
        if isinstance(slab, str):
            check_choice(slab, ("learned",), "slab_var", owner)
            slab = SLAB_GRID
        grid = [
            check_number(v, "slab_var", owner, "positive and finite", lambda v: 0.0 < v < math.inf)
            for v in np.atleast_1d(np.asarray(slab, dtype=object))
        ]
        width = math.inf
        if self.intercept_std is not None:
            width = check_number(self.intercept_std, "intercept_std", owner, "positive", lambda v: v > 0.0)
        return size_log_prior(p, prob), np.sort(np.array(grid)), width**2

    def _sample(self, X: np.ndarray, y: np.ndarray) -> Any:
        """Sample structures and coefficients and set the fitted attributes."""
        owner = type(self).__name__
        for name, least in (("n_iter", 1), ("burn_in", 0), ("n_chains", 1), ("n_draws", 1)):
            check_count(getattr(self, name), name, owner, least=least)
        ladder = [float(b) for b in self.temperatures]
        if not ladder or ladder[0] != 1.0 or min(ladder) <= 0.0 or sorted(ladder, reverse=True) != ladder:
            raise invalid("temperatures", owner, "1.0 and then falling, positive numbers", self.temperatures)
        for name in ("max_seconds", "target_ess"):
            if getattr(self, name) is not None:
                check_number(getattr(self, name), name, owner, "positive", lambda v: v > 0.0)
        center, scale = X.mean(0), X.std(0)
        # Rounding leaves a constant column with a tiny spread.
        kept = np.nonzero(scale > 1e-10 * np.maximum(np.abs(center), 1e-300))[0]
        if not len(kept):
            raise invalid("X", owner, "a table with a column that varies", "constant columns only")
        center, scale = (
            (center[kept], scale[kept]) if self.standardize else (np.zeros(len(kept)), np.ones(len(kept)))
        )
        x = (X[:, kept] - center) / scale
        log_prior, grid, intercept_var = self._priors(len(kept))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        start = None
        if self.start is not None:
            start = np.atleast_2d(np.asarray(self.start, dtype=np.float64))
            if start.shape[1] != X.shape[1] or not ((start >= 0.0) & (start <= 1.0)).all():
                expected = f"inclusion probabilities of {X.shape[1]} inputs, one row or several"
                raise invalid("start", owner, expected, f"shape {start.shape}")
            start = start[:, kept]
        evidence = self._evidence(x, y, grid, intercept_var, seed)
        found = sample_structures(
            evidence,
            log_prior,
            n_iter=self.n_iter,
            burn_in=self.burn_in,
            n_chains=self.n_chains,
            temperatures=ladder,
            target_ess=self.target_ess,
            start=start,
            seed=seed,
            max_seconds=self.max_seconds,
            verbose=self.verbose,
        )
        width = X.shape[1]
        self.inclusion_ = np.zeros(width)
        self.inclusion_[kept] = found.inclusion
        self._samples, self._kept = found, kept
        self._set_coefficients(evidence, grid, center, scale, width, seed)
        self.slab_var_ = float(np.exp(np.log(grid)[found.slab].mean()))
        self.diagnostics_ = self._widened(found.diagnostics, kept, width)
        if isinstance(evidence, GLMEvidence):
            self.diagnostics_["importance_error"] = float(np.median(evidence.errors))
        active = np.nonzero(found.inclusion >= min(RARE, found.inclusion.max()))[0]
        names = [self._name(i) for i in kept[active]]
        sets = credible_sets(
            found.redrawn(active),
            x[:, active],
            coverage=self.coverage,
            min_purity=self.min_purity,
            min_probability=self.min_probability,
            max_false_members=self.max_false_members,
            names=names,
        )
        self.credible_sets_ = [one.moved(kept[active]) for one in sets]
        self._warn()
        return self

    def _name(self, column: int) -> str:
        return str(self.feature_names_in_[column]) if hasattr(self, "feature_names_in_") else f"x{column + 1}"

    def _set_coefficients(
        self,
        evidence: Evidence,
        grid: np.ndarray,
        center: np.ndarray,
        scale: np.ndarray,
        width: int,
        seed: int,
    ) -> None:
        """Means and draws of the coefficients, in the units of the columns."""
        gamma, slab = self._samples.spread(self.n_draws)
        drawn = evidence.draw(gamma, slab, np.random.default_rng(seed + 1))
        rows = np.repeat(np.arange(len(gamma)), drawn.columns.shape[1])

        def table(values: np.ndarray) -> Any:
            place = (rows, self._kept[drawn.columns.ravel()])
            own = (values / scale[drawn.columns]).ravel() if values.size else values.ravel()
            return sparse.csr_matrix((own, place), shape=(len(gamma), width))

        middle = np.zeros(width)
        middle[self._kept] = center
        self._draws, mean = table(drawn.values), table(drawn.mean)
        self._intercepts = drawn.intercept - self._draws @ middle
        self.coef_ = np.asarray(mean.mean(0)).ravel()
        self.intercept_ = float((drawn.intercept_mean - mean @ middle).mean())
        self._noise_vars = drawn.noise_var

    def _widened(self, diagnostics: dict[str, Any], kept: np.ndarray, width: int) -> dict[str, Any]:
        """Diagnostics with an entry for each column; a constant one has nothing to converge."""
        full = dict(diagnostics)
        for name, value in (("rhat", 1.0), ("ess", float(diagnostics["kept"] * diagnostics["chains"]))):
            full[name] = np.full(width, value)
            full[name][kept] = diagnostics[name]
        full["constant_columns"] = sorted(set(range(width)) - set(kept.tolist()))
        full["converged"] = self._samples.converged
        return full

    def _warn(self) -> None:
        found = self.diagnostics_
        if found["converged"]:
            return
        reason = f"R-hat {found['max_rhat']:.2f} (at most 1.05), effective sample size {found['min_ess']:.0f}"
        early = " Sampling was stopped early." if found["stopped_early"] else ""
        message = (
            f"{type(self).__name__}: the chains have not converged: {reason} (at least 100).{early} "
            "Inclusion probabilities may be off; raise n_iter, burn_in or n_chains, and see diagnostics_."
        )
        warnings.warn(message, ConvergenceWarning, stacklevel=4)

    def _check_numbers(self, X: Any, y: Any = None) -> None:
        owner = type(self).__name__
        advice = "Code text as numbers and fill gaps first, or use SparseBNNRegressor or SparseBNNClassifier."
        check_table_of_numbers(X, owner, advice)
        if not isinstance(y, list | tuple) and not hasattr(y, "dtype"):
            return
        cells = np.asarray(y)
        if cells.dtype.kind in "Mm":
            raise invalid(
                "y", owner, "numbers or labels", f"{cells.dtype.name}", "Turn times into numbers first."
            )
        gaps = sum(map(absent, cells)) if cells.dtype == object and cells.ndim == 1 else 0
        if gaps:
            rows = f"{gaps:,} row{'s' if gaps > 1 else ''}"
            raise invalid("y", owner, "known in every row", f"missing values in {rows}", "Drop these rows.")
        if self._kind != "bernoulli" and cells.dtype.kind in "OUS":
            text = next((str(cell) for cell in cells.ravel() if isinstance(cell, str)), None)
            if text is not None:
                raise invalid("y", owner, "numbers", repr(text), "Classes need SpikeSlabClassifier.")

    def _checked(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        self._check_numbers(X)
        return validate_data(self, X, reset=False, dtype=np.float64)

    def _predictors(self, X: np.ndarray) -> np.ndarray:
        """Linear predictors of the posterior draws, (rows, draws)."""
        return np.asarray(X @ self._draws.T) + self._intercepts

    def sample_inclusions(self, *, redrawn: bool = False) -> np.ndarray:
        """The sampled structures (samples, columns), True where a column is included.

        With ``redrawn``, the samples of which ``credible_sets_`` are made: each structure several times, with
        one included column in places drawn from their exact distribution given the others. Shares of them
        have less Monte Carlo error. For logistic and Poisson models they are the sampled structures.
        """
        check_is_fitted(self)
        found = self._samples.redrawn() if redrawn else self._samples.gammas()
        samples = np.zeros((len(found), self.n_features_in_), dtype=bool)
        samples[:, self._kept] = found
        return samples

    def _get_support_mask(self) -> np.ndarray:
        check_is_fitted(self)
        return self.inclusion_ > 0.5
