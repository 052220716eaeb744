"""Whether code is being compiled: some products have one form for compilers, one for eager runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["for_compiler", "for_kernels", "tracing"]

_local = threading.local()


def for_compiler() -> bool:
    """True while operations are recorded for a compiler that fuses them."""
    return torch.compiler.is_compiling() or getattr(_local, "tracing", False)


def for_kernels(like: Tensor) -> bool:
    """True while the training step is recorded on CUDA: there the kernels written by hand apply.

    A network that its user compiles takes the plain form: the user's compiler need not know them.
    """
    return like.is_cuda and getattr(_local, "tracing", False)


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Operations inside are recorded for a compiler."""
    before = getattr(_local, "tracing", False)
    _local.tracing = True
    try:
        yield
    finally:
        _local.tracing = before
