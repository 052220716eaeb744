"""The paper's networks and settings, as a frozen record per cell of its tables 1 and 2."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from sparsebnn.checks import check_choice
from sparsebnn.initial import Initial, Normal, Uniform
from sparsebnn.networks import lenet, mlp
from sparsebnn.priors import SpikeSlabPrior
from sparsebnn.training.schedules import Steps
from sparsebnn.training.settings import Settings

__all__ = ["ARCHITECTURES", "METHODS", "Cell", "cell"]

ARCHITECTURES = ("fc", "lenet")
METHODS = {"lbbnn": "concrete", "lrt": "spike_slab", "flow": "flow"}

# What all rows of the paper's experiments share; biases start as their own row says.
_START = Initial(
    mean=Uniform(-0.2, 0.2),
    raw_std=Normal(-9.0, 0.1),
    bias_mean=Uniform(-0.2, 0.2),
    bias_raw_std=Normal(-9.0, 1.0),
    z0_mean=Normal(0.0, 1.0),
    z0_log_var=Normal(-9.0, 1.0),
    auxiliary=Normal(0.0, 1.0),
)
_SMALL = Uniform(-0.01, 0.01)


@dataclass(frozen=True)
class Cell:
    """One architecture and method of the paper: how its network starts and how it is trained."""

    architecture: str
    method: str
    initial: Initial
    dense_initial: Initial
    settings: Settings

    def network(self, **layer: Any) -> nn.Sequential:
        """A fresh network of this cell; ``layer`` overrides what goes to its layers."""
        options = {"family": METHODS[self.method], "prior": SpikeSlabPrior(0.1), **layer}
        if self.architecture == "fc":
            return mlp([784, 400, 600, 10], initial=self.initial, **options)
        return lenet(initial=self.initial, dense={"initial": self.dense_initial}, **options)


def cell(architecture: str, method: str) -> Cell:
    """The paper's cell.

    For LBBNN the start and the rates are those of the LRT row: with the right KL the published rate
    of 0.1 for the inclusion logits switches every weight off.

    >>> cell("fc", "flow").initial.mean
    Uniform(low=-0.01, high=0.01)
    """
    check_choice(architecture, ARCHITECTURES, "architecture", "cell")
    check_choice(method, METHODS, "method", "cell")
    dense = architecture == "fc"
    start = replace(_START, inclusion_logit=Uniform(-15.0, 10.0) if dense else Uniform(-10.0, 15.0))
    if dense and method == "flow":
        start = replace(start, mean=_SMALL)
    dense_start = replace(start, mean=_SMALL) if method == "flow" else start
    milestones = {"fc": (125,), "lenet": (100, 200) if method == "flow" else (80, 160)}[architecture]
    settings = Settings(epochs=250, batch_size=100, learning_rate=1e-4, schedule=Steps(milestones))
    return Cell(architecture, method, start, dense_start, settings)
