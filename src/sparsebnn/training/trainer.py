"""One call of ``train``: epochs, checkpoints, interruptions, replicates that stop."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparsebnn.checks import invalid
from sparsebnn.nn.networks import bayesian_layers, described
from sparsebnn.posteriors.priors import Prior
from sparsebnn.training import checkpoint
from sparsebnn.training.batches import Batches
from sparsebnn.training.callbacks import Callback, Epoch, Progress, Stopped
from sparsebnn.training.checkpoint import Writes
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


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """A fingerprint of names and values."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        # As bytes: NumPy does not know every type of number.
        numbers = tensor.detach().cpu().flatten().clone(memory_format=torch.contiguous_format)
        sha.update(numbers.view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]


def _plain_options(one: object) -> list[tuple[str, Any]]:
    options = getattr(one, "__dict__", {})
    return sorted((name, value) for name, value in options.items() if isinstance(value, int | float | str))


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
        self.path = path
        self.every = checkpoint_seconds
        self.callbacks = list(callbacks)
        if progress is not False:
            self.callbacks.append(Progress(force=bool(progress)))
        if engine.shard is not None and engine.shard.rank > 0:
            self.callbacks = [one for one in self.callbacks if one.everywhere]
        self.position = 0
        self._writes = Writes()
        self._next_save = time.monotonic() + self.every
        self._interrupted = False
        # Taken before the first step: a controller moves priors while training goes on.
        self.signature = self._signature() if path is not None or engine.shard is not None else {}
        if engine.shard is not None:
            starts = ("priors and other buffers", "starting values")  # taken from the first process
            engine.shard.begin(
                engine.replicates, {n: v for n, v in self.signature.items() if n not in starts}
            )

    # -- state ----------------------------------------------------------------------------------------

    def _tensors(self) -> dict[str, Tensor]:
        engine, replicates = self.engine, self.engine.replicates
        state = {f"parameter/{n}": t for n, t in replicates.parameters.items()}
        for moment in ("first", "second"):
            state.update({f"adam.{moment}/{n}": t for n, t in engine.state[moment].items()})
        state.update({f"average/{n}": t for n, t in engine.state["average"].items()})
        state.update({f"varied/{n}": t for n, t in replicates.varied.items()})
        for name in ("step", "alive", "stopped_at", "totals"):
            state[f"loop/{name}"] = engine[name]
        return state

    def _signature(self) -> dict[str, Any]:
        """What must agree for a run to go on: settings, data, seeds, shapes, the start."""
        named = self._run.settings.named()
        settings = {n: v for n, v in dataclasses.asdict(self._run.settings).items() if n in named}
        shapes = {n: list(t.shape) for n, t in self.engine.replicates.parameters.items()}
        replicates = self.engine.replicates
        return {
            "architecture": shapes,
            "modules and their options": _fingerprint(described(replicates.objective.network)),
            "settings": repr(sorted(settings.items(), key=lambda item: item[0])),
            "rows": self.engine.batches.rows,
            **self._data_signature(),
            **({"augmentation": self._changes()} if self.engine.augment else {}),
            "priors and other buffers": _digest({**replicates.shared, **replicates.varied}),
            "varied settings": {name: values.tolist() for name, values in self.engine.varied.items()},
            "likelihood": repr(replicates.objective.likelihood),
            "seeds": self._run.seeds,
            "starting values": _digest(replicates.parameters),
        }

    def _changes(self) -> str:
        """The augmentations and their options."""
        return "; ".join(f"{type(one).__name__} {_plain_options(one)}" for one in self.engine.augment)

    def _data_signature(self) -> dict[str, str]:
        batches = self.engine.batches
        if isinstance(batches, Batches):
            return {
                "targets": _digest({"y": batches.y}),
                "inputs or weights": _digest(batches.tensors()),
            }
        return batches.signature()

    def _save(self, consequence: str = "Training continues and tries again.") -> bool:
        """Write a checkpoint; whether that worked. If not, the log says so."""
        if self.path is None:
            return False
        header = {
            "signature": self.signature,
            "epoch": self._run.epoch,
            "position": self.position,
            "history": [dataclasses.asdict(e) for e in self._run.history],
            "stopped": [dataclasses.asdict(s) for s in self._run.stopped],
            "train_seconds": self._run.train_seconds,
            "mode": self.engine.mode,
        }
        path = self.path
        saved = self._writes.attempt(
            f"The checkpoint {path}", lambda: checkpoint.write(path, self._tensors(), header), consequence
        )
        self._next_save = time.monotonic() + self.every
        if saved:
            self._notify(lambda c: c.on_checkpoint(self._run, path))
        return saved

    def set_aside(self) -> None:
        """Rename a checkpoint of an earlier run: it is overwritten only on request."""
        if self.path is not None and self.path.exists():
            numbers = itertools.chain([""], map(str, itertools.count(2)))
            names = (self.path.with_name(f"replaced{n}.{self.path.name}") for n in numbers)
            kept = next(name for name in names if not name.exists())
            try:
                os.replace(self.path, kept)
            except OSError as error:
                raise checkpoint.CheckpointError(
                    f"{self.path} is of an earlier run and could not be renamed ({error.strerror or error}). "
                    "Move it, or choose another folder."
                ) from error
            _log.warning("%s is of an earlier run and is now %s.", self.path, kept.name)

    def load(self) -> None:
        """Continue from the checkpoint, if there is one; of several processes, the first reads it for all."""
        header = self._read() if self.engine.shard is None else self.engine.shard.from_first(self._read)
        if header is None:
            return
        if self.engine.shard is not None:
            self.engine.shard.copy_first(self._tensors())
        self._run.epoch, self.position = header["epoch"], header["position"]
        self._run.history = [Epoch(**e) for e in header["history"]]
        self._run.stopped = [Stopped(**s) for s in header["stopped"]]
        self._run.train_seconds = header["train_seconds"]
        self.engine.resume_mode(header.get("mode"))

    def _read(self) -> dict[str, Any] | None:
        """Restore the tensors of a checkpoint of this run and return its header."""
        if self.path is None:
            raise invalid("resume", "train", "used with folder=...", "no folder")
        if not self.path.exists():
            return None
        tensors, header = checkpoint.read(self.path)
        mine = self.signature
        for key in {"augmentation": None, **header["signature"]}:
            if json.loads(json.dumps(mine.get(key))) != header["signature"].get(key):
                raise checkpoint.CheckpointError(
                    f"{self.path} belongs to another run: its {key} differ. "
                    "Resume with the same network, data, seeds and settings, or choose another folder."
                )
        checkpoint.restore(self._tensors(), tensors, self.path)
        return header

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
        """Save the last step that all processes made; how to go on."""
        if self._save("The last state is not in the folder."):
            return f"Saved to {self.path}; start all processes again with resume=True to go on."
        return "With a folder, start all processes again with resume=True to go on from its checkpoint."

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
        """Seconds since then; they count as training, also in an epoch that is interrupted."""
        self._wait()
        seconds = time.perf_counter() - began
        self._run.train_seconds += seconds
        return seconds

    def _chunk(self) -> int:
        """Steps between two looks at the clock: one on a CPU, on a GPU enough to keep it busy."""
        return _STEPS_AT_ONCE if self.engine.device.type == "cuda" and self.engine.shard is None else 1

    def _wait(self) -> None:
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)

    def _checkpoint_due(self) -> bool:
        waited = self.path is not None and time.monotonic() >= self._next_save
        return self._stopping or (waited and not self._writes.paused)

    def _checkpoint(self) -> None:
        """Save the present state; after an interrupt, stop."""
        self.engine.check()
        self._check_stopped()
        if self._stopping:
            raise self._interruption(self._save("The last state is not in the folder."))
        self._save()

    def _interruption(self, saved: bool, at_once: bool = False) -> Interrupted:
        if saved:
            hint = f"Saved to {self.path}; call train again with resume=True to go on."
        else:
            hint = "The last steps could not be saved."
            if self.engine.shard is not None and self.engine.shard.rank > 0:
                hint = "The first process of the group writes the checkpoint, if a folder was given."
            elif self.path is None:
                hint = "Nothing was saved, because no folder was given."
            elif at_once:
                hint = "The last steps were not saved."
            if self.path is not None and os.path.exists(self.path):
                hint += " Call train again with resume=True to go on from the last checkpoint."
            hint += " The exception's attribute 'run' has the networks so far."
        return Interrupted(f"Interrupted in epoch {self._run.epoch}. {hint}", self._run)

    def _finished(self, seconds: float) -> Epoch:
        # What a replicate summed up before it stopped is no loss, and 0 would be the best one there is.
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
            self._keep_last_good(step)
            left = len(self._run.seeds) - len(self._run.stopped)
            _log.warning("%s%s", stopped, " The other replicates go on." if left else "")
            self._notify(lambda c, stopped=stopped: c.on_replicate_stopped(self._run, stopped))  # type: ignore[misc]
        if len(self._run.stopped) == len(self._run.seeds):
            raise FloatingPointError("Every replicate stopped. " + " ".join(map(str, self._run.stopped)))

    def _diagnose(self, k: int, step: int) -> tuple[str, ...]:
        """Which layer: the first whose values, KL or gradients are broken; with the KL comes own advice."""
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

    def _keep_last_good(self, step: int) -> None:
        """Keep the last checkpoint before the stop under a separate name."""
        if self.path is not None and self.path.exists():
            path, good = self.path, self.path.with_name(f"checkpoint-before-step-{step}.safetensors")
            if not good.exists():
                self._writes.attempt(
                    str(good), lambda: checkpoint.keep_copy(path, good), "Training continues."
                )

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
