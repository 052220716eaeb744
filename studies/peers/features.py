"""Feature selection at k features, after LassoNet: which method chooses the columns that classify best?

Each method ranks the columns on the training rows; the first k = 50 are judged on test rows by extremely
randomized trees (50 of them), as in the LassoNet paper, and by the method's own network where it has one.

Ours is a network whose first layer has one inclusion variable per input, trained to a target density of k
inputs: :func:`grouped`. ``--validate`` prints what its settings were chosen by, on a part of training rows.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import gzip
import io
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsebnn.checks import invalid
from studies.runner import Study, append_rows, arguments, count, fill_page, installed, read_rows

__all__ = ["Spec", "main", "table"]

OURS = "sparsebnn"
BY_GAIN = "sparsebnn, default classifier"
JUDGES, TREES = 5, 50  # forests of so many trees
_CLIP = 4.0  # standard deviations, of the inputs of networks of ours
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
    rows: int = 1000  # for training, at most half of all
    test_rows: int = 5000  # at most
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


def split(y: np.ndarray, rows: int, test_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows, stratified by class."""
    from sklearn.model_selection import train_test_split

    rows = min(rows, len(y) // 2)
    test_rows = min(test_rows, len(y) - rows)
    index = np.arange(len(y))
    training, test = train_test_split(
        index, train_size=rows, test_size=test_rows, random_state=seed, stratify=y
    )
    return training, test


@dataclass(frozen=True)
class Chosen:
    """Columns, best first, and labels by the method's own network on them, if it has one."""

    columns: np.ndarray
    predict: Callable[[np.ndarray], np.ndarray] | None = None


def grouped(
    x: np.ndarray,
    y: np.ndarray,
    k: int,
    seed: int,
    *,
    temperature: float = 0.01,
    epochs: int = 60,
    hidden: int = 64,
    learning_rate: float = 1e-2,
) -> Chosen:
    """The k inputs that a network with one inclusion variable per input ends up with.

    Half of the epochs train freely, then the prior's inclusion odds fall until k inputs are left, whose
    weights are refitted. So the columns are chosen together: one that repeats another is worth little.
    """
    import sparsebnn
    from sparsebnn.inference import predict
    from sparsebnn.posteriors.priors import GaussianPrior, SpikeSlabPrior

    def tensor(rows: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.clip(rows, -_CLIP, _CLIP)).float()

    inputs, classes = x.shape[1], int(y.max()) + 1
    first = sparsebnn.Linear(
        inputs, hidden, family="spike_slab", family_options={"group_by": "input"}, prior=SpikeSlabPrior(0.5)
    )
    last = sparsebnn.Linear(hidden, classes, family="gaussian", prior=GaussianPrior())
    settings = sparsebnn.Settings(
        epochs=epochs, batch_size=100, learning_rate=learning_rate,
        learning_rates={"inclusion_logit": 10.0 * learning_rate}, temperature=temperature, warmup=0.2,
        target_density=min(1.0, k / inputs), free_fraction=0.5, refit=0.1,
    )  # fmt: skip
    run = sparsebnn.train(
        nn.Sequential(first, nn.ReLU(), last), (tensor(x), torch.from_numpy(y)), settings=settings, seed=seed,
        device="cpu", progress=False,
    )  # fmt: skip
    logits = run.network[0].weights.inclusion_logit.detach().flatten()  # type: ignore[index]
    columns = np.argsort(-logits.numpy(), kind="stable")[:k]

    def labels(rows: np.ndarray) -> np.ndarray:
        return predict(run.network, tensor(rows), run.likelihood, 30, seed=seed).labels.numpy()

    return Chosen(columns, labels)


def _by_gain(x: np.ndarray, y: np.ndarray, k: int, seed: int) -> Chosen:
    """Columns by their gain on rows that a replicate left out, then by inclusion."""
    from sparsebnn.estimators import SparseBNNClassifier

    model = SparseBNNClassifier(random_state=seed, device="cpu").fit(x, y)
    return Chosen(np.lexsort((-model.inclusion_, -model.gain_))[:k])


def _lassonet(x: np.ndarray, y: np.ndarray, k: int, seed: int) -> Chosen:
    """Columns by the penalty at which they leave; its own network is the first of the path with at most k."""
    from lassonet import LassoNetClassifier

    kept: list[dict[str, Any]] = []

    def look(model: Any, _history: Any) -> None:
        if not kept and model.model.selected_count() <= k:
            kept.append(copy.deepcopy(model.model.state_dict()))

    model = LassoNetClassifier(
        hidden_dims=(64,), path_multiplier=1.1, n_iters=(200, 30), patience=(20, 5), random_state=seed,
        batch_size=256,
    )  # fmt: skip
    model.path(x.astype(np.float32), y, callback=look)
    columns = np.argsort(-model.feature_importances_.numpy(), kind="stable")[:k]
    if not kept:
        return Chosen(columns)
    model.model.load_state_dict(kept[0])
    return Chosen(columns, lambda rows: np.asarray(model.predict(rows.astype(np.float32))))


def _hsic_lasso(x: np.ndarray, y: np.ndarray, k: int, seed: int) -> Chosen:
    """Block HSIC-Lasso with the package's defaults (blocks of 20 rows, 3 permutations)."""
    from pyHSICLasso import HSICLasso

    if not hasattr(np.linalg, "linalg"):
        setattr(np.linalg, "linalg", np.linalg)  # noqa: B010 - its name in NumPy 1, which the package uses
    model, state = HSICLasso(), np.random.get_state()
    np.random.seed(seed)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        model.input(x.astype(np.float64), y)
        model.classification(k, n_jobs=1)
    np.random.set_state(state)
    found = np.array(model.get_index(), dtype=int)[:k]
    # Where it selects fewer, the rest is arbitrary.
    rest = np.setdiff1d(np.random.RandomState(seed).permutation(x.shape[1]), found, assume_unique=True)
    return Chosen(np.concatenate([found, rest])[:k])


def _l1(x: np.ndarray, y: np.ndarray, k: int, seed: int) -> Chosen:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(l1_ratio=1.0, solver="saga", C=0.05, max_iter=60, random_state=seed)
    return Chosen(np.argsort(-np.abs(model.fit(x, y).coef_).max(0), kind="stable")[:k])


def _forest(x: np.ndarray, y: np.ndarray, k: int, seed: int) -> Chosen:
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(300, random_state=seed).fit(x, y)
    return Chosen(np.argsort(-model.feature_importances_, kind="stable")[:k])


def _random(x: np.ndarray, y: np.ndarray, k: int, seed: int) -> Chosen:
    return Chosen(np.random.RandomState(seed).permutation(x.shape[1])[:k])


def _all(x: np.ndarray, y: np.ndarray, k: int, seed: int) -> Chosen:
    return Chosen(np.arange(x.shape[1]))


METHODS: dict[str, Callable[[np.ndarray, np.ndarray, int, int], Chosen]] = {
    OURS: grouped,
    BY_GAIN: _by_gain,
    "LassoNet": _lassonet,
    "HSIC-Lasso": _hsic_lasso,
    "random forest": _forest,
    "L1 logistic regression": _l1,
    "random columns": _random,
    "all columns": _all,
}
_PACKAGES = {"LassoNet": "lassonet", "HSIC-Lasso": "pyHSICLasso"}


def measured(
    x: np.ndarray, y: np.ndarray, training: np.ndarray, test: np.ndarray, k: int, seed: int, choose: Any
) -> dict[str, Any]:
    """Accuracy of trees and of the method's own network on the chosen columns, seconds of the choice."""
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.preprocessing import StandardScaler

    varied = x[training].std(0) > 0
    scaler = StandardScaler().fit(x[training][:, varied])
    old, new = (scaler.transform(x[rows][:, varied]) for rows in (training, test))
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence of peers, columns of ours
        chosen = choose(old, y[training], k, seed)
    seconds = time.perf_counter() - began
    scores = []
    for judge in range(JUDGES):
        trees = ExtraTreesClassifier(TREES, random_state=100 * seed + judge)
        trees.fit(old[:, chosen.columns], y[training])
        scores.append(float(trees.score(new[:, chosen.columns], y[test])))
    own = None if chosen.predict is None else float((chosen.predict(new) == y[test]).mean())
    return {"k": len(chosen.columns), "rows": len(training), "test_rows": len(test), "seconds": seconds,
            "accuracy": float(np.mean(scores)), "own_accuracy": own}  # fmt: skip


def run(
    spec: Spec,
    study: Study,
    folder: Path,
    methods: Sequence[str] = tuple(METHODS),
    tell: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """The methods on all data sets and splits; rows that are there already are kept."""
    path = study.folder / "rows.jsonl"
    done = {(r["data"], r["method"], r["seed"]) for r in read_rows(path)}
    for seed in range(spec.seed, spec.seed + spec.splits):
        for name in spec.data:
            x, y = load(name, folder)
            training, test = split(y, spec.rows, spec.test_rows, seed)
            for method in methods:
                if (name, method, seed) not in done:
                    row = {"data": name, "method": method, "seed": seed}
                    row |= measured(x, y, training, test, spec.k, seed, METHODS[method])
                    study.append([row])
                    tell(f"{name:<10}{method:<30}{seed}  {row['accuracy']:.4f}  {row['seconds']:.1f} s")
    return read_rows(path)


def validate(study: Study, folder: Path, tell: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Settings of ours, fitted to seven tenths of the training rows of split 0 and judged on the rest."""
    spec = Spec()
    options: dict[str, dict[str, Any]] = {
        f"temperature {t:g}": {"temperature": t} for t in (1, 0.1, 0.01, 0.001)
    }
    options |= {"150 epochs": {"epochs": 150}, "rate 0.003": {"learning_rate": 3e-3}}
    path = study.folder / "validation.jsonl"
    done = {(r["data"], r["method"], r["seed"]) for r in read_rows(path)}
    for name in spec.data:
        x, y = load(name, folder)
        rows, _ = split(y, spec.rows, spec.test_rows, 0)
        training, held = (rows[each] for each in split(y[rows], int(0.7 * len(rows)), len(rows), 7))
        for label, settings in options.items():
            choose = functools.partial(grouped, **settings)
            for seed in range(3):
                if (name, label, seed) not in done:
                    found = measured(x, y, training, held, spec.k, seed, choose)
                    append_rows(path, [{"data": name, "method": label, "seed": seed, **found}])
                    tell(f"{name:<10}{label:<20}{seed}  {found['accuracy']:.4f}")
    return read_rows(path)


def table(rows: Sequence[dict[str, Any]], key: str = "accuracy") -> str:
    """Accuracy by data set, with standard errors over splits, and the mean over data sets if it has all."""
    names = [
        each
        for each in dict.fromkeys((*DATA, *(r["data"] for r in rows)))
        if any(r["data"] == each for r in rows)
    ]
    lines = [
        "| method | " + " | ".join(names) + " | mean | seconds |",
        "| --- |" + " ---: |" * (len(names) + 2),
    ]
    listed = dict.fromkeys((*METHODS, *(r["method"] for r in rows)))
    for method in listed:
        own = [r for r in rows if r["method"] == method and r.get(key) is not None]
        if not own:
            continue
        cells, means = [method], []
        for name in names:
            found = [r[key] for r in own if r["data"] == name]
            shown = f"{100 * np.mean(found):.1f}" if found else ""
            if len(found) > 1:
                shown += f" ± {100 * np.std(found, ddof=1) / np.sqrt(len(found)):.1f}"
            cells.append(shown)
            means += [float(np.mean(found))] if found else []
        mean = f"{100 * np.mean(means):.1f}" if len(means) == len(names) else ""
        lines.append("| " + " | ".join([*cells, mean, f"{np.mean([r['seconds'] for r in own]):.1f}"]) + " |")
    return "\n".join(lines)


def page_tables(rows: Sequence[dict[str, Any]]) -> str:
    """Both tables of the page."""
    titles = {"accuracy": "Extremely randomized trees:", "own_accuracy": "The method's own network:"}
    return "\n\n".join(f"{title}\n\n{table(rows, key)}" for key, title in titles.items())


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies features``"""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the data sets")
    options.add_argument("--splits", type=count, default=Spec.splits, help="random splits of each data set")
    options.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="default: all")
    options.add_argument("--validate", action="store_true", help="what our settings were chosen by")
    given = arguments("features", "Feature selection at k = 50, next to LassoNet.", argv, [options])
    study = Study("features", given)
    if given.validate:
        print(table(validate(study, given.data)))
        return 0
    spec = Spec(splits=given.splits, seed=given.seed)
    if given.quick:
        spec = Spec(("mice",), k=10, rows=150, test_rows=150, splits=1, seed=given.seed)
    methods = installed(given.methods, _PACKAGES)
    rows = run(spec, study, given.data, methods)
    print(page_tables(rows))
    page = Path(given.out) / "docs" / "studies" / "features.md"
    if page.is_file() and not given.quick:
        fill_page(page, page_tables(rows), "features")
    return 0
