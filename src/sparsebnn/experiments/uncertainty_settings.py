"""How the settings of the study of uncertainty were chosen: by the training objective, on nothing else.

Every candidate is trained on the first data sets of the smallest size; the bound (for dropout and the
deterministic network the likelihood) is averaged over the last fiftieth of training. No test rows are
drawn.

Run: ``python -m sparsebnn.experiments.uncertainty_settings``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sparsebnn.experiments.provenance import Study, arguments
from sparsebnn.experiments.uncertainty import Spec as StudySpec
from sparsebnn.experiments.uncertainty import problems
from sparsebnn.experiments.uncertainty_methods import METHODS, fit

__all__ = ["Candidate", "Spec", "main", "run"]


@dataclass(frozen=True)
class Candidate:
    """A method with another rate or number of steps."""

    method: str
    rate: float
    steps: int


@dataclass(frozen=True)
class Spec:
    """Which settings, on how many data sets of which size."""

    candidates: tuple[Candidate, ...] = (
        *(Candidate(m, rate, 500) for m in ("lrt", "dense") for rate in (0.01, 0.03, 0.1, 0.3)),
        *(Candidate(m, 0.1, 2000) for m in ("lrt", "dense")),
        *(Candidate("flow", rate, 800) for rate in (0.02, 0.05, 0.1)),
        *(Candidate("dropout", rate, 1000) for rate in (0.001, 0.003, 0.01)),
        *(Candidate("plain", rate, 500) for rate in (0.001, 0.003, 0.01)),
    )
    per_class: int = 10
    data_sets: int = 2
    hidden: int = 1000
    seed: int = 0


def run(spec: Spec) -> list[dict[str, Any]]:
    """The objective of every candidate, mean over data sets."""
    study = StudySpec(replicates=spec.data_sets, seed=spec.seed, hidden=spec.hidden)
    data = problems(study, spec.per_class)
    inputs = torch.stack([problem.x for problem in data])
    rows = []
    for candidate in spec.candidates:
        method = next(m for m in METHODS if m.key == candidate.method)
        method = replace(method, rate=candidate.rate, steps=candidate.steps)
        _, trained = fit(method, inputs, data[0].y, spec.hidden, study.batch_size, spec.seed, None)
        last = trained.history[-max(1, len(trained.history) // 50) :]
        bounds = -np.mean([epoch.loss for epoch in last], axis=0)
        row = {"method": method.key, "rate": method.rate, "steps": method.steps, "objective": bounds.tolist()}
        words = f"{method.label:>14} rate {method.rate:<6} {method.steps} steps: {bounds.mean():.2f}"
        print(words, flush=True)
        rows.append(row)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m sparsebnn.experiments.uncertainty_settings``"""
    given = arguments("uncertainty_settings", "The settings of the study of uncertainty.", argv)
    spec = Spec(seed=given.seed)
    if given.quick:
        few = (Candidate("lrt", 0.1, 5), Candidate("plain", 0.01, 5))
        spec = replace(spec, candidates=few, hidden=12)
    torch.set_num_threads(1)
    study = Study("uncertainty_settings", given)
    rows = run(spec)
    path = study.save(spec, range(spec.seed, spec.seed + spec.data_sets), rows=rows)
    print(f"Written to {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
