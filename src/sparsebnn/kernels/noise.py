"""The numbers of :mod:`sparsebnn.counter` in one pass on CUDA: each hash is made once and gives two.

The compiler's own version makes every hash twice and the radius in a pass of its own. Elsewhere, and
in other precisions, these are the counter's functions themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparsebnn import counter
from sparsebnn.tracing import for_compiler

__all__ = ["logistics", "normals"]


@torch.library.custom_op("sparsebnn::noise_block", mutates_args=())
def _block(first: Tensor, second: Tensor, count: int, normal: bool) -> Tensor:
    from sparsebnn.kernels import triton_noise

    return triton_noise.block(first, second, count, normal)


@_block.register_fake
def _(first: Tensor, second: Tensor, count: int, normal: bool) -> Tensor:
    return first.new_empty(len(first), count, dtype=torch.float32)


def _fused(seeds: Tensor, count: int, dtype: torch.dtype) -> bool:
    return for_compiler() and seeds.is_cuda and dtype == torch.float32 and count > 0


def normals(seeds: Tensor, stream: int, step: Tensor | int, count: int, dtype: torch.dtype) -> Tensor:
    """As :func:`sparsebnn.counter.normals`."""
    if _fused(seeds, count, dtype):
        return _block(*counter.keys(seeds, stream, step), count, True)
    return counter.normals(seeds, stream, step, count, dtype)


def logistics(seeds: Tensor, stream: int, step: Tensor | int, count: int, dtype: torch.dtype) -> Tensor:
    """As :func:`sparsebnn.counter.logistics`."""
    if _fused(seeds, count, dtype):
        return _block(*counter.keys(seeds, stream, step), count, False)
    return counter.logistics(seeds, stream, step, count, dtype)
