"""Checkpoints: one safetensors file with its JSON header, written whole or not at all.

No pickle is written or read. Because noise and data order are functions of (seed, step), the state of
all randomness is the step number.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["CheckpointError", "FORMAT", "VERSION", "read", "write"]

FORMAT = "sparsebnn-checkpoint"
VERSION = 1


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or must not be used; the message says why."""


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("Checkpoints need 'safetensors': pip install 'sparsebnn[save]'") from error
    return safetensors


def write(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Replace ``path`` by a new checkpoint; if anything fails the old one stays as it was."""
    library = _safetensors()
    path.parent.mkdir(parents=True, exist_ok=True)
    # The header is a string-to-string map, so the JSON is one entry of it.
    meta = {"format": FORMAT, "version": str(VERSION), "json": json.dumps(header)}
    payload = library.torch.save(
        {name: t.detach().to("cpu").contiguous() for name, t in tensors.items()}, metadata=meta
    )
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        kept = "; the previous checkpoint is intact" if path.exists() else ""
        raise CheckpointError(
            f"The checkpoint {path} could not be written ({error.strerror or error}){kept}. "
            "Free space or choose another folder, then resume."
        ) from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a checkpoint; refuses what is truncated, foreign or of another version."""
    library = _safetensors()
    if not path.exists():
        raise CheckpointError(f"There is no checkpoint at {path}. Start without resume.")
    try:
        with library.safe_open(str(path), framework="pt", device="cpu") as file:
            meta = file.metadata() or {}
            if meta.get("format") != FORMAT:
                found = meta.get("format")
                raise CheckpointError(f"{path} is not a sparsebnn checkpoint (format {found!r}).")
            if meta.get("version") != str(VERSION):
                raise CheckpointError(
                    f"{path} has checkpoint version {meta.get('version')}; this release reads {VERSION}. "
                    "Resume it with the release that wrote it."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, json.loads(meta["json"])
    except CheckpointError:
        raise
    except Exception as error:  # safetensors, JSON and the file system each have their own
        message = f"{path} is damaged or truncated ({error}). Use an earlier checkpoint."
        raise CheckpointError(message) from error


def restore(target: dict[str, Tensor], stored: dict[str, Tensor], path: Path) -> None:
    """Copy stored tensors into the running state; both must hold the same names and shapes."""
    for name, tensor in target.items():
        if name not in stored:
            raise CheckpointError(f"{path} belongs to another network: it has no '{name}'.")
        if stored[name].shape != tensor.shape or stored[name].dtype != tensor.dtype:
            raise CheckpointError(
                f"{path} belongs to another network: '{name}' is {tuple(stored[name].shape)} "
                f"{stored[name].dtype} there and {tuple(tensor.shape)} {tensor.dtype} here."
            )
    extra = sorted(set(stored) - set(target))
    if extra:
        raise CheckpointError(f"{path} belongs to another network: '{extra[0]}' does not exist here.")
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(stored[name])
