"""Adam and gradient descent, weight decay, clipped gradients, averaged parameters, what a step leaves in the
loop's tensors, and schedules of rates.

Tensors are stacked, ``(K, …)``: replicates with different rates share one program.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.adam import adam as _torch_adam

from sparsebnn.checks import check_choice, check_count, check_number, invalid
from sparsebnn.kernels import training as kernels
from sparsebnn.kernels.dispatch import for_capture

if TYPE_CHECKING:
    from sparsebnn.training.objective import Parts

BETAS, EPS = (0.9, 0.999), 1e-8
Tensors = Mapping[str, Tensor]


def _column(values: Tensor, like: Tensor) -> Tensor:
    """One value per replicate, shaped to multiply a stack."""
    return values.view(-1, *[1] * (like.dim() - 1))


def sgd(
    parameters: Tensors,
    gradients: Tensors,
    velocities: Tensors,
    rates: Tensor,
    group_of: Mapping[str, int],
    momentum: float,
    alive: Tensor,
) -> None:
    r"""One step of gradient descent, in place.

    .. math:: v \leftarrow \mu v + g, \qquad p \leftarrow p - \eta v

    ``rates`` is ``(groups, K)``. Replicates that are not ``alive`` keep their values.
    """
    for name, p in parameters.items():
        g, v = gradients[name], velocities[name]
        live = _column(alive, p)
        moved = momentum * v + g
        # A gradient that is not finite must not reach the parameter; the velocity keeps the evidence.
        step = torch.where(live & torch.isfinite(g), _column(rates[group_of[name]], p) * moved, 0.0)
        p.sub_(step)
        v.copy_(torch.where(live, moved, v))


def decay(
    parameters: Tensors,
    names: Collection[str],
    rates: Tensor,
    group_of: Mapping[str, int],
    strength: float,
    alive: Tensor,
) -> None:
    r"""Decoupled weight decay of the parameters ``names``: :math:`p \leftarrow (1 - \eta\lambda)\,p`."""
    for name in names:
        p = parameters[name]
        shrink = torch.where(alive, 1.0 - strength * rates[group_of[name]], 1.0)
        p.mul_(_column(shrink, p))


def clipped(gradients: dict[str, Tensor], norm: float) -> dict[str, Tensor]:
    """Gradients whose norm over all parameters is at most ``norm``, for each replicate."""
    squares = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients.values()])
    factor = (norm / (squares.sum(0).sqrt() + 1e-6)).clamp_max(1.0)  # as in torch.nn.utils
    return {name: g * _column(factor, g) for name, g in gradients.items()}


def average(averages: Tensors, parameters: Tensors, keep: float, step: Tensor) -> None:
    r"""Move averages towards the parameters: :math:`a \leftarrow d\,a + (1-d)\,p`.

    At step t from 0, :math:`d = \min(\text{keep}, (1+t)/(10+t))`, so that the start is soon forgotten.
    """
    count = step.double()
    share = 1.0 - ((1.0 + count) / (10.0 + count)).clamp_max(keep)
    for name, a in averages.items():
        a.add_((parameters[name] - a) * share.to(a.dtype))


def all_finite(stacks: Iterable[Tensor], fused: bool = False) -> Tensor:
    """Whether all numbers of a replicate are finite, ``(stacks, K)``; sums take one pass, not five."""
    if fused:
        listed = list(stacks)
        return kernels.finite(listed, len(listed[0]))
    each = [stack.reshape(len(stack), -1) for stack in stacks]  # some have one number per replicate
    sums = torch.isfinite(torch.stack([stack.sum(1) for stack in each]))
    return sums if bool(sums.all()) else torch.stack([torch.isfinite(stack).all(1) for stack in each])


def corrected(rates: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    r"""Adam's bias corrections at step t from 1: :math:`\eta/(1-\beta_1^t)` and :math:`\sqrt{1-\beta_2^t}`.

    Separate from :func:`adam`, or the compiler would compute the powers again for every weight.
    """
    # In single precision 1 - 0.999^t would lose half its digits.
    first = (1.0 - BETAS[0] ** count.double()).to(rates.dtype)
    return rates / first, torch.sqrt(1.0 - BETAS[1] ** count.double()).to(rates.dtype)


def adam(
    parameters: Tensors,
    gradients: Tensors,
    first: Tensors,
    second: Tensors,
    rates: Tensor,
    group_of: Mapping[str, int],
    root: Tensor,
    alive: Tensor,
) -> None:
    r"""One step, in place, in plain operations: the compiler joins it with the gradient that feeds it.

    .. math::
        m \leftarrow \beta_1 m + (1-\beta_1) g, \quad v \leftarrow \beta_2 v + (1-\beta_2) g^2, \quad
        p \leftarrow p - \eta\, \frac{m/(1-\beta_1^t)}{\sqrt{v/(1-\beta_2^t)} + \epsilon}

    Everything is stacked, ``(K, …)``; ``rates`` is ``(groups, K)`` and ``group_of`` names a parameter's
    row; they and ``root`` come from :func:`corrected`. Replicates that are not ``alive`` keep their
    values. A step that is captured without the compiler takes one kernel for each parameter
    whose gradient has not been applied with it (:mod:`~sparsebnn.training.captured`).
    """
    for name, p in parameters.items():
        g, m, v = gradients[name], first[name], second[name]
        if for_capture() and p.is_cuda and p.dtype == torch.float32:
            from sparsebnn.kernels import triton_adam

            own = rates[group_of[name]]
            triton_adam.update(p, g.contiguous(), m, v, own, root, alive, BETAS, EPS)
            continue
        per_replicate = (-1, *[1] * (p.dim() - 1))
        rate = rates[group_of[name]].view(per_replicate)
        live = alive.view(per_replicate)
        m_new = m + (1.0 - BETAS[0]) * (g - m)
        v_new = BETAS[1] * v + (1.0 - BETAS[1]) * g * g
        p_new = p - rate * m_new / (torch.sqrt(v_new) / root + EPS)
        # A gradient that is not finite must not reach the parameter; the moment keeps the evidence.
        p.copy_(torch.where(live & torch.isfinite(g), p_new, p))
        m.copy_(torch.where(live, m_new, m))
        v.copy_(torch.where(live, v_new, v))


def adam_eager(
    parameters: Tensors,
    gradients: Tensors,
    first: Tensors,
    second: Tensors,
    rates: Tensor,
    group_of: Mapping[str, int],
    count: int,
    alive: Tensor,
    together: bool | None = None,
    fused: bool = False,
) -> None:
    """The same step by torch's fused kernel, one pass over memory per tensor, or ``fused`` by ours.

    ``together``: all replicates have one rate (None: look). It must not change within a run, since torch's
    kernel rounds a whole stack and its slices differently.
    """
    if fused:
        root = math.sqrt(1.0 - BETAS[1] ** count)
        given = rates / (1.0 - BETAS[0] ** count), group_of, root, alive
        kernels.adam(parameters, gradients, first, second, *given, BETAS, EPS)
        return
    if together is None:
        together = bool((rates == rates[:, :1]).all())
    living = alive.tolist()
    held = [t for kind in (parameters, first, second) for t in kind.values()]
    dead = [k for k, lives in enumerate(living) if not lives] if together else []
    before = [t[dead].clone() for t in held] if dead else []
    parts = [slice(None)] if together else [slice(k, k + 1) for k, lives in enumerate(living) if lives]
    for group in set(group_of.values()):
        names = [name for name in parameters if group_of[name] == group]
        for part in parts:
            _torch_adam(
                [parameters[n][part] for n in names],
                [gradients[n][part].contiguous() for n in names],  # may be channels_last
                [first[n][part] for n in names],
                [second[n][part] for n in names],
                [],
                [torch.tensor(float(count - 1), device=rates.device) for _ in names],
                fused=True,
                amsgrad=False,
                beta1=BETAS[0],
                beta2=BETAS[1],
                lr=float(rates[group, part][0]),
                weight_decay=0.0,
                eps=EPS,
                maximize=False,
            )
    for tensor, values in zip(held, before):
        tensor[dead] = values


def mark_stopped(loop: dict[str, Tensor], good: Tensor) -> None:
    """Note where replicates that are not ``good`` have stopped."""
    loop["stopped_at"].copy_(torch.where(loop["alive"] & ~good, loop["step"], loop["stopped_at"]))
    loop["alive"].logical_and_(good)


def count_step(loop: dict[str, Tensor], parts: Parts) -> None:
    """Add the step to the epoch's sums, and advance position and step number."""
    sums = torch.stack([parts.loss, parts.nll, parts.kl], dim=1).to(loop["totals"].dtype)
    loop["totals"].add_(torch.where(loop["alive"].unsqueeze(1), sums, torch.zeros_like(sums)))
    loop["kl_by_layer"].copy_(parts.kl_by_layer)
    loop["position"].add_(1)
    loop["step"].add_(1)


# -- schedules -------------------------------------------------------------------------------------------


def _check_factor(value: float, what: str, owner: str) -> None:
    check_number(value, what, owner, "finite and at least 0", lambda factor: 0.0 <= factor < math.inf)


@dataclass(frozen=True)
class Constant:
    """The same rate throughout."""

    def factor(self, epoch: float, epochs: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Steps:
    """The rate is multiplied by ``factor_each`` at every epoch in ``milestones``.

    >>> [round(Steps((2,)).factor(e, 4), 3) for e in range(4)]
    [1.0, 1.0, 0.1, 0.1]
    """

    milestones: Sequence[int]
    factor_each: float = 0.1

    def __post_init__(self) -> None:
        given: Any = self.milestones
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise invalid("milestones", "Steps", "a list of epochs", repr(given))
        for milestone in given:
            check_count(milestone, "milestones", "Steps", least=0)
        _check_factor(self.factor_each, "factor_each", "Steps")

    def factor(self, epoch: float, epochs: float) -> float:
        return self.factor_each ** sum(epoch >= m for m in self.milestones)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 down to ``last``.

    >>> [round(Cosine(0.0).factor(e, 2), 3) for e in range(3)]
    [1.0, 0.5, 0.0]
    """

    last: float = 0.01

    def __post_init__(self) -> None:
        _check_factor(self.last, "last", "Cosine")

    def factor(self, epoch: float, epochs: float) -> float:
        return max(self.last, 0.5 * (1.0 + math.cos(math.pi * epoch / max(1, epochs))))


@dataclass(frozen=True)
class Warmup:
    """The rate rises linearly over the first ``share`` of the epochs, then follows another schedule.

    It changes with every step.

    >>> [round(Warmup(0.5, Constant()).factor(e, 4), 3) for e in (0, 1, 2, 3)]
    [0.0, 0.5, 1.0, 1.0]
    """

    share: float = 0.05
    then: Constant | Steps | Cosine = Cosine()

    def __post_init__(self) -> None:
        check_number(
            self.share, "share", "Warmup", "a share of the epochs, from 0 to 1", lambda v: 0.0 <= v <= 1.0
        )
        if not isinstance(self.then, Constant | Steps | Cosine):
            raise invalid("then", "Warmup", "Constant(), Steps(...) or Cosine()", repr(self.then))

    def factor(self, epoch: float, epochs: float) -> float:
        ramp = self.share * epochs
        return epoch / ramp if epoch < ramp else self.then.factor(epoch - ramp, epochs - ramp)


@dataclass(frozen=True)
class OneCycle:
    """From ``first`` up to 1 at the share ``peak`` of the epochs, then down to ``last``, along half cosines.

    It changes with every step.

    >>> [round(OneCycle(0.5, 0.0, 0.0).factor(e, 4), 3) for e in (0, 1, 2, 3, 4)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    peak: float = 0.3
    first: float = 0.04
    last: float = 4e-6

    def __post_init__(self) -> None:
        check_number(self.peak, "peak", "OneCycle", "strictly between 0 and 1", lambda v: 0.0 < v < 1.0)
        _check_factor(self.first, "first", "OneCycle")
        _check_factor(self.last, "last", "OneCycle")

    def factor(self, epoch: float, epochs: float) -> float:
        top = self.peak * epochs
        if epoch < top:
            return self.first + (1.0 - self.first) * 0.5 * (1.0 - math.cos(math.pi * epoch / top))
        left = (epoch - top) / max(epochs - top, 1e-12)
        return self.last + (1.0 - self.last) * 0.5 * (1.0 + math.cos(math.pi * left))


Schedule = Constant | Steps | Cosine | Warmup | OneCycle


def schedule(value: str | Schedule) -> Schedule:
    """A schedule, or the one of that name: constant, cosine, steps (halfway, to a tenth), one_cycle."""
    if isinstance(value, Schedule):
        return value
    if not isinstance(value, str):
        raise invalid("schedule", "Settings", "a name or a schedule", type(value).__name__)
    check_choice(value, ("constant", "steps", "cosine", "one_cycle"), "schedule", "Settings")
    if value == "constant":
        return Constant()
    if value == "one_cycle":
        return OneCycle()
    return Cosine() if value == "cosine" else _Halfway()


class _Halfway(Steps):
    """A tenth of the rate from halfway on, however many epochs there are."""

    def __init__(self) -> None:
        super().__init__(())

    def factor(self, epoch: float, epochs: float) -> float:
        return self.factor_each if epoch >= epochs // 2 else 1.0


def every_step(value: str | Schedule) -> bool:
    """Whether a schedule changes the rate with every step instead of every epoch."""
    return isinstance(schedule(value), Warmup | OneCycle)
