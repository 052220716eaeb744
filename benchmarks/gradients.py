r"""How noisy a gradient is: local reparametrization against drawn weights.

.. math:: \sum_j \operatorname{Var}\big[\partial_{\mu_j}\, \textstyle\sum_{i \in B} \mathrm{nll}_i\big]

over the noise alone: one batch, one set of parameters, fresh draws. The parameters are the weight means
of all layers. With the local reparametrization every example has its own noise, so the errors of a
batch's examples partly cancel; drawn weights are shared by the batch, and so are their errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.networks import bayesian_layers, initialize, mlp
from sparsebnn.nn.passes import LocalPass, Pass, WeightPass
from sparsebnn.posteriors.priors import SpikeSlabPrior
from sparsebnn.random.noise import Noise, RandomNoise
from sparsebnn.training import Settings, train

__all__ = ["of_passes", "study", "total_variance"]


def total_variance(
    loss: Callable[[Noise], Tensor], parameters: Sequence[Tensor], n_draws: int, seed: int = 0
) -> tuple[float, float]:
    """The variances of a gradient, summed over parameters, and the standard error of that sum.

    With the squared distances d of each draw from the mean, the sum is their mean times S/(S-1), and
    its standard error that of a mean of S numbers.
    """
    noise = RandomNoise(torch.Generator().manual_seed(seed))
    rows = []
    for _ in range(n_draws):
        gradients = torch.autograd.grad(loss(noise), list(parameters))
        rows.append(torch.cat([g.flatten() for g in gradients]))
    stacked = torch.stack(rows).double()
    distances = ((stacked - stacked.mean(0)) ** 2).sum(1) * n_draws / (n_draws - 1)
    return float(distances.mean()), float(distances.std() / math.sqrt(n_draws))


def of_passes(
    network: nn.Module, x: Tensor, nll: Callable[[Tensor], Tensor], n_draws: int, seed: int = 0
) -> dict[str, float]:
    """Both estimators at the same parameters and batch; ``ratio`` is drawn weights over local.

    ``nll`` turns outputs into the batch's summed negative log likelihood.
    """
    means = [layer.weights.mean for _, layer in bayesian_layers(network)]

    def through(kind: type[Pass]) -> Callable[[Noise], Tensor]:
        def loss(noise: Noise) -> Tensor:
            with kind(noise):
                return nll(network(x))

        return loss

    local, local_se = total_variance(through(LocalPass), means, n_draws, seed)
    drawn, drawn_se = total_variance(through(WeightPass), means, n_draws, seed + 1)
    ratio = drawn / local
    return {
        "local": local,
        "local_se": local_se,
        "drawn": drawn,
        "drawn_se": drawn_se,
        "ratio": ratio,
        "ratio_se": ratio * math.hypot(local_se / local, drawn_se / drawn),
    }


def study(n_draws: int = 64, epochs: int = 20, seed: int = 0) -> list[dict[str, Any]]:
    """LBBNN-LRT with the paper's hidden layers on handwritten digits, at its start and after training.

    The start is the paper's; training is short, at a rate of 0.001. A batch of 100.
    """
    from sparsebnn.io.data import load
    from studies.tables.paper import cell

    digits = load("digits")
    sizes, form = [64, 400, 600, 10], Categorical(10)
    network = mlp(sizes, prior=SpikeSlabPrior(0.1), initial=cell("fc", "lrt").initial)
    initialize(network, seed)
    settings = Settings(epochs=epochs, batch_size=100, learning_rate=1e-3)
    run = train(
        network, (digits.x_train, digits.y_train), settings=settings, seed=seed, device="cpu", progress=False
    )
    x, y = digits.x_train[:100], digits.y_train[:100]
    rows = []
    for moment, of, done in (("start", network, 0), ("trained", run.network, epochs)):
        found = of_passes(of, x, lambda out: form.nll(out, y).sum(), n_draws, seed)
        rows.append({"moment": moment, "epochs": done, "sizes": sizes, "n_draws": n_draws, **found})
    return rows
