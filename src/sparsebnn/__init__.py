"""Sparse Bayesian neural networks: every weight with its posterior inclusion probability.

The names in ``__all__`` cover everyday use. The others are in the subpackages ``nn`` (layers, networks),
``posteriors`` (families, priors), ``training``, ``inference``, ``selection``, ``estimators`` and ``deploy``,
and in the modules ``likelihoods``, ``init``, ``metrics`` and ``data``: all are attributes of ``sparsebnn``.
"""

from typing import Any

from sparsebnn import inference as inference
from sparsebnn import init as init
from sparsebnn import likelihoods as likelihoods
from sparsebnn import nn as nn
from sparsebnn import posteriors as posteriors
from sparsebnn import selection as selection
from sparsebnn import training as training
from sparsebnn.inference import metrics as metrics
from sparsebnn.inference.prediction import predict
from sparsebnn.io import data as data
from sparsebnn.io.saving import load, save
from sparsebnn.nn import Linear, convert, density, forward_with_kl, lenet, mlp
from sparsebnn.selection import select
from sparsebnn.training import Settings, train
from sparsebnn.training.recipes import recipe

__version__ = "0.1.0"

__all__ = [
    "Linear",
    "Settings",
    "SparseBNNClassifier",
    "SparseBNNRegressor",
    "SparseBNNSurvival",
    "convert",
    "density",
    "export",
    "forward_with_kl",
    "lenet",
    "load",
    "mlp",
    "predict",
    "recipe",
    "save",
    "select",
    "train",
]

# Loaded when they are asked for, since estimators bring scikit-learn along.
_LAZY = {
    "SparseBNNClassifier": "estimators",
    "SparseBNNRegressor": "estimators",
    "SparseBNNSurvival": "estimators",
    "export": "deploy",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _LAZY.values():
        return importlib.import_module(f"sparsebnn.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(f"sparsebnn.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'sparsebnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_LAZY.values()})
