"""The methods of the study of predictive uncertainty: their networks, how they start, how they train.

One hidden layer; the two inputs are coordinates, the five outputs classes. Rates and steps were chosen on
the training objective (the bound; for dropout and the deterministic network the likelihood), temperatures
by cross-validation on training rows, see ``docs/studies/uncertainty.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sparsebnn.inference.prediction import ClassPrediction, predict
from sparsebnn.init import Initial, Normal, Uniform
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.networks import mlp
from sparsebnn.posteriors.priors import SpikeSlabPrior
from sparsebnn.training import Run, Settings, train
from studies.baselines.deterministic import plain_mlp
from studies.baselines.ensemble import predict_ensemble

__all__ = ["BAYESIAN", "METHODS", "POSTERIOR", "Method", "OwnRows", "fit", "posterior"]

CLASSES = 5
LIKELIHOOD = Categorical(CLASSES)
# Near the prior, where the bound's optimum leaves most weights: from sharp weights Adam needs hundreds of
# steps to get there.
_START = Initial(
    mean=Normal(0.0, 0.1),
    raw_std=Normal(0.0, 0.1),
    inclusion_logit=Uniform(-2.0, -1.0),
    bias_raw_std=Normal(0.0, 0.1),
)


@dataclass(frozen=True)
class Method:
    """One way to be uncertain. ``members`` networks make one predictor.

    ``temperature`` multiplies the KL; 1 is the Bayes posterior. ``steps`` are prolonged where they would be
    fewer than ``min_epochs`` epochs. ``smallest`` methods see the smallest size of the study only.
    """

    key: str
    label: str
    family: str
    rate: float
    steps: int
    rates: Mapping[str, float] = field(default_factory=dict)
    members: int = 1
    draws: bool = True
    dropout: float = 0.0
    temperature: float = 1.0
    min_epochs: int = 1
    smallest: bool = False

    def network(self, hidden: int) -> nn.Module:
        """An untrained network of this method."""
        sizes = [2, hidden, CLASSES]
        if self.family == "point":
            return plain_mlp(sizes, dropout=self.dropout)
        if self.family == "gaussian":
            return mlp(sizes, family="gaussian", initial=_START)
        flow = {"hidden": (50, 50), "length": 2} if self.family == "flow" else None
        prior = SpikeSlabPrior(0.5)
        return mlp(sizes, family=self.family, prior=prior, initial=_START, family_options=flow)

    def settings(self, rows: int, batch_size: int, steps: int | None = None) -> Settings:
        """As many epochs as give the method's number of steps on that many rows."""
        per_epoch = -(-rows // min(batch_size, rows))
        epochs = max(self.min_epochs if steps is None else 1, (steps or self.steps) // per_epoch)
        return Settings(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=self.rate,
            learning_rates=self.rates,
            temperature=self.temperature,
        )

    def predict(self, networks: Sequence[nn.Module], x: Tensor, n_draws: int, seed: int) -> ClassPrediction:
        """The predictive distribution of one predictor, all its members."""
        if self.members > 1:
            return predict_ensemble(networks, x.float(), LIKELIHOOD, 1, seed=seed)
        n_draws = n_draws if self.draws else 1
        # Batches that stay in the processor's cache are five times as fast as large ones.
        batch_size = max(8, 1280 // n_draws)
        found = predict(networks[0], x.float(), LIKELIHOOD, n_draws, seed=seed, batch_size=batch_size)
        assert isinstance(found, ClassPrediction)
        return found


# What makes z moves slower than the weights: at their rate the flow's bound does not settle.
_SLOW = dict.fromkeys(
    ("z0_mean", "z0_log_var", "auxiliary_direction", "auxiliary_mean", "auxiliary_log_var"), 1e-2
)
_FLOW_RATES = {"weight": 1e-3, "bias": 1e-3, **_SLOW}
METHODS = (
    # Temperatures by cross-validation on training rows (uncertainty_temperature).
    Method("flow", "LBBNN-FLOW", "flow", 0.1, 1000, _FLOW_RATES, temperature=0.01, min_epochs=75),
    Method("lrt", "LBBNN-LRT", "spike_slab", 0.1, 1000, temperature=0.03),
    Method("dense", "dense BNN", "gaussian", 0.1, 1000, temperature=0.03),
    Method("dropout", "MC dropout", "point", 0.01, 1000, dropout=0.5),
    Method("ensemble", "deep ensemble", "point", 0.01, 500, members=10),
    Method("plain", "deterministic", "point", 0.01, 500, draws=False),
    Method("flow_bayes", "LBBNN-FLOW, temperature 1", "flow", 0.05, 1000, _FLOW_RATES, smallest=True),
    Method("lrt_bayes", "LBBNN-LRT, temperature 1", "spike_slab", 0.1, 1500, smallest=True),
    Method("dense_bayes", "dense BNN, temperature 1", "gaussian", 0.1, 1500, smallest=True),
)
BAYESIAN = ("lrt", "flow", "dense")
POSTERIOR = tuple(f"{key}_bayes" for key in BAYESIAN)


def posterior(key: str) -> Method:
    """A Bayesian method at temperature 1.

    >>> posterior("lrt").label
    'LBBNN-LRT, temperature 1'
    """
    return next(method for method in METHODS if method.key == f"{key}_bayes")


class OwnRows(nn.Module):
    """A network with its own data set; its input is row numbers.

    The rows are a buffer, and buffers may differ between replicates: so replicates with different data
    sets (and the same labels, row by row) train as one program.
    """

    inputs: Tensor

    def __init__(self, network: nn.Module, inputs: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("inputs", inputs)

    def forward(self, number: Tensor) -> Tensor:
        return self.network(self.inputs.index_select(0, number[:, 0].long()))


def fit(
    method: Method, inputs: Tensor, labels: Tensor, hidden: int, batch_size: int, seed: int, steps: int | None
) -> tuple[list[list[nn.Module]], Run]:
    """Train on every data set, ``inputs`` of shape (data sets, rows, 2): a list of members for each."""
    sets, rows = inputs.shape[:2]
    each = inputs.float().repeat_interleave(method.members, dim=0)
    run = train(
        OwnRows(method.network(hidden), each[0]),
        (torch.arange(rows, dtype=torch.float32).unsqueeze(1), labels),
        likelihood=LIKELIHOOD,
        settings=method.settings(rows, batch_size, steps),
        replicates=list(range(seed, seed + sets * method.members)),
        per_replicate={"inputs": each},
        device="cpu",
        mode="eager",
        progress=False,
    )
    trained = [net.network for net in run.networks if isinstance(net, OwnRows)]
    return [trained[k * method.members : (k + 1) * method.members] for k in range(sets)], run
