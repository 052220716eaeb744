"""Arrays to numbers: accuracy, log loss, Brier score, calibration error, entropies."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsebnn.checks import check_count, check_finite, check_rows, invalid

__all__ = [
    "accuracy",
    "nll",
    "brier",
    "calibration_error",
    "entropy",
]


def _checked(probs: Tensor, labels: Tensor, owner: str) -> tuple[Tensor, Tensor]:
    p, y = torch.as_tensor(probs), torch.as_tensor(labels)
    if p.dim() != 2 or y.dim() != 1:
        got = f"shapes {tuple(p.shape)} and {tuple(y.shape)}"
        raise invalid("probs", owner, "of shape (rows, classes) with a vector of labels", got)
    check_rows([("probs", p.shape[0]), ("labels", y.shape[0])], owner)
    if y.is_floating_point():
        raise invalid("labels", owner, "whole numbers", y.dtype)
    check_finite(p, "probs", owner)
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= p.shape[1]:
        raise invalid("labels", owner, f"from 0 to {p.shape[1] - 1}", f"labels from {low} to {high}")
    return p, y.long()


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of rows whose most probable class is the label.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]))
    0.5
    """
    p, y = _checked(probs, labels, "accuracy")
    return float((p.argmax(-1) == y).double().mean())


def nll(probs: Tensor, labels: Tensor) -> float:
    """Mean negative log probability of the labels, in nats; probabilities are floored at 1e-12."""
    p, y = _checked(probs, labels, "nll")
    return float(-torch.log(p.gather(1, y[:, None]).clamp_min(1e-12)).double().mean())


def brier(probs: Tensor, labels: Tensor) -> float:
    """Mean squared distance between the probabilities and the label's indicator, summed over classes."""
    p, y = _checked(probs, labels, "brier")
    target = torch.zeros_like(p).scatter_(1, y[:, None], 1.0)
    return float(((p - target) ** 2).sum(-1).double().mean())


def calibration_error(probs: Tensor, labels: Tensor, n_bins: int = 15) -> float:
    r"""Expected calibration error of the most probable class, over equally wide bins.

    .. math:: \sum_b \frac{n_b}{n}\,\big|\operatorname{acc}_b - \operatorname{conf}_b\big|
    """
    p, y = _checked(probs, labels, "calibration_error")
    check_count(n_bins, "n_bins", "calibration_error")
    confidence, predicted = p.double().max(-1)
    correct = (predicted == y).double()
    # Bins are open below and closed above, as is usual for this measure.
    bin_of = (torch.ceil(confidence * n_bins).long() - 1).clamp(0, n_bins - 1)
    gap = torch.zeros(n_bins, dtype=torch.float64, device=p.device)
    gap.index_add_(0, bin_of, correct - confidence)
    return float(gap.abs().sum() / len(y))


def entropy(probs: Tensor) -> Tensor:
    """Entropy of each distribution along the last axis, in nats.

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [0.6931471824645996, 0.0]
    """
    return torch.special.entr(probs).sum(-1)
