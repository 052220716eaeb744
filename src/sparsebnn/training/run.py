"""A training run and its results."""

from __future__ import annotations

from torch import nn

from sparsebnn.likelihoods import Likelihood
from sparsebnn.training.callbacks import Epoch, Stopped
from sparsebnn.training.engine import Engine
from sparsebnn.training.objective import Objective
from sparsebnn.training.replicates import Replicates

__all__ = ["Run"]


class Run:
    """A training run and, when it is over, its results, one per replicate."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.settings, self.batches = engine.settings, engine.batches
        self.seeds = engine.replicates.seeds
        self.mode = engine.mode
        self.epoch = 0
        self.history: list[Epoch] = []
        self.stopped: list[Stopped] = []
        self.train_seconds = 0.0
        self.finished = False
        self._results: list[Objective] | None = None

    @property
    def compile_seconds(self) -> float:
        return self._engine.compile_seconds

    @property
    def replicates(self) -> Replicates:
        """The stacked state, for work on all replicates at once."""
        return self._engine.replicates

    def _objectives(self) -> list[Objective]:
        """Network and likelihood of every replicate: one object each once training is over."""
        if not self.finished:
            return [self.replicates.unstack(k) for k in range(len(self.seeds))]
        if self._results is None:
            self._results = [self.replicates.unstack(k) for k in range(len(self.seeds))]
        return self._results

    @property
    def networks(self) -> list[nn.Module]:
        """The trained networks, ordinary modules in the order of the seeds.

        While training is running, each access gives copies of the networks as they are at that moment.
        """
        return [objective.network for objective in self._objectives()]

    @property
    def network(self) -> nn.Module:
        """The trained network of the first (often only) replicate."""
        return self.networks[0]

    @property
    def likelihoods(self) -> list[Likelihood]:
        """The likelihood of every replicate, for predictions of all their networks."""
        return [objective.likelihood for objective in self._objectives()]

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of the first replicate, with what it learned."""
        return self.likelihoods[0]
