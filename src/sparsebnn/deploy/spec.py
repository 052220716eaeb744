"""A predictor as JSON and tensors: what a model folder holds, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn.checks import invalid
from sparsebnn.deploy.model import Exported
from sparsebnn.deploy.predictor import Head, Predictor
from sparsebnn.estimators.encoding import Encoder
from sparsebnn.io.sparse_files import MODULES
from sparsebnn.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from sparsebnn.nn.compaction import Take
from sparsebnn.nn.networks import InputSkip, chain

__all__ = ["described", "restored"]

_VERSION = 1


def _layer(module: nn.Module) -> dict[str, Any]:
    name = type(module).__name__
    if isinstance(module, InputSkip):
        layers = [_layer(layer) for layer in module.layers]
        return {"module": name, "layers": layers, "activation": _layer(module.activation)}
    if name not in MODULES or getattr(module, "groups", 1) != 1:
        expected = "made of " + ", ".join(sorted(set(MODULES) - {"Take"}))
        advice = "ONNX and pt2 take any module."
        raise invalid("model", "export", expected, str(module).splitlines()[0], advice)
    options = {key: getattr(module, key) for key in MODULES[name][1]}
    return {"module": name, **options, **({"inputs": len(module.index)} if isinstance(module, Take) else {})}


def _module(spec: Mapping[str, Any]) -> nn.Module:
    if spec["module"] == "InputSkip":
        return InputSkip([_module(layer) for layer in spec["layers"]], _module(spec["activation"]))
    options: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in spec.items()
        if key != "module"
    }
    if spec["module"] == "Take":
        return Take(torch.zeros(options["inputs"], dtype=torch.int64), options["dim"])
    return MODULES[spec["module"]][0](**options)


def described(exported: Exported) -> dict[str, Any]:
    """Everything but the tensors."""
    predictor = exported.predictor
    if not isinstance(predictor.template, nn.Sequential | InputSkip):
        advice, expected = "ONNX and pt2 take any module.", "a Sequential or InputSkip"
        raise invalid("model", "export", expected, type(predictor.template).__name__, advice)
    head, form = predictor.head, predictor.head.likelihood
    return {
        "version": _VERSION,
        "layers": [_layer(module) for module in chain(predictor.template)],
        "sequential": isinstance(predictor.template, nn.Sequential),
        "stacked": sorted(predictor._state(True)),
        "n_draws": predictor.n_draws,
        "networks": predictor.n_networks,
        "likelihood": {
            "kind": head.kind,
            "scale": head.scale,
            "n_classes": getattr(form, "n_classes", 2),
            "n_targets": getattr(form, "n_targets", 1),
            "noise": getattr(form, "noise", "learned"),
        },
        "example_shape": list(exported.example.shape[1:]),
        "columns": None if exported.columns is None else [asdict(column) for column in exported.columns],
        "named": exported.named,
        "classes": None if exported.classes is None else list(exported.classes),
        "model": exported.model,
        "seed": exported.seed,
        "about": exported.about,
    }


def _likelihood(spec: Mapping[str, Any]) -> Likelihood:
    if spec["kind"] == "bernoulli":
        return Bernoulli()
    if spec["kind"] == "categorical":
        return Categorical(spec["n_classes"])
    return Gaussian(spec["n_targets"], spec["noise"])


def restored(spec: Mapping[str, Any]) -> Exported:
    """The predictor of a description; its tensors have the right shapes and wait for their values."""
    if spec.get("version") != _VERSION:
        advice = "Load it with the release that wrote it."
        raise invalid("version", "a model folder", str(_VERSION), spec.get("version"), advice)
    modules = [_module(layer) for layer in spec["layers"]]
    template = nn.Sequential(*modules) if spec.get("sequential", True) else modules[0]
    draws = spec["n_draws"]
    shared, stacked = dict(template.state_dict()), {}
    for name in spec["stacked"]:
        own: Tensor = shared.pop(name)
        stacked[name] = own.new_zeros(draws, *own.shape)
    form = _likelihood(spec["likelihood"])
    head = Head([form] * draws, spec["likelihood"]["scale"])
    columns = None if spec["columns"] is None else Encoder.of_record(spec["columns"]).columns
    dtype = torch.float32 if columns is None else torch.float64
    return Exported(
        Predictor(template, shared, stacked, head, spec.get("networks", 0)),
        torch.zeros(1, *spec["example_shape"], dtype=dtype),
        spec["model"],
        spec["seed"],
        columns,
        spec["named"],
        None if spec["classes"] is None else tuple(spec["classes"]),
        dict(spec["about"]),
    )
