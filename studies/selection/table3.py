"""Table 3 and figures 3 and 4: which variables CS, LBBNN-LRT and LBBNN-FLOW select, a hundred times.

One data set, 100 seeds per method, a variable being selected when its inclusion probability exceeds one
half. TPR = TP/(TP+FN) and FPR = FP/(FP+TN) of each fit, averaged over fits. The paper's file is used
where it is found (``--data`` or SPARSEBNN_LOGISTIC); otherwise its design is simulated, and the result
says so.

Run: ``python -m studies table3``.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sparsebnn
from sparsebnn.selection import agreement
from sparsebnn.training import Cosine
from studies.baselines import CarbonettoStephens
from studies.data.columns import standardised
from studies.data.logistic import LogisticData, find_logistic, load_logistic
from studies.runner import Study, arguments
from studies.selection.exact import SpikeSlabProblem, mcmc
from studies.selection.logistic import (
    PRIOR_INCLUSION,
    inclusions,
    layer,
    mean_and_error,
    rates,
    settings,
)
from studies.selection.table3_report import draw_bars, draw_correlations, table

__all__ = ["PAPER", "Spec", "run"]

# TPR and FPR as published.
PAPER = {"cs": (0.681, 0.125), "lrt": (0.838, 0.084), "flow": (0.972, 0.074)}
# Beside the paper's: the same two trained five times as long with a cosine, and the exact posterior.
EXTRAS = ("lrt_long", "flow_long", "mcmc")
_CONTINUOUS = slice(6, 20)


@dataclass(frozen=True)
class Spec:
    """The paper's settings. ``cs_tolerance`` is where coordinate ascent stops (docs/studies/table3.md)."""

    replicates: int = 100
    epochs: int = 500
    batch_size: int = 400
    inclusion_prob: float = PRIOR_INCLUSION
    cs_tolerance: float = 1e-6
    cs_fit_slab: bool = True
    flow_mode: str = "compiled"
    long_factor: int = 5
    long_replicates: int = 10
    mcmc_steps: int = 5000
    mcmc_chains: int = 16
    seed: int = 0

    @classmethod
    def quick(cls, seed: int = 0) -> Spec:
        """Three replicates, few epochs: that everything runs, not what comes out."""
        few = {"long_factor": 2, "long_replicates": 2, "mcmc_steps": 6, "mcmc_chains": 2}
        return cls(replicates=3, epochs=6, cs_tolerance=1e-2, flow_mode="eager", seed=seed, **few)  # type: ignore[arg-type]


def _fit_cs(data: LogisticData, spec: Spec) -> tuple[np.ndarray, dict[str, Any]]:
    """All 20 columns standardised, the slab fitted, one prior inclusion; a random start per replicate."""
    model = CarbonettoStephens(
        inclusion_prob=spec.inclusion_prob,
        fit_slab=spec.cs_fit_slab,
        restarts=spec.replicates,
        seed=spec.seed,
        tolerance=spec.cs_tolerance,
    ).fit(standardised(data.x), data.y)
    bounds = model.bound_starts_[0]
    found = {
        "bound_best": float(bounds.max()),
        "bound_median": float(np.median(bounds)),
        "modes": len(np.unique(model.inclusion_starts_[0] > 0.5, axis=0)),
        "slab_std_of_best": model.slab_std_,
        "sweeps_median": float(np.median(model.sweeps_)),
        "inclusion_of_best": model.inclusion_.tolist(),
    }
    return model.inclusion_starts_[0], found


def _fit_network(method: str, data: LogisticData, spec: Spec) -> tuple[np.ndarray, dict[str, Any]]:
    """All replicates as one program; columns 7–20 standardised."""
    family, _, long = method.partition("_")
    x = torch.tensor(standardised(data.x, _CONTINUOUS), dtype=torch.float32)
    how = settings(family, spec.epochs, spec.batch_size)
    if long:
        how = dataclasses.replace(how, epochs=spec.long_factor * spec.epochs, schedule=Cosine(1e-3))
    replicates = spec.long_replicates if long else spec.replicates
    trained = sparsebnn.train(
        layer(family),
        (x, torch.tensor(data.y)),
        likelihood="bernoulli",
        settings=how,
        replicates=range(spec.seed, spec.seed + replicates),
        device="cpu",
        mode=spec.flow_mode if method == "flow" else "eager",
        progress=False,
    )
    # One draw per step: the mean over the last epochs is the bound to a fraction of a nat.
    last = np.array([epoch.loss for epoch in trained.history[-50:]])
    found = {
        "mode": trained.mode,
        "compile_seconds": trained.compile_seconds,
        "stopped": len(trained.stopped),
        "elbo_replicates": (-last.mean(0)).tolist(),
        "elbo_median": float(np.median(-last.mean(0))),
    }
    return inclusions(trained), found


def _fit_mcmc(data: LogisticData, spec: Spec) -> tuple[np.ndarray, dict[str, Any]]:
    """The exact posterior of the networks' model, by Markov chains; twice, to see that they agree."""
    problem = SpikeSlabProblem(standardised(data.x, _CONTINUOUS), data.y, inclusion_prob=spec.inclusion_prob)
    chains = [mcmc(problem, spec.mcmc_steps, spec.mcmc_chains, 0.3, spec.seed + k) for k in range(2)]
    found = {
        "acceptance": chains[0].acceptance,
        "inclusion_se": float(max(chain.inclusion_se.max() for chain in chains)),
        "structures_seen": chains[0].structures_seen,
    }
    return np.stack([chain.inclusion for chain in chains]), found


def _fit(method: str, data: LogisticData, spec: Spec) -> tuple[np.ndarray, dict[str, Any]]:
    """Inclusion probabilities (fits, inputs), and what else the method has to tell."""
    if method == "mcmc":
        return _fit_mcmc(data, spec)
    return _fit_cs(data, spec) if method == "cs" else _fit_network(method, data, spec)


def run(method: str, data: LogisticData, spec: Spec) -> dict[str, Any]:
    """What a method selects over all replicates, next to the paper's figures."""
    # On a busy machine the clock runs on while others work; the processor's time does not.
    began, worked = time.perf_counter(), time.process_time()
    fitted, found = _fit(method, data, spec)
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    chosen = fitted > 0.5
    tpr, fpr = rates(chosen, data.nonzero)
    agreed = agreement(chosen, names=data.names)
    (mean_tpr, tpr_se), (mean_fpr, fpr_se) = mean_and_error(tpr), mean_and_error(fpr)
    return {
        "method": method,
        "tpr": mean_tpr,
        "fpr": mean_fpr,
        "tpr_se": tpr_se,
        "fpr_se": fpr_se,
        "paper": dict(zip(("tpr", "fpr"), PAPER[method])) if method in PAPER else None,
        "fits": len(fitted),
        "fit_seconds": seconds,
        "cpu_seconds": cpu,
        "inclusion_frequency": agreed.frequency.tolist(),
        "inclusion_frequency_low": agreed.low.tolist(),
        "inclusion_frequency_high": agreed.high.tolist(),
        "inclusion_mean": fitted.mean(0).tolist(),
        "agreement": [agreed.jaccard, agreed.jaccard_low, agreed.jaccard_high],
        "names": list(data.names),
        "nonzero": data.nonzero.tolist(),
        "tpr_replicates": tpr.tolist(),
        "fpr_replicates": fpr.tolist(),
        **found,
    }


def _digest(folder: Path | None) -> str | None:
    """Which file it was, without saying where it lay."""
    return None if folder is None else hashlib.sha256((folder / "X.csv").read_bytes()).hexdigest()


# --- the command -------------------------------------------------------------------------------------


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--data", type=Path, help="folder with the paper's X.csv and y.csv")
    parser.add_argument("--simulate", action="store_true", help="simulate the design, file or no file")
    parser.add_argument("--methods", nargs="+", choices=[*PAPER, *EXTRAS], default=list(PAPER))
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Fit every method, print the table, write a result file per method and the figures."""
    given = arguments("table3", "Variable selection by CS, LBBNN-LRT and LBBNN-FLOW.", argv, [_options()])
    spec = Spec.quick(given.seed) if given.quick else Spec(seed=given.seed)
    # Every matrix here is tiny: a second thread costs more than it brings.
    torch.set_num_threads(1)
    folder = None if given.simulate else given.data or find_logistic()
    data = load_logistic(folder, seed=given.seed)
    print(f"Data: {data.source}, {len(data.y)} rows.")
    source = {"source": data.source, "x_sha256": _digest(folder)}
    results = []
    for method in given.methods:
        study = Study("table3", given)
        result = run(method, data, spec)
        seeds = range(spec.seed, spec.seed + result["fits"])
        study.save(spec, seeds, stem=method, data=source, **result)
        results.append(result)
        print(f"{method}: TPR {result['tpr']:.3f}, FPR {result['fpr']:.3f}, {result['fit_seconds']:.0f} s")
    print(table(results))
    images = Path(given.out) / "docs" / "images"
    try:
        draw_correlations(data, images / "table3_correlations.png")
        shown = [result for result in results if result["method"] in PAPER]
        if len(shown) == len(PAPER):
            draw_bars(shown, images / "table3_bars.png")
    except ImportError:
        print("The figures need matplotlib: pip install 'sparsebnn[plot]'")
