"""One call of ``train``: epochs, checkpoints, interruptions, replicates that stop."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sparsebnn.checks import invalid
from sparsebnn.nn.networks import bayesian_layers
from sparsebnn.posteriors.priors import Prior
from sparsebnn.training import checkpoint
from sparsebnn.training.callbacks import Callback, Epoch, Progress, Stopped
from sparsebnn.training.checkpoint import Checkpoints
from sparsebnn.training.engine import Engine

if TYPE_CHECKING:
    from sparsebnn.training.loop import Run

_log = logging.getLogger("sparsebnn")
_STEPS_AT_ONCE = 50


class Interrupted(KeyboardInterrupt):
    """Training was interrupted by Ctrl-C or SIGTERM; ``run`` is the run so far.

    Its networks, likelihoods and history are those of the moment of the interruption. In an interactive
    session that did not catch the exception it is ``sys.last_value.run``. With a folder, the message says
    how to resume.

    >>> from sparsebnn import Settings, mlp, train
    >>> x, y = torch.randn(64, 5), torch.randint(0, 3, (64,))
    >>> try:
    ...     run = train(mlp([5, 8, 3]), (x, y), settings=Settings(epochs=2))
    ... except Interrupted as error:
    ...     run = error.run
    """

    def __init__(self, message: str = "", run: Run | None = None) -> None:
        super().__init__(message)
        self._run = run


class ProcessLost(RuntimeError):
    """Another process of the group ended, or did not answer in time; ``run`` is the run so far."""


class Trainer:
    """One call of train: runs epochs, saves checkpoints, handles interrupts.

    An exception that ends training early has the run so far as its attribute ``run``.
    """

    def __init__(
        self,
        run: Run,
        engine: Engine,
        path: Path | None,
        checkpoint_seconds: float,
        callbacks: Sequence[Callback],
        progress: bool | None,
    ) -> None:
        self._run, self.engine = run, engine
        self.callbacks = list(callbacks)
        if progress is not False:
            self.callbacks.append(Progress(force=bool(progress)))
        if engine.shard is not None and engine.shard.rank > 0:
            self.callbacks = [one for one in self.callbacks if one.everywhere]
        self.position = 0
        self._interrupted = False
        signature = checkpoint.signature(engine) if path is not None or engine.shard is not None else {}
        if engine.shard is not None:
            starts = ("priors and other buffers", "starting values")  # taken from the first process
            engine.shard.begin(engine.replicates, {n: v for n, v in signature.items() if n not in starts})
        self.checkpoints: Checkpoints | None = None
        if path is not None:
            self.checkpoints = Checkpoints(path, engine, checkpoint_seconds, signature)

    def _save(self, consequence: str = "Training continues and tries again.") -> bool:
        """Write a checkpoint, if there is a folder; whether that worked."""
        if self.checkpoints is None:
            return False
        run, path = self._run, self.checkpoints.path
        header = {
            "epoch": run.epoch,
            "position": self.position,
            "history": [dataclasses.asdict(e) for e in run.history],
            "stopped": [dataclasses.asdict(s) for s in run.stopped],
            "train_seconds": run.train_seconds,
        }
        saved = self.checkpoints.save(header, consequence)
        if saved:
            self._notify(lambda c: c.on_checkpoint(run, path))
        return saved

    def start(self, resume: bool) -> None:
        """Continue from the checkpoint, if there is one; without ``resume``, set it aside."""
        if resume:
            self._load()
        elif self.checkpoints is not None:
            self.checkpoints.set_aside()

    def _load(self) -> None:
        """Of several processes, the first reads the checkpoint for all."""
        header = self._read() if self.engine.shard is None else self.engine.shard.from_first(self._read)
        if header is None:
            return
        if self.engine.shard is not None:
            self.engine.shard.copy_first(checkpoint.tensors(self.engine))
        self._run.epoch, self.position = header["epoch"], header["position"]
        self._run.history = [Epoch(**e) for e in header["history"]]
        self._run.stopped = [Stopped(**s) for s in header["stopped"]]
        self._run.train_seconds = header["train_seconds"]
        self.engine.resume_mode(header.get("mode"))

    def _read(self) -> dict[str, Any] | None:
        if self.checkpoints is None:
            raise invalid("resume", "train", "used with folder=...", "no folder")
        return self.checkpoints.read()

    # -- the loop -------------------------------------------------------------------------------------

    def _notify(self, call: Callable[[Callback], None]) -> None:
        for callback in self.callbacks:
            call(callback)

    def run(self) -> None:
        """Train to the last epoch."""
        try:
            self._train()
        except BaseException as error:
            if isinstance(error, ProcessLost):
                error.args = (f"{error} {self._after_loss()}",)
            # Whatever it is, the caller may want what has been learned. Some exceptions take no attributes.
            if getattr(error, "run", None) is None:
                with contextlib.suppress(AttributeError, TypeError):
                    error.run = self._run  # type: ignore[attr-defined]
            raise

    def _after_loss(self) -> str:
        """Save the last step that all processes completed; says how to continue."""
        if self.checkpoints is not None and self._save("The last state is not in the folder."):
            return f"Saved to {self.checkpoints.path}; start all processes with resume=True to continue."
        return "With a folder, start all processes again with resume=True to continue from its checkpoint."

    @property
    def _stopping(self) -> bool:
        """Whether to stop before the next step: after an interrupt, and in all processes at the same step."""
        return self._interrupted if self.engine.shard is None else self.engine.shard.stopping

    def _train(self) -> None:
        run, engine = self._run, self.engine
        if run.epoch < run.settings.epochs:
            engine.prepare(lambda: self._notify(lambda c: c.on_compiled(run)))
        run.mode = engine.mode
        self._notify(lambda c: c.on_train_start(run))
        with self._signals():
            while run.epoch < run.settings.epochs:
                self._epoch()
            saved = self._save("The trained run is returned, but its last state is not in the folder.")
            if self._stopping:
                raise self._interruption(saved)
        self._notify(lambda c: c.on_train_end(run))

    def _epoch(self) -> None:
        run, engine = self._run, self.engine
        began, spent = time.perf_counter(), 0.0
        engine.begin_epoch(run.epoch, self.position)
        per_epoch = run.batches.per_epoch
        while self.position < per_epoch:
            chunk = min(per_epoch - self.position, self._chunk())
            engine.run(chunk)
            self.position += chunk
            if self.position < per_epoch and self._checkpoint_due():
                spent += self._spent(began)
                self._checkpoint()
                began = time.perf_counter()
        spent += self._spent(began)
        engine.check()
        epoch = self._finished(spent)
        run.history.append(epoch)
        run.epoch, self.position = run.epoch + 1, 0
        self._check_stopped()
        self._notify(lambda c: c.on_epoch_end(run, epoch))
        if self._checkpoint_due():
            self._checkpoint()

    def _spent(self, began: float) -> float:
        """Seconds since ``began``, added to the run's training time even if the epoch is interrupted."""
        self._wait()
        seconds = time.perf_counter() - began
        self._run.train_seconds += seconds
        return seconds

    def _chunk(self) -> int:
        """Steps between two checks of the clock: one on a CPU, on a GPU enough to keep it busy."""
        return _STEPS_AT_ONCE if self.engine.device.type == "cuda" and self.engine.shard is None else 1

    def _wait(self) -> None:
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)

    def _checkpoint_due(self) -> bool:
        return self._stopping or (self.checkpoints is not None and self.checkpoints.due)

    def _checkpoint(self) -> None:
        """Save the present state; after an interrupt, stop."""
        self.engine.check()
        self._check_stopped()
        if self._stopping:
            raise self._interruption(self._save("The last state is not in the folder."))
        self._save()

    def _interruption(self, saved: bool, at_once: bool = False) -> Interrupted:
        path = None if self.checkpoints is None else self.checkpoints.path
        if saved:
            hint = f"Saved to {path}; call train again with resume=True to continue."
        else:
            hint = "The last steps could not be saved."
            if self.engine.shard is not None and self.engine.shard.rank > 0:
                hint = "The first process of the group writes the checkpoint, if a folder was given."
            elif path is None:
                hint = "Nothing was saved, because no folder was given."
            elif at_once:
                hint = "The last steps were not saved."
            if path is not None and path.exists():
                hint += " Call train again with resume=True to continue from the last checkpoint."
            hint += " The exception's attribute 'run' has the networks so far."
        return Interrupted(f"Interrupted in epoch {self._run.epoch}. {hint}", self._run)

    def _finished(self, seconds: float) -> Epoch:
        # The sums of a replicate that stopped are not a loss; left at 0 they would look like the best.
        alive = self.engine["alive"].unsqueeze(1)
        totals = torch.where(alive, self.engine["totals"], torch.nan)
        loss, nll, kl = totals.T.tolist()
        per_epoch = self._run.batches.per_epoch
        density = self.engine.replicates.density().tolist()
        return Epoch(
            self._run.epoch,
            loss,
            nll,
            [v / per_epoch for v in kl],
            density,
            round(seconds, 4),
        )

    # -- trouble --------------------------------------------------------------------------------------

    def _check_stopped(self) -> None:
        known = {s.replicate for s in self._run.stopped}
        for k, step in enumerate(self.engine["stopped_at"].tolist()):
            if step < 0 or k in known:
                continue
            stopped = Stopped(k, self._run.seeds[k], step, *self._diagnose(k, step))
            self._run.stopped.append(stopped)
            if self.checkpoints is not None:
                self.checkpoints.keep_last_good(step)
            left = len(self._run.seeds) - len(self._run.stopped)
            _log.warning("%s%s", stopped, " The other replicates continue." if left else "")
            self._notify(lambda c, stopped=stopped: c.on_replicate_stopped(self._run, stopped))  # type: ignore[misc]
        if len(self._run.stopped) == len(self._run.seeds):
            raise FloatingPointError("Every replicate stopped. " + " ".join(map(str, self._run.stopped)))

    def _diagnose(self, k: int, step: int) -> tuple[str, ...]:
        """The first layer whose values, KL or gradients are not finite, and for a KL what to do about it."""
        for name, parameter in self.engine.replicates.trained.items():
            if not bool(torch.isfinite(parameter[k]).all()):
                return (f"the value of {name.removeprefix('network.')} was not finite",)
        for name, kl in zip(self.engine.replicates.objective.layer_names, self.engine["kl_by_layer"][k]):
            if not bool(torch.isfinite(kl)):
                where = f"the KL of layer {name} was not finite, under {self._priors(k, name)}"
                # Before the first step no learning rate has done anything.
                return where, f"{'Lower its learning rate, or check' if step else 'Check'} these priors."
        return (self._diagnose_gradient(k),)

    def _priors(self, k: int, name: str) -> str:
        """The priors of a layer's weights and biases, with their values."""
        objective = self.engine.replicates.unstack(k)
        layers = dict(zip(objective.layer_names, (layer for _, layer in bayesian_layers(objective.network))))
        return " and ".join(repr(part) for part in layers[name].modules() if isinstance(part, Prior))

    def _diagnose_gradient(self, k: int) -> str:
        if k in self.engine.culprits:
            return f"the gradient of {self.engine.culprits[k].removeprefix('network.')} was not finite"
        for name, moment in self.engine.state["first"].items():
            if not bool(torch.isfinite(moment[k]).all()):
                return f"the gradient of {name.removeprefix('network.')} was not finite"
        return "the likelihood was not finite, after the last layer"

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first interrupt asks the loop to save and stop; a second one stops at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: Any) -> None:
            if self._interrupted:
                raise self._interruption(saved=False, at_once=True)
            self._interrupted = True
            if self.engine.shard is not None:
                self.engine.shard.interrupted = True

        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        # Not Python's to restore (None), or ignored on purpose, as under nohup: left alone.
        ours = [number for number, handler in before.items() if handler not in (None, signal.SIG_IGN)]
        for number in ours:
            signal.signal(number, handle)
        try:
            yield
        finally:
            for number in ours:
                signal.signal(number, before[number])
