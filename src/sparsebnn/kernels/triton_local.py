"""The Triton kernels behind :mod:`sparsebnn.kernels.local`; imported only where CUDA is used."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


@triton.jit
def _squares_kernel(x, out, count, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < count, other=0.0).to(tl.float32)
    tl.store(out + i, value * value, mask=i < count)


@triton.jit
def _joined_kernel(grad, grad_square, x, out, count, BLOCK: tl.constexpr):
    """The gradient through x, and 2x times the one through x²."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    first = tl.load(grad + i, mask=there, other=0.0).to(tl.float32)
    second = tl.load(grad_square + i, mask=there, other=0.0).to(tl.float32)
    value = tl.load(x + i, mask=there, other=0.0).to(tl.float32)
    tl.store(out + i, first + 2.0 * value * second, mask=there)


@triton.jit
def _tile(pixels, channels, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    """Places of a tile of pixels and channels in an image with channels last, and with channels first."""
    blocks = tl.cdiv(channels, CHANNELS)
    pixel = tl.program_id(0) // blocks * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    image = tl.program_id(1).to(tl.int64) * pixels * channels
    there = (pixel < pixels)[:, None] & (channel < channels)[None, :]
    last = image + pixel[:, None] * channels + channel[None, :]
    return last, image + channel[None, :] * pixels + pixel[:, None], there


@triton.jit
def _sampled_kernel(
    mean, var, noise, out, pixels, channels, FLOOR: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr
):
    last, first, there = _tile(pixels, channels, PIXELS, CHANNELS)
    m = tl.load(mean + last, mask=there, other=0.0).to(tl.float32)
    v = tl.load(var + last, mask=there, other=1.0).to(tl.float32)
    e = tl.load(noise + first, mask=there, other=0.0)
    std = tl.sqrt(tl.maximum(v, FLOOR, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + last, m + std * e, mask=there)


@triton.jit
def _to_variance_kernel(
    grad, var, noise, out, pixels, channels, FLOOR: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr
):
    last, first, there = _tile(pixels, channels, PIXELS, CHANNELS)
    g = tl.load(grad + last, mask=there, other=0.0).to(tl.float32)
    v = tl.load(var + last, mask=there, other=1.0).to(tl.float32)
    e = tl.load(noise + first, mask=there, other=0.0)
    moved = 0.5 * g * e / tl.sqrt(tl.maximum(v, FLOOR))
    tl.store(out + last, tl.where(v >= FLOOR, moved, 0.0), mask=there)


def squares(x: Tensor) -> Tensor:
    out = torch.empty_like(x, dtype=torch.float32)
    _squares_kernel[(triton.cdiv(x.numel(), _BLOCK),)](x, out, x.numel(), _BLOCK, num_warps=8)
    return out


def joined(grad: Tensor, grad_square: Tensor, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    given = [t.contiguous(memory_format=torch.channels_last) for t in (grad, grad_square)]
    _joined_kernel[(triton.cdiv(x.numel(), _BLOCK),)](*given, x, out, x.numel(), _BLOCK, num_warps=8)
    return out


def _by_tiles(kernel, first: Tensor, var: Tensor, noise: Tensor) -> Tensor:
    from sparsebnn.kernels.local import FLOOR

    out = torch.empty_like(first)
    rows, channels, height, width = first.shape
    wide, deep = (min(64, triton.next_power_of_2(n)) for n in (height * width, channels))
    tiles = triton.cdiv(height * width, wide) * triton.cdiv(channels, deep)
    kernel[(tiles, rows)](first, var, noise, out, height * width, channels, FLOOR, wide, deep, num_warps=4)
    return out


def sampled(mean: Tensor, var: Tensor, noise: Tensor) -> Tensor:
    return _by_tiles(_sampled_kernel, mean, var, noise)


def to_variance(grad: Tensor, var: Tensor, noise: Tensor) -> Tensor:
    return _by_tiles(_to_variance_kernel, grad, var, noise)
