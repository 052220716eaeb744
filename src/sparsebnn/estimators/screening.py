"""Screen, then refit: networks that train once more, on the columns that their first training includes.

A network of many columns spends much of its evidence on telling useless columns from useful ones. Replicate k
therefore trains again on the columns that it includes with a probability above a tenth. Only the rows that it
trains on decide about them, so it predicts the rows that it leaves out as honestly as before, and these rows
decide which networks predict.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.estimators.ensemble import OUT, Ensemble
from sparsebnn.likelihoods import Likelihood
from sparsebnn.nn.networks import NO_POSTERIOR
from sparsebnn.training import Callback, Run

__all__ = ["MANY_COLUMNS", "Screen", "off", "screened"]

MANY_COLUMNS = 30  # with fewer, a second training is not worth its time
_LEAST_INCLUSION = 0.1
_MOST_KEPT = 0.5  # of the columns, on average


@dataclass(frozen=True)
class Screen:
    """The inputs that each replicate keeps, ``(replicates, inputs)``."""

    kept: Tensor
    columns: int  # that any replicate keeps

    @property
    def inputs(self) -> Tensor:
        """The places of the inputs that any replicate keeps: the inputs of the second training."""
        return torch.nonzero(self.kept.any(0)).flatten()

    def callback(self, sets: int) -> Callback:
        """Excludes, from the start, what a replicate does not keep; ``sets`` of replicates train."""
        return _Excluded(~self.kept[:, self.inputs].repeat(sets, 1))

    @torch.no_grad()
    def widened(self, network: nn.Module, like: nn.Module) -> nn.Module:
        """A network of the second training in the shape of one with all inputs, which it does not use."""
        found, at, inputs = copy.deepcopy(like).eval(), self.inputs, self.kept.shape[1]
        own = network.state_dict()
        for name, wide in found.state_dict().items():
            narrow = own[name].to(wide)
            if wide.shape == narrow.shape:
                wide.copy_(narrow)
                continue
            units = wide.shape[-1] - inputs  # of the layer before; the inputs follow
            wide[:, units:] = OUT if name.endswith("inclusion_logit") else 0.0
            wide[:, :units] = narrow[:, :units]
            wide[:, units + at] = narrow[:, units:]
        setattr(found, NO_POSTERIOR, "that was trained on columns chosen before")
        return found


class _Excluded(Callback):
    def __init__(self, out: Tensor) -> None:
        self.out = out

    @torch.no_grad()
    def on_train_start(self, run: Run) -> None:
        inputs = self.out.shape[1]
        for name, values in run.replicates.parameters.items():
            if name.endswith("inclusion_logit"):
                # At such a logit gradients vanish, and the weight stays out.
                values[:, :, -inputs:].masked_fill_(self.out[:, None].to(values.device), OUT)


def screened(
    networks: Sequence[nn.Module], forms: Sequence[Likelihood], column_of: np.ndarray, columns: int
) -> Screen | None:
    """What each network keeps; None where that is nearly everything, or nothing."""
    if columns < MANY_COLUMNS:
        return None
    inclusion = Ensemble(networks, forms).inclusion(column_of, columns)
    kept = inclusion > _LEAST_INCLUSION
    # A replicate that found nothing keeps the most probable column, so that it can train.
    kept[np.arange(len(kept)), inclusion.argmax(1)] = True
    if kept.mean() > _MOST_KEPT:
        return None
    return Screen(torch.from_numpy(kept[:, column_of]), int(kept.any(0).sum()))


def off(columns: int, rows: int) -> list[str]:
    """A note and a warning if screening is off although columns outnumber the rows."""
    if columns <= max(rows, MANY_COLUMNS):
        return []
    note = (
        f"There are {columns} columns and {rows} rows, and the networks were not trained again on the "
        "columns that they include, which often predicts better: it takes screen=True, several replicates "
        "without early stopping, and enough time."
    )
    warnings.warn(note, UserWarning, stacklevel=6)
    return [note]
