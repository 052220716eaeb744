"""Independent jobs on the cores of one machine or on many machines, through joblib."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

__all__ = ["in_parallel"]

T = TypeVar("T")
_log = logging.getLogger("sparsebnn")
_ATTEMPTS = 5
# How joblib, Ray and Dask say that a worker process ended in the middle of a job.
_LOST = (
    "TerminatedWorkerError",
    "BrokenProcessPool",
    "RayActorError",
    "ActorDiedError",
    "ActorUnavailableError",
    "WorkerCrashedError",
    "KilledWorker",
    "CommClosedError",
)


def in_parallel(jobs: Sequence[Callable[[], T]], workers: int) -> list[T]:
    """What each job returns, in the order of the jobs.

    Inside ``joblib.parallel_config(backend="ray")`` (or ``"dask"``) the jobs run there; otherwise ``workers``
    processes with one thread each do them, or this one alone. Jobs whose worker process is lost run again.

    >>> from functools import partial
    >>> in_parallel([partial(max, 1, 2), partial(min, 1, 2)], 1)
    [2, 1]
    """
    try:
        import joblib
    except ImportError:
        if workers == 1:
            return [job() for job in jobs]
        raise ImportError("Several workers need joblib: pip install 'sparsebnn[sklearn]'") from None
    active, count = joblib.parallel.get_active_backend()
    elsewhere = type(active).__name__ not in ("LokyBackend", "SequentialBackend", "ThreadingBackend")
    if workers == 1 and not elsewhere:
        return [job() for job in jobs]
    done: dict[int, T] = {}
    for attempt in range(1, _ATTEMPTS + 1):
        left = [(i, job) for i, job in enumerate(jobs) if i not in done]
        try:
            for i, result in _run(joblib, left, workers if workers > 1 else count or -1, elsewhere):
                done[i] = result
            break
        except Exception as error:
            if type(error).__name__ not in _LOST or attempt == _ATTEMPTS:
                raise
            again = len(jobs) - len(done)
            _log.warning("A worker was lost (%s); %d jobs run again.", type(error).__name__, again)
    return [done[i] for i in range(len(jobs))]


def _run(
    joblib: Any, jobs: Sequence[tuple[int, Callable[[], T]]], workers: int, elsewhere: bool
) -> Iterable[tuple[int, T]]:
    """Results as they come, with the number of the job."""
    calls = (joblib.delayed(_numbered)(i, job) for i, job in jobs)
    if elsewhere:
        # One job at a time for each worker, so that a lost worker loses one.
        yield from joblib.Parallel(n_jobs=workers, batch_size=1)(calls)
        return
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        yield from joblib.Parallel(n_jobs=workers, batch_size=1, return_as="generator_unordered")(calls)


def _numbered(i: int, job: Callable[[], T]) -> tuple[int, T]:
    return i, job()
