"""Sparse Bayesian neural networks: every weight with its posterior inclusion probability."""

from typing import Any

from sparsebnn import init, likelihoods, selection
from sparsebnn.inference import metrics as metrics
from sparsebnn.inference.prediction import predict
from sparsebnn.io import data
from sparsebnn.io.saving import load, save
from sparsebnn.nn.conversion import convert
from sparsebnn.nn.convolutions import Conv1d, Conv2d
from sparsebnn.nn.layers import Linear
from sparsebnn.nn.networks import density, lenet, mlp
from sparsebnn.nn.networks import initialize as initialize
from sparsebnn.nn.passes import collect_kl, forward_with_kl
from sparsebnn.posteriors.learned_priors import EmpiricalPrior
from sparsebnn.posteriors.priors import GaussianPrior, SpikeSlabPrior
from sparsebnn.training import Settings, train
from sparsebnn.training.recipes import recipe

__version__ = "0.1.0"

__all__ = [
    "Conv1d",
    "Conv2d",
    "EmpiricalPrior",
    "GaussianPrior",
    "Linear",
    "Settings",
    "SparseBNNClassifier",
    "SparseBNNRegressor",
    "SpikeSlabPrior",
    "collect_kl",
    "convert",
    "data",
    "density",
    "export",
    "forward_with_kl",
    "init",
    "lenet",
    "likelihoods",
    "load",
    "mlp",
    "predict",
    "recipe",
    "save",
    "selection",
    "train",
]

_ESTIMATORS = ("SparseBNNClassifier", "SparseBNNRegressor")


def __getattr__(name: str) -> Any:
    """The estimators, which bring scikit-learn along, are loaded when they are asked for."""
    if name in _ESTIMATORS:
        from sparsebnn import estimators

        return getattr(estimators, name)
    if name == "export":
        from sparsebnn.deploy import export

        return export
    raise AttributeError(f"module 'sparsebnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_ESTIMATORS, "export"])
