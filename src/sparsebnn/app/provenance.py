"""Where a result comes from: the commit of this project, versions and the device."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sparsebnn

__all__ = ["commit", "commit_and_source", "device_name", "rounded", "versions"]


def _package() -> Path:
    return Path(sparsebnn.__file__).resolve().parent


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=_package(), capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _is_checkout() -> bool:
    """Whether the package runs from a git checkout of this project.

    An environment inside another project's repository must not pass off that project's commit as ours.
    """
    top = _git("rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() / "src" / "sparsebnn" != _package():
        return False
    project = Path(top) / "pyproject.toml"
    return project.is_file() and 'name = "sparsebnn"' in project.read_text(encoding="utf-8").splitlines()


def commit_and_source() -> tuple[str | None, str | None]:
    """The commit of the package, with ``+changes`` if its files were edited, and where it was found.

    Only a git checkout of this project has a commit. Elsewhere, ``SPARSEBNN_COMMIT`` may name it.
    """
    head = _git("rev-parse", "HEAD") if _is_checkout() else None
    if head is not None:
        # Only the package counts: results that a study has just written are no change.
        return (f"{head}+changes" if _git("status", "--porcelain", "--", str(_package())) else head), "git"
    named = os.environ.get("SPARSEBNN_COMMIT")
    return (named, "SPARSEBNN_COMMIT") if named else (None, None)


def commit() -> str | None:
    """The commit of the package, None if unknown."""
    return commit_and_source()[0]


def versions() -> dict[str, str]:
    """The versions that affect results."""
    return {
        "sparsebnn": sparsebnn.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def device_name(device: torch.device) -> str:
    """The name of a GPU; for a CPU, its architecture and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {torch.get_num_threads()} threads)"


def rounded(value: Any, digits: int = 6) -> Any:
    """Round to ``digits`` significant digits, in lists and mappings, too; NaN and infinity become None.

    >>> rounded({"a": [1.23456789, float("nan")]}, digits=3)
    {'a': [1.23, None]}
    """
    if isinstance(value, Mapping):
        return {key: rounded(entry, digits) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry, digits) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if np.isfinite(value) else None
    return value
