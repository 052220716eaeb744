"""``SparseBNNSurvival``: times until an event from a sparse Bayesian neural network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_consistent_length, check_is_fitted
from torch import Tensor

from sparsebnn.checks import check_choice, check_count, invalid
from sparsebnn.estimators.base import SparseBNN
from sparsebnn.estimators.observations import doubled
from sparsebnn.estimators.plan import share
from sparsebnn.estimators.survival_targets import columns_of
from sparsebnn.inference.metrics import concordance
from sparsebnn.inference.prediction import time_quantile
from sparsebnn.likelihoods import (
    Cox,
    DiscreteHazard,
    Likelihood,
    PiecewiseExponential,
    SurvivalLikelihood,
)
from sparsebnn.likelihoods.survival import event_quantiles

__all__ = ["SparseBNNSurvival", "StepFunction"]

_OWNER = "SparseBNNSurvival"
_MOST_TIMES = 500  # of survival functions
_MOST_INTERVALS, _EVENTS_PER_INTERVAL = 20, 8
_LEAST_DISCRETE = 5  # intervals: with discrete times, nobody has the event within one
_DRAWS_FOR_BASELINE = 20
_ROUNDING = 1e-12  # relative; a time that was converted and back still counts its event


class StepFunction:
    """A function that is constant between the times ``x``, where it has the values ``y``; as in
    scikit-survival."""

    def __init__(self, x: np.ndarray, y: np.ndarray, before: float) -> None:
        self.x, self.y, self._before = x, y, before

    def __call__(self, times: Any) -> np.ndarray:
        place = np.searchsorted(self.x, np.asarray(times, dtype=np.float64), side="right")
        return np.concatenate([[self._before], self.y])[place]


class SparseBNNSurvival(SparseBNN):
    """Survival analysis by sparse Bayesian neural networks; the defaults work on most tables.

    ``y`` follows scikit-survival: a structured array or a frame with a field of events (True, or 1) and one
    of times. A field ``entry`` holds times from which rows were observed (left truncation). A vector of
    times means that every row had the event.

    Parameters as for :class:`SparseBNNClassifier`, less ``class_weight`` and ``calibrate``, and

    likelihood : "piecewise_exponential" (a constant hazard between cuts), "discrete_hazard" (events in
        intervals) or "cox" (partial likelihood with Efron's ties in full batches, Breslow's baseline).
    intervals : the number of intervals of time, between quantiles of the times of events; "auto" is one for
        every 8 events, at most 20; with "discrete_hazard" 5 or more, where there are as many times of events.
    temperature : "auto" is 1, the Bayes posterior.
    proportional : True, one output that multiplies the hazard at all times; False, one output per interval.

    Attributes as for the classifier, and ``unique_times_``, the times at which survival functions are given.

    >>> import numpy as np
    >>> random = np.random.RandomState(0)
    >>> X = random.randn(80, 3)
    >>> y = np.zeros(80, dtype=[("event", bool), ("time", float)])
    >>> y["event"], y["time"] = random.rand(80) < 0.7, random.exponential(np.exp(-X[:, 0]))
    >>> model = SparseBNNSurvival(epochs=20, replicates=1, random_state=0).fit(X, y)
    >>> model.predict_survival_function(X[:2], times=[0.1, 1.0]).shape
    (2, 2)
    """

    _task = "classification"  # for the plan: an event tells as much as a label
    warm_start = False
    calibrate = False

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
        likelihood: str = "piecewise_exponential",
        intervals: Any = "auto",
        proportional: bool = True,
        column_kinds: Any = None,
        n_draws: int = 100,
        device: str = "auto",
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
        self.likelihood = likelihood
        self.intervals = intervals
        self.proportional = proportional
        self.column_kinds = column_kinds
        self.n_draws = n_draws
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SparseBNNSurvival:
        """Train on rows ``X`` and times and events ``y``; a weight of 2 counts as two equal rows."""
        names = ("piecewise_exponential", "discrete_hazard", "cox")
        check_choice(self.likelihood, names, "likelihood", _OWNER)
        if self.intervals != "auto":
            check_count(self.intervals, "intervals", _OWNER)
        if self.likelihood == "cox" and not self.proportional:
            raise invalid("proportional", _OWNER, "True for the Cox model", False)

        def prepare(rows: int, weight: np.ndarray) -> tuple[Tensor, np.ndarray, list[str]]:
            columns = columns_of(y)
            check_consistent_length(np.empty(rows), columns)
            form = Cox() if self.likelihood == "cox" else PiecewiseExponential([])
            form.prepare(torch.from_numpy(columns))  # raises before any work, in the units of y
            counted = columns[weight > 0.0]
            events = columns[(weight > 0.0) & (columns[:, 1] == 1.0), 0]
            if not len(events):
                raise invalid("event", _OWNER, "True for a row with a weight above 0", "only censored rows")
            # Times at risk per event: one such unit has an expected number of events of 1.
            self._time_unit = float((counted[:, 0] - counted[:, 2]).sum() / len(events))
            self.unique_times_ = _thinned(np.unique(events))
            targets = columns / np.array([self._time_unit, 1.0, self._time_unit])
            self._exact_targets = torch.from_numpy(targets[weight > 0.0])
            self._cuts = event_quantiles(self._exact_targets, self._count(events))
            return torch.from_numpy(targets).float(), weight, []

        self._fit(X, prepare, sample_weight)
        del self._exact_targets
        return self

    def _count(self, events: np.ndarray) -> int:
        """The number of intervals, from the times of events."""
        if self.intervals != "auto":
            return int(self.intervals)
        # A row that outlives the last event adds an interval after it.
        discrete = self.likelihood == "discrete_hazard"
        least = min(_LEAST_DISCRETE, len(np.unique(events)) + 1) if discrete else 1
        return int(np.clip(len(events) // _EVENTS_PER_INTERVAL, least, _MOST_INTERVALS))

    def _likelihood(self, y: Tensor) -> Likelihood:
        if self.likelihood == "cox":
            return Cox()
        if self.likelihood == "discrete_hazard":
            return DiscreteHazard(self._cuts, self.proportional)
        return PiecewiseExponential(self._cuts[:-1], self.proportional)

    def _plan_options(self, rows: int) -> dict[str, Any]:
        given = self.get_params()
        if given["temperature"] == "auto":
            given["temperature"] = 1.0
        if self.likelihood == "cox":
            given["batch_size"] = rows  # the partial likelihood compares all rows
        return given

    def _after_training(self, x: np.ndarray, y: Tensor, weight: np.ndarray) -> None:
        """A Cox model gets its baseline, which makes the likelihood of a row that of the row alone."""
        form = self._likelihoods[0]
        if not isinstance(form, Cox):
            return
        parts = [o for _, o in self._ensemble.draws(x, _DRAWS_FOR_BASELINE, "average", self._seed, "cpu")]
        risks = torch.exp(torch.cat(parts, dim=2)[..., 0]).mean(1)
        # Networks train in single precision; the baseline must jump at the very times of the events.
        exact, w = self._exact_targets, torch.from_numpy(weight)
        self._likelihoods = [form.with_baseline(risk, exact, w) for risk in risks]

    # -- prediction -----------------------------------------------------------------------------------

    def _forms(self) -> list[SurvivalLikelihood]:
        check_is_fitted(self)
        forms = doubled(self._likelihoods)
        return [form for form in forms if isinstance(form, SurvivalLikelihood)]

    def predict(self, X: Any, return_std: bool = False, *, model: str = "average") -> Any:
        """A risk score per row, higher for earlier events: the posterior mean of the log relative hazard.

        ``return_std`` also returns its posterior standard deviation, over draws.
        """
        check_is_fitted(self)
        means, stds = [], []
        for _, outputs in self._draws(X, model):
            each = self._expected(outputs)[..., 0]
            means.append(each.mean(0))
            stds.append(each.std(0, correction=0))
        risk = torch.cat(means).numpy()
        return (risk, torch.cat(stds).numpy()) if return_std else risk

    def _survival(self, X: Any, times: Any, model: str) -> np.ndarray:
        """``(rows, times)``: averaged over draws."""
        asked = np.atleast_1d(np.asarray(times, dtype=np.float64)) / self._time_unit
        at = torch.from_numpy(asked * (1.0 + _ROUNDING))
        if at.dim() != 1 or not bool((at >= 0.0).all()):
            raise invalid("times", "predict_survival_function", "a vector of times from 0", repr(times))
        forms, parts = self._forms(), []
        for _, outputs in self._draws(X, model):
            each = [form.survival(o.cpu(), at).mean(0) for form, o in zip(forms, outputs)]
            parts.append(torch.stack(each).mean(0))
        return torch.cat(parts).numpy()

    def predict_survival_function(
        self, X: Any, return_array: bool = False, *, times: Any = None, model: str = "average"
    ) -> np.ndarray:
        """The probability to survive each time: one :class:`StepFunction` per row, at ``unique_times_``.

        ``return_array=True`` gives the values as ``(rows, unique_times_)``; ``times`` gives those at other
        times.
        """
        check_is_fitted(self)
        values = self._survival(X, self.unique_times_ if times is None else times, model)
        return values if return_array or times is not None else _functions(self.unique_times_, values, 1.0)

    def predict_cumulative_hazard_function(
        self, X: Any, return_array: bool = False, *, times: Any = None, model: str = "average"
    ) -> np.ndarray:
        """−log of the survival function, in the same forms."""
        check_is_fitted(self)
        at = self.unique_times_ if times is None else times
        values = -np.log(np.maximum(self._survival(X, at, model), 1e-300))
        return values if return_array or times is not None else _functions(self.unique_times_, values, 0.0)

    def predict_quantiles(
        self, X: Any, levels: float | Sequence[float] = (0.25, 0.5, 0.75), *, model: str = "average"
    ) -> np.ndarray:
        """``(rows, levels)``: times by which the event has happened with these probabilities.

        Infinite where the model does not say. Beyond the times in training they continue the last hazard
        ("piecewise_exponential").
        """
        forms = self._forms()
        listed = [share(level, "levels", "predict_quantiles") for level in np.atleast_1d(np.asarray(levels))]
        found = []
        for _, outputs in self._draws(X, model):
            each = list(outputs.cpu())
            found.append(torch.stack([time_quantile(forms, each, level) for level in listed], dim=1))
        times = torch.cat(found).numpy() * self._time_unit
        return times[:, 0] if np.ndim(levels) == 0 else times

    def predict_interval(self, X: Any, coverage: float = 0.9, *, model: str = "average") -> np.ndarray:
        """``(rows, 2)``: the central interval of the time until the event."""
        tail = 0.5 * (1.0 - share(coverage, "coverage", "predict_interval"))
        return self.predict_quantiles(X, [tail, 1.0 - tail], model=model)

    def score(self, X: Any, y: Any) -> float:
        """Harrell's concordance of the risk scores."""
        columns = columns_of(y)
        return concordance(*(torch.from_numpy(v) for v in (self.predict(X), columns[:, 0], columns[:, 1])))

    # -- what the shared part asks ------------------------------------------------------------------------

    def _output_names(self) -> tuple[str, ...]:
        count = self._likelihoods[0].n_outputs(torch.empty(0))
        return ("log hazard",) if count == 1 else tuple(f"log hazard {k + 1}" for k in range(count))

    def _expected(self, outputs: Tensor) -> Tensor:
        return torch.cat([form.risk(o.cpu()) for form, o in zip(self._forms(), outputs)]).unsqueeze(-1)

    def _expected_names(self) -> tuple[str, ...]:
        return ("risk",)

    def _targets_in_words(self) -> str:
        return f"times until an event, {type(self._likelihoods[0]).__name__}"

    def _target_record(self) -> dict[str, Any]:
        return {"unit": self._time_unit, "times": self.unique_times_.tolist(), "cuts": self._cuts}

    def _restore_targets(self, record: dict[str, Any]) -> None:
        self._time_unit, self._cuts = float(record["unit"]), [float(c) for c in record["cuts"]]
        self.unique_times_ = np.array(record["times"], dtype=np.float64)
        if not 0.0 < self._time_unit < np.inf or not np.isfinite(self.unique_times_).all():
            raise ValueError("its times need a positive unit")
        if not isinstance(self._likelihoods[0], SurvivalLikelihood):
            raise ValueError("it is not a survival likelihood")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.positive_only = True
        return tags


def _thinned(times: np.ndarray) -> np.ndarray:
    """At most 500 of them, evenly spread, with the last."""
    if len(times) <= _MOST_TIMES:
        return times
    return times[np.unique(np.linspace(0, len(times) - 1, _MOST_TIMES).round().astype(int))]


def _functions(times: np.ndarray, values: np.ndarray, before: float) -> np.ndarray:
    found = np.empty(len(values), dtype=object)
    found[:] = [StepFunction(times, row, before) for row in values]
    return found
