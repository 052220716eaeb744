"""Triton kernels of a flow's z: the steps around masked layers, and Adam's step of all that makes z.

Those of the weights that z multiplies are in :mod:`sparsebnn.kernels.triton_scaled`.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsebnn.kernels.triton_dense import _move
from sparsebnn.kernels.triton_spike_slab import _softplus

LOG_2_PI = tl.constexpr(1.8378770664093453)
BLOCK = 1024  # numbers at once, where a program takes a whole vector


@triton.jit(do_not_specialize=["dim", "noise_at", "noise_size"])
def _begin_kernel(mean, log_var, noise, z, nats, dim, noise_at, noise_size, BLOCK: tl.constexpr):
    """z₀ and log q(z₀)."""
    k = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, dim, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there = i < dim
        drawn = tl.load(noise + k * noise_size + noise_at + i, mask=there, other=0.0)
        own = tl.load(log_var + k * dim + i, mask=there, other=0.0)
        m = tl.load(mean + k * dim + i, mask=there, other=0.0)
        tl.store(z + k * dim + i, m + tl.exp(0.5 * own) * drawn, mask=there)
        total += tl.where(there, -0.5 * (LOG_2_PI + own + drawn * drawn), 0.0)
    tl.store(nats + k, tl.sum(total, 0))


@triton.jit(do_not_specialize=["dim"])
def _gate_kernel(made, z, out, before, nats, dim, BLOCK: tl.constexpr):
    """A step of a flow from what its network has made, (m, s); its log-determinant leaves the KL."""
    k = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, dim, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there = i < dim
        m = tl.load(made + 2 * k * dim + i, mask=there, other=0.0)
        s = tl.load(made + 2 * k * dim + dim + i, mask=there, other=0.0)
        own = tl.load(z + k * dim + i, mask=there, other=0.0)
        gate = tl.sigmoid(s)
        tl.store(out + k * dim + i, gate * own + (1.0 - gate) * m, mask=there)
        total += tl.where(there, _softplus(-s), 0.0)
    tl.store(nats + k, tl.load(before + k) + tl.sum(total, 0))


@triton.jit
def _in_parts(parts, count, size, k, i, there):
    """The sum over ``(K, count, size)``, at one place."""
    total = tl.where(there, 0.0, 0.0)
    for part in range(count):
        total += tl.load(parts + (k * count + part) * size + i, mask=there, other=0.0)
    return total


@triton.jit(do_not_specialize=["dim", "count", "other_count"])
def _gate_back_kernel(
    direct, parts, count, other, other_count, made, z, share, to_z, to_made, dim, BLOCK: tl.constexpr
):
    """Gradients by z and by (m, s); that of what came out is the sum of ``direct`` and two in parts."""
    k = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < dim
    g = tl.load(direct + k * dim + i, mask=there, other=0.0)
    g += _in_parts(parts, count, dim, k, i, there) + _in_parts(other, other_count, dim, k, i, there)
    m = tl.load(made + 2 * k * dim + i, mask=there, other=0.0)
    s = tl.load(made + 2 * k * dim + dim + i, mask=there, other=0.0)
    own = tl.load(z + k * dim + i, mask=there, other=0.0)
    gate, closed = tl.sigmoid(s), tl.sigmoid(-s)
    tl.store(to_z + k * dim + i, g * gate, mask=there)
    tl.store(to_made + 2 * k * dim + i, g * closed, mask=there)
    by_s = g * (own - m) * gate * closed - tl.load(share + k) * closed
    tl.store(to_made + 2 * k * dim + dim + i, by_s, mask=there)


@triton.jit(do_not_specialize=["outputs", "rows", "width", "replicates"])
def _folded_kernel(
    by_row, folded, weight, weight_first, weight_second, bias, bias_first, bias_second, long, short, places,
    rates, root, alive, replicates, outputs, rows, width,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, OF_WEIGHT: tl.constexpr,
    OF_BIAS: tl.constexpr, UPDATE: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Adam's step of a folded masked layer: a weight's gradient is that of its output times its input."""
    k = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * BR + tl.arange(0, BR)
    col = tl.program_id(0) * BC + tl.arange(0, BC)
    lives = tl.load(alive + k) if UPDATE else True
    known, seen = (row < rows) & lives, col < width
    there, at = known[:, None] & seen[None, :], (k * rows + row[:, None]) * width + col[None, :]
    to_long = tl.load(by_row + 2 * k * rows + row, mask=known, other=0.0)
    to_short = tl.load(by_row + 2 * k * rows + rows + row, mask=known, other=0.0)
    forwards = tl.load(folded + k * width + col, mask=seen, other=0.0)[None, :]
    backwards = tl.load(folded + k * width + width - 1 - col, mask=seen, other=0.0)[None, :]
    n_long = tl.load(long + row, mask=known, other=0)[:, None]
    first_short = width - tl.load(short + row, mask=known, other=0)[:, None]
    g = tl.where(col[None, :] < n_long, to_long[:, None] * forwards, 0.0)
    g += tl.where(col[None, :] >= first_short, to_short[:, None] * backwards, 0.0)
    root_now = tl.load(root) if UPDATE else 1.0
    rate = tl.load(rates + OF_WEIGHT * replicates + k) if UPDATE else 0.0
    w = tl.load(weight + at, mask=there, other=0.0)
    _move(weight, weight_first, weight_second, at, there, g, w, rate, root_now, BETA1, BETA2, EPS, UPDATE)
    if tl.program_id(0) == 0:
        rate = tl.load(rates + OF_BIAS * replicates + k) if UPDATE else 0.0
        for half in tl.static_range(2):
            place = tl.load(places + half * rows + row, mask=known, other=outputs)
            real, to = place < outputs, k * outputs + place
            b = tl.load(bias + to, mask=real, other=0.0)
            grad = to_long if half == 0 else to_short
            _move(bias, bias_first, bias_second, to, real, grad, b, rate, root_now,
                  BETA1, BETA2, EPS, UPDATE)  # fmt: skip


@triton.jit(do_not_specialize=["dim", "count", "flow_count", "noise_at", "noise_size", "replicates"])
def _vectors_kernel(
    direct, from_flow, flow_count, to_direction, count, to_d_mean, to_d_log_var, noise, share,
    mean, mean_1, mean_2, log_var, log_var_1, log_var_2, direction, direction_1, direction_2,
    d_mean, d_mean_1, d_mean_2, d_log_var, d_log_var_1, d_log_var_2, rates, root, alive, replicates, dim,
    noise_at, noise_size,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, OF_MEAN: tl.constexpr,
    OF_LOG_VAR: tl.constexpr, OF_DIRECTION: tl.constexpr, OF_D_MEAN: tl.constexpr, OF_D_LOG_VAR: tl.constexpr,
    UPDATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adam's step of the five vectors of a layer: of z₀, and of r."""
    k = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there, at = i < (tl.where(tl.load(alive + k), dim, 0) if UPDATE else dim), k * dim + i
    root_now = tl.load(root) if UPDATE else 1.0
    g = tl.load(direct + at, mask=there, other=0.0) + _in_parts(from_flow, flow_count, dim, k, i, there)
    p = tl.load(mean + at, mask=there, other=0.0)
    rate = tl.load(rates + OF_MEAN * replicates + k) if UPDATE else 0.0
    _move(mean, mean_1, mean_2, at, there, g, p, rate, root_now, BETA1, BETA2, EPS, UPDATE)
    p = tl.load(log_var + at, mask=there, other=0.0)
    drawn = tl.load(noise + k * noise_size + noise_at + i, mask=there, other=0.0)
    g = 0.5 * (g * tl.exp(0.5 * p) * drawn - tl.load(share + k))
    rate = tl.load(rates + OF_LOG_VAR * replicates + k) if UPDATE else 0.0
    _move(log_var, log_var_1, log_var_2, at, there, g, p, rate, root_now, BETA1, BETA2, EPS, UPDATE)
    p = tl.load(direction + at, mask=there, other=0.0)
    g = _in_parts(to_direction, count, dim, k, i, there)
    rate = tl.load(rates + OF_DIRECTION * replicates + k) if UPDATE else 0.0
    _move(direction, direction_1, direction_2, at, there, g, p, rate, root_now, BETA1, BETA2, EPS, UPDATE)
    p = tl.load(d_mean + at, mask=there, other=0.0)
    g = tl.load(to_d_mean + at, mask=there, other=0.0)
    rate = tl.load(rates + OF_D_MEAN * replicates + k) if UPDATE else 0.0
    _move(d_mean, d_mean_1, d_mean_2, at, there, g, p, rate, root_now, BETA1, BETA2, EPS, UPDATE)
    p = tl.load(d_log_var + at, mask=there, other=0.0)
    g = tl.load(to_d_log_var + at, mask=there, other=0.0)
    rate = tl.load(rates + OF_D_LOG_VAR * replicates + k) if UPDATE else 0.0
    _move(d_log_var, d_log_var_1, d_log_var_2, at, there, g, p, rate, root_now, BETA1, BETA2, EPS, UPDATE)


def begin(mean: Tensor, log_var: Tensor, noise: Tensor, noise_at: int) -> tuple[Tensor, Tensor]:
    """z₀ ``(K, dim)`` and log q(z₀)."""
    k, dim = mean.shape
    z, nats = torch.empty_like(mean), mean.new_empty(k)
    size = noise.shape[1]
    _begin_kernel[(k,)](mean, log_var, noise, z, nats, dim, noise_at, size, BLOCK, num_warps=4)
    return z, nats


def gate(made: Tensor, z: Tensor, nats: Tensor) -> tuple[Tensor, Tensor]:
    """The next z, and ``nats`` less the step's log-determinant."""
    k, dim = z.shape
    out, after = torch.empty_like(z), torch.empty_like(nats)
    _gate_kernel[(k,)](made, z, out, nats, after, dim, BLOCK, num_warps=4)
    return out, after


def gate_back(
    direct: Tensor, parts: Tensor | None, other: Tensor | None, made: Tensor, z: Tensor, share: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients by z, as far as it does not go through the network, and by what the network made."""
    k, dim = z.shape
    to_z, to_made = torch.empty_like(z), torch.empty_like(made)
    counted = [(direct, 0) if each is None else (each, each.shape[1]) for each in (parts, other)]
    _gate_back_kernel[(triton.cdiv(dim, 128), k)](
        direct, *counted[0], *counted[1], made, z, share, to_z, to_made, dim, 128, num_warps=4
    )
    return to_z, to_made


Adam = tuple[Tensor, Tensor, Tensor, Sequence[int]]


def how(adam: Adam | None, some: Tensor, count: int) -> Adam:
    return (some, some, some, [0] * count) if adam is None else adam


def folded(
    by_row: Tensor, inputs: Tensor, held: Sequence[Tensor], fold: Sequence[Tensor],
    first: Sequence[Tensor], second: Sequence[Tensor], adam: Adam | None,
    constants: tuple[float, float, float],
) -> None:  # fmt: skip
    """Adam's step of weight and bias of a folded layer, from the gradients of its rows."""
    weight, bias = held
    k, rows, width = weight.shape
    long, short, _, places = fold
    rates, root, alive, groups = how(adam, weight, 2)
    _folded_kernel[(triton.cdiv(width, 128), triton.cdiv(rows, 8), k)](
        by_row, inputs, weight, first[0], second[0], bias, first[1], second[1], long, short, places,
        rates, root, alive, k, bias.shape[1], rows, width, *constants, *groups, adam is not None, 8, 128,
        num_warps=4,
    )  # fmt: skip


def vectors(
    direct: Tensor, from_flow: Tensor, to_direction: Tensor, to_d: Sequence[Tensor], noise: Tensor,
    noise_at: int, share: Tensor, held: Sequence[Tensor], first: Sequence[Tensor], second: Sequence[Tensor],
    adam: Adam | None, constants: tuple[float, float, float],
) -> None:  # fmt: skip
    """Adam's step of mean and log variance of z₀, of e, d₁ and d₂."""
    k, dim = direct.shape
    moved = [t for three in zip(held, first, second) for t in three]
    rates, root, alive, groups = how(adam, direct, 5)
    _vectors_kernel[(triton.cdiv(dim, 128), k)](
        direct, from_flow, from_flow.shape[1], to_direction, to_direction.shape[1], *to_d, noise, share,
        *moved, rates, root, alive, k, dim, noise_at, noise.shape[1], *constants, *groups, adam is not None,
        128, num_warps=4,
    )  # fmt: skip
