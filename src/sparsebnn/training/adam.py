"""Adam over stacked parameters: in plain operations, and through torch's fused kernel."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.adam import adam as _torch_adam

from sparsebnn.kernels.dispatch import for_capture

BETAS, EPS = (0.9, 0.999), 1e-8
Tensors = Mapping[str, Tensor]


def corrected(rates: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    r"""Adam's bias corrections at step t from 1: :math:`\eta/(1-\beta_1^t)` and :math:`\sqrt{1-\beta_2^t}`.

    Apart from :func:`adam`, or the compiler would raise the powers anew for every weight.
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
    values. A step that is captured without the compiler takes one kernel for each parameter.
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


def adam_fused(
    parameters: Tensors,
    gradients: Tensors,
    first: Tensors,
    second: Tensors,
    rates: Tensor,
    group_of: Mapping[str, int],
    count: int,
    alive: list[bool],
    together: bool | None = None,
) -> None:
    """The same step through torch's fused kernel: one pass over memory per tensor.

    ``together`` says that all replicates have one rate (None: look). It must not change within a run:
    the kernel rounds a whole stack and its slices differently.
    """
    if together is None:
        together = bool((rates == rates[:, :1]).all())
    held = [t for kind in (parameters, first, second) for t in kind.values()]
    dead = [k for k, living in enumerate(alive) if not living] if together else []
    before = [t[dead].clone() for t in held] if dead else []
    parts = [slice(None)] if together else [slice(k, k + 1) for k, living in enumerate(alive) if living]
    for group in set(group_of.values()):
        names = [name for name in parameters if group_of[name] == group]
        for part in parts:
            _torch_adam(
                [parameters[n][part] for n in names],
                [gradients[n][part] for n in names],
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
