"""The Triton kernels behind :mod:`sparsebnn.kernels.spike_slab`; imported only where CUDA is used."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_TINY = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def _log1p_exp(x):
    """log(1 + exp(x)) for x ≤ 0, exact also where exp(x) is far below 1."""
    y = tl.exp(x)
    u = 1.0 + y
    return tl.where(u == 1.0, y, tl.log(u) * (y / (u - 1.0)))


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + _log1p_exp(-tl.abs(x))


@triton.jit
def _slab_kl(mean, std, prior_mean, prior_std):
    error = mean - prior_mean
    log_ratio = tl.log(prior_std) - tl.log(tl.maximum(std, _TINY))
    return log_ratio - 0.5 + (std * std + error * error) / (2.0 * prior_std * prior_std)


@triton.jit
def _forward_kernel(
    mean, raw_std, logit, prior, weight_mean, weight_var, kl, count, DENSE: tl.constexpr, BLOCK: tl.constexpr
):
    k = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there, at = i < count, k * count + i
    prior_mean, prior_std = tl.load(prior + 3 * k), tl.load(prior + 3 * k + 1)
    m = tl.load(mean + at, mask=there, other=0.0)
    std = _softplus(tl.load(raw_std + at, mask=there, other=0.0))
    nats = _slab_kl(m, std, prior_mean, prior_std)
    first, second = m, std * std
    if not DENSE:
        own, prior_logit = tl.load(logit + at, mask=there, other=0.0), tl.load(prior + 3 * k + 2)
        inclusion, exclusion = tl.sigmoid(own), tl.sigmoid(-own)
        first, second = inclusion * m, inclusion * (std * std + exclusion * m * m)
        nats = inclusion * (nats + own - prior_logit) + _softplus(prior_logit) - _softplus(own)
    tl.store(weight_mean + at, first, mask=there)
    tl.store(weight_var + at, second, mask=there)
    tl.store(kl + k * tl.num_programs(0) + tl.program_id(0), tl.sum(tl.where(there, nats, 0.0), 0))


@triton.jit
def _backward_kernel(
    grad_mean, grad_var, grad_kl, mean, raw_std, logit, prior, to_mean, to_raw, to_logit, count,
    DENSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there, at = i < count, k * count + i
    prior_mean, prior_std = tl.load(prior + 3 * k), tl.load(prior + 3 * k + 1)
    gm = tl.load(grad_mean + at, mask=there, other=0.0)
    gv = tl.load(grad_var + at, mask=there, other=0.0)
    nat = tl.load(grad_kl + k)
    m = tl.load(mean + at, mask=there, other=0.0)
    raw = tl.load(raw_std + at, mask=there, other=0.0)
    std = _softplus(raw)
    precision = 1.0 / (prior_std * prior_std)
    # Of the slab's KL; a std that is 0 has no logarithm left.
    by_mean = (m - prior_mean) * precision
    by_std = std * precision - tl.where(std >= _TINY, 1.0 / tl.maximum(std, _TINY), 0.0)
    if DENSE:
        tl.store(to_mean + at, gm + nat * by_mean, mask=there)
        tl.store(to_raw + at, (2.0 * gv * std + nat * by_std) * tl.sigmoid(raw), mask=there)
    else:
        own, prior_logit = tl.load(logit + at, mask=there, other=0.0), tl.load(prior + 3 * k + 2)
        inclusion, exclusion = tl.sigmoid(own), tl.sigmoid(-own)
        tl.store(to_mean + at, inclusion * (gm + 2.0 * gv * exclusion * m + nat * by_mean), mask=there)
        tl.store(to_raw + at, inclusion * (2.0 * gv * std + nat * by_std) * tl.sigmoid(raw), mask=there)
        odds = _slab_kl(m, std, prior_mean, prior_std) + own - prior_logit
        by_inclusion = gm * m + gv * (std * std + (exclusion - inclusion) * m * m) + nat * odds
        tl.store(to_logit + at, inclusion * exclusion * by_inclusion, mask=there)


def forward(
    mean: Tensor, raw_std: Tensor, logit: Tensor, prior: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    k, count = len(mean), mean[0].numel()
    parts = triton.cdiv(count, _BLOCK)
    first, second, kl = torch.empty_like(mean), torch.empty_like(mean), mean.new_empty(k, parts)
    _forward_kernel[(parts, k)](
        mean, raw_std, logit, prior, first, second, kl, count, logit.numel() == 0, _BLOCK, num_warps=4
    )
    return first, second, kl.sum(1)


def backward(
    grad_mean: Tensor, grad_var: Tensor, grad_kl: Tensor, mean: Tensor, raw_std: Tensor, logit: Tensor,
    prior: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    k, count = len(mean), mean[0].numel()
    out = torch.empty_like(mean), torch.empty_like(mean), torch.empty_like(logit)
    _backward_kernel[(triton.cdiv(count, _BLOCK), k)](
        grad_mean, grad_var, grad_kl, mean, raw_std, logit, prior, *out, count,
        logit.numel() == 0, _BLOCK, num_warps=4,
    )  # fmt: skip
    return out
