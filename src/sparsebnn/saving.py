"""Trained networks as files: the state and whatever should be remembered of it, without pickle.

A file is checked before any of it is copied: one that is refused leaves the network as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn import storage
from sparsebnn.checks import invalid
from sparsebnn.networks import NO_POSTERIOR
from sparsebnn.priors import Prior

__all__ = ["ModelError", "impossible", "load_state", "save"]


class ModelError(storage.StorageError):
    """A model file that cannot be written or must not be used; the message says why."""


_KIND = storage.Kind(
    noun="model",
    version=1,
    error=ModelError,
    if_unwritable="Free space or choose another folder, then save again.",
    if_missing="Check the path, or save a network there first.",
    if_other_version="Load it with the release that wrote it.",
    if_damaged="Save the network again.",
)
_PRIOR_VALUES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "std": ("positive", lambda value: value > 0.0),
    "inclusion_prob": ("strictly between 0 and 1", lambda value: (value > 0.0) & (value < 1.0)),
}


def _state(network: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer, one used in two places once."""
    persistent = network.state_dict()
    named = (*network.named_parameters(), *network.named_buffers())
    return {name: tensor for name, tensor in named if name in persistent}


def save(network: nn.Module, path: str | Path, **metadata: Any) -> Path:
    """Write a network's state, and ``metadata`` (anything JSON can hold), to one safetensors file.

    >>> import sparsebnn, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(sparsebnn.mlp([4, 8, 3]), f"{folder}/model.safetensors", sizes=[4, 8, 3])
    ...     load_state(path, sparsebnn.mlp([4, 8, 3]))
    {'sizes': [4, 8, 3]}
    """
    try:
        storage.parse(json.dumps(metadata))
    except (TypeError, ValueError) as error:
        raise invalid("metadata", "save", "what JSON can hold", str(error)) from error
    target = Path(path)
    if NO_POSTERIOR in metadata:
        raise invalid("metadata", "save", "of other names", repr(NO_POSTERIOR), "That one is the network's.")
    header = {**metadata, NO_POSTERIOR: getattr(network, NO_POSTERIOR, None)}
    state = _state(network)
    reason = impossible(network, state)
    if reason:
        advice = "A training that diverged needs a lower learning rate."
        raise invalid("network", "save", "one that can be used", f"one where {reason}", advice)
    storage.write(_KIND, target, state, header)
    return target


def load_state(path: str | Path, network: nn.Module) -> dict[str, Any]:
    """Load a saved state into a network of the same make; returns the metadata saved beside it.

    A network whose inclusions are no posterior probabilities (tempered, cut, refitted) stays marked as such.
    """
    source = Path(path)
    tensors, metadata = storage.read(_KIND, source)
    _check_structure(network, tensors, source)
    state = _state(network)
    storage.check(_KIND, state, tensors, source)
    reason = impossible(network, tensors)
    if reason:
        raise ModelError(f"{source} must not be used: {reason}. {_KIND.if_damaged}")
    storage.restore(_KIND, state, tensors, source)
    if NO_POSTERIOR in metadata:  # files of before it do not say
        setattr(network, NO_POSTERIOR, metadata.pop(NO_POSTERIOR))
    return metadata


def impossible(network: nn.Module, state: dict[str, Tensor]) -> str:
    """What a trained network cannot have in this state (of the same names and shapes), or ``""``.

    That is NaN and infinite values, and priors without a positive std or with an inclusion probability that
    is not between 0 and 1. A buffer may hold infinities where the network's own does, as masks do.
    """
    own = dict(network.named_buffers())
    for name, value in state.items():
        bad = ~value.isfinite()
        if name in own and bool(bad.any()):
            bad &= ~torch.isclose(value, own[name].to(value), equal_nan=True)
        if bool(bad.any()):
            return f"'{name}' has {int(bad.sum())} NaN or infinite values"
    for path, module in network.named_modules():
        for buffer, (expected, fits) in _PRIOR_VALUES.items() if isinstance(module, Prior) else ():
            name = f"{path}.{buffer}".lstrip(".")
            if name in state and not bool(fits(state[name]).all()):
                wrong = float(state[name][~fits(state[name])].flatten()[0])
                return f"'{name}' must be {expected} and is {wrong:g}"
    return ""


def _check_structure(network: nn.Module, stored: dict[str, Tensor], path: Path) -> None:
    """Buffers that say what the weights mean must be those of the network; to copy them would not do."""
    for name, module in network.named_modules():
        for buffer in getattr(module, "structure", ()):
            own, full = module.get_buffer(buffer), f"{name}.{buffer}".lstrip(".")
            given = stored.get(full)
            if given is not None and given.shape == own.shape and not torch.equal(given.to(own), own):
                reason = f"'{full}' differs, its weights are those of another ordering"
                raise ModelError(f"{path} belongs to another network: {reason}.")
