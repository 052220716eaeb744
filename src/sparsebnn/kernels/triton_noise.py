"""The Triton kernel behind :mod:`sparsebnn.kernels.noise`; imported only where CUDA is used."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _mix(x):
    """The splitmix64 finalizer; the masks make the shifts logical."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _kernel(
    out, first, second, stream, half, count, NORMAL: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr
):
    blocks = tl.cdiv(half, BLOCK)
    replicate = (tl.program_id(0) // blocks).to(tl.int64)
    i = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    if KEYS:
        one, two = tl.load(first + replicate), tl.load(second + replicate)
    else:  # seeds, and the step
        one = _mix(_mix(tl.load(first + replicate) * -7046029254386353131 + stream) + tl.load(second))
        two = _mix(one ^ -4658895280553007687)
    bits = _mix(_mix(i.to(tl.int64) ^ one) ^ two)
    if NORMAL:
        unit = (((bits >> 32) & 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
        angle = (bits & 0xFFFFFFFF).to(tl.float32) * 1.4629180792671596e-09
        radius = tl.sqrt(-2.0 * tl.log(unit))
        x, y = radius * tl.cos(angle), radius * tl.sin(angle)
    else:
        u = (((bits >> 41) & 0x7FFFFF).to(tl.float32) + 0.5) * 1.1920928955078125e-07
        w = (((bits >> 9) & 0x7FFFFF).to(tl.float32) + 0.5) * 1.1920928955078125e-07
        # 1 - u is exact here: u has 24 bits.
        x, y = tl.log(u) - tl.log(1.0 - u), tl.log(w) - tl.log(1.0 - w)
    out += replicate * count
    tl.store(out + i, x, mask=i < half)
    tl.store(out + half + i, y, mask=half + i < count)


def block(first: Tensor, second: Tensor, count: int, normal: bool, stream: int | None = None) -> Tensor:
    """``(K, count)`` standard normal or logistic numbers for two keys, or for seeds, step and ``stream``."""
    out = torch.empty(len(first), count, dtype=torch.float32, device=first.device)
    half = (count + 1) // 2
    size = min(1024, triton.next_power_of_2(half))
    grid = (triton.cdiv(half, size) * len(first),)
    keyed = stream is None
    _kernel[grid](out, first, second, stream or 0, half, count, normal, keyed, size, num_warps=4)
    return out
