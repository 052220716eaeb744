"""``python -m benchmarks.sparse_inference``: what a prediction of a sparse network costs, beside dense ones.

784-400-600-10 and LeNet-5 with random weights, of which a random part is left, on one thread and on two; with
``--architectures skip`` 784-400-600-10 whose layers all see the input, written to a separate file. All ways
to run a network are timed in turns of a millisecond or one call, and the shortest turn of each counts:
whatever else the machine does only makes turns longer.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import json
import logging
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn.app.provenance import commit, device_name, rounded, versions
from sparsebnn.deploy.c_tables import tables
from sparsebnn.kernels.compiler import SOURCE, kernel
from sparsebnn.nn.lowering import lower
from sparsebnn.nn.networks import InputSkip, steps
from sparsebnn.nn.quantization import quantize
from sparsebnn.nn.sparse import SparseNetwork, _replaced, _ScipyCSR, _TorchCSR
from studies.runner import fill_page, write_json

__all__ = ["WAYS", "cells", "main", "study", "table"]

Run = Callable[[Tensor], Any]
WAYS = {
    "dense": "dense torch",
    "compiled": "torch compiled",
    "onnx": "onnxruntime, dense",
    "torch_csr": "torch CSR",
    "scipy_csr": "scipy CSR",
    "ours": "SparseNetwork",
    "c": "exported C",
    "int8": "int8",
}
DENSITIES = {"fc": (0.1, 0.03, 0.01), "lenet": (0.1, 0.07, 0.03, 0.01), "skip": (0.1, 0.03, 0.01)}
BATCHES = (1, 32, 1000)
_SHAPES = {"fc": (784,), "lenet": (1, 28, 28), "skip": (784,)}
_BURST = 0.001


def network(architecture: str, density: float) -> nn.Sequential:
    """A network with random weights, of which a random part is left."""
    generator = torch.Generator().manual_seed(0)
    fc = [nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 600), nn.ReLU(), nn.Linear(600, 10)]
    convolutions = [nn.Conv2d(1, 32, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(32, 48, 5), nn.ReLU()]
    rest = [nn.AvgPool2d(2), nn.Flatten(), nn.Linear(768, 256), nn.ReLU(), nn.Linear(256, 84), nn.ReLU()]
    skip = InputSkip([nn.Linear(784, 400), nn.Linear(400 + 784, 600), nn.Linear(600 + 784, 10)], nn.ReLU())
    kinds = {"fc": fc, "lenet": [*convolutions, *rest, nn.Linear(84, 10)], "skip": [skip]}
    made = nn.Sequential(*kinds[architecture])
    with torch.no_grad():
        for module in made.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.weight.mul_(torch.rand(module.weight.shape, generator=generator) < density)
    return made.requires_grad_(False).eval()


def _onnx(dense: nn.Module, x: Tensor, threads: int) -> Run | None:
    if not all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime")):
        return None
    import onnxruntime

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # torchvision is not needed
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = str(Path(folder, "dense.onnx"))
        torch.onnx.export(dense, (x,), path, dynamo=True, external_data=False, verbose=False)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda given: session.run(None, {name: given.numpy()})


def _compiled(dense: nn.Module, x: Tensor) -> Run | None:
    try:
        torch._dynamo.reset()  # of networks before this one; there is a limit to their number
        run = torch.compile(dense, dynamic=False)
        run(x)
    except Exception as error:  # the compiler needs a C++ compiler of the system, among other things
        print(f"not compiled: {str(error)[:200]}")
        return None
    return run


def _exported(dense: nn.Sequential, shape: Sequence[int]) -> Run | None:
    """The constants and the kernel of an exported C file, compiled as its users would; rows one by one."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    program = lower(dense, shape)
    source = f"#define SB_API static\n{SOURCE.read_text(encoding='utf-8')}{tables(program, 'model', 1)}"
    source += (
        "void run(const float *x, size_t n, float *y, float *s) { sb_run(&model_network, x, n, y, s, 1); }"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model.c").write_text(source)
        command = [
            compiler,
            "-std=c99",
            "-O3",
            "-march=native",
            "-shared",
            "-fPIC",
            "model.c",
            "-o",
            "model.so",
        ]
        subprocess.run(command, cwd=folder, check=True)
        run = ctypes.CDLL(str(Path(folder, "model.so"))).run
    run.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
    scratch = torch.empty(program.floats(1))

    def call(x: Tensor) -> Tensor:
        y = torch.empty(len(x), program.outputs)
        run(x.data_ptr(), len(x), y.data_ptr(), scratch.data_ptr())
        return y

    return call


def ways(dense: nn.Sequential, x: Tensor, threads: int, compiled: bool = True) -> dict[str, Run]:
    """Every way to run a network here; what is not installed is left out."""
    runs: dict[str, Run | None] = {"dense": dense}
    if compiled:
        runs["compiled"] = _compiled(dense, x)
    runs["onnx"] = _onnx(dense, x, threads)
    if isinstance(dense[0], nn.Linear | InputSkip):  # there is no CSR convolution
        runs["torch_csr"] = _replaced(steps(dense), _TorchCSR)
        runs["scipy_csr"] = _replaced(steps(dense), _ScipyCSR) if importlib.util.find_spec("scipy") else None
    runs["ours"] = SparseNetwork(dense, x.shape[1:], (len(x),))
    runs["c"] = _exported(dense, x.shape[1:])
    runs["int8"] = quantize(dense, x[:100]) if kernel().run is not None else None
    return {name: run for name, run in runs.items() if run is not None}


def times(runs: Mapping[str, Run], x: Tensor, seconds: float) -> dict[str, list[float]]:
    """Microseconds per call in every turn."""
    counts = {}
    for name, run in runs.items():
        run(x)
        began = time.perf_counter()
        run(x)
        counts[name] = max(1, math.ceil(_BURST / (time.perf_counter() - began)))
    found: dict[str, list[float]] = {name: [] for name in runs}
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or len(found["dense"]) < 5:
        for name, run in runs.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                run(x)
            found[name].append((time.perf_counter() - start) / counts[name] * 1e6)
    return found


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def study(
    architectures: Sequence[str] = ("fc", "lenet"),
    threads: Sequence[int] = (1, 2),
    seconds: float = 2.0,
    compiled: bool = True,
    batches: Sequence[int] = BATCHES,
) -> list[dict[str, Any]]:
    """One row per architecture, density, batch size and number of threads."""
    rows = []
    for number in threads:
        with _threads(number):
            for architecture in architectures:
                for density in DENSITIES[architecture]:
                    dense = network(architecture, density)
                    for batch in batches:
                        x = torch.rand(batch, *_SHAPES[architecture])
                        runs = ways(dense, x, number, compiled and density == DENSITIES[architecture][0])
                        found = times(runs, x, seconds)
                        row: dict[str, Any] = {"architecture": architecture, "density": density}
                        row |= {"batch": batch, "threads": number}
                        row["methods"] = list(runs["ours"].methods[batch])  # type: ignore[attr-defined]
                        row["us"] = {name: min(values) for name, values in found.items()}
                        row["us_median"] = {name: statistics.median(v) for name, v in found.items()}
                        rows.append(row)
                        print("  ".join(cells(row)), flush=True)
    return rows


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row as text: microseconds, and in brackets how many times faster than dense torch."""
    us = row["us"]
    ratios = {name: f"{us[name]:,.0f} ({us['dense'] / us[name]:.1f}×)" for name in us}
    ratios["dense"] = f"{us['dense']:,.0f}"
    first = (row["architecture"], f"{row['density']:g}", f"{row['batch']:,}", str(row["threads"]))
    return (*first, *(ratios.get(name, "·") for name in WAYS))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as Markdown."""
    head = ["network", "density", "batch", "threads", *WAYS.values()]
    lines = [head, ["---"] * 4 + ["---:"] * len(WAYS), *map(cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def blocks(results: Path) -> dict[str, str]:
    """The tables of docs/studies/sparse_inference.md, from the files of all benchmarks."""
    sparse, skip, scoring, sizes = (
        json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("sparse_inference", "sparse_inference_skip", "scoring", "file_sizes")
    )
    rows = ["| | rows per second | accuracy |", "|---|---:|---:|"]
    for name, way in scoring["ways"].items():
        rows.append(f"| {name} | {way['rows_per_second']:,.0f} | {way['accuracy']:.3f} |")
    head = "| format | bytes | per weight | accuracy | NLL | ECE |"
    files = [head, "|---|---:|---:|---:|---:|---:|"]
    for row in sizes["rows"]:
        kept = f"{row['accuracy']:.4f} | {row['nll']:.4f} | {row['ece']:.4f}"
        files.append(f"| {row['format']} | {row['bytes']:,} | {row['per_weight']:.2f} | {kept} |")
    weights = f"{sizes['rows'][0]['weights']:,} weights are left."
    where = f"Measured on {sparse['provenance']['device'].split(' (')[0]}, {sparse['provenance']['kernel']}."
    return {
        "sparse": f"{table(_shown(sparse['rows']))}\n\n{where}",
        "skip": table(_shown(skip["rows"])),
        "scoring": "\n".join(rows),
        "sizes": "\n".join([*files, "", weights]),
    }


def _shown(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows that the page shows: one thread, the smallest and largest batch, without middle densities."""
    ends: dict[str, set[float]] = {row["architecture"]: set() for row in rows}
    for row in rows:
        ends[row["architecture"]].add(row["density"])
    extremes = {name: {min(found), max(found)} for name, found in ends.items()}
    batches = {min(row["batch"] for row in rows), max(row["batch"] for row in rows)}
    return [
        row
        for row in rows
        if row["threads"] == 1 and row["batch"] in batches and row["density"] in extremes[row["architecture"]]
    ]


def details(results: Path) -> str:
    """The table of ``results/bench/sparse_inference.md``: all networks, densities, batches and threads."""
    names = ("sparse_inference", "sparse_inference_skip")
    files = [json.loads((results / f"{name}.json").read_text(encoding="utf-8")) for name in names]
    return table([row for file in files for row in file["rows"]]) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write results/bench/sparse_inference.json; --page writes the page instead."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sparse_inference", description=__doc__)
    add = parser.add_argument
    add("--architectures", nargs="+", choices=list(_SHAPES), default=["fc", "lenet"])
    add("--threads", nargs="+", type=int, default=[1, 2])
    add("--batches", nargs="+", type=int, default=list(BATCHES))
    add("--seconds", type=float, default=2.0, help="length of a comparison")
    add("--no-compile", action="store_true", help="leave torch.compile out, which takes a minute per network")
    add("--out", type=Path, default=Path("."), help="folder that receives results/bench/")
    add("--page", action="store_true", help="write the tables of the page from the files, and stop")
    given = parser.parse_args(argv)
    if given.page:
        for name, body in blocks(given.out / "results/bench").items():
            fill_page(given.out / "docs/studies/sparse_inference.md", body, name)
        results = given.out / "results/bench"
        (results / "sparse_inference.md").write_text(details(results), encoding="utf-8")
        return 0
    began = time.perf_counter()
    compiled = not given.no_compile
    rows = study(given.architectures, given.threads, given.seconds, compiled, given.batches)
    print(f"\n{table(rows)}")
    record = {
        "experiment": "sparse_inference",
        "provenance": {
            "command": f"python -m benchmarks.sparse_inference {' '.join(argv or sys.argv[1:])}".strip(),
            "commit": commit(),
            "versions": versions(),
            "device": device_name(torch.device("cpu")),
            "kernel": kernel().description,
            "seconds": time.perf_counter() - began,
        },
        "rows": rows,
    }
    name = "sparse_inference_skip" if given.architectures == ["skip"] else "sparse_inference"
    write_json(given.out / f"results/bench/{name}.json", rounded(record))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
