"""Jobs of the studies of uncertainty, side by side: processes of one thread each.

Small matrices use a processor best so, and what a job finds does not depend on who runs it.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

__all__ = ["spread"]

T = TypeVar("T")


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
    with concurrent.futures.ProcessPoolExecutor(workers, context, _one_thread) as pool:
        waiting = [pool.submit(job) for job in jobs]
        for done in concurrent.futures.as_completed(waiting):
            yield done.result()
