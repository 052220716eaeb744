"""Learning rates over epochs: a factor between 0 and 1, as a function of where training stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparsebnn.checks import check_choice, invalid

__all__ = ["Constant", "Steps", "Cosine", "Schedule", "schedule"]


@dataclass(frozen=True)
class Constant:
    """The same rate throughout."""

    def factor(self, epoch: int, epochs: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Steps:
    """The rate is multiplied by ``factor_each`` at every epoch in ``milestones``.

    >>> [round(Steps((2,)).factor(e, 4), 3) for e in range(4)]
    [1.0, 1.0, 0.1, 0.1]
    """

    milestones: Sequence[int]
    factor_each: float = 0.1

    def factor(self, epoch: int, epochs: int) -> float:
        return self.factor_each ** sum(epoch >= m for m in self.milestones)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 down to ``last``.

    >>> [round(Cosine(0.0).factor(e, 2), 3) for e in range(3)]
    [1.0, 0.5, 0.0]
    """

    last: float = 0.01

    def factor(self, epoch: int, epochs: int) -> float:
        return max(self.last, 0.5 * (1.0 + math.cos(math.pi * epoch / max(1, epochs))))


Schedule = Constant | Steps | Cosine


def schedule(value: str | Schedule) -> Schedule:
    """A schedule, or the one of that name: 'constant', 'cosine', 'steps' (halfway, to a tenth)."""
    if isinstance(value, Constant | Steps | Cosine):
        return value
    if not isinstance(value, str):
        raise invalid("schedule", "Settings", "a name or a schedule", type(value).__name__)
    check_choice(value, ("constant", "steps", "cosine"), "schedule", "Settings")
    if value == "constant":
        return Constant()
    return Cosine() if value == "cosine" else _Halfway()


class _Halfway(Steps):
    """A tenth of the rate from halfway on, however many epochs there are."""

    def __init__(self) -> None:
        super().__init__(())

    def factor(self, epoch: int, epochs: int) -> float:
        return self.factor_each if epoch >= epochs // 2 else 1.0
