"""Random numbers as a function of (seed, stream, step, index): nothing is stored, nothing advances.

A generator with a state gives replicate k other numbers when replicate j is added before it, and
has to be saved and restored to resume. Here number i of step t of seed s is always the same number,
alone or among a hundred replicates, on a CPU or a GPU, before or after a restart.

The bits are two rounds of the splitmix64 finaliser over a counter, each round with a key of its own;
normals come by Box-Muller. Which numbers fill a block depends on the block's length too.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

__all__ = [
    "content_keys",
    "integers",
    "keys",
    "logistics",
    "normals",
    "permutations",
    "seed_tensor",
    "stream_id",
]

_WEYL = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)
_LOW_32 = 0xFFFFFFFF
_TO_UNIT_32 = 2.0**-32
_TO_UNIT_23 = 2.0**-23


def seed_tensor(seeds: list[int], device: torch.device | str = "cpu") -> Tensor:
    """Seeds as the int64 tensor that the functions below take, one entry per replicate."""
    return torch.tensor(seeds, dtype=torch.int64, device=device)


def stream_id(name: str) -> int:
    """A number for a named use of randomness ('noise', 'order'), so that two uses never coincide.

    >>> stream_id("noise") == stream_id("order")
    False
    """
    return zlib.crc32(name.encode())


def _mix(x: Tensor) -> Tensor:
    """The splitmix64 finaliser; the masks turn torch's arithmetic shift into a logical one."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _FIRST
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def keys(seeds: Tensor, stream: int, step: Tensor | int) -> tuple[Tensor, Tensor]:
    """The two keys, ``(K,)`` each, that turn an index into the bits of this seed, stream and step."""
    first = _mix(_mix(seeds * _WEYL + stream) + step)
    return first, _mix(first ^ _FIRST)


def content_keys(x: Tensor) -> Tensor:
    """A number for every row of ``x``, ``(rows,)`` of int64, that depends on the values of that row alone.

    >>> a, b = content_keys(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    >>> bool(a == b), bool(a == content_keys(torch.tensor([[0.0, 0.0], [1.0, 2.0]]))[1])
    (False, True)
    """
    flat = x.reshape(len(x), -1)
    # Adding 0 turns -0 into 0.
    bits = (flat.double() + 0.0).view(torch.int64) if flat.is_floating_point() else flat.long()
    place = _mix((torch.arange(flat.shape[1], device=x.device) + 1) * _WEYL)
    return _mix(_mix(bits ^ place).sum(1))


def _bits(seeds: Tensor, stream: int, step: Tensor | int, count: int) -> Tensor:
    """``(K, count)`` hashes of 64 bits; ``seeds`` and ``step`` broadcast to K."""
    first, second = keys(seeds, stream, step)
    # The index enters by exclusive or: a compiler may turn index arithmetic into address arithmetic,
    # where the overflow that a product relies on is undefined.
    index = torch.arange(count, device=seeds.device)
    return _mix(_mix(index ^ first.unsqueeze(-1)) ^ second.unsqueeze(-1))


def normals(
    seeds: Tensor, stream: int, step: Tensor | int, count: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """``(K, count)`` standard normal numbers; other kinds of numbers need another stream.

    >>> alone = normals(seed_tensor([7]), 1, 0, 5)
    >>> among = normals(seed_tensor([3, 7]), 1, 0, 5)
    >>> bool((alone[0] == among[1]).all())
    True
    """
    half = (count + 1) // 2
    bits = _bits(seeds, stream, step, half)
    radius_at = (((bits >> 32) & _LOW_32).to(dtype) + 0.5) * _TO_UNIT_32
    angle = (bits & _LOW_32).to(dtype) * (2.0 * math.pi * _TO_UNIT_32)
    radius = torch.sqrt(-2.0 * torch.log(radius_at))
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1)[:, :count]


def logistics(
    seeds: Tensor, stream: int, step: Tensor | int, count: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """``(K, count)`` standard logistic numbers: the logit of a uniform one."""
    half = (count + 1) // 2
    bits = _bits(seeds, stream, step, half)
    pair = torch.cat([(bits >> 41) & 0x7FFFFF, (bits >> 9) & 0x7FFFFF], dim=-1)[:, :count]
    uniform = (pair.to(dtype) + 0.5) * _TO_UNIT_23
    return torch.log(uniform) - torch.log1p(-uniform)


def integers(seeds: Tensor, stream: int, step: Tensor | int, count: int, below: int) -> Tensor:
    """``(K, count)`` integers from 0 to ``below - 1`` (at most 2³¹), each as likely to one part in 2³².

    >>> integers(seed_tensor([7]), 1, 0, 1000, 5).unique().tolist()
    [0, 1, 2, 3, 4]
    """
    return (((_bits(seeds, stream, step, count) >> 32) & _LOW_32) * below) >> 32


def permutations(seeds: Tensor, stream: int, step: Tensor | int, count: int) -> Tensor:
    """``(K, count)`` random orders of ``0 … count-1``, one per seed."""
    return torch.argsort(_bits(seeds, stream, step, count), dim=-1, stable=True)
