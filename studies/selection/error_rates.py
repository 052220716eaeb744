"""Do error rates hold with correlated inputs, heavy tails and wrong priors? Thirty inputs, 200 data sets.

Realized false discovery rates, at 5, 10 and 20% requested, of Bayesian FDR with sampled structures
(the model of ``SpikeSlabRegression``), with one replicate of a network, and with a mixture, which may refuse
(:func:`sparsebnn.selection.promised_by_one`); and of p-values by conditional randomization, adjusted.

Run: ``python -m studies error_rates``. A row per method and data set is appended to one file; rows that it
finds there are skipped.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsebnn.estimators.spike_slab_base import SLAB_GRID
from sparsebnn.selection import (
    adjusted_p_values,
    bayesian_fdr_threshold,
    promised_by_one,
    randomization_p_values,
)
from sparsebnn.selection.convergence import split_rhat
from sparsebnn.selection.marginal import Coefficients, LinearEvidence
from sparsebnn.selection.rules import _DISAGREEMENT
from sparsebnn.selection.structure import sample_structures, size_log_prior
from studies.runner import Study, arguments, count, fill_page, read_rows
from studies.selection.exact import SpikeSlabProblem
from studies.selection.mixtures import Spec as MixtureSpec
from studies.selection.mixtures import combined, fit

__all__ = ["SCENARIOS", "Scenario", "Spec", "StackedEvidence", "run", "simulate", "summary", "table"]

METHODS = ("structure sampling", "networks", "randomization")


@dataclass(frozen=True)
class Scenario:
    """How the data are made; networks always believe in inclusion 0.1, slab and noise of std 1."""

    name: str
    correlation: float = 0.0
    heavy: bool = False
    inclusion_prob: float = 0.1
    fixed_size: float | None = None


SCENARIOS = (
    Scenario("correlation 0"),
    Scenario("correlation 0.5", 0.5),
    Scenario("correlation 0.9", 0.9),
    Scenario("heavy-tailed noise, correlation 0.5", 0.5, heavy=True),
    Scenario("twice as many effects, all ±0.3, correlation 0.5", 0.5, inclusion_prob=0.2, fixed_size=0.3),
)


@dataclass(frozen=True)
class Spec:
    """The whole study."""

    data_sets: int = 200
    rows: int = 150
    inputs: int = 30
    levels: tuple[float, ...] = (0.05, 0.1, 0.2)
    n_iter: int = 400
    burn_in: int = 100
    n_chains: int = 3
    replicates: int = 12
    steps: int = 500
    batch: int = 100  # data sets that are sampled as one program; networks of a fifth of them train as one
    seed: int = 0


def simulate(scenario: Scenario, number: int, spec: Spec) -> tuple[SpikeSlabProblem, np.ndarray]:
    """A data set, and which of its inputs have effects."""
    rng = np.random.default_rng([spec.seed, SCENARIOS.index(scenario), number])
    rho = scenario.correlation
    own = rng.standard_normal((spec.rows, spec.inputs))
    x = math.sqrt(rho) * rng.standard_normal((spec.rows, 1)) + math.sqrt(1.0 - rho) * own
    there = rng.random(spec.inputs) < scenario.inclusion_prob
    size = rng.standard_normal(spec.inputs)
    if scenario.fixed_size is not None:
        size = scenario.fixed_size * np.sign(size)
    # A t of 3 degrees of freedom has variance 3.
    noise = (
        rng.standard_t(3, spec.rows) / math.sqrt(3.0) if scenario.heavy else rng.standard_normal(spec.rows)
    )
    y = 0.3 + x @ (there * size) + noise
    return SpikeSlabProblem(x, y, "gaussian", 1.0, 0.1), there


def _judged(chosen: np.ndarray, there: np.ndarray) -> dict[str, float]:
    return {
        "false_share": float((chosen & ~there).sum() / max(1, chosen.sum())),
        "found": int((chosen & there).sum()),
        "chosen": int(chosen.sum()),
        "effects": int(there.sum()),
    }


def _by_level(p: np.ndarray, there: np.ndarray, spec: Spec) -> dict[str, Any]:
    return {str(level): _judged(p >= bayesian_fdr_threshold(p, level), there) for level in spec.levels}


class StackedEvidence(LinearEvidence):
    """Several data sets with equally many rows and inputs, sampled side by side as one program.

    Slab ``d * grid + g`` is variance g of data set d; a chain stays with its data set.
    """

    def __init__(self, data: Sequence[tuple[np.ndarray, np.ndarray]], slab_vars: np.ndarray) -> None:
        parts = [LinearEvidence(x, y, slab_vars) for x, y in data]
        first = parts[0]
        self.p, self.degrees, self.noise_var = first.p, first.degrees, None
        self.grid, self.slab_vars = len(slab_vars), np.tile(slab_vars, len(parts))
        self.grams = np.stack([part.gram.table for part in parts])
        self.diagonals = np.stack([part.diagonal for part in parts])
        self.scores = np.stack([part.score for part in parts])
        self.totals = np.array([part.total for part in parts])

    def _of(self, index: np.ndarray, slab: np.ndarray) -> tuple[np.ndarray, ...]:
        own = slab // self.grid
        rows = self.grams[own[:, None], index]
        return rows, self.diagonals[own], self.scores[own], self.totals[own], self.slab_vars[slab]

    def draw(self, gamma: np.ndarray, slab: np.ndarray, rng: np.random.Generator) -> Coefficients:
        raise NotImplementedError("Draw coefficients from the LinearEvidence of each data set.")


def _sampled(scenario: Scenario, numbers: Sequence[int], spec: Spec) -> list[dict[str, Any]]:
    """With the priors of ``SpikeSlabRegression`` as it is, all data sets as one program."""
    made = [simulate(scenario, number, spec) for number in numbers]
    data = [((p.x - p.x.mean(0)) / p.x.std(0), p.y) for p, _ in made]
    evidence = StackedEvidence(data, np.array(SLAB_GRID))
    chains, width = spec.n_chains, spec.inputs
    found = sample_structures(
        evidence,
        size_log_prior(width, (1.0, float(width))),
        n_iter=spec.n_iter,
        burn_in=spec.burn_in,
        n_chains=chains * len(made),
        temperatures=(1.0,),
        start=np.full(width, 2.0 / width),
        seed=numbers[0],
    )
    traces = found.gammas().reshape(len(found.slab), len(made), chains, width)
    rows = []
    for i, (number, (_, there)) in enumerate(zip(numbers, made)):
        p = found.by_chain[i * chains : (i + 1) * chains].mean(0)
        row = {"method": METHODS[0], "data_set": number, "rates": _by_level(p, there, spec)}
        rhat = split_rhat(traces[:, i])[p >= 0.01].max(initial=1.0)
        rows.append(row | {"max_rhat": float(min(rhat, 1e6))})
    return rows


def _networks(scenario: Scenario, numbers: Sequence[int], spec: Spec) -> list[dict[str, Any]]:
    share = max(1, spec.batch // 5)
    if len(numbers) > share:
        parts = [numbers[at : at + share] for at in range(0, len(numbers), share)]
        return [row for part in parts for row in _networks(scenario, part, spec)]
    made = [simulate(scenario, number, spec) for number in numbers]
    problems = [problem for problem, _ in made]
    how = MixtureSpec(replicates=spec.replicates, steps=spec.steps, seed=spec.seed)
    rows = []
    for number, (_, there), (both, each) in zip(numbers, made, combined(fit(problems, how), problems, how)):
        mixed = both.weights.numpy() @ each
        for method, p in (("one replicate", each[0]), ("mixture", mixed)):
            row = {"method": method, "data_set": number, "rates": _by_level(p, there, spec)}
            if method == "mixture":
                row["promised_by_one"] = {str(v): promised_by_one(p, each, v) for v in spec.levels}
                row["effective_modes"] = both.effective_modes
            rows.append(row)
    return rows


def _randomized(scenario: Scenario, numbers: Sequence[int], spec: Spec) -> list[dict[str, Any]]:
    rows = []
    for number in numbers:
        problem, there = simulate(scenario, number, spec)
        p = adjusted_p_values(randomization_p_values(problem.x, problem.y))
        rates = {str(level): _judged(p <= level, there) for level in spec.levels}
        rows.append({"method": METHODS[2], "data_set": number, "rates": rates})
    return rows


def run(method: str, scenario: Scenario, numbers: Sequence[int], spec: Spec) -> list[dict[str, Any]]:
    """Rows of some data sets."""
    ways: dict[str, Callable[..., list[dict[str, Any]]]] = dict(
        zip(METHODS, (_sampled, _networks, _randomized))
    )
    return [{"scenario": scenario.name, **row} for row in ways[method](scenario, numbers, spec)]


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Realized rates with standard errors, power, and refusals, by scenario, method and level."""
    lines = []
    names = list(dict.fromkeys((row["scenario"], row["method"]) for row in rows))
    for scenario, method in names:
        own = [row for row in rows if (row["scenario"], row["method"]) == (scenario, method)]
        lines += [_line(scenario, method, level, own, own) for level in own[0]["rates"]]
        if "promised_by_one" in own[0]:
            for level in own[0]["rates"]:
                kept = [row for row in own if row["promised_by_one"][level] <= float(level) + _DISAGREEMENT]
                lines.append(_line(scenario, f"{method}, where not refused", level, kept, own))
    return lines


def _line(scenario: str, method: str, level: str, rows: list[Any], asked: list[Any]) -> dict[str, Any]:
    cells = [row["rates"][level] for row in rows]
    shares = np.array([cell["false_share"] for cell in cells])
    few = len(shares) < 2
    return {
        "scenario": scenario,
        "method": method,
        "level": float(level),
        "fdr": float(shares.mean()) if len(shares) else math.nan,
        "fdr_se": math.nan if few else float(shares.std(ddof=1) / math.sqrt(len(shares))),
        "power": sum(c["found"] for c in cells) / max(1, sum(c["effects"] for c in cells)),
        "data_sets": len(rows),
        "refused": 1.0 - len(rows) / len(asked),
    }


def table(lines: Sequence[dict[str, Any]]) -> str:
    """A Markdown table: rates in % with standard errors, power at 10%, and the share refused at 10%."""
    levels = sorted({line["level"] for line in lines})
    head = " | ".join(f"{level:.0%}" for level in levels)
    made = [f"| data | method | data sets | {head} | power at 10% | refused at 10% |"]
    made.append("|---|---|---|" + "---|" * (len(levels) + 2))
    for scenario, method in dict.fromkeys((line["scenario"], line["method"]) for line in lines):
        own = {k["level"]: k for k in lines if (k["scenario"], k["method"]) == (scenario, method)}
        rates = " | ".join(f"{100 * own[v]['fdr']:.1f} ± {100 * own[v]['fdr_se']:.1f}" for v in levels)
        one = own[0.1]
        refused = f"{one['refused']:.0%}" if "refused" in method else ""
        made.append(
            f"| {scenario} | {method} | {one['data_sets']} | {rates} | {one['power']:.2f} | {refused} |"
        )
    return "\n".join(made)


# --- the command -------------------------------------------------------------------------------------


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    options.add_argument("--data-sets", type=count, help="per scenario (default 200)")
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, append its rows, and print the table of all rows."""
    claim = "Realized false discovery rates with correlation, heavy tails and wrong priors."
    study = Study("error_rates", arguments("error_rates", claim, argv, [_options()]))
    given, spec = study.given, Spec(seed=study.given.seed)
    if given.quick:
        spec = replace(spec, data_sets=2, rows=70, inputs=6, n_iter=50, burn_in=20, replicates=3, steps=10)
    spec = replace(spec, data_sets=given.data_sets or spec.data_sets)
    torch.set_num_threads(1)
    file = study.folder / "rows.jsonl"
    for start in range(0, spec.data_sets, spec.batch):
        for method in given.methods:
            label = {"networks": "mixture"}.get(method, method)
            for scenario in SCENARIOS:
                there = {
                    row["data_set"]
                    for row in read_rows(file)
                    if (row["method"], row["scenario"], row["seed"]) == (label, scenario.name, spec.seed)
                }
                block = range(start, min(start + spec.batch, spec.data_sets))
                numbers = [number for number in block if number not in there]
                if numbers:
                    study.append({"seed": spec.seed} | row for row in run(method, scenario, numbers, spec))
    lines = summary(sorted(read_rows(file), key=_order))
    print(table(lines))
    page = Path(given.out) / "docs" / "studies" / "error_rates.md"
    if page.exists():
        fill_page(page, table(lines))
    print(f"Wrote {file}.")


def _order(row: dict[str, Any]) -> tuple[int, str]:
    return [scenario.name for scenario in SCENARIOS].index(row["scenario"]), row["method"]
