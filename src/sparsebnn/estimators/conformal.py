r"""Intervals and sets of labels with guaranteed coverage, on top of the posterior.

A conformal interval is the posterior mean plus and minus q posterior standard deviations, where q is a
quantile of the errors of rows that the model was not fitted to, in the same unit. If rows are exchangeable,
it holds new targets with the stated probability, whether the model is right or not; a good posterior makes
it narrow where the model is sure.

MAPIE's estimators accept ours for label sets and for intervals of one width. Its cross-conformal regressor
does not tell a conformity score which fold's model a row belongs to, so intervals in units of each model's
posterior standard deviation cannot be expressed there.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MetaEstimatorMixin,
    RegressorMixin,
    clone,
    is_classifier,
)
from sklearn.model_selection import KFold, StratifiedKFold, StratifiedShuffleSplit, train_test_split
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted

from sparsebnn.checks import check_choice, check_count, invalid
from sparsebnn.estimators.classifier import SparseBNNClassifier
from sparsebnn.estimators.plan import share
from sparsebnn.estimators.regressor import SparseBNNRegressor

__all__ = ["ConformalClassifier", "ConformalRegressor", "rank"]


def rank(count: int, coverage: float) -> int:
    """Which of ``count`` ordered scores is the limit: ⌈(count + 1) · coverage⌉; above ``count``, none is.

    >>> rank(99, 0.9), rank(8, 0.9)
    (90, 9)
    """
    return math.ceil((count + 1) * coverage - 1e-9)


def _limit(scores: np.ndarray, coverage: float) -> float:
    place = rank(len(scores), coverage)
    return float(np.sort(scores)[place - 1]) if place <= len(scores) else math.inf


def _uniform(probs: np.ndarray) -> np.ndarray:
    """A number in [0, 1) for every row: a hash of its probabilities, rounded so that batches agree."""
    rows = np.ascontiguousarray(np.round(probs, 6) + 0.0)
    hashes = [int.from_bytes(blake2b(row.tobytes(), digest_size=8).digest(), "little") for row in rows]
    return np.array(hashes, dtype=np.float64) / 2.0**64


def _fitted(model: Any, X: Any, y: Any, rows: np.ndarray, options: dict[str, Any]) -> Any:
    """The model, fitted to some rows."""
    own = {name: _safe_indexing(value, rows) for name, value in options.items()}
    return model.fit(_safe_indexing(X, rows), _safe_indexing(y, rows), **own)


class _Conformal(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """What both share: splitting rows, fitting clones, and stating the coverage."""

    estimator: Any
    method: str
    calibration_fraction: float
    cv: int
    n_jobs: int | None
    random_state: Any

    def _parts(self, rows: int, labels: np.ndarray | None) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rows to fit and rows to calibrate, once or for each fold."""
        owner = type(self).__name__
        check_choice(self.method, ("split", "cross"), "method", owner)
        index = np.arange(rows)
        if self.method == "cross":
            folds = check_count(self.cv, "cv", owner, least=2)
            if folds > rows:
                raise invalid("cv", owner, f"at most the number of rows ({rows})", folds)
            kind = KFold if labels is None else StratifiedKFold
            return list(kind(folds, shuffle=True, random_state=self.random_state).split(index, labels))
        part = share(self.calibration_fraction, "calibration_fraction", owner)
        if labels is not None:
            splitter = StratifiedShuffleSplit(1, test_size=part, random_state=self.random_state)
            return list(splitter.split(index, labels))
        return [tuple(train_test_split(index, test_size=part, random_state=self.random_state))]

    def _fit_parts(self, X: Any, y: Any, labels: np.ndarray | None, options: dict[str, Any]) -> None:
        rows = X.shape[0] if hasattr(X, "shape") else len(X)
        parts = self._parts(rows, labels)
        jobs = (delayed(_fitted)(clone(self._inner()), X, y, fitted, options) for fitted, _ in parts)
        self.estimators_ = Parallel(n_jobs=self.n_jobs)(jobs)
        scores, folds = [], []
        for k, (model, (_, held)) in enumerate(zip(self.estimators_, parts)):
            scores.append(self._scores(model, _safe_indexing(X, held), np.asarray(_safe_indexing(y, held))))
            folds.append(np.full(len(held), k))
        self.scores_, self._fold = np.concatenate(scores), np.concatenate(folds)
        self.n_features_in_ = self.estimators_[0].n_features_in_

    def _inner(self) -> Any:
        raise NotImplementedError

    def _scores(self, model: Any, X: Any, y: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def expected_coverage(self, coverage: float = 0.9) -> tuple[float, float]:
        """The expected coverage of new rows, and the standard deviation that calibration rows leave.

        For a split: that of the beta distribution of the coverage given n calibration rows. For
        cross-conformal intervals this is the usual coverage; 2 · coverage − 1 is guaranteed.
        """
        check_is_fitted(self)
        count, place = (
            len(self.scores_),
            rank(len(self.scores_), share(coverage, "coverage", "expected_coverage")),
        )
        if place > count:
            return 1.0, 0.0
        mean = place / (count + 1)
        return mean, math.sqrt(mean * (1.0 - mean) / (count + 2))

    def summary(self, coverage: float = 0.9) -> str:
        """One paragraph: how intervals were calibrated and what coverage to expect."""
        mean, std = self.expected_coverage(coverage)
        how = "split" if self.method == "split" else f"{len(self.estimators_)}-fold cross"
        least = "" if self.method == "split" else f"; at least {max(0.0, 2 * coverage - 1):.0%} is guaranteed"
        return (
            f"{how} conformal, calibrated on {len(self.scores_)} rows: at {coverage:.0%} nominal coverage "
            f"{mean:.1%} of new rows are covered, give or take {std:.1%} for this calibration{least}."
        )


class ConformalRegressor(RegressorMixin, _Conformal):  # type: ignore[misc]
    """Regression intervals that hold: conformal, in units of the posterior standard deviation.

    Parameters
    ----------
    estimator : a regressor with ``predict(X, return_std=True)``; None is ``SparseBNNRegressor()``.
    method : "split" fits once and calibrates on a part of the rows; "cross" fits once per fold and uses all
        rows for both (the CV+ interval of Barber et al.).
    calibration_fraction : the part of the rows that a split calibrates on.
    cv : the number of folds of "cross".
    normalize : False gives intervals of the same width for all rows.
    n_jobs : how many folds are fitted at a time (joblib; None: one, or what ``joblib.parallel_config`` says).
    random_state : of the split.

    >>> import numpy as np
    >>> X = np.random.RandomState(0).randn(80, 2)
    >>> model = ConformalRegressor(SparseBNNRegressor(epochs=5, replicates=1, random_state=0), random_state=0)
    >>> model.fit(X, X[:, 0]).predict_interval(X[:2], coverage=0.8).shape
    (2, 2)
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: str = "split",
        calibration_fraction: float = 0.25,
        cv: int = 5,
        normalize: bool = True,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.calibration_fraction = calibration_fraction
        self.cv = cv
        self.normalize = normalize
        self.n_jobs = n_jobs
        self.random_state = random_state

    def _inner(self) -> Any:
        if is_classifier(self.estimator):
            got = f"the classifier {type(self.estimator).__name__}"
            raise invalid("estimator", "ConformalRegressor", "a regressor", got, "Use ConformalClassifier.")
        return SparseBNNRegressor() if self.estimator is None else self.estimator

    def _center(self, model: Any, X: Any) -> tuple[np.ndarray, np.ndarray]:
        if not self.normalize:
            mean = model.predict(X)
            return mean, np.ones_like(mean)
        return model.predict(X, return_std=True)

    def _scores(self, model: Any, X: Any, y: np.ndarray) -> np.ndarray:
        mean, std = self._center(model, X)
        if mean.ndim != 1:
            raise invalid("y", "ConformalRegressor", "a vector: one target", f"{mean.shape[1]} targets")
        return np.abs(y.astype(np.float64).reshape(mean.shape) - mean) / std

    def fit(self, X: Any, y: Any, **options: Any) -> ConformalRegressor:
        """Fit and calibrate; ``options`` of the estimator's ``fit``, such as ``sample_weight``, per row."""
        self._fit_parts(X, y, None, options)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The mean prediction."""
        check_is_fitted(self)
        return np.mean([model.predict(X) for model in self.estimators_], axis=0)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """``(rows, 2)``; infinite if there are too few calibration rows for this coverage."""
        check_is_fitted(self)
        share(coverage, "coverage", "predict_interval")
        centers = [self._center(model, X) for model in self.estimators_]
        if self.method == "split":
            (mean, std), limit = centers[0], _limit(self.scores_, coverage)
            return np.stack([mean - limit * std, mean + limit * std], axis=1)
        mean, std = (np.stack(each)[self._fold] for each in zip(*centers))  # (calibration rows, rows)
        spread, count = self.scores_[:, None] * std, len(self.scores_)
        place = rank(count, coverage)
        if place > count:
            return np.stack([np.full(mean.shape[1], -np.inf), np.full(mean.shape[1], np.inf)], axis=1)
        low, high = np.sort(mean - spread, axis=0)[count - place], np.sort(mean + spread, axis=0)[place - 1]
        # With few rows the two ends may cross.
        return np.stack([np.minimum(low, high), np.maximum(low, high)], axis=1)


class ConformalClassifier(ClassifierMixin, _Conformal):  # type: ignore[misc]
    """Sets of labels that hold the true one with the stated probability.

    Parameters as for :class:`ConformalRegressor`, less ``normalize``, and

    conformity : "lac", the smallest sets on average (labels above one threshold of probability); "aps",
        adaptive sets (the most probable labels while their sum stays below a threshold), whose coverage
        depends less on the row. Whether the last label joins is decided by a number between 0 and 1 that is
        a function of the row, so that the coverage is the stated one and not more.

    >>> import numpy as np
    >>> X = np.random.RandomState(0).randn(80, 2)
    >>> inner = SparseBNNClassifier(epochs=5, replicates=1, random_state=0)
    >>> model = ConformalClassifier(inner, random_state=0)
    >>> model.fit(X, X[:, 0] > 0).predict_set(X[:2]).shape
    (2, 2)
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        conformity: str = "lac",
        method: str = "split",
        calibration_fraction: float = 0.25,
        cv: int = 5,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.conformity = conformity
        self.method = method
        self.calibration_fraction = calibration_fraction
        self.cv = cv
        self.n_jobs = n_jobs
        self.random_state = random_state

    def _inner(self) -> Any:
        return SparseBNNClassifier() if self.estimator is None else self.estimator

    def _scores(self, model: Any, X: Any, y: np.ndarray) -> np.ndarray:
        codes = np.searchsorted(model.classes_, y)
        return self._strangeness(model.predict_proba(X))[np.arange(len(y)), codes]

    def _strangeness(self, probs: np.ndarray) -> np.ndarray:
        """How strange each label would be, ``(rows, classes)``."""
        if self.conformity == "lac":
            return 1.0 - probs
        order = np.argsort(-probs, axis=1, kind="stable")
        total = np.take_along_axis(probs, order, axis=1).cumsum(1)
        found = np.empty_like(probs)
        np.put_along_axis(found, order, total, axis=1)
        return found - _uniform(probs)[:, None] * probs

    def fit(self, X: Any, y: Any, **options: Any) -> ConformalClassifier:
        """Fit and calibrate; ``options`` of the estimator's ``fit``, such as ``sample_weight``, per row."""
        check_choice(self.conformity, ("lac", "aps"), "conformity", "ConformalClassifier")
        self.classes_, counts = np.unique(np.asarray(y), return_counts=True)
        if counts.min() < 2:
            rare = repr(self.classes_[counts.argmin()])
            advice = "Drop classes with a single row, or merge them."
            raise invalid("y", "ConformalClassifier", "of at least two rows of each class", rare, advice)
        self._fit_parts(X, y, np.asarray(y), options)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities of the fitted models."""
        check_is_fitted(self)
        return np.mean([model.predict_proba(X) for model in self.estimators_], axis=0)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label."""
        return self.classes_[self.predict_proba(X).argmax(1)]

    def predict_set(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """``(rows, classes)``: whether each label is in the set; a set may be empty or hold every label."""
        check_is_fitted(self)
        share(coverage, "coverage", "predict_set")
        strange = np.stack([self._strangeness(model.predict_proba(X)) for model in self.estimators_])
        if self.method == "split":
            found = strange[0] <= _limit(self.scores_, coverage) + 1e-12
        else:
            # Leave out labels that are stranger than too many calibration rows, by the model of their fold.
            stranger = sum(
                (self.scores_[self._fold == k][:, None, None] < strange[k] - 1e-12).sum(0)
                for k in range(len(strange))
            )
            found = stranger < rank(len(self.scores_), coverage)
        return found
