"""Training that ends before its last epoch: convergence, a time budget, or early stopping.

How many steps a network needs depends on the data more than on their number: a table of a few rules has
converged after a thousand, one of interactions takes several thousand. The learning rates therefore stay
constant until the objective, nll + T·KL, has fallen by less than 0.01 nats per row over the last 200 steps.
Then they go to zero along half a cosine.

For a time budget, a few training steps and a quick run of the work that follows show how long both take.
The training is then planned again, with a schedule and a warm-up that end with it: fewer epochs or, if not
even a few epochs fit, fewer rows per epoch. The work after training gets the remaining time.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsebnn.estimators.plan import Plan
from sparsebnn.inference.sampling import draw_outputs_of_all
from sparsebnn.likelihoods import Likelihood
from sparsebnn.training import Callback, Constant, Epoch, Run
from sparsebnn.training.density import fix_structure

__all__ = [
    "CONVERGED",
    "LEAST_EFFORT",
    "Budget",
    "Convergence",
    "EarlyStopping",
    "Pace",
    "Plateau",
    "StopTraining",
    "TimeBudget",
    "cut_short",
    "less_effort",
    "not_converged",
    "over_time",
    "short_of_time",
]

CONVERGED = "the training has converged"
_WINDOW = 200  # steps; two windows are compared
_TOLERANCE = 0.01  # nats per row and window
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


@dataclass(frozen=True)
class Plateau(Constant):
    """Constant until it is released, then half a cosine over ``decay`` epochs.

    >>> schedule = Plateau(decay=2)
    >>> schedule.released.append(10)
    >>> [round(schedule.factor(epoch, 100), 3) for epoch in (5, 10, 11, 12)]
    [1.0, 1.0, 0.5, 0.01]
    """

    decay: int
    released: list[int] = field(default_factory=list, compare=False)  # the epoch of release, once known
    last: float = 0.01

    def factor(self, epoch: float, epochs: float) -> float:
        if not self.released or epoch < self.released[0]:
            return 1.0
        share = min(1.0, (epoch - self.released[0]) / self.decay)
        return max(self.last, 0.5 * (1.0 + math.cos(math.pi * share)))


class Convergence(Callback):
    """Release a :class:`Plateau` when every set of replicates has converged; stop after the decay.

    ``temperatures`` are those of the replicates, whose sets have ``size`` members each.
    """

    def __init__(self, plateau: Plateau, temperatures: Sequence[float], size: int) -> None:
        self.plateau, self.temperatures, self.size = plateau, torch.tensor(temperatures), size
        self.objectives: list[Tensor] = []

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        self.objectives.append(torch.tensor(epoch.nll) + self.temperatures * torch.tensor(epoch.kl))
        done, last = epoch.epoch + 1, run.settings.epochs
        if self.plateau.released:
            if self.plateau.released[0] + self.plateau.decay <= done < last:
                raise StopTraining(run, CONVERGED)
        elif done >= last - self.plateau.decay or self._has_converged(run, done):
            self.plateau.released.append(done)

    def _has_converged(self, run: Run, done: int) -> bool:
        per_epoch = run.batches.per_epoch
        window = max(1, round(_WINDOW / per_epoch))
        warmup = math.ceil(run.settings.warmup * run.settings.epochs)
        if done < warmup + 2 * window or done % max(1, window // 2):
            return False
        before, now = (torch.stack(part) for part in _two_windows(self.objectives, window))
        # Replicates that stopped have no objective.
        fallen = (before.mean(0) - now.mean(0)).split(self.size)
        per_row = torch.stack([each.nanmean() for each in fallen]) / run.batches.rows
        return bool((per_row * _WINDOW / (window * per_epoch) < _TOLERANCE).all())


def _two_windows(values: list[Tensor], window: int) -> tuple[list[Tensor], list[Tensor]]:
    return values[-2 * window : -window], values[-window:]


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
            raise StopTraining(
                run, f"the validation ELBO has not risen for {self.patience} evaluations in a row"
            )

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


def not_converged(epochs: int) -> str:
    """A note on a training that reached its limit."""
    return (
        f"After {epochs} epochs the training had not converged: the objective still fell. "
        f"Longer training may predict better; for example, set epochs={2 * epochs}."
    )
