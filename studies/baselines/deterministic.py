"""Networks of plain weights, trained by the same engine: a posterior that is a single point."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsebnn.checks import check_count, check_positive, invalid
from sparsebnn.init import Initial
from sparsebnn.nn.layers import BayesianLayer
from sparsebnn.nn.passes import PosteriorPass, active_pass
from sparsebnn.posteriors import Family, Sample
from sparsebnn.random.noise import Noise
from studies.baselines.dropout import Dropout

__all__ = ["Deterministic", "plain_lenet", "plain_mlp"]


class Point(Family):
    r"""All weights of a module, each with all its probability at one value.

    In the place of the KL stands the prior's part of a posterior mode, up to a constant:
    :math:`\sum w^2 / (2 s^2)` for a prior :math:`\mathcal N(0, s^2)`, nothing for a flat one.
    """

    name = "point"
    prior_std: Tensor

    def __init__(self, module: nn.Module, prior_std: float | None) -> None:
        super().__init__((sum(p.numel() for p in module.parameters()),), Initial())
        self.module = module
        if prior_std is not None:
            scale = torch.tensor(float(prior_std))
            self.register_buffer("prior_std", check_positive(scale, "prior_std", "Deterministic"))
        self.flat = prior_std is None

    def reset_parameters(self) -> None:
        for part in self.module.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()

    def inclusion_prob(self) -> Tensor:
        return torch.ones(self.shape, device=next(self.module.parameters()).device)

    def kl(self, noise: Noise) -> Tensor:
        first = next(self.module.parameters())
        if self.flat:
            return torch.zeros((), dtype=first.dtype, device=first.device)
        squares = torch.stack([(p**2).sum() for p in self.module.parameters()])
        return squares.sum() / (2.0 * self.prior_std**2)

    def draw(self, noise: Noise) -> Tensor:
        """The module uses its own weights; a pass only needs to know that they exist."""
        return next(self.module.parameters())

    def median_draw(self, noise: Noise) -> Tensor:
        return self.draw(noise)

    def sample(self, noise: Noise, batch: int = 1) -> Sample:
        return self.sample_weights(noise)

    def sample_weights(self, noise: Noise) -> Sample:
        return Sample(None, self.draw(noise), self.kl(noise))


class Deterministic(BayesianLayer):
    """Any module of plain layers as one layer with a point posterior, so that ``train`` takes it.

    With ``prior_std`` training finds a posterior mode (weight decay), without it the maximum of the
    likelihood. Randomness inside must come from the open pass, as that of
    :class:`~studies.baselines.dropout.Dropout` does.

    >>> from sparsebnn import Settings, predict, train
    >>> from sparsebnn.likelihoods import Categorical
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> run = train(Deterministic(nn.Linear(4, 3)), (x, y), settings=Settings(epochs=2), replicates=2)
    >>> predict(run.network, x, Categorical(3), n_draws=1).probs.shape
    torch.Size([60, 3])
    """

    def __init__(self, module: nn.Module, prior_std: float | None = None) -> None:
        nn.Module.__init__(self)
        inside = [name for name, part in module.named_modules() if isinstance(part, BayesianLayer)]
        if inside:
            advice = "Train that network as it is; it already has a posterior."
            raise invalid("module", "Deterministic", "of plain layers", f"Bayesian ones at {inside}", advice)
        if next(module.parameters(), None) is None:
            raise invalid("module", "Deterministic", "a module with parameters", type(module).__name__)
        self.family, self.sampling = "point", "weights"
        self._start, self._drawn = None, None
        self.weights: Family = Point(module, prior_std)
        self.biases = None
        self._drawn = self._probe()

    def op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.weights.module(x)  # type: ignore[operator]

    def forward(self, x: Tensor, noise: Noise | None = None) -> Tensor:
        opened = active_pass()
        if opened is not None and noise is not None:
            raise TypeError("Inside an open pass the pass supplies the noise; call the layer without it.")
        if isinstance(opened, PosteriorPass):
            return self._output(opened, x)
        if noise is not None:
            with PosteriorPass(noise) as own:
                return self._output(own, x)
        # No moments to pass on: nothing is gained by asking a pass that only predicts.
        return self.op(x, x, None)


def plain_mlp(sizes: Sequence[int], *, dropout: float = 0.0, prior_std: float | None = None) -> Deterministic:
    """A fully connected ReLU network of plain weights; ``dropout`` after every hidden layer.

    >>> plain_mlp([2, 1000, 5], dropout=0.5).weights.module[2]
    Dropout(rate=0.5)
    """
    if len(sizes) < 2:
        raise invalid("sizes", "plain_mlp", "at least an input and an output size", list(sizes))
    for size in sizes:
        check_count(size, "sizes", "plain_mlp")
    modules: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        if modules:
            modules += [nn.ReLU(), *_dropout(dropout)]
        modules.append(nn.Linear(inputs, outputs))
    return Deterministic(nn.Sequential(*modules), prior_std)


def plain_lenet(
    n_classes: int = 10, *, dropout: float = 0.0, prior_std: float | None = None
) -> Deterministic:
    """The paper's LeNet-5 with plain weights; ``dropout`` after the hidden dense layers."""
    network = nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(32, 48, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(768, 256),
        nn.ReLU(),
        *_dropout(dropout),
        nn.Linear(256, 84),
        nn.ReLU(),
        *_dropout(dropout),
        nn.Linear(84, n_classes),
    )
    return Deterministic(network, prior_std)


def _dropout(rate: float) -> list[nn.Module]:
    return [Dropout(rate)] if rate else []
