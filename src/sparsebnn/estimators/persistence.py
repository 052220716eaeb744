"""Save and load fitted estimators: one safetensors file with a JSON header, without pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.checks import invalid
from sparsebnn.estimators.encoding import Encoder
from sparsebnn.estimators.ensemble import linear_layers
from sparsebnn.estimators.feature_selection import Effects
from sparsebnn.estimators.plan import Plan
from sparsebnn.estimators.plan import network as planned_network
from sparsebnn.inference.calibration import CentralLevels
from sparsebnn.io import saving, storage
from sparsebnn.likelihoods import Likelihood

__all__ = ["EstimatorError", "header", "load", "save"]


class EstimatorError(storage.StorageError):
    """An estimator file that cannot be written or is not safe to use."""


_KIND = storage.Kind(
    noun="estimator",
    version=4,
    error=EstimatorError,
    if_missing="Check the path, or save a fitted estimator there first.",
    if_damaged="Save the estimator again.",
)
_PLAIN = (str, int, float, bool, type(None))


def _parameters(estimator: Any) -> dict[str, Any]:
    """Constructor parameters as JSON; a generator as random state becomes the seed drawn from it."""
    kept = {}
    for name, value in estimator.get_params(deep=False).items():
        if name == "random_state" and not isinstance(value, int | np.integer | None):
            value = estimator._seed
        if name == "class_weight" and isinstance(value, dict):
            value = {"keys": [_scalar(k) for k in value], "values": [float(v) for v in value.values()]}
        elif isinstance(value, list | tuple | np.ndarray):
            value = [_scalar(v) for v in value]
        else:
            value = _scalar(value)
        if not isinstance(value, (*_PLAIN, list, dict)):
            raise invalid(name, type(estimator).__name__, "a plain value, to be saved", repr(value))
        kept[name] = value
    return kept


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _described(estimator: Any) -> dict[str, Any]:
    """The likelihood of the fit: parameters of the estimator may have changed since."""
    described = saving.likelihood_record(estimator._likelihoods[0])
    if described["options"] is None:
        advice = "Save the networks with sparsebnn.save instead."
        raise invalid("likelihood", "save", "one of the library's", described["name"], advice)
    return described


def save(estimator: Any, path: Path) -> Path:
    """Write a fitted estimator."""
    tensors: dict[str, Tensor] = {}
    for k, (network, form) in enumerate(zip(estimator._all_networks, estimator._all_likelihoods)):
        tensors |= {f"{k}/network/{name}": t for name, t in network.state_dict().items()}
        tensors |= {f"{k}/likelihood/{name}": t for name, t in form.state_dict().items()}
    names = getattr(estimator, "feature_names_in_", None)
    record = {
        "class": type(estimator).__name__,
        "parameters": _parameters(estimator),
        "columns": estimator._encoder.record(),
        "notes": list(estimator.notes_),
        "names": None if names is None else [str(name) for name in names],
        "targets": estimator._target_record(),
        "likelihood": _described(estimator),
        "plan": estimator.plan_.record(),
        "inputs": linear_layers(estimator.networks_[0])[0].in_features,
        "replicates": len(estimator._all_networks),
        "posterior": len(estimator.posterior_networks_),
        "predict": estimator._places,
        "predictors": estimator.predictors_,
        "seed": estimator._seed,
        "rows": estimator.n_rows_,
        "logit_scale": np.asarray(estimator.logit_scale_).tolist(),
        "levels": [[each.shift, each.stretch] for each in estimator._levels],
        "history": estimator.history_,
        "effects": estimator.effects_.record(),
        "stopped_because": estimator.stopped_because_,
        "seconds": estimator.seconds_,
        "density": estimator.density_,
        "inclusion": estimator.inclusion_.tolist(),
        "stability": estimator.stability_.tolist(),
        "weights": estimator.replicate_weights_.tolist(),
        "gain": estimator.gain_.tolist(),
        "used": estimator.used_.tolist(),
    }
    storage.write(_KIND, path, tensors, record)
    return path


def header(path: Path) -> dict[str, Any]:
    """The header of a file, without the weights."""
    return storage.read(_KIND, path)[1]


def load(path: Path, kinds: dict[str, type]) -> Any:
    """The estimator in a file; ``kinds`` are the classes it may be."""
    tensors, record = storage.read(_KIND, path)
    kind = kinds.get(record.get("class", ""))
    if kind is None:
        wanted = " or ".join(sorted(kinds))
        raise EstimatorError(f"{path} holds a {record.get('class')}, not a {wanted}.")
    try:
        _check_size(record, path)
        return _restored(kind, record, tensors, path)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"
        raise EstimatorError(f"{path} is damaged ({why}). {_KIND.if_damaged}") from error


def _check_size(record: dict[str, Any], path: Path) -> None:
    """Reject headers that describe a network larger than the file, which could exhaust the memory."""
    sizes = [record["inputs"], *record["plan"]["hidden"]]
    weights = record["replicates"] * sum(a * b for a, b in zip(sizes, sizes[1:]))
    if max(weights, record["replicates"], *sizes) > path.stat().st_size:
        raise ValueError(f"it says {weights} weights and holds fewer")


def _restored(kind: type, record: dict[str, Any], tensors: dict[str, Tensor], path: Path) -> Any:
    parameters = dict(record["parameters"])
    if isinstance(parameters.get("hidden"), list):
        parameters["hidden"] = tuple(parameters["hidden"])
    weight = parameters.get("class_weight")
    if isinstance(weight, dict):
        parameters["class_weight"] = dict(zip(weight["keys"], weight["values"]))
    estimator: Any = kind(**parameters)
    estimator._encoder = Encoder.of_record(record["columns"])
    estimator.notes_ = list(record["notes"])
    estimator.n_features_in_ = len(record["columns"])
    if record["names"] is not None:
        estimator.feature_names_in_ = np.array(record["names"], dtype=object)
    estimator.plan_ = Plan.of_record(record["plan"])
    estimator.predictors_ = list(record.get("predictors", ()))
    estimator._seed, estimator.n_rows_ = record["seed"], record["rows"]
    scale = record["logit_scale"]
    estimator.logit_scale_ = np.array(scale) if isinstance(scale, list) else scale
    levels = record.get("levels") or [[0.0, 1.0]]  # files of earlier versions have one pair
    estimator._levels = tuple(CentralLevels(*each) for each in (levels if np.ndim(levels) == 2 else [levels]))
    estimator.history_, estimator.n_epochs_ = record["history"], len(record["history"])
    estimator.effects_ = Effects.of_record(record["effects"])
    estimator.stopped_because_, estimator.seconds_ = record["stopped_because"], record["seconds"]
    networks, forms = _networks(estimator, record, tensors, path)
    every = record["replicates"]  # files of earlier versions hold the networks that predict, and no others
    places = record.get("predict", list(range(every)))
    estimator._set_networks(networks, forms, record.get("posterior", every), places)
    estimator._restore_targets(record["targets"])
    estimator.density_ = record["density"]
    estimator.inclusion_, estimator.stability_ = np.array(record["inclusion"]), np.array(record["stability"])
    count = len(estimator.posterior_networks_)
    estimator.replicate_weights_ = np.array(record.get("weights", [1.0 / count] * count))
    names = np.array([column.name for column in estimator._encoder.columns], dtype=object)
    estimator.used_ = np.array(record["used"], dtype=bool)
    estimator.gain_ = np.array(record["gain"], dtype=np.float64)
    estimator.selected_features_ = names[estimator.used_]
    return estimator


def _networks(
    estimator: Any, record: dict[str, Any], tensors: dict[str, Tensor], path: Path
) -> tuple[list[nn.Module], list[Likelihood]]:
    networks: list[nn.Module] = []
    forms: list[Likelihood] = []
    target: dict[str, Tensor] = {}
    for k in range(record["replicates"]):
        learned = _part(tensors, f"{k}/likelihood/")
        form = saving.likelihood_of_record(record["likelihood"], learned)
        outputs = form.n_outputs(torch.empty(0))
        if outputs > path.stat().st_size:
            raise ValueError(f"it says {outputs} outputs and holds fewer")
        network = planned_network(estimator.plan_, record["inputs"], outputs)
        target |= {f"{k}/network/{name}": t for name, t in network.state_dict().items()}
        target |= {f"{k}/likelihood/{name}": t for name, t in form.state_dict().items()}
        networks.append(network.eval())
        forms.append(form.eval())
    storage.check(_KIND, target, tensors, path)
    for k, pair in enumerate(zip(networks, forms)):
        for part, module in zip(("network", "likelihood"), pair):
            reason = saving.impossible(module, _part(tensors, f"{k}/{part}/"))
            if reason:
                raise EstimatorError(f"{path} must not be used: {reason}. {_KIND.if_damaged}")
    storage.restore(_KIND, target, tensors, path)
    return networks, forms


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
