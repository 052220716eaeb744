"""Checkpoints: one safetensors file with its JSON header, written whole or not at all.

Because noise and data order are functions of (seed, step), the state of all randomness is the step
number.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from sparsebnn.io import storage
from sparsebnn.io.files import atomic_write, locked

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
def reserved(folder: str | Path | None) -> Iterator[Path | None]:
    """Reserve ``folder`` for one training run: create it, test it, lock it. Yields the checkpoint's path.

    All before there is work that could be lost. The lock ends with the scope, or with the process.
    """
    if folder is None:
        yield None
        return
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
