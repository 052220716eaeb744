"""The frontier as a curve: target densities × seeds as one program, beside magnitude pruning.

Ours: one program with a target density per replicate, trained as the choice says. Pruned: a deterministic
network of the same shape, trained for as many epochs as our free part, cut once to the same densities by
magnitude over all layers, and trained for as many epochs as our refit; Adam at 1e-3 with a cosine in both
parts (digits: 1e-2). So both see the same number of steps. Measured once, on the test rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from sparsebnn import data as datasets
from sparsebnn.baselines.deterministic import Deterministic, plain_lenet, plain_mlp
from sparsebnn.baselines.pruned import refit_pruned
from sparsebnn.experiments import cells, evaluation, frontier_plan
from sparsebnn.experiments.frontier_choose import chosen
from sparsebnn.experiments.frontier_plan import TARGETS, Candidate, Lines, cell_of
from sparsebnn.experiments.paper import Cell
from sparsebnn.likelihoods import Categorical
from sparsebnn.training import BeforeRefit, Run, Settings, train

__all__ = ["run", "stem", "targets_of"]

_QUICK_TARGETS = (0.02, 0.10)


def stem(dataset: str, architecture: str, method: str) -> str:
    """The name of a curve's file."""
    return f"densities-{dataset}-{architecture}-{method}"


def targets_of(given: argparse.Namespace) -> tuple[float, ...]:
    """The target densities asked for."""
    return tuple(given.targets or (_QUICK_TARGETS if given.quick else TARGETS))


def run(
    given: argparse.Namespace, data: datasets.Dataset, dataset: str, architecture: str, method: str
) -> dict[str, Any]:
    """One curve: a block per target density, a row per seed in it."""
    began = time.perf_counter()
    targets, (seeds, _) = targets_of(given), cells.seeds_of(given.replicates, given.seed)
    by = "lrt" if method == "pruned" else method
    choice, source = chosen(given, dataset, architecture, by)
    made = frontier_plan.with_candidate(cell_of(architecture, by, dataset, given.quick, given.epochs), choice)
    curve = _pruned if method == "pruned" else _ours
    rows, runs, settings = curve(
        given, data, made, choice, targets, seeds, stem(dataset, architecture, method)
    )
    blocks = [
        {"target": target, "replicates": rows[t * len(seeds) : (t + 1) * len(seeds)]}
        for t, target in enumerate(targets)
    ]
    return {
        **frontier_plan.record(given, "densities", dataset, architecture, method, runs),
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
    before, turn = BeforeRefit(), frontier_plan.turn(given)
    with turn.held:
        trained = train(
            made.network(),
            (evaluation.inputs(data.x_train, made, data.image_shape), data.y_train),
            likelihood=Categorical(made.sizes[-1]),
            settings=made.settings,
            replicates=len(each),
            seed=seeds[0],
            vary={"target_density": each},
            callbacks=[before, turn, Lines(label, given.quiet)],
            **frontier_plan.train_options(given),
        )
    x, y = evaluation.test_rows(data, made, trained.batches.x.device)
    rows = []
    for k, seed in enumerate(trained.seeds):
        row = frontier_plan.measured(trained, before, k, x, y, made, given.draws)
        rows.append({"seed": seed, **frontier_plan.of_state(row, choice.average_of)})
    settings = {**made.record(), "average_of": choice.average_of}
    settings["settings"] = {**settings["settings"], "target_density": list(targets)}
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
    ours = made.settings
    first = Settings(epochs=ours.refit_from, batch_size=ours.batch_size, learning_rate=ours.learning_rate)
    second = replace(first, epochs=max(1, ours.epochs - ours.refit_from))
    rows_in = (evaluation.inputs(data.x_train, made, data.image_shape), data.y_train)
    options = frontier_plan.train_options(given) | {"likelihood": Categorical(made.sizes[-1])}
    turn = frontier_plan.turn(given)
    with turn.held:
        dense = train(
            _plain(made),
            rows_in,
            settings=first,
            replicates=list(seeds),
            callbacks=[turn, Lines(f"{label}, dense", given.quiet)],
            **options,
        )
        networks = dense.networks
        trained = refit_pruned(
            [network for _ in targets for network in networks],
            [target for target in targets for _ in seeds],
            rows_in,
            settings=second,
            seed=seeds[0],
            callbacks=[turn, Lines(f"{label}, refit", given.quiet)],
            **options,
        )
    x, y = evaluation.test_rows(data, made, trained.batches.x.device)
    rows = []
    for k, network in enumerate(trained.networks):
        row = evaluation.evaluate(network, x, y, made, 1, 0)
        row.pop("density_per_layer")
        rows.append({"seed": seeds[k % len(seeds)], **row})
    settings = {
        "network": "deterministic, magnitude-pruned over all layers in one shot, refitted",
        "sizes": list(made.sizes),
        "dense": {"epochs": first.epochs, "learning_rate": first.learning_rate, "schedule": "cosine"},
        "refit": {"epochs": second.epochs, "learning_rate": second.learning_rate, "schedule": "cosine"},
        "batch_size": first.batch_size,
        "dense_network": _dense_rows(networks, seeds, x, y, made),
    }
    return rows, [dense, trained], settings


def _plain(made: Cell) -> Deterministic:
    return plain_mlp(made.sizes) if made.architecture == "fc" else plain_lenet(made.sizes[-1])


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
