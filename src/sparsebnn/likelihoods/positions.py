"""One target per position of a row: the tokens of a text, the pixels of an image."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sparsebnn.checks import invalid
from sparsebnn.likelihoods.base import Likelihood

__all__ = ["PerPosition"]


class PerPosition(Likelihood):
    """A likelihood of every position, summed over the positions of a row.

    Outputs have shape ``(rows, positions…, n_outputs)``, or with ``axis=1``, as convolutions give them,
    ``(rows, n_outputs, positions…)``; targets ``(rows, positions…)``. Positions whose target is ``ignore``,
    such as padding, have no loss. N counts rows, not positions. For training; ``predict`` takes likelihoods
    of whole rows.

    >>> import torch
    >>> from sparsebnn.likelihoods import Categorical
    >>> tokens = PerPosition(Categorical(3))
    >>> tokens.nll(torch.zeros(2, 4, 3), torch.tensor([[0, 1, 2, -100], [0, 0, 0, 0]])).tolist()
    [3.29..., 4.39...]
    """

    any_shape = True

    def __init__(self, inner: Likelihood, axis: int = -1, ignore: int = -100) -> None:
        super().__init__()
        if axis not in (-1, 1):
            raise invalid("axis", "PerPosition", "-1 or 1, the axis of a position's outputs", axis)
        if inner.target_columns:
            expected = "a likelihood of one number or label per position"
            raise invalid("inner", "PerPosition", expected, type(inner).__name__)
        self.inner, self.axis, self.ignore = inner, axis, ignore

    def prepare(self, y: Tensor) -> Tensor:
        kept = y != self.ignore
        if y.dim() < 2 or not bool(kept.any()):
            got = f"shape {tuple(y.shape)}" if y.dim() < 2 else "only ignored ones"
            raise invalid("y", "PerPosition", "targets of shape (rows, positions…)", got)
        some = y[kept]
        prepared = self.inner.prepare(some)
        result = y.to(prepared.dtype, copy=True)
        result[kept] = prepared
        return result

    def n_outputs(self, y: Tensor) -> int:
        return self.inner.n_outputs(y.reshape(-1))

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        last: Any = outputs if self.axis == -1 else outputs.movedim(1, -1)
        if last.shape[:-1] != y.shape:
            expected = f"outputs for positions of shape {tuple(y.shape[1:])}"
            raise invalid("network", "train", expected, f"outputs of shape {tuple(outputs.shape)}")
        kept = y != self.ignore
        flat = self.inner.nll(last.reshape(-1, last.shape[-1]), (y * kept).reshape(-1))
        return (flat.reshape(y.shape) * kept).flatten(1).sum(1)
