"""What the training tests share: small data, small networks, and one quiet call of train."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsebnn
from contracts.members import generator
from sparsebnn.training import Callback, Epoch, Run, Settings

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
FAMILIES: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "spike_slab": {},
    "concrete": {"relaxation": 0.5},
    "flow": {"hidden": (5, 4)},
}
EXAMPLES: dict[str, tuple[int, ...]] = {"mlp": (4,), "skip": (4,), "conv": (1, 6, 6), "converted": (1, 7, 7)}
CLASSES = 3
ROWS = 23
# 3 batches an epoch, the last one filled up: 15 steps.
FIFTEEN = Settings(epochs=5, batch_size=8, learning_rate=1e-2)
SHORT = Settings(epochs=3, batch_size=8, learning_rate=1e-2)


class Module(nn.Module):
    """A module that is not ours: a strided convolution, a norm, one dense layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, stride=2)
        self.norm = nn.GroupNorm(2, 4)
        self.shared = nn.Linear(4, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.stem(x))).mean((-1, -2))
        return self.head(h + self.shared(torch.tanh(self.shared(h))))


def make_network(kind: str = "mlp", family: str = "spike_slab", dtype: torch.dtype = torch.float64, **layer):
    """A small network of that kind; every layer of that family."""
    layer = {"family": family, "family_options": FAMILIES[family], **layer}
    if kind == "mlp":
        return sparsebnn.mlp([*EXAMPLES[kind], 6, CLASSES], dtype=dtype, **layer)
    if kind == "skip":
        return sparsebnn.mlp([*EXAMPLES[kind], 5, 3, CLASSES], dtype=dtype, input_skip=True, **layer)
    if kind == "conv":
        return nn.Sequential(
            sparsebnn.nn.Conv2d(1, 3, 3, padding=1, dtype=dtype, **layer),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            sparsebnn.Linear(27, CLASSES, dtype=dtype, **layer),
        )
    return sparsebnn.convert(Module().to(dtype), **layer)


def make_data(kind: str = "mlp", rows: int = ROWS, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = generator(seed)
    x = torch.randn(rows, *EXAMPLES[kind], generator=g, dtype=torch.float64)
    return x, torch.randint(CLASSES, (rows,), generator=g)


def fit(network: nn.Module, data: tuple[Tensor, ...], settings: Settings = FIFTEEN, **options: Any) -> Run:
    """``train`` on the CPU, eagerly and without a progress line, unless told otherwise."""
    options = {"mode": "eager", "progress": False, "device": "cpu", **options}
    return sparsebnn.train(network, data, settings=settings, **options)


def parameters(run: Run, k: int | None = None) -> dict[str, Tensor]:
    """All parameters, stacked or of replicate k."""
    return {n: (p if k is None else p[k]).clone() for n, p in run.replicates.parameters.items()}


def same(ours: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return ours.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in ours.items())


def distance(ours: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference, relative to the size of its tensor where that is above 1."""
    assert ours.keys() == other.keys()
    pairs = [(t.cpu(), other[name].cpu()) for name, t in ours.items()]
    return max(float((a - b).abs().max()) / max(1.0, float(b.abs().max())) for a, b in pairs)


# --- one flow network that tests of interrupted and resumed runs share -----------------------------------

FILE, LOCK = "checkpoint.safetensors", ".checkpoint.lock"
NETWORK, DATA = make_network(family="flow"), make_data()
OPTIONS: dict[str, Any] = {
    "replicates": 2,
    "per_replicate": {"temperature": [1.0, 0.5], "prior.inclusion_prob": [0.1, 0.4]},
}


def history(run: Run) -> list[Epoch]:
    """All that was reported, without the clock."""
    return [dataclasses.replace(epoch, seconds=0.0) for epoch in run.history]


class Halt(Exception):
    """What ``Stop`` raises."""


class Stop(Callback):
    """Raises ``Halt`` when a hook is called for the n-th time."""

    def __init__(self, at: int, hook: str = "on_checkpoint") -> None:
        self.left = at
        setattr(self, hook, self._count)

    def _count(self, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise Halt


def stopped_and_resumed(network, data, settings, folder, at: int, **options: Any) -> Run:
    """A run that stops at its n-th checkpoint, one a step, and is resumed."""
    options = {"folder": folder, "checkpoint_seconds": 0.0, **options}
    with pytest.raises(Halt):
        fit(network, data, settings, callbacks=[Stop(at)], **options)
    return fit(network, data, settings, resume=True, **options)
