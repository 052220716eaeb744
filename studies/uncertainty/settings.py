"""How the settings of the study of uncertainty were chosen: by the training objective, on nothing else.

Every candidate is trained on the first data sets of the smallest size; the bound (for dropout and the
deterministic network the likelihood) is averaged over the last fiftieth of training. No test rows are
used. The temperature multiplies the KL, and bounds of different temperatures cannot be compared: it is
chosen by cross-validation instead (``uncertainty_temperature``).

The paper does not say how wide the slab is in this study. That the bound cannot choose it either is shown
with a few widths of LBBNN-LRT: narrower slabs have ever higher bounds, up to where nothing is learned.

Run: ``python -m studies uncertainty_settings``.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsebnn import metrics
from sparsebnn.app.provenance import rounded
from sparsebnn.checks import check_count
from sparsebnn.init import Initial, Normal, Uniform
from sparsebnn.nn.layers import Linear
from sparsebnn.posteriors.priors import SpikeSlabPrior
from studies.runner import Study, arguments, fill_page, filled, in_parallel
from studies.uncertainty.command import Spec as StudySpec
from studies.uncertainty.command import problems
from studies.uncertainty.methods import BAYESIAN, CLASSES, METHODS, Method, fit, posterior

__all__ = ["Candidate", "Slabs", "Spec", "main", "page", "rate_table", "run", "slab_table"]


@dataclass(frozen=True)
class Candidate:
    """A method with another rate, number of steps or temperature; ``per_class`` is the data's size."""

    method: str
    rate: float
    steps: int
    temperature: float = 1.0
    per_class: int = 10

    def given(self) -> Method:
        known = {method.key: method for method in METHODS}
        start = posterior(self.method) if self.method in BAYESIAN else known[self.method]
        return replace(start, rate=self.rate, steps=self.steps, temperature=self.temperature, min_epochs=1)


@dataclass(frozen=True)
class Slabs(Method):
    """LBBNN-LRT with a slab width per layer; it starts near that prior."""

    widths: tuple[float, float] = (1.0, 1.0)

    def network(self, hidden: int) -> nn.Module:
        """An untrained network of this prior."""
        first, second = self.widths
        return nn.Sequential(self._layer(2, hidden, first), nn.ReLU(), self._layer(hidden, CLASSES, second))

    def _layer(self, inputs: int, outputs: int, width: float) -> Linear:
        start = Initial(
            mean=Normal(0.0, 0.1 * width),
            raw_std=Normal(math.log(math.expm1(width * math.log(2.0))), 0.1),
            inclusion_logit=Uniform(-2.0, -1.0),
            bias_raw_std=Normal(0.0, 0.1),
        )
        return Linear(
            inputs, outputs, family=self.family, prior=SpikeSlabPrior(0.5, std=width), initial=start
        )


@dataclass(frozen=True)
class Spec:
    """Which settings, on how many data sets of which size."""

    candidates: tuple[Candidate, ...] = (
        *(Candidate(m, rate, 500) for m in ("lrt", "dense") for rate in (0.01, 0.03, 0.1, 0.3)),
        *(Candidate(m, 0.1, 2000) for m in ("lrt", "dense")),
        *(Candidate("flow", rate, 800) for rate in (0.02, 0.05, 0.1)),
        *(Candidate(m, rate, 1000, 0.03) for m in ("lrt", "dense") for rate in (0.03, 0.1, 0.3)),
        *(Candidate(m, 0.1, 1500, 0.03) for m in ("lrt", "dense")),
        *(Candidate("flow", rate, 800, 0.01) for rate in (0.05, 0.1, 0.2)),
        *(Candidate("flow", 0.1, steps, 0.01, per_class=200) for steps in (1000, 1500)),
        *(Candidate("dropout", rate, 1000) for rate in (0.001, 0.003, 0.01)),
        *(Candidate("plain", rate, 500) for rate in (0.001, 0.003, 0.01)),
    )
    slabs: tuple[tuple[float, float], ...] = ((1.0, 1.0), (1.0, 0.1), (1.0, 0.03), (3.0, 1.0), (3.0, 0.03))
    slab_steps: int = 500
    data_sets: int = 2
    hidden: int = 1000
    seed: int = 0


_NAMES = [field.name for field in fields(Candidate)]


def _trained(method: Method, per_class: int, spec: Spec) -> dict[str, list[float]]:
    """The objective at the end of training and the training accuracy with 10 draws, by data set."""
    study = StudySpec(replicates=spec.data_sets, seed=spec.seed, hidden=spec.hidden)
    data = problems(study, per_class)
    inputs = torch.stack([problem.x for problem in data])
    predictors, run = fit(method, inputs, data[0].y, spec.hidden, study.batch_size, spec.seed, None)
    last = run.history[-max(1, len(run.history) // 50) :]
    bounds = -np.mean([epoch.loss for epoch in last], axis=0)
    found = [
        metrics.accuracy(method.predict(networks, problem.x, study.n_draws, spec.seed).probs, problem.y)
        for networks, problem in zip(predictors, data)
    ]
    return {"objective": bounds.tolist(), "accuracy": found}


def _rate_row(candidate: Candidate, spec: Spec) -> dict[str, Any]:
    method = candidate.given()
    row = {
        "method": candidate.method,
        "temperature": method.temperature,
        "per_class": candidate.per_class,
        "rate": method.rate,
        "steps": method.steps,
        **_trained(method, candidate.per_class, spec),
    }
    words = f"{candidate.method} T {method.temperature:g}, rate {method.rate:g}, {method.steps} steps"
    print(f"{words}: {_mean(row, 'objective'):.2f}", flush=True)
    return row


def _slab_row(widths: tuple[float, float], spec: Spec) -> dict[str, Any]:
    method = Slabs("lrt", "LBBNN-LRT", "spike_slab", 0.1, spec.slab_steps, widths=widths)
    row = {"slab_std": list(widths), **_trained(method, 10, spec)}
    print(f"slab {widths}: {_mean(row, 'objective'):.1f}", flush=True)
    return row


def run(spec: Spec, workers: int = 1) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row per candidate, and a row per pair of slab widths; numbers of each data set."""
    jobs = [
        *(functools.partial(_rate_row, candidate, spec) for candidate in spec.candidates),
        *(functools.partial(_slab_row, widths, spec) for widths in spec.slabs),
    ]
    found = in_parallel(jobs, workers)
    rates = [row for row in found if "rate" in row]
    rates.sort(key=lambda row: spec.candidates.index(Candidate(**{name: row[name] for name in _NAMES})))
    slabs = [row for row in found if "slab_std" in row]
    slabs.sort(key=lambda row: spec.slabs.index(tuple(row["slab_std"])))
    return rates, slabs


# -- tables -----------------------------------------------------------------------------------------------


def _mean(row: Mapping[str, Any], name: str) -> float:
    return float(np.mean(row[name]))


def rate_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The objective of every candidate as Markdown, mean over data sets."""
    lines = ["| method | temperature | per class | steps | rate: objective |", "|---|---|---|---|---|"]
    labels = {method.key: method.label for method in METHODS}
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[n] for n in ("method", "temperature", "per_class", "steps")), []).append(
            row
        )
    for (key, temperature, per_class, steps), own in groups.items():
        digits = 0 if _mean(own[0], "objective") < -100.0 else 1 if key in BAYESIAN else 2
        cells = ", ".join(f"{row['rate']:g}: {_mean(row, 'objective'):.{digits}f}" for row in own)
        heat = f"{temperature:g}" if key in BAYESIAN else "–"
        lines.append(f"| {labels[key]} | {heat} | {per_class} | {steps} | {cells} |")
    return "\n".join(lines).replace(": -", ": −")


def slab_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Bound and training accuracy by the slab's width as Markdown, mean over data sets."""
    lines = ["| slab's std, first layer | second | bound | training accuracy |", "|---|---|---:|---:|"]
    for row in rows:
        first, second = row["slab_std"]
        bound = f"{_mean(row, 'objective'):.0f}".replace("-", "−")
        lines.append(f"| {first:g} | {second:g} | {bound} | {_mean(row, 'accuracy'):.2f} |")
    return "\n".join(lines)


def page(text: str, record: Mapping[str, Any]) -> str:
    """The page with its table updated; the rates go to ``tables.md`` next to the result file."""
    return filled(text, slab_table(record["slabs"]), "slab")


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies uncertainty_settings``"""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--workers", type=int, default=2, help="processes of one thread each (default 2)")
    claim = "The settings of the study of uncertainty."
    given = arguments("uncertainty_settings", claim, argv, [options])
    check_count(given.workers, "workers", "uncertainty_settings")
    spec = Spec(seed=given.seed)
    if given.quick:
        few = (Candidate("lrt", 0.1, 5), Candidate("plain", 0.01, 5))
        spec = replace(spec, candidates=few, slabs=((1.0, 0.1),), slab_steps=5, hidden=12)
    torch.set_num_threads(1)
    study = Study("uncertainty_settings", given)
    rates, slabs = (rounded(rows) for rows in run(spec, given.workers))
    seeds = range(spec.seed, spec.seed + spec.data_sets)
    print(f"Wrote {study.save(spec, seeds, workers=given.workers, rows=rates, slabs=slabs)}.")
    (study.folder / "tables.md").write_text(rate_table(rates) + "\n", encoding="utf-8")
    text = Path(given.out) / "docs" / "studies" / "uncertainty.md"
    if text.is_file():
        fill_page(text, slab_table(slabs), "slab")
    return 0
