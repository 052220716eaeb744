"""The study with fresh data as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies.style import COLOURS

__all__ = ["draw", "markdown", "markdown_power", "table"]

_COLOUR = {"MCMC": 6, "CS": 1, "LRT": 0, "LRT, longer": 4, "FLOW": 2}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """TPR and FPR with standard errors, and the mean distance from the Markov chain's probabilities."""
    head = (
        f"{'rows':>6s}{'corr.':>7s}  {'method':16s}{'TPR':>7s}{'s.e.':>7s}{'FPR':>8s}{'s.e.':>7s}{'|Δ|':>8s}"
    )
    lines = ["", head]
    before = None
    for row in rows:
        cell = (row["rows"], row["correlation"])
        lines += [""] if before not in (None, cell) else []
        before = cell
        distance = "·" if row["distance"] is None else f"{row['distance']:.3f}"
        lines.append(
            f"{row['rows']:6d}{row['correlation']:7g}  {row['method']:16s}"
            f"{row['tpr']:7.3f}{row['tpr_se']:7.3f}{row['fpr']:8.3f}{row['fpr_se']:7.3f}{distance:>8s}"
        )
    return "\n".join(
        [*lines, "", "|Δ|: mean distance from the inclusion probabilities of long Markov chains."]
    )


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table of docs/studies/selection_power.md: TPR / FPR, a line per cell, a column per method."""
    methods = [name for name in _COLOUR if any(row["method"] == name for row in rows)]
    lines = [f"| rows | correlations | {' | '.join(methods)} |", "|---" * (len(methods) + 2) + "|"]
    for size, correlation in dict.fromkeys((row["rows"], row["correlation"]) for row in rows):
        own = {row["method"]: row for row in rows if (row["rows"], row["correlation"]) == (size, correlation)}
        cells = [f"{own[m]['tpr']:.2f} / {own[m]['fpr']:.2f}" if m in own else "" for m in methods]
        lines.append(f"| {size} | × {correlation:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def markdown_power(rows: Sequence[dict[str, Any]], nonzero: Sequence[bool]) -> str:
    """How often each variable is selected, in %, in the largest and most correlated cell."""
    cell = max((row["rows"], row["correlation"]) for row in rows)
    names = [f"x{i + 1}*" if true else f"x{i + 1}" for i, true in enumerate(nonzero)]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        if (row["rows"], row["correlation"]) == cell:
            cells = " | ".join(f"{100 * value:.0f}" for value in row["selected"])
            lines.append(f"| {row['method']} | {cells} |")
    return "\n".join(lines)


def draw(rows: Sequence[dict[str, Any]], nonzero: Sequence[bool], path: Path) -> None:
    """Above, TPR and FPR over sample sizes by correlation; below, how often each variable is selected."""
    from matplotlib.figure import Figure

    correlations = list(dict.fromkeys(row["correlation"] for row in rows))
    sizes = list(dict.fromkeys(row["rows"] for row in rows))
    figure = Figure(figsize=(3.9 * len(correlations), 8.6), layout="constrained")
    axes = figure.subplots(3, len(correlations), squeeze=False, sharey="row")
    for column, correlation in enumerate(correlations):
        own = [row for row in rows if row["correlation"] == correlation]
        for line, key in enumerate(("tpr", "fpr")):
            axis = axes[line][column]
            for method, colour in _COLOUR.items():
                mine = [row for row in own if row["method"] == method]
                place = [sizes.index(row["rows"]) for row in mine]
                values, errors = [row[key] for row in mine], [1.96 * row[f"{key}_se"] for row in mine]
                mark = "." if method == "MCMC" else "o"
                axis.errorbar(place, values, errors, color=COLOURS[colour], marker=mark, ms=4, label=method)
            axis.set_xticks(range(len(sizes)), sizes)
            axis.set_ylabel(key.upper() if column == 0 else "")
            _tidy(axis)
            if key == "fpr":
                axis.set_ylim(-0.01, max(0.2, 1.3 * max(row["fpr"] for row in rows)))
        axes[0][column].set_title(f"correlations × {correlation:g}", fontsize=10)
        axes[1][column].set_xlabel("rows")
        _power(axes[2][column], [row for row in own if row["rows"] == sizes[-1]], nonzero)
        axes[2][column].set_title(f"selected, {sizes[-1]} rows (* in the true model)", fontsize=9)
    axes[0][0].legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=90)


def _power(axis: Any, rows: Sequence[dict[str, Any]], nonzero: Sequence[bool]) -> None:
    """How often each variable is selected, with 95% intervals, one mark per method."""
    shown = [row for row in rows if row["method"] != "MCMC"]
    for step, row in enumerate(shown):
        place = np.arange(len(nonzero)) + 0.18 * (step - (len(shown) - 1) / 2)
        often = np.array(row["selected"])
        ends = [
            np.maximum(often - row["selected_low"], 0.0),
            np.maximum(np.array(row["selected_high"]) - often, 0.0),
        ]
        axis.errorbar(place, often, ends, fmt=".", ms=4, lw=0.8, color=COLOURS[_COLOUR[row["method"]]])
    labels = [f"x{i + 1}*" if true else f"x{i + 1}" for i, true in enumerate(nonzero)]
    axis.set_xticks(range(len(nonzero)), labels, rotation=90, fontsize=7)
    _tidy(axis)


def _tidy(axis: Any) -> None:
    axis.set_ylim(-0.03, 1.03)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
