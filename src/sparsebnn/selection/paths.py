r"""Which inputs matter in a network of uncertain structure: chains of included weights to an output.

An input counts when at least one chain of included weights leads from it to an output. Under the posterior
the inclusions of the weights are independent, each with its own probability :math:`\tilde\alpha`. (If the
weights of an input or output share an inclusion, the layer counts as two: one of gates, and one whose weights
are all included.) Let A be the set of units of a layer that reach an output. Given the sets of the layers
after it, the units of a layer reach an output independently of each other,

.. math::
    P(j \text{ reaches} \mid A) = 1 - \prod_{k \in A} (1 - \tilde\alpha_{kj})

so with at most one hidden layer everything is a product, and with more the sets of the hidden layers
after the first are summed over: exactly when they are few, otherwise over drawn sets, each draw giving
the exact probability for the first two layers. In an input-skip network an input reaches no output if it
misses the sets of all layers. In any other network whole structures are enumerated or drawn.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sparsebnn.checks import check_count, check_seed, invalid
from sparsebnn.nn.graph import TRANSPARENT, Graph, inclusion
from sparsebnn.nn.layers import BayesianLayer, Linear
from sparsebnn.nn.networks import InputSkip, chain
from sparsebnn.posteriors import Family
from sparsebnn.random.noise import RandomNoise

__all__ = ["ActivePaths", "Reach", "active_paths", "draw_reach", "median_reach", "path_probability"]

_EXACT_UNITS = 10  # 2^10 sets per hidden layer are summed over; more are drawn
_OWNER = "input_inclusion"


class Reach(NamedTuple):
    """Probability of each input reaching an output, and its Monte Carlo standard error (0 if exact)."""

    prob: Tensor
    error: Tensor


@torch.no_grad()
def path_probability(
    network: nn.Module, *, n_draws: int = 1000, seed: int = 0, shape: tuple[int, ...] | None = None
) -> Reach:
    """Probability that an input reaches an output, for every input.

    ``network`` is any module whose forward torch.fx can trace. ``shape`` is that of one input where the
    layers do not tell it. The network may be on any device; the result is on the CPU. Exact for dense
    networks, with or without input-skip, with one hidden layer of any width, or with hidden layers after the
    first of at most 10 units, and for other networks of at most ``n_draws`` structures; else, and where
    weights share inclusions, ``n_draws`` structures are drawn unless layers are that small.

    >>> import sparsebnn
    >>> network = sparsebnn.mlp([3, 1], family="gaussian")
    >>> path_probability(network).prob.tolist()
    [1.0, 1.0, 1.0]
    """
    check_count(n_draws, "n_draws", _OWNER)
    seed = check_seed(seed, "seed", _OWNER)
    if _dependent(network):
        reached = draw_reach(network, n_draws, seed=seed, shape=shape).double()
        prob = reached.mean(0)
        return Reach(prob, (prob * (1.0 - prob) / n_draws).sqrt())
    stages = _checked_stages(network)
    if stages is None or shape is not None:
        graph = Graph(network, shape, _OWNER)
    _check_independent(network)
    if stages is None:
        return _by_structures(graph, n_draws, seed)
    found = _dense(stages, n_draws, seed)
    return found if shape is None else Reach(*(part.reshape(graph.shape) for part in found))


@torch.no_grad()
def reach_of_masks(
    network: nn.Module, masks: Mapping[str, Tensor], shape: tuple[int, ...] | None = None
) -> Tensor:
    """Whether each input reaches an output in given structures: per layer (structures, *shape of weights)."""
    graph = Graph(network, shape, _OWNER)
    # A layer alone is the first module of the graph's Sequential.
    named = {name or "0": mask.double() for name, mask in masks.items()}
    count = len(next(iter(named.values())))
    each = [graph.reach({name: mask[i] for name, mask in named.items()}) > 0 for i in range(count)]
    return torch.stack(each)


def draw_reach(
    network: nn.Module, n_draws: int, *, seed: int = 0, shape: tuple[int, ...] | None = None
) -> Tensor:
    """Whether each input reaches an output, in ``n_draws`` drawn structures: (draws, …) of True and False.

    >>> import sparsebnn
    >>> draw_reach(sparsebnn.mlp([2, 1], family="gaussian"), 3).all().item()
    True
    """
    stages = None if _dependent(network, alone=True) else _checked_stages(network)
    graph = None if stages is not None and shape is None else Graph(network, shape, _OWNER)
    _check_independent(network)
    generator = torch.Generator().manual_seed(check_seed(seed, "seed", _OWNER))

    def drawn(prob: Tensor) -> Tensor:
        return torch.rand(prob.shape, generator=generator, dtype=prob.dtype) < prob

    def structure(layer: nn.Module) -> Tensor:
        family = getattr(layer, "weights", None)
        if not getattr(family, "dependent", False):
            return drawn(inclusion(layer)).double()
        assert isinstance(family, Family)
        return (family.draw(RandomNoise(generator)) != 0).double().cpu()

    def one() -> Tensor:
        if stages is None:
            assert graph is not None
            masks = {name: structure(layer) for name, layer in graph.layers.items()}
            return graph.reach(graph.spread(masks)) > 0
        reach = torch.ones(stages[-1].units.shape[0], dtype=torch.bool)
        direct = torch.zeros((), dtype=torch.bool)
        for stage in reversed(stages):
            if stage.skip is not None:
                direct = direct | (drawn(stage.skip) & reach.unsqueeze(1)).any(0)
            reach = (drawn(stage.units) & reach.unsqueeze(1)).any(0)
        return reach | direct

    found = torch.stack([one() for _ in range(n_draws)])
    return found if graph is None else found.reshape(n_draws, *graph.shape)


@torch.no_grad()
def median_reach(network: nn.Module, shape: tuple[int, ...] | None = None) -> Tensor:
    """Whether each input reaches an output in the median probability model (inclusion above one half)."""
    graph = Graph(network, shape, "median_inputs")
    return graph.reach(graph.median())


@dataclass(frozen=True)
class ActivePaths:
    """The weights of the median model that lie on a path from an input to an output.

    ``weights`` are masks by layer; ``n_weights`` is how many weights are active in Bayesian layers, of
    ``n_all``; ``by_output`` the same for every output alone (a class, or a target). ``lengths[n]`` is the
    number of paths of n weights, ``mean_length`` their average length (nan without paths). ``inputs`` says
    which inputs are read.
    """

    weights: dict[str, Tensor]
    n_weights: int
    n_all: int
    by_output: tuple[int, ...]
    lengths: tuple[float, ...]
    inputs: Tensor

    @property
    def density(self) -> float:
        return self.n_weights / self.n_all

    @property
    def mean_length(self) -> float:
        total = sum(self.lengths)
        return sum(n * count for n, count in enumerate(self.lengths)) / total if total else math.nan

    def __str__(self) -> str:
        used = int(self.inputs.sum())
        text = (
            f"{self.n_weights:,} of {self.n_all:,} weights are active, {used} of {self.inputs.numel()} inputs"
        )
        return f"{text} are read, paths have {self.mean_length:.3g} weights on average"


@torch.no_grad()
def active_paths(network: nn.Module, shape: tuple[int, ...] | None = None) -> ActivePaths:
    """Active weights of the median model, in all and per output, and the lengths of its paths.

    Units without outgoing weights are dropped going backwards, hidden units without incoming ones going
    forwards. A network is any module whose forward torch.fx can trace; ``shape`` is that of one input where
    the layers do not tell it.

    >>> import sparsebnn
    >>> print(active_paths(sparsebnn.mlp([3, 2, 1], input_skip=True, family="gaussian")))
    11 of 11 weights are active, 3 of 3 inputs are read, paths have 1.67 weights on average
    """
    graph = Graph(network, shape, "active_paths")
    masks = graph.median()
    bayesian = [name for name, layer in graph.layers.items() if isinstance(layer, BayesianLayer)]

    def count(active: dict[str, Tensor]) -> int:
        return sum(int(active[name].sum()) for name in bayesian)

    lengths = graph.lengths(masks)
    weights = graph.active(masks)
    outputs = range(len(lengths))
    return ActivePaths(
        weights,
        count(weights),
        sum(masks[name].numel() for name in bayesian),
        tuple(count(graph.active(masks, output)) for output in outputs),
        tuple(lengths.sum(0).tolist()),
        graph.reach(masks) > 0,
    )


def _dependent(network: nn.Module, alone: bool = False) -> bool:
    """Whether inclusions depend on each other, so that structures have to be drawn from the family.

    A layer of one output, unless ``alone``, is simple: an input reaches it by its marginal inclusion.
    """
    families = [module.weights for module in network.modules() if isinstance(module, BayesianLayer)]
    single = not alone and len(families) == 1 and families[0].shape[0] == 1
    return not single and any(getattr(family, "dependent", False) for family in families)


def _check_independent(network: nn.Module) -> None:
    families = [module.weights for module in network.modules() if isinstance(module, BayesianLayer)]
    listed = [module for module in chain(network) if isinstance(module, BayesianLayer)]
    if len(set(families)) < len(families) or len(set(listed)) < len(listed):
        expected = "one whose layers have independent weights"
        advice = "The inclusions of weights that are used twice are not independent."
        raise invalid("network", _OWNER, expected, "one that uses the same weights twice", advice)


# --- dense chains and input-skip networks ---------------------------------------------------------------


class _Stage(NamedTuple):
    """Independent inclusions: from the units before to those after, and from the inputs if they are seen."""

    units: Tensor
    skip: Tensor | None = None

    def hits(self, there: Tensor) -> Tensor:
        """P(a unit before is connected to one of ``there``), which is (…, units after), in [0, 1]."""
        return 1.0 - _none(self.units, there)

    def misses(self, there: Tensor) -> Tensor:
        """P(an input sees none of ``there`` directly), (…, inputs); 1 without a skip."""
        return torch.ones((), dtype=torch.float64) if self.skip is None else _none(self.skip, there)


def _none(inclusions: Tensor, there: Tensor) -> Tensor:
    """Π_k (1 − α_kj·there_k) for every unit j."""
    # A product, not a sum of logarithms: inclusions of exactly 1 occur.
    return (1.0 - inclusions * there.unsqueeze(-1)).prod(-2)


def _dense_stages(network: nn.Module) -> list[_Stage] | None:
    """The stages of a chain of dense layers, which may begin with a Flatten or an InputSkip; else None."""
    modules = [module for module in chain(network) if not isinstance(module, TRANSPARENT)]
    first = modules[0] if modules else None
    if isinstance(first, nn.Flatten) and (first.start_dim, first.end_dim) == (1, -1):
        modules = modules[1:]
    stages: list[_Stage] = []
    for module in modules:
        if isinstance(module, Linear | nn.Linear):
            stages += _of_layer(module)
        elif isinstance(module, InputSkip) and not stages:
            for layer in module.layers:
                stages += _of_layer(layer, module.in_features if stages else 0)
        else:
            return None
    return stages or None


def _checked_stages(network: nn.Module) -> list[_Stage] | None:
    """As :func:`_dense_stages`, for networks with Bayesian layers; the graph refuses others."""
    bayesian = any(isinstance(module, BayesianLayer) for module in network.modules())
    return _dense_stages(network) if bayesian else None


def _of_layer(module: nn.Module, skipped: int = 0) -> list[_Stage]:
    """A dense layer whose last ``skipped`` columns are the inputs: a stage, or two if inclusions are shared.

    >>> import sparsebnn
    >>> layer = sparsebnn.Linear(3, 2, family_options={"group_by": "input"})
    >>> [tuple(stage.units.shape) for stage in _of_layer(layer)]
    [(3, 3), (2, 3)]
    """

    def split(matrix: Tensor) -> _Stage:
        columns = matrix.shape[1] - skipped
        return _Stage(matrix[:, :columns], matrix[:, columns:] if skipped else None)

    prob = inclusion(module)
    if not isinstance(module, BayesianLayer) or prob.shape == tuple(module.weights.shape):
        return [split(prob)]
    gates, there = torch.diag(prob.flatten()), torch.ones(module.weights.shape, dtype=torch.float64)
    by_input = prob.shape[1] == module.weights.shape[1]
    return [split(gates), _Stage(there)] if by_input else [split(there), _Stage(gates)]


def _dense(stages: list[_Stage], n_draws: int, seed: int) -> Reach:
    # What the last layer's inputs reach is independent from unit to unit.
    ones = torch.ones(stages[-1].units.shape[0], dtype=torch.float64)
    reach, missed = stages[-1].hits(ones), stages[-1].misses(ones)
    earlier = stages[:-1]
    if len(earlier) <= 1:
        prob = 1.0 - missed * _none(earlier[0].units, reach) if earlier else reach
        return Reach(prob, torch.zeros_like(prob))
    if all(stage.units.shape[0] <= _EXACT_UNITS for stage in earlier[1:]):
        prob = 1.0 - missed * _summed(earlier, reach)
        return Reach(prob, torch.zeros_like(prob))
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.stack([_missed_by_draw(earlier, reach, generator) for _ in range(n_draws)])
    values = 1.0 - missed * drawn
    # One draw says nothing about how far it is off.
    spread = values.std(0) if n_draws > 1 else torch.full_like(values[0], math.inf)
    return Reach(values.mean(0), spread / n_draws**0.5)


def _missed_by_draw(stages: list[_Stage], reach: Tensor, generator: torch.Generator) -> Tensor:
    """P(no path) given one drawn chain of sets; the first two layers are averaged over exactly."""
    missed = torch.ones((), dtype=torch.float64)
    for stage in reversed(stages[1:]):
        there = (torch.rand(reach.shape, generator=generator, dtype=reach.dtype) < reach).double()
        reach, missed = stage.hits(there), missed * stage.misses(there)
    return missed * _none(stages[0].units, reach)


def _summed(stages: list[_Stage], reach: Tensor) -> Tensor:
    """P(no path), over all sets of the hidden layers after the first."""
    sets = _sets(len(reach))
    # Of the sets, and that an input has missed all of them so far: (inputs or 1, sets).
    mass = torch.where(sets > 0, reach, 1.0 - reach).prod(1).unsqueeze(0)
    for index in range(len(stages) - 1, 0, -1):
        stage = stages[index]
        if stage.skip is not None:
            mass = mass * stage.misses(sets).T
        onward = stage.hits(sets)
        if index == 1:
            return (mass * _none(stages[0].units, onward).T).sum(1)
        fewer = _sets(stage.units.shape[1])
        step = torch.where(fewer.unsqueeze(0) > 0, onward.unsqueeze(1), 1.0 - onward.unsqueeze(1)).prod(2)
        mass, sets = mass @ step, fewer
    raise AssertionError("at least two stages")


def _sets(units: int) -> Tensor:
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=units)), dtype=torch.float64)


# --- any other network ----------------------------------------------------------------------------------


def _by_structures(graph: Graph, n_draws: int, seed: int) -> Reach:
    """Over all structures if there are at most ``n_draws``, else over drawn ones."""
    probs = {name: inclusion(layer) for name, layer in graph.layers.items()}
    flat = torch.cat([prob.flatten() for prob in probs.values()])
    open_ = ((flat > 0) & (flat < 1)).nonzero().squeeze(1)
    total = torch.zeros(graph.shape, dtype=torch.float64)

    def reached(structure: Tensor) -> Tensor:
        parts = structure.split([prob.numel() for prob in probs.values()])
        masks = {name: part.reshape(probs[name].shape) for name, part in zip(probs, parts)}
        return graph.reach(graph.spread(masks))

    if 2 ** min(len(open_), 60) <= n_draws:
        for bits in _sets(len(open_)):
            structure = (flat > 0).double()
            structure[open_] = bits
            total += torch.where(bits > 0, flat[open_], 1.0 - flat[open_]).prod() * reached(structure)
        return Reach(total, torch.zeros_like(total))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n_draws):
        # Layer by layer, as large as each of them.
        parts = [torch.rand(p.shape, generator=generator, dtype=p.dtype) < p for p in probs.values()]
        total += reached(torch.cat([part.flatten() for part in parts]).double())
    prob = total / n_draws
    return Reach(prob, (prob * (1.0 - prob) / n_draws).sqrt())
