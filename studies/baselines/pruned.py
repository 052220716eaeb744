"""Magnitude pruning: a network of plain weights, cut to a density in one shot and trained further."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import invalid
from sparsebnn.training import Callback, Run, Settings, train
from studies.baselines.deterministic import Deterministic, Point

__all__ = ["Pruned", "magnitude_masks", "prune", "refit_pruned"]


class _Masked(nn.Module):
    """A dense layer or convolution some of whose weights are held at 0."""

    mask: Tensor

    def __init__(self, layer: nn.Linear | nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("mask", torch.ones_like(layer.weight))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.layer.weight * self.mask, self.layer.bias
        if isinstance(self.layer, nn.Linear):
            return F.linear(x, weight, bias)
        return self.layer._conv_forward(x, weight, bias)


def _masked(module: nn.Module) -> nn.Module:
    """The module with its dense layers and convolutions masked, in place."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        return _Masked(module)
    for name, child in module.named_children():
        setattr(module, name, _masked(child))
    return module


class _PrunedPoint(Point):
    """Plain weights with masks; biases are neither cut nor counted."""

    def inclusion_prob(self) -> Tensor:
        masks = [part.mask for part in self.module.modules() if isinstance(part, _Masked)]
        return torch.cat([mask.flatten() for mask in masks])


class Pruned(Deterministic):
    """A deterministic network whose layers multiply their weights by a mask of 0 and 1.

    It begins at the weights of the network it is made from, with nothing cut; ``train`` and ``predict``
    take it as they take any :class:`~studies.baselines.deterministic.Deterministic`.
    """

    def __init__(self, plain: Deterministic, prior_std: float | None = None) -> None:
        inner = plain.weights.module
        assert isinstance(inner, nn.Module)
        module = _masked(copy.deepcopy(inner))
        if not any(isinstance(part, _Masked) for part in module.modules()):
            raise invalid("plain", "Pruned", "a network with dense layers or convolutions", str(inner))
        super().__init__(module, prior_std)
        self.weights = _PrunedPoint(module, prior_std)


@torch.no_grad()
def magnitude_masks(plain: Deterministic, density: float) -> dict[str, Tensor]:
    r"""Which weights stay: the :math:`\operatorname{round}(d\,N)` largest of N by :math:`|w|`, at least one.

    All layers compete. Biases stay and are not counted. By the names of the masks in ``Pruned(plain)``.

    >>> network = Deterministic(nn.Linear(3, 1))
    >>> network.weights.module.weight.data = torch.tensor([[0.1, -3.0, 2.0]])
    >>> magnitude_masks(network, 1 / 3)["weights.module.mask"]
    tensor([[0., 1., 0.]])
    """
    if not 0.0 < density <= 1.0:
        raise invalid("density", "magnitude_masks", "a share of the weights, up to 1", density)
    masked = [(n, m) for n, m in Pruned(plain).named_modules() if isinstance(m, _Masked)]
    flat = torch.cat([part.layer.weight.flatten().abs() for _, part in masked])
    kept = torch.zeros_like(flat)
    kept[flat.topk(max(1, round(density * len(flat)))).indices] = 1.0
    parts = kept.split([part.mask.numel() for _, part in masked])
    return {f"{name}.mask": part.view_as(m.mask) for (name, m), part in zip(masked, parts)}


def prune(plain: Deterministic, density: float) -> Pruned:
    """The network cut to that density, not trained further.

    >>> import sparsebnn
    >>> from studies.baselines.deterministic import plain_mlp
    >>> sparsebnn.density(prune(plain_mlp([10, 20, 5]), 0.1)).overall
    0.1
    """
    cut = Pruned(plain)
    masks = magnitude_masks(plain, density)
    for name, buffer in cut.named_buffers():
        if name in masks:
            buffer.copy_(masks[name])
    return cut


class _Continue(Callback):
    """Start every replicate at the weights of its network, before the first step."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self.networks = networks

    @torch.no_grad()
    def on_train_start(self, run: Run) -> None:
        for k, network in enumerate(self.networks):
            for stacked, value in zip(run.replicates.parameters.values(), network.parameters()):
                stacked[k].copy_(value)


def refit_pruned(
    networks: Sequence[nn.Module],
    densities: Sequence[float],
    data: tuple[Tensor, ...],
    *,
    settings: Settings,
    rates: Sequence[float] | None = None,
    seeds: Sequence[int] | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> Run:
    """Cut network k to ``densities[k]`` and train the remaining weights, all as one program.

    ``networks`` are trained ones of one shape, of :func:`~studies.baselines.deterministic.plain_mlp` or the
    like; the same network may stand there several times. ``rates`` are learning rates, one per network, if
    they differ, ``seeds`` likewise. ``options`` go to ``train``, whose :class:`Run` this returns.
    """
    plain = [network for network in networks if isinstance(network, Deterministic)]
    if not plain or len(plain) != len(networks):
        raise invalid("networks", "refit_pruned", "deterministic networks", f"{len(networks)} others")
    if len(densities) != len(plain):
        raise invalid("densities", "refit_pruned", f"one per network ({len(plain)})", len(densities))
    if seeds is not None and len(seeds) != len(plain):
        raise invalid("seeds", "refit_pruned", f"one per network ({len(plain)})", len(seeds))
    each = [magnitude_masks(network, share) for network, share in zip(plain, densities)]
    varied: dict[str, Any] = {name: torch.stack([masks[name] for masks in each]) for name in each[0]}
    if rates is not None:
        varied["learning_rate"] = list(rates)
    return train(
        Pruned(plain[0]),
        data,
        settings=settings,
        replicates=len(plain) if seeds is None else list(seeds),
        per_replicate=varied,
        callbacks=[_Continue(plain), *callbacks],
        **options,
    )
