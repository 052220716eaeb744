"""How outputs become probabilities of targets: categorical, Bernoulli and Gaussian likelihoods."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import check_choice, check_count, check_finite, check_positive, invalid

__all__ = ["Likelihood", "Categorical", "Bernoulli", "Gaussian", "likelihood"]

_NOISE_SCALE = 0.2  # of the outputs that say how the noise differs from row to row


class Likelihood(nn.Module):
    """Base of all likelihoods: ``nll(outputs, y)`` per example, and what targets must look like."""

    def prepare(self, y: Tensor) -> Tensor:
        """Targets in the form ``nll`` takes; complains about those that cannot be."""
        raise NotImplementedError

    def n_outputs(self, y: Tensor) -> int:
        """How many outputs the network needs for these targets."""
        raise NotImplementedError

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Negative log likelihood of each example, in nats."""
        raise NotImplementedError


class Categorical(Likelihood):
    """One of ``n_classes`` labels; outputs are unnormalized log probabilities.

    >>> Categorical(3).nll(torch.zeros(2, 3), torch.tensor([0, 2])).tolist()
    [1.0986123085021973, 1.0986123085021973]
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = check_count(n_classes, "n_classes", "Categorical", least=2)

    def prepare(self, y: Tensor) -> Tensor:
        if y.dim() != 1 or y.is_floating_point():
            got = f"{y.dtype} of shape {tuple(y.shape)}"
            advice = "Encode classes as 0, 1, 2 …."
            raise invalid("y", "Categorical", "a vector of integer labels", got, advice)
        labels = y.long()
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= self.n_classes:
            expected = f"labels from 0 to {self.n_classes - 1}"
            advice = "Encode classes as 0, 1, 2 …, or raise n_classes."
            raise invalid("y", "Categorical", expected, f"labels from {low} to {high}", advice)
        return labels

    def n_outputs(self, y: Tensor) -> int:
        return self.n_classes

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return F.cross_entropy(outputs, y, reduction="none")
        # The same numbers; under vmap, cross_entropy would first import a computer algebra system.
        own = y.unsqueeze(-1) == torch.arange(outputs.shape[-1], device=outputs.device)
        return -torch.where(own, F.log_softmax(outputs, -1), 0.0).sum(-1)


class Bernoulli(Likelihood):
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


class Gaussian(Likelihood):
    r"""Real targets with Gaussian noise.

    ``noise="fixed"`` keeps ``std``; ``"learned"`` starts there and learns one noise std per target, the
    softplus of ``raw_std``. With ``"heteroscedastic"`` noise the network has twice as many outputs, the means
    followed by how the noise of a row differs from that level:

    .. math:: \sigma(x) = \mathrm{softplus}(\texttt{raw\_std} + 0.2\, g\, f_\sigma(x))

    Two things make that trainable. The factor 0.2 keeps the noise of an untrained network nearly the same for
    all rows. Without it, rows whose std happens to start small have gradients so large that Adam, which
    remembers them for a thousand steps, hardly moves afterwards. And noise that may differ too early explains
    errors away before the means have had the time to correct them. So :func:`~sparsebnn.train` sets the
    buffer ``noise_switch``, g, to 0 for the first 70% of the epochs: the means are learned with one noise
    level, and :math:`f_\sigma` is fitted to their errors without changing how rows are weighted. After that g
    is 1, as everywhere else, and the objective is the evidence lower bound of this likelihood.

    >>> Gaussian(std=1.0).nll(torch.zeros(1, 1), torch.ones(1, 1)).item()
    1.418938...
    """

    raw_std: Tensor
    noise_switch: Tensor

    def __init__(self, n_targets: int = 1, noise: str = "learned", std: float = 1.0) -> None:
        super().__init__()
        self.n_targets = check_count(n_targets, "n_targets", "Gaussian")
        self.noise = check_choice(noise, ("fixed", "learned", "heteroscedastic"), "noise", "Gaussian")
        value = check_positive(torch.full((n_targets,), std, dtype=torch.float64), "std", "Gaussian")
        raw = (value + torch.log(-torch.expm1(-value))).to(torch.get_default_dtype())
        if noise == "fixed":
            self.register_buffer("raw_std", raw)
        else:
            self.raw_std = nn.Parameter(raw)
        if noise == "heteroscedastic":
            self.register_buffer("noise_switch", torch.ones((), dtype=raw.dtype))

    def prepare(self, y: Tensor) -> Tensor:
        shaped = y.unsqueeze(-1) if y.dim() == 1 else y
        if shaped.dim() != 2 or shaped.shape[1] != self.n_targets:
            raise invalid("y", "Gaussian", f"of shape (rows, {self.n_targets})", f"shape {tuple(y.shape)}")
        # Real numbers stay as exact as they are: the network they are for may have double precision.
        real = shaped if shaped.is_floating_point() else shaped.to(torch.get_default_dtype())
        return check_finite(real, "y", "Gaussian")

    def n_outputs(self, y: Tensor) -> int:
        return self.n_targets * (2 if self.noise == "heteroscedastic" else 1)

    def mean_and_std(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and noise std of each target."""
        mean = outputs[..., : self.n_targets]
        if self.noise == "heteroscedastic":
            return mean, self._std(outputs, self.raw_std, self.noise_switch)
        return mean, _positive(self.raw_std).expand_as(mean)

    def _std(self, outputs: Tensor, level: Tensor, switch: Tensor | float = 1.0) -> Tensor:
        """Of every row, given the raw std of all."""
        return _positive(level + _NOISE_SCALE * switch * outputs[..., self.n_targets :])

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, std = self.mean_and_std(outputs)
        found = _gaussian_nll(y - mean, std)
        if self.noise == "heteroscedastic":
            # While it is switched off, the noise of rows is fitted to the errors: a gradient without a value.
            aside = _gaussian_nll(y - mean.detach(), self._std(outputs, self.raw_std.detach()))
            found = found + (1.0 - self.noise_switch) * (aside - aside.detach())
        return found


def _positive(raw_std: Tensor) -> Tensor:
    return F.softplus(raw_std).clamp_min(1e-6)


def _gaussian_nll(error: Tensor, std: Tensor) -> Tensor:
    """Summed over targets."""
    return (0.5 * (error / std) ** 2 + torch.log(std) + 0.5 * math.log(2.0 * math.pi)).sum(-1)


def likelihood(name: str, y: Tensor) -> Likelihood:
    """The likelihood of that name, sized by the targets.

    >>> likelihood("categorical", torch.tensor([0, 1, 2])).n_classes
    3
    """
    check_choice(name, ("categorical", "bernoulli", "gaussian"), "likelihood", "train")
    if name == "categorical":
        return Categorical(max(2, int(y.max()) + 1) if y.numel() and not y.is_floating_point() else 2)
    if name == "bernoulli":
        return Bernoulli()
    return Gaussian(1 if y.dim() == 1 else y.shape[1])
