"""The median probability model as an ordinary, smaller network: sparsity as smaller matrices.

A unit that nothing reaches is a constant and goes into the biases of the next layer; a unit that reaches
nothing is left out. What remains computes the same.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from sparsebnn.checks import invalid
from sparsebnn.nn.convolutions import Conv1d, Conv2d
from sparsebnn.nn.layers import BayesianLayer, Linear
from sparsebnn.nn.networks import chain
from sparsebnn.posteriors.flow import FlowFamily

_ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Identity)
_PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d)
_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.MaxPool1d, nn.MaxPool2d)


class Take(nn.Module):
    """Some of the inputs: channels ``x[:, index]``, or with ``dim=-1`` features ``x[..., index]``."""

    index: Tensor

    def __init__(self, index: Tensor, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("index", index)

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(self.dim, self.index)

    def extra_repr(self) -> str:
        return f"{len(self.index)} inputs"


@dataclass(frozen=True)
class Compacted:
    """A network of ordinary layers, and what became of the sizes.

    ``units`` is, for every layer, how many units (or filters) there were and how many are left;
    ``weights`` how many numbers the weight matrices held and hold (zeros among them included),
    ``nonzero`` how many of them are not zero; ``inputs`` the inputs that are still read.
    """

    network: nn.Sequential
    units: tuple[tuple[int, int], ...]
    weights: tuple[int, int]
    nonzero: int
    inputs: tuple[int, ...]


@torch.no_grad()
def median_weights(layer: BayesianLayer) -> tuple[Tensor, Tensor]:
    """Weights and biases of the median probability model at their posterior means.

    A flow's weights are taken at the z that its flow makes of the mean of z₀.
    """
    family = layer.weights
    mean = family.posterior_mean()
    if isinstance(family, FlowFamily):
        mean = mean * family.scale(family.q_flow(family.z0_mean)[0])
    bias = torch.zeros_like(mean.flatten(1)[:, 0]) if layer.biases is None else layer.biases.mean
    return mean * (family.inclusion_prob() > 0.5), bias.detach().clone()


def _weights(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Weights and biases of the median model, or of an ordinary layer."""
    if isinstance(layer, BayesianLayer):
        return median_weights(layer)
    weight, bias = cast(Tensor, layer.weight).detach(), cast("Tensor | None", layer.bias)
    return weight, weight.new_zeros(len(weight)) if bias is None else bias.detach().clone()


def _tuple(value: Any) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)


@dataclass
class _Stage:
    """A layer and what follows it up to the next one."""

    layer: nn.Module
    weight: Tensor
    bias: Tensor
    after: list[nn.Module] = field(default_factory=list)

    @property
    def padded(self) -> bool:
        """Whether zeros come in at the border, so that a constant channel is not constant there."""
        if isinstance(self.layer, Conv1d | Conv2d):
            return any(self.layer._pads())
        padding = getattr(self.layer, "padding", 0)
        return padding != "valid" and (isinstance(padding, str) or any(_tuple(padding)))

    def by_input(self, entries: Tensor) -> Tensor:
        """Something per unit before this layer, for each of the layer's inputs (which may be pixels)."""
        return entries.repeat_interleave(self.weight.shape[1] // len(entries))

    def bend(self, values: Tensor) -> Tensor:
        """What the following activations make of constant units; pools leave a constant as it is."""
        for module in self.after:
            if isinstance(module, _ELEMENTWISE):
                values = module(values)
        return values


def _stages(network: nn.Module) -> tuple[list[nn.Module], list[_Stage]]:
    """What comes before the first Bayesian layer, and the stages."""
    if not isinstance(network, nn.Sequential):
        advice = "Networks of mlp and lenet are."
        raise invalid("network", "compact", "a Sequential", type(network).__name__, advice)
    first: list[nn.Module] = []
    stages: list[_Stage] = []
    for module in chain(network):
        if isinstance(module, (BayesianLayer, *_PLAIN)):
            if getattr(module, "groups", 1) != 1:
                raise invalid("network", "compact", "free of grouped convolutions", str(module))
            stages.append(_Stage(module, *_weights(module)))
            continue
        if not isinstance(module, _ELEMENTWISE + _POOLS + (nn.Flatten,)):
            expected = "made of Bayesian layers, activations, pools and Flatten"
            raise invalid("network", "compact", expected, type(module).__name__)
        averages = isinstance(module, nn.AvgPool1d | nn.AvgPool2d)
        if averages and module.count_include_pad and any(_tuple(module.padding)):
            # A constant channel is not constant where zeros are averaged in.
            expected = "free of average pools that count their padding"
            raise invalid("network", "compact", expected, str(module), "Set count_include_pad=False.")
        if getattr(module, "divisor_override", None):
            expected = "without average pools that set divisor_override"
            raise invalid("network", "compact", expected, str(module))
        (stages[-1].after if stages else first).append(module)
    for before, stage in itertools.pairwise(stages):
        if isinstance(before.layer, Linear | nn.Linear) and stage.weight.shape[1] != len(before.bias):
            expected = "one whose dense layers read what the ones before them put out"
            got = f"{len(before.bias)} outputs before {stage.weight.shape[1]} inputs"
            advice = "Dense layers on inputs of several axes cannot be compacted past a Flatten."
            raise invalid("network", "compact", expected, got, advice)
    if not stages:
        advice = "Build it with mlp, lenet or convert."
        raise invalid("network", "compact", "a module with Bayesian layers", "none", advice)
    return first, stages


def _any_tap(weight: Tensor) -> Tensor:
    """Which units are connected to which inputs, ``(outputs, inputs)``."""
    return (weight.reshape(*weight.shape[:2], -1) != 0).any(-1)


def _fold_constants(stages: Sequence[_Stage]) -> tuple[list[Tensor], list[Tensor]]:
    """For every stage: which inputs it must still read, and its biases with the others' part in them."""
    read, biases = [], []
    weight = stages[0].weight
    varies = torch.ones(weight.shape[1], dtype=torch.bool, device=weight.device)
    values = torch.zeros(weight.shape[1], dtype=weight.dtype, device=weight.device)
    for stage in stages:
        live, constant = stage.by_input(varies), stage.by_input(values)
        if stage.padded:
            live = live | (constant != 0)
        sums = stage.weight.reshape(*stage.weight.shape[:2], -1).sum(-1)
        bias = stage.bias + sums @ torch.where(live, torch.zeros_like(constant), constant)
        varies = (_any_tap(stage.weight) & live).any(1)
        values = torch.where(varies, torch.zeros_like(bias), stage.bend(bias))
        read.append(live)
        biases.append(bias)
    return read, biases


def _kept(stages: Sequence[_Stage], read: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """For every stage the units that are read and lead to an output; and the inputs that do."""
    kept = [torch.ones_like(stages[-1].bias, dtype=torch.bool)]
    for place in reversed(range(len(stages))):
        used = _any_tap(stages[place].weight[kept[0]]).any(0) & read[place]
        units = len(stages[place - 1].bias) if place else len(used)
        stay = used.reshape(units, -1).any(1)
        if not bool(stay.any()):
            stay[0] = True  # a layer of no units is no layer
        kept.insert(0, stay)
    return kept[1:], kept[0]


@torch.no_grad()
def plain_layer(layer: nn.Module, weight: Tensor, bias: Tensor) -> nn.Module:
    """An ordinary layer with these weights and the geometry of ``layer``."""
    outputs, inputs = weight.shape[:2]
    made: Any
    if isinstance(layer, Linear | nn.Linear):
        made = nn.Linear(inputs, outputs)
    else:
        assert isinstance(layer, Conv1d | Conv2d | nn.Conv1d | nn.Conv2d)
        kind: Any = nn.Conv2d if weight.dim() == 4 else nn.Conv1d
        geometry = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups)
        made = kind(inputs * layer.groups, outputs, *geometry, padding_mode=layer.padding_mode)
    made = made.to(weight)
    made.weight.copy_(weight)
    made.bias.copy_(bias)
    return cast(nn.Module, made)


@torch.no_grad()
def compact(network: nn.Module) -> Compacted:
    """The median probability model at its posterior means, without units that are not connected.

    Ordinary layers are compacted by the zeros among their weights.

    >>> import sparsebnn
    >>> from sparsebnn.init import Initial, Normal
    >>> sparse = sparsebnn.mlp([6, 20, 3], initial=Initial(inclusion_logit=Normal(-2, 1)))
    >>> small = compact(sparse)
    >>> small.units[0][1] < 20, small.network(torch.randn(4, 6)).shape
    (True, torch.Size([4, 3]))
    """
    first, stages = _stages(network)
    read, biases = _fold_constants(stages)
    kept, inputs = _kept(stages, read)
    modules: list[nn.Module] = [copy.deepcopy(module) for module in first]
    if first:
        inputs = torch.ones_like(inputs)
    elif not bool(inputs.all()):
        dim = -1 if isinstance(stages[0].layer, Linear | nn.Linear) else 1
        modules.append(Take(inputs.nonzero().squeeze(1), dim))
    before, nonzero, numbers = inputs, 0, 0
    for stage, rows, live, bias in zip(stages, kept, read, biases):
        # What went into a bias must not speak twice.
        weight = stage.weight * live.reshape(1, -1, *[1] * (stage.weight.dim() - 2))
        weight = weight[rows][:, stage.by_input(before)]
        modules.append(plain_layer(stage.layer, weight, bias[rows]))
        modules.extend(copy.deepcopy(module) for module in stage.after)
        nonzero, numbers = nonzero + int((weight != 0).sum()), numbers + weight.numel()
        before = rows
    total = sum(stage.weight.numel() for stage in stages)
    units = tuple((len(rows), int(rows.sum())) for rows in kept)
    taken = tuple(inputs.nonzero().squeeze(1).tolist())
    return Compacted(nn.Sequential(*modules).eval(), units, (total, numbers), nonzero, taken)
