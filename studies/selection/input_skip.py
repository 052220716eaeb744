"""Small input-skip networks on two tables: accuracy of the median model and its active weights.

Fixed random splits by seed: a fifth of the rows is tested on. ``--validate`` scores candidate settings on a
fifth of the training rows instead, and never looks at the test rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sparsebnn
from sparsebnn.nn import compact
from sparsebnn.selection import active_paths
from studies.runner import Study, arguments, count, fill_page, read_rows

__all__ = ["CHOSEN", "Candidate", "load", "main", "run", "split", "table"]

NAMES = ("wbc", "mice")
_LEFT_OUT = ("MouseID", "Genotype", "Treatment", "Behavior", "class")
_TITLES = {"wbc": "breast cancer (WBC)", "mice": "mice protein"}
# Medians of ten seeds of ISLaB's median models: score and active weights, LRT and FLOW (their result files).
PUBLISHED = {"wbc": ("96.5% / 4", "96.5% / 4.5"), "mice": ("99.07% / 140", "97.2% / 99")}


@dataclass(frozen=True)
class Candidate:
    """How to train: the hidden layers of an input-skip network and the settings of the recommended recipe."""

    hidden: tuple[int, ...]
    weights: int
    epochs: int
    temperature: float
    refit_factor: float
    inclusion_rate: float = 0.02
    learning_rate: float = 0.01
    batch_size: int = 100

    @property
    def name(self) -> str:
        hidden = "-".join(map(str, self.hidden)) or "none"
        return f"{hidden}, {self.weights} weights, {self.epochs} epochs, temperature {self.temperature:g}"


_MICE = Candidate((50,), 97, 600, 0.03, 10.0)
_WBC = Candidate((4,), 4, 200, 1.0, 1.0, inclusion_rate=0.05)
CHOSEN = {"wbc": _WBC, "mice": _MICE}
CANDIDATES = {
    "wbc": (
        _WBC,
        Candidate((), 4, 200, 1.0, 1.0, inclusion_rate=0.05),
        Candidate((4,), 4, 600, 1.0, 1.0, inclusion_rate=0.05),
        Candidate((10,), 4, 200, 0.03, 10.0, inclusion_rate=0.05),
        Candidate((10,), 4, 200, 0.3, 1.0, inclusion_rate=0.05),
    ),
    "mice": (
        _MICE,
        Candidate((20,), 95, 600, 0.03, 10.0),
        Candidate((20,), 95, 600, 0.1, 3.0),
        Candidate((20, 20), 95, 600, 0.03, 10.0),
    ),
}


@dataclass(frozen=True)
class Spec:
    data: tuple[str, ...] = NAMES
    seeds: int = 10
    chosen: dict[str, Candidate] = field(default_factory=lambda: dict(CHOSEN))


def load(name: str, path: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Columns and labels 0, 1, …; the mice come from a file."""
    if name == "wbc":
        from sklearn.datasets import load_breast_cancer

        return load_breast_cancer(return_X_y=True)
    import pandas as pd

    if path is None:
        raise SystemExit("The mice need a file: --mice Data_Cortex_Nuclear.csv (UCI, mice protein).")
    frame = pd.read_csv(path)
    labels = np.unique(frame["class"], return_inverse=True)[1]
    return frame.drop(columns=list(_LEFT_OUT)).to_numpy(dtype=np.float64), labels


def split(rows: int, seed: int, validate: bool) -> tuple[np.ndarray, np.ndarray]:
    """Training rows and the rows to score: a fifth of all, or of the training rows."""
    order = np.random.default_rng(seed).permutation(rows)
    scored, training = order[: rows // 5], order[rows // 5 :]
    if validate:
        scored, training = training[: len(training) // 5], training[len(training) // 5 :]
    return training, scored


def _standardized(x: np.ndarray, training: np.ndarray) -> Tensor:
    """By the training rows; a missing value becomes their average."""
    scaled = (x - np.nanmean(x[training], 0)) / np.nanstd(x[training], 0)
    return torch.from_numpy(np.nan_to_num(scaled)).float()


def run(x: np.ndarray, y: np.ndarray, how: Candidate, seed: int, validate: bool) -> dict[str, Any]:
    """Train one network; accuracy of its median model at the posterior means, and what is active in it."""
    training, scored = split(len(x), seed, validate)
    inputs, labels = _standardized(x, training), torch.from_numpy(y).long()
    two = int(labels.max()) == 1
    sizes = (x.shape[1], *how.hidden, 1 if two else int(labels.max()) + 1)
    total = sparsebnn.density(sparsebnn.mlp(sizes, input_skip=True)).total
    recipe = sparsebnn.recipe(
        "recommended",
        target_density=(how.weights + 0.01) / total,
        epochs=how.epochs,
        batch_size=how.batch_size,
        learning_rate=how.learning_rate,
        learning_rates={"inclusion_logit": how.inclusion_rate},
        temperature=how.temperature,
        refit_temperature_factor=how.refit_factor,
    )
    began = time.process_time()
    trained = sparsebnn.train(
        recipe.mlp(sizes, input_skip=True),
        (inputs[training], labels[training]),
        likelihood="bernoulli" if two else "categorical",
        settings=recipe.settings,
        seed=seed,
        mode="eager",
        device="cpu",
        progress=False,
    )
    small = compact(trained.network).network
    with torch.no_grad():
        outputs = small(inputs[scored])
    found = (outputs[:, 0] > 0).long() if two else outputs.argmax(1)
    paths = active_paths(trained.network)
    return {
        "accuracy": float((found == labels[scored]).float().mean()),
        "active": paths.n_weights,
        "inputs": int(paths.inputs.sum()),
        "mean_length": paths.mean_length,
        "cpu_seconds": time.process_time() - began,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The page's table: medians over seeds, with the smallest and largest accuracy."""
    lines = ["| data | seeds | accuracy | active weights | inputs | ISLaB, LRT | ISLaB, FLOW |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name in NAMES:
        own = [row for row in rows if row["data"] == name and not row["validate"]]
        own = [row for row in own if row["settings"] == CHOSEN[name].name]
        if own:
            scores = [row["accuracy"] for row in own]
            middle = f"{median(scores):.2%} ({min(scores):.2%} to {max(scores):.2%})"
            counts = [f"{median(row[key] for row in own):g}" for key in ("active", "inputs")]
            cells = [_TITLES[name], str(len(own)), middle, *counts, *PUBLISHED[name]]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def choices(rows: Sequence[dict[str, Any]]) -> str:
    """What the candidates reached on validation rows."""
    lines = [
        "| data | settings | splits | accuracy on validation rows | active weights |",
        "|---|---|---|---|---|",
    ]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["validate"]:
            found.setdefault((row["data"], row["settings"]), []).append(row)
    for (name, settings), own in found.items():
        mean = sum(row["accuracy"] for row in own) / len(own)
        active = median(row["active"] for row in own)
        lines.append(f"| {_TITLES[name]} | {settings} | {len(own)} | {mean:.2%} | {active:g} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, append its rows, and renew the page."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--mice", type=Path, help="the UCI file of mice protein expression")
    options.add_argument("--data", nargs="+", choices=NAMES, default=list(NAMES))
    options.add_argument("--seeds", type=count, default=10, help="splits and starts (default 10)")
    options.add_argument("--validate", action="store_true", help="score the candidates on validation rows")
    claim = "Small input-skip networks: accuracy of the median model and its active weights."
    study = Study("input_skip", arguments("input_skip", claim, argv, [options]))
    given = study.given
    path = study.folder / "rows.jsonl"
    for name in given.data:
        x, y = load(name, given.mice)
        for how in CANDIDATES[name] if given.validate else (CHOSEN[name],):
            if given.quick:
                how = Candidate(how.hidden, how.weights, 20, how.temperature, how.refit_factor)
            done = {(r["data"], r["settings"], r["seed"], r["validate"]) for r in read_rows(path)}
            for seed in range(given.seed, given.seed + given.seeds):
                key = {"data": name, "settings": how.name, "seed": seed, "validate": given.validate}
                if tuple(key.values()) not in done:
                    study.append([key | run(x, y, how, seed, given.validate)])
    rows = read_rows(path)
    print(choices(rows) if given.validate else table(rows))
    page = Path(given.out) / "docs" / "studies" / "input_skip.md"
    if page.exists():
        fill_page(page, table(rows))
        fill_page(page, choices(rows), "choices")


if __name__ == "__main__":
    main()
