"""Cells of a table, trained and evaluated: what ``table1``, ``table2``, ``ablations`` and ``frontier`` share.

All replicates of a cell are one program. A cell leaves its result file as soon as it ends; while it runs it
leaves checkpoints under ``runs/``, from which it goes on. Several processes may work on the same folder:
each takes cells that no other has taken, and with ``--gpu-lock`` they compile side by side and train one
after the other.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsebnn import data as datasets
from sparsebnn.checks import InvalidInput
from sparsebnn.init import Uniform
from sparsebnn.io import saving
from sparsebnn.io.locking import locked
from sparsebnn.likelihoods import Categorical
from sparsebnn.training import Callback, Interrupted, Run, train
from sparsebnn.training.settings import Settings, Steps
from studies import cells, evaluation, provenance
from studies.cells import Job, Result
from studies.paper import Cell, cell
from studies.watching import Trace, Turn, history

__all__ = ["DATASETS", "METHODS", "Runner", "load_network", "quick_cell"]

DATASETS = ("kmnist", "mnist", "fmnist")
METHODS = ("lbbnn", "lrt", "flow")
# What a replicate costs beside LBBNN-LRT's, for the time that is left; measured on one H200.
_COST = {"lbbnn": 1.5, "lrt": 1.0, "flow": 4.0}


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
    options = {"hidden": (20, 20)} if method == "flow" else full.family_options
    return replace(
        full,
        initial=replace(full.initial, inclusion_logit=start),
        dense_initial=replace(full.dense_initial, inclusion_logit=start),
        settings=settings,
        family_options=options,
        sizes=(64, 50, 50, 10),
    )


# --- one cell ----------------------------------------------------------------------------------------


class Runner:
    """One call of a study: its cells one after the other, each to its file."""

    def __init__(
        self, study: str, given: argparse.Namespace, todo: Sequence[Job], words: Callable[[Job], list[str]]
    ) -> None:
        self.study, self.given, self.todo, self.words = study, given, list(todo), words
        self.results = Path(given.out) / "results" / study
        self.runs = Path(given.runs) / study
        self.seeds, self.partial = cells.seeds_of(given.replicates, given.seed)
        # What makes a cell whole when it was asked for in parts.
        self.whole = list(range(given.seed, given.seed + (2 if given.quick else 10)))
        self.live = sys.stderr.isatty() and not given.quiet
        # Now, not at the end of a cell: the code that runs is the code that is there at the start.
        self.commit, self.commit_source = provenance.commit_and_source()
        self.keeps = importlib.util.find_spec("safetensors") is not None
        self._data: dict[str, datasets.Dataset] = {}
        self._spent = self._paid = 0.0

    def run(self) -> int:
        """Run what is missing; returns how many cells failed."""
        if not self.keeps:
            print(
                "No 'safetensors' here: checkpoints and networks are not kept, results are.", file=sys.stderr
            )
        failed = 0
        for number, job in enumerate(self.todo):
            claim = self.runs / f".{job.stem}.{cells.seed_label(self.seeds)}.{job.key()}.lock"
            with locked(claim, wait=False) as mine:
                if not mine:
                    print(f"[{number + 1}/{len(self.todo)}] {job.stem}: another process is at it", flush=True)
                    continue
                try:
                    self._cell(number, job)
                except (InvalidInput, Interrupted):
                    raise
                except Exception as error:  # one cell that fails must not cost the others
                    failed += 1
                    traceback.print_exc()
                    print(f"[{number + 1}/{len(self.todo)}] {job.stem} failed: {error}", flush=True)
        return failed

    def _missing(self, job: Job) -> list[int]:
        held, gone = cells.held(self.results, job)
        # The same seed would stop again: it takes --force to try.
        return [seed for seed in self.seeds if seed not in {*held, *gone}]

    def _short(self, job: Job) -> str:
        """What there is to say of a cell some of whose seeds stopped; nothing when none did."""
        gone = {seed: why for seed, why in cells.held(self.results, job)[1].items() if seed in self.seeds}
        if not gone:
            return ""
        there = f"{len(self.seeds) - len(gone)} of {len(self.seeds)} replicates"
        again = "Run it again with --force, or other seeds with --replicates."
        return f"not finished, {there}. {' '.join(gone.values())} {again}"

    def _cell(self, number: int, job: Job) -> None:
        place = f"[{number + 1}/{len(self.todo)}]"
        missing = self._missing(job)
        if not missing:
            self._absorb(job)
            print(f"{place} {job.stem}: {self._short(job) or 'already there'}", flush=True)
            return
        if self.live:
            left = self._left(number)
            print(f"{place} {job.stem}, seeds {cells.seed_label(missing)}{left}", file=sys.stderr, flush=True)
        began = time.perf_counter()
        result = self._run(job, missing)
        whole = not self.partial and missing == self.seeds and not cells.finished(self.results, job)
        name = job.stem if whole else f"{job.stem}.{cells.seed_label(missing)}"
        provenance.write_json(self.results / f"{name}.json", result)
        self._absorb(job)
        self._spent += time.perf_counter() - began
        self._paid += self._cost(job)
        print(f"{place} {job.stem}: {_line(result)}{self._left(number + 1)}", flush=True)
        if self._short(job):
            print(f"{place} {job.stem}: {self._short(job)}", flush=True)

    def _absorb(self, job: Job) -> None:
        with locked(self.runs / f".{job.stem}.merge.lock"):
            cells.absorb(self.results, job, self.whole if self.partial else self.seeds)

    def prepare(self) -> None:
        """Before anything is done: complain of files with other settings, or under ``--force`` make room."""
        for job in self.todo:
            for path, _ in cells.others(self.results, job):
                if self.given.force:
                    provenance.check_replaceable(path, {}, self.given)  # a rehearsal replaces no result
        for job in self.todo:
            if not self.given.force:
                cells.check(self.results, job)
                continue
            for path, _ in cells.others(self.results, job):
                cells.set_aside(path, self.runs / "replaced")
            if not self.given.merge:
                cells.forget(self.results, self.runs, job, self.seeds)

    def merge(self) -> None:
        """Only put parts together that are there."""
        for job in self.todo:
            with locked(self.runs / f".{job.stem}.merge.lock"):
                path = cells.absorb(self.results, job, self.whole)
            print(f"{job.stem}: {'whole' if path else 'parts are missing'}")

    def _cost(self, job: Job) -> float:
        return _COST.get(job.cell.method, 4.0) * job.cell.settings.epochs

    def _left(self, number: int) -> str:
        """The time the rest will take, once a cell has shown what time it takes."""
        rest = sum(self._cost(job) for job in self.todo[number:] if self._missing(job))
        if not self._paid or not rest:
            return ""
        minutes, seconds = divmod(round(self._spent / self._paid * rest), 60)
        return f", about {minutes}:{seconds:02d} left"

    def fetch(self) -> None:
        """Have all data sets at hand, so that several processes need not download the same one."""
        for name in dict.fromkeys(job.dataset for job in self.todo):
            self._dataset(name)

    def _dataset(self, name: str) -> datasets.Dataset:
        if name not in self._data:
            self._data[name] = datasets.load(name, root=self.given.data)
        return self._data[name]

    def folder(self, job: Job, seeds: Sequence[int]) -> Path:
        """Where checkpoints and networks of a run lie; other settings, other folder."""
        return self.runs / f"{job.stem}.{cells.seed_label(seeds)}.{job.key()}"

    def _run(self, job: Job, seeds: Sequence[int]) -> Result:
        data = self._dataset(job.dataset)
        folder = self.folder(job, seeds) if self.keeps else None
        if folder is not None and not self.given.resume:
            shutil.rmtree(folder, ignore_errors=True)
        trace = Trace(job, data, self.given.trace, None if folder is None else folder / "trace.json")
        others = self._watchers(job, folder)
        with Turn(self.given.gpu_lock) as turn:
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
                checkpoint_seconds=self.given.checkpoint_seconds,
                callbacks=[*others, turn, trace],
                progress=None if self.live else False,
            )
            return self._result(job, run, trace, data, folder, others)

    def _watchers(self, job: Job, folder: Path | None) -> list[Callback]:
        """What else watches a training; given to :meth:`_measured` afterwards."""
        return []

    def _result(
        self,
        job: Job,
        run: Run,
        trace: Trace,
        data: datasets.Dataset,
        folder: Path | None,
        others: list[Callback],
    ) -> Result:
        began = time.perf_counter()
        device = run.batches.x.device
        x, y = evaluation.test_rows(data, job.cell, device)
        rows = []
        gone = {stopped.replicate for stopped in run.stopped}
        for k, seed in enumerate(run.seeds):
            if k in gone:
                continue  # what is left of it is no result; 'stopped' tells where and why
            measured = self._measured(job, run, k, x, y, others)
            rows.append({"seed": seed, "prediction_seed": seed, **measured})
            if folder is not None:
                trained = run.replicates.unstack(k)
                path = folder / f"network-{seed}.safetensors"
                saving.save(trained.network, path, trained.likelihood, seed=seed, cell=job.stem)
        return {
            "dataset": job.dataset,
            "architecture": job.cell.architecture,
            "method": job.cell.method,
            "settings": job.settings(),
            "device": provenance.device_name(device),
            "mode": run.mode,
            "versions": provenance.versions(),
            "commit": self.commit,
            "commit_source": self.commit_source,
            "command": self._command(job, run.seeds),
            "train_seconds": round(run.train_seconds, 3),
            "compile_seconds": round(run.compile_seconds, 3),
            "evaluation_seconds": round(time.perf_counter() - began + trace.seconds, 3),
            "stopped": [str(stopped) for stopped in run.stopped],
            "stopped_seeds": [stopped.seed for stopped in run.stopped],
            "replicates": rows,
            "history": history(run, trace),
        }

    def _measured(
        self, job: Job, run: Run, k: int, x: Tensor, y: Tensor, others: list[Callback]
    ) -> dict[str, Any]:
        """Replicate k's row. The draws' seed is the replicate's: replicates do not share their draws."""
        network = run.replicates.unstack(k).network
        return evaluation.evaluate(network, x, y, job.cell, job.draws, run.seeds[k])

    def _command(self, job: Job, seeds: Sequence[int]) -> str:
        """What makes this cell again. Folders are left out: they name a machine, not a result."""
        words = ["python", "-m", f"studies.{self.study}"]
        words += ["--quick"] if self.given.quick else []
        words += self.words(job)
        if list(seeds) == list(range(len(seeds))):
            words += ["--replicates", str(len(seeds))]
        else:
            label = cells.seed_label(seeds).replace("_", ",")
            words += ["--replicates", f"{label}-{label}" if label.isdecimal() else label]
        words += ["--epochs", str(job.cell.settings.epochs)]
        words += [] if job.draws == 100 else ["--draws", str(job.draws)]
        return " ".join(words)


def _line(result: Result) -> str:
    """A cell in one line: both accuracies over the replicates, density, seconds."""
    parts = []
    for model in ("median", "average"):
        values = sorted(100.0 * row[f"accuracy_{model}"] for row in result["replicates"])
        parts.append(f"{model} {statistics.median(values):.2f} ({values[0]:.2f}–{values[-1]:.2f})")
    parts.append(f"density {statistics.fmean(row['density'] for row in result['replicates']):.3f}")
    names = ("train", "compile", "evaluation")
    parts.append(", ".join(f"{name} {result[f'{name}_seconds']:.1f} s" for name in names))
    return "  ".join(parts)


def load_network(folder: Path, job: Job, seed: int) -> torch.nn.Module:
    """A network of a finished cell, as it was saved beside its checkpoints."""
    return saving.load(folder / f"network-{seed}.safetensors", job.cell.network()).network.eval()
