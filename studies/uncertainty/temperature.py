r"""Which temperature? Chosen by cross-validation on training rows alone.

The temperature T multiplies the KL; 1 is the Bayes posterior. With little data the bound's optimum at
T = 1 misclassifies an eighth of its own training rows, so other temperatures were tried. The rule, fixed
before any of them had been used in the study:

- the candidates 1, 0.3, 0.1 and 0.03, the same for LBBNN-LRT, LBBNN-FLOW and the dense BNN, with the rates
  and steps each has at T = 1;
- the first four training sets of 10 samples per class, each in five folds, every class alike in each; a
  network is trained on four folds and asked about the fifth, with 10 draws;
- of each method, the temperature with the highest mean log predictive density,

  .. math:: \frac1n \sum_i \log \frac1{10} \sum_{d=1}^{10} p(y_i \mid x_i, w_d), \qquad
            w_d \sim q_T(w \mid \text{the other folds}),

  over all rows of all four sets. If the lowest candidate is the best, a third of it is tried too, once
  (``--further`` times). No test rows are drawn, and the chosen temperature serves every size of the study.

Run: ``python -m studies uncertainty_temperature``.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsebnn import metrics
from sparsebnn.app.provenance import rounded
from sparsebnn.checks import check_count
from studies.data.clusters import Scaling, five_clusters
from studies.runner import Study, arguments, fill_page, filled, in_parallel
from studies.uncertainty.measures import interval
from studies.uncertainty.methods import BAYESIAN, Method, fit, posterior

__all__ = ["Spec", "best", "folds", "held_out", "main", "page", "run", "table"]


@dataclass(frozen=True)
class Spec:
    """Candidates, data and folds. ``steps`` replaces every method's own number of steps where given."""

    methods: tuple[str, ...] = BAYESIAN
    temperatures: tuple[float, ...] = (1.0, 0.3, 0.1, 0.03)
    per_class: int = 10
    data_sets: int = 4
    n_folds: int = 5
    hidden: int = 1000
    n_draws: int = 10
    batch_size: int = 50
    steps: int | None = None
    further: int = 1
    seed: int = 0


def folds(labels: Tensor, n_folds: int, seed: int) -> Tensor:
    """The fold of each row, from 0; every class is spread over the folds as evenly as it goes.

    >>> folds(torch.tensor([0, 0, 1, 1, 0, 1]), 3, seed=0).bincount()
    tensor([2, 2, 2])
    """
    generator = torch.Generator().manual_seed(seed)
    of_row = torch.empty_like(labels)
    for label in labels.unique():
        rows = (labels == label).nonzero().flatten()
        of_row[rows[torch.randperm(len(rows), generator=generator)]] = torch.arange(len(rows)) % n_folds
    return of_row


def held_out(method: Method, inputs: Tensor, labels: Tensor, of_row: Tensor, spec: Spec) -> list[float]:
    """Mean log predictive density of rows that the network has not seen; one number per data set.

    ``inputs`` is ``(data sets, rows, 2)``, ``of_row`` the fold of each row, ``(data sets, rows)``. All
    data sets and folds train as one program.
    """
    cases = [(k, of_row[k] == fold) for k in range(len(inputs)) for fold in range(spec.n_folds)]
    kept = torch.stack([inputs[k][~away] for k, away in cases])
    # Classes stand one after the other and lose equally many rows: what is left has the same labels.
    left = labels[~cases[0][1]]
    predictors, _ = fit(method, kept, left, spec.hidden, spec.batch_size, spec.seed, spec.steps)
    sums = torch.zeros(len(inputs), dtype=torch.float64)
    for (k, away), networks in zip(cases, predictors):
        probs = method.predict(networks, inputs[k][away], spec.n_draws, spec.seed).probs
        sums[k] -= metrics.nll(probs, labels[away]) * int(away.sum())
    return (sums / len(labels)).tolist()


def _rows(spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """Training rows of the study's first data sets, their labels, and the folds; no other rows are drawn."""
    clusters = five_clusters()
    seeds = [2 * (1000 * (spec.seed + k) + spec.per_class) for k in range(spec.data_sets)]
    drawn = [clusters.sample(spec.per_class, seed) for seed in seeds]
    labels = drawn[0][1]
    of_row = torch.stack([folds(labels, spec.n_folds, seed) for seed in seeds])
    return torch.stack([Scaling.of(x).apply(x) for x, _ in drawn]), labels, of_row


def _name(key: str) -> str:
    return posterior(key).label.split(",")[0]


def _score(key: str, temperature: float, spec: Spec) -> dict[str, Any]:
    """One method at one temperature."""
    method = replace(posterior(key), temperature=temperature)
    found = held_out(method, *_rows(spec), spec)
    mean = sum(found) / len(found)
    print(f"{_name(key)} at temperature {temperature:g}: {mean:.4f} nats per row", flush=True)
    return {"method": key, "temperature": temperature, "log_density": found}


def run(spec: Spec, workers: int = 1) -> list[dict[str, Any]]:
    """A row per method and temperature; methods whose best is the lowest go lower, ``further`` times."""
    pairs = [(key, temperature) for key in spec.methods for temperature in spec.temperatures]
    # The longest first, so that no process is left alone with one.
    pairs.sort(key=lambda pair: pair[0] != "flow")
    rows: list[dict[str, Any]] = []
    for _ in range(1 + spec.further):
        rows += in_parallel([functools.partial(_score, *pair, spec) for pair in pairs], workers)
        lowest = {key: min(r["temperature"] for r in rows if r["method"] == key) for key in spec.methods}
        at_the_edge = [key for key, low in lowest.items() if best(rows)[key] == low]
        pairs = [(key, float(f"{lowest[key] / 3.0:.1g}")) for key in at_the_edge]
    rows.sort(key=lambda row: (spec.methods.index(row["method"]), -row["temperature"]))
    return rows


def _mean(row: Mapping[str, Any]) -> float:
    return float(sum(row["log_density"]) / len(row["log_density"]))


def best(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of each method, the temperature with the highest mean log density."""
    keys = dict.fromkeys(row["method"] for row in rows)
    tops = {key: max((row for row in rows if row["method"] == key), key=_mean) for key in keys}
    return {key: float(row["temperature"]) for key, row in tops.items()}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Log density by method and temperature as Markdown, the best in bold; ± over data sets."""
    temperatures = sorted({row["temperature"] for row in rows}, reverse=True)
    lines = ["| method | " + " | ".join(f"T = {t:g}" for t in temperatures) + " |"]
    lines.append("|---" + "|---:" * len(temperatures) + "|")
    chosen = best(rows)
    for key in chosen:
        cells = [_name(key)]
        own = {row["temperature"]: row["log_density"] for row in rows if row["method"] == key}
        for temperature in temperatures:
            if temperature not in own:
                cells.append("–")
                continue
            found = interval(own[temperature])
            entry = f"{found['mean']:.3f} ± {found['mean'] - found['low']:.3f}"
            cells.append(f"**{entry}**" if temperature == chosen[key] else entry)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(text: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The page with its table renewed."""
    return filled(text, table(rows), "temperature")


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies uncertainty_temperature``"""
    claim = "The temperature of the study of uncertainty, by cross-validation."
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--workers", type=int, default=2, help="processes of one thread each (default 2)")
    words = "how often a third of the lowest is tried, where the lowest is the best (default 1)"
    options.add_argument("--further", type=int, default=1, help=words)
    given = arguments("uncertainty_temperature", claim, argv, [options])
    for name in ("workers", "further"):
        check_count(getattr(given, name), name, "uncertainty_temperature")
    spec = Spec(seed=given.seed, further=given.further)
    if given.quick:
        spec = replace(spec, methods=("lrt",), data_sets=2, hidden=12, steps=5)
    torch.set_num_threads(1)
    study = Study("uncertainty_temperature", given)
    rows = rounded(run(spec, given.workers))
    seeds = range(spec.seed, spec.seed + spec.data_sets)
    print(f"Wrote {study.save(spec, seeds, workers=given.workers, chosen=best(rows), rows=rows)}.")
    print(table(rows))
    text = Path(given.out) / "docs" / "studies" / "uncertainty.md"
    if text.is_file():
        fill_page(text, table(rows), "temperature")
    return 0
