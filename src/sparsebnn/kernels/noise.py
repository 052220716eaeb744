"""The numbers of :mod:`sparsebnn.random.counter` in one pass on CUDA: each hash is made once and gives two.

The compiler's own version makes every hash twice and the radius in a pass of its own; eagerly a block
takes some thirty passes over memory. Elsewhere, and in other precisions, these are the counter's functions
themselves. Eager code asks for the kernel with ``eager=True``: an eager training step does not, because it
is what compiled steps are tested against and fall back to.
"""

from __future__ import annotations

import functools
import logging

import torch
from torch import Tensor

from sparsebnn.kernels.tracing import for_compiler
from sparsebnn.random import counter

__all__ = ["logistics", "normals"]

_log = logging.getLogger("sparsebnn")


@torch.library.custom_op("sparsebnn::noise_block", mutates_args=())
def _block(first: Tensor, second: Tensor, count: int, normal: bool) -> Tensor:
    from sparsebnn.kernels import triton_noise

    return triton_noise.block(first, second, count, normal)


@_block.register_fake
def _(first: Tensor, second: Tensor, count: int, normal: bool) -> Tensor:
    return first.new_empty(len(first), count, dtype=torch.float32)


@functools.cache
def _works(device: torch.device) -> bool:
    """Whether Triton can make a kernel here; tried once."""
    try:
        key = torch.zeros(1, dtype=torch.int64, device=device)
        return bool(torch.isfinite(_block(key, key, 2, True)).all())
    except Exception as error:  # no Triton, no C compiler, a device too old: too many ways to name
        _log.info("Noise is made without its kernel (%s).", type(error).__name__)
        return False


def _fused(seeds: Tensor, count: int, dtype: torch.dtype, eager: bool) -> bool:
    if not (seeds.is_cuda and dtype == torch.float32 and count > 0):
        return False
    return for_compiler() or (eager and _works(seeds.device))


def normals(
    seeds: Tensor, stream: int, step: Tensor | int, count: int, dtype: torch.dtype, *, eager: bool = False
) -> Tensor:
    """As :func:`sparsebnn.random.counter.normals`."""
    if _fused(seeds, count, dtype, eager):
        return _block(*counter.keys(seeds, stream, step), count, True)
    return counter.normals(seeds, stream, step, count, dtype)


def logistics(
    seeds: Tensor, stream: int, step: Tensor | int, count: int, dtype: torch.dtype, *, eager: bool = False
) -> Tensor:
    """As :func:`sparsebnn.random.counter.logistics`."""
    if _fused(seeds, count, dtype, eager):
        return _block(*counter.keys(seeds, stream, step), count, False)
    return counter.logistics(seeds, stream, step, count, dtype)
