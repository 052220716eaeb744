"""Random numbers as functions of (seed, stream, step, index), and the noise of a forward pass.

A generator with a state gives replicate k other numbers when replicate j is added before it, and has to be
saved and restored to resume. Here number i of step t of seed s, in a block of a given length, is always the
same number, alone or among a hundred replicates, on a CPU or a GPU, before or after a restart. The bits are
two rounds of the splitmix64 finalizer over a counter, each with its own key; normals come by Box-Muller.

A layer asks for noise by shape and does not know who answers: torch's generator (:class:`RandomNoise`), a
block prepared beforehand (:class:`NoiseBuffer`), or a counter of how much is asked for
(:class:`NoiseCounter`).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sparsebnn.checks import invalid
from sparsebnn.kernels import noise as kernels
from sparsebnn.kernels import training
from sparsebnn.kernels.dispatch import for_capture, for_compiler, kernel

_WEYL = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)
_LOW_32 = 0xFFFFFFFF
_TO_UNIT_32 = 2.0**-32
_TO_UNIT_23 = 2.0**-23
_CHUNK = 1 << 17


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
    """The splitmix64 finalizer; the masks turn torch's arithmetic shift into a logical one."""
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


class NoisePart(NamedTuple):
    """Some numbers of a block of ``length``: their places in it, from front to back.

    Numbers come in pairs from one hash; ``hashes`` are those of the places, and the first ``firsts`` places
    hold the first numbers of their pairs. ``pairs`` has a column for each distinct hash: the hash, and which
    of ``places`` its first and its second number belong to (-1: to none).
    """

    length: int
    places: Tensor
    hashes: Tensor
    firsts: int
    pairs: Tensor

    @classmethod
    def of(cls, places: Tensor, length: int) -> NoisePart:
        half = (length + 1) // 2
        firsts = int((places < half).sum())
        hashes = torch.where(places < half, places, places - half)
        distinct, column = hashes.unique(return_inverse=True)
        pairs = torch.stack([distinct, *torch.full_like(distinct, -1).expand(2, -1)])
        number = torch.arange(len(places), device=places.device)
        pairs[1, column[:firsts]] = number[:firsts]
        pairs[2, column[firsts:]] = number[firsts:]
        return cls(length, places, hashes, firsts, pairs)


def _bits(seeds: Tensor, stream: int, step: Tensor | int, count: int, index: Tensor | None = None) -> Tensor:
    """``(K, count)`` hashes of 64 bits, or those of an index; ``seeds`` and ``step`` broadcast to K."""
    first, second = keys(seeds, stream, step)
    # The index enters by exclusive or: a compiler may turn index arithmetic into address arithmetic,
    # where the overflow that a product relies on is undefined.
    index = torch.arange(count, device=seeds.device) if index is None else index
    return _mix(_mix(index ^ first.unsqueeze(-1)) ^ second.unsqueeze(-1))


def _chunks(index: Tensor, seeds: Tensor) -> tuple[Tensor, ...]:
    """Parts of an index whose hashes fit into a cache; on a GPU, or while a compiler records, all of it."""
    whole = seeds.is_cuda or type(seeds) is not Tensor
    return index.split(max(1, len(index) if whole else _CHUNK // max(1, seeds.numel())))


def _polar(bits: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Radius and angle of Box and Muller."""
    radius_at = (((bits >> 32) & _LOW_32).to(dtype) + 0.5) * _TO_UNIT_32
    angle = (bits & _LOW_32).to(dtype) * (2.0 * math.pi * _TO_UNIT_32)
    return torch.sqrt(-2.0 * torch.log(radius_at)), angle


def _has_kernel(seeds: Tensor, count: int, dtype: torch.dtype, eager: bool) -> bool:
    """Whether the kernel makes the numbers: in compiled and captured steps, and where eager code asks for it.

    An eager training step does not ask, because compiled steps are tested against it.
    """
    if not (seeds.is_cuda and dtype == torch.float32 and count > 0):
        return False
    return for_compiler() or ((eager or for_capture()) and kernels.works(seeds.device))


def _by_kernel(seeds: Tensor, stream: int, step: Tensor | int, count: int, normal: bool) -> Tensor:
    if for_capture() and isinstance(step, Tensor) and step.numel() == 1:
        return kernels.of_step(seeds, stream, step, count, normal)
    return kernel(kernels.block)(*keys(seeds, stream, step), count, normal)


def normals(
    seeds: Tensor,
    stream: int,
    step: Tensor | int,
    count: int,
    dtype: torch.dtype = torch.float32,
    *,
    eager: bool = False,
    fused: bool = False,
) -> Tensor:
    """``(K, count)`` standard normal numbers; other kinds of numbers need another stream.

    ``eager`` code may use the kernel on CUDA; ``fused`` numbers come from compiled loops on a CPU.

    >>> alone = normals(seed_tensor([7]), 1, 0, 5)
    >>> among = normals(seed_tensor([3, 7]), 1, 0, 5)
    >>> bool((alone[0] == among[1]).all())
    True
    """
    if _has_kernel(seeds, count, dtype, eager):
        return _by_kernel(seeds, stream, step, count, True)
    if fused and training.makes(seeds, step, count, dtype):
        return training.normals(seeds, stream, step, count, dtype)
    cosines, sines = [], []
    for index in _chunks(torch.arange((count + 1) // 2, device=seeds.device), seeds):
        radius, angle = _polar(_bits(seeds, stream, step, 0, index), dtype)
        cosines.append(radius * torch.cos(angle))
        sines.append(radius * torch.sin(angle))
    return torch.cat([*cosines, *sines], dim=-1)[:, :count]


def part_of_normals(
    seeds: Tensor,
    stream: int,
    step: Tensor | int,
    part: NoisePart,
    dtype: torch.dtype = torch.float32,
    *,
    fused: bool = False,
) -> Tensor:
    """The numbers of :func:`normals` at some places, without making the others.

    >>> some = part_of_normals(seed_tensor([7]), 1, 0, NoisePart.of(torch.tensor([0, 3, 4]), 5))
    >>> bool((some == normals(seed_tensor([7]), 1, 0, 5)[:, [0, 3, 4]]).all())
    True
    """
    if _has_kernel(seeds, part.length, dtype, False):
        return normals(seeds, stream, step, part.length, dtype).index_select(-1, part.places)
    if fused and dtype == torch.float32 and training.makes(seeds, step, len(part.places), dtype):
        return training.normals_at(seeds, stream, int(step), part.pairs, len(part.places))
    found = []
    for turn, hashes in ((torch.cos, part.hashes[: part.firsts]), (torch.sin, part.hashes[part.firsts :])):
        for index in _chunks(hashes, seeds):
            radius, angle = _polar(_bits(seeds, stream, step, 0, index), dtype)
            found.append(radius * turn(angle))
    return torch.cat(found, dim=-1)


def part_of_logistics(
    seeds: Tensor, stream: int, step: Tensor | int, part: NoisePart, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The numbers of :func:`logistics` at some places."""
    if _has_kernel(seeds, part.length, dtype, False):
        return logistics(seeds, stream, step, part.length, dtype).index_select(-1, part.places)
    bits, first = _bits(seeds, stream, step, part.length, part.hashes), part.firsts
    either = torch.cat([(bits[:, :first] >> 41) & 0x7FFFFF, (bits[:, first:] >> 9) & 0x7FFFFF], dim=-1)
    uniform = (either.to(dtype) + 0.5) * _TO_UNIT_23
    return torch.log(uniform) - torch.log1p(-uniform)


def logistics(
    seeds: Tensor,
    stream: int,
    step: Tensor | int,
    count: int,
    dtype: torch.dtype = torch.float32,
    *,
    eager: bool = False,
    fused: bool = False,
) -> Tensor:
    """``(K, count)`` standard logistic numbers: the logit of a uniform one."""
    if _has_kernel(seeds, count, dtype, eager):
        return _by_kernel(seeds, stream, step, count, False)
    if fused and training.makes(seeds, step, count, dtype):
        return training.logistics(seeds, stream, step, count, dtype)
    half = (count + 1) // 2
    bits = _bits(seeds, stream, step, half)
    pair = torch.cat([(bits >> 41) & 0x7FFFFF, (bits >> 9) & 0x7FFFFF], dim=-1)[:, :count]
    uniform = (pair.to(dtype) + 0.5) * _TO_UNIT_23
    return torch.log(uniform) - torch.log1p(-uniform)


def uniforms(
    seeds: Tensor, stream: int, step: Tensor | int, places: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """``(K, n)`` numbers strictly between 0 and 1, at these places of a block of any length."""
    bits = _bits(seeds, stream, step, 0, places)
    return (((bits >> 41) & 0x7FFFFF).to(dtype) + 0.5) * _TO_UNIT_23


def integers(seeds: Tensor, stream: int, step: Tensor | int, count: int, below: int) -> Tensor:
    """``(K, count)`` integers from 0 to ``below - 1`` (at most 2³¹), each as likely to one part in 2³².

    >>> integers(seed_tensor([7]), 1, 0, 1000, 5).unique().tolist()
    [0, 1, 2, 3, 4]
    """
    return (((_bits(seeds, stream, step, count) >> 32) & _LOW_32) * below) >> 32


def permutations(seeds: Tensor, stream: int, step: Tensor | int, count: int) -> Tensor:
    """``(K, count)`` random orders of ``0 … count-1``, one per seed."""
    bits = _bits(seeds, stream, step, count)
    if bits.device.type == "cpu":  # NumPy is many times as fast; no two hashes of a row are equal
        return torch.from_numpy(np.argsort(bits.numpy(), axis=-1))
    return torch.argsort(bits, dim=-1, stable=True)


def permuted(seeds: Tensor, stream: int, step: Tensor | int, places: Tensor, count: int) -> Tensor:
    """The numbers at some ``places``, ``(K, n)``, of a random order of ``0 … count-1``, in constant memory.

    A Feistel network of four rounds permutes the numbers of an even number of bits; what falls outside is
    permuted again. The order differs from that of :func:`permutations`.

    >>> places = torch.arange(10).expand(1, -1)
    >>> sorted(permuted(seed_tensor([7]), 1, 0, places, 10)[0].tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    half = max(1, (max(1, count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    first, second = keys(seeds, stream, step)
    rounds = [first, second, _mix(first + 1), _mix(second + 1)]
    found, outside = places, torch.ones_like(places, dtype=torch.bool)
    while bool(outside.any()):
        left, right = found >> half, found & mask
        for key in rounds:
            left, right = right, left ^ (_mix(right ^ key.unsqueeze(-1)) & mask)
        found = torch.where(outside, (left << half) | right, found)
        outside = found >= count
    return found


class NoiseSize(NamedTuple):
    """How many standard normal and standard logistic numbers one forward pass consumes."""

    normal: int
    logistic: int


class Noise(Protocol):
    """Anything that hands out standard normal and standard logistic tensors."""

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor: ...

    def logistic(self, shape: Sequence[int], like: Tensor) -> Tensor: ...


class RandomNoise:
    """New numbers at every call, from torch's generator or from the one given."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        return torch.randn(tuple(shape), generator=self.generator, dtype=like.dtype, device=like.device)

    def logistic(self, shape: Sequence[int], like: Tensor) -> Tensor:
        uniform = torch.rand(tuple(shape), generator=self.generator, dtype=like.dtype, device=like.device)
        tiny = torch.finfo(like.dtype).eps / 4.0
        uniform = uniform.clamp(tiny, 1.0 - torch.finfo(like.dtype).eps)
        return torch.log(uniform) - torch.log1p(-uniform)


class NoiseBuffer:
    """A prepared block of numbers, read from front to back; ``position`` is how far.

    >>> buffer = NoiseBuffer(torch.arange(6.0), torch.empty(0))
    >>> buffer.normal((2, 2), torch.zeros(1)).tolist(), buffer.normal((2,), torch.zeros(1)).tolist()
    ([[0.0, 1.0], [2.0, 3.0]], [4.0, 5.0])
    """

    def __init__(self, normals: Tensor, logistics: Tensor) -> None:
        self._normals = normals
        self._logistics = logistics
        self.position = (0, 0)

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        start, other = self.position
        stop = start + math.prod(shape)
        self.position = (stop, other)
        return self._cut(self._normals, start, stop, shape, "normal")

    def logistic(self, shape: Sequence[int], like: Tensor) -> Tensor:
        other, start = self.position
        stop = start + math.prod(shape)
        self.position = (other, stop)
        return self._cut(self._logistics, start, stop, shape, "logistic")

    @staticmethod
    def _cut(block: Tensor, start: int, stop: int, shape: Sequence[int], kind: str) -> Tensor:
        if stop > block.shape[-1]:
            advice = "Measure the network with the same batch size: noise_size(network, x)."
            raise invalid(kind, "NoiseBuffer", f"at least {stop} numbers long", block.shape[-1], advice)
        return block[start:stop].reshape(tuple(shape))


class RowNoiseBuffer:
    """A prepared block of numbers for every row, ``(rows, length)``, each read from front to back.

    What is asked for must have one entry per row along its first axis.

    >>> buffer = RowNoiseBuffer(torch.arange(6.0).reshape(2, 3), torch.empty(2, 0))
    >>> buffer.normal((2, 2), torch.zeros(1)).tolist(), buffer.normal((2, 1), torch.zeros(1)).tolist()
    ([[0.0, 1.0], [3.0, 4.0]], [[2.0], [5.0]])
    """

    def __init__(self, normals: Tensor, logistics: Tensor) -> None:
        self._normals = normals
        self._logistics = logistics
        self._normal_at = 0
        self._logistic_at = 0

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        start = self._normal_at
        self._normal_at = start + math.prod(shape[1:])
        return self._normals[:, start : self._normal_at].reshape(tuple(shape))

    def logistic(self, shape: Sequence[int], like: Tensor) -> Tensor:
        start = self._logistic_at
        self._logistic_at = start + math.prod(shape[1:])
        return self._logistics[:, start : self._logistic_at].reshape(tuple(shape))


class NoiseCounter:
    """Hands out zeros and counts what was asked for; ``leading`` are the sizes of the first axis."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start counting from 0."""
        self._normal = 0
        self._logistic = 0
        self.leading: set[int] = set()

    @property
    def size(self) -> NoiseSize:
        return NoiseSize(self._normal, self._logistic)

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        self._normal += math.prod(shape)
        self.leading.add(shape[0] if len(shape) else 1)
        return torch.zeros(tuple(shape), dtype=like.dtype, device=like.device)

    def logistic(self, shape: Sequence[int], like: Tensor) -> Tensor:
        self._logistic += math.prod(shape)
        self.leading.add(shape[0] if len(shape) else 1)
        return torch.zeros(tuple(shape), dtype=like.dtype, device=like.device)
