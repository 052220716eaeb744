"""Whether code is being compiled: some products have one form for compilers, one for eager runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

__all__ = ["for_compiler", "tracing"]

_local = threading.local()


def for_compiler() -> bool:
    """True while operations are recorded for a compiler that fuses them."""
    return torch.compiler.is_compiling() or getattr(_local, "tracing", False)


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Operations inside are recorded for a compiler."""
    before = getattr(_local, "tracing", False)
    _local.tracing = True
    try:
        yield
    finally:
        _local.tracing = before
