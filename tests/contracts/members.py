"""The one table behind the law tests: a new family, layer or flow is one entry here.

Every constructor gives small tensors with non-trivial values: priors that differ from weight to weight
and have a mean, parameters drawn from a seed. Nothing here computes anything that a test compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn.nn.convolutions import Conv1d, Conv2d
from sparsebnn.nn.layers import BayesianLayer, Linear
from sparsebnn.nn.passes import LocalPass, MedianPass, Pass, PosteriorPass, WeightPass, noise_size
from sparsebnn.posteriors import FAMILIES as CLASSES
from sparsebnn.posteriors import Family
from sparsebnn.posteriors.flows import AutoregressiveStep, Flow, flow
from sparsebnn.posteriors.learned_priors import GammaPrecisionPrior, HierarchicalPrior
from sparsebnn.posteriors.priors import GaussianPrior, Prior, SpikeSlabPrior
from sparsebnn.random.noise import NoiseBuffer


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniform(shape: Sequence[int], low: float, high: float, g: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(tuple(shape), generator=g, dtype=torch.float64)


# --- priors -----------------------------------------------------------------------------------------


def gaussian_prior(shape: Sequence[int], g: torch.Generator) -> Prior:
    return GaussianPrior(mean=uniform(shape, -1.0, 1.0, g), std=uniform(shape, 0.4, 2.0, g))


def spike_slab_prior(shape: Sequence[int], g: torch.Generator) -> Prior:
    inclusion = uniform(shape, 0.05, 0.9, g)
    return SpikeSlabPrior(inclusion, mean=uniform(shape, -1.0, 1.0, g), std=uniform(shape, 0.4, 2.0, g))


def gamma_prior(shape: Sequence[int], g: torch.Generator) -> Prior:
    return GammaPrecisionPrior()


def hierarchical_prior(shape: Sequence[int], g: torch.Generator) -> Prior:
    return HierarchicalPrior()


# --- families ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """One way to build a family: its name, a prior for weights of a given shape, and options."""

    family: str
    prior: Callable[[Sequence[int], torch.Generator], Prior]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def has_z(self) -> bool:
        return self.family in ("flow", "mnf")


_NETS = {"hidden": (6, 5)}

FAMILIES: dict[str, Member] = {
    "gaussian": Member("gaussian", gaussian_prior),
    "gaussian_gamma": Member("gaussian", gamma_prior),
    "spike_slab": Member("spike_slab", spike_slab_prior),
    # Far from 0, so that derivatives are of ordinary size; the low temperature has tests of its own.
    "concrete": Member("concrete", spike_slab_prior, {"relaxation": 0.5}),
    "concrete_hierarchical": Member("concrete", hierarchical_prior, {"relaxation": 0.5}),
    "dependent": Member("dependent", spike_slab_prior),
    "flow": Member("flow", spike_slab_prior, _NETS),
    "flow_drawn": Member("flow", spike_slab_prior, {**_NETS, "auxiliary": "drawn"}),
    "flow_example": Member("flow", spike_slab_prior, {**_NETS, "z_per": "example"}),
    "flow_coupling": Member("flow", spike_slab_prior, {**_NETS, "kind": "coupling", "length": 3}),
    "mnf": Member("mnf", gaussian_prior, _NETS),
    "mnf_drawn": Member("mnf", gaussian_prior, {**_NETS, "auxiliary": "drawn"}),
    "mnf_example": Member("mnf", gaussian_prior, {**_NETS, "z_per": "example"}),
}

WITH_Z = [name for name, member in FAMILIES.items() if member.has_z]
WITHOUT_Z = [name for name, member in FAMILIES.items() if not member.has_z]


# --- layers -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerMember:
    """One layer: how to build it, the shape of its weights, one example's shape."""

    build: Callable[..., BayesianLayer]
    weight_shape: tuple[int, ...]
    example: tuple[int, ...]


LAYERS: dict[str, LayerMember] = {
    "linear": LayerMember(lambda **kw: Linear(4, 3, **kw), (3, 4), (4,)),
    "conv1d": LayerMember(lambda **kw: Conv1d(2, 3, 3, stride=2, padding=1, **kw), (3, 2, 3), (2, 7)),
    "conv2d": LayerMember(
        lambda **kw: Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), groups=2, **kw),
        (4, 1, 3, 2),
        (2, 5, 4),
    ),
}

# --- flows ------------------------------------------------------------------------------------------

_ORDERS = [(2, 0, 3, 1), (0, 1, 2, 3), (3, 1, 0, 2)]

FLOWS: dict[str, Callable[[], Flow]] = {
    f"{kind}_{name}_{length}": (
        lambda kind=kind, ordering=ordering, length=length: flow(4, length, (7, 6), kind, ordering, seed=5)
    )
    for kind in ("autoregressive", "coupling")
    for name, ordering, length in (
        ("shared", "shared", 1),
        ("shared", "shared", 2),
        ("alternate", "alternate", 2),
        ("alternate", "alternate", 3),
        ("random", "random", 3),
        ("explicit", _ORDERS, 3),
    )
}
FLOWS |= {
    f"{kind}_dim{dim}": lambda kind=kind, dim=dim: flow(dim, 2, (5,), kind, "alternate", seed=1)
    for kind in ("autoregressive", "coupling")
    for dim in (1, 2)
}
FLOWS["autoregressive_no_hidden"] = lambda: flow(4, 2, (), "autoregressive", "alternate", seed=2)
FLOWS["coupling_no_hidden"] = lambda: flow(4, 2, (), "coupling", seed=2)
FLOWS["autoregressive_folded"] = lambda: Flow(
    [AutoregressiveStep(4, (7, 6), order, seed=5, folded=True) for order in _ORDERS]
)
FLOWS["autoregressive_empty"] = lambda: flow(3, 0)

# --- passes -----------------------------------------------------------------------------------------

PASSES: dict[str, type[Pass]] = {
    "posterior": PosteriorPass,
    "local": LocalPass,
    "weight": WeightPass,
    "median": MedianPass,
}

# --- values -----------------------------------------------------------------------------------------

_RANGES: dict[str, tuple[float, float]] = {
    "mean": (-1.2, 1.2),
    "raw_std": (-2.0, 0.3),
    "inclusion_logit": (-2.5, 2.5),
    "z0_mean": (0.2, 1.4),
    "z0_log_var": (-3.0, -0.5),
    "auxiliary_direction": (-0.8, 0.8),
    "auxiliary_mean": (-1.0, 1.0),
    "auxiliary_log_var": (-0.8, 0.8),
    "raw_shape": (0.5, 3.0),
    "raw_rate": (0.0, 2.0),
    "raw_included": (0.0, 2.0),
    "raw_excluded": (0.0, 2.0),
}


@torch.no_grad()
def randomise(module: nn.Module, seed: int) -> nn.Module:
    """Every parameter at a random value of ordinary size; the weights of flows larger than they start."""
    g = generator(seed)
    for name, parameter in module.named_parameters():
        low, high = _RANGES.get(name.rsplit(".", 1)[-1], (-0.9, 0.9))
        parameter.copy_(uniform(parameter.shape, low, high, g))
    return module


def make_family(name: str, shape: Sequence[int], seed: int = 0, **options: Any) -> Family:
    """A family of the table, in double precision, with random parameters and prior."""
    member = FAMILIES[name]
    prior = member.prior(shape, generator(1000 + seed))
    built = CLASSES[member.family](shape, prior, **{**member.options, **options})
    return randomise(built.double(), seed)


def make_layer(
    layer: str,
    family: str,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    bias: bool = True,
    **options: Any,
) -> BayesianLayer:
    """A layer of the table with a family of the table, random parameters and prior."""
    member, family_member = LAYERS[layer], FAMILIES[family]
    built = member.build(
        family=family_member.family,
        prior=family_member.prior(member.weight_shape, generator(1000 + seed)),
        family_options={**family_member.options, **options},
        bias=bias,
        dtype=dtype,
    )
    return randomise(built, seed)


def make_input(layer: str, batch: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, *LAYERS[layer].example, generator=generator(seed), dtype=torch.float64).to(
        dtype
    )


def block(sizes: Sequence[int], seed: int, copies: int | None = None, dtype: torch.dtype = torch.float64):
    """Normal and logistic numbers to fill tapes of these sizes; one row per copy if copies are given."""
    g = generator(seed)
    lead = () if copies is None else (copies,)
    normals = torch.randn(*lead, sizes[0], generator=g, dtype=torch.float64)
    logistics = torch.logit(
        torch.rand(*lead, sizes[1], generator=g, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
    )
    return normals.to(dtype), logistics.to(dtype)


def tape_block(
    module: nn.Module, x: Tensor, seed: int, kind: type[Pass] = PosteriorPass, copies: int | None = None
) -> tuple[Tensor, Tensor]:
    """Numbers for one pass (or ``copies`` passes) of that kind over ``x``."""
    return block(noise_size(module, x, kind), seed, copies, x.dtype)


def over_tapes(verb: Callable[[NoiseBuffer], Tensor], sizes: Sequence[int], draws: int, seed: int) -> Tensor:
    """``verb`` of ``draws`` independent tapes, as one batched call."""
    return torch.func.vmap(lambda n, u: verb(NoiseBuffer(n, u)))(*block(sizes, seed, draws))


# --- a module that is not ours ----------------------------------------------------------------------


class Residual(nn.Module):
    """One dense layer used twice, inside its own submodule."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.shared = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shared(torch.tanh(self.shared(self.norm(x))))


class Nested(nn.Module):
    """Strided, grouped and one-dimensional convolutions, nested, with a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU())
        self.body = nn.ModuleDict(
            {
                "grouped": nn.Conv2d(4, 6, (3, 2), groups=2, dilation=(1, 2), bias=False),
                "norm": nn.GroupNorm(2, 6),
                "sequence": nn.Conv1d(6, 4, 3, padding="same"),
            }
        )
        self.residual = Residual(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.body["norm"](self.body["grouped"](self.stem(x))))
        h = torch.relu(self.body["sequence"](h.flatten(2)))
        return self.head(self.residual(h.mean(-1)))


NESTED_EXAMPLE = (1, 9, 9)
