"""How LBBNN's inclusion logits should start and move: candidates compared on validation rows.

With the right KL the published schedule (logits from U(0, 1), a rate of 0.1 until epoch 20) switches every
weight off; with the LRT row's (U(−15, 10), 1e-4) the network stays twice as dense as the paper's. This
study varies the logits' start and rate, and nothing else. All other rates fall when LBBNN-LRT's do; with
``--steady`` they stay as they are, as published. The last 10,000 training rows are held out; 300 epochs of
the other 50,000 are as many steps as 250 of all. Every candidate has its seeds, and all train as one program.

The rule, fixed before the run: of the candidates whose mean density is at most the paper's plus 0.03, the
one with the highest mean validation accuracy of the median probability model. If none is sparse enough, the
sparsest.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsebnn import data as datasets
from sparsebnn.app.provenance import device_name
from sparsebnn.init import Uniform
from sparsebnn.likelihoods import Categorical
from sparsebnn.training import Callback, Run, train
from sparsebnn.training.arguments import MODES
from studies.runner import Study, arguments, count
from studies.tables import evaluation
from studies.tables.cells import quick_cell
from studies.tables.paper import (
    ARCHITECTURES,
    WIDE_STARTS,
    Cell,
    Logits,
    cell,
    published_lbbnn,
    steady,
    with_logits,
)
from studies.tables.published import printed

__all__ = ["CANDIDATES", "choose", "main", "run"]

_HELD_OUT = 10_000
_MARGIN = 0.03
# Two weights in five begin present.
_SPARSE = WIDE_STARTS["fc"]
CANDIDATES: dict[str, tuple[Logits, ...]] = {
    architecture: (
        *(Logits(wide, rate) for rate in (1e-4, 2e-4, 3e-4, 5e-4, 1e-3)),
        Logits(Uniform(0.0, 1.0), 1e-4),
    )
    for architecture, wide in WIDE_STARTS.items()
}


@dataclass(frozen=True)
class Spec:
    """One comparison."""

    architecture: str = "fc"
    dataset: str = "kmnist"
    candidates: tuple[Logits, ...] = CANDIDATES["fc"]
    replicates: int = 2
    epochs: int = 300
    held_out: int = _HELD_OUT
    draws: int = 20
    seed: int = 0
    steady: bool = False


def split(data: datasets.Dataset, held_out: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training rows without the last ``held_out``, and those."""
    cut = len(data.y_train) - held_out
    return (data.x_train[:cut], data.y_train[:cut]), (data.x_train[cut:], data.y_train[cut:])


class Starts(Callback):
    """Give each replicate's inclusion logits the start of its candidate, before the first step.

    The logits come from the network's own U(a, b); an affine map makes them U(low, high).
    """

    def __init__(self, template: Uniform, starts: Sequence[Uniform]) -> None:
        self.template, self.starts = template, starts

    @torch.no_grad()
    def on_train_start(self, run: Run) -> None:
        width = self.template.high - self.template.low
        for name, stacked in run.replicates.parameters.items():
            if name.endswith("inclusion_logit"):
                for logits, start in zip(stacked, self.starts):
                    logits.sub_(self.template.low).mul_((start.high - start.low) / width).add_(start.low)


def run(
    spec: Spec,
    data: datasets.Dataset,
    template: Cell,
    device: str = "auto",
    mode: str = "auto",
) -> tuple[list[dict[str, Any]], Run]:
    """Train all candidates as one program; one row each, measured on the held-out rows."""
    (x, y), (x_val, y_val) = split(data, spec.held_out)
    each = [candidate for candidate in spec.candidates for _ in range(spec.replicates)]
    starts = Starts(spec.candidates[0].start, [candidate.start for candidate in each])
    made = with_logits(template.for_epochs(spec.epochs), spec.candidates[0])
    trained = train(
        made.network(),
        (evaluation.inputs(x, made, data.image_shape), y),
        likelihood=Categorical(made.sizes[-1]),
        settings=made.settings,
        replicates=len(each),
        seed=spec.seed,
        per_replicate={"learning_rates.inclusion_logit": [candidate.rate for candidate in each]},
        device=device,
        mode=mode,
        callbacks=[starts],
    )
    images = evaluation.inputs(x_val, made, data.image_shape).to(trained.batches.x.device)
    labels = y_val.to(images.device)
    rows = []
    for c, candidate in enumerate(spec.candidates):
        own = range(c * spec.replicates, (c + 1) * spec.replicates)
        measured = [_measure(trained, k, images, labels, made, spec.draws) for k in own]
        row: dict[str, Any] = {"start": [candidate.start.low, candidate.start.high], "rate": candidate.rate}
        row |= {name: statistics.fmean(one[name] for one in measured) for name in measured[0]}
        row["seeds"] = [trained.seeds[k] for k in own]
        row["stopped"] = [str(s) for s in trained.stopped if s.replicate in own]
        row["replicates"] = measured
        row["density_by_epoch"] = [statistics.fmean(e.density[k] for k in own) for e in trained.history]
        row["nll_by_epoch"] = [
            statistics.fmean(e.nll[k] for k in own) / trained.batches.rows for e in trained.history
        ]
        rows.append(row)
    return rows, trained


def _measure(trained: Run, k: int, x: Tensor, y: Tensor, made: Cell, draws: int) -> dict[str, float]:
    network = trained.replicates.unstack(k).network
    measured = evaluation.evaluate(network, x, y, made, draws, trained.seeds[k])
    return {name: measured[name] for name in ("accuracy_median", "accuracy_average", "nll_median", "density")}


def choose(rows: Sequence[dict[str, Any]], most_density: float) -> int:
    """The rule: the most accurate median model of those sparse enough, else the sparsest.

    >>> rows = [{"density": d, "accuracy_median": a} for d, a in ((0.3, 0.95), (0.1, 0.9), (0.12, 0.92))]
    >>> choose(rows, most_density=0.14)
    2
    """
    sparse = [i for i, row in enumerate(rows) if row["density"] <= most_density]
    if not sparse:
        return min(range(len(rows)), key=lambda i: rows[i]["density"])
    return max(sparse, key=lambda i: rows[i]["accuracy_median"])


def table(rows: Sequence[dict[str, Any]], winner: int | None = None) -> str:
    """The candidates as text; the winner is marked."""
    lines = [f"{'logits start':>14} {'rate':>8} {'median model':>13} {'averaging':>10} {'density':>8}"]
    for i, row in enumerate(rows):
        start = f"U({row['start'][0]:g}, {row['start'][1]:g})"
        accuracies = f"{100 * row['accuracy_median']:>13.2f} {100 * row['accuracy_average']:>10.2f}"
        mark = "  <- chosen" if i == winner else ""
        lines.append(f"{start:>14} {row['rate']:>8g} {accuracies} {row['density']:>8.3f}{mark}")
    return "\n".join(lines)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    add = parser.add_argument
    add("--architecture", choices=ARCHITECTURES, default="fc")
    add("--dataset", default="kmnist", help="kmnist, mnist or fmnist (default kmnist)")
    add("--rates", type=float, nargs="+", help="rates to try at the paper's wide start, instead of the list")
    add("--sparse-rates", type=float, nargs="+", help="rates to try at U(-15, 10), with --rates or alone")
    add("--steady", action="store_true", help="keep all rates but the logits' constant, as published")
    add("--replicates", type=count, default=2, help="seeds per candidate (default 2)")
    add("--epochs", type=count, help="default 300, as many steps as the tables' 250 epochs of all rows")
    add("--published", action="store_true", help="run the published schedule instead, which fails")
    add("--data", type=Path, help="folder with the data sets")
    add("--device", default="auto")
    add("--mode", default="auto", choices=MODES)
    claim = "LBBNN's inclusion logits: start and rate chosen on validation rows."
    given = arguments("lbbnn_schedule", claim, argv, [parser])
    given.epochs = given.epochs or (3 if given.quick else 30 if given.published else 300)
    return given


def _failing(given: argparse.Namespace, data: datasets.Dataset) -> dict[str, Any]:
    """The published schedule under both priors: density and accuracy as its logits fall."""
    (x, y), (x_val, y_val) = split(data, _HELD_OUT)
    found = []
    for prior in ("spike_slab", "hierarchical"):
        made = published_lbbnn(given.architecture, prior)
        made = replace(made, settings=replace(made.settings, epochs=given.epochs))
        trained = train(
            made.network(),
            (evaluation.inputs(x, made, data.image_shape), y),
            likelihood=Categorical(10),
            settings=made.settings,
            replicates=given.replicates,
            seed=given.seed,
            device=given.device,
            mode=given.mode,
        )
        images = evaluation.inputs(x_val, made, data.image_shape).to(trained.batches.x.device)
        rows = [
            _measure(trained, k, images, y_val.to(images.device), made, 20) for k in range(given.replicates)
        ]
        row: dict[str, Any] = {"prior": prior, "settings": made.record(), "seeds": trained.seeds}
        row |= {name: statistics.fmean(one[name] for one in rows) for name in rows[0]}
        row["density_by_epoch"] = [statistics.fmean(e.density) for e in trained.history]
        found.append(row)
        print(
            f"published schedule, {prior} prior, {given.epochs} epochs: median model "
            f"{100 * row['accuracy_median']:.2f}, averaging {100 * row['accuracy_average']:.2f}, "
            f"density {row['density']:.4f}"
        )
    return {"rows": found}


def _comparison(given: argparse.Namespace, data: datasets.Dataset) -> dict[str, Any]:
    """The candidates, and the one the rule takes."""
    candidates = CANDIDATES[given.architecture]
    if given.rates or given.sparse_rates:
        wide = [Logits(WIDE_STARTS[given.architecture], rate) for rate in given.rates or ()]
        candidates = (*wide, *(Logits(_SPARSE, rate) for rate in given.sparse_rates or ()))
    candidates = tuple(replace(one, steady=given.steady) for one in candidates)
    template, most = cell(given.architecture, "lbbnn"), 1.0
    held_out, draws = _HELD_OUT, 20
    if given.quick:
        template, held_out, draws = quick_cell(given.architecture, "lbbnn"), 300, 3
    else:
        most = printed(given.architecture, given.dataset, "lbbnn").density + _MARGIN
    template = steady(template) if given.steady else template
    spec = Spec(
        given.architecture,
        given.dataset,
        candidates,
        given.replicates,
        given.epochs,
        held_out,
        draws,
        given.seed,
        given.steady,
    )
    rows, trained = run(spec, data, template, given.device, given.mode)
    winner = choose(rows, most)
    print(table(rows, winner))
    return {
        "spec": dataclasses.asdict(spec),
        "settings": template.for_epochs(given.epochs).record(),
        "most_density": most,
        "chosen": {"start": rows[winner]["start"], "rate": rows[winner]["rate"]},
        "device": device_name(trained.batches.x.device),
        "train_seconds": trained.train_seconds,
        "compile_seconds": trained.compile_seconds,
        "rows": rows,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Run the comparison (or, with ``--published``, the failing schedule) and write its file."""
    given = _arguments(argv)
    study = Study("lbbnn_schedule", given)
    name = "digits" if given.quick else given.dataset
    stem = f"{'published-' if given.published else ''}{name}-{given.architecture}"
    stem += "-steady" if given.steady else ""
    data = datasets.load(name, root=given.data)
    content = (_failing if given.published else _comparison)(given, data)
    seeds = sorted(seed for row in content["rows"] for seed in row["seeds"])
    print(f"Wrote {study.save(None, seeds, stem=stem, **content)}.")
