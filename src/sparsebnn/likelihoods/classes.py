"""Labels: categorical, Bernoulli, ordinal, noisy and multilabel targets."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import check_choice, check_count, check_number, invalid
from sparsebnn.likelihoods.base import ClassLikelihood

__all__ = ["Bernoulli", "Categorical", "Multilabel", "NoisyCategorical", "Ordinal"]

_FAR = 1e4  # thresholds before the first and after the last class
_FEW_CLASSES = 64


class Categorical(ClassLikelihood):
    """One of ``n_classes`` labels; outputs are unnormalized log probabilities.

    >>> Categorical(3).nll(torch.zeros(2, 3), torch.tensor([0, 2])).tolist()
    [1.0986123085021973, 1.0986123085021973]
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = check_count(n_classes, "n_classes", type(self).__name__, least=2)

    @classmethod
    def of(cls, y: Tensor) -> Categorical:
        return cls(max(2, int(y.max()) + 1) if y.numel() and not y.is_floating_point() else 2)

    def prepare(self, y: Tensor) -> Tensor:
        owner = type(self).__name__
        if y.dim() != 1 or y.is_floating_point():
            got = f"{y.dtype} of shape {tuple(y.shape)}"
            advice = "Encode classes as 0, 1, 2 …."
            raise invalid("y", owner, "a vector of integer labels", got, advice)
        labels = y.long()
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= self.n_classes:
            expected = f"labels from 0 to {self.n_classes - 1}"
            advice = "Encode classes as 0, 1, 2 …, or raise n_classes."
            raise invalid("y", owner, expected, f"labels from {low} to {high}", advice)
        return labels

    def n_outputs(self, y: Tensor) -> int:
        return self.n_classes

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        return -_own(_log_softmax(outputs), y)

    def weighted_slope(self, outputs: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor] | None:
        if type(self) is not Categorical:  # a subclass has another likelihood
            return None
        log_p, at = _log_softmax(outputs), y.unsqueeze(-1)
        own = log_p.gather(-1, at)
        slope = torch.exp(log_p).scatter_(-1, at, torch.expm1(own))
        return -weight * own.squeeze(-1), slope.mul_(weight.unsqueeze(-1))

    def probs(self, outputs: Tensor) -> Tensor:
        return torch.softmax(outputs, -1)


def _log_softmax(outputs: Tensor) -> Tensor:
    """Log probabilities of the classes. On a CPU, a softmax over few is faster along another axis."""
    if outputs.is_cuda or outputs.dim() < 2 or outputs.shape[-1] > _FEW_CLASSES:
        return F.log_softmax(outputs, -1)
    return F.log_softmax(outputs.mT, -2).mT


def _own(values: Tensor, y: Tensor) -> Tensor:
    """The value of each row's label.

    Under vmap, cross_entropy would first import a computer algebra system; this gives the same numbers.
    """
    if not values.is_cuda:
        return values.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    own = y.unsqueeze(-1) == torch.arange(values.shape[-1], device=values.device)
    return torch.where(own, values, 0.0).sum(-1)


class NoisyCategorical(Categorical):
    r"""Labels of which a share ε is wrong: replaced by one of the other classes at random.

    .. math:: p(y = c) = (1 - \varepsilon)\, p_c + \varepsilon\, \frac{1 - p_c}{C - 1}

    with p the softmax of the outputs. ``noise="learned"`` starts at ``rate`` and learns ε (at most one half);
    ``"fixed"`` keeps it. ``probs`` are those of the observed labels, ``clean_probs`` those of the true ones.

    >>> NoisyCategorical(2, rate=0.1).probs(torch.tensor([[50.0, 0.0]])).detach().round(decimals=3)
    tensor([[0.9000, 0.1000]])
    """

    raw_rate: Tensor

    def __init__(self, n_classes: int, noise: str = "learned", rate: float = 0.05) -> None:
        super().__init__(n_classes)
        owner = "NoisyCategorical"
        self.noise = check_choice(noise, ("fixed", "learned"), "noise", owner)
        self.rate = check_number(
            rate, "rate", owner, "strictly between 0 and one half", lambda v: 0.0 < v < 0.5
        )
        raw = torch.tensor(math.log(2.0 * rate) - math.log1p(-2.0 * rate))
        if noise == "fixed":
            self.register_buffer("raw_rate", raw)
        else:
            self.raw_rate = nn.Parameter(raw)

    def clean_probs(self, outputs: Tensor) -> Tensor:
        """Probabilities of the true labels."""
        return torch.softmax(outputs, -1)

    def probs(self, outputs: Tensor) -> Tensor:
        return torch.exp(self._log_probs(outputs))

    def _log_probs(self, outputs: Tensor) -> Tensor:
        wrong = 0.5 * torch.sigmoid(self.raw_rate).unsqueeze(-1)  # an axis of classes
        log_p = _log_softmax(outputs)
        others = torch.log(-torch.expm1(log_p.clamp_max(-1e-12))) - math.log(self.n_classes - 1)
        return torch.logaddexp(torch.log1p(-wrong) + log_p, torch.log(wrong) + others)

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        return -_own(self._log_probs(outputs), y)


class Ordinal(Categorical):
    r"""Ordered classes 0, 1, 2, …: the cumulative logit (proportional odds) model with one output f.

    .. math:: P(y \le k) = \mathrm{sigmoid}(\theta_k - f)

    The thresholds :math:`\theta_0 < \theta_1 < \dots` are learned; their distances are softplus of
    ``raw_gaps``.
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__(n_classes)
        even = torch.logit(torch.arange(1, n_classes) / n_classes)
        self.first = nn.Parameter(even[:1].clone())
        self.raw_gaps = nn.Parameter(torch.log(torch.expm1(even.diff())))

    @property
    def thresholds(self) -> Tensor:
        return torch.cat([self.first, self.first + F.softplus(self.raw_gaps).cumsum(0)])

    def n_outputs(self, y: Tensor) -> int:
        return 1

    def _log_probs(self, outputs: Tensor) -> Tensor:
        inner = self.thresholds
        ends = torch.cat([inner.new_full((1,), -_FAR), inner, inner.new_full((1,), _FAR)])
        # log(σ(b) − σ(a)) = log σ(b) + log σ(−a) + log(1 − exp(a − b)).
        low, high = ends[:-1] - outputs, ends[1:] - outputs
        return F.logsigmoid(high) + F.logsigmoid(-low) + torch.log(-torch.expm1(ends[:-1] - ends[1:]))

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        return -_own(self._log_probs(outputs), y)

    def probs(self, outputs: Tensor) -> Tensor:
        return torch.exp(self._log_probs(outputs))


class Bernoulli(ClassLikelihood):
    """Yes or no; the single output is a logit.

    >>> Bernoulli().nll(torch.zeros(2, 1), torch.tensor([0.0, 1.0])).tolist()
    [0.6931471824645996, 0.6931471824645996]
    """

    def prepare(self, y: Tensor) -> Tensor:
        if y.dim() != 1 or not bool(((y == 0) | (y == 1)).all()):
            got = f"values from {y.min().item()} to {y.max().item()} of shape {tuple(y.shape)}"
            raise invalid("y", "Bernoulli", "a vector of 0s and 1s", got)
        return y.to(torch.get_default_dtype())

    def n_outputs(self, y: Tensor) -> int:
        return 1

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs.squeeze(-1), y, reduction="none")

    def weighted_slope(self, outputs: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor] | None:
        if type(self) is not Bernoulli:
            return None
        slope = weight * (torch.sigmoid(outputs.squeeze(-1)) - y)
        return weight * self.nll(outputs, y), slope.unsqueeze(-1)

    def probs(self, outputs: Tensor) -> Tensor:
        yes = torch.sigmoid(outputs)
        return torch.cat([1.0 - yes, yes], dim=-1)


class Multilabel(ClassLikelihood):
    """Several labels that are present (1) or absent (0), independent given the outputs, which are logits.

    ``probs`` are those of presence, ``(…, n_labels)``.

    >>> Multilabel(2).nll(torch.zeros(1, 2), torch.tensor([[0.0, 1.0]])).item()
    1.38629...
    """

    target_columns = True

    def __init__(self, n_labels: int) -> None:
        super().__init__()
        self.n_labels = check_count(n_labels, "n_labels", "Multilabel")

    @classmethod
    def of(cls, y: Tensor) -> Multilabel:
        return cls(1 if y.dim() == 1 else y.shape[1])

    def prepare(self, y: Tensor) -> Tensor:
        if y.dim() != 2 or y.shape[1] != self.n_labels or not bool(((y == 0) | (y == 1)).all()):
            got = f"values from {y.min().item()} to {y.max().item()} of shape {tuple(y.shape)}"
            raise invalid("y", "Multilabel", f"0s and 1s of shape (rows, {self.n_labels})", got)
        return y.to(torch.get_default_dtype())

    def n_outputs(self, y: Tensor) -> int:
        return self.n_labels

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, y, reduction="none").sum(-1)

    def probs(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs)

    def quantile(self, outputs: Tensor, level: Tensor) -> Tensor:
        """For each label 1 if its absence has a probability below ``level``, else 0."""
        return (1.0 - self.probs(outputs) < level).long()
