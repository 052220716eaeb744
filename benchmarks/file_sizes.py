"""``python -m benchmarks.file_sizes``: the frontier's MNIST network in every format, in bytes.

The network is trained with the settings that the frontier study chose, and its median model is measured on
the test rows before and after each loss of precision.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sparsebnn
from sparsebnn.app.provenance import commit, device_name, rounded, versions
from sparsebnn.inference import metrics
from sparsebnn.io.sparse_files import load_sparse, save_sparse
from sparsebnn.nn.compaction import compact
from sparsebnn.nn.quantization import quantize
from studies.runner import write_json

_DENSITY = 0.0247  # the frontier's bound for MNIST, fully connected
_SIZES = (784, 400, 600, 10)


def trained(data: Any, epochs: int, seed: int) -> nn.Module:
    """The recommended recipe at the frontier's density."""
    recipe = sparsebnn.recipe("recommended", target_density=_DENSITY, epochs=epochs)
    x, y = data.x_train.flatten(1), data.y_train
    run = sparsebnn.train(recipe.mlp(_SIZES), (x, y), settings=recipe.settings, seed=seed)
    return run.network.cpu()


@torch.no_grad()
def measured(network: Any, x: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy, negative log-likelihood and calibration error."""
    probs = torch.softmax(network(x), 1)
    return {
        "accuracy": metrics.accuracy(probs, y),
        "nll": metrics.nll(probs, y),
        "ece": metrics.calibration_error(probs, y),
    }


def _object_size(source: Path) -> int | None:
    """The bytes of constants and code in a compiled C file."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    target = source.with_suffix(".o")
    subprocess.run([compiler, "-std=c99", "-Os", "-c", str(source), "-o", str(target)], check=True)
    return target.stat().st_size


def study(network: nn.Module, x_train: Tensor, x: Tensor, y: Tensor) -> Iterator[dict[str, Any]]:
    """One row per format: bytes, bytes per weight, and what the network in it achieves."""
    small = compact(network)
    plain = small.network
    dense = 4 * sum(p.numel() for p in sparsebnn.mlp(_SIZES, family="gaussian").parameters()) // 2

    def row(name: str, size: int, as_read: Any) -> dict[str, Any]:
        found = {"format": name, "bytes": size, "weights": small.nonzero, "per_weight": size / small.nonzero}
        return {**found, **measured(as_read, x, y)}

    yield row("dense, float32", dense, plain)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for values in ("float32", "float16", "int8"):
            path = save_sparse(plain, folder / f"{values}.safetensors", values)
            yield row(f"sparse safetensors, {values}", path.stat().st_size, load_sparse(path))
        form = sparsebnn.likelihoods.Categorical(10)
        source = sparsebnn.export(network, folder / "float.c", model="median", likelihood=form)
        if (size := _object_size(source)) is not None:
            yield row("C object, float32", size, plain)
        levels = quantize(plain, x_train)
        source = sparsebnn.export(network, folder / "int8.c", model="median", likelihood=form, int8=x_train)
        if (size := _object_size(source)) is not None:
            yield row("C object, int8", size, levels)
        if importlib.util.find_spec("onnxscript"):
            path = sparsebnn.export(network, folder / "m.onnx", model="median", likelihood=form)
            yield row("ONNX, compacted, float32", path.stat().st_size, plain)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.file_sizes", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    given = parser.parse_args(argv)
    began = time.perf_counter()
    data = sparsebnn.data.load("mnist", given.data)
    network = trained(data, given.epochs, given.seed)
    x_train, x = (each.flatten(1).float() / 255.0 for each in (data.x_train[:1000], data.x_test))
    record: dict[str, Any] = {
        "rows": [],
        "provenance": {
            "command": f"python -m benchmarks.file_sizes --epochs {given.epochs} --seed {given.seed}",
            "commit": commit(),
            "versions": versions(),
            "device": device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        },
    }
    for row in study(network, x_train, x, data.y_test):
        print(row, flush=True)
        record["rows"].append(row)
        record["provenance"]["seconds"] = time.perf_counter() - began
        write_json(given.out / "file_sizes.json", rounded(record))


if __name__ == "__main__":
    main()
