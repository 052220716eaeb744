"""Deep ensembles: networks trained from different seeds, their probabilities averaged."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsebnn.checks import invalid
from sparsebnn.inference.prediction import ClassPrediction, predict
from sparsebnn.likelihoods import Likelihood

__all__ = ["predict_ensemble"]


def predict_ensemble(
    networks: Sequence[nn.Module],
    x: Tensor,
    likelihood: Likelihood,
    n_draws: int = 1,
    *,
    model: str = "average",
    draws: str = "auto",
    seed: int = 0,
    batch_size: int = 1024,
) -> ClassPrediction:
    r"""The mixture of the members' predictive distributions, each with the same weight.

    .. math:: p(y \mid x) = \tfrac1M \sum_m p_m(y \mid x)

    The members are replicates of one training run (``run.networks``); ``n_draws`` and the rest are as
    in :func:`~sparsebnn.predict`, per member. The mutual information of the result is that
    between label and (member, draw).

    >>> from sparsebnn import Settings, train
    >>> from studies.baselines.deterministic import plain_mlp
    >>> from sparsebnn.likelihoods import Categorical
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> run = train(plain_mlp([4, 8, 3]), (x, y), settings=Settings(epochs=2), replicates=5)
    >>> predict_ensemble(run.networks, x, Categorical(3)).n_draws
    5
    """
    if not networks:
        raise invalid("networks", "predict_ensemble", "at least one network", "none")
    members = [
        predict(each, x, likelihood, n_draws, model=model, draws=draws, seed=seed + m, batch_size=batch_size)
        for m, each in enumerate(networks)
    ]
    parts = [one for one in members if isinstance(one, ClassPrediction)]
    if len(parts) != len(members):
        expected = "Categorical or Bernoulli, whose probabilities can be averaged"
        raise invalid("likelihood", "predict_ensemble", expected, type(likelihood).__name__)
    return ClassPrediction(
        torch.stack([one.probs for one in parts]).mean(0),
        torch.stack([one.expected_entropy for one in parts]).mean(0),
        n_draws * len(parts),
        torch.stack([one.outputs for one in parts]).mean(0),
    )
