"""The settings of the paper's variable-selection study, shared by table 3 and the corrected study."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sparsebnn
from sparsebnn import likelihoods
from sparsebnn.init import Initial, Normal, Uniform
from sparsebnn.training import Constant, Settings, Steps
from sparsebnn.training.loop import Run

__all__ = [
    "FAMILIES",
    "PRIOR_INCLUSION",
    "OwnData",
    "inclusions",
    "layer",
    "mean_and_error",
    "rates",
    "settings",
    "train_each",
]

FAMILIES = {"lrt": "spike_slab", "flow": "flow"}
PRIOR_INCLUSION = 0.25
START = Initial(
    mean=Uniform(-0.01, 0.01),
    raw_std=Uniform(-5.0, -4.0),
    inclusion_logit=Uniform(1.5, 2.5),
    bias_mean=Uniform(-0.01, 0.01),
    bias_raw_std=Uniform(-5.0, -4.0),
    z0_mean=Normal(0.0, 0.001),
    z0_log_var=Normal(-9.0, 0.001),
    auxiliary=Normal(0.0, 0.001),
)


def layer(method: str, inputs: int = 20, initial: Initial = START, **options: Any) -> sparsebnn.Linear:
    """One output with the paper's priors: N(0, 1) slab and bias, inclusion 0.25."""
    if method == "flow":
        options = {"family_options": {"hidden": (100, 100)}, **options}
    prior = sparsebnn.posteriors.SpikeSlabPrior(PRIOR_INCLUSION)
    return sparsebnn.Linear(inputs, 1, family=FAMILIES[method], prior=prior, initial=initial, **options)


def settings(method: str, epochs: int = 500, batch_size: int = 400) -> Settings:
    """Adam 0.01, batches in file order; LBBNN-FLOW's rate falls to a tenth halfway."""
    schedule = Steps((epochs // 2,)) if method == "flow" else Constant()
    return Settings(
        epochs=epochs, batch_size=batch_size, learning_rate=0.01, schedule=schedule, shuffle=False
    )


def inclusions(run: Run) -> np.ndarray:
    """(replicates, inputs): the inclusion probability of each input in each replicate."""
    logits = next(v for k, v in run.replicates.parameters.items() if k.endswith("inclusion_logit"))
    return torch.sigmoid(logits[:, 0]).double().numpy()


def rates(chosen: np.ndarray, nonzero: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """TPR and FPR of each row of choices: TP/(TP+FN) and FP/(FP+TN).

    >>> tpr, fpr = rates(np.array([[True, False, True]]), np.array([True, True, False]))
    >>> float(tpr[0]), float(fpr[0])
    (0.5, 1.0)
    """
    return chosen[:, nonzero].mean(1), chosen[:, ~nonzero].mean(1)


def mean_and_error(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """A mean and its standard error."""
    column = np.asarray(values, dtype=np.float64)
    return float(column.mean()), float(column.std(ddof=1) / math.sqrt(len(column)))


class OwnData(nn.Module):
    """A layer with its own data set; its input is row numbers.

    The data are buffers, and buffers may differ between replicates: so that many data sets train as
    one program. Classes: the output times ±1, with targets of 1. Real targets: the output less the
    target, with targets of 0.
    """

    inputs: Tensor
    targets: Tensor

    def __init__(self, inner: sparsebnn.Linear, x: Tensor, y: Tensor, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = inner, kind
        self.register_buffer("inputs", x)
        self.register_buffer("targets", y)

    def forward(self, rows: Tensor) -> Tensor:
        index = rows[..., 0].long()
        output = self.layer(self.inputs[index])
        own = self.targets[index].unsqueeze(-1)
        return output * (2.0 * own - 1.0) if self.kind == "bernoulli" else output - own


def train_each(
    inner: sparsebnn.Linear,
    x: np.ndarray,
    y: np.ndarray,
    how: Settings,
    seeds: Sequence[int],
    *,
    kind: str = "bernoulli",
    noise_std: float = 1.0,
    mode: str = "auto",
    per_replicate: Mapping[str, Tensor] | None = None,
) -> Run:
    """One replicate per data set: ``x`` is (data sets, rows, inputs), ``y`` (data sets, rows)."""
    dtype = next(inner.parameters()).dtype
    inputs, targets = torch.from_numpy(x).to(dtype), torch.from_numpy(y).to(dtype)
    network = OwnData(inner, inputs[0], targets[0], kind)
    rows = torch.arange(x.shape[1], dtype=dtype).unsqueeze(1)
    constant = torch.ones(x.shape[1]) if kind == "bernoulli" else torch.zeros(x.shape[1])
    fixed = likelihoods.Gaussian(noise="fixed", std=noise_std)
    return sparsebnn.train(
        network,
        (rows, constant),
        likelihood="bernoulli" if kind == "bernoulli" else fixed,
        settings=how,
        replicates=list(seeds),
        per_replicate={"inputs": inputs, "targets": targets, **(per_replicate or {})},
        device="cpu",
        mode=mode,
        progress=False,
    )
