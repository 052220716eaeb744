"""The Triton kernels behind :mod:`sparsebnn.kernels.convolution`; imported only where CUDA is used."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["forward", "input_grad", "weight_grad"]


@triton.jit
def _forward_kernel(
    x, wm, wv, m, v, B,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr,
    PAIR: tl.constexpr, PRECISION: tl.constexpr,
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
    tl.store(m + out, acc_m, mask=there)
    if PAIR:
        tl.store(v + out, acc_v, mask=there)


@triton.jit
def _weight_kernel(
    dm, dv, x, gm, gv, B, K, per_split,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr,
    PAIR: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Rows are filters, columns (channel, tap); each split sums over its share of the output pixels."""
    TAPS: tl.constexpr = KH * KW
    DEPTH: tl.constexpr = C * TAPS
    replicate = (tl.program_id(2) % K).to(tl.int64)
    split = (tl.program_id(2) // K).to(tl.int64)
    o = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    c, tap = k // TAPS, k % TAPS
    rows = B * OH * OW
    x += replicate * B * C * H * W
    dm += replicate * rows * O
    dv += replicate * rows * O
    acc_m = tl.zeros((BM, BN), tl.float32)
    acc_v = tl.zeros((BM, BN), tl.float32)
    first = split * per_split
    for start in range(0, per_split, BK):
        row = first + start + tl.arange(0, BK)
        image, pixel = row // (OH * OW), row % (OH * OW)
        oh, ow = pixel // OW, pixel % OW
        mine = (row < rows) & (row < first + per_split)
        ih = oh[:, None] * SH - PH + (tap // KW)[None, :] * DH
        iw = ow[:, None] * SW - PW + (tap % KW)[None, :] * DW
        inside = mine[:, None] & (k[None, :] < DEPTH) & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        a = tl.load(x + ((image[:, None] * C + c[None, :]) * H + ih) * W + iw, mask=inside, other=0.0)
        at = (image[None, :] * O + o[:, None]) * (OH * OW) + pixel[None, :]
        there = (o[:, None] < O) & mine[None, :]
        acc_m = tl.dot(tl.load(dm + at, mask=there, other=0.0), a, acc_m, input_precision=PRECISION)
        if PAIR:
            acc_v = tl.dot(tl.load(dv + at, mask=there, other=0.0), a * a, acc_v, input_precision=PRECISION)
    out = (split * K + replicate) * O * DEPTH + o[:, None] * DEPTH + k[None, :]
    there = (o[:, None] < O) & (k[None, :] < DEPTH)
    tl.store(gm + out, acc_m, mask=there)
    if PAIR:
        tl.store(gv + out, acc_v, mask=there)


@triton.jit
def _input_kernel(
    dm, dv, x, wm, wv, dx, B,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr,
    PAIR: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Rows are (image, input pixel), columns channels; the sum runs over (tap, filter)."""
    TAPS: tl.constexpr = KH * KW
    DEPTH: tl.constexpr = O * TAPS
    replicate = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    rows = B * H * W
    image, pixel = row // (H * W), row % (H * W)
    h, w = pixel // W, pixel % W
    dm += replicate * B * O * OH * OW
    dv += replicate * B * O * OH * OW
    wm += replicate * O * C * TAPS
    wv += replicate * O * C * TAPS
    acc_m = tl.zeros((BM, BN), tl.float32)
    acc_v = tl.zeros((BM, BN), tl.float32)
    for start in range(0, DEPTH, BK):
        k = start + tl.arange(0, BK)
        o, tap = k // TAPS, k % TAPS
        th = h[:, None] + PH - (tap // KW)[None, :] * DH
        tw = w[:, None] + PW - (tap % KW)[None, :] * DW
        oh, ow = th // SH, tw // SW
        inside = (row[:, None] < rows) & (k[None, :] < DEPTH) & (th >= 0) & (tw >= 0)
        inside = inside & (oh < OH) & (ow < OW)
        if SH > 1 or SW > 1:
            inside = inside & (th % SH == 0) & (tw % SW == 0)
        at = ((image[:, None] * O + o[None, :]) * OH + oh) * OW + ow
        weight_at = (o[:, None] * C + c[None, :]) * TAPS + tap[:, None]
        there = (k[:, None] < DEPTH) & (c[None, :] < C)
        a = tl.load(dm + at, mask=inside, other=0.0)
        acc_m = tl.dot(a, tl.load(wm + weight_at, mask=there, other=0.0), acc_m, input_precision=PRECISION)
        if PAIR:
            a = tl.load(dv + at, mask=inside, other=0.0)
            b = tl.load(wv + weight_at, mask=there, other=0.0)
            acc_v = tl.dot(a, b, acc_v, input_precision=PRECISION)
    out = replicate * rows * C + (image[:, None] * C + c[None, :]) * (H * W) + pixel[:, None]
    there = (row[:, None] < rows) & (c[None, :] < C)
    if PAIR:
        acc_m += 2.0 * tl.load(x + out, mask=there, other=0.0) * acc_v
    tl.store(dx + out, acc_m, mask=there)


def _tile(n: int, most: int) -> int:
    """A power of two from 16 that covers n, or ``most``."""
    return min(most, max(16, triton.next_power_of_2(n)))


def _shape(x: Tensor, w: Tensor, size: tuple[int, int], geometry) -> tuple[int, ...]:
    stride, padding, dilation = geometry
    _, _, c, h, width = x.shape
    return (c, h, width, w.shape[1], *size, w.shape[3], w.shape[4], *stride, *padding, *dilation)


def _precision() -> str:
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def forward(x: Tensor, wm: Tensor, wv: Tensor, geometry, pair: bool) -> tuple[Tensor, Tensor]:
    from sparsebnn.kernels.convolution import _output_size

    size = _output_size(x, wm, geometry)
    k, b, o = x.shape[0], x.shape[1], wm.shape[1]
    m = x.new_empty(k, b, o, *size)
    v = torch.empty_like(m) if pair else x.new_empty(0)
    bm, bn = 128, _tile(o, 64)
    bk = _tile(wm[0, 0].numel(), 32)
    grid = (triton.cdiv(b * size[0] * size[1], bm), triton.cdiv(o, bn), k)
    _forward_kernel[grid](
        x, wm, wv, m, v, b, *_shape(x, wm, size, geometry), pair, _precision(), bm, bn, bk,
        num_warps=8 if bn > 32 else 4, num_stages=3,
    )  # fmt: skip
    return m, v


def weight_grad(dm: Tensor, dv: Tensor, x: Tensor, wm: Tensor, geometry, pair: bool) -> tuple[Tensor, Tensor]:
    k, b, o = dm.shape[:3]
    size, depth = (dm.shape[3], dm.shape[4]), wm[0, 0].numel()
    rows = b * size[0] * size[1]
    bm, bn, bk = _tile(o, 64), _tile(depth, 128), 32
    tiles = triton.cdiv(o, bm) * triton.cdiv(depth, bn) * k
    # Enough programs to fill the device twice over; every split writes its own partial sum, and the
    # partial sums are added in a fixed order, so the result does not depend on timing.
    splits = max(1, min(triton.cdiv(rows, 4 * bk), 528 // tiles + 1))
    per_split = triton.cdiv(triton.cdiv(rows, splits), bk) * bk
    splits = triton.cdiv(rows, per_split)
    gm = x.new_empty(splits, *wm.shape)
    gv = torch.empty_like(gm) if pair else x.new_empty(0)
    grid = (triton.cdiv(o, bm), triton.cdiv(depth, bn), k * splits)
    _weight_kernel[grid](
        dm, dv, x, gm, gv, b, k, per_split, *_shape(x, wm, size, geometry), pair, _precision(), bm, bn, bk,
        num_warps=8 if bn > 64 else 4, num_stages=3,
    )  # fmt: skip
    return gm.sum(0), gv.sum(0) if pair else gv


def input_grad(dm: Tensor, dv: Tensor, x: Tensor, wm: Tensor, wv: Tensor, geometry, pair: bool) -> Tensor:
    k, b, c, h, width = x.shape
    size = (dm.shape[3], dm.shape[4])
    dx = torch.empty_like(x)
    bm, bn, bk = 128, _tile(c, 64), 32
    grid = (triton.cdiv(b * h * width, bm), triton.cdiv(c, bn), k)
    _input_kernel[grid](
        dm, dv, x, wm, wv, dx, b, *_shape(x, wm, size, geometry), pair, _precision(), bm, bn, bk,
        num_warps=8 if bn > 32 else 4, num_stages=3,
    )  # fmt: skip
    return dx
