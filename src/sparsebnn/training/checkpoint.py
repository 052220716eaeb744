"""Checkpoints: one safetensors file with its JSON header, written whole or not at all.

Because noise and data order are functions of (seed, step), the state of all randomness is the step
number.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from sparsebnn import storage

__all__ = ["CheckpointError", "KIND", "check_folder", "read", "restore", "write"]


class CheckpointError(storage.StorageError):
    """A checkpoint that cannot be written or must not be used; the message says why."""


KIND = storage.Kind(
    noun="checkpoint",
    version=1,
    error=CheckpointError,
    if_unwritable="Free space or choose another folder, then resume.",
    if_missing="Start without resume.",
    if_other_version="Resume it with the release that wrote it.",
    if_damaged="Use an earlier checkpoint.",
)


def check_folder(folder: Path) -> None:
    """Make the folder and try it, before there is work that could be lost."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CheckpointError(
            f"Checkpoints cannot be written into {folder} ({error.strerror or error}). Choose another folder."
        ) from error


def write(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Replace ``path`` by a new checkpoint; if anything fails the old one stays as it was."""
    storage.write(KIND, path, tensors, header)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a checkpoint; refuses what is truncated, foreign or of another version."""
    return storage.read(KIND, path)


def restore(target: dict[str, Tensor], stored: dict[str, Tensor], path: Path) -> None:
    """Copy stored tensors into the running state; both must hold the same names and shapes."""
    storage.restore(KIND, target, stored, path)
