"""Draws to predictive distributions: full model averaging, the median probability model, uncertainty.

The draws are :mod:`sparsebnn.inference.sampling`'s; probabilities are averaged, not their logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from sparsebnn.checks import check_tensor, invalid
from sparsebnn.inference.metrics import entropy
from sparsebnn.inference.sampling import draw_outputs, draw_outputs_of_all
from sparsebnn.likelihoods import ClassLikelihood, Likelihood, Multilabel, SurvivalLikelihood
from sparsebnn.likelihoods.base import inverted
from sparsebnn.random import noise as counter

_TARGET = counter.stream_id("prediction target")


@dataclass(frozen=True)
class ClassPrediction:
    """Class probabilities averaged over draws, and where their uncertainty comes from.

    ``entropy`` is the total uncertainty; ``expected_entropy`` the part that stays if the weights were
    known (aleatoric); ``mutual_information`` their difference (epistemic). All in nats.
    ``outputs`` are the network's outputs averaged over draws, before any softmax, and ``max_output``
    the largest of each row: the maximum model-averaged pre-activation.
    """

    probs: Tensor
    expected_entropy: Tensor
    n_draws: int
    outputs: Tensor

    @property
    def labels(self) -> Tensor:
        return self.probs.argmax(-1)

    @property
    def entropy(self) -> Tensor:
        return entropy(self.probs)

    @property
    def mutual_information(self) -> Tensor:
        return (self.entropy - self.expected_entropy).clamp_min(0.0)

    @property
    def max_output(self) -> Tensor:
        return self.outputs.max(-1).values


@dataclass(frozen=True)
class RealPrediction:
    """Predictive mean and std of real targets, with draws of targets for quantiles.

    ``std`` joins the spread of the means over draws (epistemic) and the noise (aleatoric).
    """

    mean: Tensor
    std: Tensor
    epistemic_std: Tensor
    samples: Tensor

    def quantiles(self, levels: list[float]) -> Tensor:
        """Predictive quantiles, ``(levels, rows, targets)``."""
        for level in levels:
            if not 0.0 < level < 1.0:
                raise invalid("levels", "quantiles", "strictly between 0 and 1", level)
        wanted = torch.tensor(levels, dtype=self.samples.dtype, device=self.samples.device)
        return torch.quantile(self.samples, wanted, dim=0)


@dataclass(frozen=True)
class LabelsPrediction:
    """Probabilities of several labels, each present or absent, averaged over draws; all ``(rows, labels)``.

    ``entropy`` is the sum of ``expected_entropy`` (aleatoric) and ``mutual_information`` (epistemic), in
    nats.
    """

    probs: Tensor
    expected_entropy: Tensor
    n_draws: int

    @property
    def labels(self) -> Tensor:
        return (self.probs > 0.5).long()

    @property
    def entropy(self) -> Tensor:
        return _binary_entropy(self.probs)

    @property
    def mutual_information(self) -> Tensor:
        return (self.entropy - self.expected_entropy).clamp_min(0.0)


@dataclass(frozen=True)
class SurvivalPrediction:
    """Predictive distribution of times until an event, from all draws ``(draws, rows, outputs)``."""

    outputs: Tensor
    likelihood: SurvivalLikelihood

    @property
    def risk(self) -> Tensor:
        """A risk score per row, averaged over draws; higher means earlier events."""
        return self.likelihood.risk(self.outputs).mean(0)

    def survival(self, times: Any) -> Tensor:
        """P(time > t), ``(rows, times)``, averaged over draws."""
        at = check_tensor(times, "times", "survival").to(self.outputs)
        return self.likelihood.survival(self.outputs, at).mean(0)

    def cumulative_hazard(self, times: Any) -> Tensor:
        """−log of :meth:`survival`."""
        return -torch.log(self.survival(times))

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Times by which the event has happened with these probabilities, ``(levels, rows)``.

        Infinite where the likelihood does not say when a probability is reached.
        """
        found = []
        for level in levels:
            if not 0.0 < level < 1.0:
                raise invalid("levels", "quantiles", "strictly between 0 and 1", level)
            found.append(time_quantile([self.likelihood], [self.outputs], level))
        return torch.stack(found)


Prediction: TypeAlias = ClassPrediction | RealPrediction | LabelsPrediction | SurvivalPrediction


def predict(
    network: nn.Module,
    x: Tensor,
    likelihood: Likelihood,
    n_draws: int = 100,
    *,
    model: str = "average",
    draws: str = "auto",
    seed: int = 0,
    batch_size: int = 1024,
) -> Any:
    """The predictive distribution of each row of ``x``; arguments as :func:`draw_outputs`.

    Returns a :class:`ClassPrediction` for labels, a :class:`LabelsPrediction` for several labels at once, a
    :class:`SurvivalPrediction` for times, and a :class:`RealPrediction` for real numbers and counts.

    Rows of uint8 are pixels, divided by 255 as ``train`` does; all other numbers are taken as they are.

    >>> import sparsebnn
    >>> network = sparsebnn.mlp([4, 8, 3])
    >>> form = sparsebnn.likelihoods.Categorical(3)
    >>> predict(network, torch.randn(5, 4), form, n_draws=10).probs.sum(-1).round(decimals=4)
    tensor([1., 1., 1., 1., 1.])
    """
    _check_likelihood(likelihood, "predict")
    x = _of_one_input(x, "predict")
    pieces = draw_outputs(network, x, n_draws, model=model, draws=draws, seed=seed, batch_size=batch_size)
    return _joined(
        [_summary(x[rows], outputs, likelihood, seed) for rows, outputs in pieces], n_draws, likelihood
    )


def predict_all(
    networks: Sequence[nn.Module],
    x: Tensor,
    likelihoods: Likelihood | Sequence[Likelihood],
    n_draws: int = 100,
    *,
    seed: int = 0,
    **options: Any,
) -> list[Any]:
    """:func:`predict` for each of K networks of one shape, all drawn as one program; ``options`` likewise.

    It pays for many small networks; a few large ones fill the machine one at a time.
    """
    count = len(networks)
    forms = [likelihoods] * count if isinstance(likelihoods, Likelihood) else list(likelihoods)
    if len(forms) != count:
        raise invalid("likelihoods", "predict_all", f"one for all or one each ({count})", len(forms))
    found: list[list[tuple[Tensor, ...]]] = [[] for _ in forms]
    for form in forms:
        _check_likelihood(form, "predict_all")
    x = _of_one_input(x, "predict_all")
    for rows, outputs in draw_outputs_of_all(networks, x, n_draws, seed=seed, **options):
        for summaries, each, form in zip(found, outputs, forms):
            summaries.append(_summary(x[rows], each, form, seed))
    return [_joined(summaries, n_draws, form) for summaries, form in zip(found, forms)]


def _check_likelihood(likelihood: Any, owner: str) -> None:
    if not isinstance(likelihood, Likelihood):
        advice = "Pass the one that was trained, such as run.likelihood."
        raise invalid("likelihood", owner, "a Likelihood", repr(likelihood), advice)


def _of_one_input(x: Any, owner: str) -> Tensor:
    if isinstance(x, tuple | dict):
        advice = "Average forward_with_kl(network, *inputs)[0] over draws for a network of several inputs."
        raise invalid("x", owner, "the tensor of a network's only input", f"a {type(x).__name__}", advice)
    return check_tensor(x, "x", owner)


def class_probs(outputs: Tensor, likelihood: Likelihood) -> Tensor:
    """Class probabilities of outputs, ``(…, classes)``; a Bernoulli's are (no, yes)."""
    if not isinstance(likelihood, ClassLikelihood):
        raise invalid("likelihood", "predict", "a ClassLikelihood", type(likelihood).__name__)
    return likelihood.probs(outputs)


def mixture_quantiles(forms: Sequence[Likelihood], outputs: Sequence[Tensor], levels: list[float]) -> Tensor:
    """Quantiles ``(levels, rows, targets)`` of the mixture over all draws of all networks.

    ``outputs`` are ``(draws, rows, …)``, one for each likelihood.
    """
    means = torch.cat([form.mean(each) for form, each in zip(forms, outputs)])
    within = torch.cat([form.variance(each) for form, each in zip(forms, outputs)])
    std = (means.var(0, correction=0) + within.mean(0)).sqrt()

    def mass(y: Tensor) -> Tensor:
        return torch.cat([form.cdf(each, y) for form, each in zip(forms, outputs)]).mean(0)

    wanted = torch.tensor(levels, dtype=torch.float64)
    return torch.stack([inverted(mass, level, means.mean(0), std, forms[0].discrete) for level in wanted])


def time_quantile(forms: Sequence[SurvivalLikelihood], outputs: Sequence[Tensor], level: float) -> Tensor:
    """The time by which the event has happened with this probability, in the mixture over all draws.

    ``outputs`` are ``(draws, rows, …)``, one for each likelihood; the result is ``(rows,)``, maybe infinite.
    """
    wanted = torch.tensor(level, dtype=torch.float64)
    each = torch.cat([form.quantile(o, wanted)[..., 0].double() for form, o in zip(forms, outputs)])
    low, high = each.min(0).values, each.max(0).values  # the mixture's quantile lies between
    for _ in range(60):
        middle = torch.where(high.isinf(), 2.0 * low + 1e-30, 0.5 * (low + high))
        masses = [form.cdf(o, middle[..., None])[..., 0] for form, o in zip(forms, outputs)]
        reached = torch.cat(masses).mean(0) >= wanted
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    return high


def _binary_entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p) + torch.special.entr(1.0 - p)


def _describes_targets(likelihood: Likelihood) -> bool:
    """Whether a likelihood has an observation model, so that its targets can be predicted."""
    own = type(likelihood)
    return all(
        getattr(own, name, None) is not getattr(Likelihood, name) for name in ("mean", "variance")
    ) and any(
        getattr(own, name, None) is not getattr(Likelihood, name) for name in ("cdf", "quantile", "sample")
    )


def _check(outputs: Tensor, likelihood: Likelihood) -> None:
    """The likelihood has an observation model and reads as many outputs as the network has."""
    name = type(likelihood).__name__
    known = isinstance(likelihood, ClassLikelihood | SurvivalLikelihood)
    if not known and not _describes_targets(likelihood):
        expected = "one with an observation model"
        advice = "Define mean, variance and cdf (docs/extending.md)."
        raise invalid("likelihood", "predict", expected, name, advice)
    wanted = likelihood.n_outputs(outputs)
    if outputs.shape[-1] != wanted:
        got = f"a network with {outputs.shape[-1]}"
        advice = "Pass the likelihood that the network was trained with (run.likelihood)."
        raise invalid(
            "likelihood", "predict", f"for as many outputs as the network has ({name}: {wanted})", got, advice
        )


@torch.no_grad()
def _summary(x: Tensor, outputs: Tensor, likelihood: Likelihood, seed: int) -> tuple[Tensor, ...]:
    """What a prediction keeps of the draws ``(draws, rows, …)`` for the rows ``x``: one to four tensors."""
    _check(outputs, likelihood)
    if isinstance(likelihood, SurvivalLikelihood):
        return (outputs.movedim(1, 0),)
    if isinstance(likelihood, ClassLikelihood):
        each = likelihood.probs(outputs)
        if isinstance(likelihood, Multilabel):
            return each.mean(0), _binary_entropy(each).mean(0)
        return each.mean(0), entropy(each).mean(0), outputs.mean(0)
    mean, variance = likelihood.mean(outputs), likelihood.variance(outputs)
    between = mean.var(0, correction=0)
    keys, content = counter.seed_tensor([seed], outputs.device), counter.content_keys(x.to(outputs.device))
    # Each row's noise depends on its own values alone, as that of its outputs does.
    each = counter.normals(keys, _TARGET, content, mean[:, 0].numel(), mean.dtype)
    noise = each.unflatten(1, (len(mean), -1)).movedim(1, 0)
    total = (between + variance.mean(0)).sqrt()
    samples = likelihood.sample(outputs, noise).to(mean.dtype)
    return mean.mean(0), total, between.sqrt(), samples.movedim(1, 0)


def _joined(summaries: list[tuple[Tensor, ...]], n_draws: int, likelihood: Likelihood) -> Prediction:
    columns = [torch.cat(column) for column in zip(*summaries)]
    if isinstance(likelihood, SurvivalLikelihood):
        return SurvivalPrediction(columns[0].movedim(0, 1), likelihood)
    if isinstance(likelihood, Multilabel):
        return LabelsPrediction(columns[0], columns[1], n_draws)
    if isinstance(likelihood, ClassLikelihood):
        return ClassPrediction(columns[0], columns[1], n_draws, columns[2])
    return RealPrediction(columns[0], columns[1], columns[2], columns[3].movedim(0, 1))
