"""The study of the local reparametrization as tables and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.style import COLOURS

__all__ = ["draw", "table"]

Row = dict[str, Any]
_LAYERS = ((25, "first layer of LeNet"), (784, "first dense layer"))
_KINDS = ((False, "the same inclusion probability everywhere"), (True, "polarised inclusion probabilities"))


def table(found: Mapping[str, Sequence[Row]]) -> str:
    """Kolmogorov distances by width (down) and density (across), then the checks and the joint rows."""
    text: list[str] = []
    for polarised, title in _KINDS:
        rows = [row for row in found["distances"] if row["polarised"] == polarised]
        for key, name in (("kolmogorov", "Kolmogorov"), ("wasserstein", "1-Wasserstein / sd")):
            text += _matrix(rows, key, f"{name}, {title}")
    text += ["", "Draws of the library's layers (Kolmogorov distances)"]
    text.append("  width density polarised   computed    drawn  drawn–exact   chance")
    for row in found["checks"]:
        text.append(
            f"  {row['width']:5d} {row['density']:7.2f} {row['polarised']!s:>9s}   {row['kolmogorov']:8.4f} "
            f"{row['drawn']:8.4f} {row['drawn_from_exact']:12.4f} {row['chance']:8.4f}"
        )
    text += ["", "Outputs of the same draw: whole weights | local reparametrization"]
    text.append("  op                      width    correlation        sd of one      sd of their mean")
    for row in found["joint"]:
        pairs = (
            f"{row[f'{key}_weights']:7.3f} |{row[f'{key}_local']:7.3f}"
            for key in ("correlation", "std_of_one", "std_of_mean")
        )
        text.append(f"  {row['op']:22s} {row['width']:6d} " + " ".join(pairs))
    return "\n".join(text)


def _matrix(rows: Sequence[Row], key: str, title: str) -> list[str]:
    densities = list(dict.fromkeys(row["density"] for row in rows))
    lines = ["", title, "  width " + "".join(f"{density:8.2f}" for density in densities)]
    for width in dict.fromkeys(row["width"] for row in rows):
        cells = [row[key] for row in rows if row["width"] == width]
        lines.append(f"  {width:5d} " + "".join(f"{cell:8.4f}" for cell in cells))
    return lines


def draw(rows: Sequence[Row], path: Path) -> None:
    """Kolmogorov distance against width, a line per density, a panel per kind of inclusions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    markers = "osD^vP"
    for axis, (polarised, title) in zip(axes, _KINDS):
        own = [row for row in rows if row["polarised"] == polarised]
        for i, density in enumerate(dict.fromkeys(row["density"] for row in own)):
            line = [row for row in own if row["density"] == density]
            widths = [row["width"] for row in line]
            style = {"color": COLOURS[i], "marker": markers[i], "markersize": 4.5}
            axis.plot(widths, [row["kolmogorov"] for row in line], label=f"{density:g}", **style)
            low, high = ([row[f"kolmogorov_{end}"] for row in line] for end in ("10", "90"))
            axis.fill_between(widths, low, high, color=COLOURS[i], alpha=0.12, linewidth=0)
        for width, name in _LAYERS:
            axis.axvline(width, color="0.5", linewidth=0.8, linestyle=":")
            axis.text(
                width,
                0.03,
                name,
                rotation=90,
                fontsize=8,
                color="0.35",
                ha="right",
                va="bottom",
                transform=axis.get_xaxis_transform(),
            )
        axis.set_xscale("log", base=2)
        axis.set_xticks([4**k for k in range(6)], [str(4**k) for k in range(6)])
        axis.set_yscale("log")
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("incoming weights of the unit")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("Kolmogorov distance from the Gaussian")
    axes[0].legend(title="density", fontsize=9, loc="lower left")
    figure.savefig(path, dpi=88)
