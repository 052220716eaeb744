"""The interface of a likelihood: nats for training, and the observation model for prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn.checks import invalid

__all__ = ["ClassLikelihood", "Likelihood", "PerPosition", "inverted", "scipy_special"]

_DOUBLINGS, _HALVINGS = 200, 60


class Likelihood(nn.Module):
    """Base of all likelihoods: what a network's outputs say about the targets.

    Training needs ``prepare``, ``n_outputs`` and ``nll``. :func:`~sparsebnn.predict` also needs the
    observation model, the distribution of a target given the outputs: ``mean``, ``variance`` and ``cdf``.
    Quantiles and draws follow from them; override ``quantile`` where there is a closed form. Outputs have
    shape ``(…, n_outputs)``; means and variances have shape ``(…, targets)``.
    """

    discrete = False  # targets are whole numbers from 0
    any_shape = False  # outputs need not be (rows, n_outputs)
    target_columns = True  # ``prepare`` returns (rows, columns); False: a vector

    @classmethod
    def of(cls, y: Tensor) -> Likelihood:
        """The likelihood, sized by these targets."""
        return cls()

    def prepare(self, y: Tensor) -> Tensor:
        """Targets in the form that ``nll`` takes; raises if they are impossible."""
        raise NotImplementedError

    def n_outputs(self, y: Tensor) -> int:
        """How many outputs the network needs for these targets."""
        raise NotImplementedError

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Negative log likelihood of each example, in nats."""
        raise NotImplementedError

    def weighted_nll(self, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The terms of the loss for rows with these weights; a weight of 0 removes a row."""
        return weight * self.nll(outputs, y)

    def weighted_slope(self, outputs: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor] | None:
        """``weighted_nll`` and its gradient with respect to the outputs; None to use automatic derivatives.

        Only for likelihoods without parameters. A gradient in closed form saves time in training.
        """
        return None

    def mean(self, outputs: Tensor) -> Tensor:
        """Mean of the targets."""
        raise NotImplementedError

    def variance(self, outputs: Tensor) -> Tensor:
        """Variance of the targets."""
        raise NotImplementedError

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        """P(target ≤ y); ``y`` broadcasts to ``(…, targets)``."""
        raise NotImplementedError

    def quantile(self, outputs: Tensor, level: Tensor) -> Tensor:
        """The smallest value with a ``cdf`` of at least ``level``, which broadcasts to ``(…, targets)``."""
        mean, std = self.mean(outputs), self.variance(outputs).sqrt()
        return inverted(lambda y: self.cdf(outputs, y), level, mean, std, self.discrete)

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Draws of targets from standard normal ``noise`` of shape ``(…, targets)``."""
        level = torch.special.ndtr(noise.double()).clamp(1e-15, 1.0 - 1e-15)
        return self.quantile(outputs, level)


class ClassLikelihood(Likelihood):
    """Targets that are one of several classes; ``probs`` is the observation model."""

    discrete = True
    target_columns = False

    def probs(self, outputs: Tensor) -> Tensor:
        """Class probabilities, ``(…, classes)``."""
        raise NotImplementedError

    def quantile(self, outputs: Tensor, level: Tensor) -> Tensor:
        """The class at which the cumulative probability reaches ``level``, as a whole number, ``(…, 1)``."""
        below = self.probs(outputs).cumsum(-1)[..., :-1] < level
        return below.sum(-1, keepdim=True)


def inverted(
    cdf: Callable[[Tensor], Tensor], level: Tensor, mean: Tensor, std: Tensor, discrete: bool
) -> Tensor:
    """The smallest values with ``cdf(value) ≥ level``, by bisection that starts around ``mean``.

    >>> level = torch.tensor([0.975], dtype=torch.float64)
    >>> inverted(torch.special.ndtr, level, torch.zeros(1), torch.ones(1), discrete=False).item()
    1.95996...
    """
    mean, std = mean.double(), std.double().clamp_min(1e-12)
    shape = torch.broadcast_shapes(mean.shape, level.shape)
    wide = (torch.ones(shape, dtype=torch.float64, device=mean.device) * std).clone()
    high = torch.ceil(mean + wide) if discrete else mean + wide
    low = torch.full_like(wide, -1.0) if discrete else mean - wide
    for _ in range(_DOUBLINGS):
        short = cdf(high) < level
        long = torch.zeros_like(short) if discrete else cdf(low) >= level
        if not bool((short | long).any()):
            break
        wide = torch.where(short | long, 2.0 * wide, wide)
        high = torch.where(short, torch.ceil(high + wide) if discrete else high + wide, high)
        low = torch.where(long, low - wide, low)
    else:
        raise invalid("cdf", "Likelihood", "a function that rises from 0 to 1", "one that does not")
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        middle = torch.floor(middle) if discrete else middle
        reached = cdf(middle) >= level
        if discrete and bool((high - low <= 1.0).all()):
            break
        high = torch.where(reached & (middle > low), middle, high)
        low = torch.where(reached, low, middle)
    return high


def scipy_special(owner: str) -> Any:
    """SciPy's special functions, or which extra to install."""
    try:
        from scipy import special
    except ImportError as missing:
        raise ImportError(f"{owner} needs 'scipy': pip install 'sparsebnn[sklearn]'") from missing
    return special


class PerPosition(Likelihood):
    """A likelihood of every position, summed over the positions of a row.

    Outputs have shape ``(rows, positions…, n_outputs)``, or with ``axis=1``, as convolutions give them,
    ``(rows, n_outputs, positions…)``; targets ``(rows, positions…)``. Positions whose target is ``ignore``,
    such as padding, have no loss. N counts rows, not positions. For training; ``predict`` takes likelihoods
    of whole rows.

    >>> import torch
    >>> from sparsebnn.likelihoods import Categorical
    >>> tokens = PerPosition(Categorical(3))
    >>> tokens.nll(torch.zeros(2, 4, 3), torch.tensor([[0, 1, 2, -100], [0, 0, 0, 0]])).tolist()
    [3.29..., 4.39...]
    """

    any_shape = True

    def __init__(self, inner: Likelihood, axis: int = -1, ignore: int = -100) -> None:
        super().__init__()
        if axis not in (-1, 1):
            raise invalid("axis", "PerPosition", "-1 or 1, the axis of a position's outputs", axis)
        if inner.target_columns:
            expected = "a likelihood of one number or label per position"
            raise invalid("inner", "PerPosition", expected, type(inner).__name__)
        self.inner, self.axis, self.ignore = inner, axis, ignore

    def prepare(self, y: Tensor) -> Tensor:
        kept = y != self.ignore
        if y.dim() < 2 or not bool(kept.any()):
            got = f"shape {tuple(y.shape)}" if y.dim() < 2 else "only ignored ones"
            raise invalid("y", "PerPosition", "targets of shape (rows, positions…)", got)
        some = y[kept]
        prepared = self.inner.prepare(some)
        result = y.to(prepared.dtype, copy=True)
        result[kept] = prepared
        return result

    def n_outputs(self, y: Tensor) -> int:
        return self.inner.n_outputs(y.reshape(-1))

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        last: Any = outputs if self.axis == -1 else outputs.movedim(1, -1)
        if last.shape[:-1] != y.shape:
            expected = f"outputs for positions of shape {tuple(y.shape[1:])}"
            raise invalid("network", "train", expected, f"outputs of shape {tuple(outputs.shape)}")
        kept = y != self.ignore
        flat = self.inner.nll(last.reshape(-1, last.shape[-1]), (y * kept).reshape(-1))
        return (flat.reshape(y.shape) * kept).flatten(1).sum(1)
