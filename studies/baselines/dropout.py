"""Monte Carlo dropout: units switched off at random, in training and in prediction alike."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsebnn.checks import invalid
from sparsebnn.nn.passes import MedianPass, WeightPass, active_pass
from sparsebnn.random.noise import Noise, RandomNoise

__all__ = ["Dropout"]


class Dropout(nn.Module):
    r"""Each unit is 0 with probability ``rate`` and scaled up otherwise.

    .. math:: y_j = x_j\, m_j / (1 - \text{rate}), \qquad m_j \sim \mathrm{Bernoulli}(1 - \text{rate})

    The mask comes from the open pass (:mod:`sparsebnn.nn.passes`), so that a replicate's seed governs it
    and ``vmap`` may run over it:

    ====================  ===========================================================
    training, ``local``   a mask for every example (as :class:`torch.nn.Dropout`)
    ``weights``           one mask for all rows: a draw is one thinned network
    ``median``            no mask: the network whose units all have their mean
    ====================  ===========================================================

    Outside a pass it behaves as :class:`torch.nn.Dropout`. Shapes: any, unchanged.

    >>> from sparsebnn.random.noise import NoiseBuffer
    >>> from sparsebnn.nn.passes import LocalPass
    >>> with LocalPass(NoiseBuffer(torch.empty(0), torch.tensor([-1.0, 2.0]))):
    ...     Dropout(0.5)(torch.ones(1, 2))
    tensor([[2., 0.]])
    """

    keep_prob: Tensor

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise invalid("rate", "Dropout", "at least 0 and below 1", rate)
        self.register_buffer("keep_prob", torch.tensor(1.0 - rate))

    def forward(self, x: Tensor) -> Tensor:
        opened = active_pass()
        if isinstance(opened, MedianPass) or (opened is None and not self.training):
            return x
        whole = isinstance(opened, WeightPass)
        noise: Noise = RandomNoise() if opened is None else opened.noise if whole else opened.row_noise
        shape = x.shape[1:] if whole else x.shape
        keep = self.keep_prob.to(x.dtype)
        # P(logistic < logit p) = p; at rate 0 the logit is infinite and every unit stays.
        mask = (noise.logistic(shape, x) < torch.logit(keep)).to(x.dtype)
        return x * mask / keep

    def extra_repr(self) -> str:
        return f"rate={1.0 - float(self.keep_prob):g}"
