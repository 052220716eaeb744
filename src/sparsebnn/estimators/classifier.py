"""``SparseBNNClassifier``: classes from a sparse Bayesian neural network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
)

from sparsebnn.checks import check_choice, check_count, invalid, printable
from sparsebnn.estimators.base import SparseBNN, TargetReader
from sparsebnn.estimators.checks import (
    check_numbers,
    checked_labels,
    class_weights,
    is_multilabel,
    notes_on_order,
    notes_on_padding,
)
from sparsebnn.estimators.plan import share
from sparsebnn.inference.metrics import entropy
from sparsebnn.likelihoods import (
    Bernoulli,
    Categorical,
    ClassLikelihood,
    Likelihood,
    Multilabel,
    NoisyCategorical,
    Ordinal,
)

__all__ = ["SparseBNNClassifier"]

_OWNER = "SparseBNNClassifier"


class SparseBNNClassifier(ClassifierMixin, SparseBNN):  # type: ignore[misc]
    """Classification by sparse Bayesian neural networks; the defaults work on most tables.

    ``X`` may be a numpy array, a pandas or polars frame or a sparse matrix, with numbers, categories, dates
    and missing values; inputs are standardized internally. ``y`` holds labels of any type.

    Parameters
    ----------
    family : "spike_slab" (LBBNN-LRT), "flow" (LBBNN-FLOW), "concrete" (LBBNN) or "gaussian" (no sparsity);
        the names "lrt", "lbbnn" and "dense" are accepted, too.
    hidden : sizes of the hidden layers; "auto" is one layer of 50, and two from 2,000 rows on (a regressor:
        5,000). Flows have hidden layers (20, 20).
    prior_inclusion : prior probability that a weight is included.
    learning_rate : "auto" is 0.04, or 0.01 for other families and with a target density; three times the rate
        for inclusion logits.
    epochs, batch_size : "auto" chooses by the number of rows and the task.
    temperature : "auto" is 1, the Bayes posterior, next to tempered networks if there are few rows; other
        families and a target density have one below 1. A temperature below 1 reduces the weight of the KL (a
        tempered posterior): inclusion probabilities grow and are no longer posterior probabilities.
    time_budget : seconds for the whole fit, including calibration, column selection and effects, but not the
        imports of the first fit in a process. If not all epochs fit, training is planned with fewer epochs
        and, if necessary, fewer rows, and columns are tested with fewer shuffles. ``notes_`` reports how much
        of the plan was run; a warning follows if it is too little.
    replicates : networks trained from different seeds; predictions average over them.
    screen : with 30 columns or more, and fewer than 50 rows per column, train once more on the columns that
        the first training includes with a probability above 0.1. These networks predict if they predict the
        rows left out better.
    early_stopping, validation_fraction, patience : stop when the ELBO of held-out rows no longer rises.
    target_density : the share of weights to keep. The first half of training is unconstrained; then the
        density falls to the target, and the remaining weights are refitted (docs/estimators.md).
    calibrate : each replicate leaves out a fifth of the rows (a tenth from 5,000 rows on), which calibrate
        the predictions (``logit_scale_``). Needs at least 2 replicates and 30 rows; not used with early
        stopping.
    class_weight : None, "balanced", or a weight per class.
    likelihood : "auto"; "ordinal" if the classes, in their sorted order, are ordered; "noisy_categorical" if
        some labels are wrong. A ``y`` of several columns of 0 and 1 is multilabel.
    column_kinds : how to read columns, by name, such as ``{"zip": "category"}``: "number", "category",
        "drop", or "id" (left out; names the row). By default their names and values decide.
    n_draws : draws of the weights behind a prediction, over all replicates.
    device : "auto", "cpu" or "cuda". A model trained on a GPU predicts on the CPU if there is no GPU.
    warm_start : ``fit`` continues from the last fit: the same encoding, classes and seed, its networks as the
        start, no warm-up of the KL. ``partial_fit`` passes once over more rows.
    random_state : a seed, a generator, or None for a different result at each fit, as in scikit-learn.

    Predictions average over all structures; ``predict(X, model="median")`` uses the median probability model
    alone. ``get_support`` and ``transform`` select the columns in use.

    Attributes: ``classes_``, ``density_``, ``inclusion_`` (per column of X: probability that it reaches an
    output through included weights), ``selected_features_`` (the columns in use, by ``inclusion_`` at a
    false discovery rate of 0.1, or by ``gain_`` where inclusions are no posterior probabilities), ``gain_``
    (the value of a column, in nats per row), ``feature_importances_`` (its share), ``stability_`` (share of
    replicates whose median model uses the column), ``effects_``, ``history_``, ``networks_``,
    ``predictors_`` (which kinds of networks predict), ``plan_``, ``n_epochs_`` and ``planned_epochs_``
    (run, and planned without a time budget), ``stopped_because_``, ``notes_`` (which columns were left out
    and why, how commas and dates were read). Columns that are left out or have extreme values also cause a
    :class:`~sparsebnn.estimators.ColumnWarning`.

    >>> import numpy as np
    >>> X = np.random.RandomState(0).randn(60, 3)
    >>> model = SparseBNNClassifier(epochs=20, replicates=1, random_state=0).fit(X, X[:, 0] > 0)
    >>> model.predict_proba(X[:2]).sum(1)
    array([1., 1.])
    """

    classes_: np.ndarray

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
        class_weight: Any = None,
        likelihood: str = "auto",
        calibrate: bool = True,
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
        self.class_weight = class_weight
        self.likelihood = likelihood
        self.calibrate = calibrate
        self.column_kinds = column_kinds
        self.n_draws = n_draws
        self.device = device
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SparseBNNClassifier:
        """Train on rows ``X`` and labels ``y``; a weight of 2 counts as two equal rows."""
        return self._fit(X, self._target_reader(y, None), sample_weight)

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> SparseBNNClassifier:
        """Pass once over more rows; ``classes`` are all labels, needed in the first call.

        The first rows set the encoding of the columns. ``gain_``, ``effects_`` and the calibration are
        those of the last rows. ``epochs`` is not used: call it several times.
        """
        if classes is None and not hasattr(self, "networks_"):
            advice = "Pass all labels: classes=np.unique(y)."
            raise invalid(
                "classes", "SparseBNNClassifier.partial_fit", "given in the first call", None, advice
            )
        return self._fit(X, self._target_reader(y, classes), sample_weight, partial=True)

    def _target_reader(self, y: Any, classes: Any) -> TargetReader:
        """What ``_fit`` calls to read the targets: codes of labels, weights, notes."""
        check_choice(self.likelihood, ("auto", "ordinal", "noisy_categorical"), "likelihood", _OWNER)

        def read(rows: int, weight: np.ndarray) -> tuple[torch.Tensor, np.ndarray, list[str]]:
            if is_multilabel(y):
                return self._several(y, rows), weight, []
            labels = checked_labels(y)
            check_consistent_length(np.empty(rows), labels)
            if self._continued is None or not self._continued.networks:
                self.classes_ = np.unique(labels if classes is None else checked_labels(classes))
            codes = np.searchsorted(self.classes_, labels)
            known = self.classes_[np.minimum(codes, len(self.classes_) - 1)] == labels
            if not known.all():
                expected = f"one of the classes {list(self.classes_)[:10]}"
                advice = "Fit from the beginning to add classes."
                raise invalid("y", _OWNER, expected, repr(str(labels[~known][0])), advice)
            if len(self.classes_) < 2:
                got = f"1 class ({self.classes_[:1].tolist()[0]!r})"
                advice = "Check the labels."
                raise invalid("y", _OWNER, "of at least 2 classes", got, advice)
            if self.class_weight is not None:
                weight = weight * class_weights(self.class_weight, self.classes_, labels)
            self._multilabel = False
            dtype = np.float32 if isinstance(self._likelihood(torch.empty(0)), Bernoulli) else np.int64
            notes = notes_on_padding(self.classes_)
            if self.likelihood == "ordinal":
                notes += notes_on_order(y, self.classes_)
            return torch.from_numpy(codes.astype(dtype)), weight, notes

        return read

    def _several(self, y: Any, rows: int) -> torch.Tensor:
        """Targets of several labels; ``classes_`` are the names or numbers of the columns."""
        check_numbers(y, _OWNER)
        present = check_array(y, dtype=np.float64, input_name="y")
        check_consistent_length(np.empty(rows), present)
        for what in ("likelihood", "class_weight"):
            if getattr(self, what) not in (None, "auto"):
                raise invalid(what, _OWNER, "left out if there are several labels", repr(getattr(self, what)))
        form = Multilabel(present.shape[1])
        names = np.array([str(c) for c in y.columns], dtype=object) if hasattr(y, "columns") else None
        if self._continued is None or not self._continued.networks:
            self._multilabel = True
            self.classes_ = np.arange(present.shape[1]) if names is None else names
        elif not self._multilabel or present.shape[1] != len(self.classes_):
            raise invalid("y", _OWNER, f"of {len(self.classes_)} labels, as before", present.shape[1])
        return form.prepare(torch.from_numpy(present)).float()

    def _likelihood(self, y: torch.Tensor) -> Likelihood:
        count = len(self.classes_)
        if self._multilabel:
            return Multilabel(count)
        if self.likelihood == "noisy_categorical":
            return NoisyCategorical(count)
        if count == 2:
            return Bernoulli()
        return Ordinal(count) if self.likelihood == "ordinal" else Categorical(count)

    def _output_names(self) -> tuple[str, ...]:
        form, names = self._likelihoods[0], [str(c) for c in self.classes_]
        if isinstance(form, Bernoulli):
            return (f"log odds of {names[1]}",)
        if isinstance(form, Ordinal):
            return (f"log odds of a class after {names[0]}",)
        return tuple(f"log odds of {name}" if self._multilabel else name for name in names)

    def _expected(self, outputs: torch.Tensor) -> torch.Tensor:
        return self._ensemble.probs(outputs).flatten(0, 1)

    def _expected_names(self) -> tuple[str, ...]:
        return tuple(map(str, self.classes_))

    def _targets_in_words(self) -> str:
        kind = "labels" if self._multilabel else "classes"
        listed = ", ".join(map(printable, self.classes_[:6])) + (" …" if len(self.classes_) > 6 else "")
        return f"{len(self.classes_)} {kind}: {listed}"

    def _target_record(self) -> dict[str, Any]:
        listed = [c.item() if isinstance(c, np.generic) else c for c in self.classes_.tolist()]
        if not all(isinstance(c, str | int | float | bool | None) for c in listed):
            advice = "Encode the labels as strings or numbers."
            raise invalid("classes_", "save", "strings, numbers or truth values", type(listed[0]), advice)
        return {"classes": listed, "dtype": self.classes_.dtype.str}

    def _restore_targets(self, record: dict[str, Any]) -> None:
        self.classes_ = np.array(record["classes"], dtype=np.dtype(record["dtype"]))
        form = self._likelihoods[0]
        self._multilabel = isinstance(form, Multilabel)
        count = getattr(form, "n_labels", None) or getattr(form, "n_classes", 2)
        if not isinstance(form, ClassLikelihood) or len(self.classes_) != count:
            raise ValueError("its classes do not match its likelihood")

    def predict_proba(self, X: Any, *, model: str = "average") -> np.ndarray:
        """``(rows, classes)``: probabilities averaged over draws and replicates.

        With several labels each column is the probability that the label is present.
        """
        ensemble = self._ensemble_if_fitted()
        parts = [ensemble.probs(outputs).mean((0, 1)) for _, outputs in self._draws(X, model)]
        probs = torch.cat(parts).cpu().numpy()
        return probs if self._multilabel else probs / probs.sum(1, keepdims=True)

    def predict_quantiles(
        self, X: Any, levels: float | Sequence[float] = (0.05, 0.5, 0.95), *, model: str = "average"
    ) -> np.ndarray:
        """``(rows, classes, levels)``: posterior quantiles of the class probabilities, over draws.

        They say how uncertain the probabilities are; a scalar level has no last axis.
        """
        ensemble = self._ensemble_if_fitted()
        listed = [share(level, "levels", "predict_quantiles") for level in np.atleast_1d(np.asarray(levels))]
        wanted = torch.tensor(listed, dtype=torch.float64)
        found = [
            torch.quantile(ensemble.probs(outputs).flatten(0, 1).double().cpu(), wanted, dim=0)
            for _, outputs in self._draws(X, model)
        ]
        quantiles = np.moveaxis(torch.cat(found, dim=1).numpy(), 0, -1)
        return quantiles[..., 0] if np.ndim(levels) == 0 else quantiles

    def predict_interval(self, X: Any, coverage: float = 0.9, *, model: str = "average") -> np.ndarray:
        """``(rows, classes, 2)``: the central credible interval of each class probability.

        :class:`~sparsebnn.estimators.ConformalClassifier` has sets of labels with guaranteed coverage.
        """
        tail = 0.5 * (1.0 - share(coverage, "coverage", "predict_interval"))
        return self.predict_quantiles(X, [tail, 1.0 - tail], model=model)

    def _ensemble_if_fitted(self) -> Any:
        check_is_fitted(self)
        return self._ensemble

    def predict_log_proba(self, X: Any, *, model: str = "average") -> np.ndarray:
        """Logarithms of :meth:`predict_proba`."""
        return np.log(np.maximum(self.predict_proba(X, model=model), np.finfo(np.float64).tiny))

    def predict(self, X: Any, return_std: bool = False, *, model: str = "average") -> Any:
        """The most probable label of each row; with several labels, those with a probability above one half.

        ``return_std`` also returns the posterior standard deviation of its probability, over draws.
        """
        ensemble = self._ensemble_if_fitted()
        means, stds = [], []
        for _, outputs in self._draws(X, model):
            each = ensemble.probs(outputs).flatten(0, 1)
            means.append(each.mean(0))
            stds.append(each.std(0, correction=0))
        probs, std = torch.cat(means).cpu().numpy(), torch.cat(stds).cpu().numpy()
        if self._multilabel:
            labels = (probs > 0.5).astype(np.int64)
            return (labels, std) if return_std else labels
        codes = probs.argmax(1)
        labels = self.classes_[codes]
        return (labels, std[np.arange(len(codes)), codes]) if return_std else labels

    def predict_uncertainty(self, X: Any, *, model: str = "average") -> dict[str, np.ndarray]:
        """Entropy of each prediction in nats, and the parts of it.

        ``entropy`` is the sum of ``aleatoric`` (expected entropy for known weights) and ``epistemic``
        (uncertainty about the weights). With several labels, each has its own.
        """
        ensemble = self._ensemble_if_fitted()
        found = []
        for _, outputs in self._draws(X, model):
            each = ensemble.probs(outputs)
            if self._multilabel:
                each = torch.stack([1.0 - each, each], dim=-1)
            total, known = entropy(each.mean((0, 1))), entropy(each).mean((0, 1))
            found.append(torch.stack([total, known, (total - known).clamp_min(0.0)]))
        total, known, rest = torch.cat(found, dim=1).cpu().numpy()
        return {"entropy": total, "aleatoric": known, "epistemic": rest}

    def sample_predictive(
        self, X: Any, n_samples: int = 100, random_state: Any = 0, *, model: str = "average"
    ) -> np.ndarray:
        """``(n_samples, rows)`` labels drawn from the predictive distribution.

        Each sample uses one draw of the weights for all rows, so rows are sampled jointly.
        """
        check_count(n_samples, "n_samples", "sample_predictive")
        ensemble = self._ensemble_if_fitted()
        parts = [ensemble.probs(outputs).flatten(0, 1) for _, outputs in self._draws(X, model, n_samples)]
        probs = torch.cat(parts, dim=1).cpu().numpy()
        if self._multilabel:
            probs = np.stack([1.0 - probs, probs], axis=-1)
        # Alternate between replicates, so that any number of samples uses all of them.
        order = np.arange(len(probs)).reshape(len(self.networks_), -1).T.ravel()[:n_samples]
        uniform = check_random_state(random_state).random_sample((n_samples, *probs.shape[1:-1], 1))
        codes = (probs[order].cumsum(-1) < uniform).sum(-1)
        if self._multilabel:
            return np.minimum(codes, 1)
        return self.classes_[np.minimum(codes, len(self.classes_) - 1)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
