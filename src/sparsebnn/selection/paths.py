r"""Which inputs matter in a network of uncertain structure: chains of included weights to an output.

An input counts when at least one chain of included weights leads from it to an output. Under the posterior
the inclusions of the weights are independent, each with its own probability :math:`\tilde\alpha`. (If the
weights of an input or output share an inclusion, the layer counts as two: one of gates, and one whose weights
are all included.) Let A be the set of units of a layer that reach an output. Given the set of the layer after
it, the units of a layer reach an output independently of each other,

.. math::
    P(j \text{ reaches} \mid A) = 1 - \prod_{k \in A} (1 - \tilde\alpha_{kj})

so with at most one hidden layer everything is a product, and with more the sets of the hidden layers
after the first are summed over: exactly when they are few, otherwise over drawn sets, each draw giving
the exact probability for the first two layers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import check_count, check_seed, invalid
from sparsebnn.nn.convolutions import Conv1d, Conv2d
from sparsebnn.nn.layers import BayesianLayer, Linear
from sparsebnn.nn.networks import chain

_EXACT_UNITS = 10  # 2^10 sets per hidden layer are summed over; more are drawn
_ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid)
_TRANSPARENT = (nn.Identity, nn.Dropout, nn.Dropout2d, *_ACTIVATIONS)
_MAXIMA = (nn.MaxPool1d, nn.MaxPool2d)
# How many axes of an input are places.
_SPATIAL: tuple[tuple[tuple[type[nn.Module], ...], int], ...] = (
    ((Conv1d, nn.Conv1d, nn.MaxPool1d, nn.AvgPool1d), 1),
    ((Conv2d, nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d), 2),
)
_OWNER = "input_inclusion"


class Reach(NamedTuple):
    """Probability of each input reaching an output, and its Monte Carlo standard error (0 if exact)."""

    prob: Tensor
    error: Tensor


def _modules(network: nn.Module) -> list[nn.Module]:
    """The network as a chain of modules that structure passes through."""
    known = (BayesianLayer, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Flatten, nn.AvgPool1d, nn.AvgPool2d)
    modules = chain(network)
    for module in modules:
        if not isinstance(module, (*known, *_MAXIMA, *_TRANSPARENT)):
            expected = "a chain (nn.Sequential) of linear and convolutional layers, activations and pooling"
            advice = "Paths through other modules are not known."
            raise invalid("network", _OWNER, expected, type(module).__name__, advice)
    return [module for module in modules if not isinstance(module, _TRANSPARENT)]


def _inclusion(module: nn.Module) -> Tensor:
    """The inclusion probability of each weight, on the CPU; weights of an ordinary layer are all included.

    Where weights share an inclusion it stands there once, in a shape that broadcasts to the weights.
    """
    if isinstance(module, BayesianLayer):
        return module.weights.group_prob().detach().cpu().double()
    weight = module.weight
    assert isinstance(weight, Tensor)
    return torch.ones(weight.shape, dtype=torch.float64)


def _independent(module: nn.Module) -> list[Tensor]:
    """A dense layer as matrices whose entries are independent: its own, or gates and included weights.

    >>> import sparsebnn
    >>> layer = sparsebnn.Linear(3, 2, family_options={"group_by": "input"})
    >>> [tuple(matrix.shape) for matrix in _independent(layer)]
    [(3, 3), (2, 3)]
    """
    prob = _inclusion(module)
    if not isinstance(module, BayesianLayer) or prob.shape == tuple(module.weights.shape):
        return [prob]
    gates, there = torch.diag(prob.flatten()), torch.ones(module.weights.shape, dtype=torch.float64)
    return [gates, there] if prob.shape[1] == module.weights.shape[1] else [there, gates]


def _check(network: nn.Module) -> list[nn.Module]:
    modules = _modules(network)
    if not any(isinstance(module, BayesianLayer) for module in modules):
        advice = "Build it with mlp, lenet or convert."
        raise invalid("network", _OWNER, "a module with Bayesian layers", type(network).__name__, advice)
    families = [module.weights for module in modules if isinstance(module, BayesianLayer)]
    if len(set(families)) < len(families):
        expected = "a chain whose layers have independent weights"
        advice = "The inclusions of weights that are used twice are not independent."
        raise invalid("network", _OWNER, expected, "one that uses the same weights twice", advice)
    return modules


@torch.no_grad()
def path_probability(
    network: nn.Module, *, n_draws: int = 1000, seed: int = 0, shape: tuple[int, ...] | None = None
) -> Reach:
    """Probability that an input reaches an output, for every input.

    ``shape`` is that of one input where the layers do not tell it. The network may be on any device; the
    result is on the CPU. Exact for dense networks with one hidden layer of any width, or with hidden layers
    after the first of at most 10 units; else, and where weights share inclusions, ``n_draws`` structures are
    drawn unless layers are that small.

    >>> import sparsebnn
    >>> network = sparsebnn.mlp([3, 1], family="gaussian")
    >>> path_probability(network).prob.tolist()
    [1.0, 1.0, 1.0]
    """
    check_count(n_draws, "n_draws", _OWNER)
    seed = check_seed(seed, "seed", _OWNER)
    modules = _check(network)
    layers = _after_flatten(modules)
    if layers and all(isinstance(module, Linear | nn.Linear) for module in layers):
        sizes = None if shape is None else _checked(shape, modules, _OWNER)
        matrices = [matrix for module in layers for matrix in _independent(module)]
        found = _dense(matrices, n_draws, seed)
        return found if sizes is None else Reach(*(part.reshape(sizes) for part in found))
    shape = _checked(shape, modules, _OWNER)
    generator = torch.Generator().manual_seed(seed)
    probs = [_inclusion(m) if _weighted(m) else torch.empty(0) for m in modules]
    counts = torch.zeros(shape, dtype=torch.float64)
    for _ in range(n_draws):
        drawn = [(torch.rand(p.shape, generator=generator, dtype=p.dtype) < p).double() for p in probs]
        counts += _reached(modules, _spread(modules, drawn), shape)
    return _frequency(counts, n_draws)


@torch.no_grad()
def median_reach(network: nn.Module, shape: tuple[int, ...] | None = None) -> Tensor:
    """Whether each input reaches an output in the median probability model (inclusion above one half)."""
    modules = _check(network)
    kept = [(_inclusion(m) > 0.5).double() if _weighted(m) else torch.empty(0) for m in modules]
    kept = _spread(modules, kept)
    first = (_after_flatten(modules) or modules)[0]
    if shape is None and isinstance(first, Linear | nn.Linear):
        shape = (first.in_features,)
    return _reached(modules, kept, _checked(shape, modules, "median_inputs"))


def _after_flatten(modules: list[nn.Module]) -> list[nn.Module]:
    """What follows a Flatten of whole rows at the start, where there is one."""
    first = modules[0]
    whole = isinstance(first, nn.Flatten) and (first.start_dim, first.end_dim) == (1, -1)
    return modules[1:] if whole else modules


def _checked(shape: tuple[int, ...] | None, modules: list[nn.Module], owner: str) -> tuple[int, ...]:
    """The shape, if an input of it passes through the network."""
    advice = "For example shape=(1, 28, 28) for an image of one channel."
    if shape is None:
        raise invalid("shape", owner, "given for a network of images or sequences", None, advice)
    sizes = shape if isinstance(shape, Sequence) else ()
    if not sizes or not all(isinstance(n, int) and n > 0 for n in sizes):
        raise invalid("shape", owner, "the sizes of one input, without the rows' axis", repr(shape), advice)
    x = torch.ones((1, *sizes), dtype=torch.float64)
    for module in modules:
        spatial = next((n for kinds, n in _SPATIAL if isinstance(module, kinds)), None)
        before = tuple(x.shape[1:])
        if spatial is not None and len(before) != spatial + 1:
            axes = "(channels, height, width)" if spatial == 2 else "(channels, length)"
            got = f"{before} for a {type(module).__name__}, which takes {axes},"
            raise invalid("shape", owner, "that of one input of the network", got, advice)
        try:
            ones = torch.ones(_weights_shape(module), dtype=torch.float64)
            x = _structural(module, x, ones)
        except RuntimeError as error:
            got = f"{tuple(sizes)}, of which {before} comes to a {type(module).__name__},"
            why = f"{str(error).splitlines()[0].rstrip('.')}."
            raise invalid("shape", owner, "that of one input of the network", got, why) from error
    return tuple(int(n) for n in sizes)


def _weights_shape(module: nn.Module) -> tuple[int, ...]:
    if isinstance(module, BayesianLayer):
        return tuple(module.weights.shape)
    return tuple(module.weight.shape) if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d) else (0,)


def _spread(modules: list[nn.Module], masks: list[Tensor]) -> list[Tensor]:
    """Masks in the weights' shapes."""
    return [
        mask.expand(module.weights.shape) if isinstance(module, BayesianLayer) else mask
        for module, mask in zip(modules, masks)
    ]


def _weighted(module: nn.Module) -> bool:
    return isinstance(module, BayesianLayer | nn.Linear | nn.Conv1d | nn.Conv2d)


def _frequency(counts: Tensor, n_draws: int) -> Reach:
    prob = counts / n_draws
    return Reach(prob, (prob * (1.0 - prob) / n_draws).sqrt())


# --- dense chains --------------------------------------------------------------------------------------


def _any(inclusion: Tensor, there: Tensor) -> Tensor:
    """1 − Π_k (1 − α_kj·there_k) for every unit j; ``there`` is (…, k), in [0, 1]."""
    # A product, not a sum of logarithms: inclusions of exactly 1 occur.
    return 1.0 - (1.0 - inclusion * there.unsqueeze(-1)).prod(-2)


def _dense(inclusions: list[Tensor], n_draws: int, seed: int) -> Reach:
    # What the last layer's inputs reach is independent from unit to unit.
    reach = _any(inclusions[-1], torch.ones(inclusions[-1].shape[0], dtype=torch.float64))
    earlier = inclusions[:-1]
    if len(earlier) <= 1:
        prob = _any(earlier[0], reach) if earlier else reach
        return Reach(prob, torch.zeros_like(prob))
    if all(layer.shape[0] <= _EXACT_UNITS for layer in earlier[1:]):
        prob = _summed(earlier, reach)
        return Reach(prob, torch.zeros_like(prob))
    generator = torch.Generator().manual_seed(seed)
    values = torch.stack([_given_drawn(earlier, reach, generator) for _ in range(n_draws)])
    # One draw says nothing about how far it is off.
    spread = values.std(0) if n_draws > 1 else torch.full_like(values[0], math.inf)
    return Reach(values.mean(0), spread / n_draws**0.5)


def _given_drawn(layers: list[Tensor], reach: Tensor, generator: torch.Generator) -> Tensor:
    """One drawn chain of sets; the first two layers are averaged over exactly."""
    for layer in reversed(layers[1:]):
        there = (torch.rand(reach.shape, generator=generator, dtype=reach.dtype) < reach).double()
        reach = _any(layer, there)
    return _any(layers[0], reach)


def _summed(layers: list[Tensor], reach: Tensor) -> Tensor:
    """Over all sets of the hidden layers after the first."""
    sets = _sets(len(reach))
    mass = torch.where(sets > 0, reach, 1.0 - reach).prod(1)
    for index in range(len(layers) - 1, 1, -1):
        onward = _any(layers[index], sets)
        fewer = _sets(layers[index].shape[1])
        step = torch.where(fewer.unsqueeze(0) > 0, onward.unsqueeze(1), 1.0 - onward.unsqueeze(1)).prod(2)
        mass, sets = mass @ step, fewer
    return mass @ _any(layers[0], _any(layers[1], sets))


def _sets(units: int) -> Tensor:
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=units)), dtype=torch.float64)


# --- any chain, one structure --------------------------------------------------------------------------


def _reached(modules: list[nn.Module], masks: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """1 where a path exists: the network of 0/1 weights without activations has a positive derivative.

    Every weight is 0 or positive, so that nothing cancels; scaling by the fan-in keeps the numbers in range.
    """
    with torch.enable_grad():
        x = torch.ones((1, *shape), dtype=torch.float64, requires_grad=True)
        y = x
        for module, mask in zip(modules, masks):
            y = _structural(module, y, mask)
        if not y.requires_grad:
            return torch.zeros(shape, dtype=torch.float64)
        (slope,) = torch.autograd.grad(y.sum(), x)
    return (slope[0] > 0).double()


def _structural(module: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    scale = 1.0 / max(1, mask[0].numel()) if _weighted(module) else 1.0
    if isinstance(module, BayesianLayer):
        return module.op(x, scale * mask, None)
    if isinstance(module, nn.Linear):
        return F.linear(x, scale * mask)
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return module._conv_forward(x, scale * mask, None)
    return _windows(module, x) if isinstance(module, _MAXIMA) else module(x)


def _windows(module: nn.MaxPool1d | nn.MaxPool2d, x: Tensor) -> Tensor:
    """The mean of every window: whichever of its inputs is largest, all of them can be.

    >>> x = torch.arange(5.0).reshape(1, 1, 5)
    >>> [_windows(nn.MaxPool1d(2, ceil_mode=ceil), x).tolist() for ceil in (False, True)]
    [[[[0.5, 2.5]]], [[[0.5, 2.5, 2.0]]]]
    """
    size, count = x.shape[2:], x.shape[1]
    how = (module.kernel_size, module.stride, module.padding, module.dilation)
    kernel, stride, padding, dilation = (n if isinstance(n, tuple) else (n,) * len(size) for n in how)
    # Some give indices as well.
    said = module(x.detach())
    outputs = (said[0] if isinstance(said, tuple) else said).shape[2:]
    # A last window may reach beyond the padding: there is nothing there.
    sides: list[int] = []
    for n, k, s, p, d, out in zip(size, kernel, stride, padding, dilation, outputs):
        reach = (out - 1) * s + d * (k - 1) + 1
        sides = [p, max(0, reach - n - p), *sides]
    weights = x.new_full((count, 1, *kernel), 1.0 / math.prod(kernel))
    convolve = F.conv1d if len(size) == 1 else F.conv2d
    return convolve(F.pad(x, sides), weights, stride=stride, dilation=dilation, groups=count)
