"""What the estimators' ``target_density`` keeps, and what it costs: two of scikit-learn's bundled data sets.

Five folds, shuffled; default settings but for the density, nothing tuned.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsebnn.app.provenance import rounded
from studies.runner import Study, arguments, fill_page

__all__ = ["Spec", "main", "run", "table"]


@dataclass(frozen=True)
class Spec:
    """Every data set with every target (none: as many weights as are left), in ``folds`` folds."""

    data: tuple[str, ...] = ("breast cancer", "diabetes")
    targets: tuple[float | None, ...] = (None, 0.1, 0.02)
    folds: int = 5
    epochs: int | None = None
    seed: int = 0


def _fold(data: str, target: float | None, spec: Spec, fold: int) -> dict[str, Any]:
    try:
        from sklearn import datasets, metrics
        from sklearn.model_selection import KFold, StratifiedKFold
    except ImportError as error:
        raise ImportError("This study needs 'scikit-learn': pip install 'sparsebnn[sklearn]'") from error
    from sparsebnn import SparseBNNClassifier, SparseBNNRegressor

    classes = data == "breast cancer"
    x, y = (datasets.load_breast_cancer if classes else datasets.load_diabetes)(return_X_y=True)
    splits = (StratifiedKFold if classes else KFold)(spec.folds, shuffle=True, random_state=spec.seed)
    train, test = list(splits.split(x, y))[fold]
    kind = SparseBNNClassifier if classes else SparseBNNRegressor
    options = {} if spec.epochs is None else {"epochs": spec.epochs}
    model = kind(target_density=target, random_state=spec.seed, **options).fit(x[train], y[train])
    row = {"data": data, "target": target, "fold": fold, "density": float(model.density_)}
    row["score"] = float(model.score(x[test], y[test]))
    if classes:
        row["log_loss"] = float(metrics.log_loss(y[test], model.predict_proba(x[test])))
    return row


def run(spec: Spec) -> list[dict[str, Any]]:
    """A row per data set, target and fold."""
    found = []
    for data in spec.data:
        for target in spec.targets:
            rows = [_fold(data, target, spec, fold) for fold in range(spec.folds)]
            print(_line(rows), flush=True)
            found += rows
    return found


def _line(rows: Sequence[dict[str, Any]]) -> str:
    first = rows[0]
    means = {name: np.mean([row[name] for row in rows]) for name in ("density", "score")}
    cells = [first["data"], "–" if first["target"] is None else f"{first['target']:g}"]
    cells += [f"{means['density']:.3f}", f"{means['score']:.3f}"]
    cells.append(f"{np.mean([row['log_loss'] for row in rows]):.3f}" if "log_loss" in first else "")
    return "| " + " | ".join(cells) + " |"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Means over folds, as Markdown."""
    lines = [
        "| data | asked for | density | accuracy (diabetes: R²) | log-loss |",
        "|---|---:|---:|---:|---:|",
    ]
    for case in dict.fromkeys((row["data"], row["target"]) for row in rows):
        lines.append(_line([row for row in rows if (row["data"], row["target"]) == case]))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies density_choice``"""
    options = argparse.ArgumentParser(add_help=False)
    given = arguments("density_choice", "Densities that the estimators are asked for.", argv, [options])
    spec = Spec(seed=given.seed)
    if given.quick:
        spec = Spec(("breast cancer",), (0.1,), folds=2, epochs=5, seed=given.seed)
    study = Study("density_choice", given)
    rows = run(spec)
    print(f"Wrote {study.save(spec, [spec.seed], rows=rows)}.")
    page = Path(given.out) / "docs" / "studies" / "defaults.md"
    if page.is_file() and not given.quick:
        fill_page(page, table(rounded(rows)), "density")
    return 0
