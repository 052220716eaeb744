"""The frontier as a curve: target densities × seeds as one program, beside magnitude pruning.

Ours: one program with a target density per replicate, trained as the choice says. Pruned: a deterministic
network of the same shape with the same number of steps in all, cut once to the same densities
(:mod:`~studies.frontier_pruned`). Measured once, on the test rows.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sparsebnn import data as datasets
from sparsebnn.likelihoods import Categorical
from sparsebnn.training import Run, train
from studies import cells, evaluation, frontier_plan, frontier_pruned, provenance
from studies.frontier_choose import chosen
from studies.frontier_plan import TARGETS, Candidate, Lines, cell_of, outcomes
from studies.paper import Cell

__all__ = ["Plan", "finished", "plan", "run", "stem", "targets_of"]

_QUICK_TARGETS = (0.02, 0.10)


def stem(dataset: str, architecture: str, method: str, stage: str = "densities") -> str:
    """The name of a curve's file."""
    return f"{stage}-{dataset}-{architecture}-{method}"


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
        return stem(self.dataset, self.made.architecture, self.method, self.stage)

    @property
    def run_seeds(self) -> list[int]:
        """The seeds that are trained; of pruned networks before the cut."""
        if self.method == "pruned":
            return list(self.seeds)
        return frontier_plan.seeds_over(self.seeds, len(self.targets))

    def settings(self) -> dict[str, Any]:
        """What makes two curves the same, but for targets and seeds."""
        if self.method != "pruned":
            own = {"cut": self.choice.cut, "densities": list(self.targets)}
            return {**self.made.record(), **own, "average_of": self.choice.average_of, "draws": self.draws}
        first, second = frontier_pruned.phases(self.made)
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
    targets, (seeds, _) = targets_of(given), cells.seeds_of(given.replicates, given.seed)
    choice, source = chosen(given, dataset, architecture, method)
    if stage == "targets":
        seeds = seeds[: given.seeds]
        choice = replace(choice, refit=0.0, cut="gradual", average_of="refitted")
    of_method = "lrt" if method == "pruned" else method
    made = cell_of(architecture, of_method, dataset, given.quick, given.epochs)
    made = frontier_plan.with_candidate(made, choice, targets[0])
    return Plan(stage, dataset, method, made, choice, source, targets, tuple(seeds), given.draws)


def finished(path: Path, asked: Plan) -> bool:
    """Whether the curve's file is there; one of other settings is an error."""
    if not path.exists():
        return False
    content = json.loads(path.read_text(encoding="utf-8"))
    settings = {name: value for name, value in content["settings"].items() if name != "dense_network"}
    targets = [block["target"] for block in content["rows"]]
    there = {"targets": targets, "seeds": content["seeds"], **settings}
    own = {"targets": list(asked.targets), "seeds": asked.run_seeds, **asked.settings()}
    cells.check_same(path, there, provenance.rounded(own))
    return True


def run(given: argparse.Namespace, data: datasets.Dataset, asked: Plan) -> dict[str, Any]:
    """One curve: a block per target density, in it a row per seed that did not stop."""
    began = time.perf_counter()
    curve = _pruned if asked.method == "pruned" else _ours
    blocks, runs, found = curve(given, data, asked)
    place = (asked.dataset, asked.made.architecture, asked.method)
    return {
        **frontier_plan.record(given, asked.stage, *place, frontier_plan.spent(runs)),
        "settings": {**asked.settings(), **found},
        "chosen_by": asked.chosen_by,
        "seeds": runs[0].seeds,
        "seconds": round(time.perf_counter() - began, 1),
        "rows": [{"target": t, "replicates": rows} for t, rows in zip(asked.targets, blocks)],
    }


_Found = tuple[list[list[dict[str, Any]]], list[Run], dict[str, Any]]


def _ours(given: argparse.Namespace, data: datasets.Dataset, asked: Plan) -> _Found:
    made, choice, count = asked.made, asked.choice, len(asked.seeds)
    each = [target for target in asked.targets for _ in asked.seeds]
    before, *cut = frontier_plan.watchers(choice.cut, each)
    turn = frontier_plan.turn(given)
    with turn:
        trained = train(
            made.network(),
            (evaluation.inputs(data.x_train, made, data.image_shape), data.y_train),
            likelihood=Categorical(made.sizes[-1]),
            settings=made.settings,
            replicates=asked.run_seeds,
            per_replicate={"target_density": each} if choice.cut != "late" else {},
            callbacks=[before, *cut, turn, Lines(asked.label, given.quiet)],
            **frontier_plan.train_options(given),
        )
    x, y = evaluation.test_rows(data, made, trained.batches.x.device)
    blocks: list[list[dict[str, Any]]] = [[] for _ in asked.targets]
    gone = frontier_plan.gone(trained)
    for k, seed in enumerate(trained.seeds):
        if k not in gone:
            row = frontier_plan.measured(outcomes(trained, before, k, x, made, asked.draws), y)
            blocks[k // count].append({"seed": seed, **frontier_plan.of_state(row, choice.average_of)})
    return blocks, [trained], {}


def _pruned(given: argparse.Namespace, data: datasets.Dataset, asked: Plan) -> _Found:
    """``seed`` of a row is of the network before the cut, ``refit_seed`` of the training after it."""
    made, seeds = asked.made, asked.seeds
    rows_in = (evaluation.inputs(data.x_train, made, data.image_shape), data.y_train)
    rates = [asked.choice.rate for _ in seeds]
    dense, cut = frontier_pruned.trained(given, rows_in, made, rates, seeds, asked.targets, asked.label)
    x, y = evaluation.test_rows(data, made, cut.batches.x.device)
    blocks: list[list[dict[str, Any]]] = [[] for _ in asked.targets]
    before, after = frontier_plan.gone(dense), frontier_plan.gone(cut)
    for k, network in enumerate(cut.networks):
        t, own = divmod(k, len(seeds))
        if k in after or own in before:
            continue
        row = evaluation.evaluate(network, x, y, made, 1, 0)
        row.pop("density_per_layer")
        blocks[t].append({"seed": dense.seeds[own], "refit_seed": cut.seeds[k], **row})
    found = {"dense_network": _dense_rows(dense, x, y, made)}
    return blocks, [dense, cut], found


def _dense_rows(dense: Run, x: torch.Tensor, y: torch.Tensor, made: Cell) -> list[dict[str, Any]]:
    """The deterministic networks before they are cut: accuracy, NLL and ECE."""
    rows, gone = [], frontier_plan.gone(dense)
    for k, (seed, network) in enumerate(zip(dense.seeds, dense.networks)):
        if k not in gone:
            row = evaluation.evaluate(network, x, y, made, 1, 0)
            rows.append({"seed": seed, **{n: row[f"{n}_median"] for n in ("accuracy", "nll", "ece")}})
    return rows
