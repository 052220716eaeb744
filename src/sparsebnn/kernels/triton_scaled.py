"""Triton kernels of weights that a flow's z multiplies, and of the auxiliary (``training.captured_flow``).

``z`` multiplies the columns of the weights. ``share`` is what the KL counts, so gradients of the auxiliary
need no other gradient. Sums run in a fixed order.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsebnn.kernels.triton_dense import _changes, _move, _stride
from sparsebnn.kernels.triton_flow import BLOCK, LOG_2_PI, Adam, how
from sparsebnn.kernels.triton_spike_slab import _TINY, _softplus

_LARGE = tl.constexpr(50.0)  # no log variance of z given the weights is beyond


@triton.jit(do_not_specialize=["rows", "columns", "stride"])
def _moments_kernel(
    mean, raw_std, logit, z, direction, first, second, sums, by_row, prior_mean, stride, rows, columns,
    DENSE: tl.constexpr, BY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a row of weights: moments, sums for their KL, and the moments of its product with ``direction``."""
    columns *= BY
    k, row = tl.program_id(1).to(tl.int64), tl.program_id(0)
    center = tl.load(prior_mean + k * stride)
    kept_sum, squares_sum = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    rest_sum = tl.zeros((BLOCK,), tl.float32)
    to_mean, to_var = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        col = start + tl.arange(0, BLOCK)
        there, at = col < columns, (k * rows + row) * columns + col
        scale = tl.load(z + k * columns + col, mask=there, other=0.0)
        e = tl.load(direction + k * columns + col, mask=there, other=0.0)
        m = tl.load(mean + at, mask=there, other=0.0) * scale
        std = _softplus(tl.load(raw_std + at, mask=there, other=0.0))
        error, log_std, square = m - center, tl.log(tl.maximum(std, _TINY)), std * std
        if DENSE:
            kept, var = there.to(tl.float32), square
            squares, rest, average = square + error * error, -log_std, m
        else:
            own = tl.load(logit + at, mask=there, other=0.0)
            kept = tl.sigmoid(own)
            average, var = kept * m, kept * (square + tl.sigmoid(-own) * m * m)
            squares, rest = kept * (square + error * error), kept * (own - log_std) - _softplus(own)
        tl.store(first + at, average, mask=there)
        tl.store(second + at, var, mask=there)
        kept_sum += tl.where(there, kept, 0.0)
        squares_sum += tl.where(there, squares, 0.0)
        rest_sum += tl.where(there, rest, 0.0)
        to_mean += tl.where(there, e * average, 0.0)
        to_var += tl.where(there, e * e * var, 0.0)
    out = sums + 3 * (k * rows + row)
    tl.store(out, tl.sum(kept_sum, 0))
    tl.store(out + 1, tl.sum(squares_sum, 0))
    tl.store(out + 2, tl.sum(rest_sum, 0))
    tl.store(by_row + 2 * k * rows + row, tl.sum(to_mean, 0))
    tl.store(by_row + 2 * k * rows + rows + row, tl.sum(to_var, 0))


@triton.jit(do_not_specialize=["rows", "dim", "noise_at", "noise_size", "layers", "layer"])
def _auxiliary_kernel(
    by_row, noise, z, d_mean, d_log_var, share, before, by_layer, layers, layer, to_row, to_z, to_d_mean,
    to_d_log_var, rows, dim, noise_at, noise_size, least, BLOCK: tl.constexpr,
):  # fmt: skip
    """−log r(z | W, Γ) but for the determinant, and its gradients times ``share``."""
    k = tl.program_id(0).to(tl.int64)
    nat = tl.load(share + k)
    squashed = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, rows, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there = i < rows
        var = tl.load(by_row + 2 * k * rows + rows + i, mask=there, other=1.0)
        s = tl.load(by_row + 2 * k * rows + i, mask=there, other=0.0)
        std = tl.sqrt(tl.maximum(var, least, propagate_nan=tl.PropagateNan.ALL))
        s += std * tl.load(noise + k * noise_size + noise_at + i, mask=there, other=0.0)
        s = tl.minimum(s, 1.0, propagate_nan=tl.PropagateNan.ALL)
        s = tl.maximum(s, -1.0, propagate_nan=tl.PropagateNan.ALL)
        squashed += tl.where(there, s, 0.0)
    active = tl.sum(squashed, 0) / rows
    total, to_active = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, dim, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there, at = i < dim, k * dim + i
        one, two = tl.load(d_mean + at, mask=there, other=0.0), tl.load(d_log_var + at, mask=there, other=0.0)
        free = two * active
        log_var = tl.minimum(tl.maximum(free, -_LARGE), _LARGE)
        error, precision = tl.load(z + at, mask=there, other=0.0) - one * active, tl.exp(-log_var)
        total += tl.where(there, 0.5 * (LOG_2_PI + log_var + error * error * precision), 0.0)
        by_z = nat * error * precision
        by_log_var = tl.where(tl.abs(free) <= _LARGE, 0.5 * nat * (1.0 - error * error * precision), 0.0)
        tl.store(to_z + at, by_z, mask=there)
        tl.store(to_d_mean + at, -by_z * active, mask=there)
        tl.store(to_d_log_var + at, by_log_var * active, mask=there)
        to_active += tl.where(there, by_log_var * two - by_z * one, 0.0)
    place = by_layer + k * layers + layer
    tl.store(place, tl.load(place) + tl.load(before + k) + tl.sum(total, 0))
    each = tl.sum(to_active, 0) / rows
    for start in range(0, rows, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there = i < rows
        var = tl.load(by_row + 2 * k * rows + rows + i, mask=there, other=1.0)
        drawn = tl.load(noise + k * noise_size + noise_at + i, mask=there, other=0.0)
        std = tl.sqrt(tl.maximum(var, least))
        s = tl.load(by_row + 2 * k * rows + i, mask=there, other=0.0) + std * drawn
        g = tl.where((s > -1.0) & (s < 1.0), each, 0.0)
        tl.store(to_row + 2 * k * rows + i, g, mask=there)
        tl.store(to_row + 2 * k * rows + rows + i, tl.where(var >= least, 0.5 * g * drawn / std, 0.0),
                 mask=there)  # fmt: skip


@triton.jit(do_not_specialize=["replicates", "rows", "columns"])
def _parameters_kernel(
    by_mean, by_var, mean, raw_std, logit, z, direction, by_row, prior, prior_size, share,
    mean_first, mean_second, raw_first, raw_second, logit_first, logit_second, to_z, to_direction,
    rates, root, alive, replicates, rows, columns,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, OF_MEAN: tl.constexpr, OF_RAW: tl.constexpr,
    OF_LOGIT: tl.constexpr, UPDATE: tl.constexpr, DENSE: tl.constexpr, BY: tl.constexpr, EACH: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Adam's step of the weights, and in parts, over some rows each, the gradients by z and ``direction``."""
    columns *= BY
    k, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    col = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = col < columns
    scale = tl.load(z + k * columns + col, mask=inside, other=0.0)[None, :]
    e = tl.load(direction + k * columns + col, mask=inside, other=0.0)[None, :]
    nat, prior = tl.load(share + k), prior + prior_size * k
    root_now = tl.load(root) if UPDATE else 1.0
    rate_mean = tl.load(rates + OF_MEAN * replicates + k) if UPDATE else 0.0
    rate_raw = tl.load(rates + OF_RAW * replicates + k) if UPDATE else 0.0
    rate_logit = tl.load(rates + OF_LOGIT * replicates + k) if UPDATE else 0.0
    last = tl.where(tl.load(alive + k), rows, 0) if UPDATE else rows
    left, right = tl.zeros((BR, BC), tl.float32), tl.zeros((BR, BC), tl.float32)
    for start in range(0, EACH, BR):
        row = part * EACH + start + tl.arange(0, BR)
        known = row < rows
        there, at = known[:, None] & inside[None, :], (k * rows + row[:, None]) * columns + col[None, :]
        lives = there & (row < last)[:, None]
        gs = tl.load(by_row + 2 * k * rows + row, mask=known, other=0.0)[:, None]
        gs_var = tl.load(by_row + 2 * k * rows + rows + row, mask=known, other=0.0)[:, None]
        m = tl.load(mean + at, mask=there, other=0.0)
        raw = tl.load(raw_std + at, mask=there, other=0.0)
        own = m if DENSE else tl.load(logit + at, mask=there, other=0.0)
        gm = tl.load(by_mean + at, mask=there, other=0.0) + e * gs
        gv = tl.load(by_var + at, mask=there, other=0.0) + e * e * gs_var
        scaled, std = m * scale, _softplus(raw)
        to_mean, to_raw, to_logit = _changes(gm, gv, nat, scaled, raw, own, prior, DENSE)
        average, var = scaled, std * std
        if not DENSE:
            kept = tl.sigmoid(own)
            average, var = kept * scaled, kept * (std * std + tl.sigmoid(-own) * scaled * scaled)
        left += tl.where(there, m * to_mean, 0.0)
        right += tl.where(there, gs * average + 2.0 * e * gs_var * var, 0.0)
        _move(mean, mean_first, mean_second, at, lives, to_mean * scale, m, rate_mean, root_now,
              BETA1, BETA2, EPS, UPDATE)  # fmt: skip
        _move(raw_std, raw_first, raw_second, at, lives, to_raw, raw, rate_raw, root_now,
              BETA1, BETA2, EPS, UPDATE)  # fmt: skip
        if not DENSE:
            _move(logit, logit_first, logit_second, at, lives, to_logit, own, rate_logit, root_now,
                  BETA1, BETA2, EPS, UPDATE)  # fmt: skip
    out = (k * tl.num_programs(1) + part) * columns + col
    tl.store(to_z + out, tl.sum(left, 0), mask=inside)
    tl.store(to_direction + out, tl.sum(right, 0), mask=inside)


def _aligned(columns: int) -> int:
    """What the columns are a multiple of: the kernels then read four numbers at once."""
    return 1 if columns % 4 else 4


def moments(
    mean: Tensor, raw_std: Tensor, logit: Tensor | None, prior_mean: Tensor, z: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the weights times z: mean, variance, sums for the KL; ``(K, 2, rows)``, the moments of rows · e."""
    k, rows, columns = mean.shape
    first, second = torch.empty_like(mean), torch.empty_like(mean)
    sums, by_row = mean.new_empty(k, rows, 3), mean.new_empty(k, 2, rows)
    by = _aligned(columns)
    _moments_kernel[(rows, k)](
        mean, raw_std, mean if logit is None else logit, z, direction, first, second, sums, by_row,
        prior_mean, _stride(prior_mean), rows, columns // by, logit is None, by, 512, num_warps=4,
    )  # fmt: skip
    return first, second, sums, by_row


def auxiliary(
    by_row: Tensor, noise: Tensor, noise_at: int, z: Tensor, d_mean: Tensor, d_log_var: Tensor, share: Tensor,
    nats: Tensor, by_layer: Tensor, layer: int, least: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients by the moments of rows · e, by z, d₁ and d₂; ``nats`` less log r is added to the KL."""
    k, dim = z.shape
    to_row, to_z = torch.empty_like(by_row), torch.empty_like(z)
    to_d = torch.empty_like(z), torch.empty_like(z)
    rows = by_row.shape[2]
    _auxiliary_kernel[(k,)](
        by_row, noise, z, d_mean, d_log_var, share, nats, by_layer, by_layer.shape[1], layer, to_row, to_z,
        *to_d, rows, dim, noise_at, noise.shape[1], least, BLOCK, num_warps=4,
    )  # fmt: skip
    return to_row, to_z, *to_d


def parameters(
    by_mean: Tensor, by_var: Tensor, held: Sequence[Tensor], z: Tensor, direction: Tensor, by_row: Tensor,
    known: Tensor, share: Tensor, first: Sequence[Tensor], second: Sequence[Tensor], adam: Adam | None,
    constants: tuple[float, float, float],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As in :mod:`~sparsebnn.kernels.triton_dense`; returns gradients by z and e in ``(K, parts, dim)``."""
    k, rows, columns = by_mean.shape
    dense, some = len(held) == 2, held[0]
    each, wide, by = 32, 128, _aligned(columns)
    moved = [t for pair in zip(first, second) for t in pair] + [some] * (2 * dense)
    rates, root, alive, groups = how(adam, some, len(held))
    parts = triton.cdiv(rows, each)
    out = by_mean.new_empty(k, parts, columns), by_mean.new_empty(k, parts, columns)
    _parameters_kernel[(triton.cdiv(columns, wide), parts, k)](
        by_mean, by_var, *held, *[some] * dense, z, direction, by_row, known, known.stride(0), share, *moved,
        *out, rates, root, alive, k, rows, columns // by, *constants, *groups, *[0] * dense,
        adam is not None, dense, by, each, 8, wide, num_warps=4,
    )  # fmt: skip
    return out
