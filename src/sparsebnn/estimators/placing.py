"""Where an estimator computes: what was asked for at ``fit``, and what there is when it predicts."""

from __future__ import annotations

from typing import Any

import torch

from sparsebnn.checks import invalid

__all__ = ["check_device", "to_predict"]


def _there(device: torch.device) -> bool:
    """Whether this PyTorch and this machine have the device."""
    if device.type != "cuda":
        return True
    return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()


def _named(given: Any, owner: str) -> torch.device | None:
    """The device of a name; None for "auto"."""
    if str(given) == "auto":
        return None
    try:
        return torch.device(str(given))
    except RuntimeError as error:
        raise invalid("device", owner, "'auto', 'cpu' or 'cuda'", repr(given)) from error


def check_device(given: Any, owner: str) -> None:
    """Refuse a device to train on that there is not."""
    device = _named(given, owner)
    if device is not None and not _there(device):
        advice = "PyTorch finds no such GPU here: use device='auto' or device='cpu'."
        raise invalid("device", owner, "one that is there", repr(given), advice)


def to_predict(given: Any, owner: str) -> str:
    """The device to predict on: the one asked for where it is there, else the CPU.

    A model trained on a GPU must predict anywhere it is loaded; where predictions are computed changes
    nothing but rounding.

    >>> to_predict("auto", "SparseBNNClassifier")
    'cpu'
    """
    device = _named(given, owner)
    return str(device) if device is not None and _there(device) else "cpu"
