"""Learning rates over epochs: a factor between 0 and 1, as a function of where training stands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sparsebnn.checks import check_choice, check_count, check_number, invalid

__all__ = ["Constant", "Steps", "Cosine", "Schedule", "schedule"]


def _check_factor(value: float, what: str, owner: str) -> None:
    check_number(value, what, owner, "finite and at least 0", lambda factor: 0.0 <= factor < math.inf)


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

    def __post_init__(self) -> None:
        given: Any = self.milestones
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise invalid("milestones", "Steps", "a list of epochs", repr(given))
        for milestone in given:
            check_count(milestone, "milestones", "Steps", least=0)
        _check_factor(self.factor_each, "factor_each", "Steps")

    def factor(self, epoch: int, epochs: int) -> float:
        return self.factor_each ** sum(epoch >= m for m in self.milestones)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 down to ``last``.

    >>> [round(Cosine(0.0).factor(e, 2), 3) for e in range(3)]
    [1.0, 0.5, 0.0]
    """

    last: float = 0.01

    def __post_init__(self) -> None:
        _check_factor(self.last, "last", "Cosine")

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
