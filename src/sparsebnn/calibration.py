r"""How sure predictions are, corrected by one number that rows held out from training choose.

.. math:: q_c \propto p_c^{\,s}

s < 1 makes all predictions less sure, s > 1 surer; no label changes. It is the inverse of what is called
temperature scaling, for probabilities that are already averaged over draws. A network is usually surer of
rows it was trained on, so s must come from others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparsebnn.checks import invalid
from sparsebnn.metrics import checked

__all__ = ["sharpened", "sharpness"]

_LEAST, _MOST, _HALVINGS = 1 / 64, 64.0, 60


def sharpened(probs: Tensor, s: float) -> Tensor:
    """Probabilities to the power of s, scaled to sum to one again.

    >>> sharpened(torch.tensor([[0.8, 0.2]]), 0.5).round(decimals=3)
    tensor([[0.6670, 0.3330]])
    """
    if not 0.0 < s < float("inf"):
        raise invalid("s", "sharpened", "greater than 0", s)
    p = torch.as_tensor(probs)
    return torch.softmax(s * _log(p), -1).to(p.dtype)


def sharpness(probs: Tensor, labels: Tensor) -> float:
    r"""The s at which labels of held-out rows are likeliest.

    The log likelihood is concave in s, with the derivative

    .. math:: \sum_i \Big(\log p_{i y_i} - \sum_c q_{ic} \log p_{ic}\Big),

    which falls; its zero is found by bisection, between 1/64 and 64.

    >>> p = torch.tensor([[0.99, 0.01]] * 10)
    >>> labels = torch.tensor([0] * 8 + [1] * 2)  # right in eight of ten: far too sure
    >>> bool(abs(sharpened(p, sharpness(p, labels))[0, 0] - 0.8) < 1e-6)
    True
    """
    p, y = checked(probs, labels, "sharpness")
    log_p = _log(p)
    of_labels = log_p.gather(1, y[:, None]).sum()

    def slope(s: float) -> float:
        return float(of_labels - (torch.softmax(s * log_p, -1) * log_p).sum())

    low, high = _LEAST, _MOST
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slope(middle) >= 0.0 else (low, middle)
    return (low * high) ** 0.5


def _log(p: Tensor) -> Tensor:
    return torch.log(p.double().clamp_min(1e-12))
