"""The moment a refit begins: the replicates as they stand then, and which weights are kept."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sparsebnn.checks import invalid
from sparsebnn.training import checkpoint
from sparsebnn.training.callbacks import Callback, Epoch
from sparsebnn.training.checkpoint import Writes
from sparsebnn.training.density import fix_structure

if TYPE_CHECKING:
    from sparsebnn.training.loop import Run

_log = logging.getLogger("sparsebnn")
_MISSED = (
    "this run was resumed after its refit had begun, and the posterior before it was not kept. "
    "Give BeforeRefit(path) from the start of a run that may be resumed."
)


class BeforeRefit(Callback):
    """Keeps the posterior as it is when the structure is about to be fixed (``Settings(refit=…)``).

    With a fixed structure only the remaining weights can be averaged over. So a training
    with a refit has two results: the posterior before it, to average over, and the one after it, whose
    median probability model has had time to do without the rest. This callback keeps the first (in
    ``path`` too, for a run that is interrupted and resumed); the run has the second. With
    ``Settings(free_fraction=…)`` the first is the posterior at the end of the free phase.

    >>> import torch
    >>> from sparsebnn import Settings, mlp, train
    >>> kept, x, y = BeforeRefit(), torch.randn(60, 4), torch.arange(60) % 3
    >>> settings = Settings(epochs=4, refit=0.5)
    >>> run = train(mlp([4, 8, 3]), (x, y), settings=settings, replicates=2, callbacks=[kept])
    >>> len(kept.networks), kept.epoch
    (2, 2)
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._missed = False
        self.epoch: int | None = None
        self._run: Run | None = None
        self._stacked: dict[str, Tensor] = {}
        self._writes, self._unwritten = Writes(), False

    def on_train_start(self, run: Run) -> None:
        """A run that is resumed after that moment finds it in the file."""
        until = run.settings.free_until
        if run.epoch < until or until == run.settings.epochs:
            return
        self._missed = self.path is None or not self.path.exists()
        if self.path is None or self._missed:
            _log.warning("BeforeRefit: %s", _MISSED)
            return
        stacked, header = checkpoint.read(self.path)
        now = self._now(run)
        same = stacked.keys() == now.keys() and all(stacked[n].shape == now[n].shape for n in now)
        if not same or header.get("seeds", run.seeds) != run.seeds or "epoch" not in header:
            raise checkpoint.CheckpointError(f"{self.path} is not of this run, or not from before its refit.")
        self._stacked = {name: value.to(now[name].device) for name, value in stacked.items()}
        self.epoch, self._run = header["epoch"], run

    @staticmethod
    def _now(run: Run) -> dict[str, Tensor]:
        return {**run.replicates.parameters, **run.replicates.varied}

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        if epoch.epoch + 1 == run.settings.free_until < run.settings.epochs:
            self.epoch, self._run = epoch.epoch + 1, run
            self._stacked = {name: value.clone() for name, value in self._now(run).items()}
            self._unwritten = self.path is not None
            self._remove_older()
        if not self._writes.paused:
            self._write()

    def on_train_end(self, run: Run) -> None:
        self._write()

    def _remove_older(self) -> None:
        """The file of an earlier run must not pass for this one's, should the write fail."""
        if self.path is None or not self.path.exists():
            return
        try:
            there, _ = checkpoint.read(self.path)
        except checkpoint.CheckpointError:
            there = {}
        now = {name: value.cpu() for name, value in self._stacked.items()}
        if there.keys() != now.keys() or not all(torch.equal(there[name], now[name]) for name in now):
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _write(self) -> None:
        """Keep the posterior in the file too; a write that fails is tried again after later epochs."""
        if self.path is None or self._run is None or not self._unwritten:
            return
        path, header = self.path, {"epoch": self.epoch, "seeds": self._run.seeds}
        self._unwritten = not self._writes.attempt(
            str(path),
            lambda: checkpoint.write(path, self._stacked, header),
            "The posterior before the refit is kept in memory only; training continues and tries again.",
        )

    @property
    def taken(self) -> bool:
        """Whether there was such a moment."""
        return self._run is not None

    def network(self, k: int) -> nn.Module:
        """Replicate k as it was then."""
        if self._run is None:
            plain = "No refit began in this run: give Settings(refit=...) and train from the start."
            raise RuntimeError(f"BeforeRefit: {_MISSED}" if self._missed else plain)
        return self._run.replicates.unstack(k, self._stacked).network

    @property
    def networks(self) -> list[nn.Module]:
        """All replicates as they were then; none if there was no such moment."""
        if self._missed:
            raise RuntimeError(f"BeforeRefit: {_MISSED}")
        return [self.network(k) for k in range(len(self._run.seeds) if self._run else 0)]


class CutAtRefit(Callback):
    """When the refit begins, keeps the share ``density`` of the weights: those most likely to be included.

    ``Settings(target_density=…)`` lowers the density during training, which makes many inclusions
    uncertain on the way. Here training is left to itself until the structure is fixed, and then cut at once.
    The posterior before the cut (:class:`BeforeRefit`, given before this callback) is the one to average
    over. ``density`` is one share for all replicates or one for each.

    >>> from sparsebnn import Settings, density, mlp, train
    >>> x, y, settings = torch.randn(60, 4), torch.arange(60) % 3, Settings(epochs=4, refit=0.5)
    >>> run = train(mlp([4, 10, 3]), (x, y), settings=settings, callbacks=[CutAtRefit(0.2)])
    >>> density(run.network).overall
    0.2
    """

    def __init__(self, density: float | Sequence[float]) -> None:
        shares = torch.as_tensor(density, dtype=torch.float64).reshape(-1, 1)
        if not bool(((shares > 0.0) & (shares <= 1.0)).all()):
            raise invalid("density", "CutAtRefit", "a share of the weights, up to 1", density)
        self.shares = shares

    def on_train_start(self, run: Run) -> None:
        if len(self.shares) not in (1, len(run.seeds)):
            expected = f"one share, or one per replicate ({len(run.seeds)})"
            raise invalid("density", "CutAtRefit", expected, f"{len(self.shares)} shares")
        if not run.settings.refit or run.settings.targets:
            advice = "Give Settings(refit=...) and no target_density."
            raise invalid("settings", "CutAtRefit", "with a refit and without a target", "others", advice)

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        if epoch.epoch + 1 == run.settings.refit_from:
            fix_structure(run.replicates, self.shares.expand(len(run.seeds), 1))
