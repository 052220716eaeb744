"""Random numbers that a network's own ``forward`` draws: no replicate's seed governs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sparsebnn.checks import invalid

__all__ = ["NoOwnNoise"]

# What operations call the probability of dropping a unit, and whether they train: at 0, or where they do not,
# they draw nothing.
_DROPPED, _TRAINS = ("dropout", "dropout_p", "p"), ("train", "training")


class NoOwnNoise(TorchDispatchMode):
    """A scope in which an operation that draws random numbers is an error.

    >>> with NoOwnNoise():
    ...     torch.nn.functional.dropout(torch.ones(3), 0.0)
    ...     torch.rand(1)
    Traceback (most recent call last):
    sparsebnn.checks.InvalidInput: The 'network' of train must be free of ... Got a call of rand instead. ...
    """

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and not _draws_nothing(func, args, given):  # type: ignore[attr-defined]
            name = func._schema.name.removeprefix("aten::").strip("_")  # type: ignore[attr-defined]
            expected = "free of random numbers of its own, which no replicate's seed would govern"
            advice = "Leave out what draws them in its forward (dropout, added noise)."
            raise invalid("network", "train", expected, f"a call of {name}", advice)
        return func(*args, **given)


def _draws_nothing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it could draw and is told not to, as attention without dropout is."""
    named = func._schema.arguments
    values = {one.name: one.default_value for one in named if one.has_default_value()}
    values |= {**{one.name: value for one, value in zip(named, args)}, **kwargs}
    return any(values.get(name) == 0.0 for name in _DROPPED) or any(
        values.get(name) is False for name in _TRAINS
    )
