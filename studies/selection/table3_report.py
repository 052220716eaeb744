"""Table 3 as text, figure 3 (correlations of the inputs) and figure 4 (how often each is selected)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies.data.logistic import LogisticData
from studies.style import COLOURS

__all__ = ["NAMES", "draw_bars", "draw_correlations", "markdown", "markdown_inputs", "table"]

NAMES = {"cs": "CS", "lrt": "LBBNN-LRT", "flow": "LBBNN-FLOW"}
NAMES |= {"lrt_long": "LRT, longer", "flow_long": "FLOW, longer", "mcmc": "MCMC"}


def table(results: Sequence[dict[str, Any]]) -> str:
    """TPR and FPR of each method, next to the paper's."""
    lines = [
        "",
        f"{'':12s}{'TPR':>7s}{'paper':>8s}{'FPR':>9s}{'paper':>8s}{'agreement':>12s}{'seconds':>10s}",
    ]
    for result in results:
        paper = result["paper"] or {"tpr": float("nan"), "fpr": float("nan")}
        lines.append(
            f"{NAMES[result['method']]:12s}{result['tpr']:7.3f}{paper['tpr']:8.3f}{result['fpr']:9.3f}"
            f"{paper['fpr']:8.3f}{result['agreement'][0]:12.3f}{result['fit_seconds']:10.1f}"
        )
    return "\n".join([*lines, ""])


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """The table of docs/studies/table3.md."""
    lines = ["| | fits | TPR | paper | FPR | paper | bound | seconds |", "|---|---|---|---|---|---|---|---|"]
    for result in results:
        paper = result["paper"]
        theirs = [f"{paper[key]:.3f}" if paper else "" for key in ("tpr", "fpr")]
        cells = [NAMES[result["method"]], str(result["fits"]), f"{result['tpr']:.3f}", theirs[0]]
        bound = f"{result['elbo_median']:.0f}" if "elbo_median" in result else ""
        cells += [f"{result['fpr']:.3f}", theirs[1], bound, f"{result['cpu_seconds']:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def markdown_inputs(results: Sequence[dict[str, Any]]) -> str:
    """How often each input is selected in %; of the Markov chain its probability, in %."""
    names = [f"{name}*" if true else name for name, true in zip(results[0]["names"], results[0]["nonzero"])]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for result in results:
        values = result["inclusion_mean" if result["method"] == "mcmc" else "inclusion_frequency"]
        cells = " | ".join(f"{100 * value:.0f}" for value in values)
        lines.append(f"| {NAMES[result['method']]} | {cells} |")
    return "\n".join(lines)


def draw_correlations(data: LogisticData, path: Path) -> None:
    """Figure 3: correlations of the twenty inputs, with the numbers where they are large."""
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.corrcoef(data.x.T)
    figure = Figure(figsize=(6.6, 5.8), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(values, cmap="RdBu_r", vmin=-1.0, vmax=1.0)
    for i, j in np.argwhere(np.abs(values) >= 0.3):
        if i != j:
            dark = abs(values[i, j]) > 0.6
            said = f"{100 * values[i, j]:.0f}"
            axis.text(j, i, said, ha="center", va="center", fontsize=6, color="white" if dark else "black")
    labels = [f"{name}*" if kept else name for name, kept in zip(data.names, data.nonzero)]
    axis.set_xticks(range(20), labels, rotation=90, fontsize=8)
    axis.set_yticks(range(20), labels, fontsize=8)
    axis.set_title("correlation of the inputs (* in the true model; numbers in %)", fontsize=10)
    figure.colorbar(image, shrink=0.8)
    figure.savefig(path, dpi=90)


def draw_bars(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Figure 4: how often each input is selected, those of the true model in colour."""
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(4.0 * len(results), 3.4), layout="constrained")
    axes = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for axis, result in zip(axes, results):
        kept, frequency = result["nonzero"], np.array(result["inclusion_frequency"])
        ends = [
            np.maximum(frequency - result["inclusion_frequency_low"], 0.0),
            np.maximum(np.array(result["inclusion_frequency_high"]) - frequency, 0.0),
        ]
        colours = [COLOURS[0] if true else COLOURS[5] for true in kept]
        axis.bar(range(len(kept)), frequency, color=colours, yerr=ends, ecolor="#555555", capsize=1.5)
        axis.set_xticks(range(len(kept)), result["names"], rotation=90, fontsize=8)
        axis.set_title(
            f"{NAMES[result['method']]}: TPR {result['tpr']:.3f}, FPR {result['fpr']:.3f}", fontsize=10
        )
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("share of fits that select the input")
    axes[0].set_ylim(0.0, 1.3)  # room for the legend
    axes[0].set_yticks(np.linspace(0.0, 1.0, 6))
    handles = [axes[0].bar([0], [0], color=c) for c in (COLOURS[0], COLOURS[5])]
    axes[0].legend(handles, ["in the true model", "not in it"], fontsize=8, loc="upper left", frameon=False)
    figure.savefig(path, dpi=90)
