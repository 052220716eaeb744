"""Sparsity as smaller matrices: inclusions shared by whole inputs, neurons and filters.

A network that keeps a tenth of its weights one by one still needs nearly all of its rows and columns. When
all weights of an input, of a neuron or of a filter share one γ, what goes leaves a smaller ordinary network
(:func:`sparsebnn.nn.compact`). Trained with the recommended recipe, single weights to a tenth of the
network, groups to three tenths of each layer; the compacted network's outputs are compared with the median
model's at its means.

In ``output`` a neuron or filter goes with its incoming weights. The last layer's outputs are the classes and
stay, so there ``input`` is shared: a hidden unit can also go by what leaves it.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn import data as datasets
from sparsebnn import metrics
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.compaction import Compacted, compact
from sparsebnn.nn.description import density
from sparsebnn.nn.layers import Linear
from sparsebnn.nn.networks import bayesian_layers
from sparsebnn.nn.passes import MedianPass
from sparsebnn.random.noise import NoiseCounter
from sparsebnn.training import Run, train
from studies.frontier import plan as frontier_plan
from studies.frontier.plan import Candidate, Lines
from studies.runner import Study, arguments, count, fill_page
from studies.tables import evaluation
from studies.tables.cells import DATASETS
from studies.tables.paper import ARCHITECTURES, Cell
from studies.tables.report import pipes

__all__ = ["SHARES", "main", "markdown", "run"]

SHARES = {"fc": ("weight", "input", "output"), "lenet": ("weight", "output")}
# Single weights: a tenth of the network. Groups: three tenths of each layer, so that both sides of a matrix
# shrink to that.
_WEIGHTS, _GROUPS = 0.1, 0.3
_DRAWS = {False: 50, True: 5}  # in full, quick
_NAMES = {"weight": "each weight", "input": "inputs of a layer", "output": "neurons and filters"}
_WHERE = {"fc": "fully connected", "lenet": "LeNet-5"}


def network_of(made: Cell, share: str) -> nn.Sequential:
    """The cell's network with shared inclusions; the last layer never shares by output."""
    network = made.network(family_options={"group_by": share})
    if share == "output":
        last = network[-1]
        assert isinstance(last, Linear)
        network[-1] = Linear(
            last.in_features,
            last.out_features,
            family=made.family,
            prior=last.weights.prior,  # type: ignore[arg-type]
            initial=made.dense_initial,
            family_options={"group_by": "input"},
        )
    return network


@torch.no_grad()
def distance(network: nn.Module, small: Compacted, x: Tensor) -> tuple[float, float]:
    """The largest difference of outputs from the median model at its means, and the largest output."""
    with MedianPass(NoiseCounter()):
        wanted = network(x)
    return float((small.network(x) - wanted).abs().max()), float(wanted.abs().max())


def distance_in_double(network: nn.Module, x: Tensor) -> float:
    """The largest difference when both networks count in double precision: what is not rounding."""
    exact = copy.deepcopy(network).double()
    return distance(exact, compact(exact), x.double())[0]


def run(
    given: argparse.Namespace, data: datasets.Dataset, architecture: str, share: str
) -> tuple[list[dict[str, Any]], Run]:
    """Train, compact, compare: a row per seed."""
    made = frontier_plan.cell_of(architecture, "lrt", given.dataset, given.quick, given.epochs)
    rate = made.settings.learning_rates["inclusion_logit"]
    choice = Candidate(given.temperature, made.settings.learning_rate, rate, 0.2, "gradual")
    layers = sum(1 for _ in bayesian_layers(made.network()))
    target = _WEIGHTS if share == "weight" else (_GROUPS,) * layers
    made = frontier_plan.with_candidate(made, choice, target)
    trained = train(
        network_of(made, share),
        (evaluation.inputs(data.x_train, made, data.image_shape), data.y_train),
        likelihood=Categorical(made.sizes[-1]),
        settings=made.settings,
        replicates=given.replicates,
        seed=given.seed,
        device=given.device,
        callbacks=[Lines(f"{architecture}, {share}")],
        progress=False,
    )
    x, y = evaluation.test_rows(data, made, trained.batches.x.device)
    x = x.float() / 255.0 if x.dtype == torch.uint8 else x
    rows = []
    for seed, network in zip(trained.seeds, trained.networks):
        small = compact(network)
        with torch.no_grad():
            outputs = small.network(x)
        row = evaluation.evaluate(network, x, y, made, given.draws, seed)
        difference, largest = distance(network, small, x)
        rows.append(
            {
                "seed": seed,
                "density": density(network).overall,
                "accuracy_median": row["accuracy_median"],
                "accuracy_compacted": metrics.accuracy(torch.softmax(outputs, -1), y),
                "units_before": [before for before, _ in small.units],
                "units_after": [after for _, after in small.units],
                "inputs_after": len(small.inputs),
                "numbers_before": small.weights[0],
                "numbers_after": small.weights[1],
                "nonzero": small.nonzero,
                "bytes_before": _bytes(network, posterior=True),
                "bytes_after": _bytes(small.network),
                "largest_difference": difference,
                "largest_output": largest,
                "largest_difference_in_double": distance_in_double(network, x[:1000]),
            }
        )
    return rows, trained


def _bytes(network: nn.Module, posterior: bool = False) -> int:
    """What the parameters take; of a posterior, its means alone, as a plain network of that shape would."""
    kept = [p for n, p in network.named_parameters() if not posterior or n.endswith(".mean")]
    return sum(p.numel() * p.element_size() for p in kept)


def markdown(contents: Sequence[dict[str, Any]]) -> str:
    """Medians over seeds, a row per network and kind of sharing."""
    head = ["", "γ shared by", "density", "median model, %", "compacted, %", "units left, by layer"]
    head += ["numbers stored", "of", "size", "relative difference", "in double precision"]
    lines = []
    for content in contents:
        for block in content["blocks"]:
            rows = block["rows"]

            def middle(name: str, rows: list[dict[str, Any]] = rows) -> float:
                return float(np.median([row[name] for row in rows]))

            units = np.median([row["units_after"] for row in rows], axis=0)
            pairs = " ".join(f"{u:.0f}/{b}" for u, b in zip(units, rows[0]["units_before"]))
            lines.append(
                [
                    f"{content['dataset']}, {_WHERE[block['architecture']]}",
                    _NAMES[block["share"]],
                    f"{middle('density'):.3f}",
                    f"{100 * middle('accuracy_median'):.2f}",
                    f"{100 * middle('accuracy_compacted'):.2f}",
                    pairs,
                    f"{middle('numbers_after'):,.0f}",
                    f"{middle('numbers_before'):,.0f}",
                    f"{100 * middle('bytes_after') / middle('bytes_before'):.1f}%",
                    f"{max(row['largest_difference'] / row['largest_output'] for row in rows):.1e}",
                    f"{max(row['largest_difference_in_double'] for row in rows):.1e}",
                ]
            )
    return pipes(head, lines) + "\n"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    add = parser.add_argument
    add("--dataset", choices=[*DATASETS, "digits"], default="digits")
    add("--architectures", nargs="+", choices=ARCHITECTURES, default=["fc"], help="default fc")
    add("--replicates", type=count, help="seeds (default 3, quick 2)")
    add("--epochs", type=count, help="default 100")
    add("--temperature", type=float, default=0.1)
    add("--draws", type=count, help="draws of the median model (default 50)")
    add("--data", type=Path, help="folder with the data sets")
    add("--device", default="auto")
    claim = "Sparsity as smaller matrices: inclusions shared by inputs, neurons and filters."
    given = arguments("groups", claim, argv, [parser])
    given.replicates = given.replicates or (2 if given.quick else 3)
    given.draws = given.draws or _DRAWS[given.quick]
    return given


def _stored(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study, write its file, renew its table in ``docs/studies/groups.md``."""
    given = _arguments(argv)
    study = Study("groups", given)
    data = datasets.load(given.dataset, root=given.data)
    blocks, seconds = [], 0.0
    for architecture in given.architectures:
        for share in SHARES[architecture]:
            rows, trained = run(given, data, architecture, share)
            blocks.append({"architecture": architecture, "share": share, "rows": rows})
            seconds += trained.train_seconds
            study.device = trained.batches.x.device
    content = {
        "dataset": given.dataset,
        "target_density": {"weight": _WEIGHTS, "groups, by layer": _GROUPS},
        "train_seconds": seconds,
        "blocks": blocks,
    }
    seeds = range(given.seed, given.seed + given.replicates)
    path = study.save(None, seeds, stem=f"{given.dataset}-{'-'.join(given.architectures)}", **content)
    print(markdown([content]))
    print(f"Wrote {path}.")
    page = given.out / "docs" / "studies" / "groups.md"
    if page.exists() and not given.quick:
        fill_page(page, markdown(_stored(study.folder)))
