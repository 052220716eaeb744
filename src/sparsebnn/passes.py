"""One forward pass through a network: which draw of the weights, from what noise, at what cost.

A layer asks the active pass for its output, so a third-party module's own ``forward`` needs no
change: whoever calls it opens the pass. Passes nest, are private to their thread, and open and close
inside the function that ``torch.func.vmap`` maps.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from sparsebnn.checks import invalid
from sparsebnn.families import Family, Gaussian, Moments
from sparsebnn.noise import Fresh, Meter, Noise, NoiseSize

__all__ = [
    "ClosedPass",
    "Pass",
    "PosteriorPass",
    "LocalPass",
    "WeightPass",
    "MedianPass",
    "active_pass",
    "collect_kl",
    "forward_with_kl",
    "noise_size",
]

_local = threading.local()


class BayesianModule(Protocol):
    """What a pass needs of a layer: its distributions, its op, and how moments go through it."""

    weights: Family
    biases: Gaussian | None

    def op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor: ...

    def output_moments(
        self, x: Tensor, moments: Moments, bias_mean: Tensor | None, bias_var: Tensor | None
    ) -> tuple[Tensor, Tensor]: ...


def active_pass() -> Pass | None:
    """The innermost open pass of this thread, if any."""
    return getattr(_local, "active", None)


class Realised(NamedTuple):
    """A layer's weights for the length of a pass: their moments, or drawn values."""

    moments: Moments | None
    weight: Tensor | None
    bias_mean: Tensor | None
    bias_var: Tensor | None
    kl: Tensor | None


class Pass:
    """Base of all passes. A layer met twice keeps the weights of its first call."""

    def __init__(self, noise: Noise | None = None) -> None:
        self.noise: Noise = Fresh() if noise is None else noise
        self._met: list[tuple[BayesianModule, Realised]] = []
        self._outer: Pass | None = None

    def __enter__(self) -> Pass:
        self._outer = active_pass()
        _local.active = self
        return self

    def __exit__(self, *error: Any) -> None:
        _local.active = self._outer

    def realise(self, layer: BayesianModule, batch: int) -> Realised:
        """The weights of ``layer`` for this pass."""
        raise NotImplementedError

    def output(self, layer: BayesianModule, x: Tensor) -> Tensor:
        """The output of ``layer`` in this pass."""
        realised = None
        for met, earlier in self._met:
            if met is layer:
                realised = earlier
        if realised is None:
            realised = self.realise(layer, x.shape[0])
            self._met.append((layer, realised))
        if realised.moments is None:
            assert realised.weight is not None
            return layer.op(x, realised.weight, realised.bias_mean)
        mean, var = layer.output_moments(x, realised.moments, realised.bias_mean, realised.bias_var)
        # Where the variance is exactly 0 the square root has no gradient; below this it is constant.
        std = torch.sqrt(var.clamp_min(torch.finfo(var.dtype).tiny ** 0.75))
        return mean + std * self.noise.normal(mean.shape, mean)

    def kl_by_layer(self) -> list[tuple[BayesianModule, Tensor]]:
        """Each layer met, once, with its KL in nats."""
        return [(layer, realised.kl) for layer, realised in self._met if realised.kl is not None]

    def kl(self) -> Tensor:
        """The sum of the KL of all layers met."""
        terms = [kl for _, kl in self.kl_by_layer()]
        if self._met and not terms:
            raise RuntimeError(
                f"A {type(self).__name__} gathers no KL. Open a PosteriorPass (collect_kl) instead."
            )
        if not terms:
            raise RuntimeError(
                "No Bayesian layer was called inside this pass. "
                "Build the network with sparsebnn.mlp, lenet or convert, and call it inside the pass."
            )
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total


class PosteriorPass(Pass):
    """A training pass: every family draws as it trains, and its KL is kept."""

    def realise(self, layer: BayesianModule, batch: int) -> Realised:
        weights, biases = layer.weights, layer.biases
        sample = weights.sample(self.noise, batch)
        if biases is None:
            return Realised(sample.moments, sample.weight, None, None, sample.kl)
        if sample.weight is not None:
            bias = biases.sample_drawn(self.noise)
            return Realised(None, sample.weight, bias.weight, None, sample.kl + bias.kl)
        bias = biases.sample(self.noise)
        assert bias.moments is not None
        return Realised(sample.moments, None, bias.moments.mean, bias.moments.var, sample.kl + bias.kl)


class LocalPass(Pass):
    """Full model averaging through the local reparametrization: noise per example and unit."""

    def realise(self, layer: BayesianModule, batch: int) -> Realised:
        moments = layer.weights.local(self.noise, batch)
        if layer.biases is None:
            return Realised(moments, None, None, None, None)
        bias = layer.biases.moments()
        return Realised(moments, None, bias.mean, bias.var, None)


class WeightPass(Pass):
    """Full model averaging with whole weight tensors drawn, the same for all examples."""

    def realise(self, layer: BayesianModule, batch: int) -> Realised:
        bias = None if layer.biases is None else layer.biases.draw(self.noise)
        return Realised(None, layer.weights.draw(self.noise), bias, None, None)


class MedianPass(Pass):
    """The median probability model: weights with inclusion above one half, drawn; the others 0."""

    def realise(self, layer: BayesianModule, batch: int) -> Realised:
        bias = None if layer.biases is None else layer.biases.draw(self.noise)
        return Realised(None, layer.weights.median_draw(self.noise), bias, None, None)


class ClosedPass(Pass):
    """While gradients are computed: what is drawn now would not be what the loss was made with."""

    def output(self, layer: BayesianModule, x: Tensor) -> Tensor:
        expected = "one that calls its layers in its forward alone"
        advice = "Leave out activation checkpointing (torch.utils.checkpoint)."
        raise invalid("network", "train", expected, "a Bayesian layer called for a gradient", advice)


def collect_kl(noise: Noise | None = None) -> PosteriorPass:
    """A scope in which Bayesian layers draw from ``noise`` and leave their KL.

    >>> import sparsebnn
    >>> network = sparsebnn.mlp([4, 8, 3])
    >>> with collect_kl() as kl:
    ...     y = network(torch.randn(5, 4))
    >>> kl.kl().shape
    torch.Size([])
    """
    return PosteriorPass(noise)


def forward_with_kl(module: nn.Module, x: Tensor, noise: Noise | None = None) -> tuple[Tensor, Tensor]:
    """``(module(x), KL in nats)`` from one draw of the weights."""
    with collect_kl(noise) as opened:
        y = module(x)
    return y, opened.kl()


def noise_size(module: nn.Module, x: Tensor, kind: type[Pass] = PosteriorPass) -> NoiseSize:
    """How much noise one pass of that kind over a batch like ``x`` consumes.

    >>> import sparsebnn
    >>> noise_size(sparsebnn.mlp([4, 8, 3]), torch.zeros(5, 4))
    NoiseSize(normal=55, logistic=0)
    """
    meter = Meter()
    with torch.no_grad(), kind(meter):
        module(x)
    return meter.size
