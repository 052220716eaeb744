r"""Replicates as one posterior: a mixture whose weights maximize the mixture's own evidence lower bound.

.. math::
    q(\theta) = \sum_k w_k\, q_k(\theta), \qquad
    \mathcal L(w) = \sum_k w_k \Big( \mathcal L_k
    - \mathbb E_{q_k} \log \sum_j w_j \frac{q_j(\theta)}{q_k(\theta)} \Big)

:math:`\mathcal L_k` is the bound of replicate k alone. Replicates that found the same mode share its weight,
replicates at separate modes have weights in proportion to :math:`e^{\mathcal L_k}`, and the mixture's bound
is never below the best replicate's. Expectations are averages over draws of the weights. Families whose
density is not known (flows) replace :math:`q` inside the logarithm by an approximation: for any such choice
:math:`\mathcal L(w)` stays a lower bound, with :math:`r(k \mid \theta) \propto w_k \tilde q_k(\theta)` as the
auxiliary distribution of k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn.checks import check_count, check_rows, check_seed, check_tensor, invalid
from sparsebnn.inference.prediction import (
    ClassPrediction,
    LabelsPrediction,
    RealPrediction,
    SurvivalPrediction,
    predict_all,
)
from sparsebnn.inference.sampling import _check_alike, _evaluating
from sparsebnn.likelihoods import Likelihood
from sparsebnn.nn.networks import as_input
from sparsebnn.nn.passes import WeightPass
from sparsebnn.posteriors import Family
from sparsebnn.random import noise as counter
from sparsebnn.random.noise import Noise, NoiseBuffer, NoiseCounter

__all__ = ["Mixture", "bounds", "mixture", "mixture_weights"]

_NORMAL = counter.stream_id("mixture normal")
_LOGISTIC = counter.stream_id("mixture logistic")
_MEMORY = 1 << 25  # numbers held at a time
_ITERATIONS, _TOLERANCE = 300, 1e-5
_NEGLIGIBLE = 1e-4  # components with less weight are left out of predictions


@dataclass(frozen=True)
class Mixture:
    """Networks with the weights of a mixture; :func:`~sparsebnn.selection.select` and others take it.

    ``bounds`` are the evidence lower bounds of the networks in nats, ``bound_errors`` their Monte Carlo
    standard errors, and ``bound`` that of the mixture, on the draws that its weights were chosen with.
    """

    networks: tuple[nn.Module, ...]
    likelihoods: tuple[Likelihood, ...]
    weights: Tensor
    bounds: Tensor
    bound_errors: Tensor
    bound: float

    @property
    def effective_modes(self) -> float:
        """How many equally weighted components have the same entropy: 1 to the number of networks."""
        return float(torch.exp(-torch.special.xlogy(self.weights, self.weights).sum()))

    @property
    def best(self) -> nn.Module:
        """The network with the highest bound."""
        return self.networks[int(self.bounds.argmax())]

    def predict(self, x: Tensor, n_draws: int = 100, *, seed: int = 0, **options: Any) -> Any:
        """The mixture's predictive distribution; ``options`` as for :func:`predict`.

        ``n_draws`` are drawn from every network that has a weight above 0.0001.
        """
        kept = torch.nonzero(self.weights > _NEGLIGIBLE).flatten().tolist()
        networks, forms = [self.networks[k] for k in kept], [self.likelihoods[k] for k in kept]
        found = predict_all(networks, x, forms, n_draws, seed=seed, **options)
        share = self.weights[kept] / self.weights[kept].sum()
        total = n_draws * len(kept)
        if isinstance(found[0], ClassPrediction):
            probs, expected, outputs = _means(found, share, ("probs", "expected_entropy", "outputs"))
            return ClassPrediction(probs, expected, total, outputs)
        if isinstance(found[0], LabelsPrediction):
            probs, expected = _means(found, share, ("probs", "expected_entropy"))
            return LabelsPrediction(probs, expected, total)
        if isinstance(found[0], SurvivalPrediction):
            return SurvivalPrediction(_divided([one.outputs for one in found], share), found[0].likelihood)
        return _real(found, share)

    def table(self) -> str:
        """The components as text, largest weight first."""
        lines = ["component  weight  bound (nats)"]
        for k in torch.argsort(self.weights, descending=True, stable=True).tolist():
            values = f"{float(self.bounds[k]):.1f} ± {float(self.bound_errors[k]):.1f}"
            lines.append(f"{k:9d}  {float(self.weights[k]):6.3f}  {values}")
        total = f"mixture: bound {self.bound:.1f}, effective number of modes {self.effective_modes:.1f}"
        return "\n".join([*lines, total])


def _means(found: Sequence[Any], share: Tensor, names: Sequence[str]) -> list[Tensor]:
    parts = [torch.stack([getattr(one, name) for one in found]) for name in names]
    return [torch.tensordot(share.to(part.dtype), part, 1) for part in parts]


def _divided(draws: Sequence[Tensor], share: Tensor) -> Tensor:
    """As many draws as one component has, from all components by their shares.

    Systematic: place i of n belongs to the component in whose interval (i + 1/2)/n lies.
    """
    n = len(draws[0])
    places = (torch.arange(n, device=share.device) + 0.5) / n
    owners = torch.bucketize(places, share.cumsum(0).to(places.dtype)).clamp(max=len(draws) - 1).tolist()
    return torch.stack([draws[k][i] for i, k in enumerate(owners)])


def _real(found: Sequence[RealPrediction], share: Tensor) -> RealPrediction:
    share = share.to(found[0].mean.dtype)
    means = torch.stack([one.mean for one in found])
    mean = torch.tensordot(share, means, 1)
    between = torch.tensordot(share, (means - mean) ** 2, 1)
    std, epistemic = (
        (torch.tensordot(share, torch.stack([getattr(one, name) ** 2 for one in found]), 1) + between).sqrt()
        for name in ("std", "epistemic_std")
    )
    return RealPrediction(mean, std, epistemic, _divided([one.samples for one in found], share))


def mixture(
    replicates: Any,
    data: tuple[Tensor, ...],
    likelihood: Likelihood | Sequence[Likelihood] | None = None,
    *,
    n_draws: int = 500,
    seed: int = 0,
) -> Mixture:
    """Combine replicates of one network into one posterior.

    ``replicates`` is what :func:`~sparsebnn.train` returned, or a list of networks of one shape with their
    ``likelihood`` (one for all, or one each). ``data`` are the rows and targets (and weights of rows) that
    they were trained on: the bounds are those of these data, at temperature 1. ``n_draws`` draws of each
    network's weights estimate the bounds.

    >>> import sparsebnn
    >>> x, y = torch.randn(64, 5), torch.randint(0, 3, (64,))
    >>> run = sparsebnn.train(sparsebnn.mlp([5, 3]), (x, y), replicates=3, progress=False)
    >>> both = mixture(run, (x, y), n_draws=20)
    >>> round(float(both.weights.sum()), 4), both.predict(x[:2]).probs.shape
    (1.0, torch.Size([2, 3]))
    """
    networks, forms = _listed(replicates, likelihood)
    check_count(n_draws, "n_draws", "mixture", least=2)
    seed = check_seed(seed, "seed", "mixture")
    probes = [Probe(_evaluating(network), form) for network, form in zip(networks, forms)]
    x, y, weight = prepared(data, probes[0])
    log_lik, kl, log_density = _estimates(probes, x, y, weight, n_draws, seed)
    own = log_lik - kl
    weights, bound = mixture_weights(own.mean(1), log_density)
    errors = own.std(1) / math.sqrt(n_draws)
    return Mixture(tuple(networks), tuple(forms), weights, own.mean(1), errors, bound)


@torch.no_grad()
def bounds(
    networks: Sequence[nn.Module],
    data: tuple[Tensor, ...],
    likelihoods: Sequence[Likelihood],
    *,
    n_draws: int = 30,
    seed: int = 0,
) -> Tensor:
    """The evidence lower bound of each network on these data, in nats, from ``n_draws`` draws of its weights.

    Any distribution of weights has one, also that of a network that was trained on other rows.
    """
    probes = [Probe(_evaluating(network), form) for network, form in zip(networks, likelihoods)]
    pieces = drawn_pieces(probes, *prepared(data, probes[0]), n_draws, seed, compared=False)
    return torch.cat([log_lik - kl for log_lik, kl, _, _ in pieces], dim=1).double().mean(1).cpu()


def _listed(replicates: Any, likelihood: Any) -> tuple[list[nn.Module], list[Likelihood]]:
    networks = list(getattr(replicates, "networks", replicates))
    if len(networks) < 2 or not all(isinstance(one, nn.Module) for one in networks):
        expected = "a run with several replicates, or a list of two or more networks"
        raise invalid("replicates", "mixture", expected, f"{len(networks)} of them")
    given = getattr(replicates, "likelihoods", None) if likelihood is None else likelihood
    forms = [given] * len(networks) if isinstance(given, Likelihood) else list(given or [])
    if len(forms) != len(networks) or not all(isinstance(form, Likelihood) for form in forms):
        expected = f"a likelihood, or one for each network ({len(networks)})"
        raise invalid("likelihood", "mixture", expected, given, "For example likelihoods.Categorical(3).")
    _check_alike(networks)
    return networks, forms


def prepared(data: tuple[Tensor, ...], probe: Probe) -> tuple[Tensor, Tensor, Tensor]:
    if not isinstance(data, tuple) or len(data) not in (2, 3):
        raise invalid("data", "mixture", "a tuple (x, y) or (x, y, weight)", type(data).__name__)
    like = next(probe.network.parameters())
    x, y = (check_tensor(part, name, "mixture") for part, name in zip(data, "xy"))
    check_rows([("x", len(x)), ("y", len(y))], "mixture")
    pixels = x.dtype == torch.uint8
    x = x.to(like.dtype) / 255.0 if pixels else as_input(x, probe.network, like.dtype, "mixture")
    y = probe.likelihood.prepare(y)
    y = y.to(like.dtype) if y.is_floating_point() else y
    weight = torch.ones(len(x)) if len(data) == 2 else check_tensor(data[2], "weight", "mixture")
    return x.to(like.device), y.to(like.device), weight.to(like)


class Probe(nn.Module):
    """One draw of a network: log likelihood, KL and the weights; or the log density of given weights."""

    def __init__(self, network: nn.Module, likelihood: Likelihood) -> None:
        super().__init__()
        self.network, self.likelihood = network, likelihood
        self.families: list[Family] = []

    def find_families(self, x: Tensor, meter: NoiseCounter) -> None:
        """The distributions that a forward pass uses, each once, and the noise that a draw takes."""
        with WeightPass(meter) as opened:
            self.network(x[:1])
        for layer in opened.layers:
            for family in (layer.weights, layer.biases):
                if family is not None and all(family is not met for met in self.families):
                    self.families.append(family)
        for family in self.families:
            family.kl(meter)

    def forward(
        self, x: Tensor, y: Tensor, weight: Tensor, noise: Noise | None, drawn: list[Tensor] | None = None
    ) -> Any:
        if drawn is not None:
            terms = [family.log_density(w) for family, w in zip(self.families, drawn)]
            return torch.stack(terms).sum()
        assert noise is not None
        with WeightPass(noise) as opened:
            outputs = self.network(x)
        values: dict[int, Tensor | None] = {}
        for layer in opened.layers:
            pair = opened.drawn(layer)
            assert pair is not None
            values |= {id(layer.weights): pair[0], id(layer.biases): pair[1]}
        log_lik = -self.likelihood.weighted_nll(outputs, y, weight).sum()
        kl = torch.stack([family.kl(noise) for family in self.families]).sum()
        return log_lik, kl, [values[id(family)] for family in self.families]


def _estimates(
    probes: Sequence[Probe], x: Tensor, y: Tensor, weight: Tensor, n_draws: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Log likelihoods and KL (K, draws); log densities of the draws of k under j (K, draws, K)."""
    pieces = [(a, b, d) for a, b, _, d in drawn_pieces(probes, x, y, weight, n_draws, seed)]
    log_lik, kl, log_density = (torch.cat(part, dim=1).double().cpu() for part in zip(*pieces))
    return log_lik, kl, log_density


@torch.no_grad()
def drawn_pieces(
    probes: Sequence[Probe],
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    n_draws: int,
    seed: int,
    compared: bool = True,
) -> Iterator[tuple[Tensor, Tensor, list[Tensor], Tensor]]:
    """Log likelihoods, KL, drawn weights and log densities (if ``compared``), some draws of all networks at a
    time.
    """
    probe, count = probes[0], len(probes)
    meter = NoiseCounter()
    probe.find_families(x, meter)
    state = torch.func.stack_module_state(list(probes))
    like = next(probe.network.parameters())
    keys = counter.seed_tensor([seed], like.device)

    def one(state: Any, normal: Tensor, logistic: Tensor) -> Any:
        given = (x, y, weight, NoiseBuffer(normal, logistic))
        return torch.func.functional_call(probe, state, given, tie_weights=False)

    def density(state: Any, drawn: list[Tensor]) -> Tensor:
        return torch.func.functional_call(probe, state, (x, y, weight, None, drawn), tie_weights=False)

    every = torch.func.vmap(torch.func.vmap(one, in_dims=(None, 0, 0)), in_dims=(0, 0, 0))
    compare = torch.func.vmap(
        torch.func.vmap(torch.func.vmap(density, in_dims=(None, 0)), in_dims=(None, 0)), in_dims=(0, None)
    )
    held = sum(math.prod(family.shape) for family in probe.families)
    step = max(1, _MEMORY // (count * (held * count + 20 * len(x))))
    for first in range(0, n_draws, step):
        # Each network has its own noise: draws of near copies are then not the same draws.
        here = torch.arange(first, min(first + step, n_draws), device=like.device)
        steps = (here + n_draws * torch.arange(count, device=like.device).unsqueeze(1)).flatten()
        normal, logistic = (
            make(keys, stream, steps, max(size, 1), like.dtype, eager=True).unflatten(0, (count, -1))
            for make, stream, size in (
                (counter.normals, _NORMAL, meter.size.normal),
                (counter.logistics, _LOGISTIC, meter.size.logistic),
            )
        )
        log_lik, kl, drawn = every(state, normal, logistic)
        yield log_lik, kl, drawn, compare(state, drawn).movedim(0, -1) if compared else log_lik[:0]


def mixture_weights(bounds: Tensor, log_density: Tensor) -> tuple[Tensor, float]:
    r"""The weights that maximize the mixture's bound, and its value.

    ``bounds`` (K,) are the components' own; ``log_density`` (K, draws, K) has at (k, s, j) the log density of
    draw s of component k under component j. Exponentiated gradient steps from
    :math:`w \propto e^{\mathcal L_k}`, halved where they would not climb; the bound is concave in w.

    >>> far = torch.tensor([[[0.0, -99.0]], [[-99.0, 0.0]]])  # two modes: e^L decides
    >>> mixture_weights(torch.tensor([1.0, 0.0]), far)[0].round(decimals=3).tolist()
    [0.731, 0.269]
    """
    own = torch.diagonal(log_density, dim1=0, dim2=2).T.unsqueeze(-1)
    ratios = (log_density - own).double()
    bounds = bounds.double()

    def slopes(log_w: Tensor) -> tuple[Tensor, float]:
        each = bounds - torch.logsumexp(log_w + ratios, -1).mean(1)
        return each, float((log_w.exp() * each).sum())

    log_w = torch.log_softmax(bounds, 0)
    slope, value = slopes(log_w)
    # Never below the best component alone.
    alone = torch.full_like(bounds, -1e6)
    alone[bounds.argmax()] = 0.0
    size = 1.0
    for _ in range(_ITERATIONS):
        trial = torch.log_softmax(log_w + size * slope, 0)
        new_slope, new_value = slopes(trial)
        moved = float((trial.exp() - log_w.exp()).abs().max())
        if new_value < value - 1e-9 * abs(value) and size > 1e-3:
            size *= 0.5
            continue
        log_w, slope, value = trial, new_slope, max(value, new_value)
        if moved < _TOLERANCE * size:
            break
    single = slopes(alone)[1]
    return (alone.exp(), single) if single > value else (log_w.exp(), slopes(log_w)[1])
