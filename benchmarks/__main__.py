"""``python -m benchmarks``: what a step and a prediction cost, as one table and one JSON file."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sparsebnn
from benchmarks import gradients, page, sparse_inference
from benchmarks.peers import installed
from benchmarks.plan import IMAGES, PARTS, plan
from benchmarks.pool import Conditions, run
from benchmarks.subjects import Task
from benchmarks.tables import failures, tables
from sparsebnn.app.provenance import commit, rounded
from studies.runner import write_json

_PAGE = Path("docs/studies/performance.md")
_PICTURE = Path("docs/images/scaling.png")
_FEW = 4
_COLUMNS = [field.name for field in fields(Task)]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; what is not given depends on the device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--architectures", nargs="+", choices=["fc", "lenet"], help="default: fc on a CPU, both on CUDA")
    add("--replicates", nargs="+", type=int, help="default: 1 on a CPU, 1 and 10 on CUDA")
    add("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    add("--parts", nargs="+", choices=PARTS, help="default: all; gradients and sparse on a CPU only")
    add("--scaling", action="store_true", help="also over K = 1 … 64, width and depth (LRT, fc)")
    add("--jobs", type=int, help="tasks that compile at once (default: 1 on a CPU, all cores on CUDA)")
    add("--held", type=int, default=32, help="tasks that wait for their timing at once (default 32)")
    add("--turns", type=int, help="turns in which each task is timed (default: 7 on a CPU, 1 on CUDA)")
    add("--seconds", type=float, help="length of a timing (default: 2 on a CPU, 1 on CUDA)")
    add("--threads", type=int, help="threads of a timed process (default: at most 2; 1 on CUDA)")
    add("--patience", type=float, default=900.0, help="seconds a wave of tasks may take to get ready")
    add("--longest", type=float, help="seconds after which a timing is given up (300; 30 on CUDA)")
    add("--gpu-lock", type=Path, help="a lock file: timings wait until nobody else holds it")
    add("--add", action="store_true", help="keep what the result file has and is not measured now")
    add("--out", type=Path, help="folder of the result file (default: results/bench)")
    add("--quick", action="store_true", help="a rehearsal: short timings, few images; writes to runs/bench")
    add("--figures-only", action="store_true", help="tables, page and picture from the files there are")
    given = parser.parse_args(argv)
    cuda = given.device == "cuda"
    given.architectures = given.architectures or (["fc", "lenet"] if cuda else ["fc"])
    given.replicates = given.replicates or ([1, 10] if cuda and not given.quick else [1])
    given.parts = given.parts or [part for part in PARTS if not cuda or part not in ("gradients", "sparse")]
    given.jobs = given.jobs or (os.cpu_count() or 1 if cuda else 1)
    given.turns = given.turns or (1 if cuda or given.quick else 7)
    given.seconds = given.seconds or (0.2 if given.quick else 1.0 if cuda else 2.0)
    given.threads = given.threads or (1 if cuda else min(2, os.cpu_count() or 1))
    given.longest = given.longest or (30.0 if cuda else 300.0)
    given.out = given.out or Path("runs/bench" if given.quick else "results/bench")
    if cuda and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --device cpu")
    if min(*given.replicates, given.jobs, given.held, given.turns) < 1:
        parser.error("--replicates, --jobs, --held and --turns must be at least 1")
    return given


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {
        "sparsebnn": sparsebnn.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    return found | {name: importlib.metadata.version(name) for name in installed()}


def _command(argv: Sequence[str]) -> str:
    """As it was called, without its folders: they name a machine, not a result."""
    words = list(argv)
    for option in ("--out", "--gpu-lock"):
        if option in words:
            at = words.index(option)
            del words[at : at + 2]
    return " ".join(["python", "-m", "benchmarks", *words])


def _timing(row: dict[str, Any]) -> str:
    """What a row is the timing of."""
    return json.dumps({name: row[name] for name in _COLUMNS if name in row})


class Recorder:
    """The result file, rewritten after every row: a run that is killed keeps what it had."""

    def __init__(self, given: argparse.Namespace, argv: Sequence[str], tasks: Sequence[Task]) -> None:
        cuda = given.device == "cuda"
        self.path = given.out / f"bench-{given.device}.json"
        self.began = time.perf_counter()
        self.record: dict[str, Any] = {
            "experiment": "bench",
            "provenance": {
                "command": _command(argv),
                # Without git, the commit is passed in.
                "commit": commit() or os.environ.get("SPARSEBNN_COMMIT"),
                "versions": _versions(),
                "seeds": list(range(max(given.replicates))),
                "kind": given.device,
                "device": torch.cuda.get_device_name() if cuda else _processor(),
                "threads": given.threads,
                "tf32": cuda,
                "complete": False,
                "seconds": 0.0,
            },
            "spec": {
                name: getattr(given, name)
                for name in ("parts", "architectures", "replicates", "seconds", "turns")
            },
            "scaling": {"together": 2 if given.quick else 10} if given.scaling else None,
            "rows": [],
            "gradients": [],
            "sparse": [],
        }
        if given.add and self.path.exists():
            self._keep(json.loads(self.path.read_text(encoding="utf-8")), tasks)

    def _keep(self, there: dict[str, Any], tasks: Sequence[Task]) -> None:
        """Rows of an earlier run that are not measured now, and where they come from."""
        now = {_timing(task.row()) for task in tasks}
        kept = [row for row in there["rows"] if _timing(row) not in now]
        self.record["rows"] = kept
        self.record["gradients"] = there["gradients"]
        self.record["sparse"] = there.get("sparse", [])
        self.record["scaling"] = self.record["scaling"] or there["scaling"]
        spec = self.record["spec"]
        for name in ("parts", "architectures", "replicates"):
            spec[name] = list(dict.fromkeys([*there["spec"][name], *spec[name]]))
        self.record["earlier"] = [*there.get("earlier", []), {**there["provenance"], "rows": len(kept)}]

    def add(self, row: dict[str, Any]) -> None:
        self.record["rows"].append(row)
        what = [
            str(row[name]) for name in ("code", "architecture", "method", "model", "hidden") if name in row
        ]
        result = row.get("failed") or f"{row['ms']:.3f} ms"
        print(f"{self.seconds:6.0f} s  {' '.join(what)} K={row['replicates']}: {result}", flush=True)
        self.write()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def write(self) -> None:
        self.record["provenance"]["seconds"] = round(self.seconds, 1)
        write_json(self.path, rounded(self.record))


def show(record: dict[str, Any]) -> None:
    """The tables of a record on the terminal."""
    for table in tables(record):
        print(f"\n{table.text()}")
    for line in failures(record):
        print(f"\nfailed: {line}")


def _picture(records: dict[str, Any], path: Path) -> None:
    if not importlib.util.find_spec("matplotlib"):
        print(
            "no picture: matplotlib is missing (pip install 'sparsebnn[plot]'); --figures-only draws it later"
        )
        return
    kind = page.pictured(records)
    if kind is not None:
        page.draw(records[kind], path)
        print(f"picture {path}")


def figures(given: argparse.Namespace) -> None:
    """Everything that is made from the files alone."""
    records = page.read(given.out)
    if not records:
        raise SystemExit(
            f"Error: there is no result file in {given.out}. Measure first: python -m benchmarks"
        )
    for record in records.values():
        show(record)
    committed = given.out == Path("results/bench")
    _picture(records, _PICTURE if committed else given.out / _PICTURE.name)
    if committed and _PAGE.exists():
        page.refresh(_PAGE, records, given.out)
        print(f"page {_PAGE}")


def measure(given: argparse.Namespace, tasks: Sequence[Task], recorder: Recorder) -> None:
    """Time every task, then the gradients' variance and sparse inference."""
    names = ("device", "jobs", "held", "turns", "seconds", "threads", "patience", "longest")
    conditions = Conditions(**{name: getattr(given, name) for name in names}, lock=given.gpu_lock)
    # A prediction takes as much of the device's memory as is free, so few may wait at the same time.
    few = replace(conditions, jobs=min(conditions.jobs, _FEW), held=min(conditions.held, _FEW))
    steps = [task for task in tasks if task.code != "predict"]
    predictions = [task for task in tasks if task.code == "predict"]
    for row in itertools.chain(run(steps, conditions), run(predictions, few)):
        recorder.add(row)
    if "gradients" in given.parts and importlib.util.find_spec("sklearn"):
        torch.set_num_threads(given.threads)
        draws, epochs = (8, 1) if given.quick else (64, 20)
        recorder.record["gradients"] = gradients.study(draws, epochs)
    elif "gradients" in given.parts:
        print(
            "no variance of the gradient: its digits come with scikit-learn (pip install 'sparsebnn[data]')"
        )
    if "sparse" in given.parts:
        quick = {"seconds": 0.1, "threads": (1,), "batches": (1, 32), "compiled": False}
        recorder.record["sparse"] = sparse_inference.study(**quick if given.quick else {})
    recorder.record["provenance"]["complete"] = True
    recorder.write()


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else list(argv)
    given = arguments(argv)
    if given.figures_only:
        figures(given)
        return 0
    images = IMAGES["quick" if given.quick else given.device]
    options = {"peers": installed(), "scale": given.scaling, "images": images, "quick": given.quick}
    tasks = plan(given.parts, given.architectures, given.replicates, **options)
    recorder = Recorder(given, argv, tasks)
    print(f"{len(tasks)} timings on {recorder.record['provenance']['device']}", flush=True)
    measure(given, tasks, recorder)
    show(recorder.record)
    if given.scaling:
        _picture({given.device: recorder.record}, given.out / _PICTURE.name)
    print(f"\nwritten to {recorder.path}")
    return 1 if failures(recorder.record) else 0


if __name__ == "__main__":
    sys.exit(main())
