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
        tl.store(first + at, m, mask=there)
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


@triton.jit(do_not_specialize=["parts", "count", "biases", "layers", "layer"])
def _prior_kernel(
    sums, parts, count, prior_mean, prior_std, prior_prob, mean_stride, std_stride, prob_stride,
    bias_mean, bias_raw, biases, bias_prior_mean, bias_prior_std, bias_mean_stride, bias_std_stride,
    prior, by_layer, layers, layer, strength, kept, most,
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
    tl.store(by_layer + k * layers + layer, nats.to(tl.float32))


@triton.jit(do_not_specialize=["units", "count", "noise_at", "noise_size"])
def _outputs_kernel(
    mean, var, bias_mean, bias_raw, noise, squares, units, count, noise_at, noise_size, least,
    LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """In place: outputs, rectified but for the last layer, and standard deviations."""
    k = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there, at, unit = i < count, k * count + i, k * units + i % units
    bias_std = _softplus(tl.load(bias_raw + unit, mask=there, other=0.0))
    v = tl.load(var + at, mask=there, other=0.0) + bias_std * bias_std
    m = tl.load(mean + at, mask=there, other=0.0) + tl.load(bias_mean + unit, mask=there, other=0.0)
    std = tl.sqrt(tl.maximum(v, least, propagate_nan=tl.PropagateNan.ALL))
    h = m + std * tl.load(noise + k * noise_size + noise_at + i, mask=there, other=0.0)
    tl.store(var + at, std, mask=there)
    if not LAST:
        h = tl.maximum(h, 0.0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(squares + at, h * h, mask=there)
    tl.store(mean + at, h, mask=there)


@triton.jit(do_not_specialize=["width", "total", "count", "noise_at", "noise_size"])
def _slopes_kernel(
    slope, by_var, z, std, noise, noisy, width, total, count, noise_at, noise_size, least,
    LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient by the outputs, in the place of that by the inputs above, and by their variances."""
    k = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there, at = i < count, k * count + i
    s = tl.load(slope + at, mask=there, other=0.0)
    if not LAST:
        row = k * (count // width) + i // width
        h = tl.load(z + row * total + i % width, mask=there, other=0.0)
        s = tl.where(h > 0.0, s + 2.0 * h * tl.load(by_var + at, mask=there, other=0.0), 0.0)
        tl.store(slope + at, s, mask=there)
    sd = tl.load(std + at, mask=there, other=1.0)
    drawn = tl.load(noise + k * noise_size + noise_at + i, mask=there, other=0.0)
    # A variance at its floor has no gradient; its root may be rounded up.
    tl.store(noisy + at, tl.where(sd > 1.001 * least, s * drawn / (2.0 * sd), 0.0), mask=there)


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


@triton.jit(do_not_specialize=["rows", "replicates", "units"])
def _biases_kernel(
    slope, noisy, mean, raw_std, prior, prior_size, share, mean_first, mean_second, raw_first, raw_second,
    rates, root, alive, replicates, rows, units,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, OF_MEAN: tl.constexpr, OF_RAW: tl.constexpr,
    UPDATE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(1).to(tl.int64)
    unit = tl.program_id(0) * BN + tl.arange(0, BN)
    gm, gv = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    for start in range(0, rows, BM):
        row = start + tl.arange(0, BM)
        there = (row[:, None] < rows) & (unit[None, :] < units)
        at = (k * rows + row[:, None]) * units + unit[None, :]
        gm += tl.sum(tl.load(slope + at, mask=there, other=0.0), 0)
        gv += tl.sum(tl.load(noisy + at, mask=there, other=0.0), 0)
    there, at = unit < (tl.where(tl.load(alive + k), units, 0) if UPDATE else units), k * units + unit
    m = tl.load(mean + at, mask=there, other=0.0)
    raw = tl.load(raw_std + at, mask=there, other=0.0)
    to_mean, to_raw, _ = _changes(gm, gv, tl.load(share + k), m, raw, m, prior + prior_size * k, True)
    scale = tl.load(root) if UPDATE else 1.0
    rate = tl.load(rates + OF_MEAN * replicates + k) if UPDATE else 0.0
    _move(mean, mean_first, mean_second, at, there, to_mean, m, rate, scale, BETA1, BETA2, EPS, UPDATE)
    rate = tl.load(rates + OF_RAW * replicates + k) if UPDATE else 0.0
    _move(raw_std, raw_first, raw_second, at, there, to_raw, raw, rate, scale, BETA1, BETA2, EPS, UPDATE)


@triton.jit(do_not_specialize=["rows"])
def _classes_kernel(outputs, y, weight, slope, nll, rows, classes, BM: tl.constexpr, BN: tl.constexpr):
    """The gradient of the weighted cross-entropy, and its sum over the rows of a program."""
    k = tl.program_id(1).to(tl.int64)
    row = k * rows + tl.program_id(0) * BM + tl.arange(0, BM)
    each, col = row < (k + 1) * rows, tl.arange(0, BN)
    there = each[:, None] & (col[None, :] < classes)
    at = row[:, None] * classes + col[None, :]
    h = tl.load(outputs + at, mask=there, other=-float("inf"))
    h = tl.where(each[:, None], h, 0.0)
    h -= tl.max(h, 1)[:, None]
    e = tl.exp(h)
    total = tl.sum(e, 1)
    w = tl.load(weight + row, mask=each, other=0.0)
    own = col[None, :] == tl.load(y + row, mask=each, other=0)[:, None]
    tl.store(slope + at, w[:, None] * (e / total[:, None] - own.to(tl.float32)), mask=there)
    nats = w * (tl.log(total) - tl.sum(tl.where(own, h, 0.0), 1))
    tl.store(nll + k * tl.num_programs(0) + tl.program_id(0), tl.sum(nats, 0))


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
    nat, prior = tl.load(share + k), prior + prior_size * k
    to_mean, to_raw, to_logit = _changes(gm, gv, nat, m, raw, own, prior, DENSE)
    scale = tl.load(root) if UPDATE else 1.0
    rate = tl.load(rates + OF_MEAN * replicates + k) if UPDATE else 0.0
    _move(mean, mean_first, mean_second, at, there, to_mean, m, rate, scale, BETA1, BETA2, EPS, UPDATE)
    rate = tl.load(rates + OF_RAW * replicates + k) if UPDATE else 0.0
    _move(raw_std, raw_first, raw_second, at, there, to_raw, raw, rate, scale, BETA1, BETA2, EPS, UPDATE)
    if not DENSE:
        rate = tl.load(rates + OF_LOGIT * replicates + k) if UPDATE else 0.0
        _move(logit, logit_first, logit_second, at, there, to_logit, own, rate, scale,
              BETA1, BETA2, EPS, UPDATE)  # fmt: skip


def _stride(value: Tensor) -> int:
    """From one replicate to the next; 0 for a value that all share."""
    return int(value.numel() > 1)


def moments(
    mean: Tensor, raw_std: Tensor, logit: Tensor | None, prior_mean: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the weights, and sums for the KL and for what the prior learns."""
    k, count = len(mean), mean[0].numel()
    parts = triton.cdiv(count, _BLOCK)
    first, second, sums = torch.empty_like(mean), torch.empty_like(mean), mean.new_empty(k, parts, 3)
    _moments_kernel[(parts, k)](
        mean, raw_std, mean if logit is None else logit, first, second, sums, prior_mean, _stride(prior_mean),
        count, logit is None, _BLOCK, num_warps=4,
    )  # fmt: skip
    return first, second, sums


def prior(
    sums: Tensor, count: int, of_weights: Sequence[Tensor], bias: Sequence[Tensor],
    of_biases: Sequence[Tensor], strengths: tuple[float | None, float | None, float], dense: bool,
    by_layer: Tensor, layer: int,
) -> Tensor:  # fmt: skip
    """``(K, 6)``: mean, std and logit of the prior of the weights, mean and std of the biases', room.

    Priors are given as mean, std and, of the weights, inclusion probability. The KL goes to its place in
    ``by_layer``, ``(K, layers)``.
    """
    k = len(sums)
    made = sums.new_empty(k, 6)
    known = [-1.0 if strength is None else strength for strength in strengths]
    _prior_kernel[(k,)](
        sums, sums.shape[1], count, *of_weights, *map(_stride, of_weights), *bias, bias[0].shape[1],
        *of_biases, *map(_stride, of_biases), made, by_layer, by_layer.shape[1], layer, *known, dense, 256,
        num_warps=4,
    )  # fmt: skip
    return made


def outputs(
    mean: Tensor, var: Tensor, bias: Sequence[Tensor], noise: Tensor, noise_at: int, least: float, last: bool
) -> Tensor | None:
    """Outputs in the place of ``mean``, rectified but for the last layer, and their std in that of ``var``.

    The result is the squares of rectified outputs.
    """
    k, units, count = len(mean), mean.shape[2], mean[0].numel()
    squares = None if last else torch.empty_like(mean)
    _outputs_kernel[(triton.cdiv(count, _BLOCK), k)](
        mean, var, *bias, noise, mean if last else squares, units, count, noise_at, noise.shape[1], least,
        last, _BLOCK, num_warps=4,
    )  # fmt: skip
    return squares


def slopes(
    slope: Tensor, by_var: Tensor | None, z: Tensor | None, std: Tensor, noise: Tensor, noise_at: int,
    least: float,
) -> Tensor:  # fmt: skip
    """The gradient by the outputs, in the place of ``slope``; the result is that by their variances.

    Below the last layer ``slope`` and ``by_var`` are gradients by the inputs ``z`` of the layer above, which
    may have more columns, and by their squares.
    """
    k, width, count = len(slope), slope.shape[2], slope[0].numel()
    noisy = torch.empty_like(slope)
    _slopes_kernel[(triton.cdiv(count, _BLOCK), k)](
        slope, slope if by_var is None else by_var, slope if z is None else z, std, noise, noisy, width,
        width if z is None else z.shape[2], count, noise_at, noise.shape[1], least, z is None, _BLOCK,
        num_warps=4,
    )  # fmt: skip
    return noisy


_Adam = tuple[Tensor, Tensor, Tensor, Sequence[int]]


def parameters(
    by_mean: Tensor, by_var: Tensor, held: Sequence[Tensor], known: Tensor, share: Tensor,
    first: Sequence[Tensor], second: Sequence[Tensor], adam: _Adam | None,
    constants: tuple[float, float, float],
) -> None:  # fmt: skip
    """Adam's step for mean, raw std and logit (if there is one); without ``adam`` gradients into ``first``.

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


def biases(
    slope: Tensor, noisy: Tensor, held: Sequence[Tensor], known: Tensor, share: Tensor,
    first: Sequence[Tensor], second: Sequence[Tensor], adam: _Adam | None,
    constants: tuple[float, float, float],
) -> None:  # fmt: skip
    """The same for mean and raw std of the biases, from the gradients by the outputs and their variances."""
    k, rows, units = slope.shape
    moved = [t for pair in zip(first, second) for t in pair]
    rates, root, alive, groups = (held[0],) * 3 + ([0, 0],) if adam is None else adam
    _biases_kernel[(triton.cdiv(units, 16), k)](
        slope, noisy, *held, known, known.stride(0), share, *moved, rates, root, alive, k, rows, units,
        *constants, *groups, adam is not None, 128, 16, num_warps=4,
    )  # fmt: skip


def classes(outputs: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of the weighted cross-entropy, and its sums over some rows each, ``(K, parts)``."""
    k, rows, n = outputs.shape
    size = max(1, min(128, 4096 // triton.next_power_of_2(n)))
    slope, nll = torch.empty_like(outputs), outputs.new_empty(k, triton.cdiv(rows, size))
    _classes_kernel[(nll.shape[1], k)](
        outputs, y, weight, slope, nll, rows, n, size, triton.next_power_of_2(n), num_warps=4
    )
    return slope, nll
