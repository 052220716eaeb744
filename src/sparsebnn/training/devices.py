"""Where and how to compute: the device, TF32, and the number of threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from sparsebnn.checks import invalid


def is_available(device: torch.device) -> bool:
    """Whether this PyTorch and this machine have the device."""
    if device.type != "cuda":
        return True
    return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()


def parse_device(given: Any, owner: str) -> torch.device | None:
    """The device of a name; None for "auto"."""
    if str(given) == "auto":
        return None
    try:
        return torch.device(str(given))
    except RuntimeError as error:
        raise invalid("device", owner, "'auto', 'cpu' or 'cuda'", repr(given)) from error


def device_of(given: Any, owner: str) -> torch.device:
    """The device to train on; one that there is not is refused.

    >>> device_of("cpu", "train")
    device(type='cpu')
    """
    device = parse_device(given, owner)
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not is_available(device):
        advice = "PyTorch finds no such GPU here: use device='auto' or device='cpu'."
        raise invalid("device", owner, "an available device", repr(str(given)), advice)
    return device


_Precision = tuple[str, bool]


class _Scopes:
    """Who is inside a scope of precision: it is one setting for all threads.

    The first to enter remembers what was set before, the last to leave restores it. A thread that wants
    another precision than those inside waits for them; within its own scopes it may change it and change
    it back.
    """

    def __init__(self) -> None:
        self.unused = threading.Condition()
        self.inside: dict[int, int] = {}
        self.before: _Precision = ("", False)

    @staticmethod
    def now() -> _Precision:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    @staticmethod
    def put(precision: _Precision) -> None:
        torch.set_float32_matmul_precision(precision[0])
        torch.backends.cudnn.allow_tf32 = precision[1]

    def enter(self, wanted: _Precision) -> _Precision:
        """What to put back on leaving."""
        me = threading.get_ident()
        with self.unused:
            self.unused.wait_for(lambda: not set(self.inside) - {me} or self.now() == wanted)
            if not self.inside:
                self.before = self.now()
            self.inside[me] = self.inside.get(me, 0) + 1
            found = self.now()
            self.put(wanted)
            return found

    def leave(self, found: _Precision) -> None:
        me = threading.get_ident()
        with self.unused:
            self.inside[me] -= 1
            if self.inside[me]:
                self.put(found)
            else:
                del self.inside[me]
            if not self.inside:
                self.put(self.before)
            self.unused.notify_all()


_SCOPES = _Scopes()


@contextlib.contextmanager
def matmul_precision(tf32: bool) -> Iterator[None]:
    """TF32 for matrix products and convolutions inside the scope only."""
    found = _SCOPES.enter(("high" if tf32 else "highest", tf32))
    try:
        yield
    finally:
        _SCOPES.leave(found)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Small matrices lose by being shared out between threads, and lose badly when the machine is busy.

    The number of threads is put back at the end, also after an error.

    >>> before = torch.get_num_threads()
    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
