"""The trained replicates: what they predict, which inputs they use, and cross-fitting.

With cross-fitting, replicate k does not train on fold k, so its predictions there are honest. They set one
number, which makes all predictions sharper or flatter (:func:`sparsebnn.inference.calibration.logit_scale`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.inference import calibration
from sparsebnn.inference.prediction import class_probs
from sparsebnn.inference.sampling import draw_outputs_of_all
from sparsebnn.likelihoods import Categorical, Gaussian, Likelihood
from sparsebnn.nn.layers import Linear
from sparsebnn.selection.paths import median_reach, path_probability

__all__ = ["Ensemble", "Folded", "folds", "logit_scale", "mixture_quantiles"]

_OUTPUT_BYTES = 1 << 26
# To find the logit scale.
_MOST_ROWS = 4000
_DRAWS = 20


@dataclass(frozen=True)
class Ensemble:
    """Replicates of one network with their likelihoods.

    Each draw samples whole weight tensors, in double precision: the prediction of a row depends neither on
    the other rows nor on the batch size.
    """

    networks: Sequence[nn.Module]
    likelihoods: Sequence[Likelihood]
    logit_scale: float = 1.0

    def doubled(self, device: str = "cpu") -> list[nn.Module]:
        """The networks in double precision, as they predict."""
        return [copy.deepcopy(network).double().to(device) for network in self.networks]

    def draws(
        self, x: np.ndarray, n_draws: int, model: str, seed: int, device: str
    ) -> Iterator[tuple[slice, Tensor]]:
        """``(rows, outputs of shape (replicates, draws, rows, outputs))``."""
        networks = self.doubled(device)
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
        with torch.no_grad():
            forms = [copy.deepcopy(form).to(outputs.device).double() for form in self.likelihoods]
            return torch.stack([class_probs(self.logit_scale * o, form) for o, form in zip(outputs, forms)])

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
    """The network with the inputs of each column merged into one, included if any of them is.

    The inclusions of a unit's weights are independent, so the merged weight is included with probability
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


# -- cross-fitting --------------------------------------------------------------------------------------


class Folded(Likelihood):
    """A likelihood that ignores the rows of one fold; the last column of y is the fold.

    ``held`` is a buffer, so it can differ between replicates.
    """

    held: Tensor

    def __init__(self, inner: Likelihood) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("held", torch.tensor(-1.0))

    def _targets(self, y: Tensor) -> Tensor:
        if self.inner.target_columns:
            return y[..., :-1]
        return y[..., 0].long() if isinstance(self.inner, Categorical) else y[..., 0]

    def prepare(self, y: Tensor) -> Tensor:
        prepared = self.inner.prepare(self._targets(y))
        return torch.cat([prepared.reshape(len(y), -1).to(y.dtype), y[:, -1:]], dim=1)

    def n_outputs(self, y: Tensor) -> int:
        return self.inner.n_outputs(y)

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.weighted_nll(outputs, y, torch.ones_like(y[..., -1]))

    def weighted_nll(self, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        seen = (y[..., -1] != self.held).to(outputs.dtype)
        return self.inner.weighted_nll(outputs, self._targets(y), seen * weight)


def folds(y: Tensor, count: int, seed: int, classes: bool) -> Tensor:
    """A fold for every row, stratified by class."""
    random = np.random.RandomState(seed)
    found = np.empty(len(y))
    labels = y.numpy() if classes else np.zeros(len(y))
    start = 0
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        found[rows] = (start + np.arange(len(rows))) % count
        start += len(rows)
    return torch.from_numpy(found).float()


def logit_scale(
    ensemble: Ensemble, x: np.ndarray, y: Tensor, fold: Tensor, weight: np.ndarray, effort: float = 1.0
) -> float:
    """The scale of the outputs, from the rows that some replicate left out.

    ``effort`` reduces the number of rows, for a fit with little time.
    """
    rows = np.flatnonzero(fold.numpy() < len(ensemble.networks))[: int(effort * _MOST_ROWS)]
    if len(rows) < 10:
        return 1.0
    parts = [o for _, o in ensemble.draws(x[rows], _DRAWS, "average", 0, "cpu")]
    outputs = torch.cat(parts, dim=2)
    own = fold[rows].long()
    honest = outputs[own, :, torch.arange(len(rows))].transpose(0, 1)
    w = torch.from_numpy(weight[rows])
    return calibration.logit_scale(honest, y[rows], w, ensemble.likelihoods, own)
