"""Small input-skip networks on three tables: how well the median model predicts, and its active weights.

Fixed random splits by seed: a fifth of the rows is tested on. Of several starts, the median model with the
highest likelihood of the training rows counts. ``--validate`` scores candidate settings on a fifth of the
training rows instead, and never looks at the test rows.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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

NAMES = ("wbc", "mice", "abalone")
_LEFT_OUT = ("MouseID", "Genotype", "Treatment", "Behavior", "class")
_TITLES = {"wbc": "breast cancer (WBC)", "mice": "mice protein", "abalone": "abalone, RMSE"}
# Medians of ten seeds of ISLaB's median models: score and active weights, LRT and FLOW (their result files).
PUBLISHED = {
    "wbc": ("96.5% / 4", "96.5% / 4.5"),
    "mice": ("99.07% / 140", "97.2% / 99"),
    "abalone": ("2.078 / 24.5", "2.118 / 11"),
}


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
    activation: str = "relu"
    starts: int = 1
    farthest: float = math.inf  # from the average, in standard deviations

    @property
    def name(self) -> str:
        hidden = "-".join(map(str, self.hidden)) or "none"
        name = f"{hidden}, {self.weights} weights, {self.epochs} epochs, temperature {self.temperature:g}"
        name += "" if self.activation == "relu" else f", {self.activation}"
        name += "" if self.learning_rate == 0.01 else f", rate {self.learning_rate:g}"
        return name + (f", best of {self.starts} starts" if self.starts > 1 else "")


_MICE = Candidate((20,), 99, 600, 0.03, 10.0, 0.06, 0.03, activation="sigmoid")
_WBC = Candidate((4,), 4, 200, 1.0, 1.0, inclusion_rate=0.05)
_ABALONE = Candidate((10,), 24, 150, 0.1, 1.0, starts=3, farthest=5.0)
CHOSEN = {"wbc": _WBC, "mice": _MICE, "abalone": _ABALONE}
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
        replace(_MICE, hidden=(50,)),
        replace(_MICE, temperature=0.1),
        replace(_MICE, activation="relu"),
    ),
    "abalone": (
        _ABALONE,
        replace(_ABALONE, hidden=(20,)),
        replace(_ABALONE, epochs=300),
        replace(_ABALONE, temperature=0.03, refit_factor=10.0),
        replace(_ABALONE, starts=1),
    ),
}


@dataclass(frozen=True)
class Spec:
    data: tuple[str, ...] = NAMES
    seeds: int = 10
    chosen: dict[str, Candidate] = field(default_factory=lambda: dict(CHOSEN))


def load(name: str, path: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Columns, and labels 0, 1, … or numbers; only breast cancer comes without a file."""
    if name == "wbc":
        from sklearn.datasets import load_breast_cancer

        return load_breast_cancer(return_X_y=True)
    import pandas as pd

    if path is None:
        raise SystemExit(f"{_TITLES[name]} needs the file of UCI: --{name} FILE")
    if name == "abalone":
        frame = pd.read_csv(path, header=None)
        sexes = [(frame[0] == sex).to_numpy(dtype=np.float64) for sex in "MFI"]
        return np.column_stack([*sexes, frame.loc[:, 1:7]]), frame[8].to_numpy(dtype=np.float64)
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


def _standardized(x: np.ndarray, training: np.ndarray, farthest: float) -> Tensor:
    """By the training rows; a missing value becomes their average."""
    scaled = (x - np.nanmean(x[training], 0)) / np.nanstd(x[training], 0)
    return torch.from_numpy(np.nan_to_num(scaled).clip(-farthest, farthest)).float()


def run(x: np.ndarray, y: np.ndarray, how: Candidate, seed: int, validate: bool) -> dict[str, Any]:
    """Train; the score of the median model at its posterior means, and what is active in it.

    The score is the accuracy for labels, the RMSE for numbers.
    """
    training, scored = split(len(x), seed, validate)
    inputs, numbers = _standardized(x, training, how.farthest), y.dtype.kind == "f"
    middle, spread = (y[training].mean(), y[training].std()) if numbers else (0.0, 1.0)
    targets = torch.from_numpy((y - middle) / spread).float() if numbers else torch.from_numpy(y).long()
    outputs = 1 if numbers or y.max() == 1 else int(y.max()) + 1
    kind = "gaussian" if numbers else "bernoulli" if outputs == 1 else "categorical"
    sizes = (x.shape[1], *how.hidden, outputs)
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
        recipe.mlp(sizes, input_skip=True, activation=how.activation),
        (inputs[training], targets[training]),
        likelihood=kind,
        settings=recipe.settings,
        replicates=[seed + 1000 * start for start in range(how.starts)],
        device="cpu",
        progress=False,
    )
    found = []
    for network, form in zip(trained.networks, trained.likelihoods):
        with torch.no_grad():
            made = compact(network).network(inputs)
            nll = float(form.nll(made[training], form.prepare(targets[training])).sum())
        found.append((nll, network, made))
    _, network, made = min(found, key=lambda each: each[0])
    paths = active_paths(network)
    return {
        **_score(made[scored], y[scored], spread, middle),
        "active": paths.n_weights,
        "inputs": int(paths.inputs.sum()),
        "mean_length": paths.mean_length,
        "cpu_seconds": time.process_time() - began,
    }


def _score(outputs: Tensor, y: np.ndarray, spread: float, middle: float) -> dict[str, float]:
    if y.dtype.kind == "f":
        return {"rmse": float(np.sqrt(((outputs[:, 0].numpy() * spread + middle - y) ** 2).mean()))}
    found = outputs.argmax(1) if outputs.shape[1] > 1 else outputs[:, 0] > 0
    return {"accuracy": float((found.numpy() == y).mean())}


def _shown(scores: Sequence[float], name: str) -> list[str]:
    """Scores as the tables show them."""
    return [f"{score:.3f}" if name == "abalone" else f"{score:.2%}" for score in scores]


def _scores(rows: Sequence[dict[str, Any]]) -> list[float]:
    return [row["rmse"] if "rmse" in row else row["accuracy"] for row in rows]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The page's table: medians over seeds, with the smallest and largest score."""
    lines = ["| data | seeds | accuracy | active weights | inputs | ISLaB, LRT | ISLaB, FLOW |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name in NAMES:
        own = [row for row in rows if row["data"] == name and not row["validate"]]
        own = [row for row in own if row["settings"] == CHOSEN[name].name]
        if own:
            scores = _scores(own)
            middle, low, high = _shown([median(scores), min(scores), max(scores)], name)
            middle += f" ({low} to {high})"
            counts = [f"{median(row[key] for row in own):g}" for key in ("active", "inputs")]
            cells = [_TITLES[name], str(len(own)), middle, *counts, *PUBLISHED[name]]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def choices(rows: Sequence[dict[str, Any]]) -> str:
    """What the candidates reached on validation rows."""
    lines = [
        "| data | settings | splits | mean accuracy on validation rows | active weights |",
        "|---|---|---|---|---|",
    ]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["validate"]:
            found.setdefault((row["data"], row["settings"]), []).append(row)
    for (name, settings), own in found.items():
        (mean,) = _shown([sum(_scores(own)) / len(own)], name)
        active = median(row["active"] for row in own)
        lines.append(f"| {_TITLES[name]} | {settings} | {len(own)} | {mean} | {active:g} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, append its rows, and renew the page."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--mice", type=Path, help="the UCI file of mice protein expression")
    options.add_argument("--abalone", type=Path, help="the UCI file abalone.data")
    options.add_argument("--data", nargs="+", choices=NAMES, default=list(NAMES))
    options.add_argument("--seeds", type=count, default=10, help="splits and starts (default 10)")
    options.add_argument("--validate", action="store_true", help="score the candidates on validation rows")
    claim = "Small input-skip networks: the score of the median model and its active weights."
    study = Study("input_skip", arguments("input_skip", claim, argv, [options]))
    given = study.given
    path = study.folder / "rows.jsonl"
    lacking = [name for name in given.data if name != "wbc" and vars(given)[name] is None]
    for name in lacking:
        print(f"{_TITLES[name]} is left out: it needs the file of UCI (--{name} FILE).")
    for name in (name for name in given.data if name not in lacking):
        x, y = load(name, vars(given).get(name))
        for how in CANDIDATES[name] if given.validate else (CHOSEN[name],):
            if given.quick:
                how = replace(how, epochs=20, starts=1)
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
