"""``SparseBNNRegressor``: numbers with their uncertainty from a sparse Bayesian neural network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d

from sparsebnn.checks import check_choice, check_count, invalid
from sparsebnn.estimators.base import SparseBNN
from sparsebnn.estimators.columns import far_limits, middle_and_std
from sparsebnn.estimators.ensemble import mixture_quantiles
from sparsebnn.likelihoods import Gaussian, Likelihood

__all__ = ["SparseBNNRegressor"]


class SparseBNNRegressor(RegressorMixin, SparseBNN):  # type: ignore[misc]
    """Regression by sparse Bayesian neural networks; the defaults work on most tables.

    Parameters as for :class:`SparseBNNClassifier`, less ``class_weight``, and

    calibrate : False by default: the learned noise needs no correction, and leaving rows out costs accuracy.
        (With 5,000 rows or more, each replicate leaves out a fifth anyway, to select columns.)
    noise : "learned", one noise level per target, or "heteroscedastic", one that depends on the row
        (docs/studies/defaults.md compares them). With a few hundred rows its intervals are somewhat too wide;
        ``calibrate=True`` helps.

    ``y`` may have several columns and is standardized internally. Attributes as for the classifier.

    >>> import numpy as np
    >>> X = np.random.RandomState(0).randn(60, 3)
    >>> model = SparseBNNRegressor(epochs=20, replicates=1, random_state=0).fit(X, X[:, 0])
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> model.predict_quantiles(X[:2], [0.05, 0.95]).shape
    (2, 2)
    """

    _task = "regression"

    def __init__(
        self,
        *,
        family: str = "spike_slab",
        hidden: Any = "auto",
        prior_inclusion: float = 0.1,
        epochs: Any = "auto",
        time_budget: float | None = None,
        replicates: int = 5,
        batch_size: Any = "auto",
        learning_rate: Any = "auto",
        temperature: Any = "auto",
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 5,
        target_density: float | None = None,
        noise: str = "learned",
        calibrate: bool = False,
        n_draws: int = 100,
        device: str = "auto",
        warm_start: bool = False,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.family = family
        self.hidden = hidden
        self.prior_inclusion = prior_inclusion
        self.epochs = epochs
        self.time_budget = time_budget
        self.replicates = replicates
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.temperature = temperature
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.target_density = target_density
        self.noise = noise
        self.calibrate = calibrate
        self.n_draws = n_draws
        self.device = device
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SparseBNNRegressor:
        """Train on rows ``X`` and targets ``y``; a weight of 2 counts as two equal rows."""
        return self._fit(X, self._prepare(y), sample_weight)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> SparseBNNRegressor:
        """Pass once over more rows.

        The first rows set the encoding of the columns and the scale of the targets. ``gain_`` and
        ``effects_`` are those of the last rows. ``epochs`` is not used: call it several times.
        """
        return self._fit(X, self._prepare(y), sample_weight, partial=True)

    def _prepare(self, y: Any) -> Any:
        """What ``_fit`` calls to read the targets: standardized numbers, weights, notes."""
        check_choice(self.noise, ("learned", "heteroscedastic"), "noise", "SparseBNNRegressor")

        def prepare(rows: int, weight: np.ndarray) -> tuple[torch.Tensor, np.ndarray, list[str]]:
            targets = _targets(y)
            check_consistent_length(np.empty(rows), targets)
            self._flat = targets.ndim == 1
            columns = targets.reshape(len(targets), -1)
            if not weight.sum() > 0.0:
                raise invalid("sample_weight", "SparseBNNRegressor", "above 0 for some rows", "0 everywhere")
            if self._continued is None or not self._continued.networks:
                scales = np.array([middle_and_std(column, weight) for column in columns.T])
                self._y_mean, self._y_std = scales.T
            elif columns.shape[1] != len(self._y_mean):
                expected = f"of {len(self._y_mean)} targets, as before"
                raise invalid("y", "SparseBNNRegressor", expected, columns.shape[1])
            notes = _far_targets(columns[weight > 0.0], weight[weight > 0.0])
            return torch.from_numpy((columns - self._y_mean) / self._y_std).float(), weight, notes

        return prepare

    def _likelihood(self, y: torch.Tensor) -> Likelihood:
        return Gaussian(y.shape[1], self.noise, std=0.7)

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[..., 0] if self._flat else values

    def predict(self, X: Any, return_std: bool = False, *, model: str = "average") -> Any:
        """The predictive mean of each row; with ``return_std`` also its standard deviation.

        It combines the uncertainty about the weights and the noise of the targets.
        """
        check_is_fitted(self)
        means, variances = [], []
        for _, outputs in self._draws(X, model):
            mean, std = self._ensemble.means_and_stds(outputs)
            means.append(mean.mean(0))
            variances.append(mean.var(0, correction=0) + (std**2).mean(0))
        centre = torch.cat(means).cpu().numpy() * self._y_std + self._y_mean
        if not return_std:
            return self._shaped(centre)
        return self._shaped(centre), self._shaped(torch.cat(variances).sqrt().cpu().numpy() * self._y_std)

    def predict_quantiles(
        self, X: Any, levels: float | Sequence[float] = (0.05, 0.5, 0.95), *, model: str = "average"
    ) -> np.ndarray:
        """``(rows, levels)`` quantiles of the predictive distribution.

        The shape is ``(rows, targets, levels)`` for several targets; a scalar level has no last axis. The
        quantiles are those of the mixture over draws, computed, not sampled.
        """
        check_is_fitted(self)
        listed = [float(level) for level in np.atleast_1d(np.asarray(levels))]
        for level in listed:
            if not 0.0 < level < 1.0:
                raise invalid("levels", "predict_quantiles", "strictly between 0 and 1", level)
        found = []
        for _, outputs in self._draws(X, model):
            found.append(mixture_quantiles(*self._ensemble.means_and_stds(outputs), listed))
        values = torch.cat(found, dim=1).cpu().numpy() * self._y_std + self._y_mean
        quantiles = np.moveaxis(self._shaped(values), 0, -1)
        return quantiles[..., 0] if np.ndim(levels) == 0 else quantiles

    def sample_predictive(
        self, X: Any, n_samples: int = 100, random_state: Any = 0, *, model: str = "average"
    ) -> np.ndarray:
        """``(n_samples, rows)`` targets drawn from the predictive distribution, rows jointly."""
        check_count(n_samples, "n_samples", "sample_predictive")
        check_is_fitted(self)
        parts = [self._ensemble.means_and_stds(outputs) for _, outputs in self._draws(X, model, n_samples)]
        mean = torch.cat([m for m, _ in parts], dim=1).cpu().numpy()
        std = torch.cat([s for _, s in parts], dim=1).cpu().numpy()
        order = np.arange(len(mean)).reshape(len(self.networks_), -1).T.ravel()[:n_samples]
        noise = check_random_state(random_state).standard_normal((n_samples, *mean.shape[1:]))
        return self._shaped((mean[order] + std[order] * noise) * self._y_std + self._y_mean)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _targets(y: Any) -> np.ndarray:
    if y is None:
        raise ValueError("SparseBNNRegressor requires y to be passed, but the target y is None")
    found = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", allow_nd=False)
    if found.ndim == 2 and found.shape[1] == 1:
        return column_or_1d(found, warn=True)
    return found


def _far_targets(columns: np.ndarray, weight: np.ndarray) -> list[str]:
    """Notes on targets whose scale is set by a few extreme values. Unlike inputs, targets are not clipped."""
    far = [column for column in columns.T if far_limits(column, weight)]
    return [
        f"The target has extreme values (range {column.min():.4g} to {column.max():.4g}) that hide the "
        "differences between the others: correct or drop these rows, or fit the logarithm of the target."
        for column in far
    ]
