"""Normalising flows for a vector z: each step maps z to (z', log |det dz'/dz|) and stores nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import check_choice, check_count, invalid
from sparsebnn.posteriors.masked import FoldedLinear, MaskedLinear, masked_layers

__all__ = ["AutoregressiveStep", "CouplingStep", "Flow", "flow"]

_SLOPE = 0.001
# Beyond this softplus(x) is x, in float64 too.
_LINEAR_FROM = 40.0
# From this many weights on a step's networks are limited by memory, and half of it is worth some index work.
_WORTH_FOLDING = 32_768


def _check_ordering(ordering: Sequence[int], dim: int, owner: str) -> np.ndarray:
    order = np.asarray(ordering)
    if sorted(order.tolist()) != list(range(dim)):
        raise invalid("ordering", owner, f"a permutation of 0 … {dim - 1}", list(ordering)[:8])
    return order


class AutoregressiveStep(nn.Module):
    r"""A gated inverse-autoregressive step.

    .. math::
        m, s = \operatorname{NN}(z), \quad \kappa = \operatorname{sigmoid}(s), \quad
        z' = \kappa \odot z + (1-\kappa) \odot m, \qquad
        \log\left|\det\frac{\partial z'}{\partial z}\right| = \sum_i \log\kappa_i

    ``ordering[i]`` is the place of variable i; :math:`m_i, s_i` see only variables of earlier places,
    so the Jacobian is lower triangular once rows and columns are sorted by place. ``folded`` stores the
    networks without the half that is masked; by default large ones are.

    Shapes: z ``(..., dim)`` to z' ``(..., dim)`` and log-determinant ``(...)``.

    >>> step = AutoregressiveStep(3, hidden=(8,))
    >>> z, log_det = step(torch.zeros(5, 3))
    >>> z.shape, log_det.shape
    (torch.Size([5, 3]), torch.Size([5]))
    """

    def __init__(
        self,
        dim: int,
        hidden: Sequence[int] = (250, 250),
        ordering: Sequence[int] | None = None,
        seed: int = 0,
        folded: bool | None = None,
    ) -> None:
        super().__init__()
        check_count(dim, "dim", "AutoregressiveStep")
        rng = np.random.RandomState(seed)
        random_order = rng.permutation(dim)
        order = random_order if ordering is None else _check_ordering(ordering, dim, "AutoregressiveStep")
        self.ordering = tuple(int(i) for i in order)
        degrees = [order]
        for width in hidden:
            check_count(width, "hidden", "AutoregressiveStep")
            degrees.append(rng.randint(degrees[-1].min(), max(dim - 1, 1), size=width))
        degrees.append(np.concatenate([order, order]))
        if folded is None:
            folded = sum(len(a) * len(b) for a, b in zip(degrees, degrees[1:])) >= _WORTH_FOLDING
        if folded:
            # Hidden units have no order; sorted, they need no permutation.
            degrees[1:-1] = [np.sort(d) for d in degrees[1:-1]]
        tensors = [torch.tensor(d.astype(np.int32)) for d in degrees]
        kind, last = FoldedLinear if folded else MaskedLinear, len(tensors) - 2
        self.layers = nn.ModuleList(
            kind(a, b, strict=i == last) for i, (a, b) in enumerate(zip(tensors, tensors[1:]))
        )

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        m, s = masked_layers(self.layers, z, _SLOPE).chunk(2, -1)  # type: ignore[arg-type]
        gate = torch.sigmoid(s)
        # log σ(s) as −softplus(−s): under nested vmap on CUDA F.logsigmoid fails now and then (torch 2.11).
        return gate * z + (1.0 - gate) * m, -F.softplus(-s, threshold=_LINEAR_FROM).sum(-1)


class CouplingStep(nn.Module):
    r"""An affine coupling step (RealNVP), which also runs backwards.

    .. math::
        z'_A = z_A, \qquad z'_B = z_B \odot e^{s(z_A)} + t(z_A), \qquad
        \log\left|\det\frac{\partial z'}{\partial z}\right| = \sum_B s(z_A)

    A is the first half of the variables by ``ordering`` (``ordering[i]`` is the place of variable
    i), B the rest. The log-scale is a tanh of the network's output, so no step scales a variable by
    more than e.

    >>> step = CouplingStep(4, hidden=(8,))
    >>> z = torch.randn(4)
    >>> bool(torch.allclose(step.inverse(step(z)[0])[0], z, atol=1e-6))
    True
    """

    kept: Tensor

    def __init__(
        self,
        dim: int,
        hidden: Sequence[int] = (250, 250),
        ordering: Sequence[int] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_count(dim, "dim", "CouplingStep")
        random_order = np.random.RandomState(seed).permutation(dim)
        order = random_order if ordering is None else _check_ordering(ordering, dim, "CouplingStep")
        self.ordering = tuple(int(i) for i in order)
        self.register_buffer("kept", torch.tensor(order < dim // 2))
        sizes = [dim, *(check_count(width, "hidden", "CouplingStep") for width in hidden), 2 * dim]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def _scale_and_shift(self, z: Tensor) -> tuple[Tensor, Tensor]:
        *hidden, last = self.layers
        h = z * self.kept
        for layer in hidden:
            h = F.leaky_relu(layer(h), _SLOPE)
        s, t = last(h).chunk(2, -1)
        moved = ~self.kept
        return torch.tanh(s) * moved, t * moved

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        s, t = self._scale_and_shift(z)
        return z * torch.exp(s) + t, s.sum(-1)

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The way back: z' to z, with the log-determinant of the way back."""
        s, t = self._scale_and_shift(z)
        return (z - t) * torch.exp(-s), -s.sum(-1)


class Flow(nn.Module):
    """Steps one after the other; log-determinants add."""

    def __init__(self, steps: Sequence[nn.Module]) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros_like(z[..., 0])
        for step in self.steps:
            z, log_det = step(z)
            total = total + log_det
        return z, total


_STEPS = {"autoregressive": AutoregressiveStep, "coupling": CouplingStep}


def flow(
    dim: int,
    length: int = 2,
    hidden: Sequence[int] = (250, 250),
    kind: str = "autoregressive",
    ordering: str | Sequence[Sequence[int]] | None = None,
    seed: int = 0,
) -> Flow:
    """A chain of ``length`` steps on vectors of size ``dim``.

    ``ordering`` says in which order the steps see the variables: ``"shared"`` (one random order and
    the same hidden degrees in every step, as in the paper's experiments), ``"alternate"`` (that order
    and its reverse in turn), ``"random"`` (a new one per step), or one permutation per step. Without
    it autoregressive steps share one order and coupling steps alternate, since a coupling step leaves
    half of the variables where they are.

    >>> [step.ordering for step in flow(3, length=2, ordering=[(0, 1, 2), (2, 1, 0)]).steps]
    [(0, 1, 2), (2, 1, 0)]
    """
    check_count(length, "length", "flow", least=0)
    step = _STEPS[check_choice(kind, _STEPS, "kind", "flow")]
    if ordering is None:
        ordering = "shared" if kind == "autoregressive" else "alternate"
    if isinstance(ordering, str):
        check_choice(ordering, ("shared", "alternate", "random"), "ordering", "flow")
        base = np.random.RandomState(seed).permutation(dim).tolist()
        reverse = [dim - 1 - place for place in base]
        if ordering == "shared":
            return Flow([step(dim, hidden, base, seed) for _ in range(length)])
        if ordering == "alternate":
            return Flow([step(dim, hidden, reverse if i % 2 else base, seed) for i in range(length)])
        return Flow([step(dim, hidden, None, seed + i) for i in range(length)])
    orders = list(ordering)
    if len(orders) != length:
        raise invalid("ordering", "flow", f"a name or {length} permutations, one per step", len(orders))
    return Flow([step(dim, hidden, order, seed) for order in orders])
