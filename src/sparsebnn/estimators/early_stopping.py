"""Training that ends before its last epoch: a time budget, or a validation ELBO that no longer rises.

For a time budget, a few training steps and a quick run of the work that follows show how long both take.
The training is then planned again, with a schedule and a warm-up that end with it: fewer epochs or, if not
even a few epochs fit, fewer rows per epoch. The work after training gets the remaining time.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebnn.estimators.plan import Plan
from sparsebnn.inference.sampling import draw_outputs_of_all
from sparsebnn.likelihoods import Likelihood
from sparsebnn.training import Callback, Epoch, Run
from sparsebnn.training.density import fix_structure

__all__ = [
    "LEAST_EFFORT",
    "Budget",
    "EarlyStopping",
    "Pace",
    "StopTraining",
    "TimeBudget",
    "cut_short",
    "less_effort",
    "over_time",
    "short_of_time",
]

_LOOKS = 40  # evaluations of the validation ELBO in a full training
LEAST_EFFORT = 0.05  # share of the work after training; also that of the rehearsal
_SAFETY = 0.9  # share of the remaining time to plan with, since steps may become slower
_MOST_AFTER = 0.2  # share of the budget for the work after training
_FEW_EPOCHS = 10  # if fewer fit, use fewer rows instead
_FEWEST_ROWS = 1000
_OVER = 1.2  # times the time budget: a longer fit is reported
_USEFUL_SHARE = 0.25  # of the planned training; less of it causes a warning
_CALLER_OF_FIT = 4  # stack level of the line that called ``fit``


class StopTraining(Exception):
    """Ends a training run early; ``run`` holds the networks."""

    def __init__(self, run: Run, why: str) -> None:
        super().__init__(why)
        self.run, self.why = run, why


class TimeBudget(Callback):
    """Stop if another epoch would end after ``until`` (on the clock ``time.monotonic``)."""

    why = "the time budget is spent"

    def __init__(self, until: float) -> None:
        self.until = until
        self._before = time.monotonic()

    def on_train_start(self, run: Run) -> None:
        self._before = time.monotonic()

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        now = time.monotonic()
        lasted, self._before = now - self._before, now
        if now + lasted > self.until and epoch.epoch + 1 < run.settings.epochs:
            raise StopTraining(run, self.why)


class EarlyStopping(Callback):
    r"""Stop when the ELBO of held-out rows no longer rises, and restore the best parameters.

    .. math:: -\frac{N}{|V|}\sum_{i \in V} w_i\,\mathrm{nll}_i - T \cdot \mathrm{KL}

    for validation rows V, N training rows and temperature T. It is computed about 40 times, starting after
    the warm-up; with heteroscedastic noise, once the noise may depend on the row; with a target density, once
    the structure is fixed. ``patience`` evaluations without improvement stop the training.
    """

    def __init__(self, x: Tensor, y: Tensor, weight: Tensor, patience: int) -> None:
        self.x, self.y, self.weight, self.patience = x, y, weight, patience
        self.best = -float("inf")
        self.kept: dict[str, Tensor] = {}
        self.since = 0

    def _elbo(self, run: Run, epoch: Epoch) -> float:
        forms: list[Likelihood] = [run.replicates.unstack(k).likelihood for k in range(len(run.seeds))]
        total = torch.zeros(len(forms))
        for rows, outputs in draw_outputs_of_all(run.networks, self.x, 8, draws="weights"):
            for k, form in enumerate(forms):
                y, weight = form.prepare(self.y[rows]).to(outputs.device), self.weight[rows]
                each = torch.stack([form.nll(one, y) for one in outputs[k]]).mean(0).cpu()
                total[k] += (weight * each).sum()
        fit = run.batches.rows / len(self.y) * total
        kl = run.settings.beta(epoch.epoch) * torch.tensor(epoch.kl)
        living = [k for k in range(len(forms)) if k not in {s.replicate for s in run.stopped}]
        return -float((fit + kl)[living].mean())

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        settings = run.settings
        done, every = epoch.epoch + 1, max(1, settings.epochs // _LOOKS)
        if settings.targets and epoch.epoch < settings.refit_from:
            return
        rows_differ = any(name.endswith(".noise_switch") for name in run.replicates.shared)
        if rows_differ and epoch.epoch < settings.noise_from:
            return  # the likelihood differs until then
        if done < settings.warmup * settings.epochs or (done % every and done != settings.epochs):
            return
        elbo = self._elbo(run, epoch)
        if elbo > self.best:
            self.best, self.since = elbo, 0
            self.kept = {name: p.clone() for name, p in run.replicates.parameters.items()}
            return
        self.since += 1
        if self.since >= self.patience:
            raise StopTraining(run, f"the validation ELBO has not risen for {self.patience} looks")

    def restore(self, run: Run) -> None:
        """Restore the best parameters."""
        for name, values in self.kept.items():
            run.replicates.parameters[name].copy_(values)


@dataclass(frozen=True)
class Pace:
    """Seconds of a training step, of compiling, and of the work after training at the least effort."""

    step: float
    compiling: float
    after: float

    @property
    def whole_after(self) -> float:
        """An upper bound for the work after training at full effort: part of the measured time is fixed."""
        return self.after / LEAST_EFFORT


class Budget:
    """A number of seconds, counted from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.until = seconds, time.monotonic() + seconds

    def left(self) -> float:
        return self.until - time.monotonic()

    def after(self, pace: Pace) -> float:
        """The seconds to reserve for the work after training."""
        return max(pace.after / _SAFETY, min(_MOST_AFTER * self.seconds, pace.whole_after))

    def effort(self, pace: Pace) -> float:
        """How much of the work after training fits into the time that is left, from the least to 1."""
        return max(LEAST_EFFORT, min(1.0, _SAFETY * self.left() / pace.whole_after))

    def needed(self, plan: Plan, rows: int, pace: Pace) -> float:
        """The approximate budget that the whole plan needs."""
        steps = plan.settings.epochs * math.ceil(rows / plan.settings.batch_size)
        until = self.seconds - self.left() + (pace.compiling + steps * pace.step) / _SAFETY
        return min(until + pace.whole_after, until / (1.0 - _MOST_AFTER))

    def shortened(self, plan: Plan, rows: int, pace: Pace, plan_of: Callable[[int], Plan]) -> Plan:
        """The plan, shortened if necessary; ``plan_of`` makes a plan for a number of rows."""
        steps = int(_SAFETY * (self.left() - self.after(pace) - pace.compiling) / pace.step)
        full, batch_size = plan.settings.epochs, plan.settings.batch_size
        fitting = steps // math.ceil(rows / batch_size)
        if fitting >= full:
            if plan.most_epochs is None or fitting >= plan.most_epochs:
                return plan
            return dataclasses.replace(plan, most_epochs=fitting)
        plan = dataclasses.replace(plan, most_epochs=None)
        few = min(full, _FEW_EPOCHS)
        if fitting >= few or rows <= _FEWEST_ROWS:
            short = plan.with_settings(epochs=max(plan.least_epochs, fitting))
            return dataclasses.replace(short, full_epochs=full)
        kept = min(rows, max(_FEWEST_ROWS, steps // few * batch_size))
        batch_size = min(kept, batch_size)
        epochs = max(plan.least_epochs, min(full, steps // math.ceil(kept / batch_size)))
        smaller = plan_of(kept).with_settings(batch_size=batch_size, epochs=epochs)
        return dataclasses.replace(smaller, full_epochs=full, train_rows=kept, most_epochs=None)


# -- notes ----------------------------------------------------------------------------------------------


def cut_short(run: Run, plan: Plan, why: str) -> list[str]:
    """Prune to the target density at once if training stopped before reaching it; there is no refit."""
    if not plan.settings.targets or len(run.history) >= plan.settings.refit_from:
        return []
    (target,) = plan.settings.targets
    fix_structure(run.replicates, torch.full((len(run.seeds), 1), target, dtype=torch.float64))
    return [f"Training stopped before the refit ({why}): weights were pruned to the target density at once."]


def short_of_time(plan: Plan, epochs: int, rows: int, seconds: float, needed: float) -> list[str]:
    """A note on the share of the planned training that a time budget allowed; a warning if it is small.

    ``epochs`` were allowed, ``rows`` were available, and the whole plan would take the budget ``needed``.
    """
    used = plan.train_rows or rows
    if epochs == plan.planned_epochs and used == rows:
        return []
    share = epochs * used / (plan.planned_epochs * rows)
    part = "" if used == rows else f", on {used} of {rows} rows"
    enough = f"{float(f'{needed:.2g}'):g}"
    note = (
        f"The time budget of {seconds:g} s allowed {epochs} of {plan.planned_epochs} planned epochs{part}; "
        f"the whole training takes about {enough} s."
    )
    if share < _USEFUL_SHARE:
        note += (
            " The model is likely to be undertrained: raise time_budget, or make the training cheaper with "
            "fewer replicates or smaller hidden layers."
        )
        warnings.warn(note, UserWarning, stacklevel=_CALLER_OF_FIT + 1)
    return [note]


def less_effort(effort: float, seconds: float) -> list[str]:
    """A note on the work after training that a time budget reduced."""
    if effort >= 1.0:
        return []
    return [
        f"The time budget of {seconds:g} s left {effort:.0%} of the work after training: columns are tested "
        "with fewer shuffles, effects and calibration use fewer rows."
    ]


def over_time(seconds: float, taken: float) -> list[str]:
    """A note and a warning if even the shortest training exceeds the budget."""
    if taken <= _OVER * seconds:
        return []
    note = (
        f"The fit took {taken:.2g} s, more than the time budget of {seconds:g} s: the minimum is to read the "
        "table, train for a few steps and describe the model."
    )
    warnings.warn(note, UserWarning, stacklevel=_CALLER_OF_FIT)
    return [note]
