"""Other libraries' Bayesian networks of the same shape, when they are installed (extra ``bench``)."""

from __future__ import annotations

import importlib.util

from torch import nn

__all__ = ["PEERS", "installed", "peer"]

PEERS: dict[str, str] = {}


def installed() -> list[str]:
    """The peers that can be timed here."""
    return [name for name, module in PEERS.items() if importlib.util.find_spec(module)]


def peer(name: str, architecture: str) -> nn.Module:
    raise NotImplementedError(name)
