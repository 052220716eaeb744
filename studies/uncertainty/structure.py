"""Networks small enough to be drawn: a structure that was really learned, and weights that share a z.

Six inputs, of which two are the coordinates of the clusters and four are noise. What the figures show of
them (inclusion probabilities, draws of two weights) is saved as arrays.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.inference.metrics import accuracy
from sparsebnn.inference.prediction import predict
from sparsebnn.init import Initial, Uniform
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.networks import bayesian_layers, mlp
from sparsebnn.posteriors.priors import SpikeSlabPrior
from sparsebnn.random.noise import RandomNoise
from sparsebnn.training import Settings, train
from studies.data.clusters import five_clusters
from studies.uncertainty.measures import Problem

__all__ = ["SIZES", "structure"]

SIZES = (6, 10, 10, 5)
_DRAWS = 400


def structure(epochs: int, seed: int) -> dict[str, np.ndarray]:
    """Inclusion probabilities by layer of LBBNN-FLOW, its accuracy, and draws of two weights."""
    problem = Problem.draw(five_clusters(), 200, 400, 31 + seed)
    generator = torch.Generator().manual_seed(seed)
    x, x_test = (_with_noise(rows, generator) for rows in (problem.x, problem.x_test))
    found: dict[str, np.ndarray] = {}
    for family in ("flow", "spike_slab"):
        options = {"hidden": (20, 20)} if family == "flow" else None
        network = _train(family, options, x, problem.y, epochs, seed)
        pair, draws = _two_weights(network, seed)
        found[f"structure/{family}/pair"] = np.array(pair)
        found[f"structure/{family}/draws"] = draws.double().numpy()
        if family == "flow":
            probs = predict(network, x_test, Categorical(5), 100, model="median").probs
            found["structure/accuracy"] = np.array(accuracy(probs, problem.y_test))
            for depth, (_, layer) in enumerate(bayesian_layers(network)):
                inclusion = layer.weights.inclusion_prob().detach()
                found[f"structure/inclusion/{depth}"] = inclusion.numpy()
    return found


def _with_noise(x: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.rand(len(x), SIZES[0] - 2, generator=generator, dtype=torch.float64)
    return (4.0 * torch.cat([x, noise], dim=1) - 2.0).float()


def _train(
    family: str, options: dict[str, tuple[int, int]] | None, x: Tensor, y: Tensor, epochs: int, seed: int
) -> nn.Module:
    network = mlp(
        SIZES,
        family=family,
        prior=SpikeSlabPrior(0.1),
        initial=Initial(inclusion_logit=Uniform(0.0, 2.0)),
        family_options=options,
    )
    settings = Settings(epochs=epochs, batch_size=100, learning_rate=0.02, warmup=0.5)
    run = train(
        network,
        (x, y),
        likelihood=Categorical(5),
        settings=settings,
        seed=seed,
        device="cpu",
        mode="eager",
        progress=False,
    )
    return run.network


@torch.no_grad()
def _two_weights(network: nn.Module, seed: int) -> tuple[tuple[int, int, int], Tensor]:
    """The input of the first layer with the two largest weights, and draws of both if included."""
    _, layer = next(bayesian_layers(network))
    family = layer.weights
    # Two outputs of one input: they share its z.
    size = family.posterior_mean().abs() * (family.inclusion_prob() > 0.5)
    top = size.topk(2, dim=0)
    unit = int(top.values[1].argmax())
    first, second = (int(row) for row in top.indices[:, unit])
    noise = RandomNoise(torch.Generator().manual_seed(seed))
    drawn = torch.stack([family.median_draw(noise)[[first, second], unit] for _ in range(_DRAWS)])
    return (unit, first, second), drawn
