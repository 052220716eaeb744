"""A trained ensemble: its draws, what they predict, which inputs they use."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.inference.prediction import class_probs
from sparsebnn.inference.sampling import draw_outputs_of_all
from sparsebnn.likelihoods import Gaussian, Likelihood
from sparsebnn.nn.layers import Linear
from sparsebnn.selection.paths import median_reach, path_probability

__all__ = ["Ensemble", "mixture_quantiles"]

_OUTPUT_BYTES = 1 << 26


@dataclass(frozen=True)
class Ensemble:
    """Replicates of one network with their likelihoods.

    Draws are whole weight tensors, computed in double precision: a row's prediction does not depend on
    the rows beside it, nor on the size of the batch.
    """

    networks: Sequence[nn.Module]
    likelihoods: Sequence[Likelihood]
    logit_scale: float = 1.0

    def draws(
        self, x: np.ndarray, n_draws: int, model: str, seed: int, device: str
    ) -> Iterator[tuple[slice, Tensor]]:
        """``(rows, outputs of shape (replicates, draws, rows, outputs))``."""
        networks = [copy.deepcopy(network).double().to(device) for network in self.networks]
        widest = max(m.out_features for m in networks[0].modules() if isinstance(m, Linear))
        per_row = 8 * len(networks) * n_draws * widest
        batch = max(1, min(1024, _OUTPUT_BYTES // per_row))
        yield from draw_outputs_of_all(
            networks,
            torch.from_numpy(x),
            n_draws,
            model=model,
            draws="weights",
            seed=seed,
            batch_size=batch,
        )

    def probs(self, outputs: Tensor) -> Tensor:
        """Class probabilities of every draw."""
        return class_probs(self.logit_scale * outputs, self.likelihoods[0])

    def means_and_stds(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and noise std of every draw, ``(replicates · draws, rows, targets)``."""
        found = []
        for form, each in zip(self.likelihoods, outputs):
            assert isinstance(form, Gaussian)
            mean, std = copy.deepcopy(form).to(each.device).double().mean_and_std(each)
            found.append((mean, self.logit_scale * std))
        with torch.no_grad():
            return torch.cat([m for m, _ in found]).detach(), torch.cat([s for _, s in found]).detach()

    # -- structure ------------------------------------------------------------------------------------

    def inclusion(self, column_of: np.ndarray, columns: int) -> np.ndarray:
        """``(replicates, columns)``: probability that any input of a column reaches an output."""
        found = np.zeros((len(self.networks), columns))
        used = np.unique(column_of)
        for k, network in enumerate(self.networks if len(used) else ()):
            found[k, used] = path_probability(_merged(network, column_of), n_draws=200).prob.numpy()
        return found

    def median_columns(self, column_of: np.ndarray, columns: int) -> np.ndarray:
        """``(replicates, columns)``: whether a column reaches an output in the median probability model."""
        found = np.zeros((len(self.networks), columns), dtype=bool)
        for k, network in enumerate(self.networks):
            reached = median_reach(network).numpy()[: len(column_of)] > 0
            np.logical_or.at(found[k], column_of, reached)
        return found


@torch.no_grad()
def _merged(network: nn.Module, column_of: np.ndarray) -> nn.Module:
    """The network with the inputs of a column made one, there when any of them is.

    The inclusions of a unit's weights are independent, so the merged weight is there with probability
    1 − Π(1 − α̃), exactly.
    """
    merged = copy.deepcopy(network).double()
    assert isinstance(merged, nn.Sequential)
    assert isinstance(merged[0], Linear)
    first = merged[0]
    exclusion = 1.0 - first.weights.inclusion_prob()
    used = np.unique(column_of)
    joined = torch.stack([exclusion[:, torch.from_numpy(column_of == c)].prod(1) for c in used], dim=1)
    if first.family == "gaussian":
        merged[0] = Linear(len(used), first.out_features, family="gaussian").double()
        return merged
    replacement = Linear(len(used), first.out_features, family="spike_slab").double()
    logit = torch.log1p(-joined) - torch.log(joined.clamp_min(1e-300))
    replacement.weights.inclusion_logit.copy_(logit)  # type: ignore[operator]
    merged[0] = replacement
    return merged


def mixture_quantiles(mean: Tensor, std: Tensor, levels: Sequence[float]) -> Tensor:
    r"""Quantiles of an equal mixture of Gaussians: the q with

    .. math:: \frac1D \sum_d \Phi\!\left(\frac{q - \mu_d}{\sigma_d}\right) = \text{level}

    ``mean`` and ``std`` are ``(draws, …)``, the result ``(levels, …)``; by bisection, to 1e-12 of the range.

    >>> mixture_quantiles(torch.zeros(1, 1), torch.ones(1, 1), [0.975]).item()
    1.95996...
    """
    found = []
    for level in levels:
        low = (mean - 40.0 * std).min(0).values
        high = (mean + 40.0 * std).max(0).values
        for _ in range(60):
            middle = 0.5 * (low + high)
            mass = torch.special.erfc((mean - middle) / (std * math.sqrt(2.0))).mean(0) / 2.0
            low = torch.where(mass < level, middle, low)
            high = torch.where(mass < level, high, middle)
        found.append(0.5 * (low + high))
    return torch.stack(found)
