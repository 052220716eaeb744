"""Memory that a step frees and the next one asks for again, kept by the process in between."""

from __future__ import annotations

import functools

import torch

__all__ = ["keep_freed_memory"]

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
