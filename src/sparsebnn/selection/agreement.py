"""How often replicates choose each input, and how far they agree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.checks import check_tensor, invalid
from sparsebnn.selection.plots import bars
from sparsebnn.selection.rules import Selection, listed_names, median_inputs

__all__ = ["Agreement", "agreement", "wilson"]

_NORMAL_QUANTILE = 1.959963984540054


def wilson(successes: Any, trials: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Wilson's 95% interval of a frequency.

    .. math::
        \frac{k + z^2/2}{n + z^2} \pm \frac{z}{n + z^2}\sqrt{\frac{k(n-k)}{n} + \frac{z^2}{4}}

    >>> [round(float(end), 3) for end in wilson(0, 100)]
    [0.0, 0.037]
    """
    k, z = np.asarray(successes, dtype=np.float64), _NORMAL_QUANTILE
    centre = (k + z**2 / 2.0) / (trials + z**2)
    half = z / (trials + z**2) * np.sqrt(k * (trials - k) / trials + z**2 / 4.0)
    return np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)


@dataclass(frozen=True)
class Agreement:
    """How often replicates chose each input, and how far they agree.

    ``low`` and ``high`` are 95% intervals of the frequencies. ``jaccard`` is the mean over pairs of
    replicates of |both chose| / |either chose| (1 where neither chose anything), with its jackknife 95%
    interval.
    """

    names: tuple[str, ...]
    frequency: Tensor
    low: Tensor
    high: Tensor
    replicates: int
    jaccard: float
    jaccard_low: float
    jaccard_high: float

    def table(self) -> str:
        """The inputs as text, most often chosen first."""
        order = torch.argsort(self.frequency, descending=True, stable=True).tolist()
        width = max(5, *(len(name) for name in self.names))
        lines = [f"{'input':<{width}}  chosen  95% interval"]
        for i in order:
            ends = f"{float(self.low[i]):.3f}–{float(self.high[i]):.3f}"
            lines.append(f"{self.names[i]:<{width}}  {float(self.frequency[i]):6.3f}  {ends}")
        ends = f"{self.jaccard_low:.3f}–{self.jaccard_high:.3f}"
        return "\n".join([*lines, f"{self.replicates} replicates; agreement {self.jaccard:.3f} ({ends})"])

    def plot(self, path: str | Path | None = None, axis: Any = None) -> Any:
        """A bar per input with its interval; returns the matplotlib axis."""
        ends = torch.stack([self.frequency - self.low, self.high - self.frequency]).clamp_min(0.0)
        often = self.frequency > 0.5
        return bars(self.names, self.frequency, ends, often, 0.5, "how often chosen", path, axis)


def agreement(replicates: Any, *, names: Any = None, shape: tuple[int, ...] | None = None) -> Agreement:
    """Selection frequencies over replicates, and how far the replicates agree.

    ``replicates`` are selections (:func:`select`), networks, whose median inputs are taken, or a
    (replicates, inputs) array of what each chose. ``shape`` is that of one input, where networks of
    convolutions need to know it.

    >>> agreement([[True, False, True], [True, False, False]]).frequency.tolist()
    [1.0, 0.0, 0.5]
    """
    chosen, own = _choices(replicates, shape)
    k, width = chosen.shape
    c = chosen.double()
    both = c @ c.T
    either = c.sum(1).unsqueeze(0) + c.sum(1).unsqueeze(1) - both
    pairs = torch.where(either > 0, both / either.clamp_min(1.0), torch.ones_like(both))
    pairs.fill_diagonal_(0.0)
    total = pairs.sum()
    jaccard = float(total / (k * (k - 1)))
    margin = math.inf
    if k > 2:
        without = (total - 2.0 * pairs.sum(1)) / ((k - 1) * (k - 2))
        margin = _NORMAL_QUANTILE * math.sqrt((k - 1) / k * float(((without - without.mean()) ** 2).sum()))
    low, high = wilson(c.sum(0).numpy(), k)
    listed = listed_names(own if names is None else names, width, "agreement")
    ends = max(0.0, jaccard - margin), min(1.0, jaccard + margin)
    return Agreement(listed, c.mean(0), torch.from_numpy(low), torch.from_numpy(high), k, jaccard, *ends)


def _choices(replicates: Any, shape: tuple[int, ...] | None) -> tuple[Tensor, tuple[str, ...] | None]:
    """What each replicate chose, (replicates, inputs), and the names if the selections have them."""
    listed: Any = replicates if isinstance(replicates, Tensor | np.ndarray) else list(replicates)
    names = None
    if len(listed) and isinstance(listed[0], Selection):
        names = listed[0].names
        if any(one.names != names for one in listed):
            raise invalid("replicates", "agreement", "selections among the same inputs", "different names")
        chosen = torch.stack([one.chosen for one in listed])
    elif len(listed) and isinstance(listed[0], nn.Module):
        chosen = torch.stack([median_inputs(one, shape=shape).flatten() for one in listed])
    else:
        rows = listed if isinstance(listed, Tensor) else np.asarray(listed)
        chosen = check_tensor(rows, "replicates", "agreement").cpu()
    if chosen.dim() != 2 or len(chosen) < 2:
        expected = "at least two selections among the same inputs"
        raise invalid("replicates", "agreement", expected, f"shape {tuple(chosen.shape)}")
    if not bool(((chosen == 0) | (chosen == 1)).all()):
        advice = "Compare probabilities with a threshold first, or pass what select returns."
        raise invalid("replicates", "agreement", "true or false", "other values", advice)
    return chosen.bool(), names
