"""Table 3 done again with fresh data: true and false positive rates, and the power for each variable.

The paper's study fits one data set a hundred times, so that it measures how the optimiser varies and not
how the data do. Here every replicate has its own data, simulated with the intercept +99 and
β₁₃ = −37.1 that made the paper's file; every column is standardised with its own data's mean and std; all
methods have the same priors (inclusion 0.25, slab N(0, 1)). Correlations run from none (only what x16–x20
are by construction) to the file's, sample sizes from 200 to 2,000.

Run: ``python -m studies selection_power``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest

from sparsebnn.training import Cosine
from studies.baselines import CarbonettoStephens
from studies.data.columns import standardised
from studies.data.logistic import COEFFICIENTS, simulate_logistic
from studies.runner import Study, arguments
from studies.selection.exact import SpikeSlabProblem, mcmc
from studies.selection.logistic import (
    PRIOR_INCLUSION,
    inclusions,
    layer,
    mean_and_error,
    rates,
    settings,
    train_each,
)
from studies.selection.power_report import draw, table

__all__ = ["Spec", "run"]


@dataclass(frozen=True)
class Spec:
    """The whole study. ``mcmc_data_sets`` of each cell also get a long Markov chain, the reference."""

    correlations: tuple[float, ...] = (0.0, 0.5, 1.0)
    rows: tuple[int, ...] = (200, 500, 2000)
    data_sets: int = 20
    epochs: int = 500
    batches: int = 5
    long_factor: int = 5
    cs_restarts: int = 3
    mcmc_data_sets: int = 4
    mcmc_rows: tuple[int, ...] = (500,)
    mcmc_steps: int = 400
    mcmc_chains: int = 16
    seed: int = 0

    @classmethod
    def quick(cls, seed: int = 0) -> Spec:
        """Two data sets of one size, a few epochs."""
        few = {"mcmc_data_sets": 1, "mcmc_steps": 20, "mcmc_chains": 4, "cs_restarts": 2, "mcmc_rows": (100,)}
        sizes = {"correlations": (0.0, 1.0), "rows": (100,), "data_sets": 2, "epochs": 1}
        return cls(seed=seed, **few, **sizes)  # type: ignore[arg-type]


def _data(rows: int, spec: Spec) -> tuple[np.ndarray, np.ndarray]:
    """(correlations · data sets, rows, 20) standardised inputs and their targets; data set d of each
    correlation has seed d."""
    made = [
        simulate_logistic(rows, seed=spec.seed + number, correlation=correlation)
        for correlation in spec.correlations
        for number in range(spec.data_sets)
    ]
    return np.stack([standardised(each.x) for each in made]), np.stack([each.y for each in made])


def _cs(x: np.ndarray, y: np.ndarray, spec: Spec) -> np.ndarray:
    """The best bound of several starts on each data set; the slab is not fitted, so that priors are equal."""
    options = {"inclusion_prob": PRIOR_INCLUSION, "restarts": spec.cs_restarts, "seed": spec.seed}
    fits = [CarbonettoStephens(**options).fit(a, b) for a, b in zip(x, y)]  # type: ignore[arg-type]
    return np.stack([fit.inclusion_ for fit in fits])


def _network(method: str, x: np.ndarray, y: np.ndarray, spec: Spec, long: bool = False) -> np.ndarray:
    """One replicate per data set, all of them one program, in float32 as in table 3."""
    how = settings(method, spec.epochs, -(-x.shape[1] // spec.batches))
    if long:
        how = dataclasses.replace(how, epochs=spec.long_factor * spec.epochs, schedule=Cosine(1e-3))
    seeds = range(spec.seed, spec.seed + len(x))
    return inclusions(train_each(layer(method), x, y, how, seeds))


def _reference(x: np.ndarray, y: np.ndarray, spec: Spec) -> np.ndarray:
    """The exact posterior's inclusion probabilities, by Markov chains; intercept N(0, 1) as the networks'."""
    problems = [SpikeSlabProblem(a, b, inclusion_prob=PRIOR_INCLUSION) for a, b in zip(x, y)]
    chains = [mcmc(p, spec.mcmc_steps, spec.mcmc_chains, warmup=0.3, seed=spec.seed) for p in problems]
    return np.stack([chain.inclusion for chain in chains])


def _row(method: str, rows: int, correlation: float, fitted: np.ndarray) -> dict[str, Any]:
    nonzero = COEFFICIENTS != 0.0
    chosen = fitted > 0.5
    tpr, fpr = rates(chosen, nonzero)
    (mean_tpr, tpr_se), (mean_fpr, fpr_se) = mean_and_error(tpr), mean_and_error(fpr)
    frequency = [binomtest(int(k), len(chosen)).proportion_ci(method="wilson") for k in chosen.sum(0)]
    return {
        "method": method,
        "rows": rows,
        "correlation": correlation,
        "data_sets": len(chosen),
        "tpr": mean_tpr,
        "tpr_se": tpr_se,
        "fpr": mean_fpr,
        "fpr_se": fpr_se,
        "selected": chosen.mean(0).tolist(),
        "selected_low": [float(interval.low) for interval in frequency],
        "selected_high": [float(interval.high) for interval in frequency],
        "inclusion_mean": fitted.mean(0).tolist(),
    }


def run(spec: Spec) -> list[dict[str, Any]]:
    """One row per sample size, correlation and method."""
    found = []
    for rows in spec.rows:
        x, y = _data(rows, spec)
        fits = {
            "CS": _cs(x, y, spec),
            "LRT": _network("lrt", x, y, spec),
            "LRT, longer": _network("lrt", x, y, spec, long=True),
            "FLOW": _network("flow", x, y, spec),
        }
        for place, correlation in enumerate(spec.correlations):
            cell = slice(place * spec.data_sets, (place + 1) * spec.data_sets)
            if rows in spec.mcmc_rows and spec.mcmc_data_sets:
                few = slice(cell.start, cell.start + spec.mcmc_data_sets)
                reference = _reference(x[few], y[few], spec)
                fewer = {name: fit[few] for name, fit in fits.items()}
                off = {name: float(np.abs(fit - reference).mean()) for name, fit in fewer.items()}
                row = _row("MCMC", rows, correlation, reference) if len(reference) > 1 else None
                found += [row | {"distance": 0.0}] if row else []
            else:
                off = {}
            for name, fit in fits.items():
                found.append(_row(name, rows, correlation, fit[cell]) | {"distance": off.get(name)})
        print(f"{rows} rows: done.", flush=True)
    return found


# --- the command -------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study, print its table, write its result file and its figure."""
    claim = "Variable selection on fresh data: TPR, FPR and power by correlation and sample size."
    study = Study("selection_power", arguments("selection_power", claim, argv))
    spec = Spec.quick(study.given.seed) if study.given.quick else Spec(seed=study.given.seed)
    torch.set_num_threads(1)
    found = run(spec)
    print(table(found))
    seeds = range(spec.seed, spec.seed + len(spec.correlations) * spec.data_sets)
    nonzero = (COEFFICIENTS != 0.0).tolist()
    path = study.save(spec, seeds, nonzero=nonzero, rows=found)
    print(f"Wrote {path}.")
    try:
        draw(found, nonzero, study.figure)
    except ImportError:
        print("The figure needs matplotlib: pip install 'sparsebnn[plot]'")
