"""How much of a planned training fits into a time budget.

A few steps of training and a quick pass through what follows it show how long both take. The training is
then planned anew, with a schedule and a warm-up that end where it ends: fewer epochs, and where not even a
few of them fit in, epochs of fewer rows. The work after it gets the time that is left.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from sparsebnn.estimators.plan import Plan

__all__ = ["LEAST_EFFORT", "Budget", "Pace", "load_lazily"]

LEAST_EFFORT = 0.05  # of the work after training; the rehearsal has as much
_SAFETY = 0.9  # of the time that is left, for steps that take longer than those measured
_MOST_AFTER = 0.2  # share of the budget for the work after training
_FEW_EPOCHS = 10  # fewer have no schedule worth the name: better so many of fewer rows
_FEWEST_ROWS = 1000


@dataclass(frozen=True)
class Pace:
    """Seconds of a training step, of compiling, and of the work after training at the least effort."""

    step: float
    compiling: float
    after: float

    @property
    def whole_after(self) -> float:
        """At most so many seconds take the work after training: part of the measured ones do not grow."""
        return self.after / LEAST_EFFORT


def load_lazily() -> None:
    """Import what PyTorch imports when the first network of a process is trained, seconds of work."""
    importlib.import_module("torch._dynamo")


class Budget:
    """``seconds`` from now on."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.until = seconds, time.monotonic() + seconds

    def left(self) -> float:
        return self.until - time.monotonic()

    def after(self, pace: Pace) -> float:
        """The seconds to set aside for the work after training."""
        return max(pace.after / _SAFETY, min(_MOST_AFTER * self.seconds, pace.whole_after))

    def effort(self, pace: Pace) -> float:
        """How much of the work after training fits into the time that is left, from the least to 1."""
        return max(LEAST_EFFORT, min(1.0, _SAFETY * self.left() / pace.whole_after))

    def needed(self, plan: Plan, rows: int, pace: Pace) -> float:
        """About the budget that the whole plan would take."""
        steps = plan.epochs * math.ceil(rows / plan.batch_size)
        until = self.seconds - self.left() + (pace.compiling + steps * pace.step) / _SAFETY
        return min(until + pace.whole_after, until / (1.0 - _MOST_AFTER))

    def shortened(self, plan: Plan, rows: int, pace: Pace, plan_of: Callable[[int], Plan]) -> Plan:
        """The plan, or what of it fits in; ``plan_of`` makes one for so many rows."""
        steps = int(_SAFETY * (self.left() - self.after(pace) - pace.compiling) / pace.step)
        fitting = steps // math.ceil(rows / plan.batch_size)
        if fitting >= plan.epochs:
            return plan
        few = min(plan.epochs, _FEW_EPOCHS)
        if fitting >= few or rows <= _FEWEST_ROWS:
            epochs = max(plan.least_epochs, fitting)
            return dataclasses.replace(plan, epochs=epochs, full_epochs=plan.epochs)
        kept = min(rows, max(_FEWEST_ROWS, steps // few * plan.batch_size))
        smaller = dataclasses.replace(plan_of(kept), batch_size=min(kept, plan.batch_size))
        fitting = steps // math.ceil(kept / smaller.batch_size)
        epochs = max(plan.least_epochs, min(plan.epochs, fitting))
        return dataclasses.replace(smaller, epochs=epochs, full_epochs=plan.epochs, train_rows=kept)
