r"""What inputs are chosen from: a network, replicates, a mixture of them, or a model with probabilities.

Replicates count equally, components of a mixture by their weights,

.. math:: P(\gamma_j = 1) = \sum_k w_k\, P_k(\gamma_j = 1)

where :math:`\gamma_j` says whether input j reaches an output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.checks import check_count, check_seed, invalid
from sparsebnn.nn.networks import NO_POSTERIOR
from sparsebnn.selection.credible_sets import CredibleSet, absolute_correlations, credible_sets, with_copies
from sparsebnn.selection.paths import (
    Reach,
    draw_reach,
    median_reach,
    path_probability,
    reach_of_masks,
)

__all__ = [
    "Components",
    "check_fitted",
    "components",
    "correlations_of",
    "reach_of",
    "sample_inputs",
    "sets_of",
]


class Components(NamedTuple):
    """Networks and the weight of each."""

    networks: list[nn.Module]
    weights: Tensor


def components(source: Any) -> Components | None:
    """The networks of a mixture, a run, a list, or a network; None for anything else.

    >>> import sparsebnn
    >>> both = components([sparsebnn.mlp([2, 1]), sparsebnn.mlp([2, 1])])
    >>> len(both.networks), both.weights.tolist()
    (2, [0.5, 0.5])
    """
    if isinstance(source, Components):
        return source
    if isinstance(source, nn.Module):
        return Components([source], torch.ones(1, dtype=torch.float64))
    listed = source if isinstance(source, list | tuple) else getattr(source, "networks", None)
    if not listed or not all(isinstance(one, nn.Module) for one in listed):
        return None
    equal = torch.full((len(listed),), 1.0 / len(listed), dtype=torch.float64)
    weights = getattr(source, "weights", equal)
    return Components(list(listed), torch.as_tensor(weights).detach().cpu().double())


def check_fitted(source: Any) -> None:
    """Raise scikit-learn's ``NotFittedError`` for an estimator before its fit."""
    if hasattr(source, "get_params") and not hasattr(source, "inclusion_"):
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(source)


def reach_of(
    parts: Components, *, n_draws: int = 1000, seed: int = 0, shape: tuple[int, ...] | None = None
) -> tuple[Reach, Tensor]:
    """The probability that each input reaches an output, and that of each network (K, inputs)."""
    found = [path_probability(n, n_draws=n_draws, seed=seed, shape=shape) for n in parts.networks]
    each = torch.stack([one.prob for one in found])
    errors = torch.stack([one.error for one in found])
    error = torch.tensordot(parts.weights**2, errors**2, 1).sqrt()
    return Reach(torch.tensordot(parts.weights, each, 1), error), each.flatten(1)


def reweighted_reach(source: Any, shape: tuple[int, ...] | None = None) -> tuple[Tensor, Reach] | None:
    """Which inputs reach an output in drawn structures with weights, and how probable that is.

    Of :class:`sparsebnn.inference.Reweighted`; None for anything else.
    """
    if not all(hasattr(source, name) for name in ("masks", "weights", "network", "effective_size")):
        return None
    reached = reach_of_masks(source.network, source.masks, shape).flatten(1)
    prob = source.weights.double() @ reached.double()
    return reached, Reach(prob, (prob * (1.0 - prob) / source.effective_size).clamp_min(0.0).sqrt())


def median_of(parts: Components, shape: tuple[int, ...] | None = None) -> Tensor | None:
    """The inputs of the median probability model of a single network; several have none."""
    if len(parts.networks) > 1:
        return None
    return median_reach(parts.networks[0], shape).flatten() > 0


def check_posteriors(parts: Components) -> None:
    """Complain if inclusions are not posterior probabilities."""
    for network in parts.networks:
        reason = getattr(network, NO_POSTERIOR, None)
        if reason is not None:
            expected = f"'median' or 'threshold' for a network {reason}"
            advice = "Its inclusions are no posterior probabilities: train at temperature 1, with no target."
            raise invalid("rule", "select", expected, "'fdr'", advice)


def sample_inputs(
    source: Any, n_draws: int = 2000, *, seed: int = 0, shape: tuple[int, ...] | None = None
) -> np.ndarray:
    """Drawn sets of inputs that reach an output (draws, inputs), for credible sets and named groups.

    ``source`` is a network, a run or list of replicates, a mixture, or an estimator (a model with
    ``sample_inclusions()``). A mixture's draws are divided among its components by their weights.

    >>> import sparsebnn
    >>> sample_inputs(sparsebnn.mlp([3, 4, 1]), 5).shape
    (5, 3)
    """
    check_count(n_draws, "n_draws", "sample_inputs")
    seed = check_seed(seed, "seed", "sample_inputs", least=0)
    if hasattr(source, "sample_inclusions"):
        return np.asarray(source.sample_inclusions(), dtype=bool)
    drawn_already = reweighted_reach(source, shape)
    if drawn_already is not None:
        places = (torch.arange(n_draws, dtype=torch.float64) + 0.5) / n_draws
        owner = torch.bucketize(places, source.weights.double().cumsum(0)).clamp(max=len(source.weights) - 1)
        return drawn_already[0][owner].numpy()
    parts = components(source)
    if parts is None:
        expected = "a network, replicates, a mixture, or a model with sample_inclusions()"
        raise invalid("source", "sample_inputs", expected, type(source).__name__)
    counts = _shared_out(n_draws, parts.weights)
    drawn = [
        draw_reach(network, count, seed=seed + k, shape=shape).flatten(1)
        for k, (network, count) in enumerate(zip(parts.networks, counts))
        if count
    ]
    return torch.cat(drawn).numpy()


def _shared_out(total: int, weights: Tensor) -> list[int]:
    """``total`` in whole numbers by weight, the largest remainders rounded up.

    >>> _shared_out(10, torch.tensor([0.55, 0.25, 0.2]))
    [6, 2, 2]
    """
    exact = total * weights / weights.sum()
    counts = exact.floor().long()
    rest = torch.argsort(exact - counts, descending=True, stable=True)[: total - int(counts.sum())]
    counts[rest] += 1
    return counts.tolist()


def sets_of(source: Any, X: Any, names: Sequence[str] | None, seed: int, shape: Any) -> list[CredibleSet]:
    """The credible sets of a model, or of networks and the rows that show how inputs are correlated."""
    if hasattr(source, "credible_sets_"):
        return list(source.credible_sets_)
    own = getattr(source, "credible_sets", None)  # of an estimator with replicates
    if own is None and components(source) is None and not hasattr(source, "masks"):
        got = f"a {type(source).__name__}"
        advice = "Fit SpikeSlabRegression or SpikeSlabClassifier, or combine replicates by mixture(...)."
        raise invalid("source", "select", "a model with credible_sets_, or networks", got, advice)
    if X is None:
        advice = "Pass the rows X: members of a set are correlated inputs."
        raise invalid("X", "select", "given for the credible sets of networks", None, advice)
    if own is not None:
        return list(own(X, seed=seed))
    samples = sample_inputs(source, seed=seed, shape=shape)
    alike = correlations_of(source, X, samples.shape[1])
    return with_copies(credible_sets(samples, correlations=alike, names=names), samples, alike, names)


def correlations_of(source: Any, X: Any, width: int) -> np.ndarray:
    """Absolute correlations between the inputs of networks, or between the columns of an estimator."""
    own = getattr(source, "column_correlations", None)
    if own is not None:
        return np.asarray(own(X))
    given = X.detach().cpu() if isinstance(X, Tensor) else X
    x = np.asarray(given, dtype=np.float64)
    if x.ndim < 2 or len(x) < 2 or x[0].size != width:
        raise invalid("X", "select", f"two rows or more of {width} inputs", f"shape {x.shape}")
    return absolute_correlations(x.reshape(len(x), width))
