"""What the batching rules of the kernels share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

__all__ = ["stacked"]


def stacked(tensors: Sequence[Tensor], dims: Sequence[int | None], k: int) -> list[Tensor]:
    """Every tensor with the replicate axis in front, repeated where it has none."""
    moved = [t.expand(k, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(tensors, dims)]
    return [t.contiguous() for t in moved]
