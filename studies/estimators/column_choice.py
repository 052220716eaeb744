"""Which columns the estimators choose with their defaults, where it is known which columns matter.

Simulated: ten real columns, of effects 0.4 to 1.5, one product of two and one sine among them, and forty of
noise; 200, 1,000 and 10,000 rows. And breast cancer with twenty columns of noise added, where "real" means
given with the data, whether needed or not. Precision is the share of real columns among those chosen (1
where nothing is chosen), recall the share of the real ones that is chosen. Beside it the rule "in use by
most replicates' median models", which a tempered posterior makes generous.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsebnn.app.provenance import rounded
from studies.runner import Study, arguments, filled

__all__ = ["Spec", "main", "page", "run", "simulated", "table"]

_REAL, _NOISE = 10, 40
TITLES = {"classification": "classes", "regression": "numbers"}


@dataclass(frozen=True)
class Spec:
    """``sizes`` are the simulated numbers of rows; every case is fitted on ``repeats`` data sets."""

    sizes: tuple[int, ...] = (200, 1000, 10_000)
    repeats: int = 5
    seed: int = 0
    breast_cancer: bool = True


def simulated(task: str, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets, and which columns matter."""
    random = np.random.RandomState(seed)
    x = random.randn(rows, _REAL + _NOISE)
    effects = np.linspace(0.4, 1.5, _REAL) * np.where(np.arange(_REAL) % 2, 1.0, -1.0)
    signal = x[:, :_REAL] @ effects + x[:, 0] * x[:, 1] + np.sin(2.0 * x[:, 2])
    signal /= np.sqrt(effects @ effects + 1.5)
    order = random.permutation(x.shape[1])
    real = (np.arange(x.shape[1]) < _REAL)[order]
    if task == "classification":
        return x[:, order], 2.0 * signal + random.logistic(size=rows) > 0.0, real
    return x[:, order], signal + random.randn(rows), real


def _breast_cancer(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError as error:
        raise ImportError("This study needs 'scikit-learn': pip install 'sparsebnn[sklearn]'") from error
    x, y = load_breast_cancer(return_X_y=True)
    noise = np.random.RandomState(seed).randn(len(y), 20)
    return np.column_stack([x, noise]), y, np.arange(x.shape[1] + 20) < x.shape[1]


def scores(chosen: np.ndarray, real: np.ndarray) -> dict[str, float]:
    """Precision, recall and number of the chosen columns.

    >>> scores(np.array([True, True, False]), np.array([True, False, False]))
    {'precision': 0.5, 'recall': 1.0, 'chosen': 2.0}
    """
    hits, count = int((chosen & real).sum()), int(chosen.sum())
    return {
        "precision": hits / count if count else 1.0,
        "recall": hits / int(real.sum()),
        "chosen": float(count),
    }


def run(spec: Spec) -> list[dict[str, Any]]:
    """A row per case and data set, with both rules."""
    from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor

    makers: dict[str, Any] = {"classification": SparseBNNClassifier, "regression": SparseBNNRegressor}
    cases: list[tuple[str, str, int]] = [("simulated", task, n) for task in makers for n in spec.sizes]
    cases += [("breast cancer", "classification", 0)] if spec.breast_cancer else []
    found = []
    for name, task, rows in cases:
        for seed in range(spec.seed, spec.seed + spec.repeats):
            x, y, real = simulated(task, rows, seed) if rows else _breast_cancer(seed)
            model = makers[task](random_state=seed, device="cpu").fit(x, y)
            found.append(
                {
                    "data": name,
                    "task": task,
                    "rows": len(y),
                    "seed": seed,
                    "seconds": model.seconds_,
                    "median_models": scores(model.stability_ > 0.5, real),
                    "used": scores(model.used_, real),
                }
            )
        last = [row for row in found if (row["data"], row["task"], row["rows"]) == (name, task, len(y))]
        print(_line(last), flush=True)
    return found


def _line(rows: Sequence[dict[str, Any]]) -> str:
    """One case as a line of the table."""
    first = rows[0]
    cells = [f"{first['data']}, {TITLES[first['task']]}", f"{first['rows']:,}"]
    for rule in ("median_models", "used"):
        means = {name: float(np.mean([row[rule][name] for row in rows])) for name in first[rule]}
        cells += [f"{means['precision']:.2f}", f"{means['recall']:.2f}", f"{means['chosen']:.1f}"]
    return "| " + " | ".join(cells) + " |"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Means over data sets, as Markdown."""
    lines = [
        "| data | rows | median models: precision | recall | kept | in use: precision | recall | kept |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case in dict.fromkeys((row["data"], row["task"], row["rows"]) for row in rows):
        lines.append(_line([row for row in rows if (row["data"], row["task"], row["rows"]) == case]))
    return "\n".join(lines)


def page(text: str, rows: Sequence[dict[str, Any]]) -> str:
    """The page with its table renewed."""
    return filled(text, table(rows), "columns")


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies column_choice``"""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--repeats", type=int, default=Spec.repeats, help="data sets per case (default 5)")
    given = arguments("column_choice", "Columns that the estimators choose.", argv, [options])
    spec = Spec(repeats=given.repeats, seed=given.seed)
    if given.quick:
        spec = Spec((200,), repeats=1, seed=given.seed, breast_cancer=False)
    study = Study("column_choice", given)
    rows = run(spec)
    print(f"Wrote {study.save(spec, range(spec.seed, spec.seed + spec.repeats), rows=rows)}.")
    text = Path(given.out) / "docs" / "studies" / "defaults.md"
    if text.is_file() and not given.quick:
        text.write_text(page(text.read_text(encoding="utf-8"), rounded(rows)), encoding="utf-8")
    return 0
