r"""The contraction of a matrix with a vector, K replicates at once, with a gradient worth having.

.. math:: s_o = \sum_i w_{oi} e_i, \qquad
   \frac{\partial}{\partial e_i} = \sum_o \dot s_o w_{oi}, \quad
   \frac{\partial}{\partial w_{oi}} = \dot s_o e_i

The sum along the rows joins whatever made the matrix, and so does the gradient of the matrix. The
sum down the columns does not: the compiler gives it too little to do at once. It has a kernel here, and
an eager twin where Triton or CUDA is missing.

Shapes: w ``(rows, columns)``, e ``(columns,)``, s ``(rows,)``; stacked, each has a leading K.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsebnn.kernels.dispatch import kernel, stacked

_ROWS_PER_PART = 128


@torch.library.custom_op("sparsebnn::column_sums", mutates_args=())
def _column_sums(weight: Tensor, vector: Tensor) -> Tensor:
    """Sums down the columns of ``weight`` times ``vector``, in parts ``(K, parts, columns)``."""
    if weight.is_cuda and weight.dtype == torch.float32:
        from sparsebnn.kernels import triton_contraction

        return triton_contraction.column_sums(weight, vector, _ROWS_PER_PART)
    parts = (weight * vector.unsqueeze(-1)).split(_ROWS_PER_PART, 1)
    return torch.stack([part.sum(1) for part in parts], 1)


@_column_sums.register_fake
def _(weight: Tensor, vector: Tensor) -> Tensor:
    k, rows, columns = weight.shape
    return weight.new_empty(k, -(-rows // _ROWS_PER_PART), columns)


class _ColumnSums(torch.autograd.Function):
    """First derivatives only; the rule for a batch of replicates is the stacked kernel."""

    @staticmethod
    def forward(weight: Tensor, vector: Tensor) -> Tensor:
        return kernel(_column_sums)(weight[None].contiguous(), vector[None].contiguous())[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Tensor) -> Any:
        return kernel(_column_sums)(*stacked(inputs, dims, info.batch_size)), 0


class _RowSums(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, vector: Tensor) -> Tensor:
        return (weight * vector).sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        weight, vector = ctx.saved_tensors
        return grad.unsqueeze(-1) * vector, _ColumnSums.apply(weight, grad).sum(0)


def row_sums(weight: Tensor, vector: Tensor) -> Tensor:
    """``weight @ vector``, for compilers."""
    return _RowSums.apply(weight, vector)
