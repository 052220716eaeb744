"""Is the false discovery rate what was asked for? Choices by Bayesian FDR on data from the model's own prior.

Coefficients are drawn from the spike-and-slab prior, targets from the model, and each method chooses the
largest set whose expected false discovery rate is at most the level
(:func:`sparsebnn.selection.bayesian_fdr_threshold`). With exact inclusion probabilities the realized rate
cannot exceed the level on average; how far approximate ones keep it is measured: with independent inputs,
then where the model's assumptions or the approximation fail.

Run: ``python -m studies selection_fdr``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sparsebnn.selection.rules import bayesian_fdr_threshold
from studies.runner import Study, arguments
from studies.selection.exact import SpikeSlabProblem
from studies.selection.fdr_report import draw, table
from studies.selection.logistic import mean_and_error
from studies.selection.truth import NETWORKS, exact, fit_cs, fit_network
from studies.selection.truth import Spec as TruthSpec

__all__ = ["Scenario", "Spec", "run"]


@dataclass(frozen=True)
class Scenario:
    """How the data are made; the methods always believe in a slab of std 1 and an inclusion of 0.25."""

    name: str
    kind: str = "gaussian"
    correlation: float = 0.0
    slab_std: float = 1.0
    fixed_size: float | None = None


SCENARIOS = (
    Scenario("the model's own prior"),
    Scenario("own prior, logistic", kind="bernoulli"),
    Scenario("correlation 0.5", correlation=0.5),
    Scenario("correlation 0.9", correlation=0.9),
    Scenario("effects a quarter as large", slab_std=0.25),
    Scenario("effects three times as large", slab_std=3.0),
    Scenario("every effect ±0.3", fixed_size=0.3),
)


@dataclass(frozen=True)
class Spec:
    """The whole study."""

    data_sets: int = 200
    rows: int = 100
    logistic_rows: int = 200
    inputs: int = 10
    inclusion_prob: float = 0.25
    noise_std: float = 1.0
    levels: tuple[float, ...] = (0.05, 0.1, 0.2)
    cs_restarts: int = 5
    steps: float = 0.7
    importance_draws: int = 200
    scenarios: tuple[Scenario, ...] = SCENARIOS
    seed: int = 0

    @classmethod
    def quick(cls, seed: int = 0) -> Spec:
        """Four small data sets of two scenarios."""
        small = {"rows": 40, "logistic_rows": 60, "inputs": 4, "scenarios": SCENARIOS[:2]}
        return cls(data_sets=4, steps=0.01, cs_restarts=1, seed=seed, **small)  # type: ignore[arg-type]


def simulate(scenario: Scenario, number: int, spec: Spec) -> tuple[SpikeSlabProblem, np.ndarray]:
    """A data set and which of its inputs are in truth there."""
    rng = np.random.default_rng([spec.seed, SCENARIOS.index(scenario), number])
    rows = spec.logistic_rows if scenario.kind == "bernoulli" else spec.rows
    rho = scenario.correlation
    own = rng.standard_normal((rows, spec.inputs))
    x = math.sqrt(rho) * rng.standard_normal((rows, 1)) + math.sqrt(1.0 - rho) * own
    there = rng.random(spec.inputs) < spec.inclusion_prob
    size = scenario.slab_std * rng.standard_normal(spec.inputs)
    if scenario.fixed_size is not None:
        size = scenario.fixed_size * np.sign(size)
    f = rng.standard_normal() + x @ (there * size)
    if scenario.kind == "bernoulli":
        y = (f + rng.logistic(size=rows) > 0).astype(np.float64)
    else:
        y = f + spec.noise_std * rng.standard_normal(rows)
    return SpikeSlabProblem(x, y, scenario.kind, spec.noise_std, spec.inclusion_prob), there


def _both_classes(problem: SpikeSlabProblem) -> bool:
    return problem.kind == "gaussian" or 0.0 < problem.y.mean() < 1.0


def _fits(problems: list[SpikeSlabProblem], spec: Spec) -> dict[str, np.ndarray]:
    truth = TruthSpec(importance_draws=spec.importance_draws, seed=spec.seed)
    found = {
        "exact": np.stack([exact(problem, truth)[0] for problem in problems]),
        "CS": np.stack([fit_cs(problem, spec.cs_restarts, spec.seed)[0] for problem in problems]),
    }
    for network in NETWORKS[:2]:
        found[network.name] = fit_network(network, problems, 1, spec.steps, spec.seed)[:, 0]
    return found


def run(spec: Spec) -> list[dict[str, Any]]:
    """One row per scenario, method and level."""
    rows = []
    for scenario in spec.scenarios:
        made = [simulate(scenario, number, spec) for number in range(spec.data_sets)]
        made = [(problem, there) for problem, there in made if _both_classes(problem)]
        there = np.stack([each for _, each in made])
        for method, fitted in _fits([problem for problem, _ in made], spec).items():
            for level in spec.levels:
                limits = np.array([bayesian_fdr_threshold(p, level) for p in fitted])
                chosen = fitted >= limits[:, None]
                count = chosen.sum(1)
                shares = (chosen & ~there).sum(1) / np.maximum(count, 1)
                promised = ((1.0 - fitted) * chosen).sum(1) / np.maximum(count, 1)
                fdr, error = mean_and_error(shares)
                power = (chosen & there).sum() / max(1, there.sum())
                rows.append(
                    {
                        "scenario": scenario.name,
                        "method": method,
                        "level": level,
                        "fdr": fdr,
                        "fdr_se": error,
                        "promised": float(promised.mean()),
                        "power": float(power),
                        "chosen_mean": float(count.mean()),
                        "data_sets": len(made),
                    }
                )
    return rows


# --- the command -------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study, print its table, write its result file and its figure."""
    claim = "Realized false discovery rates of choices by Bayesian FDR."
    study = Study("selection_fdr", arguments("selection_fdr", claim, argv))
    spec = Spec.quick(study.given.seed) if study.given.quick else Spec(seed=study.given.seed)
    torch.set_num_threads(1)
    rows = run(spec)
    print(table(rows))
    path = study.save(spec, range(spec.seed, spec.seed + spec.data_sets), rows=rows)
    print(f"Wrote {path}.")
    try:
        draw(rows, study.figure)
    except ImportError:
        print("The figure needs matplotlib: pip install 'sparsebnn[plot]'")
