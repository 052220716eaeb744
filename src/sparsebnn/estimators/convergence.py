"""Training that ends when it has converged: constant rates until the bound stops falling, then a decay.

How many steps a network needs depends on the data more than on their number: a table of a few rules has
converged after a thousand, one of interactions takes several thousand. The learning rates therefore stay
constant until the objective, nll + T·KL, has fallen by less than 0.01 nats per row over the last 200 steps.
Then they go to zero along half a cosine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsebnn.estimators.early_stopping import StopTraining
from sparsebnn.training import Callback, Constant, Epoch, Run

__all__ = ["CONVERGED", "Convergence", "Plateau", "not_converged"]

CONVERGED = "the training has converged"
_STEPS = 200  # of a window; two of them are compared
_TOLERANCE = 0.01  # nats per row and window


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
        window = max(1, round(_STEPS / per_epoch))
        warmup = math.ceil(run.settings.warmup * run.settings.epochs)
        if done < warmup + 2 * window or done % max(1, window // 2):
            return False
        before, now = (torch.stack(part) for part in _two_windows(self.objectives, window))
        # Replicates that stopped have no objective.
        fallen = (before.mean(0) - now.mean(0)).split(self.size)
        per_row = torch.stack([each.nanmean() for each in fallen]) / run.batches.rows
        return bool((per_row * _STEPS / (window * per_epoch) < _TOLERANCE).all())


def _two_windows(values: list[Tensor], window: int) -> tuple[list[Tensor], list[Tensor]]:
    return values[-2 * window : -window], values[-window:]


def not_converged(epochs: int) -> str:
    """A note on a training that reached its limit."""
    return (
        f"After {epochs} epochs the training had not converged: the objective still fell. "
        f"Longer training may predict better; for example, set epochs={2 * epochs}."
    )
