"""Draws to predictive distributions: full model averaging, the median probability model, uncertainty.

The draws are :mod:`sparsebnn.inference.sampling`'s; probabilities are averaged, not their logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn.checks import check_tensor, invalid
from sparsebnn.inference.metrics import entropy
from sparsebnn.inference.sampling import draw_outputs, draw_outputs_of_all
from sparsebnn.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from sparsebnn.random import noise as counter

_TARGET = counter.stream_id("prediction target")


@dataclass(frozen=True)
class ClassPrediction:
    """Class probabilities averaged over draws, and where their uncertainty comes from.

    ``entropy`` is the total uncertainty; ``expected_entropy`` the part that stays if the weights were
    known (aleatoric); ``mutual_information`` their difference (epistemic). All in nats.
    ``outputs`` are the network's outputs averaged over draws, before any softmax, and ``max_output``
    the largest of each row: the maximum model-averaged pre-activation.
    """

    probs: Tensor
    expected_entropy: Tensor
    n_draws: int
    outputs: Tensor

    @property
    def labels(self) -> Tensor:
        return self.probs.argmax(-1)

    @property
    def entropy(self) -> Tensor:
        return entropy(self.probs)

    @property
    def mutual_information(self) -> Tensor:
        return (self.entropy - self.expected_entropy).clamp_min(0.0)

    @property
    def max_output(self) -> Tensor:
        return self.outputs.max(-1).values


@dataclass(frozen=True)
class RealPrediction:
    """Predictive mean and std of real targets, with draws of targets for quantiles.

    ``std`` joins the spread of the means over draws (epistemic) and the noise (aleatoric).
    """

    mean: Tensor
    std: Tensor
    epistemic_std: Tensor
    samples: Tensor

    def quantiles(self, levels: list[float]) -> Tensor:
        """Predictive quantiles, ``(levels, rows, targets)``."""
        for level in levels:
            if not 0.0 < level < 1.0:
                raise invalid("levels", "quantiles", "strictly between 0 and 1", level)
        wanted = torch.tensor(levels, dtype=self.samples.dtype, device=self.samples.device)
        return torch.quantile(self.samples, wanted, dim=0)


def predict(
    network: nn.Module,
    x: Tensor,
    likelihood: Likelihood,
    n_draws: int = 100,
    *,
    model: str = "average",
    draws: str = "auto",
    seed: int = 0,
    batch_size: int = 1024,
) -> ClassPrediction | RealPrediction:
    """The predictive distribution of each row of ``x``; arguments as :func:`draw_outputs`.

    Rows of uint8 are pixels, divided by 255 as ``train`` does; all other numbers are taken as they are.

    >>> import sparsebnn
    >>> network = sparsebnn.mlp([4, 8, 3])
    >>> predict(network, torch.randn(5, 4), Categorical(3), n_draws=10).probs.sum(-1).round(decimals=4)
    tensor([1., 1., 1., 1., 1.])
    """
    x = check_tensor(x, "x", "predict")
    pieces = draw_outputs(network, x, n_draws, model=model, draws=draws, seed=seed, batch_size=batch_size)
    return _joined([_summary(x[rows], outputs, likelihood, seed) for rows, outputs in pieces], n_draws)


def predict_all(
    networks: Sequence[nn.Module],
    x: Tensor,
    likelihoods: Likelihood | Sequence[Likelihood],
    n_draws: int = 100,
    *,
    seed: int = 0,
    **options: Any,
) -> list[ClassPrediction | RealPrediction]:
    """:func:`predict` for each of K networks of one shape, all drawn as one program; ``options`` likewise.

    It pays for many small networks; a few large ones fill the machine one at a time.
    """
    count = len(networks)
    forms = [likelihoods] * count if isinstance(likelihoods, Likelihood) else list(likelihoods)
    if len(forms) != count:
        raise invalid("likelihoods", "predict_all", f"one for all or one each ({count})", len(forms))
    found: list[list[tuple[Tensor, ...]]] = [[] for _ in forms]
    x = check_tensor(x, "x", "predict_all")
    for rows, outputs in draw_outputs_of_all(networks, x, n_draws, seed=seed, **options):
        for summaries, each, form in zip(found, outputs, forms):
            summaries.append(_summary(x[rows], each, form, seed))
    return [_joined(summaries, n_draws) for summaries in found]


def class_probs(outputs: Tensor, likelihood: Likelihood) -> Tensor:
    """Class probabilities of outputs, ``(…, classes)``; a Bernoulli's are (no, yes)."""
    if isinstance(likelihood, Bernoulli):
        yes = torch.sigmoid(outputs)
        return torch.cat([1.0 - yes, yes], dim=-1)
    if not isinstance(likelihood, Categorical):
        expected = "Categorical, Bernoulli or Gaussian"
        raise invalid("likelihood", "predict", expected, type(likelihood).__name__)
    return torch.softmax(outputs, dim=-1)


@torch.no_grad()
def _summary(x: Tensor, outputs: Tensor, likelihood: Likelihood, seed: int) -> tuple[Tensor, ...]:
    """What a prediction keeps of the draws ``(draws, rows, …)`` for the rows ``x``: three or four tensors."""
    known = isinstance(likelihood, Categorical | Bernoulli | Gaussian)
    wanted = likelihood.n_outputs(outputs) if known else outputs.shape[-1]
    if outputs.shape[-1] != wanted:
        name = type(likelihood).__name__
        got = f"a network with {outputs.shape[-1]}"
        advice = "Pass the likelihood that the network was trained with (run.likelihood)."
        raise invalid(
            "likelihood", "predict", f"for as many outputs as the network has ({name}: {wanted})", got, advice
        )
    if not isinstance(likelihood, Gaussian):
        each = class_probs(outputs, likelihood)
        return each.mean(0), entropy(each).mean(0), outputs.mean(0)
    mean, std = likelihood.mean_and_std(outputs)
    between = mean.var(0, correction=0)
    keys, content = counter.seed_tensor([seed], outputs.device), counter.content_keys(x.to(outputs.device))
    # Each row's noise depends on its own values alone, as that of its outputs does.
    each = counter.normals(keys, _TARGET, content, mean[:, 0].numel(), mean.dtype)
    noise = each.unflatten(1, (len(mean), -1)).movedim(1, 0)
    total = (between + (std**2).mean(0)).sqrt()
    return mean.mean(0), total, between.sqrt(), mean + std * noise


def _joined(summaries: list[tuple[Tensor, ...]], n_draws: int) -> ClassPrediction | RealPrediction:
    columns = list(zip(*summaries))
    if len(columns) == 3:
        probs, expected, outputs = (torch.cat(column) for column in columns)
        return ClassPrediction(probs, expected, n_draws, outputs)
    mean, std, epistemic = (torch.cat(column) for column in columns[:3])
    return RealPrediction(mean, std, epistemic, torch.cat(columns[3], dim=1))
