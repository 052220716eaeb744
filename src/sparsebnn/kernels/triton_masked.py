"""The Triton kernels behind :mod:`sparsebnn.kernels.masked`; imported only where CUDA is used."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward_kernel(
    x, weight, bias, long, short, order, places, y, folded,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    SLOPE: tl.constexpr, SORTED: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """A few whole rows: their long outputs from the left, their short ones from the right."""
    k = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    there = row < ROWS
    n_long = tl.load(long + row, mask=there, other=0)
    n_short = tl.load(short + row, mask=there, other=0)
    to_long = tl.zeros((BR,), tl.float32)
    to_short = tl.zeros((BR,), tl.float32)
    for start in range(0, WIDTH, BC):
        col = start + tl.arange(0, BC)
        back = WIDTH - 1 - col
        seen, seen_back = (col < WIDTH) & (col < INPUTS), (back >= 0) & (back < INPUTS)
        if SORTED:
            forwards, backwards = col, back
        else:
            forwards = tl.load(order + col, mask=seen, other=0)
            backwards = tl.load(order + back, mask=seen_back, other=0)
        xf = tl.load(x + k * INPUTS + forwards, mask=seen, other=0.0)
        xb = tl.load(x + k * INPUTS + backwards, mask=seen_back, other=0.0)
        at = (k * ROWS + row[:, None]) * WIDTH + col[None, :]
        w = tl.load(weight + at, mask=there[:, None] & (col < WIDTH)[None, :], other=0.0)
        to_long += tl.sum(tl.where(col[None, :] < n_long[:, None], w * xf[None, :], 0.0), 1)
        to_short += tl.sum(tl.where(col[None, :] >= WIDTH - n_short[:, None], w * xb[None, :], 0.0), 1)
        if tl.program_id(0) == 0:
            tl.store(folded + k * WIDTH + col, xf, mask=col < WIDTH)
    place = tl.load(places + row, mask=there, other=OUTPUTS)
    value = to_long + tl.load(bias + k * OUTPUTS + place, mask=place < OUTPUTS, other=0.0)
    tl.store(y + k * OUTPUTS + place, tl.where(value > 0, value, value * SLOPE), mask=place < OUTPUTS)
    place = tl.load(places + ROWS + row, mask=there, other=OUTPUTS)
    value = to_short + tl.load(bias + k * OUTPUTS + place, mask=place < OUTPUTS, other=0.0)
    tl.store(y + k * OUTPUTS + place, tl.where(value > 0, value, value * SLOPE), mask=place < OUTPUTS)


@triton.jit
def _row_grad(
    grad, y, k, place, OUTPUTS: tl.constexpr, PARTS: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """The gradient of an output before its leaky ReLU, from the parts of the one after it."""
    known = place < OUTPUTS
    bent = tl.load(y + k * OUTPUTS + place, mask=known, other=1.0) <= 0
    total = tl.load(grad + k * PARTS * OUTPUTS + place, mask=known, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(grad + (k * PARTS + part) * OUTPUTS + place, mask=known, other=0.0)
    return tl.where(bent, total * SLOPE, total)


@triton.jit
def _backward_kernel(
    grad, y, weight, long, short, order, places, out, folded,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    PARTS: tl.constexpr, SLOPE: tl.constexpr, SORTED: tl.constexpr,
    EACH: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Columns from the left with their mirror images: together they give both inputs' gradients."""
    k, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    col = tl.program_id(0) * BC + tl.arange(0, BC)
    mirror = WIDTH - 1 - col
    inside = col <= mirror
    # Sums over the rows: for the input that this column is to long outputs, and for its mirror's.
    left = tl.zeros((BC,), tl.float32)
    right = tl.zeros((BC,), tl.float32)
    for start in tl.static_range(0, EACH, BR):
        row = part * EACH + start + tl.arange(0, BR)
        there = (row < ROWS) & (start + tl.arange(0, BR) < EACH)
        at = (k * ROWS + row[:, None]) * WIDTH
        good = there[:, None] & inside[None, :]
        wl = tl.load(weight + at + col[None, :], mask=good, other=0.0)
        wr = tl.load(weight + at + mirror[None, :], mask=good, other=0.0)
        n_long = tl.load(long + row, mask=there, other=0)[:, None]
        first_short = WIDTH - tl.load(short + row, mask=there, other=0)[:, None]
        place_long = tl.load(places + row, mask=there, other=OUTPUTS)
        place_short = tl.load(places + ROWS + row, mask=there, other=OUTPUTS)
        g_long = _row_grad(grad, y, k, place_long, OUTPUTS, PARTS, SLOPE)
        g_short = _row_grad(grad, y, k, place_short, OUTPUTS, PARTS, SLOPE)
        if tl.program_id(0) == 0:
            tl.store(folded + k * 2 * ROWS + row, g_long, mask=there)
            tl.store(folded + k * 2 * ROWS + ROWS + row, g_short, mask=there)
        c, m = col[None, :], mirror[None, :]
        from_left = tl.where(c < n_long, wl * g_long[:, None], 0.0)
        left += tl.sum(from_left + tl.where(m >= first_short, wr * g_short[:, None], 0.0), 0)
        from_right = tl.where(m < n_long, wr * g_long[:, None], 0.0)
        right += tl.sum(from_right + tl.where(c >= first_short, wl * g_short[:, None], 0.0), 0)
    out += (k * tl.num_programs(1) + part) * INPUTS
    seen, seen_mirror = inside & (col < INPUTS), (col < mirror) & (mirror < INPUTS)
    if SORTED:
        to, to_mirror = col, mirror
    else:
        to = tl.load(order + col, mask=seen, other=0)
        to_mirror = tl.load(order + mirror, mask=seen_mirror, other=0)
    tl.store(out + to, left, mask=seen)
    tl.store(out + to_mirror, right, mask=seen_mirror)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, long: Tensor, short: Tensor, order: Tensor, places: Tensor,
    slope: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    k, rows, width = weight.shape
    y, folded = torch.empty_like(bias), x.new_empty(k, width)
    columns = min(1024, triton.next_power_of_2(width))
    most = max(1, 4096 // columns)
    each = max(1, min(most, triton.next_power_of_2(max(1, k * rows // 264))))
    _forward_kernel[(triton.cdiv(rows, each), k)](
        x, weight, bias, long, short, order, places, y, folded,
        x.shape[-1], bias.shape[-1], rows, width, slope, order.numel() == 0, each, columns, num_warps=4,
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
    at_once = min(128, triton.next_power_of_2(each))
    _backward_kernel[grid](
        grad, y, weight, long, short, order, places, out, folded,
        inputs, y.shape[-1], rows, width, grad.shape[1], slope, order.numel() == 0,
        each, at_once, 32, num_warps=4,
    )  # fmt: skip
    return out, folded
