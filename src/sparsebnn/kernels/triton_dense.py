"""Triton kernels of a step of dense networks (:mod:`sparsebnn.training.captured`); imported only on CUDA.

``slope`` is the gradient of a layer's outputs, ``noisy`` that of their variances, ``std`` and ``noise`` are
those that made them. Sums run in a fixed order.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsebnn.kernels.triton_spike_slab import _TINY, _softplus

_BLOCK = 1024


@triton.jit
def _noisy(slope, std, noise, least):
    """The gradient of the variance of an output; it has none below the least one."""
    return tl.where(std > least, slope * noise / (2.0 * std), 0.0)


@triton.jit
def _moments_kernel(
    mean, raw_std, logit, first, second, sums, prior_mean, stride, count,
    DENSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    k, parts = tl.program_id(1).to(tl.int64), tl.num_programs(0)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there, at = i < count, k * count + i
    m = tl.load(mean + at, mask=there, other=0.0)
    std = _softplus(tl.load(raw_std + at, mask=there, other=0.0))
    error, log_std = m - tl.load(prior_mean + k * stride), tl.log(tl.maximum(std, _TINY))
    square = std * std
    if DENSE:
        tl.store(second + at, square, mask=there)
        kept, squares, rest = there.to(tl.float32), square + error * error, -log_std
    else:
        own = tl.load(logit + at, mask=there, other=0.0)
        kept = tl.sigmoid(own)
        tl.store(first + at, kept * m, mask=there)
        tl.store(second + at, kept * (square + tl.sigmoid(-own) * m * m), mask=there)
        squares, rest = kept * (square + error * error), kept * (own - log_std) - _softplus(own)
    out = sums + 3 * (k * parts + tl.program_id(0))
    tl.store(out, tl.sum(tl.where(there, kept, 0.0), 0))
    tl.store(out + 1, tl.sum(tl.where(there, squares, 0.0), 0))
    tl.store(out + 2, tl.sum(tl.where(there, rest, 0.0), 0))


@triton.jit(do_not_specialize=["parts", "count", "biases"])
def _prior_kernel(
    sums, parts, count, prior_mean, prior_std, prior_prob, mean_stride, std_stride, prob_stride,
    bias_mean, bias_raw, biases, bias_prior_mean, bias_prior_std, bias_mean_stride, bias_std_stride,
    prior, kl, strength, kept, most,
    DENSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The prior's mean, std, logit and those of the biases, after it has learned; and the KL of a layer."""
    k = tl.program_id(0).to(tl.int64)
    total, squares = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    rest = tl.full((), 0.0, tl.float64)
    for start in range(0, parts, BLOCK):
        part = start + tl.arange(0, BLOCK)
        at = sums + 3 * (k * parts + part)
        total += tl.sum(tl.load(at, mask=part < parts, other=0.0).to(tl.float64), 0)
        squares += tl.sum(tl.load(at + 1, mask=part < parts, other=0.0).to(tl.float64), 0)
        rest += tl.sum(tl.load(at + 2, mask=part < parts, other=0.0).to(tl.float64), 0)
    std = tl.load(prior_std + k * std_stride).to(tl.float64)
    if strength >= 0.0:
        std = tl.sqrt((strength * std * std + squares) / (strength + total))
    nats = total * (tl.log(std) - 0.5) + squares / (2.0 * std * std) + rest
    odds = 0.0
    if not DENSE:
        prob = tl.load(prior_prob + k * prob_stride).to(tl.float64)
        if kept >= 0.0:
            prob = tl.minimum((kept * prob + total / count) / (1.0 + kept), most)
        odds = tl.log(prob) - tl.log(1.0 - prob)
        nats += -odds * total - count * tl.log(1.0 - prob)
    own_mean = tl.load(bias_prior_mean + k * bias_mean_stride)
    own_std = tl.load(bias_prior_std + k * bias_std_stride)
    for start in range(0, biases, BLOCK):
        i = start + tl.arange(0, BLOCK)
        error = tl.load(bias_mean + k * biases + i, mask=i < biases, other=0.0) - own_mean
        bias_std = _softplus(tl.load(bias_raw + k * biases + i, mask=i < biases, other=0.0))
        each = tl.log(own_std) - tl.log(tl.maximum(bias_std, _TINY)) - 0.5
        each += (bias_std * bias_std + error * error) / (2.0 * own_std * own_std)
        nats += tl.sum(tl.where(i < biases, each, 0.0).to(tl.float64), 0)
    out = prior + 6 * k
    tl.store(out, tl.load(prior_mean + k * mean_stride))
    tl.store(out + 1, std.to(tl.float32))
    tl.store(out + 2, odds)
    tl.store(out + 3, own_mean)
    tl.store(out + 4, own_std)
    tl.store(kl + k, nats.to(tl.float32))


@triton.jit(do_not_specialize=["units", "rows", "noise_at", "noise_size"])
def _forward_kernel(
    z, mean, var, bias_mean, bias_raw, noise, outputs, squares, stds, rows, total, units, noise_at, noise_size,
    least, LAST: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    unit = tl.program_id(0) * BN + tl.arange(0, BN)
    z += k * rows * total
    mean += k * units * total
    var += k * units * total
    m, v = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for start in range(0, total, BK):
        col = start + tl.arange(0, BK)
        there = (row[:, None] < rows) & (col[None, :] < total)
        inputs = tl.load(z + row[:, None] * total + col[None, :], mask=there, other=0.0)
        at = unit[None, :] * total + col[:, None]
        held = (unit[None, :] < units) & (col[:, None] < total)
        m += tl.dot(inputs, tl.load(mean + at, mask=held, other=0.0), input_precision=PRECISION)
        v += tl.dot(inputs * inputs, tl.load(var + at, mask=held, other=0.0), input_precision=PRECISION)
    own = unit < units
    bias_std = _softplus(tl.load(bias_raw + k * units + unit, mask=own, other=0.0))
    m += tl.load(bias_mean + k * units + unit, mask=own, other=0.0)[None, :]
    std = tl.sqrt(tl.maximum(v + (bias_std * bias_std)[None, :], least))
    there = (row[:, None] < rows) & own[None, :]
    at = row[:, None] * units + unit[None, :]
    h = m + std * tl.load(noise + k * noise_size + noise_at + at, mask=there, other=0.0)
    at += k * rows * units
    tl.store(stds + at, std, mask=there)
    if LAST:
        tl.store(outputs + at, h, mask=there)
    else:
        h = tl.maximum(h, 0.0)
        tl.store(outputs + at, h, mask=there)
        tl.store(squares + at, h * h, mask=there)


@triton.jit
def _noisy_kernel(slope, std, noise, noisy, count, noise_at, noise_size, least, BLOCK: tl.constexpr):
    k = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there, at = i < count, k * count + i
    drawn = tl.load(noise + k * noise_size + noise_at + i, mask=there, other=0.0)
    s, sd = tl.load(slope + at, mask=there, other=0.0), tl.load(std + at, mask=there, other=1.0)
    tl.store(noisy + at, _noisy(s, sd, drawn, least), mask=there)


@triton.jit(do_not_specialize=["units", "rows", "noise_at", "noise_size"])
def _slope_kernel(
    slope, noisy, mean, var, z, std, noise, below, below_noisy, rows, width, total, units, noise_at, noise_size,
    least, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradients by the outputs of the layer below, which are the first ``width`` inputs, and their variances."""
    k = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    col = tl.program_id(0) * BN + tl.arange(0, BN)
    slope += k * rows * units
    noisy += k * rows * units
    mean += k * units * total
    var += k * units * total
    by_mean, by_var = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for start in range(0, units, BK):
        unit = start + tl.arange(0, BK)
        there = (row[:, None] < rows) & (unit[None, :] < units)
        at = row[:, None] * units + unit[None, :]
        s = tl.load(slope + at, mask=there, other=0.0)
        n = tl.load(noisy + at, mask=there, other=0.0)
        held = (unit[:, None] < units) & (col[None, :] < width)
        weight = unit[:, None] * total + col[None, :]
        by_mean += tl.dot(s, tl.load(mean + weight, mask=held, other=0.0), input_precision=PRECISION)
        by_var += tl.dot(n, tl.load(var + weight, mask=held, other=0.0), input_precision=PRECISION)
    there = (row[:, None] < rows) & (col[None, :] < width)
    h = tl.load(z + (k * rows + row[:, None]) * total + col[None, :], mask=there, other=0.0)
    s = tl.where(h > 0.0, by_mean + 2.0 * h * by_var, 0.0)
    own = row[:, None] * width + col[None, :]
    at = k * rows * width + own
    drawn = tl.load(noise + k * noise_size + noise_at + own, mask=there, other=0.0)
    tl.store(below + at, s, mask=there)
    tl.store(below_noisy + at, _noisy(s, tl.load(std + at, mask=there, other=1.0), drawn, least), mask=there)


@triton.jit
def _move(
    parameter, first, second, at, there, g, p, rate, root,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, UPDATE: tl.constexpr,
):  # fmt: skip
    """Adam's step, or the gradient in the place of the first moment."""
    if UPDATE:
        m = tl.load(first + at, mask=there, other=0.0)
        v = tl.load(second + at, mask=there, other=0.0)
        m += (1.0 - BETA1) * (g - m)
        v = BETA2 * v + (1.0 - BETA2) * g * g
        moved = p - rate * m / (tl.sqrt(v) / root + EPS)
        # A gradient that is not finite must not reach the parameter; the moment keeps the evidence.
        tl.store(parameter + at, moved, mask=there & (tl.abs(g) < float("inf")))
        tl.store(first + at, m, mask=there)
        tl.store(second + at, v, mask=there)
    else:
        tl.store(first + at, g, mask=there)


@triton.jit
def _changes(gm, gv, nat, mean, raw, logit, prior, DENSE: tl.constexpr):
    """Gradients by mean, raw std and logit from those by the moments of the weights, and of the KL."""
    prior_mean, prior_std, odds = tl.load(prior), tl.load(prior + 1), tl.load(prior + 2)
    precision = 1.0 / (prior_std * prior_std)
    std, error = _softplus(raw), mean - prior_mean
    # Of the slab's KL; a std that is 0 has no logarithm left.
    by_std = std * precision - tl.where(std >= _TINY, 1.0 / tl.maximum(std, _TINY), 0.0)
    to_mean = gm + nat * error * precision
    to_raw = (2.0 * gv * std + nat * by_std) * tl.sigmoid(raw)
    to_logit = to_mean
    if not DENSE:
        kept, gone = tl.sigmoid(logit), tl.sigmoid(-logit)
        slab = tl.log(prior_std) - tl.log(tl.maximum(std, _TINY)) - 0.5
        slab += (std * std + error * error) * (0.5 * precision)
        by_kept = gm * mean + gv * (std * std + (gone - kept) * mean * mean) + nat * (slab + logit - odds)
        to_logit = kept * gone * by_kept
        to_mean, to_raw = kept * (to_mean + 2.0 * gv * gone * mean), kept * to_raw
    return to_mean, to_raw, to_logit


@triton.jit(do_not_specialize=["replicates"])
def _parameters_kernel(
    by_mean, by_var, mean, raw_std, logit, prior, prior_size, share,
    mean_first, mean_second, raw_first, raw_second, logit_first, logit_second, rates, root, alive, replicates,
    count,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, OF_MEAN: tl.constexpr, OF_RAW: tl.constexpr,
    OF_LOGIT: tl.constexpr, UPDATE: tl.constexpr, DENSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """From the gradients by the moments to those by the parameters, and on to Adam's step."""
    k = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # A replicate that has stopped keeps its values.
    there, at = i < (tl.where(tl.load(alive + k), count, 0) if UPDATE else count), k * count + i
    m = tl.load(mean + at, mask=there, other=0.0)
    raw = tl.load(raw_std + at, mask=there, other=0.0)
    own = m if DENSE else tl.load(logit + at, mask=there, other=0.0)
    gm = tl.load(by_mean + at, mask=there, other=0.0)
    gv = tl.load(by_var + at, mask=there, other=0.0)
    to_mean, to_raw, to_logit = _changes(gm, gv, tl.load(share + k), m, raw, own, prior + prior_size * k, DENSE)
    scale = tl.load(root) if UPDATE else 1.0
    rate = tl.load(rates + OF_MEAN * replicates + k) if UPDATE else 0.0
    _move(mean, mean_first, mean_second, at, there, to_mean, m, rate, scale, BETA1, BETA2, EPS, UPDATE)
    rate = tl.load(rates + OF_RAW * replicates + k) if UPDATE else 0.0
    _move(raw_std, raw_first, raw_second, at, there, to_raw, raw, rate, scale, BETA1, BETA2, EPS, UPDATE)
    if not DENSE:
        rate = tl.load(rates + OF_LOGIT * replicates + k) if UPDATE else 0.0
        _move(logit, logit_first, logit_second, at, there, to_logit, own, rate, scale, BETA1, BETA2, EPS, UPDATE)


def _precision() -> str:
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _stride(value: Tensor) -> int:
    """From one replicate to the next; 0 for a value that all share."""
    return int(value.numel() > 1)


def moments(
    mean: Tensor, raw_std: Tensor, logit: Tensor | None, prior_mean: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the weights, and sums for the KL and for what the prior learns."""
    k, count = len(mean), mean[0].numel()
    parts = triton.cdiv(count, _BLOCK)
    first = mean if logit is None else torch.empty_like(mean)
    second, sums = torch.empty_like(mean), mean.new_empty(k, parts, 3)
    _moments_kernel[(parts, k)](
        mean, raw_std, mean if logit is None else logit, first, second, sums, prior_mean, _stride(prior_mean),
        count, logit is None, _BLOCK, num_warps=4,
    )  # fmt: skip
    return first, second, sums


def prior(
    sums: Tensor, count: int, of_weights: Sequence[Tensor], bias: Sequence[Tensor],
    of_biases: Sequence[Tensor], strengths: tuple[float | None, float | None, float], dense: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``(K, 6)``: mean, std and logit of the prior of the weights, mean and std of that of the biases, and room; the KL.

    Priors are given as mean, std and, of the weights, inclusion probability.
    """
    k = len(sums)
    made, kl = sums.new_empty(k, 6), sums.new_empty(k)
    known = [-1.0 if strength is None else strength for strength in strengths]
    _prior_kernel[(k,)](
        sums, sums.shape[1], count, *of_weights, *map(_stride, of_weights), *bias, bias[0].shape[1], *of_biases,
        *map(_stride, of_biases), made, kl, *known, dense, 256, num_warps=4,
    )  # fmt: skip
    return made, kl


def forward(
    z: Tensor, mean: Tensor, var: Tensor, bias: Sequence[Tensor], noise: Tensor, noise_at: int, least: float,
    last: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Outputs of a layer, rectified but for the last one, their squares, and their standard deviations."""
    (k, rows, total), units = z.shape, mean.shape[1]
    outputs, squares, std = (z.new_empty(k, rows, units) for _ in range(3))
    m, n, warps = _tiles(k * rows, units)
    _forward_kernel[(triton.cdiv(units, n), triton.cdiv(rows, m), k)](
        z, mean, var, *bias, noise, outputs, squares, std, rows, total, units, noise_at, noise.shape[1], least,
        last, _precision(), m, n, 32, num_warps=warps, num_stages=3,
    )  # fmt: skip
    return outputs, squares, std


def noisy(slope: Tensor, std: Tensor, noise: Tensor, noise_at: int, least: float) -> Tensor:
    """The gradient by the variances of outputs."""
    k, count = len(slope), slope[0].numel()
    made = torch.empty_like(slope)
    _noisy_kernel[(triton.cdiv(count, _BLOCK), k)](
        slope, std, noise, made, count, noise_at, noise.shape[1], least, _BLOCK, num_warps=4
    )
    return made


def slope_below(
    slope: Tensor, noisy: Tensor, mean: Tensor, var: Tensor, z: Tensor, std: Tensor, noise: Tensor,
    noise_at: int, least: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients by the outputs of the layer below and by their variances; the last four are its own."""
    (k, rows, units), width = slope.shape, std.shape[2]
    below, below_noisy = torch.empty_like(std), torch.empty_like(std)
    m, n, warps = _tiles(k * rows, width)
    _slope_kernel[(triton.cdiv(width, n), triton.cdiv(rows, m), k)](
        slope, noisy, mean, var, z, std, noise, below, below_noisy, rows, width, z.shape[2], units, noise_at,
        noise.shape[1], least, _precision(), m, n, 32, num_warps=warps, num_stages=3,
    )  # fmt: skip
    return below, below_noisy


def parameters(
    by_mean: Tensor, by_var: Tensor, held: Sequence[Tensor], known: Tensor, share: Tensor,
    first: Sequence[Tensor], second: Sequence[Tensor],
    adam: tuple[Tensor, Tensor, Tensor, Sequence[int]] | None, constants: tuple[float, float, float],
) -> None:  # fmt: skip
    """One step of Adam for mean, raw std and logit (if there is one); without ``adam`` gradients into ``first``.

    ``known`` is the prior's mean, std and logit, ``adam`` rates, root, alive, and the rows of the rates.
    """
    k, count = len(by_mean), by_mean[0].numel()
    dense, some = len(held) == 2, held[0]
    moved = [t for pair in zip(first, second) for t in pair] + [some] * (2 * dense)
    rates, root, alive, groups = (some, some, some, [0] * len(held)) if adam is None else adam
    _parameters_kernel[(triton.cdiv(count, _BLOCK), k)](
        by_mean, by_var, *held, *[some] * dense, known, known.stride(0), share, *moved, rates, root, alive, k,
        count, *constants, *groups, *[0] * dense, adam is not None, dense, _BLOCK, num_warps=8,
    )  # fmt: skip


def _tiles(rows: int, units: int) -> tuple[int, int, int]:
    """Rows and units of a tile, and its warps: small tiles while they are few, so that the device is full."""
    few = triton.cdiv(rows, 64) * triton.cdiv(units, 32) < 4096
    return (64, 32, 4) if few else (128, 64, 8)
