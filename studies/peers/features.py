"""Feature selection at k features, after LassoNet: which method chooses the columns that classify best?

Each method ranks the columns on the training rows; the first k = 50 are judged on the test rows by extremely
randomized trees, as in the LassoNet paper. The protocol is reduced: ``rows`` of each data set, 5 replicates
of ours, LassoNet's path with one hidden layer of 64 and a coarser multiplier.
"""

from __future__ import annotations

import argparse
import gzip
import io
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsebnn.checks import invalid
from studies.runner import Study, arguments, fill_page, read_rows

__all__ = ["Spec", "main", "table"]

OURS = "sparsebnn"
DATA = ("mice", "coil20", "isolet", "mnist", "fashion")
_FILES = {
    "mice": "features/mice_protein.csv.gz",
    "coil20": "features/coil20.npz",
    "isolet": "features/isolet.npz",
    "mnist": "mnist.npz",
    "fashion": "fmnist.npz",
}


@dataclass(frozen=True)
class Spec:
    """What the table is made from."""

    data: tuple[str, ...] = DATA
    k: int = 50
    rows: int = 1000  # for training; as many at most for testing
    splits: int = 2
    seed: int = 0


def load(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Columns as float32, labels as whole numbers."""
    path = folder / _FILES[name]
    if not path.is_file():
        raise invalid(
            "data", "features", f"a folder with {_FILES[name]}", repr(str(folder)), "Pass --data FOLDER."
        )
    if name == "mice":
        import pandas

        frame = pandas.read_csv(io.BytesIO(gzip.decompress(path.read_bytes())))
        y = frame["class"].to_numpy()
        numbers = frame.select_dtypes("number")
        x = numbers.fillna(numbers.mean()).to_numpy(np.float32)
    else:
        with np.load(path) as found:
            names = list(found)
            parts = [("x_train", "y_train"), ("x_test", "y_test"), ("X", "y"), ("x", "y")]
            pairs = [(a, b) for a, b in parts if a in names and b in names]
            x = np.concatenate([found[a].reshape(len(found[a]), -1) for a, _ in pairs]).astype(np.float32)
            y = np.concatenate([found[b].ravel() for _, b in pairs])
    return x, np.unique(y, return_inverse=True)[1]


def _split(y: np.ndarray, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.model_selection import train_test_split

    most = min(2 * rows, len(y))
    index = np.arange(len(y))
    if most < len(y):
        index, _ = train_test_split(index, train_size=most, random_state=seed, stratify=y)
    training, test = train_test_split(index, test_size=0.5, random_state=seed, stratify=y[index])
    return training, test


def _ours(x: np.ndarray, y: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Columns by their gain on rows that a replicate left out, then by inclusion."""
    from sparsebnn.estimators import SparseBNNClassifier

    model = SparseBNNClassifier(random_state=seed, device="cpu").fit(x, y)
    return np.lexsort((-model.inclusion_, -model.gain_))[:k]


def _lassonet(x: np.ndarray, y: np.ndarray, k: int, seed: int) -> np.ndarray:
    from lassonet import LassoNetClassifier

    model = LassoNetClassifier(
        hidden_dims=(64,), path_multiplier=1.1, n_iters=(200, 30), patience=(20, 5), random_state=seed,
        batch_size=256,
    )  # fmt: skip
    model.path(x.astype(np.float32), y)
    return np.argsort(-model.feature_importances_.numpy(), kind="stable")[:k]


def _l1(x: np.ndarray, y: np.ndarray, k: int, seed: int) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(l1_ratio=1.0, solver="saga", C=0.05, max_iter=60, random_state=seed)
    return np.argsort(-np.abs(model.fit(x, y).coef_).max(0), kind="stable")[:k]


def _forest(x: np.ndarray, y: np.ndarray, k: int, seed: int) -> np.ndarray:
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(300, random_state=seed).fit(x, y)
    return np.argsort(-model.feature_importances_, kind="stable")[:k]


def _random(x: np.ndarray, y: np.ndarray, k: int, seed: int) -> np.ndarray:
    return np.random.RandomState(seed).permutation(x.shape[1])[:k]


METHODS: dict[str, Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]] = {
    OURS: _ours,
    "random forest": _forest,
    "L1 logistic regression": _l1,
    "random columns": _random,
    "LassoNet": _lassonet,
}


def measured(
    name: str, x: np.ndarray, y: np.ndarray, k: int, rows: int, seed: int, method: str
) -> dict[str, Any]:
    """Accuracy of extremely randomized trees on the chosen columns, and the seconds of the choice."""
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.preprocessing import StandardScaler

    training, test = _split(y, rows, seed)
    varied = x[training].std(0) > 0
    scaled = StandardScaler().fit(x[training][:, varied]).transform(x[:, varied])
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence of peers, columns of ours
        chosen = METHODS[method](scaled[training], y[training], k, seed)
    seconds = time.perf_counter() - began
    judge = ExtraTreesClassifier(200, random_state=seed).fit(scaled[training][:, chosen], y[training])
    score = float(judge.score(scaled[test][:, chosen], y[test]))
    return {"data": name, "method": method, "seed": seed, "k": k, "rows": len(training), "accuracy": score,
            "seconds": seconds}  # fmt: skip


def run(spec: Spec, study: Study, folder: Path, tell: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """All methods on all data sets and splits; rows that are there already are kept."""
    path = study.folder / "rows.jsonl"
    done = {(r["data"], r["method"], r["seed"]) for r in read_rows(path)}
    for method in METHODS:
        for name in spec.data:
            x, y = load(name, folder)
            for seed in range(spec.seed, spec.seed + spec.splits):
                if (name, method, seed) not in done:
                    row = measured(name, x, y, spec.k, spec.rows, seed, method)
                    study.append([row])
                    tell(f"{name:<10}{method:<24}{seed}  {row['accuracy']:.4f}  {row['seconds']:.1f} s")
    return read_rows(path)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Accuracy by data set, with standard errors over splits, and the mean over data sets that all have."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    lines = [
        "| method | " + " | ".join(names) + " | mean | seconds |",
        "| --- |" + " ---: |" * (len(names) + 2),
    ]
    for method in dict.fromkeys(row["method"] for row in rows):
        cells, means = [method], []
        for name in names:
            found = [r["accuracy"] for r in rows if r["method"] == method and r["data"] == name]
            error = np.std(found, ddof=1) / np.sqrt(len(found)) if len(found) > 1 else 0.0
            cells.append(f"{100 * np.mean(found):.1f} ± {100 * error:.1f}" if found else "")
            means += [float(np.mean(found))] if found else []
        seconds = np.mean([r["seconds"] for r in rows if r["method"] == method])
        mean = f"{100 * np.mean(means):.1f}" if len(means) == len(names) else ""
        lines.append("| " + " | ".join([*cells, mean, f"{seconds:.0f}"]) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies features``"""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the data sets")
    given = arguments("features", "Feature selection at k = 50, next to LassoNet.", argv, [options])
    study = Study("features", given)
    spec = Spec(seed=given.seed)
    if given.quick:
        spec = Spec(("mice",), k=10, rows=150, splits=1, seed=given.seed)
    rows = run(spec, study, given.data)
    print(table(rows))
    page = Path(given.out) / "docs" / "studies" / "features.md"
    if page.is_file() and not given.quick:
        fill_page(page, table(rows), "features")
    return 0
