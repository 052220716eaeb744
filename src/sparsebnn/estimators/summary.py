"""A fitted estimator as one readable table, like a regression summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsebnn.checks import printable
from sparsebnn.estimators.ensemble import linear_layers
from sparsebnn.estimators.explanation import signed
from sparsebnn.nn.networks import prior_values

__all__ = ["summary"]

_PAPER = {"spike_slab": "LBBNN-LRT", "flow": "LBBNN-FLOW", "concrete": "LBBNN", "gaussian": "dense BNN"}
_WITHOUT_SIGN = "        without a sign, of a column of several inputs: its mean absolute contribution"


def _head(estimator: Any) -> list[str]:
    plan = estimator.plan_
    layers = linear_layers(estimator.networks_[0])
    sizes = [layers[0].in_features, *(layer.out_features for layer in layers)]
    what = estimator._targets_in_words()
    kept = len(estimator.selected_features_)
    tempered = "the Bayes posterior" if plan.settings.temperature == 1.0 else "a tempered posterior"
    return [
        f"{type(estimator).__name__}: {what}",
        f"{estimator.n_rows_} rows, {len(estimator._encoder.columns)} columns, {kept} of them in use",
        f"{_PAPER[plan.family]} {'-'.join(map(str, sizes))}, {len(estimator.networks_)} replicates, "
        f"{_epochs(estimator)}; temperature {plan.settings.temperature:g}: {tempered}",
        f"{estimator.density_:.1%} of the weights have an inclusion probability above one half",
        *_predictors(estimator),
        *_priors(estimator.posterior_networks_),
    ]


def _predictors(estimator: Any) -> list[str]:
    """Which networks predict, where several kinds were compared."""
    plan = estimator.plan_
    if plan.tempered is None:
        return []
    names = ("the Bayes posterior", f"networks at temperature {plan.tempered:g}", "linear networks")
    kinds = sorted({place // plan.replicates for place in estimator._places})
    return [f"predictions: {' and '.join(names[kind] for kind in kinds)}, chosen by rows left out"]


def _epochs(estimator: Any) -> str:
    done, plan = estimator.n_epochs_, estimator.plan_
    rows = "" if plan.train_rows is None else f" on {plan.train_rows} rows"
    return (
        f"{done} epochs" if done >= plan.planned_epochs else f"{done} of {plan.planned_epochs} epochs{rows}"
    )


def _priors(networks: Sequence[Any]) -> list[str]:
    """The priors: one line if they are fixed, one per layer if they were learned."""
    each = [prior_values(network) for network in networks]
    lines = []
    for place, first in enumerate(each[0]):
        std, rate = (float(np.mean([one[place][i] for one in each])) for i in (1, 2))
        lines.append((f"slab std {std:.3g}, inclusion {rate:.3g}", first))
    if not lines:
        return []
    if not any(first.learned for _, first in lines) and len({text for text, _ in lines}) == 1:
        return [f"prior of every weight, as given: {lines[0][0]}"]
    return [f"prior that layer {first.layer} learned: {text}" for text, first in lines]


def summary(estimator: Any, most: int | None) -> str:
    """The head, then one line per column: inclusion, effect with its interval, stability."""
    columns = estimator._encoder.columns
    effects, signs = estimator.effects_, signed(estimator)
    order = np.argsort(-np.abs(effects.value), kind="stable")
    order = order[np.argsort(-estimator.inclusion_[order].round(3), kind="stable")]
    shown = order if most is None else order[:most]
    names = [printable(column.name) for column in columns]
    width = max(6, *(min(30, len(names[j])) for j in shown))
    lines = [f"{'column':<{width}}  inclusion  stability     effect  95% interval        used"]
    for j in shown:
        name = names[j] if len(names[j]) <= 30 else names[j][:29] + "…"
        if columns[j].kind == "dropped":
            lines.append(f"{name:<{width}}  left out: {printable(columns[j].note)}")
            continue
        sign = "+" if signs[j] else ""
        ends = f"{effects.low[j]:{sign}.3g} to {effects.high[j]:{sign}.3g}"
        used = "yes" if estimator.used_[j] else ""
        effect = f"{effects.value[j]:{sign}9.3g}"
        numbers = f"{estimator.inclusion_[j]:9.3f}  {estimator.stability_[j]:9.2f}  {effect}"
        lines.append(f"{name:<{width}}  {numbers}  {ends:<18}  {used}".rstrip())
    if len(shown) < len(columns):
        lines.append(f"… and {len(columns) - len(shown)} more columns (summary(most=None) lists all)")
    rule = "─" * max(map(len, lines))
    notes = [
        "inclusion: probability that the column reaches an output; stability: share of replicates using it",
        "effect: " + _effect_note(estimator),
        *([_WITHOUT_SIGN] if signs.any() and any(columns[j].inputs and not signs[j] for j in shown) else []),
        "used: " + _used_note(estimator),
    ]
    return "\n".join([*_head(estimator), rule, *lines, rule, *notes])


def _used_note(estimator: Any) -> str:
    if estimator.inclusions_are_no_posterior is None:
        return "chosen by inclusion, at an expected false discovery rate of 0.1"
    return "the column improves predictions of unseen rows, or by more than the cost of its weights"


def _effect_note(estimator: Any) -> str:
    names = estimator._output_names()
    if len(names) == 1:
        return f"change in the {printable(names[0])} per standard deviation of the column"
    if hasattr(estimator, "classes_"):
        return "mean absolute contribution to the classes' log probabilities or log odds"
    return "mean absolute contribution to the targets"
