"""Work on several processes: independent jobs through joblib, and one fit that torchrun shares out."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from sparsebnn.checks import invalid

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
    task: Any = ray.remote(**options)(_numbered)
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


_TIMEOUT = timedelta(minutes=5)  # of a process that does not answer; one that ends is noticed at once


@contextlib.contextmanager
def grouped(words: list[str]) -> Iterator[list[str]]:
    """The command's words for this process, inside a process group if torchrun started several."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ:
        yield words
        return
    if words[:1] != ["fit"] or any(word.startswith(("--time-budget", "--tune")) for word in words):
        expected = "fit without --time-budget and --tune, which depend on the clock"
        raise invalid("command", "torchrun", expected, " ".join(words))
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(timeout=_TIMEOUT)
    try:
        if dist.get_rank() == 0:
            yield words
        else:
            # The last value of an option counts.
            with (
                tempfile.TemporaryDirectory() as folder,
                open(os.devnull, "w", encoding="utf-8") as nowhere,
                contextlib.redirect_stdout(nowhere),
            ):
                yield [*words, "--out", f"{folder}/run", "--quiet"]
    finally:
        dist.destroy_process_group()
