"""Random numbers that a network's own ``forward`` draws from torch: no replicate's seed governs them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sparsebnn.checks import invalid

__all__ = ["outputs_without_noise"]


class _Generators:
    """The generators that torch draws from without being told, and whether they have moved since."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = self._now()

    def _now(self) -> list[Tensor]:
        cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        return [torch.get_rng_state(), *cuda]

    def have_moved(self) -> bool:
        return not all(map(torch.equal, self.before, self._now()))


class _Watch(TorchDispatchMode):
    """Remembers the first operation that draws."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.name = ""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        generators = _Generators(self.device)
        result = func(*args, **(kwargs or {}))
        if not self.name and generators.have_moved():
            self.name = str(getattr(func, "__name__", func)).partition(".")[0].strip("_")
        return result


def outputs_without_noise(network: nn.Module, x: Tensor) -> Tensor:
    """What a network makes of ``x``; one that draws random numbers of its own is refused.

    Copies are run, so that what a network does once it does again. A generator may also be moved by another
    thread, which says nothing of the network: then no operation of a second run moves it.

    >>> outputs_without_noise(nn.Dropout(0.5), torch.ones(1, 3))
    Traceback (most recent call last):
    sparsebnn.checks.InvalidInput: The 'network' of train must be free of ... Got a call of bernoulli ...
    """
    generators = _Generators(x.device)
    outputs: Tensor = copy.deepcopy(network)(x)
    if generators.have_moved():
        _refuse_what_draws(network, x)
    return outputs


def _refuse_what_draws(network: nn.Module, x: Tensor) -> None:
    got, watch = "", _Watch(x.device)
    try:
        with watch:
            copy.deepcopy(network)(x)
    except Exception:  # not every operation can be watched
        got = "some that are drawn in its forward"
    if watch.name:
        got = f"a call of {watch.name}"
    if got:
        expected = "free of random numbers of its own, which no replicate's seed would govern"
        advice = "Leave out what draws them (dropout, added noise)."
        raise invalid("network", "train", expected, got, advice)
