"""The median probability model as an ordinary, smaller network: sparsity as smaller matrices.

A unit that nothing reaches is a constant and goes into the biases of the next layer; a unit that reaches
nothing is left out. What remains computes the same.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from sparsebnn.checks import invalid
from sparsebnn.nn.convolutions import Conv1d, Conv2d
from sparsebnn.nn.layers import BayesianLayer, Linear
from sparsebnn.nn.networks import InputSkip, chain, check_no_hooks
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
    """A layer and what follows it up to the next one.

    ``reads`` are the stages whose units it sees (-1 for the inputs), each with how many of its columns those
    are; a unit of a convolution has one column per pixel after a Flatten.
    """

    layer: nn.Module
    weight: Tensor
    bias: Tensor
    reads: tuple[tuple[int, int], ...]
    after: list[nn.Module] = field(default_factory=list)

    @property
    def padded(self) -> bool:
        """Whether zeros come in at the border, so that a constant channel is not constant there."""
        if isinstance(self.layer, Conv1d | Conv2d):
            return any(self.layer._pads())
        padding = getattr(self.layer, "padding", 0)
        return padding != "valid" and (isinstance(padding, str) or any(_tuple(padding)))

    def by_input(self, entries: Sequence[Tensor]) -> Tensor:
        """Something per unit of every stage (the inputs last), for each of the layer's inputs."""
        return torch.cat([entries[p].repeat_interleave(width // len(entries[p])) for p, width in self.reads])

    def by_unit(self, used: Tensor, place: int, units: int) -> Tensor:
        """Which of a stage's units are among the used inputs."""
        found = used.new_zeros(units)
        for (read, _), part in zip(self.reads, used.split([width for _, width in self.reads])):
            if read == place:
                found |= part.reshape(units, -1).any(1)
        return found

    def bend(self, values: Tensor) -> Tensor:
        """What the following activations make of constant units; pools leave a constant as it is."""
        for module in self.after:
            if isinstance(module, _ELEMENTWISE):
                values = module(values)
        return values


def _stages(network: nn.Module) -> tuple[list[nn.Module], list[_Stage]]:
    """What comes before the first Bayesian layer, and the stages."""
    if not isinstance(network, nn.Sequential | InputSkip):
        advice = "Networks of mlp and lenet are."
        raise invalid("network", "compact", "a Sequential or InputSkip", type(network).__name__, advice)
    check_no_hooks(network, "compact")
    first: list[nn.Module] = []
    stages: list[_Stage] = []
    for module in chain(network):
        if isinstance(module, InputSkip):
            x = (len(stages) - 1, module.in_features)
            for layer in module.layers:
                _append(stages, layer, skip=x)
                stages[-1].after.append(module.activation)
            stages[-1].after.pop()
            continue
        if isinstance(module, (BayesianLayer, *_PLAIN)):
            _append(stages, module)
            continue
        _check_between(module)
        (stages[-1].after if stages else first).append(module)
    if not stages:
        advice = "Build it with mlp, lenet or convert."
        raise invalid("network", "compact", "a module with Bayesian layers", "none", advice)
    return first, stages


def _append(stages: list[_Stage], layer: nn.Module, skip: tuple[int, int] | None = None) -> None:
    """One more stage; ``skip`` are the stage and the columns that it sees besides the one before it."""
    if getattr(layer, "groups", 1) != 1:
        raise invalid("network", "compact", "free of grouped convolutions", str(layer))
    weight, bias = _weights(layer)
    place, width = len(stages) - 1, weight.shape[1]
    skips = skip is not None and skip[0] != place
    reads = ((place, width - skip[1]), skip) if skip is not None and skips else ((place, width),)
    dense = bool(stages) and isinstance(stages[-1].layer, Linear | nn.Linear)
    if dense and reads[0][1] != len(stages[-1].bias):
        expected = "one whose dense layers read the outputs of the layers before them"
        got = f"{len(stages[-1].bias)} outputs before {width} inputs"
        advice = "Dense layers on inputs of several axes cannot be compacted past a Flatten."
        raise invalid("network", "compact", expected, got, advice)
    stages.append(_Stage(layer, weight, bias, reads))


def _check_between(module: nn.Module) -> None:
    """Refuse what is neither a layer nor leaves a constant unit constant."""
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


def _any_tap(weight: Tensor) -> Tensor:
    """Which units are connected to which inputs, ``(outputs, inputs)``."""
    return (weight.unsqueeze(-1) != 0).flatten(2).any(-1)


def _fold_constants(stages: Sequence[_Stage]) -> tuple[list[Tensor], list[Tensor]]:
    """For every stage: which inputs it must still read, and its biases with the others' part in them."""
    read, biases = [], []
    weight = stages[0].weight
    # Of the stages so far, and at the end of the inputs.
    varies = [torch.ones(weight.shape[1], dtype=torch.bool, device=weight.device)]
    values = [torch.zeros(weight.shape[1], dtype=weight.dtype, device=weight.device)]
    for stage in stages:
        live, constant = stage.by_input(varies), stage.by_input(values)
        if stage.padded:
            live = live | (constant != 0)
        sums = stage.weight.reshape(*stage.weight.shape[:2], -1).sum(-1)
        bias = stage.bias + sums @ torch.where(live, torch.zeros_like(constant), constant)
        moves = (_any_tap(stage.weight) & live).any(1)
        varies.insert(-1, moves)
        values.insert(-1, torch.where(moves, torch.zeros_like(bias), stage.bend(bias)))
        read.append(live)
        biases.append(bias)
    return read, biases


def _needed(stages: Sequence[_Stage], read: Sequence[Tensor]) -> list[Tensor]:
    """For every stage the units that are read and lead to an output; last, the inputs that do."""
    last = len(stages) - 1
    needed = [torch.ones_like(stages[-1].bias, dtype=torch.bool)]
    used: list[Tensor] = []
    for place in range(last, -1, -1):
        used.insert(0, _any_tap(stages[place].weight[needed[0]]).any(0) & read[place])
        units = len(stages[place - 1].bias) if place else stages[0].weight.shape[1]
        readers = zip(stages[place:], used)
        needed.insert(0, torch.stack([s.by_unit(u, place - 1, units) for s, u in readers]).any(0))
    return [*needed[1:], needed[0]]


def _at_least_one(needed: Tensor) -> Tensor:
    """A layer of no units is no layer: where none is needed the first stays."""
    kept = needed.clone()
    kept[0] |= ~needed.any()
    return kept


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
    needed = _needed(stages, read)
    if first:
        needed[-1] = torch.ones_like(needed[-1])
    kept = [_at_least_one(units) for units in needed]
    layers = []
    for stage, live, bias, rows, use in zip(stages, read, biases, kept, needed):
        # What went into a bias must not speak twice, and a unit that only fills a layer not at all.
        columns = (1, -1, *[1] * (stage.weight.dim() - 2))
        weight = stage.weight * live.reshape(columns) * use.reshape(-1, 1, *columns[2:])
        layers.append(plain_layer(stage.layer, weight[rows][:, stage.by_input(kept)], bias[rows]))
    weights: list[Tensor] = [layer.weight for layer in layers]  # type: ignore[misc]
    units = tuple((len(rows), int(rows.sum())) for rows in kept[:-1])
    total = sum(stage.weight.numel() for stage in stages)
    counts = (total, sum(weight.numel() for weight in weights))
    nonzero = sum(int((weight != 0).sum()) for weight in weights)
    inputs = tuple(kept[-1].nonzero().squeeze(1).tolist())
    modules = [
        *map(copy.deepcopy, first),
        *_selection(stages[0], kept[-1]),
        *_joined(network, stages, layers),
    ]
    return Compacted(nn.Sequential(*modules).eval(), units, counts, nonzero, inputs)


def _selection(stage: _Stage, inputs: Tensor) -> list[nn.Module]:
    """What leaves out inputs that nothing reads."""
    if bool(inputs.all()):
        return []
    return [Take(inputs.nonzero().squeeze(1), -1 if isinstance(stage.layer, Linear | nn.Linear) else 1)]


def _joined(network: nn.Module, stages: Sequence[_Stage], layers: Sequence[nn.Module]) -> list[nn.Module]:
    """The new layers in the modules of the old ones; what comes before the first is left out."""
    modules: list[nn.Module] = []
    waiting = list(zip(stages, layers))
    for module in chain(network):
        if isinstance(module, InputSkip):
            taken = [waiting.pop(0)[1] for _ in module.layers]
            modules.append(InputSkip(taken, copy.deepcopy(module.activation)))
        elif waiting and module is waiting[0][0].layer:
            modules.append(waiting.pop(0)[1])
        elif modules:
            modules.append(copy.deepcopy(module))
    return modules
