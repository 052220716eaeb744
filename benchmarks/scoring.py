"""``python -m benchmarks.scoring``: rows per second of a fitted classifier, in the library and exported.

A table of 50 columns (ten of them categories), one million rows to score, beside scikit-learn's gradient
boosting. All predictors are timed in one run, in turns; the shortest turn of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsebnn.app.provenance import commit, device_name, rounded, versions
from sparsebnn.deploy import export
from sparsebnn.estimators import SparseBNNClassifier
from sparsebnn.nn.sparse import SparseNetwork
from studies.runner import write_json

_BLOCK = 20_000  # rows at a time, as ``sparsebnn predict`` does
_COLUMNS, _CATEGORIES, _TRAIN = 50, 10, 3000


def table(rows: int, seed: int) -> tuple[Any, np.ndarray]:
    """A frame of numbers and categories, and classes that depend on six of them."""
    import pandas as pd

    random = np.random.RandomState(seed)
    numbers = random.randn(rows, _COLUMNS - _CATEGORIES)
    words = random.randint(0, 4, (rows, _CATEGORIES))
    score = numbers[:, 0] * numbers[:, 1] + numbers[:, 2] - 0.5 * numbers[:, 3] ** 2 + (words[:, 0] == 1)
    frame = pd.DataFrame({f"x{i}": column for i, column in enumerate(numbers.T)})
    levels = np.array(["north", "south", "east", "west"], dtype=object)
    for i in range(_CATEGORIES):
        frame[f"c{i}"] = levels[words[:, i]]
    return frame, score + 0.3 * random.randn(rows) > 0.5


def _onnx(path: Path, threads: int) -> Callable[[Any], np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options)

    def score(frame: Any) -> np.ndarray:
        feed = {each.name: frame[each.name].to_numpy()[:, None] for each in session.get_inputs()}
        return session.run(["probabilities"], feed)[0]

    return score


def _sparse(model: Any) -> Callable[[Any], np.ndarray]:
    """The median models of all replicates, each by its fastest way."""
    networks = [SparseNetwork(network, batch_sizes=(_BLOCK,)) for network in model.networks_]

    def score(frame: Any) -> np.ndarray:
        x = torch.from_numpy(model._inputs(frame)).float()
        return torch.stack([torch.sigmoid(model.logit_scale_ * each(x)) for each in networks]).mean(0).numpy()

    return score


def study(rows: int, threads: int, turns: int = 3) -> dict[str, Any]:
    """Rows per second of every predictor, and how far its probabilities are from the library's."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    torch.set_num_threads(threads)
    train, y = table(_TRAIN, 0)
    model = SparseBNNClassifier(random_state=0).fit(train, y)
    boosting = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=0)
    categories = {f"c{i}": "category" for i in range(_CATEGORIES)}
    boosting.fit(train.astype(categories), y)
    new, truth = table(_BLOCK, 1)
    with tempfile.TemporaryDirectory() as folder:
        average = _onnx(export(model, Path(folder, "average.onnx"), n_draws=20), threads)
        median = _onnx(export(model, Path(folder, "median.onnx"), model="median"), threads)
        ways: dict[str, Callable[[Any], np.ndarray]] = {
            "library, 100 draws": model.predict_proba,
            "ONNX, 20 draws": average,
            "ONNX, median model": median,
            "SparseNetwork, median model": _sparse(model),
            "HistGradientBoosting": lambda frame: boosting.predict_proba(frame.astype(categories)),
        }
        found: dict[str, Any] = {}
        for name, score in ways.items():
            # The library averages draws of every network in double precision: one block of it is enough.
            blocks = 1 if name.startswith("library") else -(-rows // _BLOCK)
            best = float("inf")
            for _ in range(1 if name.startswith("library") else turns):
                began = time.perf_counter()
                for _ in range(blocks):
                    probs = score(new)
                best = min(best, (time.perf_counter() - began) / blocks)
            yes = np.asarray(probs).reshape(_BLOCK, -1)[:, -1]
            accuracy = float(((yes > 0.5) == truth).mean())
            found[name] = {"rows_per_second": _BLOCK / best, "blocks": blocks, "accuracy": accuracy}
            print(f"{name:30} {_BLOCK / best:12,.0f} rows/s  accuracy {accuracy:.4f}", flush=True)
    return {"rows": rows, "threads": threads, "density": model.density_, "ways": found}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoring", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    given = parser.parse_args(argv)
    record = rounded({**study(given.rows, given.threads), "device": device_name(torch.device("cpu"))})
    write_json(given.out / "scoring.json", {**record, "commit": commit(), "versions": versions()})
    print(json.dumps(record["ways"]))


if __name__ == "__main__":
    main()
