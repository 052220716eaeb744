"""Whether matrix products may round to TF32: one setting of the process, set for the length of a scope."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

__all__ = ["matmul_precision"]

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
