"""How an estimator trains its networks: the plan, cross-fitting, a time budget, a second training."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.checks import check_count, invalid
from sparsebnn.estimators import early_stopping
from sparsebnn.estimators.continuing import Continued
from sparsebnn.estimators.cross_fitting import Folded, folds
from sparsebnn.estimators.early_stopping import LEAST_EFFORT, Budget, EarlyStopping, Pace, TimeBudget
from sparsebnn.estimators.ensemble import Ensemble, linear_layers
from sparsebnn.estimators.fitted import Fitted
from sparsebnn.estimators.plan import Plan, network, planned, share
from sparsebnn.inference.linear import OUT
from sparsebnn.likelihoods import Likelihood
from sparsebnn.nn.networks import NO_POSTERIOR
from sparsebnn.training import Callback, Run, train

__all__ = ["MANY_COLUMNS", "Screen", "Trained", "Training", "screened"]

_FOLDS, _MANY_FOLDS = 10, 20  # of which each replicate leaves out two
_LEAST_TO_CALIBRATE = 30
# With this many rows, leaving out a fifth costs little accuracy and improves the selection of columns.
_ROWS_TO_SPARE = 5000
_TRIAL_STEPS = 3  # per epoch; two epochs are timed
_NOTED_COPIES = 0.01  # of the rows
_ALL_NETWORKS = 2.0  # the work after training for all networks, relative to that for one
MANY_COLUMNS = 30  # with fewer, a second training is not worth its time
_ROWS_PER_COLUMN = 50  # with more, one training tells useful columns from useless ones
_LEAST_INCLUSION = 0.1
_MOST_KEPT = 0.5  # of the columns, on average
_REPAYS_COMPILING = 120.0  # seconds; with a smaller time budget, compiling for a GPU does not pay


@dataclass(frozen=True)
class Trained:
    """The run, the share of the work after it that fits the time budget, and the networks trained again."""

    run: Run
    effort: float = 1.0
    again: tuple[tuple[nn.Module, Likelihood], ...] = ()


class Training(Fitted):
    """The training of the ``SparseBNN…`` estimators."""

    _task = "classification"
    _kept_rows: Tensor
    _copies: np.ndarray | None
    _continued: Continued | None

    def _likelihood(self, y: Tensor) -> Likelihood:
        raise NotImplementedError

    def _plan_options(self, rows: int) -> dict[str, Any]:
        """The parameters that a plan is made from."""
        return self.get_params()

    def _train(
        self, x: np.ndarray, y: Tensor, weight: np.ndarray, seed: int, budget: Budget | None
    ) -> Trained:
        owner = type(self).__name__
        inputs, w, targets = torch.from_numpy(x).float(), torch.from_numpy(weight).float(), y
        # The command line watches the training to show a progress bar.
        callbacks: list[Callback] = list(getattr(self, "_watchers", ()))
        if self.early_stopping:
            callbacks.append(self._held_out(inputs, y, w, seed))
            keep = self._kept_rows
            inputs, y, w = inputs[keep], y[keep], w[keep]
        plan = planned(self._plan_options(len(inputs)), len(inputs), self._task, owner)
        plan = plan.within_reason(*inputs.shape)
        form = self._likelihood(y)
        options: dict[str, Any] = {}
        if self._continued is not None:
            plan = self._continued.plan(self, plan, len(inputs))
            plan = dataclasses.replace(plan, most_epochs=None)
            options = self._continued.options(form)
        self._fold = self._folds(plan, y, seed)
        template = network(plan, inputs.shape[1], form.n_outputs(y))
        options |= {"likelihood": form, "replicates": len(plan.temperatures), "seed": seed}
        options["per_replicate"] = plan.per_replicate()
        if self._fold is not None:
            # Cross-fitting: the fold becomes the last column of y, and rows of two folds have no loss in
            # replicate k.
            options["likelihood"] = Folded(form, plan.replicates)
            options["per_replicate"]["held"] = [k % plan.replicates for k in range(len(plan.temperatures))]
            y = torch.cat([y.reshape(len(y), -1).float(), self._fold[:, None]], dim=1)
        data: tuple[Tensor, ...] = (inputs, y) if bool((w == 1.0).all()) else (inputs, y, w)
        device = str(self.device)
        if device == "auto":
            device = plan.device(*inputs.shape)
        began = time.monotonic()
        options |= {"device": device, "progress": None if self.verbose else False}
        rows, needed, pace = len(inputs), 0.0, None
        with plan.threads(inputs.shape[1], device):
            if budget is not None:
                if device != "cpu" and budget.seconds < _REPAYS_COMPILING:
                    options["mode"] = "captured"

                def rehearse(run: Run) -> None:
                    self._set_fitted(Trained(run, LEAST_EFFORT), x, targets, weight, networks=1)

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
            run, why = _run_plan(plan, template, data, callbacks, options)
        if why is not None:
            self.stopped_because_ = why
            self.notes_ += early_stopping.cut_short(run, plan, why)
        elif plan.most_epochs is not None:
            self.stopped_because_ = "the most epochs are done"
            self.notes_ += [early_stopping.not_converged(plan.most_epochs)]
        for callback in callbacks:
            if isinstance(callback, EarlyStopping):
                callback.restore(run)
        spare = math.inf if budget is None or pace is None else budget.left() - budget.after(pace)
        with plan.threads(inputs.shape[1], device):
            again = self._train_again(run, template, data, options, spare > time.monotonic() - began)
        if budget is None or pace is None:
            return Trained(run, 1.0 if self._continued is None else self._continued.effort, again)
        allowed = plan.settings.epochs
        if self.stopped_because_ == TimeBudget.why:
            allowed = min(allowed, len(run.history))
        self.notes_ += early_stopping.short_of_time(plan, allowed, rows, budget.seconds, needed)
        effort = budget.effort(pace)
        self.notes_ += early_stopping.less_effort(effort, budget.seconds)
        return Trained(run, effort, again)

    def _train_again(
        self, run: Run, template: nn.Module, data: tuple[Tensor, ...], options: dict[str, Any], has_time: bool
    ) -> tuple[tuple[nn.Module, Likelihood], ...]:
        """The networks of a second training, on the columns that the first one includes."""
        plan, column_of, columns = self.plan_, self._encoder.column_of, len(self._encoder.columns)
        if self._continued is not None or not plan.input_skip:
            return ()
        if len(data[0]) >= _ROWS_PER_COLUMN * columns:
            return ()
        if not self.screen or not has_time or self._fold is None or run.stopped:
            self.notes_ += _screening_is_off(columns, len(data[0]))
            return ()
        trained = [run.replicates.unstack(k).to("cpu") for k in range(plan.replicates)]
        forms = [each.likelihood for each in trained]
        screen = screened([each.network for each in trained], forms, column_of, columns)
        if screen is None:
            return ()
        narrow = network(plan, len(screen.inputs), linear_layers(template)[-1].out_features)
        data = (data[0][:, screen.inputs], *data[1:])
        sets = len(plan.temperatures) // plan.replicates
        run, _ = _run_plan(plan, narrow, data, [screen.callback(sets)], options)
        if run.stopped:
            return ()
        found = [run.replicates.unstack(k).to("cpu") for k in range(len(run.seeds))]
        forms = [each.likelihood.inner for each in found if isinstance(each.likelihood, Folded)]
        return tuple(zip([screen.widened(each.network, template) for each in found], forms))

    @property
    def _calibrates(self) -> bool:
        return bool(self.calibrate)

    def _folds(self, plan: Plan, y: Tensor, seed: int) -> Tensor | None:
        """The fold of each row, to calibrate and to select columns; None if no rows are left out."""
        wanted = self._calibrates or plan.tempered is not None or len(y) >= _ROWS_TO_SPARE
        if not wanted or plan.replicates < 2 or self.early_stopping or len(y) < _LEAST_TO_CALIBRATE:
            return None
        count, group = self._fold_count(len(y), plan.replicates), self._copies
        copied = 0 if group is None else len(y) - len(np.unique(group))
        if copied > _NOTED_COPIES * len(y):
            self.notes_ += [
                f"{copied} of {len(y)} rows are copies of others. Copies are left out together, so that "
                "networks are judged by rows they have not seen."
            ]
        return folds(y, count, seed, self._task == "classification" and y.dim() == 1, group)

    def _fold_count(self, rows: int, replicates: int) -> int:
        return max(_FOLDS if rows < _ROWS_TO_SPARE else _MANY_FOLDS, replicates)

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


def _run_plan(
    plan: Plan,
    template: nn.Module,
    data: tuple[Tensor, ...],
    callbacks: list[Callback],
    options: dict[str, Any],
) -> tuple[Run, str | None]:
    """Train by a plan: the run, and why it ended before its last epoch, if it did."""
    settings = plan.settings
    if plan.most_epochs is not None:
        plateau = early_stopping.Plateau(max(1, settings.epochs // 2))
        callbacks = [*callbacks, early_stopping.Convergence(plateau, plan.temperatures, plan.replicates)]
        warmup = settings.warmup * settings.epochs / plan.most_epochs
        settings = dataclasses.replace(settings, epochs=plan.most_epochs, schedule=plateau, warmup=warmup)
    try:
        return train(template, data, settings=settings, callbacks=callbacks, **options), None
    except early_stopping.StopTraining as enough:
        return enough.run, enough.why


# -- screening ------------------------------------------------------------------------------------------
# A network of many columns spends much of its evidence on telling useless columns from useful ones.
# Replicate k therefore trains again on the columns that it includes with a probability above a tenth. Only
# the rows that it trains on decide about them, so it predicts the rows that it leaves out as honestly as
# before, and these rows decide which networks predict.


@dataclass(frozen=True)
class Screen:
    """The inputs that each replicate keeps, ``(replicates, inputs)``."""

    kept: Tensor

    @property
    def inputs(self) -> Tensor:
        """The places of the inputs that any replicate keeps: the inputs of the second training."""
        return torch.nonzero(self.kept.any(0)).flatten()

    def callback(self, sets: int) -> Callback:
        """Excludes, from the start, what a replicate does not keep; ``sets`` of replicates train."""
        return _Excluded(~self.kept[:, self.inputs].repeat(sets, 1))

    @torch.no_grad()
    def widened(self, network: nn.Module, like: nn.Module) -> nn.Module:
        """A network of the second training in the shape of one with all inputs, which it does not use."""
        found, at, inputs = copy.deepcopy(like).eval(), self.inputs, self.kept.shape[1]
        own = network.state_dict()
        for name, wide in found.state_dict().items():
            narrow = own[name].to(wide)
            if wide.shape == narrow.shape:
                wide.copy_(narrow)
                continue
            units = wide.shape[-1] - inputs  # of the layer before; the inputs follow
            wide[:, units:] = OUT if name.endswith("inclusion_logit") else 0.0
            wide[:, :units] = narrow[:, :units]
            wide[:, units + at] = narrow[:, units:]
        setattr(found, NO_POSTERIOR, "that was trained on columns chosen before")
        return found


class _Excluded(Callback):
    def __init__(self, out: Tensor) -> None:
        self.out = out

    @torch.no_grad()
    def on_train_start(self, run: Run) -> None:
        inputs = self.out.shape[1]
        for name, values in run.replicates.parameters.items():
            if name.endswith("inclusion_logit"):
                # At such a logit gradients vanish, and the weight stays out.
                values[:, :, -inputs:].masked_fill_(self.out[:, None].to(values.device), OUT)


def screened(
    networks: Sequence[nn.Module], forms: Sequence[Likelihood], column_of: np.ndarray, columns: int
) -> Screen | None:
    """What each network keeps; None where that is nearly everything, or nothing."""
    if columns < MANY_COLUMNS:
        return None
    inclusion = Ensemble(networks, forms).inclusion(column_of, columns)
    kept = inclusion > _LEAST_INCLUSION
    # A replicate that found nothing keeps the most probable column, so that it can train.
    kept[np.arange(len(kept)), inclusion.argmax(1)] = True
    if kept.mean() > _MOST_KEPT:
        return None
    return Screen(torch.from_numpy(kept[:, column_of]))


def _screening_is_off(columns: int, rows: int) -> list[str]:
    """A note and a warning if screening is off although columns outnumber the rows."""
    if columns <= max(rows, MANY_COLUMNS):
        return []
    note = (
        f"There are {columns} columns and {rows} rows, and the networks were not trained again on the "
        "columns that they include, which often predicts better: it takes screen=True, several replicates "
        "without early stopping, and enough time."
    )
    warnings.warn(note, UserWarning, stacklevel=6)
    return [note]
