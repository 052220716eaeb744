"""The shared part of both estimators: data, training, fitted attributes. All work is in ``fit``."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_random_state,
)
from torch import Tensor, nn

from sparsebnn.checks import check_count, check_seed, invalid
from sparsebnn.estimators import early_stopping, explanation, feature_selection
from sparsebnn.estimators.continuing import Continued, continued
from sparsebnn.estimators.early_stopping import LEAST_EFFORT, Budget, EarlyStopping, Pace, TimeBudget
from sparsebnn.estimators.encoding import (
    Encoder,
    checked_kinds,
    checked_table,
    is_frame,
    is_sparse,
    warn_of_columns,
)
from sparsebnn.estimators.ensemble import (
    Choice,
    Ensemble,
    Folded,
    can_be_linear,
    choose,
    folds,
    linear_network,
)
from sparsebnn.estimators.fitted import Fitted
from sparsebnn.estimators.plan import Plan, missed_density, network, planned, positive, prior_as_given, share
from sparsebnn.estimators.target_codes import signal
from sparsebnn.likelihoods import Likelihood
from sparsebnn.nn.networks import InputSkip, density
from sparsebnn.selection.rules import select
from sparsebnn.training import Callback, Run, train
from sparsebnn.training.devices import device_of, one_thread

__all__ = ["SparseBNN"]

_LEAST_WEIGHT = 0.1  # of a row, on average
_FOLDS = {"classification": 5, "regression": 10}  # of which each replicate leaves out one
_MANY_FOLDS = 10
_LEAST_TO_CALIBRATE = 30
# With this many rows, leaving out a fifth costs little accuracy and improves the selection of columns.
_ROWS_TO_SPARE = 5000
_ROWS_FOR_EFFECTS = 200
_ROWS_FOR_LINEAR = 20_000
_LEAST_STEPS = 400  # with fewer, inclusions are still near their start
_DRAWS_FOR_EFFECTS = 60
_TRIAL_STEPS = 3  # per epoch; two epochs are timed
_ALL_NETWORKS = 2.0  # the work after training for all networks, relative to that for one
_REPAYS_COMPILING = 120.0  # seconds; with a smaller time budget, compiling for a GPU does not pay


class SparseBNN(Fitted):
    """The shared part of :class:`SparseBNNClassifier` and :class:`SparseBNNRegressor`; not used alone."""

    _task = "classification"
    _kept_rows: Tensor
    _continued: Continued | None
    _seed: int

    # -- training -------------------------------------------------------------------------------------

    def _likelihood(self, y: Tensor) -> Likelihood:
        raise NotImplementedError

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

    def _plan_options(self, rows: int) -> dict[str, Any]:
        """The parameters that a plan is made from."""
        return self.get_params()

    def _after_training(self, x: np.ndarray, y: Tensor, weight: np.ndarray) -> None:
        """Called when the networks are known, before anything is computed with them."""

    def _fit(self, X: Any, prepare: Any, sample_weight: Any, partial: bool = False) -> Any:
        """Fit, or leave the estimator unchanged; ``prepare(rows, weight)`` gives targets, weights, notes.

        ``partial`` passes once over the rows (:mod:`sparsebnn.estimators.continuing`).
        """
        owner = type(self).__name__
        began = time.monotonic()
        check_count(self.n_draws, "n_draws", owner)
        device_of(self.device, owner)
        budget = None
        if self.time_budget is not None:
            positive(self.time_budget, "time_budget", owner, "positive seconds")
            budget = Budget(float(self.time_budget))
        if sample_weight is not None and is_sparse(X) is False and not is_frame(X):
            check_consistent_length(X, sample_weight)
        with _whole(self):
            before = continued(self, partial) if partial or self.warm_start else None
            self._continued = before
            fresh = before is None or not before.networks
            table = checked_table(self, X, reset=fresh)
            weight = _check_sample_weight(
                sample_weight, np.empty((len(table), 1)), dtype=np.float64, ensure_non_negative=True
            )
            targets, weight, notes = prepare(len(table), weight)
            notes = [*notes, *_little_weight(weight)]
            kept = weight > 0.0
            if not kept.any():
                raise invalid("sample_weight", owner, "above 0 for some rows", "0 everywhere")
            if not kept.all():
                table, targets, weight = table.rows(kept), targets[torch.from_numpy(kept)], weight[kept]
            seed = _seed(self.random_state) if fresh else self._seed
            in_folds = self._fold_count(len(table), check_count(self.replicates, "replicates", owner)), seed
            classes = self._task == "classification" and targets.dim() == 1
            given = functools.partial(signal, targets, *in_folds, classes)
            if fresh:
                kinds = checked_kinds(self.column_kinds, table.names, owner)
                learned = Encoder.learned(table, weight, kinds, given)
                self._encoder = learned.anywhere() if partial else learned
                warn_of_columns(self._encoder, notes)
            self.notes_ = [*self._encoder.notes, *notes]
            if fresh or not partial:
                x = self._encoder.transform_training(table, weight, given)
            else:
                x = self._encoder.transform(table)
            self._seed, self.n_rows_ = seed, len(x)
            if before is not None:
                seen = before.seen.after(x, targets.numpy(), 0)
                weight = before.weight(weight, seen.rows)
            run, effort = self._train(x, targets, weight, seed, budget)
            self._set_fitted(run, x, targets, weight, effort)
            if before is not None:
                steps = len(run.history) * run.batches.per_epoch
                self._seen = dataclasses.replace(seen, steps=seen.steps + steps)
            else:
                self.__dict__.pop("_seen", None)
            del self._fold, self._continued
            self.notes_ += missed_density(self.networks_, self.density_, self.plan_)
            if budget is not None:
                self.notes_ += early_stopping.over_time(budget.seconds, budget.seconds - budget.left())
            self.seconds_ = time.monotonic() - began
        return self

    def _train(
        self, x: np.ndarray, y: Tensor, weight: np.ndarray, seed: int, budget: Budget | None
    ) -> tuple[Run, float]:
        """The run, and the share of the work after it that fits the time budget."""
        owner = type(self).__name__
        inputs, w, targets = torch.from_numpy(x).float(), torch.from_numpy(weight).float(), y
        # The command line watches the training to show a progress bar.
        callbacks: list[Callback] = list(getattr(self, "_watchers", ()))
        if self.early_stopping:
            callbacks.append(self._held_out(inputs, y, w, seed))
            keep = self._kept_rows
            inputs, y, w = inputs[keep], y[keep], w[keep]
        plan = planned(self._plan_options(len(inputs)), len(inputs), self._task, owner)
        form = self._likelihood(y)
        options: dict[str, Any] = {}
        if self._continued is not None:
            plan = self._continued.plan(self, plan, len(inputs))
            options = self._continued.options(form)
        self._fold = self._folds(plan, y, seed)
        template = network(plan, inputs.shape[1], form.n_outputs(y))
        options |= {"likelihood": form, "replicates": len(plan.temperatures), "seed": seed}
        options["per_replicate"] = plan.per_replicate()
        if self._fold is not None:
            # Cross-fitting: the fold becomes the last column of y, and rows of fold k have no loss in
            # replicate k.
            options["likelihood"] = Folded(form)
            options["per_replicate"]["held"] = [plan.fold_of(k) for k in range(len(plan.temperatures))]
            y = torch.cat([y.reshape(len(y), -1).float(), self._fold[:, None]], dim=1)
        data: tuple[Tensor, ...] = (inputs, y) if bool((w == 1.0).all()) else (inputs, y, w)
        device = str(self.device)
        if device == "auto":
            device = plan.device(*inputs.shape)
        options |= {"device": device, "progress": None if self.verbose else False}
        rows, needed, pace = len(inputs), 0.0, None
        with plan.threads(inputs.shape[1], device):
            if budget is not None:
                if device != "cpu" and budget.seconds < _REPAYS_COMPILING:
                    options["mode"] = "captured"

                def rehearse(run: Run) -> None:
                    self._set_fitted(run, x, targets, weight, LEAST_EFFORT, networks=1)

                pace = self._pace(plan, template, data, options, rehearse)
                needed = budget.needed(plan, rows, pace)
                plan = budget.shortened(
                    plan, rows, pace, lambda n: planned(self._plan_options(n), n, self._task, owner)
                )
                if plan.train_rows is not None:
                    chosen = np.random.RandomState(seed).permutation(rows)[: plan.train_rows]
                    picked = torch.from_numpy(chosen).sort().values
                    data = tuple(each[picked] for each in data)
                    self._kept_rows = self._kept_rows[picked] if self.early_stopping else picked
                callbacks.append(TimeBudget(budget.until - budget.after(pace)))
            self.plan_, self.stopped_because_ = plan, "all epochs are done"
            if plan.full_epochs is not None:
                self.stopped_because_ = "the time budget allowed no more"
            try:
                run = train(template, data, settings=plan.settings, callbacks=callbacks, **options)
            except early_stopping.StopTraining as enough:
                run, self.stopped_because_ = enough.run, enough.why
                self.notes_ += early_stopping.cut_short(run, plan, enough.why)
        for callback in callbacks:
            if isinstance(callback, EarlyStopping):
                callback.restore(run)
        if budget is None or pace is None:
            return run, 1.0 if self._continued is None else self._continued.effort
        allowed = len(run.history) if self.stopped_because_ == TimeBudget.why else plan.settings.epochs
        self.notes_ += early_stopping.short_of_time(plan, allowed, rows, budget.seconds, needed)
        effort = budget.effort(pace)
        self.notes_ += early_stopping.less_effort(effort, budget.seconds)
        return run, effort

    @property
    def _calibrates(self) -> bool:
        return bool(self.calibrate)

    def _folds(self, plan: Plan, y: Tensor, seed: int) -> Tensor | None:
        """The fold of each row, to calibrate and to select columns; None if no rows are left out."""
        wanted = self._calibrates or plan.tempered is not None or len(y) >= _ROWS_TO_SPARE
        if not wanted or plan.replicates < 2 or self.early_stopping or len(y) < _LEAST_TO_CALIBRATE:
            return None
        count = self._fold_count(len(y), plan.replicates)
        return folds(y, count, seed, self._task == "classification" and y.dim() == 1)

    def _fold_count(self, rows: int, replicates: int) -> int:
        return max(_FOLDS[self._task] if rows < _ROWS_TO_SPARE else _MANY_FOLDS, replicates)

    def _held_out(self, x: Tensor, y: Tensor, w: Tensor, seed: int) -> EarlyStopping:
        """Hold out rows for the validation ELBO; ``_kept_rows`` are the training rows."""
        owner = type(self).__name__
        part = share(self.validation_fraction, "validation_fraction", owner)
        count = max(1, round(part * len(x)))
        if count >= len(x):
            raise invalid("validation_fraction", owner, "a share that leaves rows to train on", part)
        order = torch.from_numpy(np.random.RandomState(seed).permutation(len(x)))
        held, self._kept_rows = order[:count].sort().values, order[count:].sort().values
        return EarlyStopping(x[held], y[held], w[held], check_count(self.patience, "patience", owner))

    def _pace(
        self,
        plan: Plan,
        template: Any,
        data: tuple[Tensor, ...],
        options: dict[str, Any],
        rehearse: Callable[[Run], None],
    ) -> Pace:
        """Time a few training steps and a rehearsal of the work that follows."""
        few = tuple(each[: _TRIAL_STEPS * plan.settings.batch_size] for each in data)
        self.plan_ = plan.with_settings(
            epochs=2, target_density=None, free_fraction=None, refit=0.0, refit_temperature_factor=1.0
        )
        run = train(template, few, settings=self.plan_.settings, **options)
        step = run.history[-1].seconds / run.batches.per_epoch
        began = time.monotonic()
        rehearse(run)
        return Pace(max(step, 1e-6), run.compile_seconds, _ALL_NETWORKS * (time.monotonic() - began))

    # -- what was learned -----------------------------------------------------------------------------

    def _set_fitted(
        self,
        run: Run,
        x: np.ndarray,
        y: Tensor,
        weight: np.ndarray,
        effort: float = 1.0,
        networks: int | None = None,
    ) -> None:
        """Set the attributes of a fitted estimator.

        ``effort`` is the share of the work to do, from 0 to 1; ``networks`` is the number to keep.
        """
        living = [k for k in range(len(run.seeds)) if k not in {s.replicate for s in run.stopped}][:networks]
        objectives = [run.replicates.unstack(k).to("cpu") for k in living]
        trained = [each.network for each in objectives]
        if self.plan_.settings.target_density is not None:
            for each in trained:
                prior_as_given(each, self.plan_)
        forms = [each.likelihood for each in objectives]
        forms = [each.inner if isinstance(each, Folded) else each for each in forms]
        # Replicates at the plan's temperature come first, then as many tempered ones, then linear networks.
        first = [place for place, k in enumerate(living) if k < self.plan_.replicates]
        chosen = Choice(first or list(range(len(living))))
        if self._fold is not None and not run.stopped and networks is None:
            sets = [first]
            if self.plan_.tempered is not None:
                sets.append([place for place in range(len(living)) if place not in first])
                linear = self._linear(trained, forms, first, x, y, weight)
                sets += [[len(trained) + place for place in range(len(linear))]] if linear else []
                trained, forms = trained + [n for n, _ in linear], forms + [f for _, f in linear]
            with one_thread():
                whole = Ensemble(trained, forms)
                # On few rows classifiers differ by chance; tempered replicates are the safe ones.
                safe = 1 if len(sets) > 1 and self._task == "classification" else None
                chosen = choose(whole, sets, x, y, self._fold, weight, self._calibrates, effort, safe)
        self._set_networks(trained, forms, len(first), chosen.places)
        self.logit_scale_, self._levels = chosen.logit_scale, chosen.levels
        self._after_training(x, y, weight)
        for place, form in zip(self._places, self._likelihoods):
            self._trained_forms[place] = form
        self.history_ = [_of_living(dataclasses.asdict(epoch), living) for epoch in run.history]
        self.n_epochs_ = len(self.history_)
        held = [self.plan_.fold_of(k) for k in [*living, *range(self.plan_.replicates)]]
        self._describe(x, y, weight, [held[place] for place in chosen.places], effort)

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
        found = []
        for place in places:
            assert self._fold is not None
            rows = np.flatnonzero(self._fold.numpy() != self.plan_.fold_of(place))[:_ROWS_FOR_LINEAR]
            if hasattr(self, "classes_") and len(torch.unique(y[rows])) < len(self.classes_):
                return []
            own = y[rows].numpy().astype(np.float64)
            found.append(linear_network(trained[place], forms[place], x[rows], own, weight[rows]))
        return found

    def _set_networks(
        self, trained: list[nn.Module], forms: list[Likelihood], first: int, places: list[int]
    ) -> None:
        """All trained networks, those that predict, and those whose inclusions are reported."""
        self._trained, self._trained_forms, self._places = trained, forms, list(places)
        self.networks_ = [trained[place] for place in places]
        self._likelihoods = [forms[place] for place in places]
        self.posterior_networks_ = trained[: max(1, first)]

    def _describe(self, x: np.ndarray, y: Tensor, weight: np.ndarray, held: list[int], effort: float) -> None:
        """Structure, columns in use, and effects; ``held`` are the folds of the networks that predict."""
        column_of, columns = self._encoder.column_of, len(self._encoder.columns)
        structure = Ensemble(self.posterior_networks_, self._trained_forms)
        self.density_ = float(np.mean([density(each).overall for each in self.posterior_networks_]))
        self.inclusion_ = structure.inclusion(column_of, columns).mean(0)
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
            rows = x[:: max(1, len(x) // most)][:most]
            self.effects_ = explanation.effects(self, rows, _DRAWS_FOR_EFFECTS)

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

    def _unseen(self, folds: list[int]) -> list[Tensor] | None:
        """The rows that each network did not see; None if every network saw all rows."""
        if self.early_stopping or (self._fold is None and self.plan_.train_rows is not None):
            seen = torch.zeros(self.n_rows_, dtype=torch.bool)
            seen[self._kept_rows] = True
            # No network saw these rows: divide them among the networks.
            held = torch.nonzero(~seen).flatten()
            return [held[k :: len(folds)] for k in range(len(folds))]
        if self._fold is None:
            return None
        return [torch.nonzero(self._fold == k).flatten() for k in folds]

    @property
    def names_(self) -> tuple[str, ...]:
        """The columns' names, as ``selected_features_`` and :func:`sparsebnn.selection.select` use them."""
        return tuple(column.name for column in self._encoder.columns)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags


def _of_living(epoch: dict[str, Any], living: list[int]) -> dict[str, Any]:
    """The figures of an epoch for the networks that are kept."""
    return {name: [v[k] for k in living] if isinstance(v, list) else v for name, v in epoch.items()}


@contextlib.contextmanager
def _whole(estimator: SparseBNN) -> Iterator[None]:
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
