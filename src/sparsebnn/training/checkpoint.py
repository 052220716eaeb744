"""Checkpoints: what a run saves, when, and which run may continue from it.

A checkpoint is one safetensors file with a JSON header, written whole or not at all. Because noise and data
order are functions of (seed, step), the state of all randomness is the step number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import itertools
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparsebnn.io import storage
from sparsebnn.io.files import atomic_write, locked
from sparsebnn.nn.description import described
from sparsebnn.training.batches import Batches

if TYPE_CHECKING:
    from sparsebnn.training.engine import Engine

_log = logging.getLogger("sparsebnn")
# A write that failed is not tried again before: at every step it would cost more than the training.
RETRY_SECONDS = 10.0
_FILE, _LOCK = "checkpoint.safetensors", ".checkpoint.lock"


class CheckpointError(storage.StorageError):
    """A checkpoint that cannot be written or must not be used; the message says why."""


KIND = storage.Kind(
    noun="checkpoint",
    version=1,
    error=CheckpointError,
    if_unwritable="Free disk space, or check the folder's permissions.",
    if_missing="Start without resume.",
    if_other_version="Resume it with the release that wrote it.",
    if_damaged="Use an earlier checkpoint.",
)


@contextlib.contextmanager
def reserved(folder: str | Path) -> Iterator[Path]:
    """Reserve ``folder`` for one training run: create it, test it, lock it. Yields the checkpoint's path.

    All before there is work that could be lost. The lock ends with the scope, or with the process.
    """
    folder = Path(folder)
    if importlib.util.find_spec("safetensors") is None:
        raise ImportError("Checkpoints need 'safetensors': pip install 'sparsebnn[save]'")
    with contextlib.ExitStack() as scope:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
            mine = scope.enter_context(locked(folder / _LOCK, wait=False))
        except OSError as error:
            reason = error.strerror or error
            raise CheckpointError(
                f"Checkpoints cannot be written into {folder} ({reason}). Choose another folder."
            ) from error
        if not mine:
            raise CheckpointError(
                f"The 'folder' of train must be used by one training run at a time. Another one is running "
                f"in {folder}. Wait until it ends, or choose another folder."
            )
        # A run that was killed while writing leaves these.
        for partial in folder.glob(".checkpoint*.safetensors.*"):
            with contextlib.suppress(OSError):
                partial.unlink()
        yield folder / _FILE


def write(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Replace ``path`` by a new checkpoint; if anything fails the old one stays as it was."""
    storage.write(KIND, path, tensors, header)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a checkpoint; refuses what is truncated, foreign or of another version."""
    return storage.read(KIND, path)


def restore(target: dict[str, Tensor], stored: dict[str, Tensor], path: Path) -> None:
    """Copy stored tensors into the running state; both must hold the same names and shapes."""
    storage.restore(KIND, target, stored, path)


def keep_copy(path: Path, copy: Path) -> None:
    """Keep a checkpoint under a second name, whole or not at all.

    A hard link needs no space and is safe: the next checkpoint replaces the name, not the content.
    """
    try:
        os.link(path, copy)
    except OSError:  # a file system without hard links
        with atomic_write(copy) as partial:
            shutil.copyfile(path, partial)


class Writes:
    """Tries to write; logs every cause of failure once, and says when to try again."""

    def __init__(
        self, errors: tuple[type[Exception], ...] = (OSError, storage.StorageError, MemoryError)
    ) -> None:
        self._errors = errors
        self._known: set[tuple[str, str]] = set()
        self._not_before = 0.0

    @property
    def paused(self) -> bool:
        """Whether the last write failed only a moment ago."""
        return time.monotonic() < self._not_before

    def attempt(self, what: str, write: Callable[[], object], consequence: str) -> bool:
        """Whether ``write`` succeeded; ``what`` it writes and the ``consequence`` go into the warning."""
        try:
            write()
        except self._errors as error:
            self._not_before = time.monotonic() + RETRY_SECONDS
            # A StorageError already says which file could not be written, and why.
            why = (
                str(error)
                if isinstance(error, storage.StorageError)
                else f"{what} could not be written ({_reason(error)})."
            )
            if (why, consequence) not in self._known:
                self._known.add((why, consequence))
                _log.warning("%s %s", why, consequence)
            return False
        self._not_before = 0.0
        return True


def _reason(error: Exception) -> str:
    """Without the name of a temporary file, which differs every time."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


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


def signature(engine: Engine) -> dict[str, Any]:
    """What must agree for a run to continue: settings, data, seeds, shapes, starting values.

    Take it before the first step: a controller of the density changes priors during training.
    """
    replicates, batches = engine.replicates, engine.batches
    named = engine.settings.named()
    settings = {n: v for n, v in dataclasses.asdict(engine.settings).items() if n in named}
    shapes = {n: list(t.shape) for n, t in replicates.parameters.items()}
    modules = described(replicates.objective.network)
    if isinstance(batches, Batches):
        data = {"targets": _digest({"y": batches.y}), "inputs or weights": _digest(batches.tensors())}
    else:
        data = batches.signature()
    changes = "; ".join(f"{type(one).__name__} {_plain_options(one)}" for one in engine.augment)
    return {
        "architecture": shapes,
        "modules and their options": hashlib.sha256(modules.encode()).hexdigest()[:16],
        "settings": repr(sorted(settings.items(), key=lambda item: item[0])),
        "rows": batches.rows,
        **data,
        **({"augmentation": changes} if engine.augment else {}),
        "priors and other buffers": _digest({**replicates.shared, **replicates.varied}),
        "varied settings": {name: values.tolist() for name, values in engine.varied.items()},
        "likelihood": repr(replicates.objective.likelihood),
        "seeds": replicates.seeds,
        "starting values": _digest(replicates.parameters),
    }


def tensors(engine: Engine) -> dict[str, Tensor]:
    """All tensors that a run continues from."""
    replicates = engine.replicates
    state = {f"parameter/{n}": t for n, t in replicates.parameters.items()}
    for moment in ("first", "second"):
        state.update({f"adam.{moment}/{n}": t for n, t in engine.state[moment].items()})
    state.update({f"average/{n}": t for n, t in engine.state["average"].items()})
    state.update({f"varied/{n}": t for n, t in replicates.varied.items()})
    for name in ("step", "alive", "stopped_at", "totals"):
        state[f"loop/{name}"] = engine[name]
    return state


class Checkpoints:
    """The checkpoint of one run at ``path``, written every ``seconds``."""

    def __init__(self, path: Path, engine: Engine, seconds: float, signature: dict[str, Any]) -> None:
        self.path, self.engine, self.seconds, self.signature = path, engine, seconds, signature
        self._writes = Writes()
        self._next = time.monotonic() + seconds

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._next and not self._writes.paused

    def save(self, header: dict[str, Any], consequence: str) -> bool:
        """Write a checkpoint and return whether that worked; the log reports a failure."""
        header = {"signature": self.signature, **header, "mode": self.engine.mode}
        saved = self._writes.attempt(
            f"The checkpoint {self.path}",
            lambda: write(self.path, tensors(self.engine), header),
            consequence,
        )
        self._next = time.monotonic() + self.seconds
        return saved

    def read(self) -> dict[str, Any] | None:
        """Restore the tensors of a checkpoint of this run, if there is one, and return its header."""
        if not self.path.exists():
            return None
        stored, header = read(self.path)
        mine = self.signature
        for key in {"augmentation": None, **header["signature"]}:
            if json.loads(json.dumps(mine.get(key))) != header["signature"].get(key):
                raise CheckpointError(
                    f"{self.path} belongs to another run: its {key} differ. "
                    "Resume with the same network, data, seeds and settings, or choose another folder."
                )
        restore(tensors(self.engine), stored, self.path)
        return header

    def set_aside(self) -> None:
        """Rename a checkpoint of an earlier run: it is overwritten only on request."""
        if self.path.exists():
            numbers = itertools.chain([""], map(str, itertools.count(2)))
            names = (self.path.with_name(f"replaced{n}.{self.path.name}") for n in numbers)
            kept = next(name for name in names if not name.exists())
            try:
                os.replace(self.path, kept)
            except OSError as error:
                raise CheckpointError(
                    f"{self.path} is of an earlier run and could not be renamed ({error.strerror or error}). "
                    "Move it, or choose another folder."
                ) from error
            _log.warning("%s is of an earlier run and is now %s.", self.path, kept.name)

    def keep_last_good(self, step: int) -> None:
        """Keep the last checkpoint before a replicate stopped at ``step`` under a separate name."""
        good = self.path.with_name(f"checkpoint-before-step-{step}.safetensors")
        if self.path.exists() and not good.exists():
            self._writes.attempt(str(good), lambda: keep_copy(self.path, good), "Training continues.")
