"""Random changes of a batch of images on the device: ``train(..., augment=[...])``.

An augmentation is a callable ``(batch, noise) -> batch``. Its noise is a function of (seed, step) and of the
row, so replicates, resumed runs and runs of several processes see the same images. ``noise`` hands out
numbers with the rows first: ``noise.uniform((rows, …))`` from 0 to 1, ``noise.normal((rows, …))`` and
``noise.integers((rows, …), below)``. A batch has images ``x``, ``(rows, channels, height, width)``, targets
``y`` and weights.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from sparsebnn.checks import check_count, check_number, invalid
from sparsebnn.random import noise as counter
from sparsebnn.training.batches import Batch, Mixed

__all__ = ["Augmentation", "Crop", "Cutout", "Flip", "Mixup", "RowNoise", "Shift", "Transform"]

_SPAN = 4096  # hash positions per row and call: more than a call takes, so that rows never share numbers


class RowNoise:
    """Numbers for the rows of a batch, one replicate: functions of seed, step, call and the row's place."""

    def __init__(self, seed: Tensor, step: Tensor, rows: tuple[int, int], dtype: torch.dtype) -> None:
        self.seed, self.step, self.rows, self.dtype = seed, step, rows, dtype
        self._calls = 0

    def _stream(self) -> int:
        self._calls += 1
        return zlib.crc32(f"augmentation {self._calls}".encode())

    def _places(self, shape: Sequence[int]) -> tuple[Tensor, int]:
        first, end = self.rows
        if not shape or shape[0] != end - first:
            expected = f"a number for each of the {end - first} rows along the first axis"
            raise invalid("shape", "RowNoise", expected, tuple(shape))
        each = math.prod(shape[1:])
        span = -(-each // _SPAN) * _SPAN
        place = torch.arange(first, end, device=self.seed.device)[:, None] * span
        return (place + torch.arange(each, device=self.seed.device)).reshape(-1), each

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Numbers from 0 to 1, never 0 or 1."""
        places, _ = self._places(shape)
        drawn = counter.uniforms(self.seed.reshape(1), self._stream(), self.step, places, self.dtype)
        return drawn.reshape(tuple(shape))

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal numbers."""
        return torch.special.ndtri(self.uniform(shape))

    def integers(self, shape: Sequence[int], below: int) -> Tensor:
        """Whole numbers from 0 to ``below - 1``."""
        return (self.uniform(shape) * below).long().clamp_max(below - 1)


class Augmentation(Protocol):
    """What ``augment`` takes."""

    def __call__(self, batch: Batch, noise: RowNoise) -> Batch: ...


def augmented(
    batch: Batch, changes: Sequence[Augmentation], seeds: Tensor, step: Tensor, rows: tuple[int, int]
) -> Batch:
    """A batch ``(K, rows, …)`` after all changes, each replicate with its own noise."""

    def one(x: Any, y: Any, weight: Tensor, seed: Tensor) -> tuple[Any, Any, Tensor]:
        noise = RowNoise(seed, step, rows, weight.dtype)
        now = Batch(x, y, weight, batch.rows)
        for change in changes:
            now = change(now, noise)
        return now.x, now.y, now.weight

    given = batch.x, batch.y, batch.weight, seeds
    if any(getattr(change, "draws", False) for change in changes):
        each = [one(*tree_map(lambda t: t[k], given)) for k in range(len(seeds))]  # noqa: B023
        x, y, weight = tree_map(lambda *parts: torch.stack(parts), each[0], *each[1:])
    else:
        x, y, weight = vmap(one)(*given)
    return Batch(x, y, weight, batch.rows)


def checked(given: Any, whole: bool, eager: bool) -> list[Augmentation]:
    """The augmentations as a list; ``whole``: a process computes whole batches, ``eager``: the mode."""
    changes = [given] if callable(given) else list(given)
    for change in changes:
        if not callable(change):
            raise invalid("augment", "train", "callables (batch, noise) -> batch", repr(change))
        if getattr(change, "meets_rows", False) and not whole:
            got = type(change).__name__
            raise invalid("augment", "train", "of single rows where a batch is computed in parts", got)
        if getattr(change, "draws", False) and not eager:
            raise invalid(
                "augment", "train", "free of torch's generator, or mode='eager'", type(change).__name__
            )
    return changes


def _images(x: Any, owner: str) -> Tensor:
    if not isinstance(x, Tensor) or x.dim() != 4:
        got = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise invalid("x", owner, "images of shape (rows, channels, height, width)", got)
    return x


def _taken(x: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """The pixels at rows ``(n, H)`` and columns ``(n, W)`` of every image; outside of it there is 0."""
    n, channels, height, width = x.shape
    inside = ((down >= 0) & (down < height))[:, :, None] & ((right >= 0) & (right < width))[:, None, :]
    place = down.clamp(0, height - 1)[:, :, None] * width + right.clamp(0, width - 1)[:, None, :]
    flat = place.reshape(n, 1, -1).expand(n, channels, -1)
    found = x.reshape(n, channels, -1).gather(2, flat).reshape(n, channels, *place.shape[1:])
    return torch.where(inside[:, None], found, torch.zeros_like(found))


class Shift:
    """Moves every image by up to ``most`` pixels down or up, and right or left; 0 comes in.

    The same as cropping an image that is padded by ``most`` pixels: :class:`Crop`.
    """

    def __init__(self, most: int) -> None:
        self.most = check_count(most, "most", type(self).__name__)

    def __call__(self, batch: Batch, noise: RowNoise) -> Batch:
        x = _images(batch.x, type(self).__name__)
        moves = noise.integers((x.shape[0], 2), 2 * self.most + 1) - self.most
        down = torch.arange(x.shape[2], device=x.device) - moves[:, :1]
        right = torch.arange(x.shape[3], device=x.device) - moves[:, 1:]
        return batch._replace(x=_taken(x, down, right))


class Crop(Shift):
    """Crops of the original size out of images padded by ``padding`` pixels of 0, as is usual for CIFAR."""

    def __init__(self, padding: int = 4) -> None:
        super().__init__(check_count(padding, "padding", "Crop"))


class Flip:
    """Mirrors every image left to right with probability ``share``."""

    def __init__(self, share: float = 0.5) -> None:
        check_number(share, "share", "Flip", "a probability", lambda value: 0.0 <= value <= 1.0)
        self.share = share

    def __call__(self, batch: Batch, noise: RowNoise) -> Batch:
        x = _images(batch.x, "Flip")
        turned = noise.uniform((x.shape[0], 1, 1, 1)) < self.share
        return batch._replace(x=torch.where(turned, x.flip(-1), x))


class Cutout:
    """Sets a square of ``size`` pixels at a random place of every image to 0, also across the border."""

    def __init__(self, size: int) -> None:
        self.size = check_count(size, "size", "Cutout")

    def __call__(self, batch: Batch, noise: RowNoise) -> Batch:
        x = _images(batch.x, "Cutout")
        covered = []
        for axis in (2, 3):
            first = noise.integers((x.shape[0], 1), x.shape[axis]) - self.size // 2
            place = torch.arange(x.shape[axis], device=x.device)
            covered.append((place >= first) & (place < first + self.size))
        hole = covered[0][:, None, :, None] & covered[1][:, None, None, :]
        return batch._replace(x=torch.where(hole, torch.zeros_like(x), x))


class Mixup:
    r"""Mixes every row with the next one of the batch: inputs :math:`\lambda x_i + (1-\lambda) x_{i+1}`.

    The loss is :math:`\lambda` times that of :math:`y_i` and :math:`1-\lambda` times that of
    :math:`y_{i+1}`; :math:`\lambda` is uniform, as with Beta(1, 1). For whole batches only.
    """

    meets_rows = True

    def __call__(self, batch: Batch, noise: RowNoise) -> Batch:
        share = noise.uniform((batch.x.shape[0],))
        own = share.reshape(-1, *[1] * (batch.x.dim() - 1))
        x = own * batch.x + (1.0 - own) * batch.x.roll(1, 0)
        return batch._replace(x=x, y=Mixed(batch.y, batch.y.roll(1, 0), share))


class Transform:
    """Any function of images, such as a transform of ``torchvision.transforms.v2``, that draws with torch.

    Torch's generator is seeded from the noise of the step and restored, so that runs can be repeated and
    resumed. All images of a batch share what it draws. Steps run eagerly, in whole batches.
    """

    draws = meets_rows = True

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        if not callable(function):
            raise invalid("function", "Transform", "a function of images", repr(function))
        self.function = function

    def __call__(self, batch: Batch, noise: RowNoise) -> Batch:
        seed = int(noise.integers((batch.x.shape[0],), 1 << 30)[0])
        cuda = [batch.x.device] if batch.x.is_cuda else []
        with torch.random.fork_rng(devices=cuda):
            torch.manual_seed(seed)
            return batch._replace(x=self.function(batch.x))
