"""Model folders for the Hugging Face Hub and for MLflow, which other people's tools can read.

Both hold a predictor (:mod:`sparsebnn.deploy.predictor`) as JSON and tensors, without pickle. To keep all of
the posterior, with inclusion probabilities and explanations, use ``estimator.save`` or
:func:`sparsebnn.save`.
"""

from __future__ import annotations

import functools
import importlib
import json
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from sparsebnn.checks import check_tensor, invalid
from sparsebnn.deploy.model import Exported
from sparsebnn.deploy.predictor import Head, Predictor
from sparsebnn.deploy.table import FARTHEST
from sparsebnn.estimators.checks import checked_table
from sparsebnn.estimators.encoding import Encoder
from sparsebnn.io.sparse_files import MODULES
from sparsebnn.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from sparsebnn.nn.compaction import Take
from sparsebnn.nn.networks import InputSkip, chain

__all__ = ["StoredModel", "described", "from_pretrained", "hub_model", "restored", "save_mlflow"]

_CARD = """---
library_name: sparsebnn
tags:
- sparse-bayesian-neural-network
- uncertainty
---

# {title}

A predictor exported from [sparsebnn](https://pypi.org/project/sparsebnn): {what}.

```python
from sparsebnn.deploy import from_pretrained

model = from_pretrained("{place}")
model.predict(X)
```

| | |
|---|---|
{rows}
"""


class StoredModel(nn.Module):
    """A predictor built from its description; ``predict`` takes what the fitted model took.

    ``classes`` are the labels of an estimator's classes, in the order of the probabilities.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__()
        exported = restored(spec)
        self.spec = spec
        self.predictor = exported.predictor
        self.classes, self.columns = exported.classes, exported.columns
        if self.columns is not None:
            self._table = BaseEstimator()  # for scikit-learn's checks of a table
            self._table.n_features_in_ = len(self.columns)
            if exported.named:
                self._table.feature_names_in_ = np.array([c.name for c in self.columns], dtype=object)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.predictor(x)

    @torch.no_grad()
    def predict(self, X: Any) -> dict[str, np.ndarray]:
        """The outputs by name: probabilities and uncertainty, or mean and standard deviation.

        ``X`` is a table if the model was an estimator, otherwise a tensor as the network takes it.
        """
        free = None
        if self.columns is None:
            x = check_tensor(X, "X", "predict")
            x = x.float() / 255.0 if x.dtype == torch.uint8 else x
        else:
            table, encoder = checked_table(self._table, X, reset=False), Encoder(self.columns)
            x = torch.from_numpy(encoder.transform(table)).float()
            if self.predictor.probes:
                free = torch.from_numpy(encoder.transform(table, free=True)).clamp(-FARTHEST, FARTHEST)
                free = None if torch.equal(free.float(), x) else free.float()
        found = dict(zip(self.predictor.head.names, (each.numpy() for each in self.predictor(x, free))))
        if self.classes is not None:
            found["label"] = np.array(self.classes)[found["probabilities"].argmax(1)]
        return found


@functools.cache
def _hub_class() -> Any:
    from huggingface_hub import PyTorchModelHubMixin

    class HubModel(StoredModel, PyTorchModelHubMixin, library_name="sparsebnn"):
        """A predictor with ``save_pretrained``, ``from_pretrained`` and ``push_to_hub``."""

        def generate_model_card(self, *args: Any, **kwargs: Any) -> Any:
            from huggingface_hub import ModelCard

            return ModelCard(card(self.spec))

    return HubModel


def card(spec: dict[str, Any]) -> str:
    """The model card of a description."""
    kind = spec["likelihood"]["kind"]
    draws = spec["n_draws"]
    whole = "the median probability model" if spec["model"] == "median" else "the average over the posterior"
    rows = {
        "Task": "regression" if kind == "gaussian" else "classification",
        "Predicts": whole,
        "Networks stored": draws,
        "Seed": spec["seed"],
    }
    if spec["classes"] is not None:
        rows["Classes"] = ", ".join(map(str, spec["classes"]))
    if spec["columns"] is not None:
        rows["Columns"] = ", ".join(c["name"] for c in spec["columns"] if c["kind"] != "dropped")
    listed = "\n".join(f"| {name} | {str(value).replace('|', '/')} |" for name, value in rows.items())
    title = spec["about"].get("estimator", "Sparse Bayesian neural network")
    return _CARD.format(title=title, what=whole, place="path/to/this/folder", rows=listed)


def hub_model(exported: Exported) -> Any:
    """An exported model with the Hub's methods: ``save_pretrained``, ``push_to_hub``."""
    made = _hub_class()(spec=described(exported))
    made.predictor.load_state_dict(exported.predictor.state_dict())
    return made.eval()


def from_pretrained(place: str | Path, **options: Any) -> StoredModel:
    """Load a predictor from a folder or from the Hub; ``options`` go to the Hub's ``from_pretrained``."""
    return _hub_class().from_pretrained(str(place), **options).eval()


# -- MLflow ---------------------------------------------------------------------------------------------


class _MlflowModel:
    """What ``mlflow.pyfunc.load_model`` wraps."""

    def __init__(self, model: StoredModel) -> None:
        self.model = model

    def predict(self, X: Any, params: dict[str, Any] | None = None) -> Any:
        """A frame with a column for every output; probabilities have one per class."""
        import pandas as pd

        flat: dict[str, np.ndarray] = {}
        rows = np.asarray(X) if self.model.columns is None else X
        for name, values in self.model.predict(rows).items():
            if values.ndim == 1:
                flat[name] = values
                continue
            labels = self.model.classes or range(values.shape[1])
            several = values.shape[1] > 1
            flat |= {f"{name}_{label}" if several else name: v for label, v in zip(labels, values.T)}
        return pd.DataFrame(flat)


def _load_pyfunc(path: str) -> _MlflowModel:
    """The hook by which MLflow loads the model, without pickle."""
    from safetensors.torch import load_file

    model = StoredModel(json.loads(Path(path, "config.json").read_text())["spec"])
    model.load_state_dict(load_file(Path(path, "model.safetensors")))
    return _MlflowModel(model.eval())


def save_mlflow(exported: Exported, path: Path) -> None:
    """Write an MLflow model whose ``predict`` takes a frame and returns one."""
    from safetensors.torch import save_file

    import sparsebnn

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's import warns of MLflow's own types
        pyfunc = importlib.import_module("mlflow.pyfunc")
    spec = described(exported)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        data.mkdir()
        Path(data, "config.json").write_text(json.dumps({"spec": spec}))
        model = StoredModel(spec)
        model.predictor.load_state_dict(exported.predictor.state_dict())
        save_file(model.state_dict(), Path(data, "model.safetensors"))
        pyfunc.save_model(
            str(path),
            loader_module="sparsebnn.deploy.folder",
            data_path=str(data),
            pip_requirements=[f"sparsebnn[sklearn,save]=={sparsebnn.__version__}", "pandas"],
        )


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
            "scale": torch.as_tensor(head.scale).tolist(),
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
