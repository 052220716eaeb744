"""Which form of an operation runs where: eager, compiled, or a kernel written by hand on CUDA."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

_local = threading.local()
_captures: list[bool] = []  # one entry for each capture under way, in any thread


def for_compiler() -> bool:
    """True while operations are recorded for a compiler that fuses them."""
    return torch.compiler.is_compiling() or getattr(_local, "tracing", False)


def for_capture() -> bool:
    """True while a step is captured as a CUDA graph without a compiler: kernels must fuse what it would."""
    return getattr(_local, "capturing", False)


def for_single() -> bool:
    """True while a step of a single replicate is captured: it runs as an ordinary module, without vmap."""
    return for_capture() and getattr(_local, "single", False)


def for_kernels(like: Tensor) -> bool:
    """True while the training step is recorded or captured on CUDA: the kernels written by hand apply.

    A network that its user compiles takes the plain form: the user's compiler need not know them.
    """
    return like.is_cuda and (getattr(_local, "tracing", False) or for_capture())


def kernel(op: Callable[..., Any]) -> Callable[..., Any]:
    """A custom op, or while some step is captured the function behind it.

    Only compilers need the op, and its first call imports PyTorch's, which takes seconds. On CUDA gradients
    are computed in a thread of PyTorch's own, so this asks the process and not the thread. Tensors that a
    compiler records are of another class.
    """
    function = getattr(op, "_init_fn", op)

    def call(first: Tensor, *others: Any) -> Any:
        return (function if _captures and type(first) is Tensor else op)(first, *others)

    return call


@contextlib.contextmanager
def _flag(name: str) -> Iterator[None]:
    before = getattr(_local, name, False)
    setattr(_local, name, True)
    try:
        yield
    finally:
        setattr(_local, name, before)


def tracing() -> contextlib.AbstractContextManager[None]:
    """Operations inside are recorded for a compiler."""
    return _flag("tracing")


def rehearsing() -> contextlib.AbstractContextManager[None]:
    """Kernels inside are compiled and not launched, so tensors may hold anything."""
    return _flag("rehearsing")


def in_rehearsal() -> bool:
    """True where kernels are not launched; what is used as an index must then be valid by itself."""
    return getattr(_local, "rehearsing", False)


def single() -> contextlib.AbstractContextManager[None]:
    """Operations inside are those of one replicate, which no ``vmap`` maps."""
    return _flag("single")


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Operations inside become a CUDA graph as they are."""
    _captures.append(True)
    try:
        with _flag("capturing"):
            yield
    finally:
        _captures.pop()


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
