"""What watches a cell while it trains: where logits start, whose turn it is, the accuracy along the way."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sparsebnn import data as datasets
from sparsebnn.init import Uniform
from sparsebnn.io.locking import locked
from sparsebnn.training import Callback, Epoch, Run
from studies import evaluation, provenance
from studies.cells import Job

__all__ = ["Starts", "Trace", "Turn", "history"]

# Replicates and draws behind an accuracy along the way: enough for a picture, cheap enough not to matter.
_TRACED, _TRACE_DRAWS = 2, 10


class Turn(Callback):
    """Wait for the device between compiling and the first step; give it up when the scope ends.

    The first step belongs to the turn because the compiler times variants of its kernels in it. The scope
    holds whatever is measured after training too: ``with Turn(path) as turn: train(…, callbacks=[turn]);
    evaluate(…)``.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self._held = path, contextlib.ExitStack()
        self._mine = False

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()
        self._mine = False

    def on_compiled(self, run: Run) -> None:
        if self.path is not None and not self._mine:
            self._held.enter_context(locked(self.path))
            self._mine = True

    def on_train_start(self, run: Run) -> None:
        self.on_compiled(run)  # an eager run has only this moment


class Trace(Callback):
    """Test accuracy along training, for the picture of densities; nothing is chosen by it."""

    def __init__(self, job: Job, data: datasets.Dataset, every: int, path: Path | None) -> None:
        self.job, self.data, self.every, self.path = job, data, every, path
        self.seconds = 0.0
        self.entries: dict[int, dict[str, float]] = {}
        if path is not None and path.exists():
            self.entries = {int(epoch): e for epoch, e in json.loads(path.read_text()).items()}

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        if not self.every or (epoch.epoch + 1) % self.every:
            return
        began = time.perf_counter()
        rows = []
        gone = {stopped.replicate for stopped in run.stopped}
        for k in [k for k in range(len(run.seeds)) if k not in gone][:_TRACED]:
            network = run.replicates.unstack(k).network
            x, y = evaluation.test_rows(self.data, self.job.cell, next(network.parameters()).device)
            rows.append(evaluation.accuracies(network, x, y, self.job.cell, _TRACE_DRAWS, run.seeds[k]))
        self.entries[epoch.epoch] = {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
        if self.path is not None:
            provenance.write_json(self.path, self.entries)
        self.seconds += time.perf_counter() - began


class Starts(Callback):
    """Gives each replicate's inclusion logits the start of its candidate, before the first step.

    The logits come from the network's own U(a, b); an affine map makes them U(low, high).
    """

    def __init__(self, template: Uniform, starts: Sequence[Uniform]) -> None:
        self.template, self.starts = template, starts

    @torch.no_grad()
    def on_train_start(self, run: Run) -> None:
        width = self.template.high - self.template.low
        for name, stacked in run.replicates.parameters.items():
            if name.endswith("inclusion_logit"):
                for logits, start in zip(stacked, self.starts):
                    logits.sub_(self.template.low).mul_((start.high - start.low) / width).add_(start.low)


def history(run: Run, trace: Trace) -> list[dict[str, Any]]:
    """Epoch by epoch, means over the replicates: density, and loss, NLL and KL per training row in nats.

    Replicates that stopped do not count.
    """
    rows, gone = run.batches.rows, {stopped.replicate for stopped in run.stopped}
    lines = []

    def mean(values: Sequence[float]) -> float:
        return statistics.fmean(value for k, value in enumerate(values) if k not in gone)

    for epoch in run.history:
        line: dict[str, Any] = {"epoch": epoch.epoch, "density": mean(epoch.density)}
        for name in ("loss", "nll", "kl"):
            line[name] = mean(getattr(epoch, name)) / rows
        lines.append({**line, **trace.entries.get(epoch.epoch, {})})
    return provenance.rounded(lines, 5)
