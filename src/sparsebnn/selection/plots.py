"""Pictures of selections: bars of single inputs, and credible sets along the columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sparsebnn.checks import invalid
from sparsebnn.selection.credible_sets import CredibleSet

__all__ = ["bars", "plot_sets"]

_COLOURS = ("#0072B2", "#BBBBBB")
_SETS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")


def _axis(width: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        message = "Plotting needs matplotlib: pip install 'sparsebnn[plot]'"
        raise ImportError(message) from error
    return Figure(figsize=(width, 2.8), layout="constrained").subplots()


def bars(
    names: Sequence[str],
    values: Tensor,
    intervals: Tensor | None,
    filled: Tensor,
    line: float,
    label: str,
    path: str | Path | None,
    axis: Any,
) -> Any:
    """A bar per input, with its interval; returns the matplotlib axis."""
    axis = _axis(min(14.0, max(4.0, 0.32 * len(names) + 1.0))) if axis is None else axis
    colours = [_COLOURS[0] if kept else _COLOURS[1] for kept in filled.tolist()]
    ends = None if intervals is None else intervals.numpy()
    axis.bar(range(len(names)), values.numpy(), color=colours, yerr=ends, ecolor="#444444", capsize=2)
    if 0.0 <= line <= 1.0:
        axis.axhline(line, color="#444444", linewidth=0.8, linestyle="--")
    axis.set_xticks(range(len(names)), names, rotation=0 if len(names) <= 12 else 90)
    axis.set_ylim(0.0, 1.05)
    axis.set_ylabel(label)
    axis.spines[["top", "right"]].set_visible(False)
    if path is not None:
        axis.figure.savefig(path, dpi=110)
    return axis


def plot_sets(
    inclusion: Any,
    sets: Sequence[CredibleSet],
    *,
    truth: Sequence[int] = (),
    path: str | Path | None = None,
    axis: Any = None,
) -> Any:
    """Inclusion probabilities along the columns, the members of each credible set in one color.

    ``truth`` are columns to mark by lines, such as those with effects in a simulation. Returns the matplotlib
    axis.
    """
    p = np.asarray(inclusion, dtype=np.float64)
    if p.ndim != 1 or not len(p):
        raise invalid("inclusion", "plot_sets", "a vector, one probability per input", f"shape {p.shape}")
    axis = _axis(8.0) if axis is None else axis
    for column in truth:
        axis.axvline(column, color="#444444", linewidth=0.8, linestyle=":")
    axis.scatter(np.arange(len(p)), p, s=8, color=_COLOURS[1], linewidths=0)
    for number, one in enumerate(sets):
        color = _SETS[number % len(_SETS)]
        label = f"set {number + 1}: {len(one)} column{'s' if len(one) > 1 else ''}"
        axis.scatter(one.members, p[list(one.members)], s=22, color=color, label=label, linewidths=0)
    axis.set(ylim=(-0.03, 1.05), xlabel="column", ylabel="inclusion probability")
    axis.spines[["top", "right"]].set_visible(False)
    if sets:
        axis.legend(frameon=False, fontsize=8)
    if path is not None:
        axis.figure.savefig(path, dpi=110)
    return axis
