"""Memory and step time of training on a memory-mapped table that does not fit into memory.

    python -m benchmarks.streaming --folder /tmp --gib 20

Makes a sparse file (it takes no disk space), trains on it, deletes it, and prints milliseconds per step in
four parts of the training and the peak memory above that of the process before it.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sparsebnn
from sparsebnn.training import streams

_COLUMNS = 50


class _Enough(Exception):
    pass


def _resident() -> int:
    """Bytes of memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def measure(folder: Path, gib: float, steps: int, batch_size: int) -> dict[str, Any]:
    """Train for that many steps on a sparse file of that size."""
    rows = int(gib * 2**30) // (4 * _COLUMNS)
    times: list[float] = []
    peak = before = _resident()
    advance = streams.Stream.advance

    def timed(self: streams.Stream, *given: Any) -> None:
        nonlocal peak
        times.append(time.perf_counter())
        peak = max(peak, _resident())
        if len(times) > steps:
            raise _Enough
        advance(self, *given)

    with tempfile.TemporaryDirectory(dir=folder) as inside:
        x = np.lib.format.open_memmap(f"{inside}/x.npy", "w+", np.float32, (rows, _COLUMNS))
        y = np.lib.format.open_memmap(f"{inside}/y.npy", "w+", np.int8, (rows,))
        streams.Stream.advance = timed  # type: ignore[method-assign]
        try:
            settings = sparsebnn.Settings(epochs=1, batch_size=batch_size)
            network = sparsebnn.mlp([_COLUMNS, 100, 2])
            form = sparsebnn.likelihoods.Categorical(2)
            sparsebnn.train(network, (x, y), settings=settings, likelihood=form, mode="eager", progress=False)
        except _Enough:
            pass
        finally:
            streams.Stream.advance = advance  # type: ignore[method-assign]
    each = [b - a for a, b in zip(times, times[1:])]
    quarter = max(1, len(each) // 4)
    medians = [statistics.median(each[i * quarter : (i + 1) * quarter]) for i in range(4)]
    return {
        "rows": rows,
        "ms_per_step": [round(1e3 * m, 2) for m in medians],
        "peak_mib_above": round((peak - before) / 2**20),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.streaming", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--gib", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=500)
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(measure(given.folder, given.gib, given.steps, given.batch_size))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
