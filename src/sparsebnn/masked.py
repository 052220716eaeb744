"""Affine maps with a triangular mask, stored without the half that the mask would throw away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.kernels.masked import Fold, masked_network
from sparsebnn.tracing import for_compiler, for_kernels

__all__ = ["MaskedLinear", "masked_layers"]


class _Permute(torch.autograd.Function):
    """``x[..., order]``; its gradient is a gather too, where indexing would scatter."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, order: Tensor, back: Tensor) -> Tensor:
        return x[..., order]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        _, order, back = inputs
        ctx.save_for_backward(order, back)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        order, back = ctx.saved_tensors
        return _Permute.apply(grad, back, order), None, None

    @staticmethod
    def jvp(ctx: Any, grad: Tensor, *_: Any) -> Tensor:
        order, back = ctx.saved_tensors
        return _Permute.apply(grad, order, back)


def _permute(x: Tensor, order: Tensor, back: Tensor) -> Tensor:
    # Dynamo does not follow a function of one's own through vmap.
    return x[..., order] if torch.compiler.is_compiling() else _Permute.apply(x, order, back)


class MaskedLinear(nn.Module):
    r"""An affine map in which output o sees input i only where its degree allows.

    .. math:: y_o = b_o + \sum_{i:\, \text{in}_i \le \text{out}_o} w_{oi} x_i
       \qquad (\text{in}_i < \text{out}_o \text{ when strict})

    With the inputs sorted by degree, every output sees the first few. Sorted too, outputs that see
    many and outputs that see few add up to about one full row, so two of them share one row of
    ``weight``, a long one from the left and a short one from the right:

    .. code-block:: text

        row 0   5 5 5 5 5 5 .        output 5 sees six inputs, output 0 none
        row 1   4 4 4 4 4 1 1        output 4 sees five, output 1 two
        row 2   3 3 3 3 2 2 2

    Half the memory of the masked matrix, and so half the time of everything that only moves memory:
    the products with a single vector, their gradients, the optimiser. :meth:`matrix` gives the matrix.

    Shapes: ``(..., inputs)`` to ``(..., outputs)``.

    >>> layer = MaskedLinear(torch.tensor([2, 0, 1]), torch.tensor([0, 1]), strict=False)
    >>> (layer.matrix() != 0).int().tolist()
    [[0, 1, 0], [0, 1, 1]]
    """

    in_degree: Tensor
    out_degree: Tensor
    long: Tensor
    short: Tensor
    places: Tensor
    fold_order: Tensor
    in_order: Tensor
    in_back: Tensor
    out_order: Tensor
    out_back: Tensor

    def __init__(self, in_degree: Tensor, out_degree: Tensor, strict: bool) -> None:
        super().__init__()
        self.register_buffer("in_degree", in_degree.clone())
        self.register_buffer("out_degree", out_degree.clone())
        self.strict = strict
        self.outputs, self.inputs = len(out_degree), len(in_degree)
        sorted_degree, in_order = torch.sort(in_degree, stable=True)
        seen = torch.searchsorted(sorted_degree, out_degree, right=not strict)
        if self.outputs % 2:
            # An output that sees nothing makes the number even; it is cut off at the end.
            seen = torch.cat([seen, seen.new_zeros(1)])
        seen, out_order = torch.sort(seen, stable=True)
        rows = len(seen) // 2
        self._keep("short", seen[:rows].int())
        self._keep("long", seen[rows:].flip(0).int())
        self.width = max(1, int((self.long + self.short).max()))
        self.sorted_inputs = bool((in_order == torch.arange(self.inputs)).all())
        # Both halves of the outputs, long then short, in the order of ``out_degree``.
        places = torch.cat([out_order[rows:].flip(0), out_order[:rows]])
        self._keep("places", places)
        self._keep("fold_order", in_order[:0] if self.sorted_inputs else in_order)
        for name, order in (("in", in_order), ("out", torch.argsort(places))):
            self._keep(f"{name}_order", order)
            self._keep(f"{name}_back", torch.argsort(order))
        self.weight = nn.Parameter(torch.empty(rows, self.width))
        self.bias = nn.Parameter(torch.empty(self.outputs))
        self.reset_parameters()

    def _keep(self, name: str, value: Tensor) -> None:
        # A function of the degrees: nothing to save.
        self.register_buffer(name, value.clone(), persistent=False)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        errors: list[str] = rest[-1]
        for name in ("in_degree", "out_degree"):
            given, own = state_dict.get(prefix + name), self.get_buffer(name)
            if given is not None and not torch.equal(given.to(own), own):
                errors.append(f"{prefix}{name!r} differs: these weights are those of another ordering.")
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def reset_parameters(self) -> None:
        """The initialisation of :class:`torch.nn.Linear`."""
        bound = 1.0 / math.sqrt(max(1, self.inputs))
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def _halves(self) -> tuple[Tensor, Tensor]:
        """The rows as the long outputs and as the short ones use them, zero elsewhere."""
        column = torch.arange(self.width, device=self.weight.device)
        is_long = column < self.long.unsqueeze(-1)
        is_short = column >= self.width - self.short.unsqueeze(-1)
        return self.weight * is_long, self.weight * is_short

    def forward(self, x: Tensor) -> Tensor:
        if not self.sorted_inputs:
            x = _permute(x, self.in_order, self.in_back)
        if self.width < self.inputs:
            x = x[..., : self.width]
        forwards = F.pad(x, (0, self.width - x.shape[-1]))
        backwards = forwards.flip(-1)
        long, short = self._halves()
        # A single vector makes these matrix-vector products. Written as multiply-and-sum the
        # compiler fuses masks, products and sums into one pass over the weights.
        if x.dim() == 1 and for_compiler():
            both = [(long * forwards).sum(-1), (short * backwards).sum(-1)]
        else:
            both = [F.linear(forwards, long), F.linear(backwards, short)]
        y = _permute(torch.cat(both, -1), self.out_order, self.out_back)
        return y[..., : self.outputs] + self.bias

    @property
    def fold(self) -> Fold:
        """How the rows are folded, for :func:`sparsebnn.kernels.masked.masked_network`."""
        return self.long, self.short, self.fold_order, self.places

    def matrix(self) -> Tensor:
        """The masked matrix, ``(outputs, inputs)``."""
        zero = torch.zeros_like(self.bias)
        columns = torch.eye(self.inputs, dtype=zero.dtype, device=zero.device)
        return (self(columns) - self.bias).T if self.inputs else zero.unsqueeze(1)[:, :0]


def masked_layers(layers: Sequence[MaskedLinear], x: Tensor, slope: float) -> Tensor:
    """The layers one after the other, with a leaky ReLU of that slope between them."""
    if x.dim() == 1 and for_kernels(x):
        parameters = [(layer.weight, layer.bias) for layer in layers]
        return masked_network(x, parameters, [layer.fold for layer in layers], slope)
    *hidden, last = layers
    for layer in hidden:
        x = F.leaky_relu(layer(x), slope)
    return last(x)
