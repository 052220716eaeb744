r"""What columns are worth for the predictions of unseen rows, and their average effects.

Where inclusions are posterior probabilities, they decide which columns are in use, not the worth.

A tempered posterior includes many weights, and a column counts as included as soon as one of its weights is,
so inclusion says little about whether a column helps. The value of a column is measured on rows that the
network did not see. With :math:`x^{\pi c}` the rows with column c shuffled,

.. math:: d_i = -\log p(y_i \mid x_i^{\pi c}) + \log p(y_i \mid x_i)

has mean 0 if the column is independent of the targets and the other columns, whatever the network does with
it. The original rows are then one shuffle among others, so the sum of the :math:`d_i` is compared with its
variation between shuffles (Student's t with one degree of freedom less than shuffles). This is valid even if
a few rows decide, as with a rare class. With very many columns there are too few shuffles of each, and the
sum is compared with its standard error over rows. Columns are selected by the Benjamini-Hochberg procedure at
a false discovery rate of 0.1.

If every network saw every row, the gain on those rows must exceed the cost of the column's weights, their
divergence from the prior at temperature 1. This is the change of the ELBO when the column is left out,

.. math:: \sum_i d_i > \sum_{w \in c} \mathrm{KL}(q(w) \,\|\, p(w)),

with the column set to its average instead of shuffled, averaged over replicates.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import stdtr
from scipy.stats import false_discovery_control
from torch import Tensor, nn

from sparsebnn.estimators.ensemble import linear_layers, seeds, some_rows
from sparsebnn.inference.explanation import slopes_of_draws
from sparsebnn.likelihoods import Gaussian, Likelihood, Ordinal, StudentT
from sparsebnn.nn.networks import InputSkip
from sparsebnn.nn.passes import LocalPass, noise_size
from sparsebnn.posteriors.learned_priors import EmpiricalPrior
from sparsebnn.posteriors.priors import SpikeSlabPrior, gaussian_kl, spike_slab_kl
from sparsebnn.random.noise import NoiseBuffer, NoiseCounter

__all__ = ["LEVEL", "Effects", "Worth", "by_column", "effects", "in_units", "signed", "slopes_of", "worth"]

LEVEL = 0.1
_SHUFFLES = 20
_LEAST_SHUFFLES = 5  # to estimate their variation
_FEWER = _SHUFFLES // _LEAST_SHUFFLES
_DRAWS = 8
_MANY_COLUMNS = 1000  # divided by the number of columns: the most draws, and half of the most shuffles
_ROWS = 300  # per network
_LEAST_ROWS = 20
_ROWS_TOGETHER = 4096
BYTES = 1 << 27  # of the slopes of all draws at a time


@dataclass(frozen=True)
class Worth:
    """The value of each column for the predictions, in nats per row, and which columns are in use."""

    gain: np.ndarray
    used: np.ndarray


@torch.no_grad()
def worth(
    networks: Sequence[nn.Module],
    likelihoods: Sequence[Likelihood],
    data: tuple[Tensor, Tensor, Tensor],
    unseen: Sequence[Tensor] | None,
    column_of: np.ndarray,
    columns: int,
    logit_scale: float | np.ndarray = 1.0,
    seed: int = 0,
    effort: float = 1.0,
) -> Worth:
    """The value of every column.

    ``data`` are encoded inputs, targets and weights; ``unseen`` are the rows that each network did not see;
    ``column_of`` maps inputs to columns. An ``effort`` below 1 reduces the work to about that share: fewer
    shuffles, then fewer networks.
    """
    rows = unseen if unseen is not None and sum(map(len, unseen)) >= _LEAST_ROWS else None
    asked = max(1, round(len(networks) * min(1.0, _FEWER * effort)))
    if rows is not None and sum(map(len, rows[:asked])) < _LEAST_ROWS:
        asked = len(networks)
    many = max(1, _MANY_COLUMNS // max(1, columns))
    evaluators = [
        _Evaluator(
            network, form, data, None if rows is None else rows[k], logit_scale, seed + k, many, effort
        )
        for k, (network, form) in enumerate(zip(networks[:asked], likelihoods))
    ]
    inputs = {int(c): torch.from_numpy(np.flatnonzero(column_of == c)) for c in np.unique(column_of)}
    gain, used = np.zeros(columns), np.zeros(columns, dtype=bool)
    if not inputs:
        return Worth(gain, used)
    places = np.array(list(inputs))
    if rows is not None:
        weight = torch.cat([asker.weight for asker in evaluators])
        tests = []
        for own in inputs.values():
            lost, totals = zip(*(a.shuffled(own) for a in evaluators))
            tests.append(_mean_and_p(torch.cat(lost), weight, torch.stack(totals).sum(0)))
        gain[places] = [mean for mean, _ in tests]
        used[places] = false_discovery_control([p for _, p in tests]) <= LEVEL
        return Worth(gain, used)
    total = float(data[2].sum())
    bought = np.array([[a.averaged(own) for own in inputs.values()] for a in evaluators])
    price = np.array([[a.price(own) for own in inputs.values()] for a in evaluators])
    gain[places] = bought.mean(0)
    used[places] = (total * bought - price).mean(0) > 0.0
    return Worth(gain, used)


def _mean_and_p(lost: Tensor, weight: Tensor, totals: Tensor) -> tuple[float, float]:
    """Weighted mean of the differences, and its p-value.

    ``lost`` is averaged over shuffles, ``totals`` the weighted sum over rows for each of them.
    """
    total = weight.sum()
    mean = float((weight * lost).sum() / total)
    shuffles = len(totals)
    if shuffles >= _LEAST_SHUFFLES:
        # Under the null hypothesis the original rows vary like one more shuffle.
        error = float(totals.std()) * math.sqrt(1.0 + 1.0 / shuffles)
        return mean, 1.0 if error == 0.0 else float(stdtr(shuffles - 1, -float(totals.mean()) / error))
    error = float((weight**2 * (lost - mean) ** 2).sum().sqrt() / total)
    return mean, 1.0 if error == 0.0 else 0.5 * math.erfc(mean / error / math.sqrt(2.0))


class _Rest(nn.Module):
    """A network after its first layer; an input-skip network also takes the inputs, after the outputs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.skips = isinstance(network, InputSkip)
        assert isinstance(network, InputSkip | nn.Sequential)
        if isinstance(network, InputSkip):
            self.modules_after, self.activation = network.layers[1:], network.activation
            self.hidden = linear_layers(network)[0].out_features
        else:
            self.modules_after = nn.ModuleList(list(network)[1:])

    def joined(self, hidden: Tensor, x: Tensor) -> Tensor:
        """What the module takes."""
        return torch.cat([hidden, x], -1) if self.skips else hidden

    def forward(self, joined: Tensor) -> Tensor:
        h, x = (joined[:, : self.hidden], joined[:, self.hidden :]) if self.skips else (joined, joined)
        for module in self.modules_after:
            h = module(torch.cat([self.activation(h), x], -1)) if self.skips else module(h)
        return h


class _Evaluator:
    """One network and the rows to evaluate it on; a column only changes the sums of the first layer."""

    def __init__(
        self,
        network: nn.Module,
        form: Likelihood,
        data: tuple[Tensor, Tensor, Tensor],
        unseen: Tensor | None,
        logit_scale: float | np.ndarray,
        seed: int,
        many: int = _MANY_COLUMNS,
        effort: float = 1.0,
    ) -> None:
        own = copy.deepcopy(network).double().requires_grad_(False)
        self.first, self.rest = linear_layers(own)[0], _Rest(own)
        self.form = copy.deepcopy(form).double().requires_grad_(False)
        self.logit_scale = 1.0 if isinstance(form, Gaussian) else float(logit_scale)
        self.random = torch.Generator().manual_seed(seed)
        x, y, weight = data
        rows = unseen if unseen is not None else torch.arange(len(x))
        rows = rows[torch.from_numpy(some_rows(len(rows), _ROWS))]
        self.x, self.weight = x[rows].double(), weight[rows].double()
        self.y = y[rows].double() if y.is_floating_point() else y[rows]
        least, most = min(_LEAST_SHUFFLES, 2 * many), min(_SHUFFLES, 2 * many)
        self.shuffles = max(least, round(effort * most))
        draws = max(1, round(max(effort, 1.0 / _FEWER) * min(_DRAWS, many)))
        self._prepare(draws=1 if unseen is not None else draws, noisy=unseen is None)

    def _noise(self, count: int, noisy: bool) -> Tensor:
        zeros = torch.zeros(count, dtype=torch.float64)
        return zeros.normal_(generator=self.random) if noisy else zeros

    def _prepare(self, draws: int, noisy: bool) -> None:
        size = noise_size(nn.Sequential(self.first), self.x, LocalPass)
        tape = NoiseBuffer(self._noise(size.normal, False), torch.zeros(size.logistic, dtype=torch.float64))
        moments = self.first.weights.local(tape).with_scale(1)
        self.mean_w, self.var_w = moments.mean, moments.var
        self.family: Any = getattr(self.first.weights, "conditional", self.first.weights)
        bias = self.first.biases
        assert bias is not None
        self.mean = self.x @ self.mean_w.T + bias.mean
        self.var = self.x**2 @ self.var_w.T + bias.std**2
        shape = (draws, *self.mean.shape)
        self.eps = self._noise(math.prod(shape), noisy).reshape(shape)
        self.tapes: list[Callable[[], NoiseBuffer]] = []
        size = noise_size(self.rest, self.rest.joined(self.mean, self.x), LocalPass)
        for _ in range(draws):
            normal = self._noise(size.normal, noisy)
            logistic = torch.zeros(size.logistic, dtype=torch.float64)
            self.tapes.append(lambda n=normal, s=logistic: NoiseBuffer(n, s))  # type: ignore[misc]
        self.with_it = self._nll(self.mean, self.var, self.x)
        # Of each later layer that sees the inputs: its mean weights, and what the inputs add to its sums.
        self.later: list[tuple[Tensor, Tensor]] = []
        for layer in linear_layers(self.rest) if self.rest.skips else ():
            weights = layer.weights.local(NoiseCounter()).with_scale(1).mean
            assert layer.biases is not None
            self.later.append((weights, self.x @ weights[:, -self.x.shape[1] :].T + layer.biases.mean))

    def _nll(self, mean: Tensor, var: Tensor, x: Tensor) -> Tensor:
        """The NLL of every row, averaged over draws with the same noise at each call."""
        std = var.clamp_min(0.0).sqrt()
        total = torch.zeros(len(mean), dtype=torch.float64)
        for d, eps in enumerate(self.eps):
            with LocalPass(self.tapes[d]()):
                outputs = self.rest(self.rest.joined(mean + std * eps, x))
            total += self.form.nll(self.logit_scale * outputs, self.y)
        return total / len(self.eps)

    def _changed(self, inputs: Tensor, new: Tensor) -> Tensor:
        """The NLL with new values of these inputs."""
        old, mean_w, var_w = self.x[:, inputs], self.mean_w[:, inputs], self.var_w[:, inputs]
        x = self.x.index_copy(1, inputs, new)
        return self._nll(self.mean + (new - old) @ mean_w.T, self.var + (new**2 - old**2) @ var_w.T, x)

    def shuffled(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The increase of the NLL by shuffling a column: per row, averaged over shuffles; and per shuffle."""
        own, mean_w, rows = self.x[:, inputs], self.mean_w[:, inputs], len(self.x)
        lost, totals = torch.zeros(rows, dtype=torch.float64), []
        # Several shuffles in one pass: with few rows, the passes take the time.
        together = max(1, _ROWS_TOGETHER // rows)
        for start in range(0, self.shuffles, together):
            count = min(together, self.shuffles - start)
            orders = torch.stack([torch.randperm(rows, generator=self.random) for _ in range(count)])
            moved = own[orders] - own
            outputs = self._moved(self.mean + moved @ mean_w.T, inputs, moved).flatten(0, 1)
            nll = self.form.nll(self.logit_scale * outputs, self.y.repeat(count, *[1] * (self.y.dim() - 1)))
            each = nll.reshape(count, rows) - self.with_it
            lost += each.sum(0)
            totals.append((each * self.weight).sum(1))
        return lost / self.shuffles, torch.cat(totals)

    def _moved(self, hidden: Tensor, inputs: Tensor, moved: Tensor) -> Tensor:
        """The outputs without noise, from sums of the first layer, ``(shuffles, rows, units)``.

        Later layers of an input-skip network see these inputs ``moved`` by so much.
        """
        if not self.rest.skips:
            with LocalPass(NoiseCounter()):  # whose noise is 0
                found: Tensor = self.rest(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
            return found
        for weights, added in self.later:
            units = hidden.shape[-1]
            added = added + moved @ weights[:, units + inputs].T
            hidden = self.rest.activation(hidden) @ weights[:, :units].T + added
        return hidden

    def averaged(self, inputs: Tensor) -> float:
        """The mean increase of the NLL by setting a column to its average."""
        own = self.x[:, inputs]
        average = (self.weight[:, None] * own).sum(0) / self.weight.sum()
        lost = self._changed(inputs, average.expand_as(own)) - self.with_it
        return float((self.weight * lost).sum() / self.weight.sum())

    def price(self, inputs: Tensor) -> float:
        """The KL divergence of a column's weights from their prior, in nats."""
        total = _kl(self.family, self.mean_w, inputs)
        if self.rest.skips:
            for layer in linear_layers(self.rest):
                own = inputs + layer.in_features - self.x.shape[1]
                family = layer.weights
                total += _kl(family, family.inclusion_prob() * family.posterior_mean(), own)
        return total


def _kl(family: Any, mean_w: Tensor, inputs: Tensor) -> float:
    """The divergence of the weights of these inputs, whose means with inclusions averaged over are given."""
    std, inclusion = family.std[:, inputs], family.inclusion_prob()[:, inputs]
    # A flow scales the means; the moments include the factor.
    mean = torch.where(inclusion > 0.0, mean_w[:, inputs] / inclusion.clamp_min(1e-300), 0.0)
    prior, error = family.prior, (mean - family.prior.mean) ** 2
    if not isinstance(prior, SpikeSlabPrior):
        return float(prior.slab_kl(std, error).sum())
    slab, rate = (
        family.prior_values() if isinstance(prior, EmpiricalPrior) else (prior.std, prior.inclusion_prob)
    )
    logit = family.inclusion_logit[:, inputs]
    each = spike_slab_kl(gaussian_kl(std, error, slab), logit, inclusion, torch.logit(rate))
    return float(each.sum())


# -- average effects --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effects:
    """Each column's average effect over rows, with its 95% interval over draws.

    For one output, ``value`` is the mean slope per standard deviation of the column, and ``direction`` its
    sign, or "mixed" if the interval contains 0. For several outputs, and for columns with several inputs
    (:func:`signed`), it is the mean absolute contribution and has no direction.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    direction: tuple[str | None, ...]

    def record(self) -> dict[str, Any]:
        ends = {name: getattr(self, name).tolist() for name in ("value", "low", "high")}
        return {**ends, "direction": list(self.direction)}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Effects:
        value, low, high = (np.array(record[name], dtype=np.float64) for name in ("value", "low", "high"))
        return cls(value, low, high, tuple(record["direction"]))


def slopes_of(estimator: Any, x: Tensor, n_draws: int, model: str = "average") -> tuple[Tensor, Tensor]:
    """Outputs ``(draws, rows, outputs)`` and slopes ``(draws, rows, inputs, outputs)`` of all draws.

    With as many draws as a prediction has, they are the draws of the prediction.
    """
    networks = estimator.networks_
    each = -(-n_draws // len(networks))
    return slopes_of_draws(networks, x, each, model, seeds(estimator._seed, len(networks)))


def in_units(estimator: Any, values: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Regression: means only, in units of the target."""
    form = estimator._likelihoods[0]
    if isinstance(form, Ordinal):  # log odds of a class after the first
        first = torch.stack([each.thresholds[0] for each in estimator._likelihoods]).detach().double()
        own = first.repeat_interleave(len(values) // len(first))
        return estimator.logit_scale_ * values - own[:, None, None], estimator.logit_scale_ * slopes
    if not isinstance(form, Gaussian | StudentT):
        return estimator.logit_scale_ * values, estimator.logit_scale_ * slopes
    scale, shift = torch.from_numpy(estimator._y_std), torch.from_numpy(estimator._y_mean)
    count = form.n_targets
    return values[..., :count] * scale + shift, slopes[..., :count] * scale


def by_column(estimator: Any, by_input: Tensor) -> Tensor:
    """Sums over the inputs of a column, ``(draws, rows, inputs, outputs)`` to columns."""
    columns = len(estimator._encoder.columns)
    index = torch.from_numpy(estimator._encoder.column_of)
    found = torch.zeros((*by_input.shape[:2], columns, by_input.shape[3]), dtype=by_input.dtype)
    return found.index_add_(2, index, by_input[:, :, : len(index)])


def signed(estimator: Any) -> np.ndarray:
    """Which columns have an effect with a sign: one output, and one input not counting that for gaps."""
    single = len(estimator._output_names()) == 1
    columns = estimator._encoder.columns
    return np.array([single and not c.codes and len(c.inputs) - c.gaps == 1 for c in columns])


def effects(estimator: Any, x: np.ndarray, n_draws: int) -> Effects:
    """Average effects over encoded rows; see :class:`Effects`."""
    rows = torch.from_numpy(x)
    budget = BYTES // (8 * n_draws * x.shape[1] * max(1, len(estimator._output_names())) * 4)
    rows = rows[some_rows(len(rows), max(2, budget))]
    _, slopes = in_units(estimator, *slopes_of(estimator, rows, n_draws))
    columns = estimator._encoder.columns
    size = by_column(estimator, slopes * rows[None, :, :, None]).abs().mean((1, 3))
    by_slope = signed(estimator)
    # The first input of the column; a second one only marks gaps.
    first = np.searchsorted(estimator._encoder.column_of, np.arange(len(columns)))
    slope = slopes[:, :, np.minimum(first, slopes.shape[2] - 1), 0].mean(1)
    each = torch.where(torch.from_numpy(by_slope), slope, size)
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low, high = torch.quantile(each, ends, dim=0).numpy()
    direction = [_direction(float(a), float(b)) if s else None for a, b, s in zip(low, high, by_slope)]
    return Effects(each.mean(0).numpy(), low, high, tuple(direction))


def _direction(low: float, high: float) -> str | None:
    if low == high == 0.0:
        return None
    return "+" if low > 0.0 else "-" if high < 0.0 else "mixed"
