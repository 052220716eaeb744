"""The frontier as a curve: target densities × seeds as one program, against magnitude pruning.

Ours: one program with a target density per replicate, trained as the choice says. Pruned: a deterministic
network of the same shape with the same number of steps in all, cut once to the same densities
(:mod:`~studies.frontier.pruned`). Measured once, on the test rows.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sparsebnn import data as datasets
from sparsebnn.app.provenance import rounded
from sparsebnn.likelihoods import Categorical
from sparsebnn.training import Run, train
from studies.frontier import plan as plans
from studies.frontier import pruned, stored
from studies.frontier.plan import TARGETS, Candidate, Lines, cell_of, outcomes
from studies.runner import Study
from studies.tables import evaluation
from studies.tables.cells import seeds_of
from studies.tables.paper import Cell

__all__ = ["Plan", "plan", "run", "targets_of"]

_QUICK_TARGETS = (0.02, 0.10)


def targets_of(given: argparse.Namespace) -> tuple[float, ...]:
    """The target densities asked for."""
    return tuple(given.targets or (_QUICK_TARGETS if given.quick else TARGETS))


@dataclass(frozen=True)
class Plan:
    """A curve that is asked for: whose choice it follows, to what densities, with what seeds.

    ``seeds`` are those of the first target; the next target's are moved by their reach. Pruned networks
    are the same at every target before they are cut.
    """

    stage: str
    dataset: str
    method: str
    made: Cell
    choice: Candidate
    chosen_by: str
    targets: tuple[float, ...]
    seeds: tuple[int, ...]
    draws: int

    @property
    def label(self) -> str:
        return stored.stem(self.stage, self.dataset, self.made.architecture, self.method)

    @property
    def run_seeds(self) -> list[int]:
        """The seeds that are trained; of pruned networks before the cut."""
        if self.method == "pruned":
            return list(self.seeds)
        return plans.seeds_over(self.seeds, len(self.targets))

    @property
    def runs(self) -> list[tuple[float, int, int]]:
        """Target, seed and refit's seed of each replicate; pruned networks share seeds before the cut."""
        after = plans.seeds_over(self.seeds, len(self.targets))
        each = [target for target in self.targets for _ in self.seeds]
        own = list(self.seeds) * len(self.targets) if self.method == "pruned" else after
        return list(zip(each, own, after))

    def settings(self) -> dict[str, Any]:
        """What makes two curves the same, but for targets and seeds."""
        if self.method != "pruned":
            own = {"cut": self.choice.cut, "densities": list(self.targets)}
            return {**self.made.record(), **own, "average_of": self.choice.average_of, "draws": self.draws}
        first, second = pruned.phases(self.made)
        return {
            "network": "deterministic, magnitude-pruned over all layers in one shot, refitted",
            "sizes": list(self.made.sizes),
            "dense": {"epochs": first.epochs, "learning_rate": first.learning_rate, "schedule": "cosine"},
            "refit": {"epochs": second.epochs, "learning_rate": second.learning_rate, "schedule": "cosine"},
            "batch_size": first.batch_size,
            "draws": self.draws,
        }


def plan(
    given: argparse.Namespace, dataset: str, architecture: str, method: str, stage: str = "densities"
) -> Plan:
    """What the command asks for; ``stage="targets"`` is about the controller alone.

    That has a few seeds, a gradual cut and no refit after it.
    """
    targets, seeds = targets_of(given), seeds_of(given.replicates, given.seed)
    choice, source = stored.chosen(Path(given.out), dataset, architecture, method, given.chosen_on)
    if stage == "targets":
        seeds = seeds[: given.seeds]
        choice = replace(choice, refit=0.0, cut="gradual", average_of="refitted")
    of_method = "lrt" if method == "pruned" else method
    made = cell_of(architecture, of_method, dataset, given.quick, given.epochs)
    made = plans.with_candidate(made, choice, targets[0])
    return Plan(stage, dataset, method, made, choice, source, targets, tuple(seeds), given.draws)


def _finished(folder: Path, asked: Plan) -> bool:
    """Whether every target and seed has a result with these settings."""
    place = (asked.stage, asked.dataset, asked.made.architecture, asked.method)
    settings = stored.plain(asked.settings())
    rows = [row for row in stored.rows_of(folder, *place) if row["settings"] == settings]
    seeds = {(row["target"], row["seed"]) for row in rows}
    if {(target, seed) for target, seed, _ in asked.runs} <= seeds:
        return True
    path = folder / f"{asked.label}.json"
    if not path.exists():
        return False
    content = json.loads(path.read_text(encoding="utf-8"))
    own = {name: value for name, value in content["settings"].items() if name != "dense_network"}
    targets = [block["target"] for block in content["rows"]]
    return (own, targets, content["seeds"]) == (settings, list(asked.targets), asked.run_seeds)


def run(study: Study, dataset: str, architecture: str, method: str, stage: str) -> None:
    """Train one curve and append a row per target density and seed that did not stop."""
    given = study.given
    asked = plan(given, dataset, architecture, method, stage)
    if _finished(study.folder, asked):
        print(f"{asked.label}: already there", flush=True)
        return
    data = datasets.load(dataset, root=given.data)
    rows, runs = (_pruned if method == "pruned" else _ours)(given, data, asked)
    made: dict[str, Any] = {
        "stage": stage,
        "dataset": dataset,
        "architecture": architecture,
        "method": method,
    }
    made |= {"settings": stored.plain(asked.settings()), "chosen_by": asked.chosen_by, "mode": runs[0].mode}
    made["train_seconds"] = sum(one.train_seconds for one in runs) / len(rows)
    study.append([rounded({**made, **row}) for row in rows], runs[0].batches.x.device)


_Found = tuple[list[dict[str, Any]], list[Run]]


def _ours(given: argparse.Namespace, data: datasets.Dataset, asked: Plan) -> _Found:
    made, choice = asked.made, asked.choice
    each = [target for target, _, _ in asked.runs]
    before, *cut = plans.watchers(choice.cut, each)
    trained = train(
        made.network(),
        (evaluation.inputs(data.x_train, made, data.image_shape), data.y_train),
        likelihood=Categorical(made.sizes[-1]),
        settings=made.settings,
        replicates=asked.run_seeds,
        per_replicate={"target_density": each} if choice.cut != "late" else {},
        callbacks=[before, *cut, Lines(asked.label, given.quiet)],
        **plans.train_options(given),
    )
    x, y = evaluation.test_rows(data, made, trained.batches.x.device)
    rows, gone = [], plans.gone(trained)
    for k, (target, seed, _) in enumerate(asked.runs):
        if k not in gone:
            row = plans.measured(outcomes(trained, before, k, x, made, asked.draws), y)
            rows.append({"target": target, "seed": seed, **plans.of_state(row, choice.average_of)})
    return rows, [trained]


def _pruned(given: argparse.Namespace, data: datasets.Dataset, asked: Plan) -> _Found:
    """``seed`` of a row is of the network before the cut, ``refit_seed`` of the training after it."""
    made, seeds = asked.made, asked.seeds
    rows_in = (evaluation.inputs(data.x_train, made, data.image_shape), data.y_train)
    rates = [asked.choice.rate for _ in seeds]
    dense, cut = pruned.trained(given, rows_in, made, rates, seeds, asked.targets, asked.label)
    x, y = evaluation.test_rows(data, made, cut.batches.x.device)
    before, after = _dense(dense, x, y, made), plans.gone(cut)
    rows = []
    for k, (target, seed, refit_seed) in enumerate(asked.runs):
        if k not in after and seed in before:
            row = evaluation.evaluate(cut.networks[k], x, y, made, 1, 0)
            row.pop("density_per_layer")
            rows.append({"target": target, "seed": seed, "refit_seed": refit_seed, **row, **before[seed]})
    return rows, [dense, cut]


def _dense(dense: Run, x: torch.Tensor, y: torch.Tensor, made: Cell) -> dict[int, dict[str, float]]:
    """Measures of the deterministic networks before they are cut, by seed."""
    found, gone = {}, plans.gone(dense)
    for k, (seed, network) in enumerate(zip(dense.seeds, dense.networks)):
        if k not in gone:
            row = evaluation.evaluate(network, x, y, made, 1, 0)
            found[seed] = {f"{n}_dense": row[f"{n}_median"] for n in ("accuracy", "nll", "ece")}
    return found
