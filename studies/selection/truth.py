"""Inclusion probabilities of CS, LBBNN-LRT, LBBNN-FLOW and LBBNN against exact posteriors and MCMC.

Linear and logistic regressions with eight inputs, any two of them equally correlated, are small enough to
visit all 256 structures. The exact inclusion probabilities come from closed forms
(:mod:`~studies.bounds.exact_regression`) and from importance sampling of each structure
(:mod:`~studies.selection.exact`). All methods have the same priors.

Run: ``python -m studies selection_truth``; with ``--methods LBBNN`` those networks alone, whose
rows are added to the result file.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sparsebnn
from sparsebnn.app.provenance import rounded
from sparsebnn.init import Initial
from sparsebnn.training import Cosine, Settings
from studies.baselines import CarbonettoStephens
from studies.bounds.exact_regression import Regression, exact_posterior
from studies.runner import Study, arguments, write_json
from studies.selection.exact import SpikeSlabProblem, exact_inclusion, mcmc
from studies.selection.logistic import START, inclusions, rates, train_each
from studies.selection.truth_report import details, draw, summary, table

__all__ = ["Network", "Spec", "run", "simulate"]


@dataclass(frozen=True)
class Network:
    """A network method: family, start, rates and steps. The paper's start is that of its table 3.

    ``logit_rate`` is the rate of the inclusion logits, where it is another one.
    """

    name: str
    method: str
    start: Initial
    rate: float = 0.03
    steps: int = 1500
    logit_rate: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


_FLOW = {"hidden": (16, 16)}
NETWORKS = (
    Network("LRT", "lrt", Initial()),
    Network("FLOW", "flow", Initial(), options=_FLOW),
    Network("LRT, paper's start", "lrt", START, 0.01, 2500),
    Network("FLOW, paper's start", "flow", START, 0.01, 2500, options=_FLOW),
    Network("LBBNN", "lbbnn", Initial(), logit_rate=0.05),
    Network("LBBNN, relaxation 0.001", "lbbnn", Initial(), logit_rate=0.05, options={"relaxation": 0.001}),
)


@dataclass(frozen=True)
class Spec:
    """The whole study; ``restarts`` are seeds of a network on one data set, averaged over."""

    correlations: tuple[float, ...] = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
    kinds: tuple[str, ...] = ("gaussian", "bernoulli")
    data_sets: int = 10
    rows: tuple[int, int] = (100, 200)
    coefficients: tuple[float, ...] = (1.0, 0.7, 0.4, 0.0, 0.0, 0.0, 0.0, 0.0)
    inclusion_prob: float = 0.25
    slab_std: float = 1.0
    bias_std: float = 1.0
    noise_std: float = 1.0
    restarts: int = 4
    cs_restarts: int = 20
    steps: float = 1.0
    importance_draws: int = 1500
    mcmc_steps: int = 2000
    mcmc_chains: int = 50
    seed: int = 0

    @classmethod
    def quick(cls, seed: int = 0) -> Spec:
        """Two correlations, one data set, a few steps."""
        few = {"importance_draws": 200, "mcmc_steps": 300, "mcmc_chains": 20, "steps": 0.01}
        small = {"coefficients": (1.0, 0.7, 0.0, 0.0), "rows": (40, 60), "restarts": 2, "cs_restarts": 3}
        return cls(correlations=(0.0, 0.95), data_sets=1, seed=seed, **few, **small)  # type: ignore[arg-type]


def simulate(kind: str, correlation: float, number: int, spec: Spec) -> SpikeSlabProblem:
    """Data set ``number``: equally correlated normal inputs, and targets by the coefficients."""
    rng = np.random.default_rng([spec.seed, spec.kinds.index(kind), round(1000 * correlation), number])
    rows, beta = spec.rows[spec.kinds.index(kind)], np.array(spec.coefficients)
    own = rng.standard_normal((rows, len(beta)))
    x = math.sqrt(correlation) * rng.standard_normal((rows, 1)) + math.sqrt(1.0 - correlation) * own
    f = 0.3 + x @ beta
    if kind == "bernoulli":
        y = (f + rng.logistic(size=rows) > 0).astype(np.float64)
    else:
        y = f + spec.noise_std * rng.standard_normal(rows)
    beliefs = (spec.noise_std, spec.inclusion_prob, spec.slab_std, spec.bias_std)
    return SpikeSlabProblem(x, y, kind, *beliefs)


def exact(problem: SpikeSlabProblem, spec: Spec) -> tuple[np.ndarray, np.ndarray]:
    """Exact inclusion probabilities and their Monte Carlo error (0 for the closed form)."""
    if problem.kind == "bernoulli":
        found = exact_inclusion(problem, spec.importance_draws, spec.seed)
        return found.inclusion, found.inclusion_se
    data = torch.from_numpy(problem.x), torch.from_numpy(problem.y)
    beliefs = (problem.noise_std, problem.inclusion_prob, problem.slab_std, problem.bias_std)
    inclusion = exact_posterior(Regression(*data, *beliefs)).inclusion.numpy()
    return inclusion, np.zeros_like(inclusion)


def fit_cs(problem: SpikeSlabProblem, restarts: int, seed: int) -> np.ndarray:
    """CS with the problem's own priors; (starts, inputs), the best bound first."""
    model = CarbonettoStephens(
        likelihood=problem.kind,
        inclusion_prob=problem.inclusion_prob,
        slab_std=problem.slab_std,
        noise_std=problem.noise_std,
        intercept_std=problem.bias_std,
        restarts=restarts,
        seed=seed,
    ).fit(problem.x, problem.y)
    return model.inclusion_starts_[0][np.argsort(-model.bound_starts_[0], kind="stable")]


def fit_network(
    network: Network, problems: Sequence[SpikeSlabProblem], restarts: int, steps: float, seed: int
) -> np.ndarray:
    """All data sets and restarts as one program; (data sets, restarts, inputs)."""
    first = problems[0]
    layer = sparsebnn.Linear(
        first.x.shape[1],
        1,
        family=network.method,
        family_options=network.options,
        prior=sparsebnn.posteriors.SpikeSlabPrior(first.inclusion_prob, std=first.slab_std),
        bias_prior=sparsebnn.posteriors.GaussianPrior(std=first.bias_std),
        initial=network.start,
        dtype=torch.float64,
    )
    x = np.stack([problem.x for problem in problems for _ in range(restarts)])
    y = np.stack([problem.y for problem in problems for _ in range(restarts)])
    own = {} if network.logit_rate is None else {"inclusion_logit": network.logit_rate}
    how = Settings(
        epochs=max(1, round(steps * network.steps)),
        batch_size=x.shape[1],
        learning_rate=network.rate,
        learning_rates=own,
        schedule=Cosine(1e-3),
        shuffle=False,
    )
    seeds = range(seed, seed + len(x))
    noise = {"kind": first.kind, "noise_std": first.noise_std}
    trained = train_each(layer, x, y, how, seeds, mode="eager", **noise)  # type: ignore[arg-type]
    return inclusions(trained).reshape(len(problems), restarts, -1)


def _judge(fits: np.ndarray, truth: np.ndarray, nonzero: np.ndarray) -> dict[str, float]:
    """Distances of a method's fits (fits, inputs) from the exact probabilities, averaged over fits."""
    off = np.abs(fits - truth)
    chosen, right = fits > 0.5, truth > 0.5
    tpr, fpr = rates(chosen, nonzero)
    return {
        "error": float(off.mean()),
        "error_worst": float(off.max(1).mean()),
        "wrong_choices": float((chosen != right).sum(1).mean()),
        "tpr": float(tpr.mean()),
        "fpr": float(fpr.mean()),
    }


def run(spec: Spec, only: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One row per kind, correlation, data set and method; ``only`` names networks to fit and nothing else."""
    nonzero = np.array(spec.coefficients) != 0.0
    rows: list[dict[str, Any]] = []
    for kind in spec.kinds:
        cells = [(rho, number) for rho in spec.correlations for number in range(spec.data_sets)]
        problems = [simulate(kind, rho, number, spec) for rho, number in cells]
        fits: dict[str, list[np.ndarray]] = {}
        truths = [exact(problem, spec) for problem in problems]
        errors: dict[str, list[float]] = {}  # Monte Carlo's, where a method has one
        if not only:
            fits["exact"] = [truth[None] for truth, _ in truths]
            errors["exact"] = [float(error.max()) for _, error in truths]
            chains = [mcmc(p, spec.mcmc_steps, spec.mcmc_chains, seed=spec.seed) for p in problems]
            fits["MCMC"] = [chain.inclusion[None] for chain in chains]
            errors["MCMC"] = [float(chain.inclusion_se.max()) for chain in chains]
            climbs = [fit_cs(problem, spec.cs_restarts, spec.seed) for problem in problems]
            fits["CS, one start"], fits["CS, best of starts"] = climbs, [each[:1] for each in climbs]
        for network in NETWORKS:
            if not only or network.name in only:
                fitted = fit_network(network, problems, spec.restarts, spec.steps, spec.seed)
                fits[network.name] = list(fitted)
        for method, found in fits.items():
            for i, ((rho, number), fit, (truth, _)) in enumerate(zip(cells, found, truths)):
                row = {"kind": kind, "correlation": rho, "data_set": number, "method": method}
                row |= _judge(fit, truth, nonzero)
                row["inclusion"] = fit.mean(0).tolist()
                if method in errors:
                    row["monte_carlo_error"] = errors[method][i]
                rows.append(row)
    return rows


# --- the command -------------------------------------------------------------------------------------


def _add(
    study: Study, only: Sequence[str], seeds: Sequence[int], rows: list[dict[str, Any]]
) -> tuple[Path, list[dict[str, Any]]]:
    """Rows of some methods in the place of those that the result file has of them; ``added`` tells of it."""
    path = study.folder / "selection_truth.json"
    there = json.loads(path.read_text(encoding="utf-8"))
    kinds = there["spec"]["kinds"]
    both, lines = (
        sorted(
            [*(entry for entry in there[name] if entry["method"] not in only), *new],
            key=lambda entry: kinds.index(entry["kind"]),
        )
        for name, new in (("rows", rows), ("summary", summary(rows)))
    )
    added = [*there.get("added", []), {"methods": list(only), **study.provenance(seeds)}]
    write_json(path, rounded({**there, "added": added, "summary": lines, "rows": both}))
    return path, lines


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study, print its table, write its result file and its figure."""
    claim = "Inclusion probabilities of CS, LBBNN-LRT, LBBNN-FLOW and LBBNN against exact ones."
    options = argparse.ArgumentParser(add_help=False)
    names = [network.name for network in NETWORKS]
    options.add_argument("--methods", nargs="+", choices=names, help="these alone, added to the result file")
    study = Study("selection_truth", arguments("selection_truth", claim, argv, [options]))
    spec = Spec.quick(study.given.seed) if study.given.quick else Spec(seed=study.given.seed)
    torch.set_num_threads(1)
    only = study.given.methods or ()
    rows = run(spec, only)
    replicates = len(spec.correlations) * spec.data_sets * spec.restarts
    seeds = range(spec.seed, spec.seed + replicates)
    if only and (study.folder / "selection_truth.json").exists():
        path, lines = _add(study, only, seeds, rows)
    else:
        lines = summary(rows)
        path = study.save(spec, seeds, summary=lines, rows=rows)
    path.with_name("tables.md").write_text(details(lines), encoding="utf-8")
    print(table(lines))
    print(f"Wrote {path}.")
    try:
        draw(lines, study.figure)
    except ImportError:
        print("The figure needs matplotlib: pip install 'sparsebnn[plot]'")
