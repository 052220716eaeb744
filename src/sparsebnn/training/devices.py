"""Where to compute: the device of a name, if there is such a one."""

from __future__ import annotations

from typing import Any

import torch

from sparsebnn.checks import invalid

__all__ = ["device_of", "is_there", "named"]


def is_there(device: torch.device) -> bool:
    """Whether this PyTorch and this machine have the device."""
    if device.type != "cuda":
        return True
    return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()


def named(given: Any, owner: str) -> torch.device | None:
    """The device of a name; None for "auto"."""
    if str(given) == "auto":
        return None
    try:
        return torch.device(str(given))
    except RuntimeError as error:
        raise invalid("device", owner, "'auto', 'cpu' or 'cuda'", repr(given)) from error


def device_of(given: Any, owner: str) -> torch.device:
    """The device to train on; one that there is not is refused.

    >>> device_of("cpu", "train")
    device(type='cpu')
    """
    device = named(given, owner)
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not is_there(device):
        advice = "PyTorch finds no such GPU here: use device='auto' or device='cpu'."
        raise invalid("device", owner, "one that is there", repr(str(given)), advice)
    return device
