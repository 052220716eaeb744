"""The frontier as a curve: target densities × seeds as one program, beside magnitude pruning.

Ours: one program with a target density per replicate, trained as the choice says. Pruned: a deterministic
network of the same shape with the same number of steps in all, cut once to the same densities
(:mod:`~sparsebnn.experiments.frontier_pruned`). Measured once, on the test rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from sparsebnn import data as datasets
from sparsebnn.experiments import cells, evaluation, frontier_plan, frontier_pruned
from sparsebnn.experiments.frontier_choose import chosen
from sparsebnn.experiments.frontier_plan import TARGETS, Candidate, Lines, cell_of
from sparsebnn.experiments.paper import Cell
from sparsebnn.likelihoods import Categorical
from sparsebnn.training import Run, train

__all__ = ["run", "stem", "targets_of"]

_QUICK_TARGETS = (0.02, 0.10)


def stem(dataset: str, architecture: str, method: str, stage: str = "densities") -> str:
    """The name of a curve's file."""
    return f"{stage}-{dataset}-{architecture}-{method}"


def targets_of(given: argparse.Namespace) -> tuple[float, ...]:
    """The target densities asked for."""
    return tuple(given.targets or (_QUICK_TARGETS if given.quick else TARGETS))


def run(
    given: argparse.Namespace,
    data: datasets.Dataset,
    dataset: str,
    architecture: str,
    method: str,
    stage: str = "densities",
) -> dict[str, Any]:
    """One curve: a block per target density, a row per seed in it.

    ``stage="targets"`` is about the controller alone: a few seeds, a gradual cut and no refit after it.
    """
    began = time.perf_counter()
    targets, (seeds, _) = targets_of(given), cells.seeds_of(given.replicates, given.seed)
    of_method = "lrt" if method == "pruned" else method
    choice, source = chosen(given, dataset, architecture, method)
    if stage == "targets":
        seeds = seeds[: given.seeds]
        choice = replace(choice, refit=0.0, cut="gradual", average_of="refitted")
    made = cell_of(architecture, of_method, dataset, given.quick, given.epochs)
    made = frontier_plan.with_candidate(made, choice, targets[0])
    curve = _pruned if method == "pruned" else _ours
    rows, runs, settings = curve(
        given, data, made, choice, targets, seeds, stem(dataset, architecture, method, stage)
    )
    blocks = [
        {"target": target, "replicates": rows[t * len(seeds) : (t + 1) * len(seeds)]}
        for t, target in enumerate(targets)
    ]
    return {
        **frontier_plan.record(given, stage, dataset, architecture, method, frontier_plan.spent(runs)),
        "settings": {**settings, "draws": given.draws},
        "chosen_by": source,
        "seeds": seeds,
        "seconds": round(time.perf_counter() - began, 1),
        "rows": blocks,
    }


_Found = tuple[list[dict[str, Any]], list[Run], dict[str, Any]]


def _ours(
    given: argparse.Namespace,
    data: datasets.Dataset,
    made: Cell,
    choice: Candidate,
    targets: Sequence[float],
    seeds: Sequence[int],
    label: str,
) -> _Found:
    each = [target for target in targets for _ in seeds]
    before, *cut = frontier_plan.watchers(choice.cut, each)
    turn = frontier_plan.turn(given)
    with turn:
        trained = train(
            made.network(),
            (evaluation.inputs(data.x_train, made, data.image_shape), data.y_train),
            likelihood=Categorical(made.sizes[-1]),
            settings=made.settings,
            replicates=len(each),
            seed=seeds[0],
            vary={"target_density": each} if choice.cut != "late" else {},
            callbacks=[before, *cut, turn, Lines(label, given.quiet)],
            **frontier_plan.train_options(given),
        )
    x, y = evaluation.test_rows(data, made, trained.batches.x.device)
    rows = []
    for k, seed in enumerate(trained.seeds):
        row = frontier_plan.measured(trained, before, k, x, y, made, given.draws)
        rows.append({"seed": seed, **frontier_plan.of_state(row, choice.average_of)})
    own = {"cut": choice.cut, "densities": list(targets), "average_of": choice.average_of}
    settings = {**made.record(), **own}
    return rows, [trained], settings


def _pruned(
    given: argparse.Namespace,
    data: datasets.Dataset,
    made: Cell,
    choice: Candidate,
    targets: Sequence[float],
    seeds: Sequence[int],
    label: str,
) -> _Found:
    rows_in = (evaluation.inputs(data.x_train, made, data.image_shape), data.y_train)
    rates = [choice.rate for _ in seeds]
    dense, cut = frontier_pruned.trained(given, rows_in, made, rates, targets, label)
    x, y = evaluation.test_rows(data, made, cut.batches.x.device)
    rows = []
    for k, network in enumerate(cut.networks):
        row = evaluation.evaluate(network, x, y, made, 1, 0)
        row.pop("density_per_layer")
        rows.append({"seed": seeds[k % len(seeds)], **row})
    first, second = frontier_pruned.phases(made)
    settings = {
        "network": "deterministic, magnitude-pruned over all layers in one shot, refitted",
        "sizes": list(made.sizes),
        "dense": {"epochs": first.epochs, "learning_rate": first.learning_rate, "schedule": "cosine"},
        "refit": {"epochs": second.epochs, "learning_rate": second.learning_rate, "schedule": "cosine"},
        "batch_size": first.batch_size,
        "dense_network": _dense_rows(dense.networks, seeds, x, y, made),
    }
    return rows, [dense, cut], settings


def _dense_rows(
    networks: Sequence[torch.nn.Module],
    seeds: Sequence[int],
    x: torch.Tensor,
    y: torch.Tensor,
    made: Cell,
) -> list[dict[str, Any]]:
    """The deterministic networks before they are cut: accuracy, NLL and ECE."""
    rows = []
    for seed, network in zip(seeds, networks):
        row = evaluation.evaluate(network, x, y, made, 1, 0)
        rows.append({"seed": seed, **{n: row[f"{n}_median"] for n in ("accuracy", "nll", "ece")}})
    return rows
