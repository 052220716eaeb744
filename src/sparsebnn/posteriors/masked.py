"""Affine maps with a triangular mask: as a masked matrix, and without the half that the mask throws away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.kernels.dispatch import for_compiler, for_kernels
from sparsebnn.kernels.masked import Fold, masked_network


def _pick(x: Tensor, lists: Sequence[Tensor], gaps: bool) -> Tensor:
    """The sum of ``x[..., places]`` over the lists of places; with gaps, beyond the end there is a zero."""
    x = F.pad(x, (0, 1)) if gaps else x
    first, *others = lists
    total = x.index_select(-1, first)
    for places in others:
        total = total + x.index_select(-1, places)
    return total


# An operator of ``torch.library.custom_op`` takes five times as long to call, and a step of the paper's flow
# network calls this 144 times. What it would do beyond this, gradients and maps, is _Pick's.
_LIBRARY = torch.library.Library("sparsebnn", "FRAGMENT")
_LIBRARY.define("pick(Tensor x, Tensor[] lists, bool gaps) -> Tensor")
_LIBRARY.impl("pick", _pick, "CompositeExplicitAutograd")


def _shape_of_pick(x: Tensor, lists: Sequence[Tensor], gaps: bool) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(lists[0]))


torch.library.register_fake("sparsebnn::pick", _shape_of_pick, lib=_LIBRARY)


_Gaps = tuple[bool, bool]


class _Pick(torch.autograd.Function):
    """:func:`_pick` through an operator that the compiler cannot look into.

    Loops over the weights then read plain vectors. Inlined, the look-ups would be made again for every
    weight, and could not be made by vector units. The gradient picks too, from the ``back`` places of each
    entry, where indexing would scatter. ``gaps`` says of both whether they have any.
    """

    @staticmethod
    def forward(x: Tensor, there: Sequence[Tensor], back: Sequence[Tensor], gaps: _Gaps) -> Tensor:
        return torch.ops.sparsebnn.pick(x, there, gaps[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.ways = inputs[1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        there, back, gaps = ctx.ways
        return _Pick.apply(grad, back, there, gaps[::-1]), None, None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, x: Tensor, there: Sequence[Tensor], back: Sequence[Tensor], gaps: _Gaps
    ) -> tuple[Tensor, int]:
        return _Pick.apply(x.movedim(dims[0], 0), there, back, gaps), 0


def _picked(x: Tensor, places: Tensor, back: Sequence[Tensor], gaps: _Gaps = (False, False)) -> Tensor:
    # A user's own compiler does not follow our functions through vmap.
    recorded = for_compiler() and not torch.compiler.is_compiling()
    return _Pick.apply(x, [places], back, gaps) if recorded else _pick(x, [places], gaps[0])


def _reset(weight: Tensor, bias: Tensor, inputs: int) -> None:
    """The initialization of :class:`torch.nn.Linear`."""
    bound = 1.0 / math.sqrt(max(1, inputs))
    nn.init.uniform_(weight, -bound, bound)
    nn.init.uniform_(bias, -bound, bound)


class MaskedLinear(nn.Module):
    r"""An affine map in which output o sees input i only where its degree allows.

    .. math:: y_o = b_o + \sum_{i:\, \text{in}_i \le \text{out}_o} w_{oi} x_i
       \qquad (\text{in}_i < \text{out}_o \text{ when strict})

    The mask is a comparison of two short vectors of degrees rather than a stored matrix: compiled
    code then reads no mask at all.

    Shapes: ``(..., inputs)`` to ``(..., outputs)``.
    """

    in_degree: Tensor
    out_degree: Tensor

    def __init__(self, in_degree: Tensor, out_degree: Tensor, strict: bool) -> None:
        super().__init__()
        self.register_buffer("in_degree", in_degree.clone())
        self.register_buffer("out_degree", out_degree.clone())
        self.strict = strict
        self.weight = nn.Parameter(torch.empty(len(out_degree), len(in_degree)))
        self.bias = nn.Parameter(torch.empty(len(out_degree)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _reset(self.weight, self.bias, self.weight.shape[1])

    def matrix(self) -> Tensor:
        """The masked matrix, ``(outputs, inputs)``."""
        seen = self.out_degree.unsqueeze(-1)
        return self.weight * (seen > self.in_degree if self.strict else seen >= self.in_degree)

    def forward(self, x: Tensor) -> Tensor:
        # A single vector makes this a matrix-vector product. Written as multiply-and-sum the
        # compiler fuses mask, product and sum into one pass over the weights.
        if x.dim() == 1 and for_compiler():
            return (self.matrix() * x).sum(-1) + self.bias
        return F.linear(x, self.matrix(), self.bias)


class FoldedLinear(nn.Module):
    r"""A :class:`MaskedLinear` that does not store what its mask would throw away.

    With the inputs sorted by degree, every output sees the first few. Sorted too, outputs that see
    many and outputs that see few add up to about one full row, so two of them share one row of
    ``weight``, a long one from the left and a short one from the right:

    .. code-block:: text

        row 0   5 5 5 5 5 5 .        output 5 sees six inputs, output 0 none
        row 1   4 4 4 4 4 1 1        output 4 sees five, output 1 two
        row 2   3 3 3 3 2 2 2

    Half the memory of the masked matrix, and so half the time of everything that only moves memory:
    the products with a single vector, their gradients, the optimizer. :meth:`matrix` gives the matrix.

    Shapes: ``(..., inputs)`` to ``(..., outputs)``.

    >>> layer = FoldedLinear(torch.tensor([2, 0, 1]), torch.tensor([0, 1]), strict=False)
    >>> (layer.matrix() != 0).int().tolist()
    [[0, 1, 0], [0, 1, 1]]
    """

    # Buffers that say what the weights mean.
    structure = ("in_degree", "out_degree")
    in_degree: Tensor
    out_degree: Tensor
    long: Tensor
    short: Tensor
    column: Tensor
    places: Tensor
    order: Tensor
    both_ways: Tensor
    first_place: Tensor
    second_place: Tensor
    out_order: Tensor

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
        self._keep("column", torch.arange(self.width, dtype=torch.int32))
        # Both halves of the outputs, long then short, in the order of ``out_degree``.
        places = torch.cat([out_order[rows:].flip(0), out_order[:rows]])
        self._keep("places", places)
        self._keep("out_order", torch.argsort(places))
        is_sorted = bool((in_order == torch.arange(self.inputs)).all())
        self._keep("order", in_order[:0] if is_sorted else in_order)
        # The inputs a row reads from the left and from the right, and where in these two lists each input
        # stands; where there is none, a place beyond the end.
        missing = max(0, self.width - self.inputs)
        seen_inputs = F.pad(in_order, (0, missing), value=self.inputs)[: self.width]
        self._keep("both_ways", torch.cat([seen_inputs, seen_inputs.flip(0)]))
        rank, both = torch.argsort(in_order), 2 * self.width
        self._keep("first_place", torch.where(rank < self.width, rank, both))
        self._keep("second_place", torch.where(rank < self.width, both - 1 - rank, both))
        self.weight = nn.Parameter(torch.empty(rows, self.width))
        self.bias = nn.Parameter(torch.empty(self.outputs))
        self.reset_parameters()

    def _keep(self, name: str, value: Tensor) -> None:
        # A function of the degrees: nothing to save.
        self.register_buffer(name, value.clone(), persistent=False)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        errors: list[str] = rest[-1]
        for name in self.structure:
            given, own = state_dict.get(prefix + name), self.get_buffer(name)
            if given is not None and not torch.equal(given.to(own), own):
                errors.append(f"{prefix}{name!r} differs: these weights are those of another ordering.")
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def reset_parameters(self) -> None:
        _reset(self.weight, self.bias, self.inputs)

    def _halves(self) -> tuple[Tensor, Tensor]:
        """The rows as the long outputs and as the short ones use them, zero elsewhere."""
        is_long = self.column < self.long.unsqueeze(-1)
        is_short = self.column >= self.width - self.short.unsqueeze(-1)
        return self.weight * is_long, self.weight * is_short

    def forward(self, x: Tensor) -> Tensor:
        # Where rows are longer than there are inputs, or shorter, some places hold nothing.
        gaps = (self.width > self.inputs, self.width < self.inputs)
        both_ways = _picked(x, self.both_ways, [self.first_place, self.second_place], gaps)
        forwards, backwards = both_ways.chunk(2, -1)
        long, short = self._halves()
        # A single vector makes these matrix-vector products. Written as multiply-and-sum the
        # compiler fuses masks, products and sums into one pass over the weights.
        if x.dim() == 1 and for_compiler():
            both = [(long * forwards).sum(-1), (short * backwards).sum(-1)]
        else:
            both = [F.linear(forwards, long), F.linear(backwards, short)]
        y = _picked(torch.cat(both, -1), self.out_order, [self.places])
        return y[..., : self.outputs] + self.bias

    @property
    def fold(self) -> Fold:
        """How the rows are folded, for :func:`sparsebnn.kernels.masked.masked_network`."""
        return self.long, self.short, self.order, self.places

    def matrix(self) -> Tensor:
        """The masked matrix, ``(outputs, inputs)``."""
        zero = torch.zeros_like(self.bias)
        columns = torch.eye(self.inputs, dtype=zero.dtype, device=zero.device)
        return (self(columns) - self.bias).T if self.inputs else zero.unsqueeze(1)[:, :0]


def masked_layers(layers: Sequence[MaskedLinear | FoldedLinear], x: Tensor, slope: float) -> Tensor:
    """The layers one after the other, with a leaky ReLU of that slope between them."""
    folded = [layer for layer in layers if isinstance(layer, FoldedLinear)]
    if x.dim() == 1 and for_kernels(x) and len(folded) == len(layers):
        parameters = [(layer.weight, layer.bias) for layer in folded]
        return masked_network(x, parameters, [layer.fold for layer in folded], slope)
    *hidden, last = layers
    for layer in hidden:
        x = F.leaky_relu(layer(x), slope)
    return last(x)
