"""Arrays to numbers: accuracy, log loss, Brier score, calibration, rejection, detection, entropies.

Every function takes tensors, arrays or lists; probabilities are ``(rows, classes)``, labels whole numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sparsebnn.checks import check_count, check_finite, check_rows, check_tensor, invalid

__all__ = [
    "accuracy",
    "nll",
    "brier",
    "Reliability",
    "reliability",
    "calibration_error",
    "calibration_interval",
    "rejection_curve",
    "rejection_area",
    "auroc",
    "concordance",
    "kaplan_meier",
    "fpr_at_tpr",
    "entropy",
    "EntropyParts",
    "entropy_parts",
]


def checked(probs: Tensor, labels: Tensor, owner: str, *, sums: bool = True) -> tuple[Tensor, Tensor]:
    """Probabilities and labels as tensors, or what is wrong with them.

    ``sums=False`` takes any scores, where only their order counts.
    """
    p, y = check_tensor(probs, "probs", owner), check_tensor(labels, "labels", owner)
    if p.dim() != 2 or y.dim() != 1:
        got = f"shapes {tuple(p.shape)} and {tuple(y.shape)}"
        raise invalid("probs", owner, "of shape (rows, classes) with a vector of labels", got)
    check_rows([("probs", p.shape[0]), ("labels", y.shape[0])], owner)
    if y.is_floating_point():
        raise invalid("labels", owner, "whole numbers", y.dtype)
    check_finite(p, "probs", owner)
    if sums:
        p = probabilities(p, owner)
    y = y.long()
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= p.shape[1]:
        raise invalid("labels", owner, f"from 0 to {p.shape[1] - 1}", f"labels from {low} to {high}")
    return p, y


def probabilities(p: Tensor, owner: str) -> Tensor:
    """Floating point, from 0 to 1, each row with the sum 1 to 1e-3 or what its precision allows."""
    p = p if p.is_floating_point() else p.double()
    if not p.dim() or not p.numel():
        raise invalid(
            "probs", owner, "of shape (…, classes), with at least one row", f"shape {tuple(p.shape)}"
        )
    slack = max(1e-3, 4.0 * torch.finfo(p.dtype).eps)
    advice = "Pass probabilities, such as softmax(logits), not logits or log probabilities."
    lowest, highest = float(p.min()), float(p.max())
    if lowest < -slack or highest > 1.0 + slack:
        raise invalid("probs", owner, "from 0 to 1", f"values from {lowest:g} to {highest:g}", advice)
    totals = p.sum(-1, dtype=torch.float64).flatten()
    worst = float(totals[(totals - 1.0).abs().argmax()])
    if not abs(worst - 1.0) <= slack:
        raise invalid("probs", owner, "rows with the sum 1", f"a row with the sum {worst:g}", advice)
    return p.clamp(0.0, 1.0)


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of rows whose most probable class is the label; logits will do too.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]))
    0.5
    """
    p, y = checked(probs, labels, "accuracy", sums=False)
    return float((p.argmax(-1) == y).double().mean())


def nll(probs: Tensor, labels: Tensor) -> float:
    """Mean negative log probability of the labels, in nats; probabilities are floored at 1e-12."""
    p, y = checked(probs, labels, "nll")
    return float(-torch.log(p.gather(1, y[:, None]).double().clamp_min(1e-12)).mean())


def brier(probs: Tensor, labels: Tensor) -> float:
    """Mean squared distance between the probabilities and the label's indicator, summed over classes."""
    p, y = checked(probs, labels, "brier")
    target = torch.zeros_like(p).scatter_(1, y[:, None], 1.0)
    return float(((p - target) ** 2).sum(-1).double().mean())


class Reliability(NamedTuple):
    """A reliability diagram: per bin the number of rows, their mean confidence, their accuracy.

    Empty bins have NaN in the place of a mean.
    """

    rows: Tensor
    confidence: Tensor
    accuracy: Tensor


def _binned(p: Tensor, y: Tensor, n_bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Confidence of the most probable class, whether it is right, and the bin of each row."""
    confidence, predicted = p.double().max(-1)
    # Bins are open below and closed above, as is usual for this measure.
    bin_of = (torch.ceil(confidence * n_bins).long() - 1).clamp(0, n_bins - 1)
    return confidence, (predicted == y).double(), bin_of


def reliability(probs: Tensor, labels: Tensor, n_bins: int = 15) -> Reliability:
    """How often the most probable class is right, among rows with about the same probability for it.

    >>> reliability(torch.tensor([[0.9, 0.1], [0.7, 0.3]]), torch.tensor([0, 1]), n_bins=2).accuracy
    tensor([   nan, 0.5000], dtype=torch.float64)
    """
    p, y = checked(probs, labels, "reliability")
    check_count(n_bins, "n_bins", "reliability")
    confidence, correct, bin_of = _binned(p, y, n_bins)
    count = torch.bincount(bin_of, minlength=n_bins)
    sums = [torch.bincount(bin_of, weights=each, minlength=n_bins) for each in (confidence, correct)]
    return Reliability(count, sums[0] / count, sums[1] / count)


def calibration_error(probs: Tensor, labels: Tensor, n_bins: int = 15) -> float:
    r"""Expected calibration error of the most probable class, over equally wide bins.

    .. math:: \sum_b \frac{n_b}{n}\,\big|\operatorname{acc}_b - \operatorname{conf}_b\big|
    """
    p, y = checked(probs, labels, "calibration_error")
    check_count(n_bins, "n_bins", "calibration_error")
    confidence, correct, bin_of = _binned(p, y, n_bins)
    gap = torch.bincount(bin_of, weights=correct - confidence, minlength=n_bins)
    return float(gap.abs().sum() / len(y))


def calibration_interval(
    probs: Tensor,
    labels: Tensor,
    n_bins: int = 15,
    *,
    level: float = 0.95,
    n_resamples: int = 500,
    seed: int = 0,
) -> tuple[float, float]:
    """A confidence interval of the calibration error that the rows are a sample of.

    The estimate is a sum of absolute values, so it lies above the truth, and resampled rows lie above it
    once more: percentiles of the bootstrap alone can miss a small truth almost always. The interval joins
    the percentiles q of the bootstrap with their reflections 2·estimate − q, and begins at 0 when labels
    drawn from the probabilities themselves would give so large an estimate too often.

    >>> p = torch.tensor([[0.9, 0.1]]).expand(200, 2)
    >>> calibration_interval(p, (torch.arange(200) % 10 == 0).long())[0]
    0.0
    """
    p, y = checked(probs, labels, "calibration_interval")
    check_count(n_bins, "n_bins", "calibration_interval")
    check_count(n_resamples, "n_resamples", "calibration_interval")
    if not 0.0 < level < 1.0:
        raise invalid("level", "calibration_interval", "strictly between 0 and 1", level)
    p, y = p.cpu(), y.cpu()
    confidence, correct, bin_of = _binned(p, y, n_bins)
    used, bin_of = torch.unique(bin_of, return_inverse=True)
    gap, n = correct - confidence, len(y)
    estimate = float(_absolute_sum(gap, bin_of, len(used)) / n)
    generator = torch.Generator().manual_seed(seed)
    resampled, calibrated = [], []
    for _ in range(n_resamples):
        rows = torch.randint(n, (n,), generator=generator)
        resampled.append(_absolute_sum(gap[rows], bin_of[rows], len(used)) / n)
        drawn = (torch.rand(n, generator=generator, dtype=torch.float64) < confidence).double()
        calibrated.append(_absolute_sum(drawn - confidence, bin_of, len(used)) / n)
    tails = torch.tensor([(1.0 - level) / 2.0, (1.0 + level) / 2.0], dtype=torch.float64)
    low, high = torch.quantile(torch.stack(resampled), tails).tolist()
    start = max(0.0, min(low, 2.0 * estimate - high))
    if estimate <= float(torch.quantile(torch.stack(calibrated), tails[1])):
        start = 0.0
    return start, max(high, 2.0 * estimate - low)


def _absolute_sum(gap: Tensor, bin_of: Tensor, n_bins: int) -> Tensor:
    return torch.bincount(bin_of, weights=gap, minlength=n_bins).abs().sum()


def rejection_curve(
    probs: Tensor, labels: Tensor, uncertainty: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Share of rows kept and the accuracy on them, when the most uncertain rows are given away first.

    Entry i keeps the i + 1 least uncertain rows; ``uncertainty`` is one number per row, the entropy if
    not given. Rows of equal uncertainty share their accuracy.

    >>> rejection_curve(torch.tensor([[0.6, 0.4], [0.9, 0.1]]), torch.tensor([1, 0]))[1]
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    p, y = checked(probs, labels, "rejection_curve")
    given = entropy(p) if uncertainty is None else uncertainty
    score = check_tensor(given, "uncertainty", "rejection_curve").to(p.device)
    if score.dim() != 1:
        expected = "a vector, one number per row"
        raise invalid("uncertainty", "rejection_curve", expected, f"shape {tuple(score.shape)}")
    check_rows([("probs", p.shape[0]), ("uncertainty", score.shape[0])], "rejection_curve")
    check_finite(score, "uncertainty", "rejection_curve")
    correct = (p.argmax(-1) == y).double()
    _, group, size = torch.unique(score, return_inverse=True, return_counts=True)
    right = torch.bincount(group, weights=correct, minlength=len(size)) / size
    kept = torch.arange(1, len(y) + 1, dtype=torch.float64, device=p.device)
    return kept / len(y), right.repeat_interleave(size).cumsum(0) / kept


def rejection_area(probs: Tensor, labels: Tensor, uncertainty: Tensor | None = None) -> float:
    """Mean of the accuracy over all shares of rows kept: 1 if every error is among the last to go."""
    return float(rejection_curve(probs, labels, uncertainty)[1].mean())


def _scores(inside: Tensor, outside: Tensor, owner: str) -> tuple[Tensor, Tensor]:
    a, b = (check_tensor(v, n, owner).double() for n, v in (("inside", inside), ("outside", outside)))
    for name, values in (("inside", a), ("outside", b)):
        if values.dim() != 1:
            raise invalid(name, owner, "a vector of scores", f"shape {tuple(values.shape)}")
        check_rows([(name, len(values))], owner)
        check_finite(values, name, owner)
    return a, b


def auroc(inside: Tensor, outside: Tensor) -> float:
    r"""Probability that a score from outside is above one from inside, ties counted half.

    .. math:: P(S_{out} > S_{in}) + \tfrac12 P(S_{out} = S_{in})

    0.5 is no better than chance; below it, the score points the other way.

    >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.3]))
    0.875
    """
    a, b = _scores(inside, outside, "auroc")
    ordered = a.sort().values
    below = torch.searchsorted(ordered, b, right=False)
    not_above = torch.searchsorted(ordered, b, right=True)
    return float((below + not_above).double().mean() / (2.0 * len(a)))


def fpr_at_tpr(inside: Tensor, outside: Tensor, tpr: float = 0.95) -> float:
    """Share of outside rows taken for inside ones, at the threshold that keeps ``tpr`` of the inside rows.

    The threshold is the smallest score that keeps at least that share; 0 is perfect.

    >>> fpr_at_tpr(torch.arange(20.0), torch.tensor([5.0, 18.0, 19.0, 30.0]))
    0.5
    """
    a, b = _scores(inside, outside, "fpr_at_tpr")
    if not 0.0 < tpr <= 1.0:
        raise invalid("tpr", "fpr_at_tpr", "above 0 and at most 1", tpr)
    # Rounding must not ask for one row more: 0.95 · 20 is 19, not 20.
    wanted = max(1, int(-(-(tpr * len(a) - 1e-9) // 1)))
    return float((b <= a.sort().values[wanted - 1]).double().mean())


def concordance(risk: Tensor, time: Tensor, event: Tensor) -> float:
    """Harrell's concordance: the share of comparable pairs in which the higher risk has the earlier event.

    A pair is comparable if the earlier time is that of an event; equal risks count half. Events at the same
    time are not comparable, an event and a censored row at the same time are.

    >>> concordance([2.0, 1.0, 0.0], [1.0, 2.0, 3.0], [1, 1, 0])
    1.0
    """
    r, t, d = (
        check_tensor(v, n, "concordance") for n, v in (("risk", risk), ("time", time), ("event", event))
    )
    check_rows([("risk", len(r)), ("time", len(t)), ("event", len(d))], "concordance")
    r, t, d = r.double(), t.double(), d.bool()
    agree = pairs = 0.0
    for i in torch.nonzero(d).flatten().tolist():
        later = (t > t[i]) | ((t == t[i]) & ~d)
        pairs += float(later.sum())
        agree += float((r[later] < r[i]).sum()) + 0.5 * float((r[later] == r[i]).sum())
    if not pairs:
        raise invalid("event", "concordance", "a vector with comparable pairs", "none", "Events are needed.")
    return agree / pairs


def kaplan_meier(time: Tensor, event: Tensor, entry: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Times of events, the share that survives each, and its standard error (Greenwood).

    >>> kaplan_meier([1.0, 2.0, 3.0], [1, 0, 1])[1].tolist()
    [0.666..., 0.0]
    """
    t, d = (
        check_tensor(time, "time", "kaplan_meier").double(),
        check_tensor(event, "event", "kaplan_meier").bool(),
    )
    check_rows([("time", len(t)), ("event", len(d))], "kaplan_meier")
    start = torch.zeros_like(t) if entry is None else check_tensor(entry, "entry", "kaplan_meier").double()
    times, events = torch.unique(t[d], return_counts=True)
    at_risk = (
        torch.searchsorted(start.sort().values, times) - torch.searchsorted(t.sort().values, times)
    ).double()
    survival = torch.cumprod(1.0 - events / at_risk, 0)
    terms = events / (at_risk * (at_risk - events)).clamp_min(1e-300)
    error = torch.where(survival > 0, survival * terms.cumsum(0).sqrt(), 0.0)
    return times, survival, error


def entropy(probs: Tensor) -> Tensor:
    """Entropy of each distribution along the last axis, in nats.

    >>> entropy([0.25, 0.25, 0.5]).item()
    1.0397207708399179
    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [0.6931471824645996, 0.0]
    """
    p = check_tensor(probs, "probs", "entropy", None if isinstance(probs, Tensor) else torch.float64)
    return torch.special.entr(p).sum(-1)


class EntropyParts(NamedTuple):
    """Entropy of the average, and the parts it is the sum of, in nats, per row."""

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


def entropy_parts(draws: Tensor) -> EntropyParts:
    r"""Uncertainty split by its source; ``draws`` are probabilities of shape (draws, rows, classes).

    .. math::
        H\big(\tfrac1D \sum_d p_d\big)
        = \underbrace{\tfrac1D \sum_d H(p_d)}_{\text{aleatoric}}
        + \underbrace{I(y; d)}_{\text{epistemic}}

    >>> entropy_parts(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).epistemic
    tensor([0.6931])
    """
    p = check_tensor(draws, "draws", "entropy_parts")
    if p.dim() != 3:
        expected = "of shape (draws, rows, classes)"
        raise invalid("draws", "entropy_parts", expected, f"shape {tuple(p.shape)}")
    check_rows([("draws", p.shape[0])], "entropy_parts")
    check_finite(p, "draws", "entropy_parts")
    total, within = entropy(p.mean(0)), entropy(p).mean(0)
    # Never negative but for rounding.
    return EntropyParts(total, within, (total - within).clamp_min(0.0))
