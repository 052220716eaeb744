"""The bound study as a table and as a picture: what each method misses of evidence and inclusions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from studies.style import COLOURS

__all__ = ["draw", "summary", "table"]

_TICKS = tuple(lead * 10.0**power for power in range(-5, 3) for lead in (1, 2, 5))
_OFF_SCALE = ("concrete, T = 0.001",)  # in the table; in the picture it would squeeze all others


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Averages over the data sets of a design, one row per design and method."""
    cells = list(dict.fromkeys((row["design"], row["method"]) for row in rows))
    return [_average(design, method, rows) for design, method in cells]


def _average(design: str, method: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    own = [row for row in rows if (row["design"], row["method"]) == (design, method)]

    def mean(value: Callable[[dict[str, Any]], float]) -> float:
        return sum(map(value, own)) / len(own)

    line: dict[str, Any] = {"design": design, "method": method, "prior": own[0]["prior"]}
    line |= {name: mean(lambda row, name=name: row[name]) for name in ("gap", "gap_median")}  # type: ignore[misc]
    line["se"] = max(row["elbo_se"] for row in own)
    if "information" in own[0]:
        line["information"] = mean(lambda row: row["information"])
        for end in ("low", "high"):
            line[f"gap_without_auxiliary_{end}"] = mean(
                lambda row, end=end: row["log_evidence"] - row["without_auxiliary"][end]  # type: ignore[misc]
            )
    if "inclusion_error" in own[0]:
        line["inclusion_error"] = mean(lambda row: row["inclusion_error"])
        line["inclusion_error_median"] = mean(lambda row: row["inclusion_error_median"])
        line["inclusion_error_worst"] = max(row["inclusion_error_worst"] for row in own)
        line["exactly_one"] = mean(lambda row: row["exactly_one"])
        line["exactly_one_exact"] = mean(lambda row: row["exactly_one_exact"])
    return line


_COLUMNS = (
    ("gap", "gap", ".3f"),
    ("gap_median", "median", ".3f"),
    ("se", "s.e.", ".3f"),
    ("information", "inform.", "+.3f"),
    ("gap_without_auxiliary_low", "no r", ".3f"),
    ("inclusion_error", "|Δincl|", ".3f"),
    ("inclusion_error_median", "median", ".3f"),
    ("inclusion_error_worst", "worst", ".3f"),
    ("exactly_one", "P(one)", ".3f"),
    ("exactly_one_exact", "exact", ".3f"),
)


def table(lines: Sequence[dict[str, Any]]) -> str:
    """The summary as text; a family without the quantity shows a dot."""
    text = []
    for design in dict.fromkeys(line["design"] for line in lines):
        text += ["", f"{design:34s}" + "".join(f"{head:>9s}" for _, head, _ in _COLUMNS)]
        for line in lines:
            if line["design"] == design:
                cells = (format(line[key], form) if key in line else "·" for key, _, form in _COLUMNS)
                text.append(f"  {line['method']:32s}" + "".join(f"{cell:>9s}" for cell in cells))
    return "\n".join([*text, _LEGEND])


_LEGEND = """
gap: exact log evidence minus ELBO in nats, best of the restarts by ELBO, then their median; mean over data
sets. inform.: E[log r(z|W,Γ) − log q(z)]. no r: gap of the flow's own posterior, z integrated out (upper
estimate). |Δincl|: mean distance of inclusion probabilities from the exact ones, for the best restart, the
median restart, and the worst input. P(one): probability that exactly one input is included; exact value.
"""


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """One column per design; gaps to the evidence of both priors, then errors of the inclusions."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if row["method"] not in _OFF_SCALE]
    designs = list(dict.fromkeys(row["design"] for row in rows))
    sparse = [row for row in rows if row["prior"] == "spike_slab"]
    dense = [row for row in rows if row["prior"] == "gaussian"]
    panels = (
        (sparse, "gap", "spike-and-slab prior: log evidence − ELBO (nats)"),
        (dense, "gap", "Gaussian prior: log evidence − ELBO (nats)"),
        (sparse, "inclusion_error", "mean |inclusion probability − exact|"),
    )
    heights = [len({row["method"] for row in own}) + 1.5 for own, _, _ in panels]
    figure = Figure(figsize=(3.3 * len(designs) + 2.2, 0.32 * sum(heights)), layout="constrained")
    axes = figure.subplots(3, len(designs), squeeze=False, sharey="row", height_ratios=heights)
    for line, (own, key, label) in zip(axes, panels):
        for axis, design in zip(line, designs):
            shown = [row for row in own if row["design"] == design]
            _dots(axis, shown, key)
            if key == "gap":
                _gap_axis(axis, [row[key] for row in shown])
        line[len(designs) // 2].set_xlabel(label)
    for axis in axes[2]:
        axis.set_xlim(-0.01, 0.3)
    for axis, design in zip(axes[0], designs):
        axis.set_title(f"“{design}”", fontsize=11)
    figure.savefig(path, dpi=100)


def _gap_axis(axis: Any, values: Sequence[float]) -> None:
    """From 0 while the values are of one size; else logarithmic, with few enough ticks to read."""
    if max(values) < 8.0 * min(values):
        axis.set_xlim(0.0, 1.1 * max(values))
        return
    low, high = 0.7 * min(values), 1.4 * max(values)
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    shown = [tick for tick in _TICKS if low <= tick <= high]
    if high > 60.0 * low:
        shown = [tick for tick in shown if f"{tick:e}".startswith("1.")]
    axis.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axis.set_xticks([], minor=True)


def _colour(method: str) -> str:
    families = ("gaussian", "spike_slab", "concrete", "flow", "mnf")
    family = method.split(",")[0]
    return COLOURS[6] if method.endswith("optimum") else COLOURS[families.index(family)]


def _dots(axis: Any, rows: Sequence[dict[str, Any]], key: str) -> None:
    """A dot per data set, a bar at their mean; methods from top to bottom, limits in black."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for place, method in enumerate(methods):
        values = [row[key] for row in rows if row["method"] == method]
        filled = "none" if "," in method else _colour(method)
        axis.scatter(values, [place] * len(values), s=30, facecolors=filled, edgecolors=_colour(method))
        axis.plot([sum(values) / len(values)], [place], "|", markersize=15, color=_colour(method))
    axis.set_yticks(range(len(methods)), methods)
    axis.set_ylim(len(methods) - 0.5, -0.5)
    axis.grid(axis="x", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
