"""Which form of an operation runs where: eager, compiled, or a kernel written by hand on CUDA."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

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


# The largest block by which glibc's malloc raises its threshold is 32 MiB, its own header included.
_LARGEST = (32 << 20) - (64 << 10)


@functools.cache
def keep_freed_memory(device_type: str) -> None:
    """Once per process, before many steps on a CPU.

    glibc hands large freed blocks back to the system, and every page of a new one costs a fault: 1,600 in a
    step of the paper's network with the local reparametrization, a third of its time. When a large block is
    freed, malloc takes blocks up to that size, and twice as much in all, for ones worth keeping. So one is
    allocated here (its pages are never touched) and freed. Other allocators do not notice.

    >>> keep_freed_memory("cpu")
    """
    if device_type == "cpu":
        torch.empty(_LARGEST, dtype=torch.uint8)


def stacked(tensors: Sequence[Tensor], dims: Sequence[int | None], k: int) -> list[Tensor]:
    """Every tensor with the replicate axis in front, repeated where it has none."""
    moved = [t.expand(k, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(tensors, dims)]
    return [t.contiguous() for t in moved]
