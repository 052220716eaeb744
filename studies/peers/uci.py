"""UCI regression on the field's fixed splits: RMSE, log-likelihood and coverage of 90% intervals.

Ours with its defaults, a deep ensemble of five small networks with Gaussian outputs, and gradient boosting
with quantiles are run here; MC dropout's figures are published ones (Gal and Ghahramani, 2016, with the grid
search).
"""

from __future__ import annotations

import argparse
import math
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
from studies.runner import Study, arguments, count, fill_page, read_rows

__all__ = ["Spec", "main", "table"]

OURS = "sparsebnn"
DATA = ("yacht", "bostonHousing", "energy", "concrete", "wine-quality-red", "kin8nm", "power-plant",
        "naval-propulsion-plant", "protein-tertiary-structure")  # fmt: skip
# MC dropout: RMSE and log-likelihood. None: not comparable in the published precision.
PUBLISHED: dict[str, tuple[float | None, float]] = {
    "bostonHousing": (2.90, -2.40),
    "concrete": (4.82, -2.93),
    "energy": (0.54, -1.21),
    "kin8nm": (0.08, 1.14),
    "naval-propulsion-plant": (None, 4.45),
    "power-plant": (4.01, -2.80),
    "protein-tertiary-structure": (4.27, -2.87),
    "wine-quality-red": (0.62, -0.93),
    "yacht": (0.67, -1.25),
}
_NORMAL_90 = 1.6448536269514722


@dataclass(frozen=True)
class Spec:
    """What the table is made from; at most ``rows`` training rows are used."""

    data: tuple[str, ...] = DATA
    splits: int = 2
    rows: int = 10_000
    seed: int = 0


@dataclass(frozen=True)
class Prediction:
    """Means, the log density of the truth, and the ends of the 90% intervals, in units of the target."""

    mean: np.ndarray
    log_density: np.ndarray
    low: np.ndarray
    high: np.ndarray


def _mixture_log_density(y: np.ndarray, means: np.ndarray, stds: np.ndarray) -> np.ndarray:
    """Log of an equal mixture of Gaussians; means and stds are ``(draws, rows)``."""
    each = -0.5 * ((y - means) / stds) ** 2 - np.log(stds) - 0.5 * math.log(2.0 * math.pi)
    top = each.max(0)
    return top + np.log(np.exp(each - top).mean(0))


def ours(x: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray, seed: int) -> Prediction:
    from sparsebnn.estimators import SparseBNNRegressor

    model = SparseBNNRegressor(random_state=seed, device="cpu").fit(x, y)
    parts = [model._ensemble.means_and_stds(outputs) for _, outputs in model._draws(new, "average")]
    means, stds = (torch.cat([p[i] for p in parts], dim=1)[..., 0].numpy() for i in (0, 1))
    means, stds = means * model._y_std[0] + model._y_mean[0], stds * model._y_std[0]
    low, high = model.predict_interval(new, 0.9).T
    return Prediction(means.mean(0), _mixture_log_density(truth, means, stds), low, high)


def deep_ensemble(x: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray, seed: int) -> Prediction:
    """Five networks of 50 hidden units with a mean and a std as outputs, 40 epochs of batches of 32."""
    center, scale = x.mean(0), x.std(0) + 1e-12
    middle, spread = y.mean(), y.std()
    inputs = torch.from_numpy((x - center) / scale).float()
    targets = torch.from_numpy((y - middle) / spread).float()
    test = torch.from_numpy((new - center) / scale).float()
    means, stds = [], []
    for member in range(5):
        torch.manual_seed(1000 * seed + member)
        net = nn.Sequential(nn.Linear(x.shape[1], 50), nn.ReLU(), nn.Linear(50, 2))
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-5)
        for _ in range(40):
            for rows in torch.randperm(len(inputs)).split(32):
                mean, raw = net(inputs[rows]).T
                std = nn.functional.softplus(raw) + 1e-3
                loss = (0.5 * ((targets[rows] - mean) / std) ** 2 + torch.log(std)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            mean, raw = net(test).T
            means.append(mean.numpy() * spread + middle)
            stds.append((nn.functional.softplus(raw) + 1e-3).numpy() * spread)
    m, s = np.stack(means), np.stack(stds)
    center, total = m.mean(0), np.sqrt(m.var(0) + (s**2).mean(0))
    log_density = _mixture_log_density(truth, m, s)
    return Prediction(center, log_density, center - _NORMAL_90 * total, center + _NORMAL_90 * total)


def boosting(x: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray, seed: int) -> Prediction:
    """Means from squared errors; intervals from two quantiles, whose width sets the std of the density."""
    from sklearn.ensemble import HistGradientBoostingRegressor as Boosting

    mean = Boosting(random_state=seed).fit(x, y).predict(new)
    low, high = (
        Boosting(loss="quantile", quantile=q, random_state=seed).fit(x, y).predict(new) for q in (0.05, 0.95)
    )
    std = np.maximum(np.abs(high - low) / (2.0 * _NORMAL_90), 1e-3 * y.std())
    return Prediction(mean, _mixture_log_density(truth, mean[None], std[None]), low, high)


METHODS: dict[str, Callable[..., Prediction]] = {
    OURS: ours,
    "deep ensemble": deep_ensemble,
    "gradient boosting": boosting,
}


def load(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    path = folder / "uci" / f"{name}.npz"
    if not path.is_file():
        raise invalid(
            "data", "uci", f"a folder with uci/{name}.npz", repr(str(folder)), "Pass --data FOLDER."
        )
    with np.load(path) as found:
        return found["X"], found["y"], found["test"]


def run(spec: Spec, study: Study, folder: Path, tell: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """All methods on all data sets and splits; rows that are there already are kept."""
    path = study.folder / "rows.jsonl"
    done = {(r["data"], r["method"], r["split"]) for r in read_rows(path)}
    for name in spec.data:
        x, y, tests = load(name, folder)
        for split in range(min(spec.splits, len(tests))):
            test = tests[split]
            training = np.setdiff1d(np.arange(len(x)), test)
            training = np.random.RandomState(spec.seed).permutation(training)[: spec.rows]
            for method, fit in METHODS.items():
                if (name, method, split) in done:
                    continue
                began = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = fit(x[training], y[training], x[test], y[test], spec.seed + split)
                row = {
                    "data": name, "method": method, "split": split, "rows": len(training),
                    "rmse": float(np.sqrt(((found.mean - y[test]) ** 2).mean())),
                    "log_likelihood": float(found.log_density.mean()),
                    "coverage": float(((found.low <= y[test]) & (y[test] <= found.high)).mean()),
                    "seconds": time.perf_counter() - began,
                }  # fmt: skip
                study.append([row])
                tell(f"{name:<28}{method:<20}{split}  {row['rmse']:.3f}  {row['log_likelihood']:.3f}")
    return read_rows(path)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Means over splits with standard errors, next to MC dropout's published figures."""
    lines = [
        "| data | method | RMSE | log-likelihood | coverage of 90% | seconds |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for name in dict.fromkeys(row["data"] for row in rows):
        for method in dict.fromkeys(row["method"] for row in rows if row["data"] == name):
            own = [r for r in rows if r["data"] == name and r["method"] == method]
            cells = [name, method]
            for key in ("rmse", "log_likelihood", "coverage"):
                values = [r[key] for r in own]
                error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
                cells.append(f"{np.mean(values):.3g} ± {error:.2g}")
            lines.append("| " + " | ".join([*cells, f"{np.mean([r['seconds'] for r in own]):.0f}"]) + " |")
        rmse, log_likelihood = PUBLISHED[name]
        shown = "" if rmse is None else f"{rmse:g}"
        lines.append(f"| {name} | MC dropout, published | {shown} | {log_likelihood:g} | | |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies uci``"""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with uci/")
    options.add_argument("--splits", type=count, default=2, help="fixed splits of each data set (default 2)")
    given = arguments("uci", "UCI regression on fixed splits.", argv, [options])
    study = Study("uci", given)
    spec = Spec(splits=given.splits, seed=given.seed)
    if given.quick:
        spec = Spec(("yacht",), splits=1, rows=100, seed=given.seed)
    rows = run(spec, study, given.data)
    print(table(rows))
    page = Path(given.out) / "docs" / "studies" / "uci.md"
    if page.is_file() and not given.quick:
        fill_page(page, table(rows), "uci")
    return 0
