r"""Times until an event: piecewise-exponential and discrete-time hazards, and Cox's partial likelihood.

Targets have two columns, the time and whether the event happened then (1) or the row was censored (0); a
third column is the time of entry, for rows that are observed only from then on (left truncation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import check_choice, check_count, check_finite, invalid
from sparsebnn.likelihoods.base import Likelihood

__all__ = ["Cox", "DiscreteHazard", "PiecewiseExponential", "ProportionalHazards", "SurvivalLikelihood"]

_MOST = 25.0  # of a log hazard, which keeps the loss finite while training goes astray


class SurvivalLikelihood(Likelihood):
    """Base of the likelihoods for times: ``survival`` is the observation model.

    ``truncation`` says whether times of entry are allowed.
    """

    truncation = True

    def prepare(self, y: Tensor) -> Tensor:
        owner = type(self).__name__
        if y.dim() != 2 or y.shape[1] not in (2, 3):
            expected = "of shape (rows, 2): times and events (with times of entry: (rows, 3))"
            raise invalid("y", owner, expected, f"shape {tuple(y.shape)}")
        real = y if y.is_floating_point() else y.to(torch.get_default_dtype())
        check_finite(real, "y", owner)
        time, event = real[:, 0], real[:, 1]
        if not bool((time > 0).all()):
            advice = "Drop those rows, or give them half of the smallest time."
            raise invalid("time", owner, "positive", float(time.min()), advice)
        wrong = (event != 0) & (event != 1)
        if bool(wrong.any()):
            raise invalid("event", owner, "0 (censored) or 1 (event)", float(event[wrong][0]))
        entry = real[:, 2] if y.shape[1] == 3 else torch.zeros_like(time)
        wrong = (entry < 0) | (entry >= time)
        if bool(wrong.any()):
            got = f"{float(entry[wrong][0]):g} with the time {float(time[wrong][0]):g}"
            raise invalid("entry", owner, "from 0 to before the time", got)
        if not self.truncation and bool((entry > 0).any()):
            raise invalid("entry", owner, "0 (no left truncation)", float(entry.max()))
        return torch.stack([time, event, entry], dim=1)

    def survival(self, outputs: Tensor, times: Tensor) -> Tensor:
        """P(time > t) of every row at these ``times``, ``(…, times)``."""
        return torch.exp(-self.cumulative_hazard(outputs, times))

    def cumulative_hazard(self, outputs: Tensor, times: Tensor) -> Tensor:
        """−log P(time > t), ``(…, times)``."""
        raise NotImplementedError

    def risk(self, outputs: Tensor) -> Tensor:
        """A number that orders rows by risk, ``(…,)``: the log cumulative hazard at the last finite time."""
        raise NotImplementedError


class _Intervals(SurvivalLikelihood):
    """Hazards that are constant within intervals of time.

    ``cuts`` are the times between intervals. ``proportional=True``: one output, which is added to the learned
    ``baseline`` of every interval. Otherwise one output per interval is added.
    """

    cut: Tensor
    beyond = True  # whether an interval follows the last cut

    def __init__(self, cuts: Sequence[float], proportional: bool = True) -> None:
        super().__init__()
        owner = type(self).__name__
        self.cuts, self.proportional = [float(c) for c in cuts], bool(proportional)
        rising = all(a < b < math.inf for a, b in zip([0.0, *self.cuts], self.cuts))
        if not rising or not (self.cuts or self.beyond):
            raise invalid("cuts", owner, "positive times in rising order", self.cuts)
        self.register_buffer("cut", torch.tensor(self.cuts, dtype=torch.get_default_dtype()))
        self.n_intervals = len(self.cuts) + self.beyond
        self.baseline = nn.Parameter(torch.zeros(self.n_intervals))

    def n_outputs(self, y: Tensor) -> int:
        return 1 if self.proportional else self.n_intervals

    def _ends(self) -> tuple[Tensor, Tensor]:
        """The beginning and the end of every interval."""
        start, end = self.cut.new_zeros(1), self.cut.new_full((1,), math.inf)
        inner = self.cut if self.beyond else self.cut[:-1]
        return torch.cat([start, inner]), torch.cat([self.cut, end]) if self.beyond else self.cut

    def _logits(self, outputs: Tensor) -> Tensor:
        """Baseline plus output, ``(…, intervals)``."""
        return (self.baseline + outputs).clamp_max(_MOST)

    def risk(self, outputs: Tensor) -> Tensor:
        if self.proportional:
            return outputs[..., 0]
        last = self.cut[-1:] if self.cuts else self.cut.new_ones(1)
        return torch.log(self.cumulative_hazard(outputs, last).squeeze(-1).clamp_min(1e-30))


class PiecewiseExponential(_Intervals):
    r"""A hazard that is constant between ``cuts``, and after the last of them.

    .. math:: h(t) = \exp(b_k + f_k(x)), \qquad
        -\log p = \int_{\text{entry}}^{\text{time}} h(s)\,ds - \text{event} \cdot \log h(\text{time})

    A row's loss depends on this row alone, so batches may be small. See :meth:`of` for cuts at quantiles of
    the times of events.

    >>> form = PiecewiseExponential([1.0])
    >>> form.survival(torch.zeros(1, 1), torch.tensor([1.0, 2.0])).detach()
    tensor([[0.3679, 0.1353]])
    """

    @classmethod
    def of(cls, y: Tensor, intervals: int = 10, proportional: bool = True) -> PiecewiseExponential:
        """With cuts at quantiles of the times of events, so that each interval has about as many."""
        return cls(event_quantiles(y, intervals)[:-1], proportional)

    def _time_in(self, start: Tensor, end: Tensor) -> Tensor:
        """Time from ``start`` to ``end`` (…, 1) that is spent in each interval."""
        low, high = self._ends()
        return (torch.minimum(end, high) - torch.maximum(start, low)).clamp_min(0.0)

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        time, event, entry = y[..., :1], y[..., 1], y[..., 2:3]
        log_hazard = self._logits(outputs)
        low, high = self._ends()
        own = (time > low) & (time <= high)
        at_event = torch.where(own, log_hazard, 0.0).sum(-1)
        return (torch.exp(log_hazard) * self._time_in(entry, time)).sum(-1) - event * at_event

    def cumulative_hazard(self, outputs: Tensor, times: Tensor) -> Tensor:
        spent = self._time_in(torch.zeros_like(times)[:, None], times[:, None])
        return torch.exp(self._logits(outputs)).expand(*outputs.shape[:-1], -1) @ spent.to(outputs.dtype).T

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        spent = self._time_in(torch.zeros_like(y), y)
        return -torch.expm1(-(torch.exp(self._logits(outputs)) * spent).sum(-1, keepdim=True))

    def mean(self, outputs: Tensor) -> Tensor:
        """The expected time, with the last hazard after the last cut."""
        hazard = torch.exp(self._logits(outputs))
        low, high = self._ends()
        start = self.survival(outputs, low)
        leaving = -torch.expm1(-hazard * (high - low))
        return (start * leaving / hazard).sum(-1, keepdim=True)

    def quantile(self, outputs: Tensor, level: Tensor) -> Tensor:
        wanted = -torch.log1p(-level)
        hazard, (low, _) = torch.exp(self._logits(outputs)), self._ends()
        before = self.cumulative_hazard(outputs, low)
        place = ((wanted >= before).sum(-1, keepdim=True) - 1).clamp_min(0)
        shape = (*place.shape[:-1], self.n_intervals)
        found = [torch.gather(v.expand(shape), -1, place) for v in (low.to(hazard.dtype), before, hazard)]
        return found[0] + (wanted - found[1]) / found[2]


class DiscreteHazard(_Intervals):
    r"""Discrete times: the probability of an event in interval k given survival until then.

    .. math:: h_k = \mathrm{sigmoid}(b_k + f_k(x)), \qquad S(c_k) = \prod_{j \le k} (1 - h_j)

    ``cuts`` are the ends of the intervals, and events are recorded at the end of theirs. Rows that are
    censored within an interval count for the intervals before it; rows that enter within an interval count
    for all of it. Times after the last cut are censored there.
    """

    beyond = False

    @classmethod
    def of(cls, y: Tensor, intervals: int = 10, proportional: bool = True) -> DiscreteHazard:
        """With cuts at quantiles of the times of events."""
        return cls(event_quantiles(y, intervals), proportional)

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        time, event, entry = y[..., :1], y[..., 1:2], y[..., 2:3]
        logits = self._logits(outputs)
        low, high = self._ends()
        own = (time > low) & (time <= high) & (event == 1)
        survived = (high <= time) & (high > entry) & ~own
        terms = torch.where(own, F.logsigmoid(logits), torch.where(survived, F.logsigmoid(-logits), 0.0))
        return -terms.sum(-1)

    def cumulative_hazard(self, outputs: Tensor, times: Tensor) -> Tensor:
        passed = (self._cuts_like(times) <= times[:, None]).to(outputs.dtype)
        return -F.logsigmoid(-self._logits(outputs)).expand(*outputs.shape[:-1], -1) @ passed.T

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        passed = torch.where(self._cuts_like(y) <= y, F.logsigmoid(-self._logits(outputs)), 0.0)
        return -torch.expm1(passed.sum(-1, keepdim=True))

    def quantile(self, outputs: Tensor, level: Tensor) -> Tensor:
        """The end of the interval in which the probability of an event reaches ``level``, or infinity."""
        cuts = self._cuts_like(self.cut)
        reached = 1.0 - self.survival(outputs, cuts)
        place = (reached < level).sum(-1)
        return torch.cat([cuts, cuts.new_full((1,), math.inf)])[place].unsqueeze(-1)

    def _cuts_like(self, times: Tensor) -> Tensor:
        return _like(torch.tensor(self.cuts, dtype=torch.float64), times)


class ProportionalHazards(SurvivalLikelihood):
    r"""A Cox model with its baseline: the hazard jumps at ``n_times`` times, and x multiplies the jumps.

    .. math:: S(t) = \exp\Big(-e^{f(x)} \sum_{t_k \le t} h_k\Big)

    :meth:`Cox.with_baseline` estimates the jumps.
    """

    times: Tensor
    hazards: Tensor

    def __init__(self, n_times: int) -> None:
        super().__init__()
        self.n_times = check_count(n_times, "n_times", "ProportionalHazards")
        self.register_buffer("times", torch.arange(1.0, n_times + 1.0, dtype=torch.float64))
        self.register_buffer("hazards", torch.full((n_times,), 1.0 / n_times, dtype=torch.float64))

    def n_outputs(self, y: Tensor) -> int:
        return 1

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        """As a likelihood with known jumps; events at other times count as at the last jump before."""
        time, event, entry = y[..., 0], y[..., 1], y[..., 2]
        total = torch.cat([self.hazards.new_zeros(1), self.hazards.cumsum(0)]).to(outputs.dtype)
        places = [torch.searchsorted(_like(self.times, t), t.contiguous(), right=True) for t in (time, entry)]
        jump = torch.log(self.hazards)[(places[0] - 1).clamp_min(0)].to(outputs.dtype)
        score = outputs[..., 0].clamp_max(_MOST)
        return torch.exp(score) * (total[places[0]] - total[places[1]]) - event * (score + jump)

    def cumulative_hazard(self, outputs: Tensor, times: Tensor) -> Tensor:
        passed = (_like(self.times, times) <= times[:, None]).to(self.hazards)
        return torch.exp(outputs.clamp_max(_MOST)) * (passed @ self.hazards).to(outputs.dtype)

    def risk(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0]

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        total = torch.cat([self.hazards.new_zeros(1), self.hazards.cumsum(0)])
        passed = total[torch.searchsorted(_like(self.times, y), y.contiguous(), right=True)]
        return -torch.expm1(-torch.exp(outputs.clamp_max(_MOST)) * passed)

    def quantile(self, outputs: Tensor, level: Tensor) -> Tensor:
        """The jump at which the probability of an event reaches ``level``, or infinity."""
        reached = 1.0 - self.survival(outputs, self.times)
        place = (reached < level - 1e-12).sum(-1)
        return torch.cat([self.times, self.times.new_full((1,), math.inf)])[place].unsqueeze(-1)


class Cox(SurvivalLikelihood):
    r"""Cox's partial likelihood; the output is the logarithm of the relative risk.

    .. math:: -\log L = -\sum_{i: \text{event}} \Big[ f(x_i) - \log \sum_{j: t_j \ge t_i} e^{f(x_j)} \Big]

    ``ties="efron"`` or ``"breslow"`` for events at the same time. The rows of a batch are compared with each
    other, so use ``batch_size=len(x)``: with smaller batches the objective is the partial likelihood of
    random subsets of rows, whose risk sets are smaller. Left truncation is not supported. For survival
    functions call :meth:`with_baseline` after training.
    """

    truncation = False

    def __init__(self, ties: str = "efron") -> None:
        super().__init__()
        self.ties = check_choice(ties, ("efron", "breslow"), "ties", "Cox")

    def n_outputs(self, y: Tensor) -> int:
        return 1

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.weighted_nll(outputs, y, torch.ones_like(y[..., 0]))

    def weighted_nll(self, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        # Sums of exponentials need double precision; they are small next to the network.
        score, w = outputs[..., 0].double(), weight.double()
        order = torch.argsort(-y[..., 0], dim=-1, stable=True)
        time, event, f, w = (v.gather(-1, order) for v in (y[..., 0], y[..., 1], score, w))
        top = torch.where(w > 0, f, -math.inf).amax(-1, keepdim=True).detach()
        risk = w * torch.exp((f - top).clamp_max(0.0))
        happened = (event == 1) & (w > 0)
        at_risk, tied, count, rank, mean_weight = _tied(time, risk, w, happened)
        if self.ties == "breslow":
            terms = w * (f - top.expand_as(f) - torch.log(at_risk.clamp_min(1e-300)))
        else:
            rest = at_risk - rank / count * tied
            own = w * (f - top.expand_as(f))
            terms = own - mean_weight * torch.log(rest.clamp_min(1e-300))
        terms = torch.where(happened, -terms, 0.0)
        return torch.zeros_like(terms).scatter(-1, order, terms).to(outputs.dtype)

    def risk(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0]

    def cumulative_hazard(self, outputs: Tensor, times: Tensor) -> Tensor:
        advice = "Use Cox.with_baseline(risk, y), which estimates one from the training rows."
        raise invalid("likelihood", "predict", "one with a baseline hazard", "Cox", advice)

    @torch.no_grad()
    def with_baseline(self, risk: Tensor, y: Tensor, weight: Tensor | None = None) -> ProportionalHazards:
        """Breslow's estimate of the baseline: at each time, events divided by the sum of the risks.

        ``risk`` are positive numbers, one per training row: exp(f(x)), or its mean over draws.
        """
        time, event = y[:, 0].double(), y[:, 1].double()
        w = torch.ones_like(time) if weight is None else weight.double()
        times, place = torch.unique(time[(event == 1) & (w > 0)], return_inverse=True)
        if not len(times):
            raise invalid("y", "Cox", "a table with at least one event", "only censored rows")
        events = torch.zeros_like(times).index_add_(0, place, w[(event == 1) & (w > 0)])
        ordered, order = time.sort()
        left = (w * risk.double())[order].flip(0).cumsum(0).flip(0)
        found = ProportionalHazards(len(times))
        found.times, found.hazards = times, events / left[torch.searchsorted(ordered, times)]
        return found


def _like(jumps: Tensor, times: Tensor) -> Tensor:
    """Times of jumps in the precision of ``times``: a time rounded to single precision still has its jump."""
    return jumps.to(times) if times.is_floating_point() else jumps.to(times.device)


def _tied(time: Tensor, risk: Tensor, w: Tensor, happened: Tensor) -> tuple[Tensor, ...]:
    """For rows in falling order of time: sums over the risk set and over the events of the same time.

    Returns the risk set's sum, the tied events' sum and number, each event's rank among them, and their mean
    weight.
    """
    n = time.shape[-1]
    index = torch.arange(n, device=time.device).expand_as(time)
    change = time[..., 1:] != time[..., :-1]
    edge = torch.ones_like(change[..., :1]) if n > 1 else torch.ones_like(time, dtype=torch.bool)
    first = torch.where(torch.cat([edge, change], -1), index, 0).cummax(-1).values
    last = torch.where(torch.cat([change, edge], -1), index, n).flip(-1).cummin(-1).values.flip(-1)

    def within(values: Tensor) -> Tensor:
        total = values.cumsum(-1)
        return total.gather(-1, last) - total.gather(-1, first) + values.gather(-1, first)

    events = happened.to(risk.dtype)
    seen = events.cumsum(-1)
    rank = seen - events - (seen.gather(-1, first) - events.gather(-1, first))
    count = within(events).clamp_min(1.0)
    return risk.cumsum(-1).gather(-1, last), within(risk * events), count, rank, within(w * events) / count


def event_quantiles(y: Tensor, intervals: int) -> list[float]:
    """Distinct quantiles of the times of events, the last one the largest time of all."""
    check_count(intervals, "intervals", "SurvivalLikelihood")
    if y.dim() != 2 or y.shape[1] < 2:
        raise invalid("y", "SurvivalLikelihood", "columns of times and events", f"shape {tuple(y.shape)}")
    events = y[y[:, 1] == 1, 0].double()
    if not len(events):
        advice = "Without events there is no hazard to learn."
        raise invalid(
            "y", "SurvivalLikelihood", "a table with at least one event", "only censored rows", advice
        )
    levels = torch.arange(1, intervals, dtype=torch.float64) / intervals
    inner = torch.quantile(events, levels, interpolation="higher").unique().tolist() if intervals > 1 else []
    latest = float(y[:, 0].max())
    return [c for c in inner if 0.0 < c < latest] + [latest]
