"""How outputs become probabilities of targets: categorical, Bernoulli and Gaussian likelihoods."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import check_choice, check_count, check_finite, check_positive, invalid

__all__ = ["Likelihood", "Categorical", "Bernoulli", "Gaussian", "likelihood"]


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
    """One of ``n_classes`` labels; outputs are unnormalised log probabilities.

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
        return F.cross_entropy(outputs, y, reduction="none")


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

    ``noise="fixed"`` keeps ``std``; ``"learned"`` starts there and learns one noise std per target;
    ``"heteroscedastic"`` lets the network give it: the outputs are then the means followed by as many
    raw stds, each through a softplus.

    >>> Gaussian(std=1.0).nll(torch.zeros(1, 1), torch.ones(1, 1)).item()
    1.418938...
    """

    raw_std: Tensor

    def __init__(self, n_targets: int = 1, noise: str = "learned", std: float = 1.0) -> None:
        super().__init__()
        self.n_targets = check_count(n_targets, "n_targets", "Gaussian")
        self.noise = check_choice(noise, ("fixed", "learned", "heteroscedastic"), "noise", "Gaussian")
        value = check_positive(torch.full((n_targets,), std, dtype=torch.float64), "std", "Gaussian")
        raw = (value + torch.log(-torch.expm1(-value))).to(torch.get_default_dtype())
        if noise == "learned":
            self.raw_std = nn.Parameter(raw)
        else:
            self.register_buffer("raw_std", raw)

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
        mean, raw = outputs[..., : self.n_targets], self.raw_std
        if self.noise == "heteroscedastic":
            raw = outputs[..., self.n_targets :] + self.raw_std
        return mean, F.softplus(raw).clamp_min(1e-6).expand_as(mean)

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, std = self.mean_and_std(outputs)
        scaled = ((y - mean) / std) ** 2
        return (0.5 * scaled + torch.log(std) + 0.5 * math.log(2.0 * math.pi)).sum(-1)


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
