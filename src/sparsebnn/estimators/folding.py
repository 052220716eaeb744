r"""Replicates that each leave out a fifth of the rows, and what those rows say of the predictions.

Replicate k does not see fold k, so its predictions there are honest ones, at no further training. They
set one number: how much sharper or flatter the predictions should be,

.. math::
    s = \arg\min_s \; \tfrac18 \log^2 s
    - \sum_i w_i \log \frac1D \sum_d p\big(y_i \mid s \cdot f_{k(i),d}(x_i)\big)

for classes; for numbers s multiplies the noise's standard deviation. The first term, a log-normal prior,
keeps s finite where every row is predicted rightly.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sparsebnn.estimators.posterior import Ensemble
from sparsebnn.likelihoods import Gaussian, Likelihood

__all__ = ["Folded", "folds", "logit_scale"]

_MOST_ROWS = 4000
_DRAWS = 20
_GRID = np.exp(np.linspace(np.log(0.25), np.log(16.0), 97))


class Folded(Likelihood):
    """A likelihood that does not count the rows of one fold; the last column of y is the fold.

    ``held`` is a buffer, so that every replicate has a fold of its own.
    """

    held: Tensor

    def __init__(self, inner: Likelihood) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("held", torch.tensor(-1.0))

    def _targets(self, y: Tensor) -> Tensor:
        if isinstance(self.inner, Gaussian):
            return y[..., :-1]
        return y[..., 0] if self.inner.n_outputs(y) == 1 else y[..., 0].long()

    def prepare(self, y: Tensor) -> Tensor:
        self.inner.prepare(self._targets(y))
        return y

    def n_outputs(self, y: Tensor) -> int:
        return self.inner.n_outputs(y)

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.inner.nll(outputs, self._targets(y)) * (y[..., -1] != self.held).to(outputs.dtype)


def folds(y: Tensor, count: int, seed: int, classes: bool) -> Tensor:
    """A fold for every row; each class is spread over all of them."""
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
    """The s of the module's formula, on the rows that some replicate left out.

    ``effort`` is the share of the most rows that are asked, for a fit that has little time.
    """
    rows = np.flatnonzero(fold.numpy() < len(ensemble.networks))[: int(effort * _MOST_ROWS)]
    if len(rows) < 10:
        return 1.0
    parts = [o for _, o in ensemble.draws(x[rows], _DRAWS, "average", 0, "cpu")]
    outputs = torch.cat(parts, dim=2)
    own = fold[rows].long()
    honest = outputs[own, :, torch.arange(len(rows))].transpose(0, 1)
    w = torch.from_numpy(weight[rows])
    losses = [_loss(ensemble, honest, own, y[rows], w, s) + np.log(s) ** 2 / 8.0 for s in _GRID.tolist()]
    return float(_GRID[int(np.argmin(losses))])


def _loss(ensemble: Ensemble, outputs: Tensor, own: Tensor, y: Tensor, w: Tensor, s: float) -> float:
    """Negative log of the probability averaged over draws, summed; ``outputs`` is (draws, rows, outputs)."""
    form = ensemble.likelihoods[0]
    if isinstance(form, Gaussian):
        stds = []
        for each in ensemble.likelihoods:
            assert isinstance(each, Gaussian)
            stds.append(each.mean_and_std(outputs.float())[1].detach().double())
        std = s * torch.stack(stds)[own, :, torch.arange(len(own))].transpose(0, 1)
        mean = outputs[..., : form.n_targets]
        log = (-0.5 * ((y.double() - mean) / std) ** 2 - torch.log(std)).sum(-1)
    else:
        targets = y.to(outputs.dtype) if form.n_outputs(y) == 1 else y.long()
        log = -form.nll(s * outputs.flatten(0, 1), targets.repeat(len(outputs))).reshape(outputs.shape[:2])
    averaged = torch.logsumexp(log, 0)
    return -float((w * averaged).sum())
