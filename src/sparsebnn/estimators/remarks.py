"""What a user must be told about a fit: sentences for ``notes_``, and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from sparsebnn.estimators.columns import CONSTANT, ColumnWarning
from sparsebnn.estimators.encoding import Encoder
from sparsebnn.estimators.outlying import NINES, far_limits
from sparsebnn.estimators.plan import Plan
from sparsebnn.nn.networks import bayesian_layers
from sparsebnn.training import Run
from sparsebnn.training.density import fix_structure

__all__ = ["cut_short", "missed_density", "over_time", "short_of_time", "warn_of_columns"]

_SLACK = 0.1  # how far a density may be from its target without a word
_MOST_NAMED = 10  # columns that a warning names
_OVER = 1.2  # times the time budget, from which on that is said
_USEFUL_SHARE = 0.25  # of the planned training
_LEAST_WEIGHT = 0.1  # of a row, on average
# The line a warning points at is the one that called the estimator's fit.
_CALLER_OF_FIT = 4


def far_targets(columns: np.ndarray, weight: np.ndarray) -> list[str]:
    """A sentence for targets of which a few values are so far off that they alone set the scale.

    Inputs are cut off there; what is to be predicted is not ours to change.
    """
    far = [column for column in columns.T if far_limits(column, weight)]
    return [
        f"The target has values far off (from {column.min():.4g} to {column.max():.4g}), beside which the "
        "others look alike: correct or drop these rows, or fit its logarithm."
        for column in far
    ]


def warn_of_columns(encoder: Encoder, told: Sequence[str] = ()) -> None:
    """One warning for all columns that are left out though they vary, one for those with values far off.

    And one for those with a number that may stand for a missing value. ``told`` is said of
    the target and of the rows' weights.
    """
    for sentence in told:
        warnings.warn(sentence, ColumnWarning, stacklevel=_CALLER_OF_FIT)
    gone = [c for c in encoder.columns if c.kind == "dropped" and c.note != CONSTANT]
    words = [c for c in encoder.columns if NINES in c.note and not c.limits]
    missing = "a number that may stand for a missing value"
    for columns, one, many in (
        (gone, "is left out", "are left out"),
        ([c for c in encoder.columns if c.limits], "has values far off", "have values far off"),
        (words, f"has {missing}", f"have {missing}"),
    ):
        if columns:
            listed = ", ".join(f"{c.name!r} ({c.note})" for c in columns[:_MOST_NAMED])
            rest = len(columns) - _MOST_NAMED
            listed += f" and {rest} more (notes_ has all)" if rest > 0 else ""
            what = f"1 column {one}" if len(columns) == 1 else f"{len(columns)} columns {many}"
            warnings.warn(f"{what}: {listed}.", ColumnWarning, stacklevel=_CALLER_OF_FIT)


def little_weight(weight: np.ndarray) -> list[str]:
    """Weights count rows: where they were made to sum to 1, all rows together count as one."""
    total, rows = float(weight.sum()), int((weight > 0.0).sum())
    if total >= _LEAST_WEIGHT * rows:
        return []
    return [
        f"The {rows} rows have a weight of {total:.3g} in all and count as that many, so that little can be "
        "learned: give weights whose mean is 1."
    ]


def cut_short(run: Run, plan: Plan, why: str) -> list[str]:
    """Training that ended on its way to a target density goes the rest of it at once, without a refit."""
    if plan.target_density is None or len(run.history) >= plan.settings.refit_from:
        return []
    fix_structure(run.replicates, torch.full((len(run.seeds), 1), plan.target_density, dtype=torch.float64))
    return [f"Training ended before its refit ({why}): the weights were cut down to the density at once."]


def short_of_time(plan: Plan, epochs: int, rows: int, seconds: float, needed: float) -> list[str]:
    """How much of the planned training a time budget allowed; a warning where that is little.

    ``epochs`` are those it allowed, ``rows`` those that could have been used, ``needed`` the budget that the
    whole plan would take.
    """
    used = plan.train_rows or rows
    if epochs == plan.planned_epochs and used == rows:
        return []
    share = epochs * used / (plan.planned_epochs * rows)
    part = "" if used == rows else f", on {used} of {rows} rows"
    enough = f"{float(f'{needed:.2g}'):g}"
    note = (
        f"The time budget of {seconds:g} s allowed {epochs} of {plan.planned_epochs} planned epochs{part}; "
        f"the whole training takes about {enough} s."
    )
    if share < _USEFUL_SHARE:
        note += (
            " The model is likely to be undertrained: raise time_budget, or make the training cheaper with "
            "fewer replicates or smaller hidden layers."
        )
        warnings.warn(note, UserWarning, stacklevel=_CALLER_OF_FIT + 1)
    return [note]


def over_time(seconds: float, taken: float) -> list[str]:
    """A budget that not even the shortest training keeps."""
    if taken <= _OVER * seconds:
        return []
    note = (
        f"The fit took {taken:.2g} s, more than the time budget of {seconds:g} s: reading the table, a few "
        "steps of training and a description of the model are the least it does."
    )
    warnings.warn(note, UserWarning, stacklevel=_CALLER_OF_FIT)
    return [note]


def missed_density(networks: Sequence[nn.Module], density: float, plan: Plan) -> list[str]:
    """A small network cannot have every density: say so, where that shows."""
    target = plan.target_density
    if target is None or abs(density / target - 1.0) <= _SLACK:
        return []
    count = sum(layer.weights.inclusion_prob().numel() for _, layer in bayesian_layers(networks[0]))
    note = f"The density is {density:.3g}, not {target:g}: the network has {count} weights."
    warnings.warn(note, UserWarning, stacklevel=_CALLER_OF_FIT)
    return [note]
