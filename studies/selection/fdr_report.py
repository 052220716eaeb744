"""Realized false discovery rates as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from studies.style import COLOURS

__all__ = ["draw", "markdown", "table"]

_COLOUR = {"exact": 6, "CS": 1, "LRT": 0, "FLOW": 2}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Realized rate (standard error) and power at each level; ! where it exceeds level plus 2 errors."""
    levels = list(dict.fromkeys(row["level"] for row in rows))
    lines = []
    for scenario in dict.fromkeys(row["scenario"] for row in rows):
        own = [row for row in rows if row["scenario"] == scenario]
        heads = "".join(f"{f'level {level:g}':>22s}" for level in levels)
        lines += ["", f"{scenario:30s}{heads}      realized (s.e.), power"]
        for method in dict.fromkeys(row["method"] for row in own):
            cells = ""
            for row in (row for row in own if row["method"] == method):
                mark = "!" if row["fdr"] > row["level"] + 2.0 * row["fdr_se"] else " "
                cells += f"{row['fdr']:10.3f}{mark}({row['fdr_se']:.3f}) {row['power']:.2f}"
            lines.append(f"  {method:28s}{cells}")
    return "\n".join(lines)


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table of docs/studies/selection_fdr.md: realized rates ± standard error and, at 10%, the power."""
    levels = list(dict.fromkeys(row["level"] for row in rows))
    heads = " | ".join(f"{level:.0%}" for level in levels)
    lines = [f"| data | method | {heads} | power at 10% |", "|---" * (len(levels) + 3) + "|"]
    for scenario, method in dict.fromkeys((row["scenario"], row["method"]) for row in rows):
        own = [row for row in rows if (row["scenario"], row["method"]) == (scenario, method)]
        cells = " | ".join(f"{100 * row['fdr']:.1f} ± {100 * row['fdr_se']:.1f}" for row in own)
        power = next(row["power"] for row in own if row["level"] == 0.1)
        lines.append(f"| {scenario if method == 'exact' else ''} | {method} | {cells} | {power:.2f} |")
    return "\n".join(lines)


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """A panel per scenario: the realized rate over the level asked for, with 95% intervals."""
    from matplotlib.figure import Figure

    scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
    across = min(4, len(scenarios))
    down = -(-len(scenarios) // across)
    figure = Figure(figsize=(3.1 * across, 2.9 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).ravel()
    for axis, scenario in zip(axes, scenarios):
        for step, (method, colour) in enumerate(_COLOUR.items()):
            own = [row for row in rows if (row["scenario"], row["method"]) == (scenario, method)]
            place = [row["level"] + 0.003 * (step - 1.5) for row in own]
            errors = [1.96 * row["fdr_se"] for row in own]
            values = [row["fdr"] for row in own]
            axis.errorbar(place, values, errors, fmt="o", ms=4, lw=1, color=COLOURS[colour], label=method)
        axis.plot([0.0, 0.24], [0.0, 0.24], color="#888888", lw=0.8, ls="--")
        axis.set_title(scenario, fontsize=9)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[len(scenarios) :]:
        axis.set_visible(False)
    axes[0].legend(fontsize=7, frameon=False)
    for axis in axes[::across]:
        axis.set_ylabel("realized FDR")
    axes[across * (down - 1)].set_xlabel("level asked for")
    figure.savefig(path, dpi=100)
