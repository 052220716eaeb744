"""Seconds to the first step and milliseconds per step after it, for every mode, from cold caches.

``python -m benchmarks.start --out start.jsonl`` runs each (cell, replicates, mode) in a new process
with empty compiler and kernel caches, one after the other, and writes one row each. ``first_seconds`` is the
time from the rows in memory to the end of the first step: moving them, stacking replicates, compiling,
capturing and the step itself. Imports and the first contact with the device come before it, as
``import_seconds``.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BEGAN = time.perf_counter()
ARCHITECTURES, METHODS = ("fc", "lenet"), ("lbbnn", "lrt", "flow")
_ROUNDS, _STEPS = 5, 100


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Only one process times its steps at a time."""
    with open(Path(tempfile.gettempdir()) / "sparsebnn-start.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measure(
    architecture: str, method: str, replicates: int, mode: str, patches: dict[str, Any]
) -> dict[str, Any]:
    """One row, in this process."""
    import torch

    from benchmarks.subjects import Task, engine, rows
    from sparsebnn.training import compile
    from sparsebnn.training.arguments import break_even
    from sparsebnn.training.devices import matmul_precision

    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.zeros(1, device=device)
    compile._FUSE.update(patches)

    def wait() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    imported = wait()
    rows(architecture)
    began = wait()
    with matmul_precision(True):
        made = engine(Task("ours", architecture, method, replicates), device, mode=mode)
        built = wait()
        made.run(1)
        first = wait()
        rounds = []
        steps = _STEPS if cuda else 5
        with _alone():
            for _ in range(_ROUNDS):
                made["position"].zero_()
                start = wait()
                made.run(steps)
                rounds.append((wait() - start) / steps)
    trained = sorted(made.replicates.trained.items())
    sha = hashlib.sha256(b"".join(p.cpu().numpy().tobytes() for _, p in trained))
    return {
        "architecture": architecture,
        "method": method,
        "replicates": replicates,
        "mode": made.mode,
        "requested": mode,
        "patches": patches,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": torch.__version__,
        "import_seconds": round(imported - _BEGAN, 2),
        "prepare_seconds": round(made.compile_seconds, 2),
        "first_seconds": round(first - began, 2),
        "build_seconds": round(built - began - made.compile_seconds, 2),
        "step_ms": round(1e3 * sorted(rounds)[_ROUNDS // 2], 4),
        "state": sha.hexdigest()[:16],
        "loss": float(made["totals"][:, 0].sum()),
        "weights": sum(p.numel() for _, p in trained),
        "tensors": len(trained),
        "compiler_imported": "torch._dynamo" in sys.modules,
        "break_even": round(break_even(made.replicates)),
    }


def in_own_process(task: list[str], out: Path) -> dict[str, Any]:
    """One row, from a process with empty caches."""
    with tempfile.TemporaryDirectory() as caches:
        env = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
            "TRITON_CACHE_DIR": f"{caches}/triton",
        }
        command = [sys.executable, "-m", "benchmarks.start", "--task", *task]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"task": task, "error": (done.stderr or done.stdout)[-1500:]}
    with out.open("a") as file:
        file.write(lines[-1] + "\n")
    row: dict[str, Any] = json.loads(lines[-1])
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown: a line for each network, and for each mode seconds and milliseconds."""
    cells = sorted({(r["architecture"], r["method"], r["replicates"]) for r in rows if not r["patches"]})
    modes = sorted({r["mode"] for r in rows})
    head = ["network", "replicates", *(f"{mode}: first step, s; a step, ms" for mode in modes)]
    lines = [f"| {' | '.join(head)} |", "| --- | --: |" + " --: |" * len(modes)]
    for cell in cells:
        shown = []
        for mode in modes:
            found = [r for r in rows if (r["architecture"], r["method"], r["replicates"]) == cell]
            found = [r for r in found if r["mode"] == mode and not r["patches"]]
            shown.append(f"{found[-1]['first_seconds']:.1f}; {found[-1]['step_ms']:.2f}" if found else "–")
        lines.append(f"| {cell[0]}, {cell[1]} | {cell[2]} | {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", nargs="+", help="architecture, method, replicates, mode[, JSON of patches]")
    parser.add_argument("--cells", nargs="*", default=[f"{a}-{m}" for a in ARCHITECTURES for m in METHODS])
    parser.add_argument("--replicates", nargs="*", type=int, default=[1, 10])
    parser.add_argument("--modes", nargs="*", default=["captured", "compiled"])
    parser.add_argument("--patches", default="{}", help="options of the compiler, as JSON")
    parser.add_argument("--out", type=Path, default=Path("start.jsonl"))
    parser.add_argument("--table", type=Path, help="print the rows of this file as a table")
    given = parser.parse_args()
    if given.table:
        print(table([json.loads(line) for line in given.table.read_text().splitlines()]))
        return
    if given.task:
        architecture, method, replicates, mode, *patches = given.task
        row = measure(architecture, method, int(replicates), mode, json.loads(patches[0]) if patches else {})
        print(json.dumps(row), flush=True)
        return
    for mode in given.modes:
        for name in given.cells:
            for replicates in given.replicates:
                task = [*name.split("-"), str(replicates), mode, given.patches]
                row = in_own_process(task, given.out)
                kept = ("first_seconds", "prepare_seconds", "step_ms", "mode", "state", "error")
                print(name, replicates, mode, {k: row[k] for k in kept if k in row}, flush=True)


if __name__ == "__main__":
    main()
