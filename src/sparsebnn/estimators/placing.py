"""Where an estimator predicts, which need not be where it was trained."""

from __future__ import annotations

from typing import Any

from sparsebnn.training.devices import is_available, named

__all__ = ["to_predict"]


def to_predict(given: Any, owner: str) -> str:
    """The device to predict on: the one asked for where it is there, else the CPU.

    A model trained on a GPU must predict anywhere it is loaded; where predictions are computed changes
    nothing but rounding.

    >>> to_predict("auto", "SparseBNNClassifier")
    'cpu'
    """
    device = named(given, owner)
    return str(device) if device is not None and is_available(device) else "cpu"
