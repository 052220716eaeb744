"""The comparison with exact inclusion probabilities as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies.style import COLOURS

__all__ = ["details", "draw", "markdown", "markdown_pairs", "summary", "table"]

_KINDS = {"gaussian": "linear", "bernoulli": "logistic"}
_MEANS = ("error", "error_worst", "wrong_choices", "tpr", "fpr")


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Averages over data sets, one line per kind, correlation and method; ``worst`` is the largest of all."""
    lines = []
    for kind, rho, method in dict.fromkeys((r["kind"], r["correlation"], r["method"]) for r in rows):
        own = [r for r in rows if (r["kind"], r["correlation"], r["method"]) == (kind, rho, method)]
        line: dict[str, Any] = {"kind": kind, "correlation": rho, "method": method}
        for key in _MEANS:
            values = np.array([r[key] for r in own])
            line[key] = float(values.mean())
            if key in ("error", "wrong_choices") and len(values) > 1:
                line[f"{key}_se"] = float(values.std(ddof=1) / len(values) ** 0.5)
        line["worst"] = max(r["error_worst"] for r in own)
        if "monte_carlo_error" in own[0]:
            line["monte_carlo_error"] = max(r["monte_carlo_error"] for r in own)
        lines.append(line)
    return lines


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Mean distance from the exact probabilities by correlation, then wrong choices, then TPR / FPR."""
    text: list[str] = []
    heads = (
        ("error", "mean |inclusion − exact|", ".3f"),
        ("error_worst", "worst input", ".3f"),
        ("wrong_choices", "choices unlike the exact median model", ".2f"),
        ("tpr", "TPR", ".2f"),
        ("fpr", "FPR", ".2f"),
    )
    for kind in dict.fromkeys(line["kind"] for line in lines):
        own = [line for line in lines if line["kind"] == kind]
        correlations = list(dict.fromkeys(line["correlation"] for line in own))
        for key, title, form in heads:
            head = f"{_KINDS[kind]}: {title}"
            text += ["", f"{head:48s}" + "".join(f"{rho:>8g}" for rho in correlations)]
            for method in dict.fromkeys(line["method"] for line in own):
                cells = (format(line[key], form) for line in own if line["method"] == method)
                text.append(f"  {method:46s}" + "".join(f"{cell:>8s}" for cell in cells))
    return "\n".join(text)


def details(lines: Sequence[dict[str, Any]]) -> str:
    """Tables that the page only refers to: ``results/selection_truth/tables.md``."""
    parts = []
    for key, digits, title in (
        ("worst", 2, "Largest distance of any input in any data set"),
        ("wrong_choices", 2, "Choices (inclusion above one half) unlike the exact median model's, of 8"),
    ):
        parts += [f"**{title}**", *(markdown(lines, kind, key, digits) for kind in _KINDS)]
    return "\n\n".join(parts) + "\n"


def markdown(lines: Sequence[dict[str, Any]], kind: str, key: str, digits: int = 3) -> str:
    """A table of the page: one quantity, a line per method, a column per correlation."""
    own = [line for line in lines if line["kind"] == kind]
    correlations = list(dict.fromkeys(line["correlation"] for line in own))
    head = " | ".join(f"{rho:g}" for rho in correlations)
    text = [f"| {_KINDS[kind]} | {head} |", "|---" * (len(correlations) + 1) + "|"]
    for method in dict.fromkeys(line["method"] for line in own if line["method"] != "exact"):
        cells = " | ".join(f"{line[key]:.{digits}f}" for line in own if line["method"] == method)
        text.append(f"| {method} | {cells} |")
    return "\n".join(text)


_PAIRS = (
    ("FLOW", "LRT"),
    ("FLOW, paper's start", "LRT, paper's start"),
    ("LRT, paper's start", "LRT"),
    ("LBBNN", "LRT"),
)


def _place(row: dict[str, Any]) -> tuple[float, int]:
    return row["correlation"], row["data_set"]


def markdown_pairs(rows: Sequence[dict[str, Any]]) -> str:
    """Differences between two methods on the same data sets, over all correlations: mean ± standard error."""
    text = ["| | distance, linear | distance, logistic | wrong choices, linear | wrong choices, logistic |"]
    text.append("|---|---|---|---|---|")
    for one, other in _PAIRS:
        cells = []
        for key, digits in (("error", 3), ("wrong_choices", 2)):
            for kind in _KINDS:
                own = [row for row in rows if row["kind"] == kind]
                ours, theirs = ({_place(r): r[key] for r in own if r["method"] == m} for m in (one, other))
                off = np.array([value - theirs[place] for place, value in ours.items()])
                error = off.std(ddof=1) / len(off) ** 0.5
                cells.append(f"{off.mean():+.{digits}f} ± {error:.{digits}f}")
        text.append(f"| {one} − {other} | {' | '.join(cells)} |")
    return "\n".join(text)


_STYLES = {
    "MCMC": (6, "-", "."),
    "CS, one start": (1, "--", "s"),
    "CS, best of starts": (1, "-", "s"),
    "LRT": (0, "-", "o"),
    "LRT, paper's start": (0, "--", "o"),
    "FLOW": (2, "-", "^"),
    "FLOW, paper's start": (2, "--", "^"),
    "LBBNN": (3, "-", "v"),
    "LBBNN, relaxation 0.001": (3, ":", "v"),
}


def draw(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Above, distances from the exact probabilities; below, choices unlike the exact median model's."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(line["kind"] for line in lines))
    figure = Figure(figsize=(4.6 * len(kinds), 6.0), layout="constrained")
    axes = figure.subplots(2, len(kinds), sharex=True, sharey="row", squeeze=False)
    for column, kind in enumerate(kinds):
        for row, key in enumerate(("error", "wrong_choices")):
            axis = axes[row][column]
            for method, (colour, dash, mark) in _STYLES.items():
                own = [line for line in lines if line["kind"] == kind and line["method"] == method]
                if not own:
                    continue
                place = np.arange(len(own))
                values = [line[key] for line in own]
                error = [line.get(f"{key}_se", 0.0) for line in own]
                axis.errorbar(
                    place,
                    values,
                    error,
                    color=COLOURS[colour],
                    ls=dash,
                    marker=mark,
                    ms=4,
                    lw=1.3,
                    label=method,
                )
            axis.set_xticks(range(len(own)), [f"{line['correlation']:g}" for line in own])
            axis.grid(alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
        axes[0][column].set_title(f"{_KINDS[kind]} regression")
        axes[1][column].set_xlabel("correlation between inputs")
    axes[0][0].set_ylabel("mean |inclusion − exact|")
    axes[1][0].set_ylabel("choices unlike the exact\nmedian model, of 8")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=7)
    figure.savefig(path, dpi=100)
