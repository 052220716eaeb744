"""``python -m benchmarks.estimators``: time and memory of a fit with the defaults, each in a fresh process.

Simulated rows of 50 columns, of which four matter, and tables that come with scikit-learn. Memory is the peak
of the process while it fits, less what it held before: the packages and the data itself.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsebnn.app.provenance import commit, device_name, rounded, versions
from studies.runner import filled, write_json

__all__ = ["fit", "main", "page", "table"]

_PAGE = Path("docs/studies/defaults.md")
_COLUMNS = 50
# What must hold: rows to seconds and gibibytes above the data.
LIMITS: dict[int, tuple[float, float | None]] = {100_000: (40.0, 2.0), 200: (15.0, None)}
# The same for scikit-learn's tables.
BUNDLED: dict[str, float] = {"breast cancer": 2.5, "digits": 4.0, "wine": 2.5, "iris": 2.5, "diabetes": 4.0}


def _data(task: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    if task in BUNDLED:
        import sklearn.datasets

        return getattr(sklearn.datasets, f"load_{task.replace(' ', '_')}")(return_X_y=True)
    random = np.random.RandomState(0)
    x = random.randn(rows, _COLUMNS)
    signal = x[:, 0] * x[:, 1] + x[:, 2] + np.sin(2.0 * x[:, 3])
    noise = random.randn(rows)
    return x, signal + 0.5 * noise if task == "regression" else signal + 0.5 * noise > 0.0


def _peak() -> float:
    """Gibibytes, as the system counts: Linux in kibibytes, macOS in bytes."""
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found / (1 << 30 if sys.platform == "darwin" else 1 << 20)


def fit(task: str, rows: int, device: str = "cpu") -> dict[str, Any]:
    """One fit in this process: seconds, processor seconds, and memory above what was there.

    ``task`` is "regression", "classification" or a table of scikit-learn.
    """
    from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor

    x, y = _data(task, rows)
    kind = SparseBNNRegressor if task in ("regression", "diabetes") else SparseBNNClassifier
    model = kind(device=device)
    before, began, work = _peak(), time.perf_counter(), time.process_time()
    model.fit(x, y)
    return {
        "task": task,
        "rows": len(x),
        "columns": x.shape[1],
        "seconds": time.perf_counter() - began,
        "processor_seconds": time.process_time() - work,
        "data_gibibytes": (x.nbytes + y.nbytes) / 2**30,
        "gibibytes_above": _peak() - before,
        "threads": torch.get_num_threads(),
    }


def _fresh(task: str, rows: int, device: str) -> dict[str, Any]:
    """:func:`fit` in a separate process."""
    command = [sys.executable, "-m", "benchmarks.estimators", "--only", task, "--rows", str(rows)]
    done = subprocess.run([*command, "--device", device], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"The fit of {task}, {rows} rows, failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def limits(row: dict[str, Any]) -> tuple[float | None, float | None]:
    """The most seconds and gibibytes that a fit may take; None: any."""
    if row["task"] in BUNDLED:
        return BUNDLED[row["task"]], None
    return LIMITS.get(row["rows"], (None, None))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The measurements as Markdown, with what must hold."""
    lines = [
        "| task | rows × columns | seconds | processor seconds | GiB above the data | limit |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        seconds, memory = limits(row)
        limit = "" if seconds is None else f"{seconds:g} s" + (f", {memory:g} GiB" if memory else "")
        size = f"{row['rows']:,} × {row['columns']}"
        numbers = f"{row['seconds']:.1f} | {row['processor_seconds']:.1f} | {row['gibibytes_above']:.2f}"
        lines.append(f"| {row['task']} | {size} | {numbers} | {limit} |")
    return "\n".join(lines)


def page(text: str, record: dict[str, Any]) -> str:
    """The page with its table renewed."""
    made = record["provenance"]
    said = f"Measured on {made['device']}, {made['cores']} cores, load {made['load']:.1f} before."
    return filled(text, f"{table(record['rows'])}\n\n{said}", "resources")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write results/bench/estimators.json and the page's table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimators", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=list(LIMITS), help="numbers of rows")
    tasks = ["classification", "regression", *BUNDLED]
    parser.add_argument("--only", choices=tasks, help="one fit, in this process")
    parser.add_argument("--device", default="cpu", help="where estimators train (default: cpu)")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder that receives results/bench/")
    given = parser.parse_args(argv)
    if given.only:
        print(json.dumps(fit(given.only, given.rows[0], given.device)))
        return 0
    began, load = time.perf_counter(), os.getloadavg()[0]
    everything = given.rows == list(LIMITS)
    asked = [(task, rows) for rows in given.rows for task in ("classification", "regression")]
    asked += [(task, 0) for task in BUNDLED if everything]
    found = [_fresh(*each, given.device) for each in asked]
    print(table(found))
    words = [] if everything else ["--rows", *map(str, given.rows)]
    words += [] if given.device == "cpu" else ["--device", given.device]
    record = rounded(
        {
            "experiment": "estimators",
            "provenance": {
                "command": " ".join(["python -m benchmarks.estimators", *words]),
                "commit": commit(),
                "versions": versions(),
                "device": device_name(torch.device(given.device)),
                "cores": os.cpu_count(),
                "load": load,
                "seconds": time.perf_counter() - began,
            },
            "rows": found,
        },
        4,
    )
    write_json(given.out / "results" / "bench" / "estimators.json", record)
    if (given.out / _PAGE).is_file():
        text = (given.out / _PAGE).read_text(encoding="utf-8")
        (given.out / _PAGE).write_text(page(text, record), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
