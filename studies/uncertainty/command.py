r"""Is the uncertainty right? Five clusters, six methods, and a number for every picture.

The generating model is known, so the entropy of the class at any place is known too, and the predictive
entropy of a method can be compared with it (figures 5 to 8 of the paper); with it come accuracy by
certainty (figure 9), out-of-distribution detection by the maximum model-averaged pre-activation (figure
10), calibration, and the split of the entropy into epistemic and aleatoric parts.

Every replicate has its own data set, scaled to [0, 1]² by its own rows, so intervals cover the luck of
the data as well as that of training. All methods see the same data sets.

Run: ``python -m studies uncertainty``; figures alone, from the saved results:
``--figures-only``.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsebnn.app.provenance import rounded
from sparsebnn.checks import check_count, invalid
from sparsebnn.inference.metrics import entropy
from sparsebnn.io.files import atomic_write
from studies.data.clusters import five_clusters
from studies.runner import Study, arguments, in_parallel
from studies.uncertainty.measures import Problem, judge, lattice
from studies.uncertainty.methods import METHODS, Method, fit
from studies.uncertainty.report import markdown, show, summary
from studies.uncertainty.structure import structure

__all__ = ["Spec", "main", "problems", "run"]


@dataclass(frozen=True)
class Spec:
    """The whole study. ``steps`` replaces every method's own number of steps where given."""

    per_class: tuple[int, ...] = (10, 50, 200)
    test_per_class: tuple[int, ...] = (2000, 400, 400)
    replicates: int = 10
    hidden: int = 1000
    n_draws: int = 10
    batch_size: int = 50
    grid: int = 41
    outer: int = 43
    steps: int | None = None
    structure_epochs: int = 600
    seed: int = 0

    @classmethod
    def quick(cls, seed: int = 0) -> Spec:
        """Small networks, few steps, two replicates: everything runs, nothing is learned well."""
        small = {"hidden": 12, "grid": 7, "outer": 7, "steps": 4, "structure_epochs": 2}
        return cls((10, 20), (40, 20), replicates=2, seed=seed, **small)


def problems(spec: Spec, size: int) -> list[Problem]:
    """The data sets of one size; the same for every method."""
    clusters = five_clusters()
    test = spec.test_per_class[spec.per_class.index(size)]
    seeds = [1000 * (spec.seed + k) + size for k in range(spec.replicates)]
    return [Problem.draw(clusters, size, test, seed) for seed in seeds]


def cell(method: Method, size: int, spec: Spec) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """One method at one size: a row per replicate, and arrays stacked over replicates."""
    began, cpu = time.perf_counter(), time.process_time()
    data = problems(spec, size)
    inputs = torch.stack([problem.x for problem in data])
    predictors, trained = fit(method, inputs, data[0].y, spec.hidden, spec.batch_size, spec.seed, spec.steps)
    train_seconds = time.perf_counter() - began
    last = trained.history[-max(1, len(trained.history) // 50) :]
    rows, arrays = [], []
    for k, (problem, networks) in enumerate(zip(data, predictors)):
        ask = functools.partial(method.predict, networks, seed=spec.seed)
        few, many = (functools.partial(ask, n_draws=n) for n in (spec.n_draws, 10 * spec.n_draws))
        numbers, curves = judge(few, many, problem, spec.grid, spec.outer, spec.seed)
        member = k * method.members
        objective = float(np.mean([epoch.loss[member] for epoch in last]))
        where = {"method": method.key, "per_class": size, "replicate": k}
        rows.append(
            {
                **where,
                # The bound, averaged over the last fiftieth of training; for a point, its likelihood.
                "objective": -objective,
                "density": trained.history[-1].density[member],
                **numbers,
                "train_seconds": train_seconds,
                "seconds": time.perf_counter() - began,
                "cpu_seconds": time.process_time() - cpu,
            }
        )
        arrays.append(curves)
    stacked = {f"{method.key}/{size}/{name}": np.stack([a[name] for a in arrays]) for name in arrays[0]}
    return rows, _thinned(stacked)


def _thinned(stacked: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Maps of the first replicate alone: that is what is drawn; curves of all."""
    maps = ("grid_entropy", "outer_max_output", "outer_entropy")
    return {name: values[0] if name.endswith(maps) else values for name, values in stacked.items()}


def truths(spec: Spec) -> dict[str, np.ndarray]:
    """The generating model's entropy on the grid, and the training rows, of the first replicate."""
    found: dict[str, np.ndarray] = {}
    for size in spec.per_class:
        problem = problems(spec, size)[0]
        probs = problem.true_probs(lattice(0.0, 1.0, spec.grid))
        found[f"truth/{size}/grid_entropy"] = entropy(probs).float().numpy()
        found[f"truth/{size}/x"] = problem.x.float().numpy()
        found[f"truth/{size}/y"] = problem.y.numpy()
    return found


def _drawn(spec: Spec) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """What figures 1 and 2 show, as a cell without rows."""
    return [], structure(spec.structure_epochs, spec.seed)


def run(
    spec: Spec, methods: Sequence[Method] = METHODS, workers: int = 1
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """All rows and all arrays; they do not depend on the number of workers."""
    cells = [
        (method, size)
        for method in methods
        for size in spec.per_class
        if size == spec.per_class[0] or not method.smallest
    ]
    # The longest first, so that no process is left alone with one.
    cells.sort(key=lambda pair: ("flow", "spike_slab", "gaussian", "point").index(pair[0].family))
    jobs = [functools.partial(_drawn, spec), *(functools.partial(cell, *pair, spec) for pair in cells)]
    rows: list[dict[str, Any]] = []
    arrays = truths(spec)
    for more, curves in in_parallel(jobs, workers):
        rows += more
        arrays.update(curves)
        if more:
            first, last = more[0], more[-1]
            took = f"{first['train_seconds']:.0f} s training, {last['seconds']:.0f} s in all"
            print(f"{first['method']}, {first['per_class']} per class: {took}", flush=True)
    order = [method.key for method in methods]
    rows.sort(key=lambda row: (row["per_class"], order.index(row["method"]), row["replicate"]))
    return rows, dict(sorted(arrays.items()))


def _fits(values: np.ndarray) -> bool:
    return values.dtype == np.float32 and float(np.abs(values).max()) < 6e4


def _write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Half precision is more than a printed figure shows."""
    small = {name: values.astype(np.float16) if _fits(values) else values for name, values in arrays.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **small)  # type: ignore[arg-type]
    with atomic_write(path) as partial:
        partial.write_bytes(buffer.getvalue())


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    claim = "Predictive uncertainty on five clusters, against the model that generated them."
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--workers", type=int, default=2, help="processes of one thread each (default 2)")
    options.add_argument("--figures-only", action="store_true", help="from the saved results, no training")
    given = arguments("uncertainty", claim, argv, [options])
    check_count(given.workers, "workers", "uncertainty")
    if given.figures_only and not (given.out / "results" / "uncertainty" / "uncertainty.json").exists():
        expected = "a folder with results/uncertainty in it"
        advice = "Run the study first, without --figures-only."
        raise invalid("out", "uncertainty", expected, repr(str(given.out)), advice)
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies uncertainty``"""
    given = _arguments(argv)
    folder = Path(given.out) / "results" / "uncertainty"
    if not given.figures_only:
        study = Study("uncertainty", given)
        spec = Spec.quick(given.seed) if given.quick else Spec(seed=given.seed)
        torch.set_num_threads(1)
        rows, arrays = run(spec, workers=given.workers)
        folder.mkdir(parents=True, exist_ok=True)
        _write_arrays(folder / "arrays.npz", arrays)
        seeds = range(spec.seed, spec.seed + spec.replicates)
        methods = [{**asdict(method), "rates": dict(method.rates)} for method in METHODS]
        spent = [row["cpu_seconds"] for row in rows if row["replicate"] == spec.replicates - 1]
        study.save(
            spec,
            seeds,
            workers=given.workers,
            cpu_seconds=sum(spent),
            methods=methods,
            summary=rounded(summary(rows), 4),
            rows=rounded(rows, 4),
        )
    record = json.loads((folder / "uncertainty.json").read_text(encoding="utf-8"))
    show(record)
    (folder / "tables.md").write_text("\n".join(markdown(record)) + "\n", encoding="utf-8")
    try:
        from studies.uncertainty import figures as uncertainty_figures

        uncertainty_figures.draw_all(folder, Path(given.out) / "docs" / "images")
    except ImportError as error:
        print(f"No figures: {error}")
    return 0
