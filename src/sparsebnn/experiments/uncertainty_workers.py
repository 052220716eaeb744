"""Jobs of the studies of uncertainty, side by side: processes of one thread each.

Small matrices use a processor best so, and what a job finds does not depend on who runs it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch

__all__ = ["spread"]

T = TypeVar("T")
# The C library gives every freed block of some megabytes back to the system and asks for it again at the
# next step, page by page: that is four tenths of a training step here. It reads these when a process starts.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """These variables for a while, where the user has not set them."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _one_thread() -> None:
    torch.set_num_threads(1)


def spread(jobs: Sequence[Callable[[], T]], workers: int) -> Iterator[T]:
    """What each job returns, in the order in which they end; ``workers`` processes, or this one alone.

    >>> from functools import partial
    >>> list(spread([partial(max, 1, 2), partial(min, 1, 2)], 1))
    [2, 1]
    """
    if workers == 1:
        for job in jobs:
            yield job()
        return
    context = multiprocessing.get_context("spawn")
    with (
        _environment(_KEEP_MEMORY),
        concurrent.futures.ProcessPoolExecutor(workers, context, _one_thread) as pool,
    ):
        waiting = [pool.submit(job) for job in jobs]
        for done in concurrent.futures.as_completed(waiting):
            yield done.result()
