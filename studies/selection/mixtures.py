"""Structure sampling and mixtures of replicates against exact inclusion probabilities.

The designs of :mod:`~studies.selection.truth` (linear and logistic regressions, equally correlated inputs),
with eight and with fifteen inputs: how far are sampled structures, single replicates, their average, and
their mixture (:func:`sparsebnn.inference.mixture`) from the sum over all structures?

Run: ``python -m studies mixture``. A row per data set is appended to one file; rows that it finds there are
skipped.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sparsebnn
from sparsebnn import likelihoods
from sparsebnn.inference import mixture, reweighted
from sparsebnn.init import Initial
from sparsebnn.training import Cosine, Settings
from studies.runner import Study, arguments, count, fill_page, read_rows
from studies.selection.exact import SpikeSlabProblem
from studies.selection.logistic import train_each
from studies.selection.truth import Spec as TruthSpec
from studies.selection.truth import exact, simulate

__all__ = ["Spec", "run_networks", "run_sampler", "summary", "table"]

_METHODS = ("sampler", "networks", "reweighted", "dependent")
_TITLES = {
    "structure sampling": "structure sampling",
    "one": "one replicate",
    "best": "best replicate by its bound",
    "average": "average of all replicates",
    "mixture": "mixture",
    "twice": "mixture of twice as many replicates",
    "reweighted": "mixture, reweighted",
    "dependent, one": "dependent inclusions, one replicate",
    "dependent, best": "dependent inclusions, best by its bound",
    "dependent, mixture": "dependent inclusions, mixture",
}


@dataclass(frozen=True)
class Spec:
    """The whole study; ``sampled`` are the correlations of the sampler alone."""

    inputs: tuple[int, ...] = (8, 15)
    correlations: tuple[float, ...] = (0.9, 0.95, 0.99)
    sampled: tuple[float, ...] = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
    kinds: tuple[str, ...] = ("gaussian", "bernoulli")
    data_sets: int = 10
    replicates: int = 24
    steps: int = 700
    importance_draws: int = 1500
    batch: int = 3  # data sets whose networks train as one program
    seed: int = 0


def _truth(p: int, spec: Spec) -> TruthSpec:
    effects = TruthSpec().coefficients[:3]
    draws = spec.importance_draws if p <= 8 else max(16, spec.importance_draws // 25)
    zeros = (0.0,) * (p - len(effects))
    return TruthSpec(coefficients=(*effects, *zeros), importance_draws=draws, seed=spec.seed)


def run_sampler(p: int, kind: str, rho: float, number: int, spec: Spec) -> dict[str, Any]:
    """Structure sampling with the problem's own priors and the estimators' default effort."""
    from sklearn.exceptions import ConvergenceWarning

    from sparsebnn.estimators import SpikeSlabClassifier, SpikeSlabRegression

    design = _truth(p, spec)
    problem = simulate(kind, rho, number, design)
    truth, error = exact(problem, design)
    beliefs: dict[str, Any] = {
        "inclusion_prob": problem.inclusion_prob,
        "slab_var": problem.slab_std**2,
        "intercept_std": problem.bias_std,
        "standardize": False,
        "random_state": number,
    }
    linear = kind == "gaussian"
    model: Any = SpikeSlabRegression(noise_std=1.0, **beliefs) if linear else SpikeSlabClassifier(**beliefs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a column of the row
        model.fit(problem.x, problem.y)
    return {
        "errors": {"structure sampling": float(np.abs(model.inclusion_ - truth).mean())},
        "worst": float(np.abs(model.inclusion_ - truth).max()),
        "converged": model.diagnostics_["converged"],
        "seconds": round(model.diagnostics_["seconds"], 2),
        "exact_error": float(error.max()),
    }


def fit(problems: Sequence[SpikeSlabProblem], spec: Spec, family: str = "lrt", **options: Any) -> Any:
    """Replicates of one layer on every data set, as one program; the run."""
    first = problems[0]
    layer = sparsebnn.Linear(
        first.x.shape[1],
        1,
        family=family,
        family_options=options,
        prior=sparsebnn.posteriors.SpikeSlabPrior(first.inclusion_prob, std=first.slab_std),
        bias_prior=sparsebnn.posteriors.GaussianPrior(std=first.bias_std),
        initial=Initial(),
        dtype=torch.float64,
    )
    x = np.stack([problem.x for problem in problems for _ in range(spec.replicates)])
    y = np.stack([problem.y for problem in problems for _ in range(spec.replicates)])
    rate = {"learning_rate": 0.03, "schedule": Cosine(1e-3), "shuffle": False}
    how = Settings(epochs=spec.steps, batch_size=x.shape[1], **rate)  # type: ignore[arg-type]
    seeds = range(spec.seed, spec.seed + len(x))
    return train_each(layer, x, y, how, seeds, mode="eager", kind=first.kind, noise_std=first.noise_std)


def combined(run: Any, problems: Sequence[SpikeSlabProblem], spec: Spec) -> list[tuple[Any, np.ndarray]]:
    """The mixture of each data set's replicates, and their inclusions (replicates, inputs)."""
    networks, size = run.networks, spec.replicates
    each = np.stack([network.layer.weights.inclusion_prob()[0].detach().numpy() for network in networks])
    form = run.likelihood if problems[0].kind == "bernoulli" else likelihoods.Gaussian(noise="fixed", std=1.0)
    found = []
    for i, problem in enumerate(problems):
        own = slice(i * size, (i + 1) * size)
        found.append((mixture(networks[own], _data(problem), form, seed=spec.seed), each[own]))
    return found


def _data(problem: SpikeSlabProblem) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers and targets, as the networks of :func:`train_each` take them."""
    rows = torch.arange(len(problem.y), dtype=torch.float64).unsqueeze(1)
    return rows, torch.ones(len(rows)) if problem.kind == "bernoulli" else torch.zeros(len(rows))


def run_reweighted(p: int, kind: str, rho: float, numbers: Sequence[int], spec: Spec) -> list[dict[str, Any]]:
    """Two improvements of the mixture: twice as many replicates, and reweighted draws of the first half."""
    design = _truth(p, spec)
    rows = []
    for number in numbers:
        problem = simulate(kind, rho, number, design)
        truth = exact(problem, design)[0]
        many = replace(spec, replicates=2 * spec.replicates)
        run = fit([problem], many)
        ((twice, each),) = combined(run, [problem], many)
        half = mixture(
            twice.networks[: spec.replicates], _data(problem), twice.likelihoods[0], seed=spec.seed
        )
        found = reweighted(half, _data(problem), seed=spec.seed)
        included = found.weights @ found.masks["layer"][:, 0].double()
        ways = {"twice": twice.weights.numpy() @ each, "reweighted": included.numpy()}
        errors = {name: float(np.abs(value - truth).mean()) for name, value in ways.items()}
        rows.append({"errors": errors, "effective_size": found.effective_size})
    return rows


def run_networks(
    p: int, kind: str, rho: float, numbers: Sequence[int], spec: Spec, family: str = "lrt"
) -> list[dict[str, Any]]:
    """Replicates on some data sets, alone and combined."""
    design = _truth(p, spec)
    problems = [simulate(kind, rho, number, design) for number in numbers]
    rows = []
    for problem, (both, each) in zip(problems, combined(fit(problems, spec, family), problems, spec)):
        truth = exact(problem, design)[0]
        best = each[int(both.bounds.argmax())]
        ways = {"best": best, "average": each.mean(0), "mixture": both.weights.numpy() @ each}
        errors = {"one": float(np.abs(each - truth).mean())}
        errors |= {name: float(np.abs(value - truth).mean()) for name, value in ways.items()}
        if family == "dependent":
            errors = {f"dependent, {name}": value for name, value in errors.items() if name != "average"}
        bounds = {"bound": both.bound, "best_bound": float(both.bounds.max())}
        rows.append({"errors": errors, "effective_modes": both.effective_modes, **bounds})
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean errors with standard errors by kind, inputs, method and correlation."""
    cells: dict[tuple[Any, ...], list[float]] = {}
    names = ("method", "inputs", "kind", "correlation", "data_set", "seed")
    for row in {tuple(row[name] for name in names): row for row in rows}.values():
        for method, error in row["errors"].items():
            key = (row["kind"], row["inputs"], method, row["correlation"])
            cells.setdefault(key, []).append(error)
    lines = []
    for (kind, p, method, rho), values in sorted(cells.items(), key=lambda cell: str(cell[0])):
        line = {"kind": kind, "inputs": p, "method": method, "correlation": rho, "data_sets": len(values)}
        error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        lines.append(line | {"error": float(np.mean(values)), "error_se": float(error)})
    return lines


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Markdown tables of the mean errors, one per kind and number of inputs."""
    made = []
    for kind, p in dict.fromkeys((line["kind"], line["inputs"]) for line in lines):
        own = [line for line in lines if (line["kind"], line["inputs"]) == (kind, p)]
        columns = sorted({line["correlation"] for line in own})
        name = "linear" if kind == "gaussian" else "logistic"
        made += [f"| {name}, {p} inputs | " + " | ".join(f"{rho:g}" for rho in columns) + " |"]
        made += ["|" + "---|" * (len(columns) + 1)]
        for method, title in _TITLES.items():
            found = {line["correlation"]: line for line in own if line["method"] == method}
            if found:
                texts = [_cell(found.get(rho)) for rho in columns]
                made.append(f"| {title} | " + " | ".join(texts) + " |")
        made.append("")
    return "\n".join(made)


def _cell(line: dict[str, Any] | None) -> str:
    return "" if line is None else f"{line['error']:.3f} ± {line['error_se']:.3f} ({line['data_sets']})"


# --- the command -------------------------------------------------------------------------------------


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--methods", nargs="+", choices=_METHODS, default=list(_METHODS))
    options.add_argument("--kinds", nargs="+", choices=("gaussian", "bernoulli"))
    options.add_argument("--inputs", nargs="+", type=count, help="numbers of inputs (default 8 and 15)")
    options.add_argument("--data-sets", type=count, help="per cell (default 10)")
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, append its rows, and print the tables of all rows."""
    claim = "Structure sampling and mixtures of replicates against exact inclusion probabilities."
    study = Study("mixture", arguments("mixture", claim, argv, [_options()]))
    given, spec = study.given, Spec(seed=study.given.seed)
    if given.quick:
        few: dict[str, Any] = {"inputs": (5,), "correlations": (0.95,), "sampled": (0.95,), "data_sets": 1}
        spec = replace(spec, replicates=4, steps=20, importance_draws=100, **few)
    own = {"kinds": given.kinds and tuple(given.kinds), "inputs": given.inputs and tuple(given.inputs)}
    own["data_sets"] = given.data_sets
    chosen: dict[str, Any] = {name: value for name, value in own.items() if value}
    spec = replace(spec, **chosen)
    torch.set_num_threads(1)
    file = study.folder / "rows.jsonl"
    for method in given.methods:
        for p in spec.inputs:
            for kind in spec.kinds:
                for rho in spec.sampled if method == "sampler" else spec.correlations:
                    _cell_rows(study, method, p, kind, rho, spec)
    lines = summary(read_rows(file))
    print(table(lines))
    page = Path(given.out) / "docs" / "studies" / "mixture.md"
    if page.exists():
        fill_page(page, table(lines))
    print(f"Wrote {file}.")


def _cell_rows(study: Study, method: str, p: int, kind: str, rho: float, spec: Spec) -> None:
    cell = {"method": method, "inputs": p, "kind": kind, "correlation": rho, "seed": spec.seed}
    there = read_rows(study.folder / "rows.jsonl")
    known = {row["data_set"] for row in there if all(row[name] == value for name, value in cell.items())}
    numbers = [number for number in range(spec.data_sets) if number not in known]
    if method != "sampler":
        for at in range(0, len(numbers), spec.batch):
            now = numbers[at : at + spec.batch]
            if method == "reweighted":
                found = run_reweighted(p, kind, rho, now, spec)
            else:
                found = run_networks(p, kind, rho, now, spec, "lrt" if method == "networks" else "dependent")
            study.append([cell | {"data_set": n} | row for n, row in zip(now, found)])
    else:
        for number in numbers:
            study.append([cell | {"data_set": number} | run_sampler(p, kind, rho, number, spec)])
