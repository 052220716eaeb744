"""Draws to predictive distributions: full model averaging, the median probability model, uncertainty.

Draws run as one batched pass (``torch.func.vmap`` over blocks of noise), in chunks that bound the
memory; probabilities are averaged, not their logarithms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparsebnn import counter
from sparsebnn.checks import check_choice, check_count, check_finite, check_rows, invalid
from sparsebnn.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from sparsebnn.metrics import entropy
from sparsebnn.networks import bayesian_layers
from sparsebnn.noise import Tape
from sparsebnn.passes import LocalPass, MedianPass, Pass, WeightPass, noise_size

__all__ = ["ClassPrediction", "RealPrediction", "draw_outputs", "predict"]

_NORMAL = counter.stream_id("prediction normal")
_LOGISTIC = counter.stream_id("prediction logistic")
_TARGET = counter.stream_id("prediction target")
_PASSES: dict[str, type[Pass]] = {"local": LocalPass, "weights": WeightPass, "median": MedianPass}


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


def _check_input(x: Tensor, n_draws: int, owner: str) -> None:
    check_count(n_draws, "n_draws", owner)
    if x.dim() < 2:
        raise invalid("x", owner, "of shape (rows, …)", f"shape {tuple(x.shape)}")
    check_rows([("x", x.shape[0])], owner)
    check_finite(x, "x", owner)


def pass_for(network: nn.Module, model: str, draws: str) -> type[Pass]:
    """Which pass a prediction uses."""
    check_choice(model, ("average", "median"), "model", "predict")
    check_choice(draws, ("auto", "local", "weights"), "draws", "predict")
    if model == "median":
        return MedianPass
    if draws == "auto":
        drawn = any(layer.weights.draws_weights for _, layer in bayesian_layers(network))
        draws = "weights" if drawn else "local"
    return _PASSES[draws]


@torch.no_grad()
def draw_outputs(
    network: nn.Module,
    x: Tensor,
    n_draws: int = 100,
    *,
    model: str = "average",
    draws: str = "auto",
    seed: int = 0,
    batch_size: int = 1024,
    memory: int = 1 << 28,
) -> Iterator[tuple[slice, Tensor]]:
    """Network outputs for draws of the posterior: ``(rows, outputs of shape (draws, rows, …))``.

    ``model="average"`` draws from the whole posterior, ``"median"`` from the median probability
    model. ``draws="local"`` samples the outputs of every layer (noise per example and unit),
    ``"weights"`` whole weight tensors; ``"auto"`` does as the family trains. Draw d of the weights is
    the same for every batch of rows. ``memory`` bounds the noise held at a time, in bytes.
    """
    _check_input(x, n_draws, "predict")
    check_count(batch_size, "batch_size", "predict")
    kind = pass_for(network, model, draws)
    shared = kind is not LocalPass
    like = next(network.parameters())
    seeds = counter.seed_tensor([seed], like.device)
    for start in range(0, x.shape[0], batch_size):
        rows = slice(start, min(start + batch_size, x.shape[0]))
        batch = x[rows].to(device=like.device, dtype=like.dtype)
        # Pixels: the same scale as in training.
        batch = batch / 255.0 if x.dtype == torch.uint8 else batch
        size = noise_size(network, batch, kind)
        per_draw = (size.normal + size.logistic + 1) * like.element_size()
        chunk = max(1, min(n_draws, memory // per_draw))

        def outputs(normal: Tensor, logistic: Tensor, batch: Tensor = batch) -> Tensor:
            with kind(Tape(normal, logistic)):
                return network(batch)

        parts = []
        for first in range(0, n_draws, chunk):
            steps = torch.arange(first, min(first + chunk, n_draws), device=like.device)
            # Whole weights must not change from batch to batch of rows; local noise must.
            keys = steps if shared else steps + (start << 32)
            normal = counter.normals(seeds, _NORMAL, keys, size.normal, like.dtype)
            logistic = counter.logistics(seeds, _LOGISTIC, keys, size.logistic, like.dtype)
            parts.append(torch.func.vmap(outputs)(normal, logistic))
        yield rows, torch.cat(parts)


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

    >>> import sparsebnn
    >>> network = sparsebnn.mlp([4, 8, 3])
    >>> predict(network, torch.randn(5, 4), Categorical(3), n_draws=10).probs.sum(-1).round(decimals=4)
    tensor([1., 1., 1., 1., 1.])
    """
    pieces = draw_outputs(network, x, n_draws, model=model, draws=draws, seed=seed, batch_size=batch_size)
    if isinstance(likelihood, Gaussian):
        return _real(pieces, likelihood, n_draws, seed)
    probs, expected, averaged = [], [], []
    for _, outputs in pieces:
        each = class_probs(outputs, likelihood)
        probs.append(each.mean(0))
        expected.append(entropy(each).mean(0))
        averaged.append(outputs.mean(0))
    return ClassPrediction(torch.cat(probs), torch.cat(expected), n_draws, torch.cat(averaged))


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
def _real(
    pieces: Iterator[tuple[slice, Tensor]], likelihood: Gaussian, n_draws: int, seed: int
) -> RealPrediction:
    means, stds, epistemic, samples = [], [], [], []
    for rows, outputs in pieces:
        mean, std = likelihood.mean_and_std(outputs)
        between = mean.var(0, correction=0)
        means.append(mean.mean(0))
        epistemic.append(between.sqrt())
        stds.append((between + (std**2).mean(0)).sqrt())
        keys = counter.seed_tensor([seed], outputs.device)
        noise = counter.normals(keys, _TARGET, rows.start, mean.numel(), mean.dtype)
        samples.append(mean + std * noise.reshape(mean.shape))
    return RealPrediction(torch.cat(means), torch.cat(stds), torch.cat(epistemic), torch.cat(samples, dim=1))
