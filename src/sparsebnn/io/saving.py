"""Trained networks as files, with their likelihood and whatever should be remembered, without pickle.

A file is checked before any of it is copied: one that is refused leaves the network as it was.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sparsebnn import likelihoods
from sparsebnn.checks import invalid
from sparsebnn.io import storage
from sparsebnn.likelihoods import Likelihood
from sparsebnn.nn.networks import NO_POSTERIOR
from sparsebnn.posteriors.priors import Prior


class ModelError(storage.StorageError):
    """A model file that cannot be written or must not be used; the message says why."""


_FUNCTIONS = "functions"
_KIND = storage.Kind(
    noun="model",
    version=2,
    error=ModelError,
    if_missing="Check the path, or save a network there first.",
    if_damaged="Save the network again.",
)
_PRIOR_VALUES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "mean": ("finite", torch.isfinite),
    "std": ("positive and finite", lambda value: (value > 0.0) & value.isfinite()),
    "inclusion_prob": ("strictly between 0 and 1", lambda value: (value > 0.0) & (value < 1.0)),
}


# The only likelihoods that a file can name; and where their tensors are among a network's.
_LIKELIHOODS: dict[str, type[Likelihood]] = {
    name: getattr(likelihoods, name) for name in likelihoods.__all__ if name[0].isupper()
}
_LIKELIHOOD = "likelihood/"


class Trained(Protocol):
    """What :func:`save` needs of a run."""

    @property
    def network(self) -> nn.Module: ...

    @property
    def likelihood(self) -> Likelihood: ...

    @property
    def seeds(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Loaded:
    """What a model file holds: ``predict(loaded.network, x, loaded.likelihood)``.

    ``likelihood`` is None where the network was saved without one.
    """

    network: nn.Module
    likelihood: Likelihood | None
    metadata: dict[str, Any]


def _state(network: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer, one used in two places once."""
    persistent = network.state_dict()
    named = (*network.named_parameters(), *network.named_buffers())
    return {name: tensor for name, tensor in named if name in persistent}


def save(
    network: nn.Module | Trained, path: str | Path, likelihood: Likelihood | None = None, **metadata: Any
) -> Path:
    """Write a trained network, its likelihood, and ``metadata`` (anything JSON can hold) to one file.

    ``network`` is the run that :func:`~sparsebnn.train` returns, which has both, or a module. A module is
    saved with the ``likelihood`` it was trained with; without one, what the likelihood has learned is not in
    the file. Of several replicates save each network with its likelihood.

    >>> import sparsebnn, tempfile
    >>> network, likelihood = sparsebnn.mlp([4, 8, 1]), sparsebnn.likelihoods.Gaussian(std=0.3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(network, f"{folder}/model.safetensors", likelihood, sizes=[4, 8, 1])
    ...     loaded = load(path, sparsebnn.mlp([4, 8, 1]))
    >>> loaded.metadata, loaded.likelihood.noise
    ({'sizes': [4, 8, 1]}, 'learned')
    >>> sparsebnn.predict(loaded.network, torch.zeros(2, 4), loaded.likelihood).mean.shape
    torch.Size([2, 1])
    """
    try:
        storage.parse(json.dumps(metadata))
    except (TypeError, ValueError) as error:
        raise invalid("metadata", "save", "what JSON can hold", str(error)) from error
    if not isinstance(network, nn.Module):
        network, likelihood = _of_run(network, likelihood)
    parts = {"network": (network, _state(network))}
    tensors = dict(parts["network"][1])
    if likelihood is not None:
        if not isinstance(likelihood, Likelihood):
            raise invalid("likelihood", "save", "a Likelihood", type(likelihood).__name__)
        parts["likelihood"] = (likelihood, _state(likelihood))
        tensors |= {f"{_LIKELIHOOD}{name}": tensor for name, tensor in parts["likelihood"][1].items()}
    for name, (module, state) in parts.items():
        reason = impossible(module, state)
        if reason:
            advice = "A training that diverged needs a lower learning rate."
            raise invalid(name, "save", "one that can be used", f"one where {reason}", advice)
    header = {
        "likelihood": None if likelihood is None else likelihood_record(likelihood),
        "metadata": metadata,
        NO_POSTERIOR: getattr(network, NO_POSTERIOR, None),
        _FUNCTIONS: _functions(network),
    }
    target = Path(path)
    storage.write(_KIND, target, tensors, header)
    return target


def _of_run(run: Trained, likelihood: Likelihood | None) -> tuple[nn.Module, Likelihood]:
    if not all(hasattr(run, name) for name in ("seeds", "network", "likelihood")):
        raise invalid("network", "save", "a network or a run of train", type(run).__name__)
    if len(run.seeds) > 1:
        advice = "Save each: save(network, path, likelihood) for zip(run.networks, run.likelihoods)."
        raise invalid("network", "save", "a run of one replicate", f"one of {len(run.seeds)}", advice)
    if likelihood is not None:
        advice = "A run has a likelihood; to save another, pass run.network."
        raise invalid("likelihood", "save", "None when a run is saved", type(likelihood).__name__, advice)
    return run.network, run.likelihood


def load(path: str | Path, network: nn.Module, likelihood: Likelihood | None = None) -> Loaded:
    """Load a saved state into ``network``, which must be of the same make; the likelihood comes with it.

    The library's own likelihoods are built from the file. One of a class of yours is not: pass such a
    ``likelihood``, and what it had learned is loaded into it. A network whose inclusions are no posterior
    probabilities (tempered, cut, refitted) stays marked as such.
    """
    source = Path(path)
    tensors, header = storage.read(_KIND, source)
    described, metadata, mark = _parts(header, source)
    own: dict[str, Tensor] = {}
    learned: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        (learned if name.startswith(_LIKELIHOOD) else own)[name.removeprefix(_LIKELIHOOD)] = tensor
    _check_structure(network, own, source)
    _check_functions(network, header.get(_FUNCTIONS), source)
    state = _state(network)
    storage.check(_KIND, state, own, source)
    form = _likelihood(described, likelihood, learned, source)
    form_state = {} if form is None else _state(form)
    storage.check(_KIND, form_state, learned, source)
    reason = impossible(network, own) or (impossible(form, learned) if form is not None else "")
    if reason:
        raise ModelError(f"{source} must not be used: {reason}. {_KIND.if_damaged}")
    # All is well: only now is anything changed.
    storage.restore(_KIND, state, own, source)
    storage.restore(_KIND, form_state, learned, source)
    setattr(network, NO_POSTERIOR, mark)
    if form is not None and form is not likelihood and state:
        form = form.to(next(iter(state.values())).device)
    return Loaded(network, form, metadata)


def _functions(network: nn.Module) -> dict[str, str]:
    """The classes of modules without state, such as activations, by name."""
    return {
        name: type(module).__name__
        for name, module in network.named_modules()
        if not any(True for _ in module.children()) and not module.state_dict()
    }


def _check_functions(network: nn.Module, saved: Any, path: Path) -> None:
    """Raise if a module without state is of another class than the one saved; the tensors do not tell."""
    here = _functions(network)
    for name, kind in saved.items() if isinstance(saved, dict) else ():
        if here.get(name, kind) != kind:
            raise ModelError(
                f"{path} holds a network whose module {name!r} is {kind}; in the network given it is "
                f"{here[name]}. Pass a network of the same make."
            )


def _parts(header: dict[str, Any], path: Path) -> tuple[dict[str, Any] | None, dict[str, Any], str | None]:
    """What a header says of the likelihood, the metadata, and why inclusions are no posterior."""
    described, metadata, mark = (header.get(key, ...) for key in ("likelihood", "metadata", NO_POSTERIOR))
    whole = isinstance(metadata, dict) and isinstance(mark, str | None)
    if isinstance(described, dict):
        whole = whole and described.keys() == {"name", "options"} and isinstance(described["name"], str)
        whole = whole and isinstance(described["options"], dict | None)
    if not whole or not isinstance(described, dict | None):
        raise ModelError(f"{path} is damaged (its header is not complete). {_KIND.if_damaged}")
    return described, metadata, mark


def likelihood_record(likelihood: Likelihood) -> dict[str, Any]:
    """Class and options of a likelihood; a class that is not the library's has no options here."""
    kind = type(likelihood)
    if kind not in _LIKELIHOODS.values():
        return {"name": kind.__name__, "options": None}
    values = {name: getattr(likelihood, name, ...) for name in inspect.signature(kind).parameters}
    plain = str | int | float | bool | list | None
    return {"name": kind.__name__, "options": {k: v for k, v in values.items() if isinstance(v, plain)}}


def _likelihood(
    described: dict[str, Any] | None, given: Likelihood | None, learned: dict[str, Tensor], path: Path
) -> Likelihood | None:
    """The likelihood to load into: the one given, or one made as the file says."""
    if described is None:
        if given is not None:
            advice = "Load it without one, or save the network again with its likelihood."
            raise ModelError(f"{path} holds no likelihood. {advice}")
        return None
    name, options = described["name"], described["options"]
    if given is not None:
        here = likelihood_record(given)
        if here != described:
            raise ModelError(
                f"{path} holds the likelihood {_named(described)}, and {_named(here)} was given. "
                "Pass one of the same class and options, or for the library's own none."
            )
        return given
    if options is None:
        advice = "It is not the library's: pass one as load(path, network, likelihood)."
        raise ModelError(f"{path} holds a likelihood of the class {name!r}. {advice}")
    try:
        made = likelihood_of_record(described, learned)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} is damaged (likelihood {name!r}: {error}). {_KIND.if_damaged}") from error
    for tensor in learned.values():
        made = made.to(tensor.dtype) if tensor.is_floating_point() else made
    return made


def likelihood_of_record(described: dict[str, Any], learned: dict[str, Tensor]) -> Likelihood:
    """The likelihood that :func:`likelihood_record` describes, to load the tensors ``learned`` into."""
    name, options = described["name"], described["options"]
    # Nothing is built that is larger than what the file holds.
    sizes = [options.get(size, 0) for size in ("n_targets", "n_times")]
    sizes += [options.get("n_classes", 0) - 1] if name == "Ordinal" else []
    if max(sizes) > sum(tensor.numel() for tensor in learned.values()):
        raise ValueError("it has more targets than values")
    made = _LIKELIHOODS[name](**options)
    if likelihood_record(made) != described:
        raise ValueError("options are missing")
    return made


def _named(described: dict[str, Any]) -> str:
    options = described["options"] or {}
    return f"{described['name']}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


def impossible(network: nn.Module, state: dict[str, Tensor]) -> str:
    """What a trained network cannot have in this state (of the same names and shapes), or ``""``.

    That is NaN and infinite values, and priors without a positive std or with an inclusion probability that
    is not between 0 and 1. A buffer may be infinite where that of the network is, as masks are.
    """
    own = dict(network.named_buffers())
    for name, value in state.items():
        bad = ~value.isfinite()
        if name in own:
            bad &= value.isnan() | (value != own[name].to(value))
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
