"""Triton kernels of captured steps of dense flow networks (:mod:`sparsebnn.training.captured_flow`).

``z`` multiplies the columns of the weights. ``share`` is what the KL counts, so gradients of its parts
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
from sparsebnn.kernels.triton_spike_slab import _TINY, _softplus

_LOG_2_PI = tl.constexpr(1.8378770664093453)
_LARGE = tl.constexpr(50.0)  # no log variance of z given the weights is beyond
_MOST = 1024  # columns at once


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
        total += tl.where(there, -0.5 * (_LOG_2_PI + own + drawn * drawn), 0.0)
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


@triton.jit
def _moments_kernel(
    mean, raw_std, logit, z, direction, first, second, sums, by_row, prior_mean, stride, rows, columns,
    DENSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a row of weights: moments, sums for their KL, and the moments of its product with ``direction``."""
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


@triton.jit(do_not_specialize=["rows", "dim", "noise_at", "noise_size"])
def _auxiliary_kernel(
    by_row, noise, z, d_mean, d_log_var, share, before, nats, to_row, to_z, to_d_mean, to_d_log_var,
    rows, dim, noise_at, noise_size, least, BLOCK: tl.constexpr,
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
        total += tl.where(there, 0.5 * (_LOG_2_PI + log_var + error * error * precision), 0.0)
        by_z = nat * error * precision
        by_log_var = tl.where(tl.abs(free) <= _LARGE, 0.5 * nat * (1.0 - error * error * precision), 0.0)
        tl.store(to_z + at, by_z, mask=there)
        tl.store(to_d_mean + at, -by_z * active, mask=there)
        tl.store(to_d_log_var + at, by_log_var * active, mask=there)
        to_active += tl.where(there, by_log_var * two - by_z * one, 0.0)
    tl.store(nats + k, tl.load(before + k) + tl.sum(total, 0))
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


@triton.jit(do_not_specialize=["replicates"])
def _parameters_kernel(
    by_mean, by_var, mean, raw_std, logit, z, direction, by_row, prior, prior_size, share,
    mean_first, mean_second, raw_first, raw_second, logit_first, logit_second, to_z, to_direction,
    rates, root, alive, replicates, rows, columns,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, OF_MEAN: tl.constexpr, OF_RAW: tl.constexpr,
    OF_LOGIT: tl.constexpr, UPDATE: tl.constexpr, DENSE: tl.constexpr, EACH: tl.constexpr, BR: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """Adam's step of the weights, and in parts, over some rows each, the gradients by z and ``direction``."""
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
    left, right = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
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
        left += tl.sum(tl.where(there, m * to_mean, 0.0), 0)
        right += tl.sum(tl.where(there, gs * average + 2.0 * e * gs_var * var, 0.0), 0)
        _move(mean, mean_first, mean_second, at, lives, to_mean * scale, m, rate_mean, root_now,
              BETA1, BETA2, EPS, UPDATE)  # fmt: skip
        _move(raw_std, raw_first, raw_second, at, lives, to_raw, raw, rate_raw, root_now,
              BETA1, BETA2, EPS, UPDATE)  # fmt: skip
        if not DENSE:
            _move(logit, logit_first, logit_second, at, lives, to_logit, own, rate_logit, root_now,
                  BETA1, BETA2, EPS, UPDATE)  # fmt: skip
    out = (k * tl.num_programs(1) + part) * columns + col
    tl.store(to_z + out, left, mask=inside)
    tl.store(to_direction + out, right, mask=inside)


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


def _block(count: int) -> int:
    return min(_MOST, triton.next_power_of_2(count))


def begin(mean: Tensor, log_var: Tensor, noise: Tensor, noise_at: int) -> tuple[Tensor, Tensor]:
    """z₀ ``(K, dim)`` and log q(z₀)."""
    k, dim = mean.shape
    z, nats = torch.empty_like(mean), mean.new_empty(k)
    size = noise.shape[1]
    _begin_kernel[(k,)](mean, log_var, noise, z, nats, dim, noise_at, size, _block(dim), num_warps=4)
    return z, nats


def gate(made: Tensor, z: Tensor, nats: Tensor) -> tuple[Tensor, Tensor]:
    """The next z, and ``nats`` less the step's log-determinant."""
    k, dim = z.shape
    out, after = torch.empty_like(z), torch.empty_like(nats)
    _gate_kernel[(k,)](made, z, out, nats, after, dim, _block(dim), num_warps=4)
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


def moments(
    mean: Tensor, raw_std: Tensor, logit: Tensor | None, prior_mean: Tensor, z: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the weights times z: mean, variance, sums for the KL; ``(K, 2, rows)``, the moments of rows · e."""
    k, rows, columns = mean.shape
    first, second = torch.empty_like(mean), torch.empty_like(mean)
    sums, by_row = mean.new_empty(k, rows, 3), mean.new_empty(k, 2, rows)
    _moments_kernel[(rows, k)](
        mean, raw_std, mean if logit is None else logit, z, direction, first, second, sums, by_row,
        prior_mean, _stride(prior_mean), rows, columns, logit is None, _block(columns), num_warps=4,
    )  # fmt: skip
    return first, second, sums, by_row


def auxiliary(
    by_row: Tensor, noise: Tensor, noise_at: int, z: Tensor, d_mean: Tensor, d_log_var: Tensor, share: Tensor,
    nats: Tensor, least: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """``nats`` less log r, and gradients by the moments of rows · e, by z, d₁ and d₂."""
    k, dim = z.shape
    after, to_row, to_z = torch.empty_like(nats), torch.empty_like(by_row), torch.empty_like(z)
    to_d = torch.empty_like(z), torch.empty_like(z)
    rows = by_row.shape[2]
    _auxiliary_kernel[(k,)](
        by_row, noise, z, d_mean, d_log_var, share, nats, after, to_row, to_z, *to_d, rows, dim, noise_at,
        noise.shape[1], least, _block(max(rows, dim)), num_warps=4,
    )  # fmt: skip
    return after, to_row, to_z, *to_d


_Adam = tuple[Tensor, Tensor, Tensor, Sequence[int]]


def _how(adam: _Adam | None, some: Tensor, count: int) -> _Adam:
    return (some, some, some, [0] * count) if adam is None else adam


def parameters(
    by_mean: Tensor, by_var: Tensor, held: Sequence[Tensor], z: Tensor, direction: Tensor, by_row: Tensor,
    known: Tensor, share: Tensor, first: Sequence[Tensor], second: Sequence[Tensor], adam: _Adam | None,
    constants: tuple[float, float, float],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As in :mod:`~sparsebnn.kernels.triton_dense`; returns gradients by z and e in ``(K, parts, dim)``."""
    k, rows, columns = by_mean.shape
    dense, some = len(held) == 2, held[0]
    each, wide = 32, 128
    moved = [t for pair in zip(first, second) for t in pair] + [some] * (2 * dense)
    rates, root, alive, groups = _how(adam, some, len(held))
    parts = triton.cdiv(rows, each)
    out = by_mean.new_empty(k, parts, columns), by_mean.new_empty(k, parts, columns)
    _parameters_kernel[(triton.cdiv(columns, wide), parts, k)](
        by_mean, by_var, *held, *[some] * dense, z, direction, by_row, known, known.stride(0), share, *moved,
        *out, rates, root, alive, k, rows, columns, *constants, *groups, *[0] * dense, adam is not None,
        dense, each, 8, wide, num_warps=4,
    )  # fmt: skip
    return out


def folded(
    by_row: Tensor, inputs: Tensor, held: Sequence[Tensor], fold: Sequence[Tensor],
    first: Sequence[Tensor], second: Sequence[Tensor], adam: _Adam | None,
    constants: tuple[float, float, float],
) -> None:  # fmt: skip
    """Adam's step of weight and bias of a folded layer, from the gradients of its rows."""
    weight, bias = held
    k, rows, width = weight.shape
    long, short, _, places = fold
    rates, root, alive, groups = _how(adam, weight, 2)
    _folded_kernel[(triton.cdiv(width, 128), triton.cdiv(rows, 8), k)](
        by_row, inputs, weight, first[0], second[0], bias, first[1], second[1], long, short, places,
        rates, root, alive, k, bias.shape[1], rows, width, *constants, *groups, adam is not None, 8, 128,
        num_warps=4,
    )  # fmt: skip


def vectors(
    direct: Tensor, from_flow: Tensor, to_direction: Tensor, to_d: Sequence[Tensor], noise: Tensor,
    noise_at: int, share: Tensor, held: Sequence[Tensor], first: Sequence[Tensor], second: Sequence[Tensor],
    adam: _Adam | None, constants: tuple[float, float, float],
) -> None:  # fmt: skip
    """Adam's step of mean and log variance of z₀, of e, d₁ and d₂."""
    k, dim = direct.shape
    moved = [t for three in zip(held, first, second) for t in three]
    rates, root, alive, groups = _how(adam, direct, 5)
    _vectors_kernel[(triton.cdiv(dim, 128), k)](
        direct, from_flow, from_flow.shape[1], to_direction, to_direction.shape[1], *to_d, noise, share,
        *moved, rates, root, alive, k, dim, noise_at, noise.shape[1], *constants, *groups, adam is not None,
        128, num_warps=4,
    )  # fmt: skip
