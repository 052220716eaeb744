"""The Triton kernel behind :func:`sparsebnn.training.optimizers.adam`; imported only where CUDA is used."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _kernel(
    parameter, gradient, first, second, rates, root, alive, count,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # A replicate that has stopped keeps its values.
    there, at = i < tl.where(tl.load(alive + k), count, 0), k * count + i
    g = tl.load(gradient + at, mask=there, other=0.0)
    m = tl.load(first + at, mask=there, other=0.0)
    v = tl.load(second + at, mask=there, other=0.0)
    p = tl.load(parameter + at, mask=there, other=0.0)
    m += (1.0 - BETA1) * (g - m)
    v = BETA2 * v + (1.0 - BETA2) * g * g
    moved = p - tl.load(rates + k) * m / (tl.sqrt(v) / tl.load(root) + EPS)
    # A gradient that is not finite must not reach the parameter; the moment keeps the evidence.
    tl.store(parameter + at, moved, mask=there & (tl.abs(g) < float("inf")))
    tl.store(first + at, m, mask=there)
    tl.store(second + at, v, mask=there)


def update(
    parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rates: Tensor, root: Tensor,
    alive: Tensor, betas: tuple[float, float], eps: float,
) -> None:  # fmt: skip
    count = parameter[0].numel()
    _kernel[(triton.cdiv(count, _BLOCK), len(parameter))](
        parameter, gradient, first, second, rates, root, alive, count, *betas, eps, _BLOCK, num_warps=4
    )
