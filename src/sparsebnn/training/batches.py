"""Training data on its device, and the order in which each replicate sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsebnn import counter
from sparsebnn.checks import check_finite, check_rows, check_tensor, invalid
from sparsebnn.likelihoods import Likelihood
from sparsebnn.training.objective import Batch

__all__ = ["Batches", "gather", "targets_of"]

_ORDER = counter.stream_id("order")


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
    ) -> Batches:
        """Checked data: (x, y) or (x, y, weight)."""
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
        targets = likelihood.prepare(y)
        if targets.is_floating_point():
            targets = targets.to(dtype)
        if x.dtype != torch.uint8:
            x = x.to(dtype)
        moved = None if weight is None else weight.to(device)
        return cls(x.to(device), targets.to(device), moved, min(size, rows))

    @property
    def rows(self) -> int:
        return self.x.shape[0]

    @property
    def per_epoch(self) -> int:
        """How many batches make an epoch."""
        return -(-self.rows // self.size)

    def order(self, seeds: Tensor, epoch: int, shuffle: bool) -> Tensor:
        """``(K, per_epoch · size)`` row numbers of an epoch, filled up at the end by rows of weight 0."""
        if shuffle:
            order = counter.permutations(seeds, _ORDER, epoch, self.rows)
        else:
            order = torch.arange(self.rows, device=self.x.device).expand(len(seeds), -1)
        short = self.per_epoch * self.size - self.rows
        return torch.cat([order, order[:, :1].expand(-1, short)], dim=1).contiguous()

    def masks(self, dtype: torch.dtype) -> Tensor:
        """``(per_epoch, size)``: 1 for a real row, 0 for a filled-up one."""
        real = torch.arange(self.per_epoch * self.size, device=self.x.device) < self.rows
        return real.to(dtype).reshape(self.per_epoch, self.size)

    def tensors(self) -> dict[str, Tensor]:
        """What :func:`gather` reads."""
        held = {"x": self.x, "y": self.y}
        return held if self.weight is None else {**held, "weight": self.weight}


def gather(data: dict[str, Tensor], index: Tensor, mask: Tensor) -> Batch:
    """The batch of these row numbers, ``(size,)`` or ``(K, size)``, with the mask of the batch."""
    x = data["x"][index]
    if x.dtype == torch.uint8:
        x = x.to(mask.dtype) / 255.0
    weight = mask * data["weight"][index] if "weight" in data else mask
    return Batch(x, data["y"][index], weight.expand(index.shape), mask.sum())
