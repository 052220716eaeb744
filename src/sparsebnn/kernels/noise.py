"""The noise of one step in one pass on CUDA: each hash is made once and gives two numbers.

The compiler's own version computes every hash twice and the radius in a separate pass; eagerly a block
takes some thirty passes over memory. :mod:`sparsebnn.random.noise` has the eager twin and chooses.
"""

from __future__ import annotations

import functools
import logging

import torch
from torch import Tensor

_log = logging.getLogger("sparsebnn")


@torch.library.custom_op("sparsebnn::noise_block", mutates_args=())
def block(first: Tensor, second: Tensor, count: int, normal: bool) -> Tensor:
    from sparsebnn.kernels import triton_noise

    return triton_noise.block(first, second, count, normal)


@block.register_fake
def _(first: Tensor, second: Tensor, count: int, normal: bool) -> Tensor:
    return first.new_empty(len(first), count, dtype=torch.float32)


def of_step(seeds: Tensor, stream: int, step: Tensor, count: int, normal: bool) -> Tensor:
    """The same numbers, with the keys made in the kernel: twenty operations less in a captured step."""
    from sparsebnn.kernels import triton_noise

    return triton_noise.block(seeds, step, count, normal, stream)


@functools.cache
def works(device: torch.device) -> bool:
    """Whether Triton can make a kernel here; tried once."""
    try:
        from sparsebnn.kernels import triton_noise

        key = torch.zeros(1, dtype=torch.int64, device=device)
        return bool(torch.isfinite(triton_noise.block(key, key, 2, True)).all())
    except Exception as error:  # no Triton, no C compiler, a device too old: too many ways to name
        _log.info("Noise is made without its kernel (%s).", type(error).__name__)
        return False
