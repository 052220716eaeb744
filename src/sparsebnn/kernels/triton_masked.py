"""The Triton kernels behind :mod:`sparsebnn.kernels.masked`; imported only where CUDA is used."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


# Sizes are no constants of the kernels: the layers of a network share them, and each takes a second to make.
@triton.jit(do_not_specialize=["inputs", "outputs", "rows", "width"])
def _forward_kernel(
    x, weight, bias, long, short, order, places, y, folded, inputs, outputs, rows, width, slope,
    SORTED: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """A few whole rows: their long outputs from the left, their short ones from the right."""
    k = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    there = row < rows
    n_long = tl.load(long + row, mask=there, other=0)
    n_short = tl.load(short + row, mask=there, other=0)
    sums_long = tl.zeros((BR, BC), tl.float32)
    sums_short = tl.zeros((BR, BC), tl.float32)
    for start in range(0, width, BC):
        col = start + tl.arange(0, BC)
        back = width - 1 - col
        seen, seen_back = (col < width) & (col < inputs), (back >= 0) & (back < inputs)
        if SORTED:
            forwards, backwards = col, back
        else:
            forwards = tl.load(order + col, mask=seen, other=0)
            backwards = tl.load(order + back, mask=seen_back, other=0)
        xf = tl.load(x + k * inputs + forwards, mask=seen, other=0.0)
        xb = tl.load(x + k * inputs + backwards, mask=seen_back, other=0.0)
        at = (k * rows + row[:, None]) * width + col[None, :]
        w = tl.load(weight + at, mask=there[:, None] & (col < width)[None, :], other=0.0)
        sums_long += tl.where(col[None, :] < n_long[:, None], w * xf[None, :], 0.0)
        sums_short += tl.where(col[None, :] >= width - n_short[:, None], w * xb[None, :], 0.0)
        if tl.program_id(0) == 0:
            tl.store(folded + k * width + col, xf, mask=col < width)
    to_long, to_short = tl.sum(sums_long, 1), tl.sum(sums_short, 1)
    place = tl.load(places + row, mask=there, other=outputs)
    value = to_long + tl.load(bias + k * outputs + place, mask=place < outputs, other=0.0)
    tl.store(y + k * outputs + place, tl.where(value > 0, value, value * slope), mask=place < outputs)
    place = tl.load(places + rows + row, mask=there, other=outputs)
    value = to_short + tl.load(bias + k * outputs + place, mask=place < outputs, other=0.0)
    tl.store(y + k * outputs + place, tl.where(value > 0, value, value * slope), mask=place < outputs)


@triton.jit
def _row_grad(grad, y, k, place, outputs, parts, slope):
    """The gradient of an output before its leaky ReLU, from the parts of the one after it."""
    known = place < outputs
    bent = tl.load(y + k * outputs + place, mask=known, other=1.0) <= 0
    total = tl.load(grad + k * parts * outputs + place, mask=known, other=0.0)
    for part in range(1, parts):
        total += tl.load(grad + (k * parts + part) * outputs + place, mask=known, other=0.0)
    return tl.where(bent, total * slope, total)


@triton.jit(do_not_specialize=["inputs", "outputs", "rows", "width", "parts", "each"])
def _backward_kernel(
    grad, y, weight, long, short, order, places, out, folded, inputs, outputs, rows, width, parts, slope,
    each, SORTED: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Columns from the left with their mirror images: together they give both inputs' gradients."""
    k, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    col = tl.program_id(0) * BC + tl.arange(0, BC)
    mirror = width - 1 - col
    inside = col <= mirror
    # Sums over the rows: for the input that this column is to long outputs, and for its mirror's.
    left = tl.zeros((BR, BC), tl.float32)
    right = tl.zeros((BR, BC), tl.float32)
    for start in range(0, each, BR):
        row = part * each + start + tl.arange(0, BR)
        there = (row < rows) & (start + tl.arange(0, BR) < each)
        at = (k * rows + row[:, None]) * width
        good = there[:, None] & inside[None, :]
        wl = tl.load(weight + at + col[None, :], mask=good, other=0.0)
        wr = tl.load(weight + at + mirror[None, :], mask=good, other=0.0)
        n_long = tl.load(long + row, mask=there, other=0)[:, None]
        first_short = width - tl.load(short + row, mask=there, other=0)[:, None]
        place_long = tl.load(places + row, mask=there, other=outputs)
        place_short = tl.load(places + rows + row, mask=there, other=outputs)
        g_long = _row_grad(grad, y, k, place_long, outputs, parts, slope)
        g_short = _row_grad(grad, y, k, place_short, outputs, parts, slope)
        if tl.program_id(0) == 0:
            tl.store(folded + k * 2 * rows + row, g_long, mask=there)
            tl.store(folded + k * 2 * rows + rows + row, g_short, mask=there)
        c, m = col[None, :], mirror[None, :]
        from_left = tl.where(c < n_long, wl * g_long[:, None], 0.0)
        left += from_left + tl.where(m >= first_short, wr * g_short[:, None], 0.0)
        from_right = tl.where(m < n_long, wr * g_long[:, None], 0.0)
        right += from_right + tl.where(c >= first_short, wl * g_short[:, None], 0.0)
    out += (k * tl.num_programs(1) + part) * inputs
    seen, seen_mirror = inside & (col < inputs), (col < mirror) & (mirror < inputs)
    if SORTED:
        to, to_mirror = col, mirror
    else:
        to = tl.load(order + col, mask=seen, other=0)
        to_mirror = tl.load(order + mirror, mask=seen_mirror, other=0)
    tl.store(out + to, tl.sum(left, 0), mask=seen)
    tl.store(out + to_mirror, tl.sum(right, 0), mask=seen_mirror)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, long: Tensor, short: Tensor, order: Tensor, places: Tensor,
    slope: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    k, rows, width = weight.shape
    y, folded = torch.empty_like(bias), x.new_empty(k, width)
    each = 4 if k * rows >= 1056 else 1
    _forward_kernel[(triton.cdiv(rows, each), k)](
        x, weight, bias, long, short, order, places, y, folded,
        x.shape[-1], bias.shape[-1], rows, width, slope, order.numel() == 0, each, 256, num_warps=4,
    )  # fmt: skip
    return y, folded


def backward(
    grad: Tensor, y: Tensor, weight: Tensor, long: Tensor, short: Tensor, order: Tensor, places: Tensor,
    slope: float, each: int, inputs: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    k, rows, width = weight.shape
    parts = triton.cdiv(rows, each)
    # Inputs that no output sees have no column.
    out = (grad.new_zeros if width < inputs else grad.new_empty)((k, parts, inputs))
    folded = grad.new_empty(k, 2 * rows)
    grid = (triton.cdiv((width + 1) // 2, 32), parts, k)
    _backward_kernel[grid](
        grad, y, weight, long, short, order, places, out, folded,
        inputs, y.shape[-1], rows, width, grad.shape[1], slope, each, order.numel() == 0,
        16 if each <= 16 else 32, 32, num_warps=4,
    )  # fmt: skip
    return out, folded
