"""Sparse Bayesian neural networks: every weight with its posterior inclusion probability."""

from typing import Any

from sparsebnn import data, metrics, saving, selection
from sparsebnn.conversion import convert
from sparsebnn.initial import He, Initial, Normal, Uniform
from sparsebnn.layers import Conv1d, Conv2d, Linear
from sparsebnn.networks import density, initialise, lenet, mlp
from sparsebnn.passes import collect_kl, forward_with_kl
from sparsebnn.prediction import predict
from sparsebnn.priors import EmpiricalPrior, GaussianPrior, SpikeSlabPrior
from sparsebnn.recipes import recipe
from sparsebnn.training import Settings, train

__version__ = "0.1.0"

__all__ = [
    "Conv1d",
    "Conv2d",
    "EmpiricalPrior",
    "GaussianPrior",
    "He",
    "Initial",
    "Linear",
    "Normal",
    "Settings",
    "SpikeSlabPrior",
    "Uniform",
    "collect_kl",
    "convert",
    "data",
    "density",
    "forward_with_kl",
    "initialise",
    "lenet",
    "metrics",
    "mlp",
    "predict",
    "recipe",
    "saving",
    "selection",
    "train",
]

_ESTIMATORS = ("SparseBNNClassifier", "SparseBNNRegressor")


def __getattr__(name: str) -> Any:
    """The estimators, which bring scikit-learn along, are loaded when they are asked for."""
    if name in _ESTIMATORS:
        from sparsebnn import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'sparsebnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_ESTIMATORS])
