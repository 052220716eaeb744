"""Is it really the bound's optimum that misses the training accuracy? The same bound from other starts.

With 10 samples per class the Bayesian networks of the study of uncertainty misclassify an eighth of their
own training rows, which the study puts down to the bound. If an optimiser were to blame, a better bound would
exist, and the place to look for it is a network that is right on every row. So the same bound is climbed from
the study's start; from there for four times as long; from the solution of a plain network that is right
everywhere, with small variances and every weight there, in two lengths; and from a plain network of 20
units, the other 980 silent (means 0, small variances). Each end is judged by the mean of many draws of the
bound on all rows.

Run: ``python -m studies uncertainty_starts``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sparsebnn
from sparsebnn import metrics
from sparsebnn.app.provenance import rounded
from sparsebnn.inference.prediction import ClassPrediction, predict
from sparsebnn.init import Initial, Normal
from sparsebnn.nn.layers import Linear
from sparsebnn.posteriors.priors import SpikeSlabPrior
from sparsebnn.training import Settings, train
from studies.baselines.deterministic import plain_mlp
from studies.runner import Study, arguments, filled
from studies.uncertainty.command import Spec as StudySpec
from studies.uncertainty.command import problems
from studies.uncertainty.methods import CLASSES, LIKELIHOOD, METHODS, Method, posterior

__all__ = ["Spec", "main", "page", "run", "table"]

STARTS = ("study", "right everywhere", "right everywhere, 20 units")


@dataclass(frozen=True)
class Spec:
    """How long each start is followed, and how many draws judge its end."""

    methods: tuple[str, ...] = ("lrt", "dense")
    steps: tuple[int, ...] = (1500, 6000)
    per_class: int = 10
    data_sets: int = 2
    hidden: int = 1000
    units: int = 20
    plain_steps: int = 2000
    draws: int = 500
    seed: int = 0


def _plain(x: Tensor, y: Tensor, units: int, steps: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of a plain network that is right on every row."""
    settings = Settings(epochs=steps, batch_size=len(x), learning_rate=0.01)
    made = plain_mlp([2, units, CLASSES], prior_std=10.0)
    run = train(made, (x, y), settings=settings, seed=seed, device="cpu", mode="eager", progress=False)
    layers = [m for m in run.network.modules() if isinstance(m, nn.Linear)]
    return [(layer.weight.detach(), layer.bias.detach()) for layer in layers]


def _network(method: Method, start: str, spec: Spec, x: Tensor, y: Tensor, seed: int) -> nn.Module:
    """An untrained network that begins at this start."""
    if start == "study":
        return method.network(spec.hidden)
    # Means as found, each within about 0.007 of it, every inclusion at 0.98.
    narrow, there = Normal(-5.0, 0.1), Normal(4.0, 0.1)
    sharp = Initial(raw_std=narrow, inclusion_logit=there, bias_raw_std=narrow)
    prior = None if method.family == "gaussian" else SpikeSlabPrior(0.5)
    sizes = [2, spec.hidden, CLASSES]
    network = sparsebnn.mlp(sizes, family=method.family, prior=prior, initial=sharp)
    units = spec.units if start.endswith("units") else spec.hidden
    first, last = (m for m in network if isinstance(m, Linear))
    (w1, b1), (w2, b2) = _plain(x, y, units, spec.plain_steps, seed)
    rest = spec.hidden - units
    first.start_from(nn.functional.pad(w1, (0, 0, 0, rest)), nn.functional.pad(b1, (0, rest)))
    last.start_from(nn.functional.pad(w2, (0, rest)), b2)
    return network


@torch.no_grad()
def _bound(network: nn.Module, x: Tensor, y: Tensor, draws: int, seed: int) -> tuple[float, float]:
    """The ELBO on all rows and its standard error over draws."""
    network.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        values = []
        for _ in range(draws):
            outputs, kl = sparsebnn.forward_with_kl(network, x)
            values.append(-(LIKELIHOOD.nll(outputs, y).sum() + kl))
    each = torch.stack(values).double()
    return float(each.mean()), float(each.std() / draws**0.5)


def run(spec: Spec) -> list[dict[str, Any]]:
    """A row per method, data set, start and length."""
    data = problems(StudySpec(replicates=spec.data_sets, seed=spec.seed), spec.per_class)
    rows = []
    for key in spec.methods:
        # Under the study's names, at temperature 1: there the question arose.
        method = replace(posterior(key), key=key)
        for start in STARTS:
            for steps in spec.steps:
                for k, problem in enumerate(data):
                    rows.append(_row(spec, method, start, steps, k, problem.x.float(), problem.y))
                mean = [sum(row[n] for row in rows[-len(data) :]) / len(data) for n in ("elbo", "accuracy")]
                words = f"{method.label:>10}, {start}, {steps} steps"
                print(f"{words}: ELBO {mean[0]:.1f}, training accuracy {mean[1]:.3f}", flush=True)
    return rows


def _row(spec: Spec, method: Method, start: str, steps: int, k: int, x: Tensor, y: Tensor) -> dict[str, Any]:
    seed = spec.seed + k
    network = _network(method, start, spec, x, y, seed)
    settings = Settings(epochs=steps, batch_size=len(x), learning_rate=method.rate)
    trained = train(
        network, (x, y), settings=settings, seed=seed, device="cpu", mode="eager", progress=False
    ).network
    elbo, error = _bound(trained, x, y, spec.draws, seed)
    found = predict(trained, x, LIKELIHOOD, 100, seed=seed)
    assert isinstance(found, ClassPrediction)
    return {
        "method": method.key,
        "data_set": k,
        "start": start,
        "steps": steps,
        "elbo": elbo,
        "elbo_error": error,
        "accuracy": metrics.accuracy(found.probs, y),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Means over data sets as Markdown: a line per method and start, bound and accuracy by length."""
    lengths = list(dict.fromkeys(row["steps"] for row in rows))
    heads = [f"{steps} steps: ELBO | accuracy" for steps in lengths]
    lines = ["| method, start | " + " | ".join(heads) + " |", "|---" + "|---:" * (2 * len(lengths)) + "|"]
    labels = {method.key: method.label for method in METHODS}
    for key, start in dict.fromkeys((row["method"], row["start"]) for row in rows):
        cells = [f"{labels[key]}, {start}"]
        for steps in lengths:
            own = [r for r in rows if (r["method"], r["start"], r["steps"]) == (key, start, steps)]
            cells += [f"{sum(row['elbo'] for row in own) / len(own):.1f}"]
            cells += [f"{sum(row['accuracy'] for row in own) / len(own):.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(text: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The page with its table renewed."""
    return filled(text, table(rows), "starts")


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies uncertainty_starts``"""
    given = arguments("uncertainty_starts", "The bound of the study of uncertainty, from other starts.", argv)
    spec = Spec(seed=given.seed)
    if given.quick:
        few = {"data_sets": 1, "hidden": 30, "units": 8, "plain_steps": 300, "draws": 5}
        spec = replace(spec, methods=("lrt",), steps=(5,), **few)
    torch.set_num_threads(1)
    study = Study("uncertainty_starts", given)
    rows = run(spec)
    print(f"Wrote {study.save(spec, range(spec.seed, spec.seed + spec.data_sets), rows=rows)}.")
    text = Path(given.out) / "docs" / "studies" / "uncertainty.md"
    if text.is_file():
        text.write_text(page(text.read_text(encoding="utf-8"), rounded(rows)), encoding="utf-8")
    return 0
