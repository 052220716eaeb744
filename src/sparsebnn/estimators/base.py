"""The shared part of the ``SparseBNN…`` estimators: data, training, fitted attributes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_random_state,
)
from torch import Tensor, nn

from sparsebnn.checks import check_count, check_seed, check_switch, invalid
from sparsebnn.estimators import early_stopping, explanation, feature_selection
from sparsebnn.estimators.checks import checked_table
from sparsebnn.estimators.continuing import continued
from sparsebnn.estimators.cross_fitting import (
    Choice,
    Folded,
    choose,
    copies,
    leaves_out,
    of_all_rows,
    repeated,
)
from sparsebnn.estimators.early_stopping import Budget
from sparsebnn.estimators.encoding import (
    Encoder,
    checked_kinds,
    is_frame,
    is_sparse,
    shared_names,
    warn_of_columns,
)
from sparsebnn.estimators.ensemble import Ensemble, some_rows
from sparsebnn.estimators.plan import Plan, missed_density, positive, prior_as_given
from sparsebnn.estimators.target_codes import signal
from sparsebnn.estimators.training import Trained, Training
from sparsebnn.inference.linear import can_be_linear, linear_network
from sparsebnn.likelihoods import Likelihood
from sparsebnn.nn.description import density
from sparsebnn.nn.networks import InputSkip
from sparsebnn.selection.rules import STAND_IN, select
from sparsebnn.training.devices import device_of, one_thread

__all__ = ["SparseBNN", "TargetReader"]

# From the number of rows and their weights: the targets, the weights to use, and notes.
TargetReader: TypeAlias = Callable[[int, np.ndarray], tuple[Tensor, np.ndarray, list[str]]]

_SWITCHES = ("calibrate", "early_stopping", "screen", "verbose", "warm_start")
_LEAST_WEIGHT = 0.1  # of a row, on average
_ROWS_FOR_EFFECTS = 200
_ROWS_FOR_LINEAR = 20_000
_ROWS_TO_CORRELATE = 2000
_LEAST_STEPS = 400  # with fewer, inclusions are still near their start
_DRAWS_FOR_EFFECTS = 60
# What may predict, as a summary names it.
_KINDS = ("{}", "tempered networks", "linear networks", "{} of screened columns",
          "tempered networks of screened columns")  # fmt: skip
_MOST_KINDS = {"classification": 2, "regression": 3}  # that predict together


class SparseBNN(Training):
    """The shared part of the ``SparseBNN…`` estimators; not used alone."""

    _seed: int

    def _output_names(self) -> tuple[str, ...]:
        """The names of the outputs that ``explain`` explains."""
        raise NotImplementedError

    def _expected(self, outputs: Tensor) -> Tensor:
        """What is predicted for every draw, ``(draws, rows, …)``, as ``what_if`` shows it."""
        raise NotImplementedError

    def _expected_names(self) -> tuple[str, ...]:
        raise NotImplementedError

    def _targets_in_words(self) -> str:
        raise NotImplementedError

    def _target_record(self) -> dict[str, Any]:
        """What a saved estimator remembers of its targets; see :meth:`_restore_targets`."""
        raise NotImplementedError

    def _restore_targets(self, record: dict[str, Any]) -> None:
        raise NotImplementedError

    def _after_training(self, x: np.ndarray, y: Tensor, weight: np.ndarray) -> None:
        """Called when the networks are known, before anything is computed with them."""

    def _fit(self, X: Any, read_targets: TargetReader, sample_weight: Any, partial: bool = False) -> Any:
        """Fit and return the estimator, or leave it unchanged.

        ``partial`` passes once over the rows (:mod:`sparsebnn.estimators.continuing`).
        """
        owner = type(self).__name__
        began = time.monotonic()
        check_count(self.n_draws, "n_draws", owner)
        for name in _SWITCHES:
            given = getattr(self, name, False)
            if (name, given) != ("calibrate", "auto") or self._task != "regression":
                check_switch(given, name, owner)
        device_of(self.device, owner)
        budget = None
        if self.time_budget is not None:
            positive(self.time_budget, "time_budget", owner, "positive seconds")
            budget = Budget(float(self.time_budget))
        if sample_weight is not None and is_sparse(X) is False and not is_frame(X):
            check_consistent_length(X, sample_weight)
        with _unchanged_on_failure(self):
            before = continued(self, partial) if partial or self.warm_start else None
            self._continued = before
            fresh = before is None or not before.networks
            table = checked_table(self, X, reset=fresh)
            weight = _check_sample_weight(
                sample_weight, np.empty((len(table), 1)), dtype=np.float64, ensure_non_negative=True
            )
            targets, weight, notes = read_targets(len(table), weight)
            shared = shared_names([str(name) for name in X.columns]) if is_frame(X) else []
            notes = [*shared, *notes, *_little_weight(weight)]
            kept = weight > 0.0
            if not kept.any():
                raise invalid("sample_weight", owner, "above 0 for some rows", "0 everywhere")
            if not kept.all():
                table, targets, weight = table.rows(kept), targets[torch.from_numpy(kept)], weight[kept]
            classes = self._task == "classification" and targets.dim() == 1
            if classes and fresh and not partial and len(torch.unique(targets)) < 2:
                raise invalid("sample_weight", owner, "above 0 for rows of two classes", "0 for all but one")
            seed = _seed(self.random_state) if fresh else self._seed
            n_folds = self._fold_count(len(table), check_count(self.replicates, "replicates", owner))
            make_signal = functools.partial(signal, targets, n_folds, seed, classes)
            if fresh:
                kinds = checked_kinds(self.column_kinds, table.names, owner)
                learned = Encoder.learned(table, weight, kinds, make_signal)
                self._encoder = learned.anywhere() if partial else learned
                warn_of_columns(self._encoder, notes)
            self.notes_ = [*self._encoder.notes, *notes]
            x = self._encoder.transform(table)
            if before is None and (rows := repeated(x, targets, weight)) is not None:
                table, x, targets, weight = table.rows(rows), x[rows], targets[rows], np.ones(len(rows))
            self._copies = copies(x, targets)
            if (fresh or not partial) and any(column.codes for column in self._encoder.columns):
                n_folds = self._fold_count(len(table), self.replicates)
                make_signal = functools.partial(signal, targets, n_folds, seed, classes, self._copies)
                x = self._encoder.transform_training(table, weight, make_signal)
            self._seed, self.n_rows_ = seed, len(x)
            if before is not None:
                seen = before.seen.after(x, targets.numpy(), 0)
                weight = before.weight(weight, seen.rows)
            trained = self._train(x, targets, weight, seed, budget)
            self._set_fitted(trained, x, targets, weight)
            if before is not None:
                steps = len(trained.run.history) * trained.run.batches.per_epoch
                self._seen = dataclasses.replace(seen, steps=seen.steps + steps)
            else:
                self.__dict__.pop("_seen", None)
            del self._fold, self._continued, self._copies
            self.notes_ += missed_density(self.networks_, self.density_, self.plan_)
            if budget is not None:
                self.notes_ += early_stopping.over_time(budget.seconds, budget.seconds - budget.left())
            self.seconds_ = time.monotonic() - began
        return self

    # -- what was learned -----------------------------------------------------------------------------

    def _set_fitted(
        self, found: Trained, x: np.ndarray, y: Tensor, weight: np.ndarray, networks: int | None = None
    ) -> None:
        """Set the attributes of a fitted estimator; ``networks`` is the number to keep."""
        run, count = found.run, self.plan_.replicates
        living = [k for k in range(len(run.seeds)) if k not in {s.replicate for s in run.stopped}][:networks]
        objectives = [run.replicates.unstack(k).to("cpu") for k in living]
        trained = [each.network for each in objectives]
        if self.plan_.settings.target_density is not None:
            for each in trained:
                prior_as_given(each, self.plan_)
        forms = [each.likelihood for each in objectives]
        forms = [each.inner if isinstance(each, Folded) else each for each in forms]
        # Replicates at the plan's temperature come first, then as many tempered ones.
        first = [place for place, k in enumerate(living) if k < count]
        names = [name.format(_named(self.plan_)) for name in _KINDS]
        chosen, self.predictors_ = Choice(first or list(range(len(living)))), [names[0]]
        replicate_of = [k % count for k in living]
        if self._fold is not None and not run.stopped and networks is None:
            kinds = names[: len(trained) // count]
            if self.plan_.tempered is not None:
                linear = self._linear(trained, forms, first, x, y, weight)
                kinds += [names[2]] if linear else []
                trained, forms = trained + [n for n, _ in linear], forms + [f for _, f in linear]
            kinds += names[3 : 3 + len(found.again) // count]
            trained, forms = trained + [n for n, _ in found.again], forms + [f for _, f in found.again]
            sets = [list(range(count * k, count * (k + 1))) for k in range(len(kinds))]
            replicate_of = list(range(count)) * len(sets)
            with one_thread():
                whole = Ensemble(trained, forms)
                # On few rows classifiers differ by chance; tempered replicates are the safe ones.
                safe = 1 if self.plan_.tempered is not None and self._task == "classification" else None
                rows, most = (x, y, self._fold, weight), _MOST_KINDS[self._task]
                chosen = choose(whole, sets, *rows, self._calibrates, found.effort, safe, most)
            self.predictors_ = [kinds[k] for k in sorted({place // count for place in chosen.places})]
        held = [leaves_out(replicate_of[place], count) for place in chosen.places]
        # Networks that neither predict nor can be trained further are not kept.
        kept = [k for k in range(len(trained)) if k < len(living) or k in chosen.places]
        places = [kept.index(place) for place in chosen.places]
        self._set_networks([trained[k] for k in kept], [forms[k] for k in kept], len(first), places)
        self.logit_scale_, self._levels = chosen.logit_scale, chosen.levels
        self.replicate_weights_ = np.full(len(self.posterior_networks_), 1.0 / len(self.posterior_networks_))
        if self.plan_.settings.temperature == 1.0 and len(self.posterior_networks_) > 1:
            own = Ensemble(self.posterior_networks_, forms[: len(self.posterior_networks_)])
            self.replicate_weights_ = own.weights(x, y, weight, found.effort)
        self._after_training(x, y, weight)
        for place, form in zip(self._places, self._likelihoods):
            self._all_likelihoods[place] = form
        self.history_ = [_of_living(dataclasses.asdict(epoch), living) for epoch in run.history]
        self.n_epochs_ = len(self.history_)
        self._describe(x, y, weight, held, found.effort)

    def _linear(
        self,
        trained: list[nn.Module],
        forms: list[Likelihood],
        places: list[int],
        x: np.ndarray,
        y: Tensor,
        weight: np.ndarray,
    ) -> list[tuple[nn.Module, Likelihood]]:
        """A linear network for every fold; none where there is no linear model."""
        if not isinstance(trained[0], InputSkip) or not can_be_linear(forms[0]):
            return []
        import threadpoolctl

        found = []
        assert self._fold is not None
        for place in places:
            left = leaves_out(place, self.plan_.replicates)
            rows = np.flatnonzero(~np.isin(self._fold.numpy(), left))
            rows = rows[some_rows(len(rows), _ROWS_FOR_LINEAR)]
            if hasattr(self, "classes_") and len(torch.unique(y[rows])) < len(self.classes_):
                return []
            own = y[rows].numpy().astype(np.float64)
            with threadpoolctl.threadpool_limits(1):  # as in one_thread, for scikit-learn
                found.append(linear_network(trained[place], forms[place], x[rows], own, weight[rows]))
        return found

    def _set_networks(
        self, trained: list[nn.Module], forms: list[Likelihood], n_posterior: int, places: list[int]
    ) -> None:
        """Keep all trained networks, those that predict, and the first, whose inclusions are reported."""
        self._all_networks, self._all_likelihoods, self._places = trained, forms, list(places)
        self.networks_ = [trained[place] for place in places]
        self._likelihoods = [forms[place] for place in places]
        self.posterior_networks_ = trained[: max(1, n_posterior)]

    def _describe(
        self, x: np.ndarray, y: Tensor, weight: np.ndarray, held: list[tuple[int, int]], effort: float
    ) -> None:
        """Structure, columns in use, and effects; ``held`` are the folds of the networks that predict."""
        column_of, columns = self._encoder.column_of, len(self._encoder.columns)
        self.density_ = float(np.mean([density(each).overall for each in self.posterior_networks_]))
        structure = Ensemble(self.posterior_networks_, self._all_likelihoods)
        self.inclusion_ = self.replicate_weights_ @ structure.inclusion(column_of, columns)
        if self._fold is not None and self.inclusions_are_no_posterior is None:
            self.inclusion_ = self._of_all_rows(self.inclusion_, x)
        self.stability_ = structure.median_columns(column_of, columns).mean(0)
        most = max(2, round(effort * _ROWS_FOR_EFFECTS))
        with one_thread():
            found = feature_selection.worth(
                self.networks_,
                self._likelihoods,
                (torch.from_numpy(x), y, torch.from_numpy(weight)),
                self._unseen(held),
                column_of,
                columns,
                self.logit_scale_,
                self._seed,
                effort,
            )
            self.gain_, self.used_ = found.gain, found.used
            if self.inclusions_are_no_posterior is None and columns:
                chosen = select(self.inclusion_, rule="fdr", level=feature_selection.LEVEL)
                self.used_ = chosen.chosen.numpy()
            self.selected_features_ = np.array(self.names_, dtype=object)[self.used_]
            rows = x[some_rows(len(x), most)]
            self.effects_ = feature_selection.effects(self, rows, _DRAWS_FOR_EFFECTS)

    def _of_all_rows(self, average: np.ndarray, x: np.ndarray) -> np.ndarray:
        """:func:`of_all_rows`, but the average over replicates for columns that can replace each other."""
        found = of_all_rows(average, self._fold_count(len(x), self.plan_.replicates))
        risen = np.flatnonzero(found > average)
        rows = x[some_rows(len(x), _ROWS_TO_CORRELATE)]
        alike = explanation.correlations(rows, self._encoder, risen) - np.eye(len(risen))
        replaced = risen[(alike >= STAND_IN).any(axis=1)]
        found[replaced] = average[replaced]
        return found

    @property
    def inclusions_are_no_posterior(self) -> str | None:
        """Why ``inclusion_`` holds no posterior probabilities; None if it does."""
        settings = self.plan_.settings
        if settings.target_density is not None:
            return "brought to a density"
        if settings.temperature != 1.0:
            return f"trained at temperature {settings.temperature:g}"
        steps = self.n_epochs_ * math.ceil((self.plan_.train_rows or self.n_rows_) / settings.batch_size)
        steps = max(steps, getattr(getattr(self, "_seen", None), "steps", 0))
        return None if steps >= _LEAST_STEPS else f"trained for {steps} steps, of at least {_LEAST_STEPS}"

    def _unseen(self, folds: list[tuple[int, int]]) -> list[Tensor] | None:
        """The rows that each network did not see; None if every network saw all rows."""
        if self.early_stopping or (self._fold is None and self.plan_.train_rows is not None):
            seen = torch.zeros(self.n_rows_, dtype=torch.bool)
            seen[self._kept_rows] = True
            # No network saw these rows: divide them among the networks.
            held = torch.nonzero(~seen).flatten()
            return [held[k :: len(folds)] for k in range(len(folds))]
        if self._fold is None:
            return None
        return [torch.nonzero(torch.isin(self._fold, torch.tensor(each).float())).flatten() for each in folds]

    @property
    def names_(self) -> tuple[str, ...]:
        """The columns' names, as ``selected_features_`` and :func:`sparsebnn.selection.select` use them."""
        return tuple(column.name for column in self._encoder.columns)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags


def _named(plan: Plan) -> str:
    """What the first set of networks is."""
    if plan.settings.target_density is not None:
        return "networks of the target density"
    temperature = plan.settings.temperature
    return "the Bayes posterior" if temperature == 1.0 else f"networks at temperature {temperature:g}"


def _of_living(epoch: dict[str, Any], living: list[int]) -> dict[str, Any]:
    """The figures of an epoch for the networks that are kept."""
    return {name: [v[k] for k in living] if isinstance(v, list) else v for name, v in epoch.items()}


@contextlib.contextmanager
def _unchanged_on_failure(estimator: SparseBNN) -> Iterator[None]:
    """Restore the estimator if fitting fails or is interrupted."""
    # Fitting never changes attributes in place, so a shallow copy is enough.
    before = dict(estimator.__dict__)
    try:
        yield
    except BaseException:
        estimator.__dict__ = before
        raise


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer):
        return check_seed(int(random_state), "random_state", "the estimator", least=0, most=2**32 - 1)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _little_weight(weight: np.ndarray) -> list[str]:
    """Weights count rows: if they sum to 1, all rows together count as one."""
    total, rows = float(weight.sum()), int((weight > 0.0).sum())
    if total >= _LEAST_WEIGHT * rows:
        return []
    return [
        f"The weights of {rows} rows sum to {total:.3g}, so they count as {total:.3g} rows and little can be "
        "learned: pass weights with mean 1."
    ]
