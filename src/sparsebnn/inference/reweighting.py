r"""Draws of a mixture, weighted so that they follow the posterior itself.

.. math::
    w_s \propto \frac{p(y \mid \theta_s)\, p(\theta_s)}{\sum_m q_m(\theta_s)}, \qquad \theta_s \sim q_m

Components of a mixture have independent weights, which correlated inputs contradict, so their bounds and
inclusions are off. Importance sampling corrects both as far as the draws reach. The proposals :math:`q_m` are
all components, each also with wider slabs and less certain inclusions: a mean-field posterior is too narrow.
Weights are truncated at :math:`\sqrt S` times their mean (Ionides, 2008). ``effective_size`` is the number of
equally weighted draws with the same variance: with few of them nothing is gained, which is the rule for
networks of many included weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn.checks import check_count, check_seed, invalid
from sparsebnn.inference.mixture import Mixture, Probe, drawn_pieces, prepared
from sparsebnn.inference.sampling import _evaluating
from sparsebnn.nn.networks import bayesian_layers
from sparsebnn.posteriors import GaussianPrior, SpikeSlabPrior
from sparsebnn.posteriors.mean_field import Gaussian, SpikeSlab
from sparsebnn.posteriors.priors import inverse_softplus

__all__ = ["Reweighted", "reweighted"]

_UNSURE = 4.0  # the largest inclusion logit of a widened component: inclusions from 0.018 to 0.982
_WIDER_BIAS = 1.5
_NEGLIGIBLE = 1e-3  # of the total weight may be left out, in the rarest structures
_MOST_STRUCTURES = 5000


@dataclass(frozen=True)
class Reweighted:
    """Drawn structures with their posterior weights; ``select`` and others take it like a network.

    ``masks`` has, for each layer by name, which weights are included, ``(structures, *shape)``; ``weights``
    sum to 1. ``log_evidence`` estimates log p(y), from below on average.
    """

    network: nn.Module
    masks: dict[str, Tensor]
    weights: Tensor
    effective_size: float
    log_evidence: float


def reweighted(
    posterior: Any,
    data: tuple[Tensor, ...],
    *,
    n_draws: int = 500,
    widths: Sequence[float] = (1.0, 2.0, 4.0),
    seed: int = 0,
) -> Reweighted:
    """Correct a mixture by importance sampling.

    ``data`` are the rows that its networks were trained on, ``n_draws`` the draws of each network and width,
    ``widths`` the factors of the standard deviations. The networks' layers must have the family
    ``spike_slab`` or ``gaussian`` with a fixed prior. All draws are judged by the likelihood of the best
    network.

    >>> import sparsebnn
    >>> x = torch.randn(50, 3)
    >>> run = sparsebnn.train(
    ...     sparsebnn.mlp([3, 1]), (x, x[:, 0]), likelihood="gaussian", replicates=3, progress=False
    ... )
    >>> found = reweighted(sparsebnn.inference.mixture(run, (x, x[:, 0])), (x, x[:, 0]), n_draws=50)
    >>> round(float(found.weights.sum()), 4)
    1.0
    """
    owner = "reweighted"
    if not isinstance(posterior, Mixture):
        advice = "Combine replicates by mixture(...)."
        raise invalid("posterior", owner, "a mixture", type(posterior).__name__, advice)
    check_count(n_draws, "n_draws", owner, least=2)
    seed = check_seed(seed, "seed", owner)
    factors = [float(width) for width in widths]
    if not factors or not all(math.isfinite(width) and width >= 1.0 for width in factors):
        raise invalid("widths", owner, "numbers of at least 1", list(widths))
    for network in posterior.networks:
        _check(network, owner)
    networks = [_widened(network, width) for width in factors for network in posterior.networks]
    form = posterior.likelihoods[int(posterior.bounds.argmax())]
    # One more component is the prior: its log density of a draw is log p(θ).
    probes = [Probe(_evaluating(each), form) for each in [*networks, _prior(networks[0])]]
    parts = list(drawn_pieces(probes, *prepared(data, probes[0]), n_draws, seed))
    log_lik = torch.cat([log_lik[:-1].flatten() for log_lik, _, _, _ in parts]).double().cpu()
    density = torch.cat([each[:-1].flatten(0, 1) for _, _, _, each in parts]).double().cpu()
    log_q = torch.logsumexp(density[:, :-1], 1) - math.log(len(networks))
    log_w = log_lik + density[:, -1] - log_q
    log_evidence = float(torch.logsumexp(log_w, 0)) - math.log(len(log_w))
    log_w = torch.minimum(log_w, torch.tensor(log_evidence + 0.5 * math.log(len(log_w))))
    weights = torch.softmax(log_w, 0)
    size = float(1.0 / (weights**2).sum())
    masks = {
        name: torch.cat([drawn[place][:-1].flatten(0, 1) for _, _, drawn, _ in parts]).cpu() != 0
        for name, place in _places(probes[0]).items()
    }
    masks, weights = _merged(masks, weights)
    return Reweighted(copy.deepcopy(posterior.networks[0]), masks, weights, size, log_evidence)


def _check(network: nn.Module, owner: str) -> None:
    for _, layer in bayesian_layers(network):
        for family in (layer.weights, layer.biases):
            fixed = type(getattr(family, "prior", None)) in (SpikeSlabPrior, GaussianPrior)
            if family is not None and not (type(family) in (SpikeSlab, Gaussian) and fixed):
                got = f"{type(family).__name__} with {type(getattr(family, 'prior', None)).__name__}"
                expected = "of the families 'spike_slab' or 'gaussian' with fixed priors"
                raise invalid("posterior", owner, expected, got, "Use the mixture itself.")


@torch.no_grad()
def _widened(network: nn.Module, width: float) -> nn.Module:
    made = copy.deepcopy(network)
    if width == 1.0:
        return made
    for _, layer in bayesian_layers(made):
        pairs: list[tuple[Any, float]] = [(layer.weights, width), (layer.biases, min(width, _WIDER_BIAS))]
        for family, own in pairs:
            if family is not None:
                family.raw_std.copy_(inverse_softplus(own * family.std))
                if hasattr(family, "inclusion_logit"):
                    family.inclusion_logit.clamp_(-_UNSURE, _UNSURE)
    return made


@torch.no_grad()
def _prior(network: nn.Module) -> nn.Module:
    """The network whose posterior is its prior."""
    made = copy.deepcopy(network)
    for _, layer in bayesian_layers(made):
        families: list[Any] = [layer.weights, layer.biases]
        for family in families:
            if family is not None:
                family.mean.copy_(family.prior.mean.expand_as(family.mean))
                family.raw_std.copy_(inverse_softplus(family.prior.std).expand_as(family.raw_std))
                if hasattr(family, "inclusion_logit"):
                    family.inclusion_logit.copy_(
                        family.prior.inclusion_logit.expand_as(family.inclusion_logit)
                    )
    return made


def _places(probe: Probe) -> dict[str, int]:
    """The place of each layer's weights among the families, by the name of the layer."""
    names = {id(layer.weights): name for name, layer in bayesian_layers(probe.network)}
    return {names[id(f)]: place for place, f in enumerate(probe.families) if id(f) in names}


def _merged(masks: dict[str, Tensor], weights: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Each structure once, with the weight of all its draws; the rarest are left out."""
    flat = torch.cat([mask.flatten(1) for mask in masks.values()], 1)
    codes, inverse = torch.unique(flat, dim=0, return_inverse=True)
    total = torch.zeros(len(codes), dtype=weights.dtype).index_add_(0, inverse, weights)
    order = torch.argsort(total, descending=True, stable=True)
    enough = int((total[order].cumsum(0) < 1.0 - _NEGLIGIBLE).sum()) + 1
    order = order[: min(enough, _MOST_STRUCTURES)]
    sizes = [math.prod(mask.shape[1:]) for mask in masks.values()]
    parts = codes[order].split(sizes, 1)
    kept = {name: part.reshape(-1, *masks[name].shape[1:]) for name, part in zip(masks, parts)}
    return kept, total[order] / total[order].sum()
