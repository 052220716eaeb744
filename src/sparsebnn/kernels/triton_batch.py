"""Triton kernels at both ends of a captured step: the batches of replicates, and what a step leaves behind.

Operation by operation they take thirty launches, one after the other, for a few kilobytes.
"""

# mypy: ignore-errors

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsebnn.kernels.dispatch import in_rehearsal

_BLOCK = 1024


@triton.jit(do_not_specialize=["size", "length", "columns", "targets", "n_data"])
def _gather_kernel(
    x, y, weights, order, position, masks, beta, out, squares, to_y, to_weight, share,
    size, length, columns, targets, n_data,
    BYTES: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of the batch; the first program of a replicate adds what the KL counts."""
    k, j = tl.program_id(1).to(tl.int64), tl.program_id(0)
    at = tl.load(position)
    row = tl.load(order + k * length + at * size + j)
    place = k * size + j
    for start in range(0, columns, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * columns + col, mask=col < columns, other=0)
        if BYTES:
            value = tl.div_rn(value.to(tl.float32), 255.0)
        tl.store(out + place * columns + col, value, mask=col < columns)
        tl.store(squares + place * columns + col, value * value, mask=col < columns)
    for start in range(0, targets, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(y + row * targets + col, mask=col < targets, other=0)
        tl.store(to_y + place * targets + col, value, mask=col < targets)
    weight = tl.load(masks + at * size + j)
    if WEIGHTED:
        weight *= tl.load(weights + row)
    tl.store(to_weight + place, weight)
    if j == 0:
        rows = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, size, BLOCK):
            each = start + tl.arange(0, BLOCK)
            rows += tl.load(masks + at * size + each, mask=each < size, other=0.0)
        tl.store(share + k, tl.div_rn(tl.sum(rows, 0), n_data.to(tl.float32)) * tl.load(beta + k))


@triton.jit(do_not_specialize=["replicates", "layers", "parts"])
def _account_kernel(
    terms, by_layer, share, totals, kl_by_layer, alive, stopped_at, position, step, replicates, layers, parts,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """What a step adds to the sums of its epoch, and which replicates have stopped."""
    k = tl.arange(0, BLOCK)
    there = k < replicates
    nll, kl = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        nll += tl.load(terms + k * parts + part, mask=there, other=0.0)
    for layer in range(layers):
        own = tl.load(by_layer + k * layers + layer, mask=there, other=0.0)
        tl.store(kl_by_layer + k * layers + layer, own, mask=there)
        kl += own
    loss = nll + tl.load(share + k, mask=there, other=0.0) * kl
    before, good = tl.load(alive + k, mask=there, other=0) != 0, tl.abs(loss) < float("inf")
    now = tl.load(step)
    tl.store(stopped_at + k, now, mask=there & before & ~good)
    lives = before & good
    tl.store(alive + k, lives, mask=there)
    for which in tl.static_range(3):
        value = loss if which == 0 else nll if which == 1 else kl
        at = totals + 3 * k + which
        tl.store(at, tl.load(at, mask=there, other=0.0) + value.to(tl.float64), mask=there & lives)
    tl.store(position, tl.load(position) + 1)
    tl.store(step, now + 1)


@triton.jit(do_not_specialize=["count"])
def _corrected_kernel(
    rates, step, out, root, count, LOG1: tl.constexpr, LOG2: tl.constexpr, BLOCK: tl.constexpr
):
    t = (tl.load(step) + 1).to(tl.float64)
    i = tl.arange(0, BLOCK)
    rate = tl.load(rates + i, mask=i < count, other=0.0)
    tl.store(out + i, tl.div_rn(rate, (1.0 - tl.exp(t * LOG1)).to(tl.float32)), mask=i < count)
    tl.store(root, tl.sqrt(1.0 - tl.exp(t * LOG2)).to(tl.float32))


def corrected(loop: Mapping[str, Tensor], betas: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """As :func:`sparsebnn.training.optimizers.corrected`, for the step that comes."""
    rates = loop["rates"].contiguous()
    out, root, count = torch.empty_like(rates), rates.new_empty(()), rates.numel()
    logs = math.log(betas[0]), math.log(betas[1])
    block = triton.next_power_of_2(count)
    _corrected_kernel[(1,)](rates, loop["step"], out, root, count, *logs, block, num_warps=1)
    return out, root


def gather(
    data: Mapping[str, Tensor], loop: Mapping[str, Tensor], n_data: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Rows, their squares, targets and weights of every replicate's batch, and what the KL counts of it."""
    x, y, order, masks = data["x"], data["y"], loop["order"], loop["masks"]
    (k, length), size, columns = order.shape, masks.shape[1], x.shape[1]
    out = masks.new_empty(k, size, columns)
    squares, weight, share = torch.empty_like(out), masks.new_empty(k, size), masks.new_empty(k)
    to_y = (y.new_zeros if in_rehearsal() else y.new_empty)((k, size, *y.shape[1:]))
    weights = data.get("weight", masks)
    _gather_kernel[(size, k)](
        x, y, weights, order, loop["position"], masks, loop["beta"], out, squares, to_y, weight, share,
        size, length, columns, y[0].numel(), n_data, x.dtype == torch.uint8, "weight" in data,
        min(_BLOCK, triton.next_power_of_2(columns)), num_warps=4,
    )  # fmt: skip
    return out, squares, to_y, weight, share


def account(loop: Mapping[str, Tensor], terms: Tensor, by_layer: Tensor, share: Tensor) -> None:
    """As ``mark_stopped`` and ``count_step`` of ``training.optimizers``, from terms of the NLL."""
    k, layers = by_layer.shape
    _account_kernel[(1,)](
        terms, by_layer, share, loop["totals"], loop["kl_by_layer"], loop["alive"], loop["stopped_at"],
        loop["position"], loop["step"], k, layers, terms.numel() // k, triton.next_power_of_2(k), num_warps=1,
    )  # fmt: skip
