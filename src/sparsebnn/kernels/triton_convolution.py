"""The Triton kernels behind :mod:`sparsebnn.kernels.convolution`; imported only where CUDA is used."""

# mypy: ignore-errors

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsebnn.kernels.convolution import Shape


@triton.jit
def _put(out, sums, there, bias, col, O: tl.constexpr, BIAS: tl.constexpr):  # noqa: E741
    """Store sums, with the filters' biases where there are some."""
    if BIAS:
        sums += tl.load(bias + col, mask=col < O, other=0.0)[None, :]
    tl.store(out, sums, mask=there)


@triton.jit
def _forward_kernel(
    x, wm, wv, bm, bv, m, v, B,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr,  # noqa: E741
    OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr,
    PAIR: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Rows are (image, output pixel), columns filters; the sum runs over (channel, tap)."""
    TAPS: tl.constexpr = KH * KW
    DEPTH: tl.constexpr = C * TAPS
    replicate = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    col = tl.program_id(1) * BN + tl.arange(0, BN)
    rows = B * OH * OW
    image, pixel = row // (OH * OW), row % (OH * OW)
    oh, ow = pixel // OW, pixel % OW
    x += replicate * B * C * H * W
    wm += replicate * O * DEPTH
    wv += replicate * O * DEPTH
    acc_m = tl.zeros((BM, BN), tl.float32)
    acc_v = tl.zeros((BM, BN), tl.float32)
    for start in range(0, DEPTH, BK):
        k = start + tl.arange(0, BK)
        c, tap = k // TAPS, k % TAPS
        ih = oh[:, None] * SH - PH + (tap // KW)[None, :] * DH
        iw = ow[:, None] * SW - PW + (tap % KW)[None, :] * DW
        inside = (row[:, None] < rows) & (k[None, :] < DEPTH)
        inside = inside & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        a = tl.load(x + ((image[:, None] * C + c[None, :]) * H + ih) * W + iw, mask=inside, other=0.0)
        at = col[None, :] * DEPTH + k[:, None]
        there = (k[:, None] < DEPTH) & (col[None, :] < O)
        acc_m = tl.dot(a, tl.load(wm + at, mask=there, other=0.0), acc_m, input_precision=PRECISION)
        if PAIR:
            acc_v = tl.dot(a * a, tl.load(wv + at, mask=there, other=0.0), acc_v, input_precision=PRECISION)
    out = replicate * rows * O + (image[:, None] * O + col[None, :]) * (OH * OW) + pixel[:, None]
    there = (row[:, None] < rows) & (col[None, :] < O)
    _put(m + out, acc_m, there, bm + replicate * O, col, O, BIAS)
    if PAIR:
        _put(v + out, acc_v, there, bv + replicate * O, col, O, BIAS)


@triton.jit
def _weight_kernel(
    dm, dv, x, gm, gv, sm, sv, B, K, per_split,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr,  # noqa: E741
    OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr,
    PAIR: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, LAST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Rows are filters, columns (channel, tap); each split sums over its share of the output pixels.

    With LAST, for many channels, x is (B, H, W, C), gradients are (B, H', W', O) and columns (tap, channel).
    The first column of programs also sums the gradients themselves, which is the bias's gradient.
    """
    TAPS: tl.constexpr = KH * KW
    DEPTH: tl.constexpr = C * TAPS
    replicate = (tl.program_id(2) % K).to(tl.int64)
    split = (tl.program_id(2) // K).to(tl.int64)
    o = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    if LAST:
        tap, c = k // C, k % C
    else:
        c, tap = k // TAPS, k % TAPS
    down, across = (tap // KW) * DH - PH, (tap % KW) * DW - PW
    rows = B * OH * OW
    x += replicate * B * C * H * W
    dm += replicate * rows * O
    dv += replicate * rows * O
    acc_m = tl.zeros((BM, BN), tl.float32)
    acc_v = tl.zeros((BM, BN), tl.float32)
    sum_m = tl.zeros((BM, BK), tl.float32)
    sum_v = tl.zeros((BM, BK), tl.float32)
    first = split * per_split
    for start in range(0, per_split, BK):
        row = first + start + tl.arange(0, BK)
        image, pixel = row // (OH * OW), row % (OH * OW)
        oh, ow = pixel // OW, pixel % OW
        mine = (row < rows) & (row < first + per_split)
        ih = (oh * SH)[:, None] + down[None, :]
        iw = (ow * SW)[:, None] + across[None, :]
        inside = mine[:, None] & (k[None, :] < DEPTH) & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        if LAST:
            from_x = ((image[:, None] * H + ih) * W + iw) * C + c[None, :]
            at = row[None, :] * O + o[:, None]
        else:
            from_x = ((image[:, None] * C + c[None, :]) * H + ih) * W + iw
            at = (image[None, :] * O + o[:, None]) * (OH * OW) + pixel[None, :]
        a = tl.load(x + from_x, mask=inside, other=0.0)
        there = (o[:, None] < O) & mine[None, :]
        g = tl.load(dm + at, mask=there, other=0.0)
        acc_m = tl.dot(g, a, acc_m, input_precision=PRECISION)
        if BIAS:
            sum_m += g
        if PAIR:
            g = tl.load(dv + at, mask=there, other=0.0)
            acc_v = tl.dot(g, a * a, acc_v, input_precision=PRECISION)
            if BIAS:
                sum_v += g
    out = (split * K + replicate) * O * DEPTH + o[:, None] * DEPTH + k[None, :]
    there = (o[:, None] < O) & (k[None, :] < DEPTH)
    tl.store(gm + out, acc_m, mask=there)
    if PAIR:
        tl.store(gv + out, acc_v, mask=there)
    if BIAS and tl.program_id(1) == 0:
        tl.store(sm + (split * K + replicate) * O + o, tl.sum(sum_m, 1), mask=o < O)
        if PAIR:
            tl.store(sv + (split * K + replicate) * O + o, tl.sum(sum_v, 1), mask=o < O)


@triton.jit
def _forward_kernel_last(
    x, wm, wv, bm, bv, m, v, B,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr,  # noqa: E741
    OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr,
    PAIR: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """As above for many channels: x is (B, H, W, C), weights (taps, C, O); one tap at a time."""
    BLOCKS: tl.constexpr = (C + BK - 1) // BK
    replicate = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    col = tl.program_id(1) * BN + tl.arange(0, BN)
    rows = B * OH * OW
    image, pixel = row // (OH * OW), row % (OH * OW)
    oh, ow = pixel // OW, pixel % OW
    x += replicate * B * C * H * W
    wm += replicate * O * C * KH * KW
    wv += replicate * O * C * KH * KW
    acc_m = tl.zeros((BM, BN), tl.float32)
    acc_v = tl.zeros((BM, BN), tl.float32)
    for step in range(KH * KW * BLOCKS):
        tap = step // BLOCKS
        c = (step % BLOCKS) * BK + tl.arange(0, BK)
        ih = oh * SH - PH + (tap // KW) * DH
        iw = ow * SW - PW + (tap % KW) * DW
        inside = (row < rows) & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        at = ((image * H + ih) * W + iw) * C
        a = tl.load(x + at[:, None] + c[None, :], mask=inside[:, None] & (c[None, :] < C), other=0.0)
        weight_at = (tap * C + c)[:, None] * O + col[None, :]
        there = (c[:, None] < C) & (col[None, :] < O)
        acc_m = tl.dot(a, tl.load(wm + weight_at, mask=there, other=0.0), acc_m, input_precision=PRECISION)
        if PAIR:
            b = tl.load(wv + weight_at, mask=there, other=0.0)
            acc_v = tl.dot(a * a, b, acc_v, input_precision=PRECISION)
    out = replicate * rows * O + (image[:, None] * O + col[None, :]) * (OH * OW) + pixel[:, None]
    there = (row[:, None] < rows) & (col[None, :] < O)
    _put(m + out, acc_m, there, bm + replicate * O, col, O, BIAS)
    if PAIR:
        _put(v + out, acc_v, there, bv + replicate * O, col, O, BIAS)


@triton.jit
def _input_kernel_last(
    dm, dv, x, wm, wv, dx, B,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr,  # noqa: E741
    OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr,
    PAIR: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Rows are (image, input pixel), columns channels; gradients (B, H', W', O), weights (taps, O, C)."""
    BLOCKS: tl.constexpr = (O + BK - 1) // BK
    replicate = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    rows = B * H * W
    image, pixel = row // (H * W), row % (H * W)
    h, w = pixel // W, pixel % W
    dm += replicate * B * O * OH * OW
    dv += replicate * B * O * OH * OW
    wm += replicate * O * C * KH * KW
    wv += replicate * O * C * KH * KW
    acc_m = tl.zeros((BM, BN), tl.float32)
    acc_v = tl.zeros((BM, BN), tl.float32)
    for step in range(KH * KW * BLOCKS):
        tap = step // BLOCKS
        o = (step % BLOCKS) * BK + tl.arange(0, BK)
        th = h + PH - (tap // KW) * DH
        tw = w + PW - (tap % KW) * DW
        oh, ow = th // SH, tw // SW
        inside = (row < rows) & (th >= 0) & (tw >= 0) & (oh < OH) & (ow < OW)
        if SH > 1 or SW > 1:
            inside = inside & (th % SH == 0) & (tw % SW == 0)
        at = (((image * OH + oh) * OW + ow) * O)[:, None] + o[None, :]
        known = inside[:, None] & (o[None, :] < O)
        weight_at = (tap * O + o)[:, None] * C + c[None, :]
        there = (o[:, None] < O) & (c[None, :] < C)
        g = tl.load(dm + at, mask=known, other=0.0)
        acc_m = tl.dot(g, tl.load(wm + weight_at, mask=there, other=0.0), acc_m, input_precision=PRECISION)
        if PAIR:
            g = tl.load(dv + at, mask=known, other=0.0)
            b = tl.load(wv + weight_at, mask=there, other=0.0)
            acc_v = tl.dot(g, b, acc_v, input_precision=PRECISION)
    out = replicate * rows * C + (image[:, None] * C + c[None, :]) * (H * W) + pixel[:, None]
    there = (row[:, None] < rows) & (c[None, :] < C)
    if PAIR:
        acc_m += 2.0 * tl.load(x + out, mask=there, other=0.0) * acc_v
    tl.store(dx + out, acc_m, mask=there)


def _tile(n: int, most: int) -> int:
    """A power of two from 16 that covers n, or ``most``."""
    return min(most, max(16, triton.next_power_of_2(n)))


class Tiles(NamedTuple):
    """How a kernel is cut up: rows, columns and depth of a tile, warps, and stages of its pipeline."""

    m: int
    n: int
    k: int
    warps: int
    stages: int = 3


def _rows_per_tile(rows: int, others: int, most: int) -> int:
    """``most``, or less (from 64) where that would leave part of the device without work."""
    while most > 64 and triton.cdiv(rows, most) * others < 132:
        most //= 2
    return most


# Measured on an H200 by benchmarks/tiles.py. Tiles of the weight gradients have 32 filters: from 64 on the
# compiler takes matrix instructions that want both sides transposed, and is three times as slow.


def forward_tiles(replicates: int, batch: int, shape: Shape, last: bool) -> Tiles:
    rows, n = batch * shape.oh * shape.ow, 64
    m = _rows_per_tile(rows, replicates * triton.cdiv(shape.o, n), 256 if last else 128)
    if last:
        return Tiles(m, n, 16, 8 if m > 64 else 4, 4)
    return Tiles(m, n, _tile(shape.depth, 32), 4, 2)


def weight_tiles(shape: Shape, last: bool) -> Tiles:
    if last:
        return Tiles(32, _tile(shape.depth, 128), 32, 4)
    n = _tile(shape.depth, 128)
    return Tiles(64, n, 32, 8 if n > 64 else 4)


def input_tiles(replicates: int, batch: int, shape: Shape) -> Tiles:
    n = _tile(shape.c, 64)
    others = replicates * triton.cdiv(shape.c, n)
    m = _rows_per_tile(batch * shape.h * shape.w, others, 256 if n < 64 else 128)
    return Tiles(m, n, 16, 8 if m * n > 4096 else 4)


def _precision() -> str:
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def forward(
    x: Tensor, wm: Tensor, wv: Tensor, bm: Tensor, bv: Tensor, shape: Shape, pair: bool, last: bool,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    k, b, o = x.shape[0], x.shape[1], shape.o
    t = tiles or forward_tiles(k, b, shape, last)
    m = x.new_empty(k, b, o, shape.oh, shape.ow)
    v = torch.empty_like(m) if pair else x.new_empty(0)
    grid = (triton.cdiv(b * shape.oh * shape.ow, t.m), triton.cdiv(o, t.n), k)
    kernel = _forward_kernel_last if last else _forward_kernel
    kernel[grid](
        x, wm, wv, bm, bv, m, v, b, *shape,
        pair, bm.numel() > 0, _precision(), t.m, t.n, t.k, num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return m, v


def weight_grad(
    dm: Tensor, dv: Tensor, x: Tensor, shape: Shape, splits: int, pair: bool, bias: bool, last: bool,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    k, b, o, depth = x.shape[0], x.shape[1], shape.o, shape.depth
    t = tiles or weight_tiles(shape, last)
    each = triton.cdiv(triton.cdiv(b * shape.oh * shape.ow, splits), t.k) * t.k
    none = x.new_empty(0)
    gm = x.new_empty(splits, k, o, depth)
    gv = torch.empty_like(gm) if pair else none.clone()
    sm = x.new_empty(splits, k, o) if bias else none.clone()
    sv = torch.empty_like(sm) if bias and pair else none.clone()
    grid = (triton.cdiv(o, t.m), triton.cdiv(depth, t.n), k * splits)
    _weight_kernel[grid](
        dm, dv, x, gm, gv, sm, sv, b, k, each, *shape,
        pair, bias, _precision(), last, t.m, t.n, t.k, num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return gm, gv, sm, sv


def input_grad(
    dm: Tensor, dv: Tensor, x: Tensor, wm: Tensor, wv: Tensor, shape: Shape, pair: bool,
    tiles: Tiles | None = None,
) -> Tensor:  # fmt: skip
    k, b, c = x.shape[0], x.shape[1], shape.c
    t = tiles or input_tiles(k, b, shape)
    dx = torch.empty_like(x)
    grid = (triton.cdiv(b * shape.h * shape.w, t.m), triton.cdiv(c, t.n), k)
    _input_kernel_last[grid](
        dm, dv, x, wm, wv, dx, b, *shape,
        pair, False, _precision(), t.m, t.n, t.k, num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return dx
