r"""Fits that continue: ``warm_start`` trains further, ``partial_fit`` passes once over more rows.

Both keep the encoding of the columns, the classes, the scale of the targets and the seed of the first fit.
A pass of ``partial_fit`` over n of the N rows seen so far is a stochastic step of variational inference:
the n rows stand for all, so their weights are multiplied by N/n in

.. math:: \frac{N}{n} \sum_{i=1}^n \mathrm{nll}_i + T \cdot \mathrm{KL}.

The temperature T rises over the first passes, as it does over the first half of the epochs of ``fit``.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from torch import nn

from sparsebnn.checks import invalid
from sparsebnn.estimators.early_stopping import LEAST_EFFORT
from sparsebnn.estimators.plan import Plan, planned
from sparsebnn.likelihoods import Likelihood

__all__ = ["Continued", "Seen", "continued"]

_HASHES = 4096
_SAME = ("hidden", "family")


@dataclass(frozen=True)
class Seen:
    """How many rows were seen, and steps made; ``smallest`` are the smallest hashes of rows.

    A row that was in an earlier batch does not count again; equal rows of one batch are several. The count
    is exact up to 4096 rows; beyond, the k-th smallest of n uniform hashes lies near k/n, which gives n
    within a few percent. ``before`` rows were seen by a whole fit.
    """

    before: int = 0
    steps: float = 0.0
    smallest: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint64))

    @property
    def rows(self) -> int:
        if len(self.smallest) < _HASHES:
            return self.before + len(self.smallest)
        return self.before + round((_HASHES - 1) / (float(self.smallest[-1]) / 2.0**64))

    def after(self, x: np.ndarray, y: np.ndarray, steps: int) -> Seen:
        """With these rows and steps, too."""
        rows = np.concatenate([x, y.reshape(len(y), -1)], axis=1).astype(np.float64)
        times: Counter[bytes] = Counter()
        found = []
        for cells in map(np.ndarray.tobytes, rows):
            times[cells] += 1  # the k-th of equal rows is another one
            hashed = blake2b(cells + times[cells].to_bytes(8, "little"), digest_size=8).digest()
            found.append(int.from_bytes(hashed, "little"))
        every = np.unique(np.concatenate([self.smallest, np.array(found, dtype=np.uint64)]))
        return Seen(self.before, self.steps + steps, every[:_HASHES])


@dataclass(frozen=True)
class Continued:
    """What a fit continues from: networks (empty for a first pass), and the rows and steps so far."""

    networks: tuple[nn.Module, ...]
    likelihoods: tuple[Likelihood, ...]
    seen: Seen
    partial: bool

    @property
    def effort(self) -> float:
        """The share of the work after training: a pass over a few rows describes the model briefly."""
        return LEAST_EFFORT if self.partial else 1.0

    def weight(self, weight: np.ndarray, rows: int) -> np.ndarray:
        """The weights of new rows, which stand for all ``rows`` that partial fits have seen."""
        return weight * (rows / len(weight)) if self.partial else weight

    def plan(self, estimator: Any, plan: Plan, rows: int) -> Plan:
        """The plan of the next training; its network must be that of the one before."""
        owner = type(estimator).__name__
        if self.networks:
            before = estimator.plan_
            changed = [name for name in _SAME if getattr(plan, name) != getattr(before, name)]
            if changed:
                advice = "Set warm_start=False, or fit a new estimator."
                got = repr(getattr(plan, changed[0]))
                raise invalid(changed[0], owner, "that of the fit to continue", got, advice)
            complete = len(before.temperatures) == len(self.networks)
            tempered, count = (before.tempered, before.replicates) if complete else (None, len(self.networks))
            plan = dataclasses.replace(plan, replicates=count, tempered=tempered).with_settings(warmup=0.0)
        if not self.partial:
            return plan
        if estimator.target_density is not None:
            advice = "Use fit, or warm_start."
            raise invalid("target_density", f"{owner}.partial_fit", "None", estimator.target_density, advice)
        rows = max(rows, self.seen.rows)
        whole = planned(estimator.get_params(), rows, estimator._task, owner).settings
        full = 0.5 * whole.epochs * math.ceil(rows / whole.batch_size)
        steps = self.seen.steps + 1
        return plan.with_settings(
            epochs=1, warmup=0.0, temperature=whole.temperature * min(1.0, steps / full), schedule="constant"
        )

    def options(self, form: Likelihood) -> dict[str, Any]:
        """Further options of ``train``; ``form`` starts from what the likelihoods learned."""
        if not self.networks:
            return {}
        states = [each.state_dict() for each in self.likelihoods]
        form.load_state_dict({name: sum(s[name] for s in states) / len(states) for name in states[0]})
        return {"start": [copy.deepcopy(network) for network in self.networks]}


def continued(estimator: Any, partial: bool) -> Continued | None:
    """What the next fit continues from; None for a fit from the beginning."""
    fitted = hasattr(estimator, "networks_")
    if not partial and not (fitted and estimator.warm_start):
        return None
    if not fitted:
        return Continued((), (), Seen(), partial)
    seen = getattr(estimator, "_seen", Seen(estimator.n_rows_, math.inf))
    count = len(estimator.plan_.temperatures)  # linear networks are fitted again, not continued
    networks, forms = estimator._all_networks[:count], estimator._all_likelihoods[:count]
    return Continued(tuple(networks), tuple(forms), seen, partial)
