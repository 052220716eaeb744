"""Images of another kind: networks trained on one of MNIST, FMNIST, KMNIST, asked about the other two.

Entropy, mutual information and the maximum model-averaged output, each as a score that should be larger
for images of another kind (AUROC, FPR@95, and the share above the 95% quantile of the training rows).
The maximum output is taken as in the cluster study, large means foreign; an AUROC below one half says
that the opposite sign is the better detector.

Run: ``python -m studies image_ood --data FOLDER``, where FOLDER holds ``mnist.npz``, ``fmnist.npz`` and
``kmnist.npz`` with x_train, y_train, x_test, y_test. The replicates of a method train as one program. Rows
are appended to ``results/image_ood/rows.jsonl``; a method and data set that has a row with the same settings
is skipped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsebnn import data as datasets
from sparsebnn.app.provenance import rounded
from sparsebnn.checks import check_choice, check_count
from sparsebnn.io.data import Dataset
from sparsebnn.training import Run, Settings, train
from sparsebnn.training.arguments import MODES
from studies.baselines.deterministic import plain_lenet, plain_mlp
from studies.image_ood.judge import LIKELIHOOD, columns, judge, shaped
from studies.image_ood.report import fill, line
from studies.runner import Study, arguments, count, read_rows
from studies.tables.paper import ARCHITECTURES, cell

__all__ = ["METHODS", "PROGRAMS", "Spec", "columns", "main", "run"]

NAMES = ("mnist", "fmnist", "kmnist")
# What is trained as one program, and the methods that it serves: a plain network is the first member of
# an ensemble, so plain networks are not trained twice.
PROGRAMS = {
    "flow": ("flow",),
    "lrt": ("lrt",),
    "dense": ("dense",),
    "plain": ("plain", "ensemble"),
    "dropout": ("dropout",),
}
METHODS = ("lrt", "flow", "dense", "dropout", "plain", "ensemble")
Row = dict[str, Any]


@dataclass(frozen=True)
class Spec:
    """The study. ``rate`` None is the paper's 1e-4; milestones shrink with the epochs.

    An inclusion logit travels at most about rate × steps, so ``epochs=20, rate=1.25e-3`` lets it travel as
    far as the paper's 250 epochs at 1e-4.
    """

    architecture: str = "fc"
    train_on: tuple[str, ...] = NAMES
    methods: tuple[str, ...] = METHODS
    epochs: int = 250
    plain_epochs: int = 20
    rate: float | None = None
    rows: int | None = None
    test_rows: int | None = None
    replicates: int = 10
    members: int = 5
    n_draws: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(self.architecture, ARCHITECTURES, "architecture", "image_ood")
        for name in self.train_on:
            check_choice(name, NAMES, "train_on", "image_ood")
        for name in self.methods:
            check_choice(name, METHODS, "methods", "image_ood")
        for what in ("epochs", "plain_epochs", "replicates", "members", "n_draws"):
            check_count(getattr(self, what), what, "image_ood")

    @property
    def programs(self) -> list[str]:
        """The programs whose methods are asked for; the longest comes first."""
        return [name for name, methods in PROGRAMS.items() if set(methods) & set(self.methods)]

    def only(self, program: str) -> Spec:
        """The part of the study that one program does."""
        return replace(self, methods=tuple(m for m in self.methods if m in PROGRAMS[program]))


def training(spec: Spec, program: str) -> tuple[nn.Module, Settings, int]:
    """Network, settings and number of networks of a program."""
    if program in ("lrt", "flow", "dense"):
        like = cell(spec.architecture, "flow" if program == "flow" else "lrt").for_epochs(spec.epochs)
        options: dict[str, Any] = {"family": "gaussian", "prior": None} if program == "dense" else {}
        settings = replace(like.settings, learning_rate=spec.rate or like.settings.learning_rate)
        return like.network(**options), settings, spec.replicates
    dropout = 0.5 if program == "dropout" else 0.0
    fc = spec.architecture == "fc"
    network = plain_mlp([784, 400, 600, 10], dropout=dropout) if fc else plain_lenet(dropout=dropout)
    settings = Settings(epochs=spec.plain_epochs, batch_size=100, learning_rate=1e-3)
    members = spec.members if program == "plain" and "ensemble" in spec.methods else 1
    return network, settings, spec.replicates * members


def expected_steps(spec: Spec, rows: int) -> str:
    """What will be trained, in words: a line per program.

    >>> print(expected_steps(Spec(methods=("lrt",), train_on=("mnist",), epochs=20), rows=60_000))
    lrt: 10 networks as one program, 20 epochs of 600 steps on mnist: 12,000 steps
    """
    lines = []
    for program in spec.programs:
        _, settings, count = training(spec.only(program), program)
        per_epoch = -(-min(rows, spec.rows or rows) // settings.batch_size)
        total = settings.epochs * per_epoch * len(spec.train_on)
        where = ", ".join(spec.train_on)
        lines.append(
            f"{program}: {count} networks as one program, {settings.epochs} epochs of {per_epoch} steps "
            f"on {where}: {total:,} steps"
        )
    return "\n".join(lines)


def _fit(spec: Spec, program: str, data: Dataset, device: str, mode: str) -> Run:
    network, settings, count = training(spec, program)
    return train(
        network,
        (shaped(data.x_train[: spec.rows], data, spec.architecture), data.y_train[: spec.rows]),
        likelihood=LIKELIHOOD,
        settings=settings,
        replicates=list(range(spec.seed, spec.seed + count)),
        device=device,
        mode=mode,
        progress=False,
    )


def run(
    spec: Spec,
    sets: Mapping[str, Dataset],
    device: str = "cpu",
    mode: str = "auto",
    keep: Callable[[list[Row], torch.device], object] = lambda rows, device: None,
    done: Collection[tuple[str, str]] = (),
) -> list[Row]:
    """A row per data set trained on and method, with a list entry per replicate that did not stop.

    ``keep`` receives the rows of each training as it ends; ``done`` names pairs that need not be run.
    """
    rows: list[Row] = []
    for program in spec.programs:
        part = spec.only(program)
        for home in spec.train_on:
            methods = [method for method in part.methods if (home, method) not in done]
            if not methods:
                print(f"{home} {program}: already there", flush=True)
                continue
            trained = _fit(replace(part, methods=tuple(methods)), program, sets[home], device, mode)
            found = [row for method in methods for row in _row(spec, method, trained, home, sets)]
            keep(found, trained.batches.x.device)
            rows += found
    return rows


def _row(spec: Spec, method: str, trained: Run, home: str, sets: Mapping[str, Dataset]) -> list[Row]:
    """The row of a method, over the replicates all of whose networks went to the end; none if there are none.

    What is left of a network that stopped is no result: ``stopped`` tells where and why.
    """
    networks = trained.networks
    size = len(networks) // spec.replicates
    used = range(size) if method == "ensemble" else range(1)
    own = {k * size + i for k in range(spec.replicates) for i in used}
    stopped = [each for each in trained.stopped if each.replicate in own]
    gone = {each.replicate // size for each in stopped}
    groups = [networks[k * size : (k + 1) * size] for k in range(spec.replicates) if k not in gone]
    if stopped:
        there = f"{len(groups)} of {spec.replicates} replicates"
        why = " ".join(map(str, stopped))
        print(f"{home} {method}: not finished, {there}. {why}", flush=True)
    if not groups:
        return []
    row = {
        "train_on": home,
        "method": method,
        "train_seconds": trained.train_seconds,
        "compile_seconds": trained.compile_seconds,
        "mode": trained.mode,
        "stopped": [str(each) for each in stopped],
        "stopped_seeds": [each.seed for each in stopped],
        **columns([judge(spec, method, group, home, sets) for group in groups]),
    }
    print(line(row), flush=True)
    return [row]


# -- the command ----------------------------------------------------------------------------------------


def read(folder: Path | None) -> dict[str, Dataset]:
    """The three data sets, from a folder or from where :func:`sparsebnn.io.data.load` looks for names."""
    return {name: datasets.load(name if folder is None else folder / f"{name}.npz") for name in NAMES}


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    add = parser.add_argument
    add("--data", type=Path, help="folder of the .npz files (else SPARSEBNN_DATA, the cache, a download)")
    add("--device", default="auto", help="cpu, cuda or auto")
    add("--mode", default="auto", choices=MODES, help="how steps are run")
    add("--architecture", default=Spec.architecture, help="fc or lenet")
    add("--train-on", nargs="+", default=list(NAMES), help="data sets to train on")
    add("--methods", nargs="+", default=list(METHODS))
    add("--epochs", type=count, default=Spec.epochs, help="of the Bayesian networks (paper: 250)")
    add("--plain-epochs", type=count, default=Spec.plain_epochs, help="of the others")
    add("--rate", type=float, help="learning rate of the Bayesian networks (paper: 1e-4)")
    add("--rows", type=count, help="training rows (all)")
    add("--test-rows", type=count, help="test rows of each data set (all)")
    add("--replicates", type=count, default=Spec.replicates)
    add("--members", type=count, default=Spec.members, help="networks of an ensemble")
    add("--draws", type=count, default=Spec.n_draws)
    add("--page-only", action="store_true", help="only the page's table, from the saved results")
    claim = "Out-of-distribution detection between MNIST, FMNIST and KMNIST."
    return arguments("image_ood", claim, argv, [parser])


def _spec(given: argparse.Namespace) -> Spec:
    chosen = {name: getattr(given, name) for name in vars(Spec()) if hasattr(given, name)}
    chosen |= {"train_on": tuple(given.train_on), "methods": tuple(given.methods), "n_draws": given.draws}
    spec = Spec(**chosen)
    if given.quick:
        few = {"epochs": 2, "plain_epochs": 2, "rows": 500, "test_rows": 200, "replicates": 2, "n_draws": 5}
        spec = replace(spec, rate=1e-3, train_on=spec.train_on[:1], **few)  # type: ignore[arg-type]
    return spec


def settings_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What rows of one table must share; a later run may add methods and data sets."""
    own = {name: value for name, value in spec.items() if name not in ("methods", "train_on")}
    return rounded(json.loads(json.dumps(own)))


def read_record(folder: Path) -> dict[str, Any] | None:
    """The study as its page shows it: spec and rows, each method on each data set once.

    Rows come from ``rows.jsonl`` and from the older ``image_ood.json``; the latest settings count.
    """
    path, rows = folder / "image_ood.json", read_rows(folder / "rows.jsonl")
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    settings = rows[-1]["spec"] if rows else settings_of(old["spec"]) if old else None
    if settings is None:
        return None
    found = {}
    if old is not None and settings_of(old["spec"]) == settings:
        found = {(row["train_on"], row["method"]): row for row in old["rows"]}
    found |= {(row["train_on"], row["method"]): row for row in rows if row["spec"] == settings}
    spec = {**settings, "train_on": [name for name in NAMES if name in {home for home, _ in found}]}
    spec["methods"] = [name for name in METHODS if name in {method for _, method in found}]
    return {"spec": spec, "rows": list(found.values())}


def main(argv: Sequence[str] | None = None) -> None:
    """Train what is missing, append its rows, renew the table of ``docs/studies/uncertainty.md``."""
    given = _arguments(argv)
    study = Study("image_ood", given)
    if not given.page_only:
        spec = _spec(given)
        settings, record = settings_of(asdict(spec)), read_record(study.folder)
        same = record is not None and settings_of(record["spec"]) == settings
        done = {(row["train_on"], row["method"]) for row in record["rows"]} if record and same else set()
        sets = read(given.data)
        print(expected_steps(spec, min(len(sets[name].y_train) for name in spec.train_on)), flush=True)

        def keep(rows: list[Row], device: torch.device) -> None:
            study.append([rounded({**row, "spec": settings}, 5) for row in rows], device)

        run(spec, sets, given.device, given.mode, keep, done)
    record = read_record(study.folder)
    if record is not None and not given.quick:
        fill(Path(given.out) / "docs" / "studies" / "uncertainty.md", record, study.folder)
