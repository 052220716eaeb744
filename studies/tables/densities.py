r"""Why these densities: how far the inclusion logits travel decides how many of them end above 0.

Adam moves a logit by at most about its rate per step. Let a share of the logits start at U(low, high) and
let every weight that the data do not ask for drift down all the way; then the density after a travel of
:math:`T = \sum_t \text{rate}_t` is

.. math:: \frac{\max(0, \text{high} - T)}{\text{high} - \text{low}}

Measured on handwritten digits, LBBNN-LRT, all rates and starts as one program; drawn with the densities
during training from the results of tables 1 and 2.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sparsebnn import data as datasets
from sparsebnn.init import Uniform
from sparsebnn.likelihoods import Categorical
from sparsebnn.training import Settings, train
from sparsebnn.training.optimizers import Steps
from studies.runner import Study, arguments, fill_page
from studies.style import COLOURS
from studies.tables import evaluation
from studies.tables.cells import DATASETS, METHODS, Result, quick_cell, read_cells
from studies.tables.lbbnn_schedule import Starts, choose
from studies.tables.paper import ARCHITECTURES, Logits, cell, with_logits
from studies.tables.published import printed
from studies.tables.report import NAMES, TABLES, pipes

__all__ = ["Spec", "drift_density", "draw", "main", "run", "travel"]


@dataclass(frozen=True)
class Spec:
    """Starts of the inclusion logits, and travels: rates follow from them and the number of steps."""

    starts: tuple[tuple[float, float], ...] = ((-15.0, 10.0), (-10.0, 15.0), (0.0, 1.0))
    travels: tuple[float, ...] = (1.0, 3.0, 8.25, 15.0, 30.0, 100.0, 300.0)
    epochs: int = 200
    draws: int = 50
    seed: int = 0

    @classmethod
    def quick(cls, seed: int = 0) -> Spec:
        return cls(travels=(1.0, 100.0), epochs=3, draws=5, seed=seed)


def travel(settings: Settings, steps_per_epoch: int, epochs: int | None = None) -> float:
    """How far a logit can get in so many epochs: the sum of its rate over all steps.

    >>> round(travel(cell("fc", "lrt").settings, 600), 3)
    8.25
    """
    group = "inclusion_logit" if "inclusion_logit" in settings.learning_rates else ""
    number = settings.epochs if epochs is None else epochs
    return steps_per_epoch * sum(settings.rate(group, epoch) for epoch in range(number))


def drift_density(start: Uniform, distance: float) -> float:
    """Share of U(low, high) still above 0 after drifting down by ``distance``.

    >>> drift_density(Uniform(-15.0, 10.0), 8.25)
    0.07
    """
    return min(1.0, max(0.0, start.high - distance) / (start.high - start.low))


def _settings(spec: Spec, rate: float) -> Settings:
    halfway = Steps((spec.epochs // 2,))
    return Settings(
        epochs=spec.epochs,
        batch_size=100,
        learning_rate=0.003,
        learning_rates={"inclusion_logit": rate},
        schedule=halfway,
    )


def run(spec: Spec) -> list[dict[str, Any]]:
    """One row per start and travel: the density and accuracy it ends with, and drift's prediction."""
    data = datasets.load("digits")
    steps = -(-len(data.y_train) // 100)
    per_rate = travel(_settings(spec, 1.0), steps)
    pairs = [(Uniform(*start), distance) for start in spec.starts for distance in spec.travels]
    base = with_logits(quick_cell("fc", "lrt"), Logits(pairs[0][0], 1.0))
    trained = train(
        base.network(),
        (data.x_train, data.y_train),
        likelihood=Categorical(10),
        settings=_settings(spec, 1.0),
        replicates=len(pairs),
        seed=spec.seed,
        per_replicate={"learning_rates.inclusion_logit": [distance / per_rate for _, distance in pairs]},
        device="cpu",
        mode="eager",
        callbacks=[Starts(pairs[0][0], [start for start, _ in pairs])],
    )
    rows = []
    for k, (start, distance) in enumerate(pairs):
        network = trained.replicates.unstack(k).network
        measured = evaluation.evaluate(network, data.x_test, data.y_test, base, spec.draws, trained.seeds[k])
        rows.append(
            {
                "start": [start.low, start.high],
                "travel": distance,
                "rate": distance / per_rate,
                "drift_density": drift_density(start, distance),
                **{name: measured[name] for name in ("density", "accuracy_median", "accuracy_average")},
                "loss": trained.history[-1].loss[k] / len(data.y_train),
            }
        )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as text."""
    lines = [
        f"{'logits start':>14} {'travel':>7} {'density':>8} {'drift':>6} {'median model':>13} {'loss':>7}"
    ]
    for row in rows:
        start = f"U({row['start'][0]:g}, {row['start'][1]:g})"
        numbers = f"{row['density']:>8.3f} {row['drift_density']:>6.3f} {100 * row['accuracy_median']:>13.1f}"
        lines.append(f"{start:>14} {row['travel']:>7g} {numbers} {row['loss']:>7.2f}")
    return "\n".join(lines)


def candidates(results: Path) -> str:
    """``results/densities/tables.md``: LBBNN's candidates on validation rows, the chosen ones in bold."""
    tried: dict[tuple[str, str], list[dict[str, Any]]] = {}
    limits: dict[tuple[str, str], float] = {}
    for path in sorted((results / "lbbnn_schedule").glob("*-*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        spec = content.get("spec")
        if spec is None:
            continue  # the published schedule, which has no candidates
        key = spec["dataset"], spec["architecture"]
        limits[key] = content["most_density"]
        steady = bool(spec.get("steady"))
        tried.setdefault(key, []).extend({**row, "steady": steady} for row in content["rows"])
    lines = []
    for key, rows in tried.items():
        winner = choose(rows, limits[key])
        where = f"{key[0].upper()}, {'fully connected' if key[1] == 'fc' else 'LeNet-5'}"
        for number, row in enumerate(rows):
            accuracies = [f"{100 * row[name]:.2f}" for name in ("accuracy_median", "accuracy_average")]
            cells = [
                where + (", other rates steady" if row["steady"] else ""),
                f"U({row['start'][0]:g}, {row['start'][1]:g})",
                f"{row['rate']:g}",
                *accuracies,
                f"{row['density']:.3f}",
            ]
            lines.append([f"**{entry}**" if number == winner else entry for entry in cells])
    head = ["", "logits start", "rate", "median model, %", "averaging, %", "density"]
    return f"LBBNN on validation rows:\n\n{pipes(head, lines)}\n"


def markdown(rows: Sequence[dict[str, Any]], results: Path) -> str:
    """For the page: the densities of drift and of the paper, and the digits by travel."""
    papers = []
    for architecture, method in ((a, m) for a in ARCHITECTURES for m in ("lrt", "flow")):
        made = cell(architecture, method)
        start = made.initial.inclusion_logit
        assert isinstance(start, Uniform)
        distance = travel(made.settings, 600)
        printed_ones = ", ".join(f"{printed(architecture, d, method).density:.3f}" for d in DATASETS)
        where = "fully connected" if architecture == "fc" else "LeNet-5"
        span = f"U({start.low:g}, {start.high:g})"
        predicted = f"{drift_density(start, distance):.3f}"
        papers.append([f"{NAMES[method]}, {where}", span, f"{distance:.2f}", predicted, printed_ones])
    head = ["", "logits start", "travel", "drift alone", f"the paper ({', '.join(DATASETS).upper()})"]
    digits = [
        [
            f"U({row['start'][0]:g}, {row['start'][1]:g})",
            f"{row['travel']:g}",
            f"{row['drift_density']:.3f}",
            f"{row['density']:.3f}",
            f"{100 * row['accuracy_median']:.1f}",
            f"{row['loss']:.2f}",
        ]
        for row in rows
    ]
    columns = ["logits start", "travel", "drift alone", "density", "median model, %", "−ELBO per row, nats"]
    return f"{pipes(head, papers)}\n\nDigits:\n\n{pipes(columns, digits)}\n"


# --- the picture -------------------------------------------------------------------------------------


def draw(rows: Sequence[dict[str, Any]], results: Path, path: Path) -> None:
    """Above, density and accuracy along training for each method; below, the digits by travel."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 9.6), layout="constrained")
    axes = figure.subplots(3, 2)
    for column, (study, architecture) in enumerate(TABLES.items()):
        stems = [f"{dataset}-{method}" for dataset in DATASETS for method in METHODS]
        _along(axes[0][column], axes[1][column], read_cells(results / study, stems), architecture)
    _by_travel(axes[2][0], rows, "density", "density after training (digits)")
    _by_travel(axes[2][1], rows, "accuracy_median", "accuracy of the median model (digits)")
    figure.savefig(path, dpi=100)


def _along(above: Any, below: Any, cells: dict[str, Result], architecture: str) -> None:
    """The first data set that has results, all methods; dashed, what drift alone would leave."""
    title = "fully connected" if architecture == "fc" else "LeNet-5"
    counts = {d: sum(stem.startswith(f"{d}-") for stem in cells) for d in DATASETS}
    dataset = max(DATASETS, key=lambda d: counts[d])
    above.set_title(f"{dataset.upper()}, {title}" if counts[dataset] else f"{title}: no results yet")
    for number, method in enumerate(METHODS):
        made, colour = cell(architecture, method, dataset), COLOURS[number]
        epochs = range(0, made.settings.epochs + 1, 5)
        start = made.initial.inclusion_logit
        assert isinstance(start, Uniform)
        drift = [drift_density(start, travel(made.settings, 600, epoch)) for epoch in epochs]
        above.plot(list(epochs), drift, "--", color=colour, linewidth=1.0, alpha=0.7)
        found = cells.get(f"{dataset}-{method}")
        if found is None:
            continue
        history = found["history"]
        at, densities = [h["epoch"] + 1 for h in history], [h["density"] for h in history]
        above.plot(at, densities, color=colour, label=NAMES[method])
        looked = [h for h in history if "accuracy_median" in h]
        below.plot(
            [h["epoch"] + 1 for h in looked],
            [100.0 * h["accuracy_median"] for h in looked],
            color=colour,
            label=NAMES[method],
        )
    below.set_visible(bool(cells))
    above.set_ylabel("density; dashed: drift alone")
    below.set_ylabel("accuracy of the median model, %")
    for axis in (above, below):
        axis.set_xlabel("epoch")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False)


def _by_travel(axis: Any, rows: Sequence[dict[str, Any]], key: str, label: str) -> None:
    for number, start in enumerate(dict.fromkeys(tuple(row["start"]) for row in rows)):
        own = [row for row in rows if tuple(row["start"]) == start]
        distances = [row["travel"] for row in own]
        name = f"logits from U({start[0]:g}, {start[1]:g})"
        axis.plot(distances, [row[key] for row in own], "o-", color=COLOURS[number], label=name)
        if key == "density":
            fine = torch.logspace(0.0, 2.5, 60).tolist()
            drift = [drift_density(Uniform(*start), distance) for distance in fine]
            axis.plot(fine, drift, "--", color=COLOURS[number], linewidth=1.0)
    axis.set_xscale("log")
    axis.set_xlabel("how far a logit can travel: rate × steps")
    axis.set_ylabel(label)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)


def _stored(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["rows"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the digits, write their file, their page's tables and the picture; ``--draw``: from files alone."""
    extra = argparse.ArgumentParser(add_help=False)
    extra.add_argument("--draw", action="store_true", help="only the page's tables and the picture")
    claim = "Why these densities: how far the inclusion logits travel."
    study = Study("densities", arguments("densities", claim, argv, [extra]))
    spec = Spec.quick(study.given.seed) if study.given.quick else Spec(seed=study.given.seed)
    results = Path(study.given.out) / "results"
    if study.given.draw:
        rows = _stored(results / "densities" / "densities.json")
    else:
        rows = run(spec)
        print(table(rows))
        seeds = range(spec.seed, spec.seed + len(rows))
        print(f"Wrote {study.save(spec, seeds, rows=rows)}.")
    page = Path(study.given.out) / "docs" / "studies" / "densities.md"
    if page.exists() and not study.given.quick:
        fill_page(page, markdown(rows, results))
        (results / "densities" / "tables.md").write_text(candidates(results), encoding="utf-8")
    try:
        draw(rows, results, study.figure)
    except ImportError:
        print("No picture: it needs matplotlib (pip install 'sparsebnn[plot]').")
    else:
        gap = statistics.fmean(abs(row["density"] - row["drift_density"]) for row in rows)
        print(f"Wrote {study.figure}. Mean distance of density from drift's: {gap:.3f}.")
