"""What training may do beside plain Adam: momentum, weight decay, clipped gradients, averaged parameters.

Everything is stacked, ``(K, …)``, and in plain operations: replicates with other rates share one program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


def _column(values: Tensor, like: Tensor) -> Tensor:
    """One value per replicate, shaped to multiply a stack."""
    return values.view(-1, *[1] * (like.dim() - 1))


def sgd(
    parameters: Tensors,
    gradients: Tensors,
    velocities: Tensors,
    rates: Tensor,
    group_of: Mapping[str, int],
    momentum: float,
    alive: Tensor,
) -> None:
    r"""One step of gradient descent, in place.

    .. math:: v \leftarrow \mu v + g, \qquad p \leftarrow p - \eta v

    ``rates`` is ``(groups, K)``. Replicates that are not ``alive`` keep their values.
    """
    for name, p in parameters.items():
        g, v = gradients[name], velocities[name]
        live = _column(alive, p)
        moved = momentum * v + g
        # A gradient that is not finite must not reach the parameter; the velocity keeps the evidence.
        step = torch.where(live & torch.isfinite(g), _column(rates[group_of[name]], p) * moved, 0.0)
        p.sub_(step)
        v.copy_(torch.where(live, moved, v))


def decay(
    parameters: Tensors,
    names: Collection[str],
    rates: Tensor,
    group_of: Mapping[str, int],
    strength: float,
    alive: Tensor,
) -> None:
    r"""Decoupled weight decay of the parameters ``names``: :math:`p \leftarrow (1 - \eta\lambda)\,p`."""
    for name in names:
        p = parameters[name]
        shrink = torch.where(alive, 1.0 - strength * rates[group_of[name]], 1.0)
        p.mul_(_column(shrink, p))


def clipped(gradients: dict[str, Tensor], norm: float) -> dict[str, Tensor]:
    """Gradients whose norm over all parameters is at most ``norm``, for each replicate."""
    squares = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients.values()])
    factor = (norm / (squares.sum(0).sqrt() + 1e-6)).clamp_max(1.0)  # as in torch.nn.utils
    return {name: g * _column(factor, g) for name, g in gradients.items()}


def average(averages: Tensors, parameters: Tensors, keep: float, step: Tensor) -> None:
    r"""Move averages towards the parameters: :math:`a \leftarrow d\,a + (1-d)\,p`.

    At step t from 0, :math:`d = \min(\text{keep}, (1+t)/(10+t))`, so that the start is soon forgotten.
    """
    count = step.double()
    share = 1.0 - ((1.0 + count) / (10.0 + count)).clamp_max(keep)
    for name, a in averages.items():
        a.add_((parameters[name] - a) * share.to(a.dtype))
