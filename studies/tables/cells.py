"""Cells of a table, trained and evaluated: what ``table1``, ``table2``, ``ablations`` and ``frontier`` share.

A cell is a data set with a frozen record of settings; all its replicates train as one program. Each replicate
becomes a row of ``results/<study>/rows.jsonl``. A replicate that has a row with the same settings is finished
and not run again; an unfinished program continues from its checkpoint under ``runs/``. Older cells have a
file each, ``results/<study>/<cell>.json``; :func:`read_cells` reads both.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsebnn import data as datasets
from sparsebnn.checks import invalid
from sparsebnn.init import Uniform
from sparsebnn.io import saving
from sparsebnn.likelihoods import Categorical
from sparsebnn.training import Callback, Epoch, Run, train
from sparsebnn.training.arguments import MODES
from sparsebnn.training.optimizers import Steps
from sparsebnn.training.settings import Settings
from studies.runner import Study, count, read_rows
from studies.tables import evaluation
from studies.tables.paper import Cell, cell

__all__ = ["DATASETS", "METHODS", "Job", "Runner", "options", "quick_cell", "read_cells", "seeds_of"]

DATASETS = ("kmnist", "mnist", "fmnist")
METHODS = ("lbbnn", "lrt", "flow")
Result = dict[str, Any]
# What all rows of a cell share.
_SHARED = ("dataset", "architecture", "method", "settings", "device", "mode", "versions", "commit", "command")
# Replicates and draws behind an accuracy during training: enough for a picture.
_TRACED, _TRACE_DRAWS = 2, 10


@dataclass(frozen=True)
class Job:
    """A cell to run: its name, its data set, its settings, and the draws of its evaluation."""

    stem: str
    dataset: str
    cell: Cell
    draws: int = 100

    def settings(self) -> dict[str, Any]:
        """What two runs must share to be the same cell."""
        return {**self.cell.record(), "draws": self.draws}

    def key(self) -> str:
        """A short name for these settings."""
        text = json.dumps([self.dataset, self.cell.architecture, self.settings()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def quick_cell(architecture: str, method: str) -> Cell:
    """A cell small enough for a laptop: narrow layers or few epochs, larger rates, a denser start."""
    full = cell(architecture, method)
    start = Uniform(-1.0, 3.0)
    settings = Settings(
        epochs=20 if architecture == "fc" else 4,
        batch_size=100,
        learning_rate=0.01 if architecture == "fc" else 0.003,
        learning_rates={"inclusion_logit": 0.03},
        schedule=Steps((15,) if architecture == "fc" else (3,)),
        temperature=0.1,
    )
    return replace(
        full,
        initial=replace(full.initial, inclusion_logit=start),
        dense_initial=replace(full.dense_initial, inclusion_logit=start),
        settings=settings,
        family_options={"hidden": (20, 20)} if method == "flow" else full.family_options,
        sizes=(64, 50, 50, 10),
    )


# --- the command line --------------------------------------------------------------------------------


def seeds_of(text: str, first: int = 0) -> list[int]:
    """The seeds that ``--replicates`` names: a count, a range or a list.

    >>> seeds_of("3"), seeds_of("2-4"), seeds_of("0,7")
    ([0, 1, 2], [2, 3, 4], [0, 7])
    """
    try:
        seeds: list[int] = []
        for piece in text.split(","):
            low, _, high = piece.partition("-")
            seeds += range(int(low), int(high or low) + 1)
        if text.isdecimal():
            seeds = list(range(first, first + int(text)))
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) != len(seeds):
        expected = "a count (10), a range (0-4) or seeds (0,3,7)"
        raise invalid("--replicates", "the command", expected, repr(text))
    return sorted(seeds)


def options() -> argparse.ArgumentParser:
    """The options that all studies of cells share."""
    parser = argparse.ArgumentParser(add_help=False)
    add = parser.add_argument
    add("--replicates", help="a count (10), a range of seeds (0-4) or a list (5,7,9); default 10, quick 2")
    add("--epochs", type=count, help="passes over the data (tables: 250, frontier: 100); milestones scale")
    add("--draws", type=count, help="draws of each predictor (default 100, quick 10)")
    add("--data", type=Path, help="folder with the data sets (else SPARSEBNN_DATA, the cache, a download)")
    add("--runs", type=Path, default=Path("runs"), help="folder of checkpoints and networks (default runs)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, … (default auto)")
    add("--mode", default="auto", choices=MODES, help="how steps are run")
    add("--trace", type=int, default=10, help="epochs between two test accuracies; 0: none (default 10)")
    add("--quiet", action="store_true", help="no progress")
    return parser


def complete(given: argparse.Namespace) -> argparse.Namespace:
    """Fill in the defaults that depend on ``--quick``."""
    given.replicates = given.replicates or ("2" if given.quick else "10")
    given.draws = given.draws or (10 if given.quick else 100)
    return given


# --- result files ------------------------------------------------------------------------------------


def read_cells(folder: Path, stems: Sequence[str]) -> dict[str, Result]:
    """The cells of a folder that have results: settings, ``replicates`` (a row per seed) and ``history``.

    Where rows of a cell have several settings, the latest count.
    """
    found: dict[str, Result] = {}
    for stem in stems:
        if (folder / f"{stem}.json").exists():
            found[stem] = json.loads((folder / f"{stem}.json").read_text(encoding="utf-8"))
    for row in read_rows(folder / "rows.jsonl"):
        if row.get("cell") in stems:
            _add(found, row)
    return {stem: content for stem, content in found.items() if content["replicates"]}


def _add(found: dict[str, Result], row: dict[str, Any]) -> None:
    content = found.get(row["cell"])
    if content is None or content["settings"] != row["settings"]:
        content = found[row["cell"]] = {name: row[name] for name in _SHARED}
        content |= {"train_seconds": 0.0, "stopped": [], "stopped_seeds": [], "replicates": [], "history": []}
    content["train_seconds"] += row["train_seconds"]
    if "stopped" in row:
        content["stopped"].append(row["stopped"])
        content["stopped_seeds"].append(row["seed"])
        return
    content["history"] = content["history"] or row["history"]
    own = {name: value for name, value in row.items() if name not in (*_SHARED, "cell", "history")}
    rows = {one["seed"]: one for one in [*content["replicates"], own]}
    content["replicates"] = [rows[seed] for seed in sorted(rows)]


def finished_seeds(folder: Path, job: Job) -> set[int]:
    """Seeds of a cell that have a row with the job's settings, or stopped with them."""
    # A stopped seed would stop again. Rows with other settings belong to another cell.
    wanted = json.loads(json.dumps({"dataset": job.dataset, "settings": job.settings()}))
    found: set[int] = set()
    path = folder / f"{job.stem}.json"
    if path.exists():
        content = json.loads(path.read_text(encoding="utf-8"))
        if {name: content[name] for name in wanted} == wanted:
            found = {row["seed"] for row in content["replicates"]} | set(content.get("stopped_seeds", []))
    for row in read_rows(folder / "rows.jsonl"):
        if row.get("cell") == job.stem and {name: row[name] for name in wanted} == wanted:
            found.add(row["seed"])
    return found


# --- training and evaluation -------------------------------------------------------------------------


class Trace(Callback):
    """Record test accuracies during training, for the picture of densities; nothing is chosen by them."""

    def __init__(self, job: Job, data: datasets.Dataset, every: int) -> None:
        self.job, self.data, self.every = job, data, every
        self.entries: dict[int, dict[str, float]] = {}

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        if not self.every or (epoch.epoch + 1) % self.every:
            return
        rows = []
        gone = {stopped.replicate for stopped in run.stopped}
        for k in [k for k in range(len(run.seeds)) if k not in gone][:_TRACED]:
            network = run.replicates.unstack(k).network
            x, y = evaluation.test_rows(self.data, self.job.cell, next(network.parameters()).device)
            rows.append(evaluation.accuracies(network, x, y, self.job.cell, _TRACE_DRAWS, run.seeds[k]))
        self.entries[epoch.epoch] = {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}


def history(run: Run, trace: Trace) -> list[dict[str, Any]]:
    """Epoch by epoch, means over the replicates: density, and loss, NLL and KL per training row in nats."""
    gone = {stopped.replicate for stopped in run.stopped}

    def mean(values: Sequence[float]) -> float:
        return float(f"{statistics.fmean(v for k, v in enumerate(values) if k not in gone):.5g}")

    lines = []
    for epoch in run.history:
        line: dict[str, Any] = {"epoch": epoch.epoch, "density": mean(epoch.density)}
        for name in ("loss", "nll", "kl"):
            line[name] = mean([value / run.batches.rows for value in getattr(epoch, name)])
        lines.append({**line, **trace.entries.get(epoch.epoch, {})})
    return lines


class Runner:
    """Run a study's cells one after the other; every finished replicate is a row."""

    def __init__(self, study: Study, jobs: Sequence[Job]) -> None:
        self.study, self.given, self.jobs = study, study.given, list(jobs)
        self.seeds = seeds_of(self.given.replicates, self.given.seed)
        self.live = sys.stderr.isatty() and not self.given.quiet

    def run(self) -> None:
        """Run what is missing."""
        for number, job in enumerate(self.jobs):
            place = f"[{number + 1}/{len(self.jobs)}] {job.stem}"
            done = finished_seeds(self.study.folder, job)
            missing = [seed for seed in self.seeds if seed not in done]
            if not missing:
                print(f"{place}: already there", flush=True)
                continue
            rows, device = self._train(job, missing)
            self.study.append(rows, device)
            print(f"{place}: {_line(rows)}", flush=True)

    def folder(self, job: Job, seeds: Sequence[int]) -> Path:
        """Where checkpoint and networks of a program are kept; other settings have another folder."""
        return Path(self.given.runs) / self.study.name / f"{job.stem}.{seeds[0]}-{seeds[-1]}.{job.key()}"

    def _train(self, job: Job, seeds: Sequence[int]) -> tuple[list[Result], torch.device]:
        data = datasets.load(job.dataset, root=self.given.data)
        # Checkpoints and networks need safetensors; results do not.
        folder = self.folder(job, seeds) if importlib.util.find_spec("safetensors") else None
        trace = Trace(job, data, self.given.trace)
        callbacks = self._callbacks(job, folder)
        run = train(
            job.cell.network(),
            (evaluation.inputs(data.x_train, job.cell, data.image_shape), data.y_train),
            likelihood=Categorical(job.cell.sizes[-1]),
            settings=job.cell.settings,
            replicates=list(seeds),
            device=self.given.device,
            mode=self.given.mode,
            folder=folder,
            resume=folder is not None,
            checkpoint_seconds=120.0,
            callbacks=[*callbacks, trace],
            progress=None if self.live else False,
        )
        return self._rows(job, run, trace, data, folder, callbacks), run.batches.x.device

    def _callbacks(self, job: Job, folder: Path | None) -> list[Callback]:
        """Further callbacks of the training; :meth:`_measured` receives them."""
        return []

    def _rows(
        self,
        job: Job,
        run: Run,
        trace: Trace,
        data: datasets.Dataset,
        folder: Path | None,
        callbacks: list[Callback],
    ) -> list[Result]:
        x, y = evaluation.test_rows(data, job.cell, run.batches.x.device)
        stopped = {each.replicate: str(each) for each in run.stopped}
        past, rows = history(run, trace), []
        for k, seed in enumerate(run.seeds):
            began = time.perf_counter()
            row: Result = {
                "cell": job.stem,
                "dataset": job.dataset,
                "architecture": job.cell.architecture,
                "method": job.cell.method,
                "seed": seed,
                "settings": json.loads(json.dumps(job.settings())),
                "mode": run.mode,
                # A replicate's share of its program.
                "train_seconds": round(run.train_seconds / len(run.seeds), 3),
                "compile_seconds": round(run.compile_seconds / len(run.seeds), 3),
            }
            if k in stopped:
                rows.append({**row, "stopped": stopped[k]})
                continue
            trained = run.replicates.unstack(k)
            if folder is not None:
                path = folder / f"network-{seed}.safetensors"
                saving.save(trained.network, path, trained.likelihood, seed=seed)
            row |= self._measured(job, run, k, x, y, callbacks)
            row["evaluation_seconds"] = round(time.perf_counter() - began, 3)
            rows.append({**row, "history": past})
            past = []  # the replicates' mean; once is enough
        return rows

    def _measured(
        self, job: Job, run: Run, k: int, x: Tensor, y: Tensor, callbacks: list[Callback]
    ) -> dict[str, Any]:
        """Measures of replicate k. Its seed is also that of its draws, so replicates do not share them."""
        network = run.replicates.unstack(k).network
        return evaluation.evaluate(network, x, y, job.cell, job.draws, run.seeds[k])


def _line(rows: Sequence[Result]) -> str:
    """A cell in one line: both accuracies over the replicates, density, seconds."""
    own = [row for row in rows if "stopped" not in row]
    parts = [row["stopped"] for row in rows if "stopped" in row]
    for model in ("median", "average") if own else ():
        values = sorted(100.0 * row[f"accuracy_{model}"] for row in own)
        parts.append(f"{model} {statistics.median(values):.2f} ({values[0]:.2f}–{values[-1]:.2f})")
    if own:
        parts.append(f"density {statistics.fmean(row['density'] for row in own):.3f}")
    names = ("train", "compile", "evaluation")
    seconds = {name: sum(row.get(f"{name}_seconds", 0.0) for row in rows) for name in names}
    return "  ".join([*parts, ", ".join(f"{name} {total:.1f} s" for name, total in seconds.items())])
