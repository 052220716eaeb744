"""Timings in processes of their own: everything compiles at once, then one is timed at a time.

Compiling is the processor's work and takes a minute or two; a timing takes seconds and wants the machine
to itself. So the tasks of a wave all get ready first, and only then are called up one by one.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.subjects import Subject, Task, prepare
from sparsebnn.training.capture import matmul_precision

__all__ = ["milliseconds", "run"]

_ROUNDS = 7


def milliseconds(advance: Callable[[int], None], device: torch.device, seconds: float = 2.0) -> float:
    """Median time of a step over rounds of many, after warming up."""

    def timed(steps: int) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        advance(steps)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    timed(3)
    each = max(1, int(seconds / _ROUNDS / (timed(5) / 5)))
    return statistics.median(timed(each) / each * 1e3 for _ in range(_ROUNDS))


def _profile(subject: Subject, steps: int = 5) -> list[list[Any]]:
    """Microseconds per step of each kernel, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        subject.advance(steps)
        torch.cuda.synchronize()
    rows = [[e.device_time_total / steps, e.count / steps, e.key[:120]] for e in seen.key_averages()]
    return sorted(rows, reverse=True)


def _peak_mebibytes(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _work(task: Task, device_name: str, tf32: bool, profiled: bool, line: Connection) -> None:
    """One task in a process of its own: get ready, wait for the word, measure."""
    device = torch.device(device_name)
    try:
        with matmul_precision(tf32):
            subject = prepare(task, device)
            subject.advance(3)
            line.send("ready")
            line.recv()
            row: dict[str, Any] = {
                **task.row(),
                "ms": milliseconds(subject.advance, device),
                "peak_mebibytes": _peak_mebibytes(device),
                "compile_seconds": subject.compile_seconds,
                "mode": subject.mode,
            }
            if profiled and device.type == "cuda":
                row["kernels"] = _profile(subject)
    except Exception as error:
        row = {**task.row(), "failed": f"{type(error).__name__}: {error}"[:300]}
        traceback.print_exc()
    line.send(row)


def run(
    tasks: Sequence[Task],
    device: torch.device,
    *,
    jobs: int = 1,
    tf32: bool = True,
    profiled: bool = False,
    patience: float = 900.0,
) -> Iterator[dict[str, Any]]:
    """One row per task. ``jobs`` tasks get ready at a time, at most ``patience`` seconds long."""
    context = multiprocessing.get_context("spawn")
    if jobs > 1:
        threads = max(1, (os.cpu_count() or 1) // jobs)
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(2, threads)))
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    for first in range(0, len(tasks), jobs):
        wave = []
        for task in tasks[first : first + jobs]:
            here, there = context.Pipe()
            arguments = (task, str(device), tf32, profiled, there)
            worker = context.Process(target=_work, args=arguments, daemon=True)
            worker.start()
            wave.append((task, worker, here))
        deadline = time.monotonic() + patience
        answers = []
        for *_, here in wave:
            in_time = here.poll(max(0.0, deadline - time.monotonic()))
            answers.append(here.recv() if in_time else None)
        for (task, worker, here), answer in zip(wave, answers):
            if answer == "ready":
                here.send("go")
                answer = here.recv()
            yield answer or {**task.row(), "failed": f"not ready after {patience:.0f} seconds"}
            worker.terminate()
