r"""How sure predictions are, corrected by numbers that rows held out from training choose.

:func:`correction` corrects averaged probabilities by two numbers; :func:`logit_scale` finds one number for
the outputs of every draw, as the estimators use it.

.. math:: q_c = (1 - \varepsilon)\, \frac{p_c^{\,s}}{\sum_d p_d^{\,s}} + \frac{\varepsilon}{C}

The logit_scale s < 1 makes all predictions less sure, s > 1 surer (it is the inverse of what is called
temperature scaling, for probabilities that are already averaged over draws). The uniform_mix ε is the share
of rows that are not what they seem: without it a few confident errors would decide s for all the others. The
order of the classes stays, so no label changes but by rounding. A network is usually surer of rows it was
trained on, so both must come from others, and from averages over as many draws as are to be corrected.

Few rows tell little: forty that are all right would have predictions as sure as can be. So both numbers have
a prior, log s ~ N(0, 1/4) and a density of ε that falls as 1 − ε, of which some hundred rows leave little.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsebnn.checks import check_tensor, invalid
from sparsebnn.inference.metrics import checked, probabilities
from sparsebnn.likelihoods import Categorical, Gaussian, Likelihood

__all__ = ["CentralLevels", "Correction", "HeldOut", "Joined", "correction", "logit_scale"]

_LOG_SCALES = np.linspace(math.log(0.25), math.log(16.0), 13).tolist()
_NEWTON, _STEEPEST = 20, 30.0
_FINE = 1e-2  # how exactly the logarithm of the scale is found
_LEAST, _MOST, _GRID = 1 / 64, 64.0, 25
_TOLERANCE, _HALVINGS, _NOTHING = 1e-6, 40, 1e-9
# More would leave nothing of the predictions, not even their order.
_MOST_DOUBT = 0.999
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
# Of the prior: how far log s is from 0, and how many rows say that rows are what they seem.
_SPREAD, _SEEMLY = 0.5, 1.0


@dataclass(frozen=True)
class Correction:
    """Sharpness and uniform_mix; called with probabilities, it corrects them.

    >>> Correction(logit_scale=0.5)(torch.tensor([[0.8, 0.2]])).round(decimals=3)
    tensor([[0.6670, 0.3330]])
    >>> Correction(uniform_mix=0.1)(torch.tensor([[1.0, 0.0]])).round(decimals=3)
    tensor([[0.9500, 0.0500]])
    """

    logit_scale: float = 1.0
    uniform_mix: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.logit_scale < float("inf"):
            raise invalid("logit_scale", "Correction", "greater than 0", self.logit_scale)
        if not 0.0 <= self.uniform_mix < 1.0:
            raise invalid(
                "uniform_mix", "Correction", "a share of the rows, from 0 to less than 1", self.uniform_mix
            )

    def __call__(self, probs: Tensor) -> Tensor:
        p = probabilities(check_tensor(probs, "probs", "Correction"), "Correction")
        sharp = torch.softmax(self.logit_scale * _log(p), -1)
        return ((1.0 - self.uniform_mix) * sharp + self.uniform_mix / p.shape[-1]).to(p.dtype)


def correction(probs: Tensor, labels: Tensor) -> Correction:
    """The correction that labels of held-out rows make likeliest; the logit_scale from 1/64 to 64.

    For a given logit_scale the log posterior is concave in the uniform_mix; bisection finds its maximum.
    What is left is a function of the logit_scale alone, minimized on a grid and then by golden section. What
    gains nothing is left out.

    >>> p = torch.tensor([[0.99, 0.01]] * 1000)
    >>> labels = torch.tensor([0] * 800 + [1] * 200)  # right in eight of ten: far too sure
    >>> correction(p, labels)(p)[0].round(decimals=2)
    tensor([0.8000, 0.2000])
    """
    p, y = checked(probs, labels, "correction")
    # Thousands of small sums, each of which is waited for: no work for a GPU.
    log_p, y, classes = _log(p.cpu()), y.cpu(), p.shape[-1]

    def of_labels(log_s: float) -> Tensor:
        return torch.softmax(math.exp(log_s) * log_p, -1).gather(1, y[:, None])[:, 0]

    def loss(log_s: float, uniform_mix: float | None = None) -> float:
        own = of_labels(log_s)
        uniform_mix = _doubt(own, classes) if uniform_mix is None else uniform_mix
        against = 0.5 * (log_s / _SPREAD) ** 2 - _SEEMLY * math.log1p(-uniform_mix)
        return (against - float(torch.log((1.0 - uniform_mix) * own + uniform_mix / classes).sum())) / len(y)

    low, high = math.log(_LEAST), math.log(_MOST)
    plain = _golden(lambda log_s: loss(log_s, 0.0), low, high)
    grid = [low + (high - low) * i / (_GRID - 1) for i in range(_GRID)]
    losses = [loss(log_s) for log_s in grid]
    best = losses.index(min(losses))
    log_s = _golden(loss, grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)])
    # The simplest that is as good.
    lowest = min(loss(log_s), loss(plain, 0.0)) + _NOTHING
    if loss(0.0, 0.0) <= lowest:
        return Correction()
    if loss(plain, 0.0) <= lowest:
        return Correction(math.exp(plain))
    return Correction(math.exp(log_s), _doubt(of_labels(log_s), classes))


def _doubt(own: Tensor, classes: int) -> float:
    """The likeliest share of rows whose labels are anybody's guess, given the others' probabilities."""
    gain = 1.0 / classes - own

    def slope(uniform_mix: float) -> float:
        return float((gain / (own + uniform_mix * gain)).sum()) - _SEEMLY / (1.0 - uniform_mix)

    low, high = 0.0, _MOST_DOUBT
    if slope(low) <= 0.0:
        return 0.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) > 0.0 else (low, middle)
    return 0.5 * (low + high)


def _golden(loss: Callable[[float], float], low: float, high: float, tolerance: float = _TOLERANCE) -> float:
    """The lowest point of a function that falls and then rises."""
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    found = [loss(inner[0]), loss(inner[1])]
    while high - low > tolerance:
        if found[0] <= found[1]:
            high, inner = inner[1], [inner[1] - _GOLDEN * (inner[1] - low), inner[0]]
            found = [loss(inner[0]), found[0]]
        else:
            low, inner = inner[0], [inner[1], inner[0] + _GOLDEN * (high - inner[0])]
            found = [found[1], loss(inner[1])]
    return 0.5 * (low + high)


def _log(p: Tensor) -> Tensor:
    return torch.log(p.double().clamp_min(1e-12))


def logit_scale(
    outputs: Tensor, y: Tensor, weight: Tensor, likelihoods: Sequence[Likelihood], own: Tensor
) -> float:
    r"""The scale of outputs ``(draws, rows, …)`` that makes the targets of held-out rows likeliest,

    .. math::
        s = \arg\min_s \; \tfrac18 \log^2 s
        - \sum_i w_i \log \frac1D \sum_d p\big(y_i \mid s \cdot f_d(x_i)\big)

    for classification; for regression s multiplies the standard deviation of the noise. The first term, a
    log-normal prior, keeps s finite when every row is predicted correctly. Row i has the likelihood
    ``likelihoods[own[i]]``, or in draw d ``likelihoods[own[d, i]]``.
    """
    held = HeldOut(outputs, y, weight, likelihoods, own.expand(outputs.shape[:2]))
    return held.fine(held.coarse()[1])[0]


class HeldOut:
    """Predictions of held-out rows; called with the logarithm of a scale, it gives their loss.

    The loss is the negative log of the probability averaged over draws, summed over rows.
    """

    def __init__(
        self, outputs: Tensor, y: Tensor, weight: Tensor, likelihoods: Sequence[Likelihood], own: Tensor
    ) -> None:
        self.form, self.outputs, self.weight = likelihoods[0], outputs, weight
        self.std: Tensor | None = None
        self.found: dict[float, Tensor] = {}  # losses of rows by the logarithm of the scale
        self.groups: list[tuple[Likelihood, Any, Tensor, Tensor]] = []
        if isinstance(self.form, Gaussian):
            self.std = torch.ones_like(outputs[..., : self.form.n_targets])
            for place in own.unique().tolist():
                form = likelihoods[place]
                assert isinstance(form, Gaussian)
                with torch.no_grad():
                    std = form.mean_and_std(outputs.float())[1].double()
                self.std = torch.where((own == place).unsqueeze(-1), std, self.std)
            self.y = y.double()
        else:
            self.y = y.long() if isinstance(self.form, Categorical) else y.to(outputs.dtype)
            if not self.form.state_dict():  # nothing in which the likelihoods could differ
                own = torch.zeros_like(own)
            targets = self.y.expand(len(outputs), *self.y.shape)
            for place in own.unique().tolist():
                mine = torch.nonzero(own == place, as_tuple=True)
                self.groups.append((likelihoods[place], mine, outputs[mine], targets[mine]))

    def __call__(self, log_s: float) -> float:
        return float((self.weight * self.by_row(log_s)).sum())

    def by_row(self, log_s: float) -> Tensor:
        """The loss of every row."""
        if log_s not in self.found:
            self.found[log_s] = self._by_row(log_s)
        return self.found[log_s]

    @torch.no_grad()
    def _by_row(self, log_s: float) -> Tensor:
        s = math.exp(log_s)
        if self.std is not None:
            error = (self.y - self.outputs[..., : self.y.shape[-1]]) / (s * self.std)
            log = (-0.5 * error**2 - torch.log(s * self.std)).sum(-1)
        else:
            log = torch.empty(self.outputs.shape[:2], dtype=self.outputs.dtype)
            for form, mine, outputs, targets in self.groups:
                log[mine] = -form.nll(s * outputs, targets)
        return math.log(len(log)) - torch.logsumexp(log, 0)

    def _penalized(self, log_s: float) -> float:
        return self(log_s) + log_s**2 / 8.0

    def coarse(self) -> tuple[float, float]:
        """The lowest loss, with its penalty, on a grid of scales; and where it is."""
        return min((self._penalized(log_s), log_s) for log_s in _LOG_SCALES)

    def fine(self, log_s: float) -> tuple[float, CentralLevels]:
        """The scale near a point of the grid, and the correction of central intervals there."""
        step = _LOG_SCALES[1] - _LOG_SCALES[0]
        scale = math.exp(_golden(self._penalized, log_s - step, log_s + step, tolerance=_FINE))
        if self.std is None:
            return scale, CentralLevels()
        return scale, CentralLevels.of(self.pit(scale), self.weight)

    def mean(self) -> Tensor:
        """The average over draws of the predicted means, ``(rows, targets)`` (regression)."""
        return self.outputs[..., : self.y.shape[-1]].mean(0)

    def squared_errors(self) -> Tensor:
        """Of the average prediction of every row, summed over targets (regression)."""
        return ((self.y - self.mean()) ** 2).sum(-1)

    def targets(self) -> list[HeldOut]:
        """The same rows for each target of a regression alone; itself if there is one."""
        if self.std is None or self.y.shape[-1] == 1:
            return [self]
        found = []
        for place in range(self.y.shape[-1]):
            one, at = copy.copy(self), slice(place, place + 1)
            one.outputs, one.std, one.y, one.found = (
                self.outputs[..., at],
                self.std[..., at],
                self.y[:, at],
                {},
            )
            found.append(one)
        return found

    def pit(self, s: float) -> Tensor:
        """The probability of a smaller target than the observed one, for every row (regression)."""
        assert self.std is not None
        error = (self.y - self.outputs[..., : self.y.shape[-1]]) / (s * self.std)
        return torch.special.ndtr(error).mean(0)


class Joined(HeldOut):
    """The same rows as predicted by all draws of several others, which have equally many draws each."""

    def __init__(self, parts: Sequence[HeldOut]) -> None:
        self.parts, self.weight, self.std, self.found = parts, parts[0].weight, parts[0].std, {}
        self.y = parts[0].y

    def _by_row(self, log_s: float) -> Tensor:
        log = torch.stack([-part.by_row(log_s) for part in self.parts])
        return math.log(len(log)) - torch.logsumexp(log, 0)

    def mean(self) -> Tensor:
        return torch.stack([part.mean() for part in self.parts]).mean(0)

    def targets(self) -> list[HeldOut]:
        return [Joined(parts) for parts in zip(*(part.targets() for part in self.parts))]

    def pit(self, s: float) -> Tensor:
        return torch.stack([part.pit(s) for part in self.parts]).mean(0)


@dataclass(frozen=True)
class CentralLevels:
    r"""Corrects how much a central interval holds, without moving its middle.

    Errors with heavier tails than the noise leave too many rows inside narrow intervals and too few inside
    wide ones, whatever the scale. To hold the share c, take the interval of level

    .. math:: \operatorname{logit} c' = \text{shift} + \text{stretch} \cdot \operatorname{logit} c .

    >>> CentralLevels()(0.95)
    0.95
    """

    shift: float = 0.0
    stretch: float = 1.0

    def __call__(self, level: float) -> float:
        """The level of the quantile to take for the quantile of ``level``."""
        central = abs(2.0 * level - 1.0)
        if (self.shift, self.stretch) == (0.0, 1.0) or central == 0.0:
            return level
        logit = self.shift + self.stretch * math.log(central / (1.0 - central))
        changed = 1.0 / (1.0 + math.exp(-min(_STEEPEST, max(-_STEEPEST, logit))))
        return 0.5 + math.copysign(0.5 * changed, level - 0.5)

    @classmethod
    def of(cls, pit: Tensor, weight: Tensor) -> CentralLevels:
        """The correction under which the probability integral transforms of held-out rows are uniform.

        The logit of their distance from the middle is then logistic. Newton's method finds its place and
        scale, with normal priors of standard deviation 1/2 on the shift and 1/4 on the logarithm of the
        stretch.
        """
        v = (2.0 * pit.double() - 1.0).abs().clamp(1e-6, 1.0 - 1e-6)
        z, w = torch.logit(v).flatten(), weight.double()[:, None].expand_as(v).flatten()
        w = w / max(1, v.shape[1])  # the targets of a row are one observation
        found = torch.zeros(2, dtype=torch.float64)

        def loss(at: Tensor) -> Tensor:
            t = (z - at[0]) * torch.exp(-at[1])
            each = 2.0 * torch.nn.functional.softplus(-t) + t + at[1]
            return (w * each).sum() + 2.0 * at[0] ** 2 + 8.0 * at[1] ** 2

        for _ in range(_NEWTON):
            leaf = found.clone().requires_grad_()
            with torch.enable_grad():
                value = loss(leaf)
                (slope,) = torch.autograd.grad(value, leaf, create_graph=True)
                rows = [torch.autograd.grad(each, leaf, retain_graph=True)[0] for each in slope]
            curvature = torch.stack(rows).detach() + 1e-9 * torch.eye(2, dtype=torch.float64)
            step, before = torch.linalg.solve(curvature, slope.detach()), float(value.detach())
            size = 1.0
            while size > 1e-4 and float(loss(found - size * step)) > before:
                size /= 2.0
            found = found - size * step
        return cls(float(found[0]), math.exp(float(found[1])))
