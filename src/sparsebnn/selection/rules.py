r"""Inclusion probabilities to variables, with what error rate.

Choose by the median probability model (inclusion above one half), your own threshold, credible sets, or the
largest set whose expected share of false choices stays under a level,

.. math::
    \widehat{\mathrm{FDR}}(S) = \frac{1}{|S|} \sum_{i \in S} (1 - p_i) \le \text{level}

The last controls the Bayesian false discovery rate as far as the probabilities :math:`p_i` are right.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.checks import check_choice, check_number, check_seed, check_tensor, invalid
from sparsebnn.nn.networks import NO_POSTERIOR
from sparsebnn.selection.credible_sets import CredibleSet
from sparsebnn.selection.paths import median_reach
from sparsebnn.selection.plots import bars
from sparsebnn.selection.sources import (
    Components,
    check_fitted,
    check_posteriors,
    components,
    correlations_of,
    median_of,
    reach_of,
    reweighted_reach,
    sets_of,
)

_DISAGREEMENT = 0.05  # above the level: what rule="fdr" tolerates between replicates
# Correlation from which on an input can stand in for another: at 0.5 rates hold, at 0.9 they do not.
STAND_IN = 0.7
_LEAST_DRAWS = 100  # effective ones of a reweighted posterior
_INSTEAD = "Use credible sets, SpikeSlabRegression or SpikeSlabClassifier, or stability_selection."


def input_inclusion(
    network: Any, *, n_draws: int = 1000, seed: int = 0, shape: tuple[int, ...] | None = None
) -> Tensor:
    """Probability that a chain of included weights leads from an input to an output, for every input.

    ``network`` may also be replicates, which count equally, or a mixture. Exact for dense networks with at
    most one hidden layer, and for deeper ones whose later hidden layers have at most 10 units; otherwise the
    mean of ``n_draws`` structures (:func:`sparsebnn.selection.paths.path_probability` also gives the
    standard error). ``shape`` is that of one input, for networks with convolutions.

    >>> import sparsebnn
    >>> input_inclusion(sparsebnn.mlp([3, 4, 1], family="gaussian")).tolist()
    [1.0, 1.0, 1.0]
    """
    parts, drawn = components(network), reweighted_reach(network, shape)
    if drawn is not None:
        return drawn[1].prob
    if parts is None:
        raise invalid(
            "network", "input_inclusion", "a network, replicates or a mixture", type(network).__name__
        )
    return reach_of(parts, n_draws=n_draws, seed=seed, shape=shape)[0].prob


def median_inputs(network: nn.Module, *, shape: tuple[int, ...] | None = None) -> Tensor:
    """The inputs of the median probability model: which of them reach an output by weights above one half.

    >>> import sparsebnn
    >>> median_inputs(sparsebnn.mlp([2, 4, 1], family="gaussian")).tolist()
    [True, True]
    """
    return median_reach(network, shape) > 0


def _probabilities(inclusion: Any, owner: str) -> Tensor:
    try:
        given = inclusion if isinstance(inclusion, Tensor) else np.array(inclusion, dtype=np.float64)
    except (TypeError, ValueError) as error:
        got = f"a {type(inclusion).__name__}"
        raise invalid("inclusion", owner, "a vector, one probability per input", got) from error
    p = torch.as_tensor(given).detach().cpu().double()
    if p.dim() != 1 or p.numel() == 0:
        raise invalid("inclusion", owner, "a vector, one probability per input", f"shape {tuple(p.shape)}")
    # Sums of many probabilities may end a rounding error above 1.
    good = (p >= -1e-9) & (p <= 1.0 + 1e-9)
    if not bool(good.all()):
        raise invalid("inclusion", owner, "from 0 to 1 everywhere", float(p[~good][0]))
    return p.clamp(0.0, 1.0)


def expected_fdr(inclusion: Any, chosen: Any) -> float:
    """Expected share of wrong choices: the mean of 1 − p over what is chosen, 0 for nothing.

    >>> round(expected_fdr([0.9, 0.7, 0.1], [True, True, False]), 3)
    0.2
    """
    p = _probabilities(inclusion, "expected_fdr")
    kept = check_tensor(chosen, "chosen", "expected_fdr").cpu().bool()
    return float((1.0 - p[kept]).mean()) if bool(kept.any()) else 0.0


def bayesian_fdr_threshold(inclusion: Any, level: float) -> float:
    """The lowest threshold t at which choosing all p ≥ t keeps the expected FDR at or under ``level``.

    Infinity when not even the most probable input may be chosen. Equal probabilities are chosen
    together or not at all.

    >>> bayesian_fdr_threshold([0.99, 0.9, 0.6, 0.1], level=0.1)
    0.9
    """
    p = _probabilities(inclusion, "bayesian_fdr_threshold")
    level = _check_level(level, "bayesian_fdr_threshold")
    ordered = torch.sort(p, descending=True).values
    wrong = torch.cumsum(1.0 - ordered, 0) / torch.arange(1, len(p) + 1)
    # A set ends where the next probability is lower; rounding must not forbid what equals the level.
    ends = torch.cat([ordered[1:] < ordered[:-1], torch.tensor([True])])
    allowed = torch.nonzero((wrong <= level * (1.0 + 1e-12)) & ends)
    return float(ordered[int(allowed[-1])]) if len(allowed) else math.inf


# --- one selection -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """Which inputs were chosen, by what rule, and how probable each of them is.

    ``inclusion`` and ``chosen`` have one entry per name; ``error`` is the Monte Carlo standard error of
    the probabilities, 0 where they are exact. ``sets`` are the credible sets, for that rule.
    """

    names: tuple[str, ...]
    inclusion: Tensor
    chosen: Tensor
    rule: str
    threshold: float
    error: Tensor
    sets: tuple[CredibleSet, ...] = ()

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the chosen inputs."""
        return tuple(name for name, kept in zip(self.names, self.chosen.tolist()) if kept)

    @property
    def expected_fdr(self) -> float:
        """The expected share of wrong choices, as far as the probabilities are right."""
        return expected_fdr(self.inclusion, self.chosen)

    def table(self, most: int | None = None) -> str:
        """The inputs as text, most probable first; ``most`` leaves out the rest.

        >>> print(select([0.9, 0.2], names=["age", "town"]).table())
        input  inclusion  chosen
        age       0.9000  yes
        town      0.2000
        1 of 2 inputs; rule: median; expected FDR 0.100
        """
        order = torch.argsort(self.inclusion, descending=True, stable=True).tolist()
        width = max(5, *(len(name) for name in self.names))
        lines = [f"{'input':<{width}}  inclusion  chosen"]
        for i in order[:most]:
            mark = "yes" if bool(self.chosen[i]) else ""
            lines.append(f"{self.names[i]:<{width}}  {float(self.inclusion[i]):9.4f}  {mark}".rstrip())
        total = f"{int(self.chosen.sum())} of {len(self.names)} inputs; rule: {self.rule}"
        if self.sets:
            return "\n".join([*lines, total, *map(str, self.sets)])
        return "\n".join([*lines, f"{total}; expected FDR {self.expected_fdr:.3f}"])

    def plot(self, path: str | Path | None = None, axis: Any = None) -> Any:
        """A bar per input, the chosen ones in color; returns the matplotlib axis."""
        return bars(
            self.names, self.inclusion, None, self.chosen, self.threshold, "inclusion probability", path, axis
        )


def listed_names(names: Any, width: int, owner: str) -> tuple[str, ...]:
    """Names as given, or those of a data frame, or x1, x2, …"""
    if names is None:
        return tuple(f"x{i + 1}" for i in range(width))
    given = getattr(names, "columns", names)
    if isinstance(given, str) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:
        raise invalid("names", owner, f"one name per input ({width})", repr(names), "Put them into a list.")
    listed = tuple(str(name) for name in given)
    if len(listed) != width:
        raise invalid("names", owner, f"one name per input ({width})", f"{len(listed)} names")
    return listed


def _check_level(level: Any, owner: str) -> float:
    return check_number(level, "level", owner, "strictly between 0 and 1", lambda value: 0.0 < value < 1.0)


def _check_posterior(source: Any, parts: Components | None) -> None:
    reason = getattr(source, NO_POSTERIOR, None)  # of an estimator
    if reason is not None and not isinstance(source, nn.Module):
        expected = f"'median' or 'threshold' for an estimator {reason}"
        fit = "fit with temperature='auto' or 1, no target density and enough steps"
        advice = f"Its inclusions are no posterior probabilities: {fit}."
        raise invalid("rule", "select", expected, "'fdr'", advice)
    if parts is not None:
        check_posteriors(parts)


def promised_by_one(inclusion: Any, each: Any, level: float) -> float:
    """What replicates that choose alone would get wrong, if the combined probabilities are right.

    Each replicate (a row of ``each``) chooses by its own probabilities at ``level``; the result is the mean
    expected false discovery rate of these choices by ``inclusion``. Near the level the replicates agree.
    Far above it they are certain of different inputs, as with correlated inputs.

    >>> promised_by_one([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]], 0.05)
    0.5
    """
    p = _probabilities(inclusion, "promised_by_one")
    rates = [expected_fdr(p, row >= bayesian_fdr_threshold(row, level)) for row in torch.as_tensor(each)]
    return float(np.mean(rates))


def disagree(inclusion: Any, each: Any, level: float) -> bool:
    """Whether replicates are certain of different inputs: :func:`promised_by_one` is far above the level."""
    return promised_by_one(inclusion, each, level) > level + _DISAGREEMENT


def _check_agreement(p: Tensor, each: Tensor, level: float, refuse: bool) -> None:
    if not disagree(p, each, level):
        return
    found = promised_by_one(p, each, level)
    got = f"by all replicates together, what each chooses is {found:.0%} wrong"
    off = "Inputs that correlate share effects, and the probabilities of single inputs are then off."
    if refuse:
        expected = "'median', 'threshold' or 'credible_sets' where replicates disagree"
        raise invalid("rule", "select", expected, f"'fdr' at {level:g}; {got}", f"{off} {_INSTEAD}")
    warnings.warn(
        f"select(rule='fdr') at {level:g}: the replicates disagree; {got}. {off} {_INSTEAD}",
        UserWarning,
        stacklevel=3,
    )


def _check_alone(chosen: Tensor, names: Sequence[str], alike: np.ndarray | None) -> None:
    """One network does not show that it chose between inputs which could replace each other."""
    kept = chosen.numpy()
    if not kept.any() or kept.all():
        return
    if alike is None:
        warnings.warn(
            "select(rule='fdr') on a single network: if inputs are correlated, its probabilities are off and "
            "the false discovery rate exceeds the level. Pass the rows (X=...) to check, or all replicates.",
            UserWarning,
            stacklevel=3,
        )
        return
    pairs = np.where(kept[:, None] & ~kept, alike, 0.0)
    if pairs.max() < STAND_IN:
        return
    one, other = divmod(int(pairs.argmax()), len(pairs))
    expected = f"'median', 'threshold' or 'credible_sets' if inputs correlate by {STAND_IN:g} or more"
    got = f"'fdr', which chooses {names[one]!r} but not {names[other]!r}: they correlate by {pairs.max():.2f}"
    advice = f"One network decides between such inputs by chance, with probabilities near 1. {_INSTEAD}"
    raise invalid("rule", "select", expected, got, advice)


def select(
    source: Any,
    *,
    rule: str = "median",
    level: float = 0.1,
    threshold: float | None = None,
    names: Any = None,
    X: Any = None,
    n_draws: int = 1000,
    seed: int = 0,
    shape: tuple[int, ...] | None = None,
) -> Selection:
    """Choose inputs from networks, a fitted model (with ``inclusion_``) or a vector of probabilities.

    Networks are one network, replicates (a run or a list), a mixture
    (:func:`sparsebnn.inference.mixture`), or its :func:`~sparsebnn.inference.reweighted` draws.
    ``rule="median"`` takes the median probability model: for one network the inputs that reach an output by
    weights above one half, otherwise the inclusions above one half. ``rule="fdr"`` takes the largest set
    whose expected false discovery rate is at most ``level``; it refuses networks that were not trained at
    temperature 1, and replicates that disagree (:func:`promised_by_one` above the level by more than 0.05):
    the probabilities are then off. For the replicates of an estimator, which see different rows, that is a
    warning. A single network cannot disagree: pass the rows ``X``, and it is refused if it chooses an input
    but not another one that correlates with it by 0.7 or more; without ``X`` there is a warning.
    ``rule="threshold"`` takes inclusions of at least ``threshold``. ``rule="credible_sets"`` takes the
    members of the model's ``credible_sets_``, of each of which at least one is included with high
    probability; for networks and estimators pass the rows ``X``, too. ``names`` are strings or a data frame,
    whose columns name the inputs; an estimator has its own.

    >>> select([0.99, 0.8, 0.55], rule="fdr", level=0.05).variables
    ('x1',)
    """
    check_choice(rule, ("median", "fdr", "threshold", "credible_sets"), "rule", "select")
    if (threshold is not None) != (rule == "threshold"):
        expected = "given for rule='threshold' and for no other"
        raise invalid("threshold", "select", expected, f"{threshold} for rule={rule!r}")
    limit = 0.5
    if rule == "threshold":
        limit = check_number(threshold, "threshold", "select", "from 0 to 1", lambda value: 0 <= value <= 1)
    if rule == "fdr":
        level = _check_level(level, "select")
    seed = check_seed(seed, "seed", "select", least=0)
    check_fitted(source)
    parts = components(source)
    if rule == "fdr":
        _check_posterior(source, parts)
    sets = tuple(sets_of(source, X, None, seed, shape)) if rule == "credible_sets" else ()
    median = each = None
    if parts is not None:
        reach, each = reach_of(parts, n_draws=n_draws, seed=seed, shape=shape)
        p, error = reach.prob.flatten(), reach.error.flatten()
        median = median_of(parts, shape) if rule == "median" else None
    elif (drawn := reweighted_reach(source, shape)) is not None:
        p, error = drawn[1]
        if rule == "fdr" and source.effective_size < _LEAST_DRAWS:
            expected = f"'median' or 'threshold' with fewer than {_LEAST_DRAWS} effective draws"
            advice = "Raise n_draws, use more replicates or a smaller network, or use the mixture itself."
            raise invalid("rule", "select", expected, f"'fdr' with {source.effective_size:.0f}", advice)
    else:
        p = _probabilities(getattr(source, "inclusion_", source), "select")
        error = torch.zeros_like(p)
        if rule == "fdr" and hasattr(source, "replicate_inclusion_"):
            each = torch.from_numpy(source.replicate_inclusion_)
        if names is None and hasattr(source, "index") and hasattr(source, "to_numpy"):
            names = [str(name) for name in source.index]  # of a pandas Series
        if names is None:
            names = getattr(source, "names_", getattr(source, "feature_names_in_", None))
    listed = listed_names(names, len(p), "select")
    if rule == "fdr":
        if each is not None and len(each) > 1:
            _check_agreement(p, each, level, refuse=parts is not None)
        limit = bayesian_fdr_threshold(p, level)
    chosen = median if median is not None else (p > limit if rule == "median" else p >= limit)
    if rule == "credible_sets":
        sets = tuple(replace(one, names=tuple(listed[i] for i in one.members)) for one in sets)
        chosen, limit = torch.zeros(len(p), dtype=torch.bool), math.nan
        chosen[[i for one in sets for i in one.members]] = True
    if rule == "fdr" and each is not None and len(each) == 1:
        _check_alone(chosen, listed, None if X is None else correlations_of(source, X, len(p)))
    said = f"fdr at {level:g}" if rule == "fdr" else rule
    return Selection(listed, p, chosen, said, limit, error, sets)
