"""A fitted estimator as one readable table, like a regression summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsebnn.checks import printable
from sparsebnn.estimators.early_stopping import CONVERGED
from sparsebnn.estimators.ensemble import linear_layers
from sparsebnn.estimators.feature_selection import LEVEL, signed
from sparsebnn.io.formatting import aligned
from sparsebnn.nn.description import prior_values
from sparsebnn.selection.rules import disagree

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
        f"{_PAPER[plan.family]} {'-'.join(map(str, sizes))}, {len(estimator.networks_)} networks, "
        f"{_epochs(estimator)}; temperature {plan.settings.temperature:g}: {tempered}",
        f"{estimator.density_:.1%} of the weights have an inclusion probability above one half",
        *_predictors(estimator),
        *_priors(estimator.posterior_networks_),
    ]


def _predictors(estimator: Any) -> list[str]:
    """Which networks predict, where several kinds were compared."""
    if estimator.plan_.tempered is None:
        return []
    return [f"predictions: {' and '.join(estimator.predictors_)}, chosen by rows left out"]


def _epochs(estimator: Any) -> str:
    done, plan = estimator.n_epochs_, estimator.plan_
    if estimator.stopped_because_ == CONVERGED:
        return f"{done} epochs, until it converged"
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
    """The head, then one line per column, by gain: gain, use, effect with its interval, stability, inclusion.

    Inclusion comes first if it is a posterior probability, see
    ``inclusions_are_no_posterior``.
    """
    columns, signs = estimator._encoder.columns, signed(estimator)
    posterior = estimator.inclusions_are_no_posterior is None
    kept = [column.kind != "dropped" for column in columns]
    order = sorted(range(len(columns)), key=lambda j: (not kept[j], -estimator.gain_[j], j))
    shown = order if most is None else order[:most]
    names = [printable(column.name) for column in columns]
    names = [name if len(name) <= 30 else name[:29] + "…" for name in names]
    cells = _cells(estimator, [j for j in shown if kept[j]], posterior)
    header = ["column", *_titles(posterior)]
    widths = [max(6, *(len(names[j]) for j in shown))]
    widths += [max(len(title), *(len(row[i]) for row in cells.values()), 0) if cells else len(title)
               for i, title in enumerate(header[1:])]  # fmt: skip
    lines = [_line(header, widths)]
    for j in shown:
        if kept[j]:
            lines.append(_line([names[j], *cells[j]], widths))
        else:
            lines.append(f"{names[j]:<{widths[0]}}  left out: {printable(columns[j].note)}")
    if len(shown) < len(columns):
        lines.append(f"… and {len(columns) - len(shown)} more columns (summary(most=None) lists all)")
    rule = "─" * max(map(len, lines))
    unsigned = signs.any() and any(kept[j] and not signs[j] for j in shown)
    notes = [
        "gain: how much the log-loss rises if the column is shuffled, in thousandths of a nat per row",
        *(_used_by_inclusion(estimator) if posterior else [_USED_BY_GAIN]),
        "effect: " + _effect_note(estimator),
        *([_WITHOUT_SIGN] if unsigned else []),
        "stability: share of replicates whose sparse network uses the column",
        _POSTERIOR if posterior else _TEMPERED,
    ]
    return "\n".join([*_head(estimator), rule, *lines, rule, *notes])


_USED_BY_GAIN = (
    "used: the column improves predictions of unseen rows, or by more than the cost of its weights"
)
_POSTERIOR = "inclusion: posterior probability that the column reaches an output"
_TEMPERED = "inclusion: not a posterior probability here: judge columns by their gain"


def _used_by_inclusion(estimator: Any) -> list[str]:
    each = estimator.replicate_inclusion_
    lines = [f"used: chosen by inclusion, at an expected false discovery rate of {LEVEL:g}"]
    if len(each) > 1 and disagree(estimator.inclusion_, each, LEVEL):
        lines.append(
            "      replicates disagree about columns that can replace each other, so more may be false:"
        )
        lines.append("      see credible_sets(X)")
    return lines


def _titles(posterior: bool) -> list[str]:
    titles = ["gain", "used", "effect", "low 2.5%", "high 97.5%", "stability", "inclusion"]
    return [titles[-1], *titles[:-1]] if posterior else titles


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        f"{cell:<{w}}" if i == 0 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(cells, widths))
    )
    return "  ".join([first, *rest]).rstrip()


def _cells(estimator: Any, shown: Sequence[int], posterior: bool) -> dict[int, list[str]]:
    """The numbers of each column as text, with the same decimals down each column of the table."""
    effects, signs = estimator.effects_, signed(estimator)
    every = [
        value for part in (effects.value, effects.low, effects.high) for value in part[list(shown)].tolist()
    ]
    texts = aligned(every)
    count = len(shown)
    gains = aligned([1000.0 * float(estimator.gain_[j]) for j in shown])
    found = {}
    for i, j in enumerate(shown):
        ends = [texts[i + k * count] for k in range(3)]
        if signs[j]:
            ends = [text if text.startswith("-") or not text.strip("0.") else f"+{text}" for text in ends]
        row = [gains[i], "yes" if estimator.used_[j] else "", *ends, f"{estimator.stability_[j]:.2f}"]
        inclusion = f"{estimator.inclusion_[j]:.3f}"
        found[j] = [inclusion, *row] if posterior else [*row, inclusion]
    return found


def _effect_note(estimator: Any) -> str:
    names = estimator._output_names()
    if len(names) == 1:
        return f"change in the {printable(names[0])} per standard deviation of the column"
    if hasattr(estimator, "classes_"):
        return "mean absolute contribution to the classes' log probabilities or log odds"
    return "mean absolute contribution to the targets"
