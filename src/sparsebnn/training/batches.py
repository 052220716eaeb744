"""Training data on its device, and the order in which each replicate sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sparsebnn.checks import check_finite, check_rows, check_tensor, invalid
from sparsebnn.likelihoods import Likelihood
from sparsebnn.nn.networks import as_input
from sparsebnn.random import noise as counter

ORDER, _SHIFT = counter.stream_id("order"), counter.stream_id("shift")


class Batch(NamedTuple):
    """Examples with their weights; a padded example has weight 0. ``rows`` counts the real ones."""

    x: Any  # a tensor, or a tuple or a dict of tensors
    y: Any  # a tensor, or Mixed
    weight: Tensor
    rows: Tensor


class Mixed(NamedTuple):
    """Two targets for each row: the loss is ``share`` of the first and the rest of the second."""

    y: Tensor
    other: Tensor
    share: Tensor


def first_of(x: Any) -> Any:
    """Inputs of the first replicate: of one tensor, or of each in a tuple or a dict."""
    return x[0] if isinstance(x, Tensor) else tree_map(lambda one: one[0], x)


def targets_of(data: Any) -> Tensor:
    """The targets of what must be (x, y) or (x, y, weight)."""
    if not isinstance(data, tuple | list):
        advice = "Batches are made by train: pass all rows, as tensors or arrays."
        raise invalid("data", "train", "(x, y) or (x, y, weight)", f"a {type(data).__name__}", advice)
    if len(data) not in (2, 3):
        raise invalid("data", "train", "(x, y) or (x, y, weight)", f"{len(data)} arrays")
    return check_tensor(data[1], "y", "train")


@dataclass(frozen=True)
class Batches:
    """All rows, resident on one device; a batch is a gather.

    Pixels stay uint8 until they are gathered and are then divided by 255. The last batch of an epoch
    is filled up with rows of weight 0, so that every step has the same shape.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None
    size: int

    @classmethod
    def of(
        cls,
        data: tuple[Tensor, ...],
        likelihood: Likelihood,
        size: int,
        device: torch.device,
        dtype: torch.dtype,
        network: nn.Module | None = None,
    ) -> Batches:
        """Checked data: (x, y) or (x, y, weight), for the network that is to read x."""
        y = targets_of(data)
        x = check_tensor(data[0], "x", "train")
        if x.dim() < 2:
            raise invalid("x", "train", "of shape (rows, …)", f"shape {tuple(x.shape)}")
        sizes = [("x", x.shape[0]), ("y", y.shape[0] if y.dim() else 0)]
        weight = None
        if len(data) == 3:
            weight = check_tensor(data[2], "weight", "train").to(dtype)
            if weight.dim() != 1:
                raise invalid(
                    "weight", "train", "a vector, one weight per row", f"shape {tuple(weight.shape)}"
                )
            check_finite(weight, "weight", "train")
            sizes.append(("weight", weight.shape[0] if weight.dim() else 0))
        rows = check_rows(sizes, "train")
        check_finite(x, "x", "train")
        if weight is not None and not bool((weight >= 0).all()):
            raise invalid("weight", "train", "at least 0 everywhere", float(weight.min()))
        if weight is not None and not bool((weight > 0).any()):
            raise invalid("weight", "train", "above 0 for some rows", "0 everywhere")
        targets = likelihood.prepare(y)
        if targets.is_floating_point():
            targets = targets.to(dtype)
        x = as_input(x, network or nn.Identity(), dtype, "train")
        moved = None if weight is None else weight.to(device)
        return cls(x.to(device), targets.to(device), moved, min(size, rows))

    @property
    def rows(self) -> int:
        return self.x.shape[0]

    @property
    def device(self) -> torch.device:
        return self.x.device

    @property
    def per_epoch(self) -> int:
        """How many batches make an epoch."""
        return -(-self.rows // self.size)

    def order(self, seeds: Tensor, epoch: int, shuffle: bool, distinct: bool = False) -> Tensor:
        """``(K, per_epoch · size)`` row numbers of an epoch, filled up at the end by rows of weight 0.

        ``distinct``: by different rows, for networks that take statistics of a batch.
        """
        if shuffle:
            order = counter.permutations(seeds, ORDER, epoch, self.rows)
        else:
            order = torch.arange(self.rows, device=self.x.device).expand(len(seeds), -1)
        short = self.per_epoch * self.size - self.rows
        more = order[:, :short] if distinct else order[:, :1].expand(-1, short)
        return torch.cat([order, more], dim=1).contiguous()

    def check_shift(self, most: int) -> None:
        """Only images can be moved, and not out of sight."""
        sides = tuple(self.x.shape[2:]) if self.x.dim() == 4 else ()
        if most and (not sides or most >= min(sides)):
            expected = "0, or less than the sides of images of shape (rows, channels, height, width)"
            flat = "For a network of flat rows put nn.Flatten() first and pass images."
            channel = "Give images of one channel as x[:, None]."
            advice = "" if sides else channel if self.x.dim() == 3 else flat
            raise invalid("shift", "Settings", expected, f"{most} for x of {tuple(self.x.shape)}", advice)

    def shifts(self, seeds: Tensor, epoch: int, most: int) -> Tensor:
        """``(K, per_epoch · size, 2)``: by how much each image of an epoch is moved down and to the right."""
        count = self.per_epoch * self.size
        drawn = counter.integers(seeds, _SHIFT, epoch, 2 * count, 2 * most + 1) - most
        return drawn.reshape(len(seeds), count, 2)

    def masks(self, dtype: torch.dtype) -> Tensor:
        """``(per_epoch, size)``: 1 for a real row, 0 for a filled-up one."""
        real = torch.arange(self.per_epoch * self.size, device=self.x.device) < self.rows
        return real.to(dtype).reshape(self.per_epoch, self.size)

    def tensors(self) -> dict[str, Tensor]:
        """What :func:`gather` reads."""
        held = {"x": self.x, "y": self.y}
        return held if self.weight is None else {**held, "weight": self.weight}


def gather(data: dict[str, Tensor], index: Tensor, mask: Tensor, shifts: Tensor | None = None) -> Batch:
    """The batch of these row numbers, ``(size,)`` or ``(K, size)``, with the mask of the batch.

    ``shifts``, ``(…, size, 2)``, moves each image down and to the right.
    """
    x = _rows(data["x"], index) if shifts is None else _moved(data["x"], index, shifts)
    if x.dtype == torch.uint8:
        x = x.to(mask.dtype) / 255.0
    weight = mask * data["weight"][index] if "weight" in data else mask
    return Batch(x, _rows(data["y"], index), weight.expand(index.shape), mask.sum())


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """``values[index]``; on a CPU selecting is three times as fast as indexing."""
    if index.device.type != "cpu":
        return values[index]
    return values.index_select(0, index.reshape(-1)).unflatten(0, index.shape)


def _moved(images: Tensor, index: Tensor, shifts: Tensor) -> Tensor:
    """Images of ``(rows, channels, height, width)``, chosen and moved in one gather; 0 comes in."""
    channels, height, width = images.shape[1:]
    # Where a pixel comes from: (…, size, height) and (…, size, width).
    down, right = (
        torch.arange(side, device=images.device) - shifts[..., axis, None]
        for axis, side in enumerate((height, width))
    )
    inside = ((down >= 0) & (down < height))[..., :, None] & ((right >= 0) & (right < width))[..., None, :]
    found = images[
        index[..., None, None, None],
        torch.arange(channels, device=images.device)[:, None, None],
        down.clamp(0, height - 1)[..., None, :, None],
        right.clamp(0, width - 1)[..., None, None, :],
    ]
    return torch.where(inside.unsqueeze(-3), found, torch.zeros_like(found))
