"""Real tables: the estimators' defaults next to linear models, boosting, CatBoost, forests and networks.

Five folds, the same for all methods; one thread. A row per table, fold and method goes to
``results/tabular/rows.jsonl``; rows that are there already are kept, so that one method can be run alone:
``--methods ours --label "sparsebnn (after)"``. Folds are the outer loop: an interrupted run has whole folds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsebnn.inference import metrics
from studies.peers.tabular_data import TABLES, load
from studies.peers.tabular_methods import OURS, PEERS, known, make
from studies.peers.tabular_report import body, details
from studies.runner import Study, arguments, fill_page, read_rows, write_details

__all__ = ["Spec", "main", "measured", "run", "splits"]


@dataclass(frozen=True)
class Spec:
    """What the tables are made from."""

    tables: tuple[str, ...] = tuple(TABLES)
    methods: tuple[str, ...] = (OURS, *PEERS)
    folds: int = 5
    first_folds: int = 5  # how many of them are run
    most_rows: int = 5000
    seed: int = 0
    label: str = OURS  # what rows of ours are called


def splits(y: np.ndarray, task: str, folds: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and test rows of each fold; classes have the same shares in all."""
    from sklearn.model_selection import KFold, StratifiedKFold

    kind: Any = StratifiedKFold if task == "classification" else KFold
    return list(kind(folds, shuffle=True, random_state=seed).split(np.empty((len(y), 1)), y))


def _classes(probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    p, y = torch.from_numpy(probs / probs.sum(1, keepdims=True)), torch.from_numpy(labels).long()
    return {
        "accuracy": metrics.accuracy(p, y),
        "log_loss": metrics.nll(p, y),
        "ece": metrics.calibration_error(p, y),
        "confidence": float(p.max(1).values.mean()),
    }


def _numbers(model: Any, x: Any, found: np.ndarray, y: np.ndarray, unit: float) -> dict[str, float]:
    error = float(np.mean((found - y) ** 2))
    row = {"rmse": error**0.5 / unit, "r2": 1.0 - error / float(np.var(y))}
    if hasattr(model, "interval"):
        for coverage in (0.5, 0.9):
            low, high = model.interval(x, coverage).T
            row[f"coverage_{round(100 * coverage)}"] = float(np.mean((low <= y) & (y <= high)))
            row[f"width_{round(100 * coverage)}"] = float(np.mean(high - low)) / unit
    return row


def measured(
    model: Any, task: str, x: Any, y: np.ndarray, training: np.ndarray, test: np.ndarray
) -> dict[str, Any]:
    """The measures of one method on one fold, and the seconds of its fit.

    RMSE and widths are in units of the standard deviation of the whole table's target.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence of peers, columns of ours
        began = time.perf_counter()
        model.fit(x.iloc[training], y[training])
        row: dict[str, Any] = {"seconds": time.perf_counter() - began}
        held = x.iloc[test]
        found = model.predict(held)
        if task == "classification":
            row |= _classes(found, y[test])
        else:
            row |= _numbers(model, held, found, y[test], float(np.std(y)))
    return row | (model.facts() if hasattr(model, "facts") else {})


def run(
    spec: Spec,
    study: Study,
    folder: Path | None = None,
    tell: Callable[[str], None] = lambda text: print(text, flush=True),
    **settings: Any,
) -> list[dict[str, Any]]:
    """The missing rows of these methods, tables and folds; all rows of the file."""
    path = study.folder / "rows.jsonl"
    done = {(r["table"], r["method"], r["fold"]) for r in read_rows(path)}
    for fold in range(spec.first_folds):
        for name in spec.tables:
            wanted = {spec.label if m == OURS else m: m for m in spec.methods}
            wanted = {k: m for k, m in wanted.items() if (name, k, fold) not in done}
            if not wanted:
                continue
            task = TABLES[name].task
            x, y = load(name, spec.most_rows, spec.seed, folder)
            training, test = splits(y, task, spec.folds, spec.seed)[fold]
            for label, method in wanted.items():
                model = make(method, task, spec.seed + fold, settings)
                if model is None:
                    continue
                row = {"table": name, "task": task, "method": label, "fold": fold, "rows": len(y)}
                row |= {"columns": x.shape[1], **measured(model, task, x, y, training, test)}
                study.append([row])
                score = row.get("log_loss", row.get("rmse"))
                tell(f"{fold}  {name:<16}{label:<22}{score:.4f}  {row['seconds']:.1f} s")
    return read_rows(path)


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies tabular``"""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--tables", nargs="+", default=list(Spec.tables), help="names of tables (default: all)"
    )
    options.add_argument(
        "--methods", nargs="+", default=["ours", "peers"], help="ours, peers, or names of peers"
    )
    options.add_argument(
        "--folds", type=int, default=Spec.folds, help="run the first of five folds (default 5)"
    )
    options.add_argument("--label", default=OURS, help="what rows of ours are called (default sparsebnn)")
    options.add_argument("--page", action="store_true", help="run nothing; write the page from the rows")
    options.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="folder with uci/wine-quality-red.npz"
    )
    given = arguments("tabular", "Real tables, next to the usual methods.", argv, [options])
    study = Study("tabular", given)
    torch.set_num_threads(1)
    spec = Spec(tuple(given.tables), known(given.methods), 5, given.folds, seed=given.seed, label=given.label)
    settings: dict[str, Any] = {}
    if given.quick:
        methods = tuple(m for m in spec.methods if m in (OURS, "linear", "random forest"))
        spec = Spec(("penguins", "car prices"), methods, 5, 1, 200, given.seed, given.label)
        settings = {"epochs": 3, "replicates": 2}
    rows = read_rows(study.folder / "rows.jsonl") if given.page else run(spec, study, given.data, **settings)
    print(body(rows))
    page = Path(given.out) / "docs" / "studies" / "tabular.md"
    if page.is_file() and not given.quick:
        fill_page(page, body(rows), "tabular")
        write_details(study.folder, details(rows))
    return 0
