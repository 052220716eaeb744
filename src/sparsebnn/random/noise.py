"""Randomness as an argument: where a forward pass gets its standard normal and logistic numbers.

A layer asks for noise by shape and does not know who answers: fresh numbers (:class:`RandomNoise`), a
flat block prepared beforehand (:class:`NoiseBuffer`), or nobody yet, when one only wants to know how much
will be asked for (:class:`NoiseCounter`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from sparsebnn.checks import invalid

__all__ = ["Noise", "RandomNoise", "NoiseBuffer", "RowNoiseBuffer", "NoiseCounter", "NoiseSize"]


class NoiseSize(NamedTuple):
    """How many standard normal and standard logistic numbers one forward pass consumes."""

    normal: int
    logistic: int


class Noise(Protocol):
    """Anything that hands out standard normal and standard logistic tensors."""

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor: ...

    def logistic(self, shape: Sequence[int], like: Tensor) -> Tensor: ...


class RandomNoise:
    """New numbers at every call, from torch's generator or from the one given."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        return torch.randn(tuple(shape), generator=self.generator, dtype=like.dtype, device=like.device)

    def logistic(self, shape: Sequence[int], like: Tensor) -> Tensor:
        uniform = torch.rand(tuple(shape), generator=self.generator, dtype=like.dtype, device=like.device)
        tiny = torch.finfo(like.dtype).eps / 4.0
        uniform = uniform.clamp(tiny, 1.0 - torch.finfo(like.dtype).eps)
        return torch.log(uniform) - torch.log1p(-uniform)


class NoiseBuffer:
    """A prepared block of numbers, read from front to back; ``position`` is how far.

    >>> tape = NoiseBuffer(torch.arange(6.0), torch.empty(0))
    >>> tape.normal((2, 2), torch.zeros(1)).tolist(), tape.normal((2,), torch.zeros(1)).tolist()
    ([[0.0, 1.0], [2.0, 3.0]], [4.0, 5.0])
    """

    def __init__(self, normals: Tensor, logistics: Tensor) -> None:
        self._normals = normals
        self._logistics = logistics
        self.position = (0, 0)

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        start, other = self.position
        stop = start + math.prod(shape)
        self.position = (stop, other)
        return self._cut(self._normals, start, stop, shape, "normal")

    def logistic(self, shape: Sequence[int], like: Tensor) -> Tensor:
        other, start = self.position
        stop = start + math.prod(shape)
        self.position = (other, stop)
        return self._cut(self._logistics, start, stop, shape, "logistic")

    @staticmethod
    def _cut(block: Tensor, start: int, stop: int, shape: Sequence[int], kind: str) -> Tensor:
        if stop > block.shape[-1]:
            advice = "Measure the network with the same batch size: noise_size(network, x)."
            raise invalid(kind, "NoiseBuffer", f"at least {stop} numbers long", block.shape[-1], advice)
        return block[start:stop].reshape(tuple(shape))


class RowNoiseBuffer:
    """A prepared block of numbers for every row, ``(rows, length)``, each read from front to back.

    What is asked for must have one entry per row along its first axis.

    >>> tape = RowNoiseBuffer(torch.arange(6.0).reshape(2, 3), torch.empty(2, 0))
    >>> tape.normal((2, 2), torch.zeros(1)).tolist(), tape.normal((2, 1), torch.zeros(1)).tolist()
    ([[0.0, 1.0], [3.0, 4.0]], [[2.0], [5.0]])
    """

    def __init__(self, normals: Tensor, logistics: Tensor) -> None:
        self._normals = normals
        self._logistics = logistics
        self._normal_at = 0
        self._logistic_at = 0

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        start = self._normal_at
        self._normal_at = start + math.prod(shape[1:])
        return self._normals[:, start : self._normal_at].reshape(tuple(shape))

    def logistic(self, shape: Sequence[int], like: Tensor) -> Tensor:
        start = self._logistic_at
        self._logistic_at = start + math.prod(shape[1:])
        return self._logistics[:, start : self._logistic_at].reshape(tuple(shape))


class NoiseCounter:
    """Hands out zeros and counts what was asked for; ``leading`` are the sizes of the first axis."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start counting from 0."""
        self._normal = 0
        self._logistic = 0
        self.leading: set[int] = set()

    @property
    def size(self) -> NoiseSize:
        return NoiseSize(self._normal, self._logistic)

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        self._normal += math.prod(shape)
        self.leading.add(shape[0] if len(shape) else 1)
        return torch.zeros(tuple(shape), dtype=like.dtype, device=like.device)

    def logistic(self, shape: Sequence[int], like: Tensor) -> Tensor:
        self._logistic += math.prod(shape)
        self.leading.add(shape[0] if len(shape) else 1)
        return torch.zeros(tuple(shape), dtype=like.dtype, device=like.device)
