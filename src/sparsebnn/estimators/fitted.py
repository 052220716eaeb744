"""What a fitted estimator offers besides predictions: explanations, summaries, files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from sparsebnn.checks import check_choice
from sparsebnn.estimators import explanation, persistence, summary
from sparsebnn.estimators.checks import checked_table
from sparsebnn.estimators.encoding import Encoder
from sparsebnn.estimators.ensemble import Ensemble
from sparsebnn.estimators.plan import Plan
from sparsebnn.likelihoods import Likelihood
from sparsebnn.selection.credible_sets import CredibleSet
from sparsebnn.training.devices import is_available, one_thread, parse_device

__all__ = ["Fitted"]

MODELS = ("average", "median")  # over all structures, or the median probability model alone


class Fitted(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """The methods of :class:`SparseBNNClassifier` and :class:`SparseBNNRegressor` that need no training."""

    _encoder: Encoder
    _likelihoods: list[Likelihood]
    _seed: int
    gain_: np.ndarray
    logit_scale_: Any
    networks_: list[Any]
    plan_: Plan
    posterior_networks_: list[Any]
    replicate_weights_: np.ndarray
    used_: np.ndarray

    @property
    def planned_epochs_(self) -> int:
        """The epochs planned without a time budget; ``n_epochs_`` is the number that were run."""
        return self.plan_.planned_epochs

    @property
    def feature_importances_(self) -> np.ndarray:
        """The share of each column in the total gain (``gain_``, a negative one counting as 0); they sum to
        1.

        All are 0 if no column helps. With it, ``SelectFromModel`` and ``RFE`` accept the estimator.
        """
        check_is_fitted(self)
        gain = np.maximum(self.gain_, 0.0)
        return gain / (gain.sum() or 1.0)

    @property
    def _ensemble(self) -> Ensemble:
        return Ensemble(self.networks_, self._likelihoods, self.logit_scale_)

    def _inputs(self, X: Any) -> np.ndarray:
        """The encoded inputs of new rows."""
        check_is_fitted(self)
        return self._encoder.transform(checked_table(self, X, reset=False))

    def outside_range(self, X: Any) -> np.ndarray:
        """``(rows, columns)``: numbers more than a tenth of the range of the training rows outside of it.

        In predictions such a number counts as the end of that range. A regression with Gaussian or Student-t
        noise adds the difference that this makes to the standard deviation.
        """
        check_is_fitted(self)
        table = checked_table(self, X, reset=False)
        differs = self._encoder.transform(table, free=True) != self._encoder.transform(table)
        found = np.zeros((len(table), len(self._encoder.columns)), dtype=bool)
        for place, column in enumerate(self._encoder.column_of):
            found[:, column] |= differs[:, place]
        return found

    def _get_support_mask(self) -> np.ndarray:
        check_is_fitted(self)
        return self.used_

    def _draws_each(self, n_draws: int | None) -> int:
        """The draws of each network, of ``n_draws`` in all."""
        return -(-int(self.n_draws if n_draws is None else n_draws) // len(self.networks_))

    def _draws(self, X: Any, model: str, n_draws: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """``(rows, outputs of every replicate and draw)`` for new rows."""
        x = self._inputs(X)
        check_choice(model, MODELS, "model", "predict")
        each = self._draws_each(n_draws)
        device = _prediction_device(self.device, type(self).__name__)
        with one_thread() if len(x) < 5000 else contextlib.nullcontext():
            yield from self._ensemble.draws(x, each, model, self._seed, device)

    def explain(
        self, X: Any, *, n_draws: int = 100, level: float = 0.9, model: str = "average"
    ) -> explanation.Explanation:
        """The contribution of each column to each prediction, with intervals over draws.

        See :class:`sparsebnn.estimators.Explanation`.
        """
        x = self._inputs(X)
        check_choice(model, MODELS, "model", "explain")
        with one_thread():
            return explanation.explain(self, x, n_draws, level, model)

    def what_if(
        self,
        X: Any,
        columns: str | int | Sequence[str | int],
        *,
        grid: Any = None,
        points: int = 30,
        n_draws: int = 100,
        level: float = 0.9,
        model: str = "average",
    ) -> explanation.WhatIf:
        """Predictions for the rows of ``X`` if one or two columns had other values, with bands over draws.

        Every draw is averaged over the rows. ``grid`` has the values of the column, or such a list for each
        of two; by default ``points`` values from the smallest to the largest in ``X``, or the categories.
        See :class:`sparsebnn.estimators.WhatIf`.
        """
        check_is_fitted(self)
        check_choice(model, MODELS, "model", "what_if")
        with one_thread():
            return explanation.what_if(self, X, columns, grid, points, n_draws, level, model)

    @property
    def replicate_inclusion_(self) -> np.ndarray:
        """``inclusion_`` of each of ``posterior_networks_``, ``(replicates, columns)``."""
        check_is_fitted(self)
        column_of, columns = self._encoder.column_of, len(self._encoder.columns)
        return Ensemble(self.posterior_networks_, ()).inclusion(column_of, columns)

    def sample_inclusions(self, n_draws: int = 2000, *, seed: int = 0) -> np.ndarray:
        """Drawn sets of columns that reach an output, ``(draws, columns)``; replicates by their weights."""
        check_is_fitted(self)
        parts = self.posterior_networks_, self.replicate_weights_
        return explanation.sampled(*parts, self._encoder, n_draws, seed)

    def column_correlations(self, X: Any) -> np.ndarray:
        """Absolute correlations between columns: the largest between an encoded input of each."""
        return explanation.correlations(self._inputs(X), self._encoder)

    def credible_sets(
        self,
        X: Any,
        *,
        coverage: float = 0.95,
        min_purity: float = 0.5,
        min_probability: float | None = None,
        max_false_members: float | None = 2.0,
        n_draws: int = 2000,
        seed: int = 0,
    ) -> list[CredibleSet]:
        """Sets of correlated columns of which at least one reaches an output with probability ``coverage``.

        ``X`` are rows to compute correlations from, such as those of training. Options as for
        :func:`sparsebnn.selection.credible_sets`. Needs the Bayes posterior
        (``inclusions_are_no_posterior`` is None).
        """
        check_is_fitted(self)
        options = {"coverage": coverage, "min_purity": min_purity}
        limits = {"min_probability": min_probability, "max_false_members": max_false_members}
        return explanation.credible(self, X, n_draws, seed, **options, **limits)

    def summary(self, most: int | None = 20) -> str:
        """A readable table of the fitted model, with at most ``most`` columns (None: all)."""
        check_is_fitted(self)
        return summary.summary(self, most)

    def save(self, path: str | Path) -> Path:
        """Write the fitted estimator to one safetensors file; see :meth:`load`."""
        check_is_fitted(self)
        return persistence.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Any:
        """The estimator that :meth:`save` wrote."""
        return persistence.load(Path(path), {kind.__name__: kind for kind in cls.__subclasses__() or [cls]})

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "networks_")


def _prediction_device(given: Any, owner: str) -> str:
    """The given device if it is available, else the CPU, so that models trained on a GPU load anywhere.

    >>> _prediction_device("auto", "SparseBNNClassifier")
    'cpu'
    """
    device = parse_device(given, owner)
    return str(device) if device is not None and is_available(device) else "cpu"
