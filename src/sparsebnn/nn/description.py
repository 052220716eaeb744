"""What a network says of itself: how dense it is, its priors, what it is made of."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sparsebnn.checks import invalid
from sparsebnn.nn.networks import NO_POSTERIOR, bayesian_layers
from sparsebnn.posteriors.learned_priors import EmpiricalPrior, HierarchicalPrior


class Density(dict[str, float]):
    """Share of weights with inclusion probability above one half, by layer; ``overall`` for all.

    ``count`` of all ``total`` weights are. Biases are not counted.
    """

    def __init__(self, kept: dict[str, tuple[int, int]]) -> None:
        super().__init__({name: included / total for name, (included, total) in kept.items()})
        self.count, self.total = (sum(counts) for counts in zip(*kept.values()))
        self.overall: float = self.count / self.total


@torch.no_grad()
def density(network: nn.Module, *, active: bool = False, shape: tuple[int, ...] | None = None) -> Density:
    """How much of the network is left in its median probability model.

    With ``active`` only weights on a path from an input to an output count; ``shape`` is then that of one
    input if it is an image. Every process of a sharded network (``fully_shard``) must call it, and gets the
    whole network's density.

    >>> import sparsebnn
    >>> density(sparsebnn.mlp([4, 8, 3], family="gaussian")).overall
    1.0
    """
    kept: dict[str, tuple[int, int]] = {}
    on_path: dict[str, Tensor] | None = None
    if active:
        from sparsebnn.nn.graph import Graph

        graph = Graph(network, shape, "density")
        on_path = graph.active(graph.median())
    seen: set[nn.Module] = set()
    for name, layer in bayesian_layers(network):
        if layer.weights in seen:
            continue  # weights that two layers share are counted once
        seen.add(layer.weights)
        inclusion: Tensor = layer.weights.inclusion_prob()
        included = (inclusion > 0.5).sum()
        if on_path is not None:  # a layer that the forward does not call is on no path
            included = on_path.get(name or "0", torch.zeros(1)).sum()
        if hasattr(included, "full_tensor"):  # a DTensor: each process has counted its own part
            included = included.full_tensor()
        kept[name or type(layer).__name__] = (int(included), inclusion.numel())
    if not kept:
        advice = "Build it with mlp, lenet or convert."
        raise invalid("network", "density", "a module with Bayesian layers", type(network).__name__, advice)
    return Density(kept)


class PriorValues(NamedTuple):
    """A layer's prior as it stands: its slab's std and inclusion probability (means, where they vary)."""

    layer: str
    slab_std: float
    inclusion_prob: float
    learned: bool

    def __str__(self) -> str:
        how = "learned" if self.learned else "given"
        values = f"slab std {self.slab_std:.3g}, inclusion {self.inclusion_prob:.3g}"
        return f"layer {self.layer}: {values} ({how})"


@torch.no_grad()
def prior_values(network: nn.Module) -> list[PriorValues]:
    """What the prior of every layer with inclusions is after training; a prior that learns has moved.

    A controller of the density moves the inclusion probability too.

    >>> from sparsebnn.posteriors.learned_priors import EmpiricalPrior
    >>> import sparsebnn
    >>> prior_values(sparsebnn.mlp([4, 8, 3], prior=EmpiricalPrior(inclusion_prob=0.25)))[1].inclusion_prob
    0.25
    """
    found = []
    for name, layer in bayesian_layers(network):
        values = getattr(layer.weights, "prior_values", None)
        family = getattr(layer.weights, "conditional", layer.weights)
        if values is None or not hasattr(family, "inclusion_logit"):
            continue
        std, inclusion = values()
        learned = isinstance(family.prior, EmpiricalPrior | HierarchicalPrior)
        place = name or type(layer).__name__
        found.append(PriorValues(place, float(std.mean()), float(inclusion.mean()), learned))
    return found


_PLAIN = (bool, int, float, str, torch.dtype, type(None))


def described(network: nn.Module) -> str:
    """What a network is made of, parameters' values aside: names, classes, options that are plain values.

    >>> described(nn.Sequential(nn.Tanh())) == described(nn.Sequential(nn.ReLU()))
    False
    """
    lines = []
    for name, module in network.named_modules():
        aside = ("training", NO_POSTERIOR)
        own = {key: value for key, value in vars(module).items() if key[0] != "_" and key not in aside}
        plain = {key: value for key, value in own.items() if _is_plain(value)}
        named = {key: value.__qualname__ for key, value in own.items() if hasattr(value, "__qualname__")}
        lines.append(f"{name} {type(module).__qualname__} {sorted((plain | named).items())}")
    return "\n".join(lines)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)
