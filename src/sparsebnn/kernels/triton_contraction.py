"""The Triton kernel behind :mod:`sparsebnn.kernels.contraction`; imported only where CUDA is used."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _column_kernel(
    weight, vector, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    k, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    col = tl.program_id(0) * BC + tl.arange(0, BC)
    row = part * BR + tl.arange(0, BR)
    there = (row[:, None] < ROWS) & (col[None, :] < COLUMNS)
    w = tl.load(weight + (k * ROWS + row[:, None]) * COLUMNS + col[None, :], mask=there, other=0.0)
    v = tl.load(vector + k * ROWS + row, mask=row < ROWS, other=0.0)
    total = tl.sum(w * v[:, None], 0)
    tl.store(out + (k * tl.num_programs(1) + part) * COLUMNS + col, total, mask=col < COLUMNS)


def column_sums(weight: Tensor, vector: Tensor, rows_per_part: int) -> Tensor:
    k, rows, columns = weight.shape
    parts = triton.cdiv(rows, rows_per_part)
    out = weight.new_empty(k, parts, columns)
    grid = (triton.cdiv(columns, 64), parts, k)
    _column_kernel[grid](weight, vector, out, rows, columns, rows_per_part, 64, num_warps=4)
    return out
