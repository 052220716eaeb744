"""One forward pass through a network: which draw of the weights, from what noise, at what cost.

A layer asks the active pass for its weights, so a third-party module's own ``forward`` needs no
change: whoever calls it opens the pass. Passes nest, are private to their thread, and open and close
inside the function that ``torch.func.vmap`` maps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from sparsebnn.checks import invalid
from sparsebnn.posteriors import Family, Gaussian, Moments
from sparsebnn.random.noise import Noise, NoiseBuffer, NoiseCounter, NoiseSize, RandomNoise

_local = threading.local()
_FEW = 8  # rows, for which a product costs less than changing the weights


class BayesianModule(Protocol):
    """What a pass needs of a layer: its distributions, and how it samples."""

    weights: Family
    biases: Gaussian | None
    sampling: str


def active_pass() -> Pass | None:
    """The innermost open pass of this thread, if any."""
    return getattr(_local, "active", None)


class Realized(NamedTuple):
    """A tensor of weights for the length of a pass: its moments or its drawn values, and its KL."""

    moments: Moments | None
    weight: Tensor | None
    kl: Tensor | None = None


class CalledAgain(RuntimeError):
    """A layer was called twice in one pass although its weights had not been drawn."""

    def __init__(self, family: Family) -> None:
        super().__init__(
            "A Bayesian layer is called more than once in one forward pass, so its weights must be drawn, "
            "and this pass did not know it in time. Call forward_with_kl(module, x), train or predict, "
            "which find out by themselves, or create the layer with sampling='weights'."
        )
        self.family = family


class Pass:
    """Base of all passes: one draw of every distribution that its layers share.

    A family that several calls use (a layer called twice, or ``b.weights = a.weights``) has one draw and one
    KL. Its weights must then be drawn whole: noise per output would give every call other weights. Whether
    that is so is known after the network has run once (:func:`noise_size`), and kept as ``family.reused``.

    ``noise`` is for what all rows share, ``row_noise`` (by default the same) for the outputs of single rows.
    """

    def __init__(self, noise: Noise | None = None, row_noise: Noise | None = None) -> None:
        self.noise: Noise = RandomNoise() if noise is None else noise
        self.row_noise: Noise = self.noise if row_noise is None else row_noise
        self.layers: list[BayesianModule] = []
        self.activations = 0  # numbers that the layers have put out
        self._realized: list[tuple[Family, Realized]] = []
        self._outer: Pass | None = None
        # While a network is measured, reuse is recorded instead of refused.
        self.reused: list[Family] | None = None

    def __enter__(self) -> Pass:
        self._outer = active_pass()
        _local.active = self
        return self

    def __exit__(self, *error: Any) -> None:
        _local.active = self._outer

    def realize(self, layer: BayesianModule, batch: int) -> tuple[Realized, Realized | None]:
        """The weights and biases of ``layer`` for this pass; biases are drawn if the weights are."""
        weights, biases = self.once(layer.weights, lambda: self.of_weights(layer, batch)), layer.biases
        if biases is None:
            return weights, None
        drawn = weights.weight is not None or biases.reused
        return weights, self.once(biases, lambda: self.of_biases(biases, drawn))

    def of_weights(self, layer: BayesianModule, batch: int) -> Realized:
        raise NotImplementedError

    def of_biases(self, biases: Gaussian, drawn: bool) -> Realized:
        raise NotImplementedError

    def once(self, family: Family, make: Callable[[], Realized]) -> Realized:
        """What ``make`` gives for a family, made at its first call in this pass and kept."""
        for met, realized in self._realized:
            if met is family:
                if realized.moments is not None:
                    self._called_again(family)
                return realized
        realized = make()
        self._realized.append((family, realized))
        return realized

    def _called_again(self, family: Family) -> None:
        if self.reused is None:
            raise CalledAgain(family)
        self.reused.append(family)

    def weights_of(self, layer: BayesianModule, batch: int) -> tuple[Realized, Realized | None]:
        """The weights and biases of ``layer`` in this pass: the one thing a layer asks for."""
        if all(met is not layer for met in self.layers):
            self.layers.append(layer)
        return self.realize(layer, batch)

    def drawn(self, layer: BayesianModule) -> tuple[Tensor, Tensor | None] | None:
        """The weights and biases that this pass drew for a layer; None if it was not called."""
        if all(met is not layer for met in self.layers):
            return None
        values = {id(family): realized.weight for family, realized in self._realized}
        weight = values[id(layer.weights)]
        if weight is None:
            raise RuntimeError(f"A {type(self).__name__} draws no weights. Open a WeightPass instead.")
        return weight, None if layer.biases is None else values[id(layer.biases)]

    def kl_by_layer(self) -> list[tuple[BayesianModule, Tensor]]:
        """Each layer called, with its KL in nats; a family that two layers share counts for the first."""
        kls = {id(family): realized.kl for family, realized in self._realized}
        found = []
        for layer in self.layers:
            own = (layer.weights,) if layer.biases is None else (layer.weights, layer.biases)
            terms = [kls.pop(id(family), None) for family in own]
            present = [term for term in terms if term is not None]
            if present:
                found.append((layer, present[0] if len(present) == 1 else present[0] + present[1]))
            elif found:  # all of it is shared with an earlier layer
                found.append((layer, torch.zeros_like(found[0][1])))
        return found

    def kl(self) -> Tensor:
        """The sum of the KL of all layers called, each distribution once."""
        terms = [kl for _, kl in self.kl_by_layer()]
        if self.layers and not terms:
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


def must_draw(layer: BayesianModule) -> bool:
    """Whether a layer that could sample its outputs must draw its weights instead."""
    return layer.sampling == "weights" or layer.weights.reused


class PosteriorPass(Pass):
    """A training pass: every family draws as it trains, and its KL is kept."""

    def __enter__(self) -> PosteriorPass:
        super().__enter__()
        return self

    def of_weights(self, layer: BayesianModule, batch: int) -> Realized:
        family = layer.weights
        if must_draw(layer):
            return Realized(*family.sample_weights(self.noise))
        return Realized(*family.sample(self.noise, batch))

    def of_biases(self, biases: Gaussian, drawn: bool) -> Realized:
        return Realized(*(biases.sample_weights(self.noise) if drawn else biases.sample(self.noise)))


class LocalPass(Pass):
    """Full model averaging through the local reparametrization: noise per example and unit.

    Weights that several calls share are drawn whole. ``known`` are moments that are the same in every pass.
    """

    def __init__(
        self,
        noise: Noise | None = None,
        row_noise: Noise | None = None,
        known: Mapping[Family, Moments] | None = None,
    ) -> None:
        super().__init__(noise, row_noise)
        self.known = known or {}

    def of_weights(self, layer: BayesianModule, batch: int) -> Realized:
        family = layer.weights
        if must_draw(layer):
            return Realized(None, family.draw(self.noise))
        if family in self.known:
            return Realized(self.known[family], None)
        moments = family.local(self.row_noise if family.per_example else self.noise, batch)
        if moments.scale is not None and len(moments.scale) == 1 < moments.mean.dim() < 3 and batch > _FEW:
            moments = moments.with_scale(1)  # of a dense layer: saves a product of all rows
        return Realized(moments, None)

    def of_biases(self, biases: Gaussian, drawn: bool) -> Realized:
        return Realized(None, biases.draw(self.noise)) if drawn else Realized(biases.moments(), None)


class WeightPass(Pass):
    """Full model averaging with whole weight tensors drawn, the same for all examples."""

    def draw(self, family: Family) -> Tensor:
        return family.draw(self.noise)

    def realize(self, layer: BayesianModule, batch: int) -> tuple[Realized, Realized | None]:
        biases = layer.biases
        bias = None
        if biases is not None:
            bias = self.once(biases, lambda: Realized(None, biases.draw(self.noise)))
        return self.once(layer.weights, lambda: Realized(None, self.draw(layer.weights))), bias


class MedianPass(WeightPass):
    """The median probability model: weights with inclusion above one half, drawn; the others 0."""

    def draw(self, family: Family) -> Tensor:
        return family.median_draw(self.noise)


class ClosedPass(Pass):
    """While gradients are computed: what is drawn now would not be what the loss was made with."""

    def weights_of(self, layer: BayesianModule, batch: int) -> tuple[Realized, Realized | None]:
        expected = "one that calls its layers only in its forward"
        advice = "Leave out activation checkpointing (torch.utils.checkpoint)."
        got = "a call of a Bayesian layer while gradients are computed"
        raise invalid("network", "train", expected, got, advice)


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


def call(module: nn.Module, x: Any) -> Any:
    """A module's output: a tuple holds several inputs, a dict inputs by name."""
    if isinstance(x, dict):
        return module(**x)
    return module(*x) if isinstance(x, tuple) else module(x)


def run_pass(module: nn.Module, x: Any, noise: Noise | None = None) -> tuple[Any, PosteriorPass]:
    """A module's output (see :func:`call`) and the training pass that it was computed in.

    The first call with a module that calls one of its layers more than once runs its forward again.
    """
    start = noise.position if isinstance(noise, NoiseBuffer) else None
    while True:
        try:
            with collect_kl(noise) as opened:
                return call(module, x), opened
        except CalledAgain as error:
            error.family.reused = True
            if isinstance(noise, NoiseBuffer) and start is not None:
                noise.position = start


def forward_with_kl(
    module: nn.Module, *args: Any, noise: Noise | None = None, **kwargs: Any
) -> tuple[Any, Tensor]:
    """``(module(*args, **kwargs), KL in nats)`` from one draw of the weights.

    >>> import sparsebnn
    >>> y, kl = forward_with_kl(sparsebnn.mlp([4, 3]), torch.randn(5, 4))
    >>> y.shape, kl.shape
    (torch.Size([5, 3]), torch.Size([]))
    """
    y, opened = run_pass(_Called(module, kwargs) if kwargs else module, args, noise)
    return y, opened.kl()


class _Called(nn.Module):
    """A module with its keyword arguments."""

    def __init__(self, module: nn.Module, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.module, self.kwargs = module, kwargs

    def forward(self, *args: Any) -> Any:
        return self.module(*args, **self.kwargs)


def noise_size(module: nn.Module, x: Any, kind: type[Pass] = PosteriorPass) -> NoiseSize:
    """How much noise one pass of that kind over a batch like ``x`` consumes.

    It also finds the families that several calls share, whose weights must be drawn.

    >>> import sparsebnn
    >>> noise_size(sparsebnn.mlp([4, 8, 3]), torch.zeros(5, 4))
    NoiseSize(normal=55, logistic=0)
    """
    meter = NoiseCounter()
    measure(module, x, kind, meter)
    return meter.size


@torch.no_grad()
def measure(
    module: nn.Module, x: Any, kind: type[Pass], meter: NoiseCounter, row_meter: NoiseCounter | None = None
) -> int:
    """Run a network once with noise that counts; a second time if that shows families that are shared.

    Returns how many numbers the Bayesian layers put out.
    """
    while True:
        for each in (meter, row_meter):
            if each is not None:
                each.reset()
        with kind(meter, row_meter) as opened:
            opened.reused = []
            call(module, x)
        if not opened.reused:
            return opened.activations
        for family in opened.reused:
            family.reused = True
