"""``SparseBNNRegressor``: numbers with their uncertainty from a sparse Bayesian neural network."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d

from sparsebnn.checks import check_choice, check_count, invalid
from sparsebnn.estimators.base import SparseBNN, TargetReader
from sparsebnn.estimators.checks import check_numbers, checked_table
from sparsebnn.estimators.columns import far_limits, middle_and_std
from sparsebnn.estimators.observations import DRAWS_OUTSIDE, Observations
from sparsebnn.estimators.plan import share
from sparsebnn.likelihoods import Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT, likelihood

__all__ = ["SparseBNNRegressor"]

_OWNER = "SparseBNNRegressor"
_STANDARDIZED = ("gaussian", "student_t")
_COUNTS = (
    "poisson",
    "negative_binomial",
    "zero_inflated_poisson",
    "zero_inflated_negative_binomial",
)


class SparseBNNRegressor(RegressorMixin, SparseBNN):  # type: ignore[misc]
    """Regression by sparse Bayesian neural networks; the defaults work on most tables.

    Parameters as for :class:`SparseBNNClassifier`, less ``class_weight``, and

    calibrate : "auto" (yes, for the Gaussian likelihood), True or False. Each replicate leaves out a fifth of
        the rows; on them the noise is scaled (``logit_scale_``), and the levels of quantiles are corrected.
    noise : "learned", one noise level per target, or "heteroscedastic", one that depends on the row
        (docs/studies/defaults.md compares them). With a few hundred rows its intervals are somewhat too wide;
        ``calibrate=True`` helps.
    likelihood : "gaussian"; "student_t" for targets with outliers; "poisson" or "negative_binomial" for
        counts, and "zero_inflated_poisson" or "zero_inflated_negative_binomial" for counts with many zeros;
        or an object of a subclass of :class:`~sparsebnn.likelihoods.Likelihood`. ``noise`` and ``calibrate``
        are for the Gaussian likelihood.

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
        replicates: int = 8,
        screen: bool = True,
        batch_size: Any = "auto",
        learning_rate: Any = "auto",
        temperature: Any = "auto",
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 5,
        target_density: float | None = None,
        noise: str = "learned",
        likelihood: Any = "gaussian",
        calibrate: Any = "auto",
        column_kinds: Any = None,
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
        self.screen = screen
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.temperature = temperature
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.target_density = target_density
        self.noise = noise
        self.likelihood = likelihood
        self.calibrate = calibrate
        self.column_kinds = column_kinds
        self.n_draws = n_draws
        self.device = device
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, exposure: Any = None) -> SparseBNNRegressor:
        """Train on rows ``X`` and targets ``y``; a weight of 2 counts as two equal rows.

        For counts, ``exposure`` is the time or population that each count comes from; predictions are for an
        exposure of 1 unless it is passed to them, too.
        """
        return self._fit(X, self._target_reader(y, exposure), sample_weight)

    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, exposure: Any = None
    ) -> SparseBNNRegressor:
        """Pass once over more rows.

        The first rows set the encoding of the columns and the scale of the targets. ``gain_`` and
        ``effects_`` are those of the last rows. ``epochs`` is not used: call it several times.
        """
        return self._fit(X, self._target_reader(y, exposure), sample_weight, partial=True)

    def _target_reader(self, y: Any, exposure: Any) -> TargetReader:
        """What ``_fit`` calls to read the targets: standardized numbers, weights, notes."""
        self._check_options(exposure)

        def read(rows: int, weight: np.ndarray) -> tuple[torch.Tensor, np.ndarray, list[str]]:
            targets = _targets(y)
            check_consistent_length(np.empty(rows), targets)
            self._flat = targets.ndim == 1
            columns = targets.reshape(len(targets), -1)
            if not weight.sum() > 0.0:
                raise invalid("sample_weight", _OWNER, "above 0 for some rows", "0 everywhere")
            if self._continued is None or not self._continued.networks:
                scales = np.array([self._scale(column, weight) for column in columns.T])
                self._y_mean, self._y_std = scales.T
            elif columns.shape[1] != len(self._y_mean):
                expected = f"of {len(self._y_mean)} targets, as before"
                raise invalid("y", _OWNER, expected, columns.shape[1])
            scaled = torch.from_numpy((columns - self._y_mean) / self._y_std).float()
            self._exposed = exposure is not None
            if self.likelihood in _STANDARDIZED:
                return scaled, weight, _far_targets(columns[weight > 0.0], weight[weight > 0.0])
            if exposure is not None:
                scaled = torch.cat([scaled, _exposures(exposure, rows)[:, None].float()], dim=1)
            self._likelihood(scaled).prepare(scaled)  # raises before any work
            return scaled, weight, []

        return read

    def _scale(self, column: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
        """Mean and standard deviation of a target; counts and your own likelihoods keep their scale."""
        return middle_and_std(column, weight) if self.likelihood in _STANDARDIZED else (0.0, 1.0)

    def _check_options(self, exposure: Any) -> None:
        check_choice(self.noise, ("learned", "heteroscedastic"), "noise", _OWNER)
        if not isinstance(self.likelihood, Likelihood):
            check_choice(self.likelihood, (*_STANDARDIZED, *_COUNTS), "likelihood", _OWNER)
        if self.calibrate is True and self.likelihood != "gaussian":
            advice = "For intervals that hold, use sparsebnn.estimators.ConformalRegressor."
            raise invalid("calibrate", _OWNER, "False unless the likelihood is Gaussian", True, advice)
        if self.noise != "learned" and self.likelihood != "gaussian":
            raise invalid("noise", _OWNER, "'learned' unless the likelihood is Gaussian", repr(self.noise))
        if exposure is not None and self.likelihood not in _COUNTS:
            raise invalid("exposure", _OWNER, "left out unless targets are counts", "one")

    @property
    def _calibrates(self) -> bool:
        given = self.calibrate
        return bool(self.likelihood == "gaussian" if isinstance(given, str) and given == "auto" else given)

    def _likelihood(self, y: torch.Tensor) -> Likelihood:
        if isinstance(self.likelihood, Likelihood):
            return copy.deepcopy(self.likelihood)
        if self.likelihood == "gaussian":
            return Gaussian(y.shape[1], self.noise, std=0.7)
        if self.likelihood == "student_t":
            return StudentT(y.shape[1], scale=0.5)
        expected = 2 if self._exposed else 1
        if y.shape[1] != expected:
            raise invalid("y", _OWNER, "one column of counts", f"{y.shape[1]} columns")
        return likelihood(self.likelihood, y)

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[..., 0] if self._flat else values

    def _observed(
        self, X: Any, model: str, exposure: Any, n_draws: int | None = None, cut: bool = True
    ) -> Iterator[tuple[Observations, torch.Tensor]]:
        """Observation models and outputs, in blocks; ``cut`` widens them outside the training range."""
        check_is_fitted(self)
        self._check_options(exposure)
        exposures = None if exposure is None else _exposures(exposure, _rows(X))
        growth = self._cut_growth(X, model) if cut else None
        for rows, outputs in self._draws(X, model, n_draws):
            own = [None if each is None else each[rows] for each in (exposures, growth)]
            yield Observations(self._ensemble, *own), outputs

    def _moments(
        self, X: Any, model: str, exposure: Any, cut: bool = True
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean, epistemic variance and aleatoric variance of every target, in its units."""
        parts: list[torch.Tensor] = []
        for form, outputs in self._observed(X, model, exposure, cut=cut):
            mean, variance = form.moments(outputs)
            parts.append(torch.stack([mean.mean(0), mean.var(0, correction=0), variance.mean(0)]))
        mean, between, within = torch.cat(parts, dim=1).cpu().numpy()
        return mean * self._y_std + self._y_mean, between * self._y_std**2, within * self._y_std**2

    def predict(
        self, X: Any, return_std: bool = False, *, model: str = "average", exposure: Any = None
    ) -> Any:
        """The predictive mean of each row; with ``return_std`` also its standard deviation.

        It combines the uncertainty about the weights and the noise of the targets.
        """
        mean, between, within = self._moments(X, model, exposure, cut=return_std)
        if not return_std:
            return self._shaped(mean)
        return self._shaped(mean), self._shaped(np.sqrt(between + within))

    def predict_uncertainty(
        self, X: Any, *, model: str = "average", exposure: Any = None
    ) -> dict[str, np.ndarray]:
        """Standard deviation of each prediction, ``std``, and its parts: std² = aleatoric² + epistemic².

        ``aleatoric`` is the noise of the targets, ``epistemic`` the uncertainty about the weights.
        """
        _, between, within = self._moments(X, model, exposure)
        parts = {"std": between + within, "aleatoric": within, "epistemic": between}
        return {name: self._shaped(np.sqrt(values)) for name, values in parts.items()}

    def _cut_growth(self, X: Any, model: str) -> torch.Tensor | None:
        """``(rows, targets)``: by how much predictions would differ with numbers outside the training range.

        None if there are none, or the noise is neither Gaussian nor Student-t.
        """
        if not isinstance(self._likelihoods[0], Gaussian | StudentT):
            return None
        table = checked_table(self, X, reset=False)
        x, free = self._encoder.transform(table), self._encoder.transform(table, free=True)
        outside = (x != free).any(1)
        if not outside.any():
            return None
        found = torch.zeros(len(x), len(self._y_mean), dtype=torch.float64)
        means = []
        draws = min(DRAWS_OUTSIDE, self._draws_each(None))
        for rows in (x[outside], free[outside]):
            parts = [o for _, o in self._ensemble.draws(rows, draws, model, self._seed, "cpu")]
            means.append(Observations(self._ensemble).moments(torch.cat(parts, dim=2))[0].mean(0))
        found[torch.from_numpy(outside)] = (means[0] - means[1]).abs()
        return found

    def predict_quantiles(
        self,
        X: Any,
        levels: float | Sequence[float] = (0.05, 0.5, 0.95),
        *,
        model: str = "average",
        exposure: Any = None,
    ) -> np.ndarray:
        """``(rows, levels)`` quantiles of the predictive distribution.

        The shape is ``(rows, targets, levels)`` for several targets; a scalar level has no last axis. The
        quantiles are those of the mixture over draws, computed, not sampled.
        """
        check_is_fitted(self)
        listed = [float(level) for level in np.atleast_1d(np.asarray(levels))]
        if not listed:
            raise invalid("levels", "predict_quantiles", "at least one number between 0 and 1", "none")
        for level in listed:
            if not 0.0 < level < 1.0:
                raise invalid("levels", "predict_quantiles", "strictly between 0 and 1", level)
        corrected = [[of_target(level) for level in listed] for of_target in self._levels]
        found = []
        for form, outputs in self._observed(X, model, exposure):
            each = [form.quantiles(outputs, own) for own in corrected]  # several targets: the own correction
            found.append(torch.stack([q[..., t] for t, q in enumerate(each)], -1) if each[1:] else each[0])
        values = torch.cat(found, dim=1).cpu().numpy() * self._y_std + self._y_mean
        quantiles = np.moveaxis(self._shaped(values), 0, -1)
        return quantiles[..., 0] if np.ndim(levels) == 0 else quantiles

    def predict_interval(
        self, X: Any, coverage: float = 0.9, *, model: str = "average", exposure: Any = None
    ) -> np.ndarray:
        """``(rows, 2)``: the central interval of the predictive distribution that holds this share of it.

        :class:`~sparsebnn.estimators.ConformalRegressor` has intervals with guaranteed coverage.
        """
        tail = 0.5 * (1.0 - share(coverage, "coverage", "predict_interval"))
        return self.predict_quantiles(X, [tail, 1.0 - tail], model=model, exposure=exposure)

    def sample_predictive(
        self,
        X: Any,
        n_samples: int = 100,
        random_state: Any = 0,
        *,
        model: str = "average",
        exposure: Any = None,
    ) -> np.ndarray:
        """``(n_samples, rows)`` targets drawn from the predictive distribution, rows jointly."""
        check_count(n_samples, "n_samples", "sample_predictive")
        check_is_fitted(self)
        shape = (n_samples, _rows(X), len(self._y_mean))
        noise = torch.from_numpy(check_random_state(random_state).standard_normal(shape))
        parts: list[torch.Tensor] = []
        for form, outputs in self._observed(X, model, exposure, n_samples):
            draws, start = outputs.shape[0] * outputs.shape[1], sum(each.shape[1] for each in parts)
            # Alternate between replicates, so that any number of samples uses all of them.
            order = np.arange(draws).reshape(len(outputs), -1).T.ravel()[:n_samples]
            own = torch.zeros((draws, outputs.shape[2], shape[2]), dtype=noise.dtype)
            own[order] = noise[:, start : start + outputs.shape[2]]
            parts.append(form.samples(outputs, own.to(outputs.device))[order])
        return self._shaped(torch.cat(parts, dim=1).cpu().numpy() * self._y_std + self._y_mean)

    def _output_names(self) -> tuple[str, ...]:
        form = self._likelihoods[0]
        if isinstance(form, Poisson | NegativeBinomial):
            return ("log rate", "log odds of an extra zero")[: 2 if form.zero_inflated else 1]
        if isinstance(form, Gaussian | StudentT):
            return self._expected_names()
        return tuple(f"output {i}" for i in range(form.n_outputs(torch.empty(0))))

    def _expected(self, outputs: torch.Tensor) -> torch.Tensor:
        mean = Observations(self._ensemble).moments(outputs)[0]
        return mean * torch.from_numpy(self._y_std) + torch.from_numpy(self._y_mean)

    def _expected_names(self) -> tuple[str, ...]:
        count = len(self._y_mean)
        return ("target",) if count == 1 else tuple(f"target {i}" for i in range(count))

    def _targets_in_words(self) -> str:
        count, name = len(self._y_mean), type(self._likelihoods[0]).__name__
        return ("1 target" if count == 1 else f"{count} targets") + (
            "" if name == "Gaussian" else f", {name}"
        )

    def _target_record(self) -> dict[str, Any]:
        return {"mean": self._y_mean.tolist(), "std": self._y_std.tolist(), "flat": self._flat}

    def _restore_targets(self, record: dict[str, Any]) -> None:
        self._y_mean, self._y_std = np.array(record["mean"]), np.array(record["std"])
        if not (np.isfinite(self._y_mean).all() and (self._y_std > 0.0).all()):
            raise ValueError("its targets need finite means and positive scales")
        if len(self._y_mean) != getattr(self._likelihoods[0], "n_targets", 1):
            raise ValueError("its targets do not match its likelihood")
        self._flat = record["flat"]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _targets(y: Any) -> np.ndarray:
    if y is None:
        raise ValueError("SparseBNNRegressor requires y to be passed, but the target y is None")
    check_numbers(y, _OWNER)
    found = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", allow_nd=False)
    if found.ndim == 2 and found.shape[1] == 1:
        return column_or_1d(found, warn=True)
    return found


def _exposures(exposure: Any, rows: int) -> torch.Tensor:
    found = column_or_1d(exposure, dtype=np.float64)
    if found.shape[0] != rows:
        raise invalid("exposure", _OWNER, f"as long as X ({rows} rows)", f"{len(found)} numbers")
    if not (np.isfinite(found) & (found > 0.0)).all():
        bad = found[~(np.isfinite(found) & (found > 0.0))][0]
        raise invalid("exposure", _OWNER, "positive and finite", bad, "Drop the rows without exposure.")
    return torch.from_numpy(found)


def _rows(X: Any) -> int:
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def _far_targets(columns: np.ndarray, weight: np.ndarray) -> list[str]:
    """Notes on targets whose scale is set by a few extreme values. Unlike inputs, targets are not clipped."""
    far = [column for column in columns.T if far_limits(column, weight)]
    return [
        f"The target has extreme values (range {column.min():.4g} to {column.max():.4g}) that hide the "
        "differences between the others: correct or drop these rows, or fit the logarithm of the target."
        for column in far
    ]
