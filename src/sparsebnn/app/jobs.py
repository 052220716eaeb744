"""Independent jobs on the cores of one machine or on many machines, through joblib."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

__all__ = ["in_parallel"]

T = TypeVar("T")
_log = logging.getLogger("sparsebnn")
_ATTEMPTS = 5
# How joblib and Dask say that a worker process ended in the middle of a job.
_LOST = (
    "TerminatedWorkerError",
    "BrokenProcessPool",
    "KilledWorker",
    "CommClosedError",
)


def in_parallel(jobs: Sequence[Callable[[], T]], workers: int) -> list[T]:
    """What each job returns, in the order of the jobs.

    Inside ``joblib.parallel_config(backend="ray")`` (or ``"dask"``) the jobs run there; otherwise ``workers``
    processes with one thread each do them, or this one alone. The job of a worker process that is lost runs
    again. On this machine so do those that the other processes had begun; on Ray and Dask these go on.

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
    kind = type(active).__name__
    elsewhere = kind not in ("LokyBackend", "SequentialBackend", "ThreadingBackend")
    if workers == 1 and not elsewhere:
        return [job() for job in jobs]
    count = workers if workers > 1 else count or -1
    done: dict[int, T] = {}
    for attempt in range(1, _ATTEMPTS + 1):
        left = [(i, job) for i, job in enumerate(jobs) if i not in done]
        found = _on_ray(left, count, active) if kind == "RayBackend" else _run(joblib, left, count, elsewhere)
        try:
            for i, result in found:
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
) -> Iterator[tuple[int, T]]:
    """Results as they come, with the number of the job; one job at a time for each worker."""
    calls = (joblib.delayed(_numbered)(i, job) for i, job in jobs)
    # An active backend stays as it is. Dask runs the job of a lost worker again.
    chosen = (
        contextlib.nullcontext() if elsewhere else joblib.parallel_config("loky", inner_max_num_threads=1)
    )
    with chosen:
        active, _ = joblib.parallel.get_active_backend()
        form = "generator_unordered" if active.supports_return_generator else "list"
        yield from joblib.Parallel(n_jobs=workers, batch_size=1, return_as=form)(calls)


def _on_ray(
    jobs: Sequence[tuple[int, Callable[[], T]]], workers: int, backend: Any
) -> Iterator[tuple[int, T]]:
    """Results as they come. Jobs are tasks of Ray, which runs those of a lost worker again.

    joblib's backend for Ray would give them to actors, and one lost actor would end all of its jobs.
    """
    import ray

    options = {"max_retries": _ATTEMPTS - 1, **(getattr(backend, "ray_remote_args", None) or {})}
    task = ray.remote(**options)(_numbered)
    waiting = iter(jobs)
    at_once = len(jobs) if workers < 0 else workers
    running = [task.remote(i, job) for i, job in itertools.islice(waiting, at_once)]
    try:
        while running:
            finished, running = ray.wait(running)
            yield from ray.get(finished)
            running += [task.remote(i, job) for i, job in itertools.islice(waiting, len(finished))]
    finally:
        for one in running:
            ray.cancel(one)


def _numbered(i: int, job: Callable[[], T]) -> tuple[int, T]:
    return i, job()
