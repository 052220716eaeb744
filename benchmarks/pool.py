"""Timings in separate processes: many compile at once, then one is timed at a time.

Compiling is the processor's work and takes a minute or two; a timing takes seconds and wants the machine
to itself. So the tasks of a wave all get ready first, ``jobs`` of them at a time; one that is ready waits
without using a processor. When nobody compiles any more, they are called up one by one; where the machine's
speed changes from minute to minute, in several turns, so that all of them see the same minutes.

A lock file keeps them apart where the device must be quiet: when a compiled step runs for the first time, in
which the compiler times variants of its kernels, and in the timings.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch

from benchmarks.subjects import Subject, Task, prepare
from sparsebnn.io.files import locked
from sparsebnn.training.devices import matmul_precision

__all__ = ["Conditions", "run", "step_times"]

_ROUNDS = 7


@dataclass(frozen=True)
class Conditions:
    """How a run measures.

    ``jobs`` tasks get ready at a time, at most ``held`` wait for their timing at once. A wave has
    ``patience`` seconds to get ready, and a timing of about ``seconds`` is given up after ``longest``.
    ``threads`` is what a timed process may use on a CPU. Each task is timed in ``turns``, between which all
    others have theirs. Timings wait for the lock file, if there is one.
    """

    device: str = "cpu"
    jobs: int = 1
    held: int = 1
    seconds: float = 2.0
    threads: int = 2
    turns: int = 1
    patience: float = 900.0
    longest: float = 300.0
    tf32: bool = True
    profiled: bool = False
    lock: Path | None = None


def step_times(
    advance: Callable[[int], None], device: torch.device, seconds: float = 2.0, rounds: int = _ROUNDS
) -> list[float]:
    """Milliseconds of a step, in each of up to seven rounds of many steps.

    What is so long that seven do not fit into ``seconds`` is timed as often as fits, at least once.
    """

    def timed(steps: int) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        advance(steps)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    once = timed(1)
    if once > seconds:
        return [once * 1e3]
    if once < seconds / 20:
        once = timed(5) / 5
    rounds = max(1, min(rounds, int(seconds / once)))
    each = max(1, int(seconds / rounds / once))
    return [timed(each) / each * 1e3 for _ in range(rounds)]


def _profile(subject: Subject, steps: int = 5) -> list[list[Any]]:
    """Microseconds per step of each kernel, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        subject.advance(steps)
        torch.cuda.synchronize()
    rows = [[e.device_time_total / steps, e.count / steps, e.key[:120]] for e in seen.key_averages()]
    return sorted(rows, reverse=True)


def _peak_mebibytes(device: torch.device) -> float:
    """Of the device's memory; on a CPU of the whole process, PyTorch and compiler included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _compile_with(processes: int) -> None:
    """How many processes help this one compile."""
    import torch._inductor.config as inductor

    inductor.compile_threads = processes


def _dismiss_helpers() -> None:
    """The compiler's helpers keep their memory until they are sent away; many tasks wait at once."""
    with contextlib.suppress(Exception):
        from torch._inductor.async_compile import shutdown_compile_workers

        shutdown_compile_workers()


def one_turn(subject: Subject, conditions: Conditions) -> list[float]:
    """Milliseconds of a step in each round of one turn."""
    turns, device = conditions.turns, torch.device(conditions.device)
    return step_times(subject.advance, device, conditions.seconds / turns, max(1, _ROUNDS // turns))


def measured(task: Task, subject: Subject, conditions: Conditions, times: list[float]) -> dict[str, Any]:
    """The row of a task."""
    device = torch.device(conditions.device)
    row: dict[str, Any] = {
        **task.row(),
        "ms": statistics.median(times),
        "ms_lowest": min(times),
        "ms_highest": max(times),
        "peak_mebibytes": _peak_mebibytes(device),
        "compile_seconds": subject.compile_seconds,
        "mode": subject.mode,
    }
    if conditions.profiled and device.type == "cuda":
        row["kernels"] = _profile(subject)
    return row


def _alone(scope: contextlib.ExitStack, conditions: Conditions) -> None:
    """Hold the lock, if there is one, until the scope ends."""
    if conditions.lock is not None:
        scope.enter_context(locked(conditions.lock))


def _work(task: Task, conditions: Conditions, line: connection.Connection) -> None:
    """One task in a separate process: prepare, wait for the signal, measure, return the row."""
    try:
        torch.set_num_threads(conditions.threads)
        if conditions.jobs > 1:
            # What compiles longest decides when the wave is ready.
            _compile_with(4 if task.method == "flow" else 2)
        with matmul_precision(conditions.tf32):
            with contextlib.ExitStack() as quiet:
                subject = prepare(task, torch.device(conditions.device), lambda: _alone(quiet, conditions))
                subject.advance(subject.rehearsals)
                if torch.cuda.is_initialized():
                    torch.cuda.synchronize()
            _dismiss_helpers()
            line.send("ready")
            times: list[float] = []
            while line.recv() == "time":
                times += one_turn(subject, conditions)
                line.send("timed")
            row = measured(task, subject, conditions, times)
    except Exception as error:
        row = failed(task, f"{type(error).__name__}: {error}")
        traceback.print_exc()
    line.send(row)
    # Leaving now, and giving the device's memory back, would disturb whoever is timed next.
    with contextlib.suppress(EOFError, OSError):
        line.recv()


def failed(task: Task, why: str) -> dict[str, Any]:
    """The row of a task that could not be timed."""
    return {**task.row(), "failed": " ".join(why.split())[:300]}


@dataclass
class _Worker:
    """A task's process and the line to it."""

    task: Task
    conditions: Conditions
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, there = context.Pipe()
        arguments = (self.task, self.conditions, there)
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        there.close()  # so that a process that dies hangs up

    def hear(self) -> Any:
        """What the process says next; a row that says so if it has died."""
        try:
            return self.line.recv()
        except (EOFError, OSError):
            self.process.join(10.0)
            return failed(self.task, f"the process ended with exit code {self.process.exitcode}")

    def ask(self, word: str, longest: float) -> Any:
        """What it answers to ``time`` or ``row``; one that takes too long is stopped, and its row says so."""
        try:
            self.line.send(word)
        except OSError:
            return self.hear()
        if not self.line.poll(longest):
            self.process.kill()
            return failed(self.task, f"not timed after {longest:.0f} seconds")
        return self.hear()

    def end(self) -> None:
        """Send it away; it has nothing to put in order, and nobody waits for it."""
        self.process.kill()
        self.line.close()


def run(tasks: Sequence[Task], conditions: Conditions) -> Iterator[dict[str, Any]]:
    """One row per task, as they come. A task that fails, dies or never gets ready has a row that says so."""
    held = max(conditions.held, conditions.jobs)
    with tempfile.TemporaryDirectory() as folder:
        own = replace(conditions, lock=conditions.lock or Path(folder) / "device.lock")
        yield from _waves(tasks, own, held)


def _waves(tasks: Sequence[Task], conditions: Conditions, held: int) -> Iterator[dict[str, Any]]:
    for first in range(0, len(tasks), held):
        workers: list[_Worker] = []
        try:
            yield from _wave(tasks[first : first + held], conditions, workers)
        finally:
            for worker in workers:
                worker.end()


def _wave(tasks: Sequence[Task], conditions: Conditions, workers: list[_Worker]) -> Iterator[dict[str, Any]]:
    """Get all ready, then time one after the other. ``workers`` holds every process that may be alive."""
    waiting, preparing, ready = list(tasks), [], []
    deadline = time.monotonic() + conditions.patience
    while (waiting or preparing) and time.monotonic() < deadline:
        while waiting and len(preparing) < conditions.jobs:
            worker = _Worker(waiting.pop(0), conditions)
            workers.append(worker)
            preparing.append(worker)
        lines = [worker.line for worker in preparing]
        heard = connection.wait(lines, max(0.0, deadline - time.monotonic()))
        for worker in [worker for worker in preparing if worker.line in heard]:
            preparing.remove(worker)
            answer = worker.hear()
            if answer == "ready":
                ready.append(worker)
            else:
                yield answer
                workers.remove(worker)
                worker.end()
    for worker in preparing:
        yield failed(worker.task, f"not ready after {time.monotonic() - worker.began:.0f} seconds")
        workers.remove(worker)
        worker.end()
    for task in waiting:
        yield failed(task, f"not begun: the wave's {conditions.patience:.0f} seconds were over")
    with contextlib.ExitStack() as quiet:
        _alone(quiet, conditions)
        ready.sort(key=lambda worker: tasks.index(worker.task))
        yield from _timed(ready, conditions)


def _timed(ready: Sequence[_Worker], conditions: Conditions) -> Iterator[dict[str, Any]]:
    """The rows, each after its last turn."""
    done: set[Task] = set()
    for turn in range(conditions.turns):
        for worker in ready:
            if worker.task in done:
                continue
            answer = worker.ask("time", conditions.longest)
            if answer == "timed" and turn == conditions.turns - 1:
                answer = worker.ask("row", conditions.longest)
            if answer != "timed":
                done.add(worker.task)
                yield answer
