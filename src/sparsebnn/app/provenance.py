"""What made a result: the commit of this project, and the versions of what numbers depend on."""

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

    A package installed into the environment of another project may lie inside that project's repository,
    whose commits say nothing about the package.
    """
    top = _git("rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() / "src" / "sparsebnn" != _package():
        return False
    project = Path(top) / "pyproject.toml"
    return project.is_file() and 'name = "sparsebnn"' in project.read_text(encoding="utf-8").splitlines()


def commit_and_source() -> tuple[str | None, str | None]:
    """The commit of the package, with ``+changes`` if its files were edited, and where it was found.

    Only a git checkout of this project has a commit. Elsewhere, as on a machine that received only the
    files, ``SPARSEBNN_COMMIT`` may name it; ``versions`` has the version of the package in any case.
    """
    head = _git("rev-parse", "HEAD") if _is_checkout() else None
    if head is not None:
        # The package alone: results that a study has just written do not change what made them.
        return (f"{head}+changes" if _git("status", "--porcelain", "--", str(_package())) else head), "git"
    told = os.environ.get("SPARSEBNN_COMMIT")
    return (told, "SPARSEBNN_COMMIT") if told else (None, None)


def commit() -> str | None:
    """The commit the package stands at, as far as it is known."""
    return commit_and_source()[0]


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    return {
        "sparsebnn": sparsebnn.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def device_name(device: torch.device) -> str:
    """What a device is called by its maker; of a CPU, its kind and how many threads are used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {torch.get_num_threads()} threads)"


def rounded(value: Any, digits: int = 6) -> Any:
    """Numbers to ``digits`` significant digits, through lists and mappings; NaN becomes None.

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
