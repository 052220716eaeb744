"""Images of another kind: networks trained on one of MNIST, FMNIST, KMNIST, asked about the other two.

Entropy, mutual information and the maximum model-averaged output, each as a score that should be larger
for images of another kind (AUROC, FPR@95, and the share above the 95% quantile of the training rows).
The maximum output is taken as in the cluster study, large means foreign; an AUROC below one half says
that the opposite sign is the better detector.

Run: ``python -m studies image_ood --data FOLDER``, where FOLDER holds ``mnist.npz``,
``fmnist.npz`` and ``kmnist.npz`` with x_train, y_train, x_test, y_test. Needs torch and numpy alone. The
replicates of a method train as one program; with ``--workers`` the programs compile side by side and take
turns on the device. ``--methods`` and ``--train-on`` add to a results file of the same study: a row goes when
a new one replaces it, the others stay, with their provenance under ``earlier``. A file of other settings is
replaced by ``--force`` alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsebnn import data as datasets
from sparsebnn.checks import check_choice, check_count
from sparsebnn.io.data import Dataset
from sparsebnn.training import Run, Settings, train
from studies.baselines.deterministic import plain_lenet, plain_mlp
from studies.image_ood_judge import LIKELIHOOD, columns, judge, shaped
from studies.image_ood_keep import Kept, key
from studies.image_ood_report import fill, line
from studies.paper import ARCHITECTURES, cell
from studies.program import count, run_as_program
from studies.provenance import Study, arguments, check_replaceable, rounded, write_json
from studies.watching import Turn

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


def _fit(spec: Spec, program: str, data: Dataset, device: str, mode: str, turn: Turn) -> Run:
    network, settings, count = training(spec, program)
    return train(
        network,
        (shaped(data.x_train[: spec.rows], data, spec.architecture), data.y_train[: spec.rows]),
        likelihood=LIKELIHOOD,
        settings=settings,
        replicates=list(range(spec.seed, spec.seed + count)),
        device=device,
        mode=mode,
        callbacks=[turn],
        progress=False,
    )


def run(
    spec: Spec,
    sets: Mapping[str, Dataset],
    device: str = "cpu",
    mode: str = "auto",
    lock: Path | None = None,
    keep: Callable[[list[Row]], object] = lambda rows: None,
) -> list[Row]:
    """A row per data set trained on and method, with a list entry per replicate that did not stop.

    ``keep`` is given the rows so far after each training: what is interrupted is not lost.
    """
    rows: list[Row] = []
    for program in spec.programs:
        part = spec.only(program)
        for home in spec.train_on:
            with Turn(lock) as turn:
                trained = _fit(part, program, sets[home], device, mode, turn)
                for method in part.methods:
                    rows += _row(spec, method, trained, home, sets)
            keep(rows)
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


# -- several processes ----------------------------------------------------------------------------------


def _part(spec: Spec, folder: Path | None, device: str, mode: str, lock: Path | None, path: Path) -> None:
    """What a worker does: one program on all data sets, its rows in a file of their own."""
    sets = read(folder)
    run(spec, sets, device, mode, lock, lambda rows: write_json(path, rounded(rows, 5)))


def _side_by_side(spec: Spec, given: argparse.Namespace, device: str) -> tuple[list[Row], list[str]]:
    """Rows of all programs, a process each, and the programs that did not end well."""
    parts = Path(given.out) / "results" / "image_ood" / "parts"
    lock = given.gpu_lock or parts / ".turn.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    paths = {name: parts / f"{name}.json" for name in spec.programs}
    for path in paths.values():
        path.unlink(missing_ok=True)
    # Each worker's compiler would otherwise start as many helpers as there are cores.
    helpers = max(1, (os.cpu_count() or 1) // given.workers)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(helpers))
    # A fresh interpreter each: CUDA does not survive a fork.
    spawn = multiprocessing.get_context("spawn")
    waiting = list(paths.items())
    began: dict[str, Any] = {}
    while waiting or any(process.is_alive() for process in began.values()):
        if waiting and sum(process.is_alive() for process in began.values()) < given.workers:
            name, path = waiting.pop(0)
            work = (spec.only(name), given.data, device, given.mode, lock, path)
            began[name] = spawn.Process(target=_part, args=work, name=name)
            began[name].start()
        else:
            multiprocessing.connection.wait([p.sentinel for p in began.values() if p.is_alive()], timeout=1.0)
    failed = [name for name, process in began.items() if process.exitcode != 0]
    rows = [row for path in paths.values() if path.exists() for row in json.loads(path.read_text())]
    if not failed:
        for path in (*paths.values(), parts / ".turn.lock"):
            path.unlink(missing_ok=True)
        parts.rmdir()
    return rows, failed


# -- the command ----------------------------------------------------------------------------------------


def read(folder: Path | None) -> dict[str, Dataset]:
    """The three data sets, from a folder or from where :func:`sparsebnn.io.data.load` looks for names."""
    return {name: datasets.load(name if folder is None else folder / f"{name}.npz") for name in NAMES}


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    add = parser.add_argument
    add("--data", type=Path, help="folder of the .npz files (else SPARSEBNN_DATA, the cache, a download)")
    add("--device", default="auto", help="cpu, cuda or auto")
    add("--mode", default="auto", choices=("auto", "eager", "compiled"), help="how steps are run")
    add("--workers", type=count, default=1, help="processes: one trains, the others compile or measure")
    add("--gpu-lock", type=Path, help="a lock file: processes that share it train one after the other")
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


def _together(spec: Spec, kept: Sequence[Row]) -> Spec:
    """The study with what its file has already."""
    methods = {row["method"] for row in kept} | set(spec.methods)
    homes = {row["train_on"] for row in kept} | set(spec.train_on)
    train_on = tuple(name for name in NAMES if name in homes)
    return replace(spec, train_on=train_on, methods=tuple(m for m in METHODS if m in methods))


def _missing(spec: Spec, rows: Sequence[Row]) -> list[str]:
    """Programs that were asked for and have not all of their rows, not even older ones."""
    there = {key(row) for row in rows}
    wanted = {n: {(h, m) for h in spec.train_on for m in spec.only(n).methods} for n in spec.programs}
    return [name for name, keys in wanted.items() if not keys <= there]


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies image_ood``"""
    given = _options(argv)
    page = Path(given.out) / "docs" / "studies" / "uncertainty.md"
    if given.page_only:
        fill(page, json.loads((Path(given.out) / "results/image_ood/image_ood.json").read_text()))
        return 0
    spec = _spec(given)
    check_count(given.workers, "workers", "image_ood")
    path = Path(given.out) / "results" / "image_ood" / "image_ood.json"
    check_replaceable(path, {}, given)
    kept = Kept.of(path, rounded(asdict(spec)), given.force)
    device = given.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    study = Study("image_ood", given, torch.device(device), checked=True)
    sets = read(given.data)
    print(expected_steps(spec, min(len(sets[name].y_train) for name in spec.train_on)), flush=True)
    seeds = range(spec.seed, spec.seed + spec.replicates)
    failed: list[str] = []
    whole = _together(spec, kept.rows)

    def save(rows: list[Row]) -> Path:
        every, earlier = kept.with_new(rounded(rows, 5))
        return study.save(whole, seeds, missing=_missing(spec, every), rows=every, earlier=earlier)

    if given.workers > 1:
        rows, failed = _side_by_side(spec, given, device)
    else:
        rows = run(spec, sets, device, given.mode, given.gpu_lock, save)
    if rows or not path.exists():  # a run that brought nothing leaves the file as it is
        print(f"Written to {save(rows)}")
    fill(page, rounded({"spec": asdict(whole), "rows": kept.with_new(rows)[0]}, 5))
    if failed:
        print(f"Not finished: {', '.join(failed)}; run them again with --methods.")
    return int(bool(failed))


if __name__ == "__main__":
    run_as_program(main)
