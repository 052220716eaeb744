"""Other libraries' Bayesian networks of the same shape, when they are installed (extra ``bench``).

Each is built from that library's own layers and its own KL, with a mean-field Gaussian posterior and
weights drawn in the forward pass, as its documentation shows. None of them has inclusion variables.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["PEERS", "installed", "peer"]

# Name here and on the package index, and what is imported.
PEERS: dict[str, str] = {
    "torchbnn": "torchbnn",
    "bayesian-torch": "bayesian_torch",
    "blitz-bayesian-pytorch": "blitz",
}


def installed() -> list[str]:
    """The peers that can be timed here."""
    return [name for name, module in PEERS.items() if importlib.util.find_spec(module)]


class Peer(nn.Module):
    """The paper's network from ``conv(inputs, outputs)`` (5 by 5) and ``dense(inputs, outputs)`` layers.

    A layer gives its output, or its output and its KL; ``kl`` makes the KL of the whole network where
    the layers do not.
    """

    def __init__(
        self,
        architecture: str,
        conv: Callable[[int, int], nn.Module],
        dense: Callable[[int, int], nn.Module],
        kl: Callable[[nn.Module], Tensor] | None,
    ) -> None:
        super().__init__()
        filters = [1, 32, 48] if architecture == "lenet" else []
        sizes = [768, 256, 84, 10] if filters else [784, 400, 600, 10]
        self.convolutions = nn.ModuleList(conv(a, b) for a, b in zip(filters, filters[1:]))
        self.dense = nn.ModuleList(dense(a, b) for a, b in zip(sizes, sizes[1:]))
        self.whole_kl = kl

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros((), device=x.device)
        for layer in self.convolutions:
            x, total = _through(layer, x, total)
            x = F.avg_pool2d(F.relu(x), 2)
        x = x.flatten(1)
        for i, layer in enumerate(self.dense):
            x, total = _through(layer, x, total)
            x = F.relu(x) if i < len(self.dense) - 1 else x
        return x, total if self.whole_kl is None else self.whole_kl(self).sum()


def _through(layer: nn.Module, x: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    out = layer(x)
    return (out[0], total + out[1]) if isinstance(out, tuple) else (out, total)


def _torchbnn(architecture: str) -> nn.Module:
    import torchbnn

    prior = {"prior_mu": 0.0, "prior_sigma": 1.0}
    return Peer(
        architecture,
        lambda a, b: torchbnn.BayesConv2d(in_channels=a, out_channels=b, kernel_size=5, **prior),
        lambda a, b: torchbnn.BayesLinear(in_features=a, out_features=b, **prior),
        torchbnn.BKLLoss(reduction="sum"),
    )


def _bayesian_torch(architecture: str) -> nn.Module:
    from bayesian_torch.layers import Conv2dReparameterization, LinearReparameterization

    return Peer(architecture, lambda a, b: Conv2dReparameterization(a, b, 5), LinearReparameterization, None)


def _blitz(architecture: str) -> nn.Module:
    from blitz.losses import kl_divergence_from_nn
    from blitz.modules import BayesianConv2d, BayesianLinear

    return Peer(
        architecture, lambda a, b: BayesianConv2d(a, b, (5, 5)), BayesianLinear, kl_divergence_from_nn
    )


_MAKERS = {"torchbnn": _torchbnn, "bayesian-torch": _bayesian_torch, "blitz-bayesian-pytorch": _blitz}


def peer(name: str, architecture: str) -> nn.Module:
    """The peer's network, whose forward gives ``(logits, KL)``."""
    return _MAKERS[name](architecture)
