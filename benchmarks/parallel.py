"""Two processes on two cores against one process on one core, and what they exchange.

    python -m benchmarks.parallel

Runs of one and of two processes alternate; the table has the median milliseconds per step, the ratio, and the
bytes that a process gives to the sum of the gradients in a step. Each process has one thread. The ratio of
processor times leaves out waiting, so it is an upper bound that a busy machine can measure, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import sparsebnn
from sparsebnn.training import Callback

# With their batch sizes. Every process computes the moments and the KL of all weights, so batches must be
# large next to the network.
SUBJECTS = {"table 100,000 × 50": (10_000, 20_000), "LeNet": (1000,)}


class _Clock(Callback):
    """The time at the end of every epoch, by the wall and of this process's processor."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def on_epoch_end(self, run: Any, epoch: Any) -> None:
        self.times.append((time.perf_counter(), time.process_time()))


def work(subject: str, size: int, steps: int) -> dict[str, Any]:
    """Milliseconds per step, and bytes exchanged, of this process; batches have ``size`` rows."""
    generator = torch.Generator().manual_seed(0)
    if subject == "LeNet":
        x = torch.randint(0, 255, (size * 5, 1, 28, 28), generator=generator).to(torch.uint8)
        network: torch.nn.Module = sparsebnn.nn.lenet()
        y = torch.randint(0, 10, (len(x),), generator=generator)
    else:
        x = torch.randn(100_000, 50, generator=generator)
        network = sparsebnn.mlp([50, 100, 100, 2])
        y = (x[:, 0] > 0).long()
    clock = _Clock()
    per_epoch = -(-len(x) // size)
    settings = sparsebnn.Settings(epochs=max(2, steps // per_epoch), batch_size=size)
    run = sparsebnn.train(network, (x, y), settings=settings, progress=False, callbacks=[clock], device="cpu")
    wall, busy = ([(b[i] - a[i]) / per_epoch for a, b in zip(clock.times, clock.times[1:])] for i in (0, 1))
    shard = run._engine.shard
    return {
        "ms": 1e3 * statistics.median(wall),
        "cpu_ms": 1e3 * statistics.median(busy),
        "bytes": 0 if shard is None else shard.bytes_per_step(),
        "parameters": sum(p.numel() for p in run.replicates.trained.values()),
    }


def _worker(subject: str, size: int, rank: int, processes: int, store: str, steps: int) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    if processes > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes)
    found = work(subject, size, steps)
    if rank == 0:
        print(json.dumps(found))
    if processes > 1:
        dist.barrier()
        dist.destroy_process_group()


def timed(subject: str, size: int, processes: int, steps: int) -> dict[str, Any]:
    """One run of so many processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.parallel", "--steps", str(steps)]
        command += ["--worker", subject, str(size)]
        store = str(Path(folder) / "store")
        started = [
            subprocess.Popen(
                [*command, str(rank), str(processes), store],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(processes)
        ]
        answers = [one.communicate()[0] for one in started]
    return json.loads(answers[0])


def main(argv: list[str] | None = None) -> int:
    about = __doc__.split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description=about)
    parser.add_argument("--steps", type=int, default=30, help="per run")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.worker:
        subject, size, rank, processes, store = given.worker
        _worker(subject, int(size), int(rank), int(processes), store, given.steps)
        return 0
    names = ("", "batch", "1 process", "2 processes", "ratio", "CPU ratio", "bytes/step", "parameters")
    print("{:20} {:>7} {:>12} {:>12} {:>7} {:>9} {:>12} {:>11}".format(*names))
    for subject, size in [(name, size) for name, sizes in SUBJECTS.items() for size in sizes]:
        pairs = [[timed(subject, size, count, given.steps) for count in (1, 2)] for _ in range(given.repeats)]
        one, two = (statistics.median(pair[i]["ms"] for pair in pairs) for i in (0, 1))
        ratio, cpu = (
            statistics.median(pair[0][name] / pair[1][name] for pair in pairs) for name in ("ms", "cpu_ms")
        )
        last = pairs[-1][1]
        sizes = f"{last['bytes']:12,} {last['parameters']:11,}"
        print(f"{subject:20} {size:7,} {one:9.1f} ms {two:9.1f} ms {ratio:7.2f} {cpu:9.2f} {sizes}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
