"""Adam over stacked parameters: in plain operations for the compiler, or fused for eager runs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adam import adam as _torch_adam

__all__ = ["Adam"]


class Adam:
    r"""Adam with one rate per group of parameters and replicate.

    .. math::
        m \leftarrow \beta_1 m + (1-\beta_1) g, \quad v \leftarrow \beta_2 v + (1-\beta_2) g^2, \quad
        p \leftarrow p - \eta\, \frac{m/(1-\beta_1^t)}{\sqrt{v/(1-\beta_2^t)} + \epsilon}

    ``parameters`` are stacked, ``(K, …)``; ``group_of`` maps a name to its row of the rates ``(G, K)``.
    """

    beta1 = 0.9
    beta2 = 0.999
    eps = 1e-8

    def __init__(self, parameters: dict[str, Tensor], group_of: dict[str, int]) -> None:
        self.group_of = group_of
        self.first = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in parameters.items()}

    def update(
        self,
        parameters: dict[str, Tensor],
        gradients: dict[str, Tensor],
        rates: Tensor,
        count: Tensor,
        alive: Tensor,
    ) -> None:
        """One step in plain operations, which the compiler joins with the gradient that feeds it.

        ``count`` is the number of this step, from 1, as a tensor; replicates that are not ``alive``
        keep their values.
        """
        dtype = rates.dtype
        correct1 = 1.0 - self.beta1 ** count.to(dtype)
        correct2 = torch.sqrt(1.0 - self.beta2 ** count.to(dtype))
        for name, p in parameters.items():
            g, m, v = gradients[name], self.first[name], self.second[name]
            per_replicate = (-1, *[1] * (p.dim() - 1))
            rate = (rates[self.group_of[name]] / correct1).view(per_replicate)
            live = alive.view(per_replicate)
            m_new = m + (1.0 - self.beta1) * (g - m)
            v_new = self.beta2 * v + (1.0 - self.beta2) * g * g
            p_new = p - rate * m_new / (torch.sqrt(v_new) / correct2 + self.eps)
            p.copy_(torch.where(live, p_new, p))
            m.copy_(torch.where(live, m_new, m))
            v.copy_(torch.where(live, v_new, v))

    def update_fused(
        self,
        parameters: dict[str, Tensor],
        gradients: dict[str, Tensor],
        rates: Tensor,
        count: int,
        alive: list[bool],
    ) -> None:
        """The same step through torch's fused kernel: one pass over memory per tensor."""
        together = all(alive) and bool((rates == rates[:, :1]).all())
        for group in set(self.group_of.values()):
            names = [name for name in parameters if self.group_of[name] == group]
            replicates = [slice(None)] if together else [slice(k, k + 1) for k, a in enumerate(alive) if a]
            for part in replicates:
                _torch_adam(
                    [parameters[n][part] for n in names],
                    [gradients[n][part] for n in names],
                    [self.first[n][part] for n in names],
                    [self.second[n][part] for n in names],
                    [],
                    [torch.tensor(float(count - 1)) for _ in names],
                    fused=True,
                    amsgrad=False,
                    beta1=self.beta1,
                    beta2=self.beta2,
                    lr=float(rates[group, part][0]),
                    weight_decay=0.0,
                    eps=self.eps,
                    maximize=False,
                )
