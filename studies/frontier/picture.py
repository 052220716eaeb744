"""The frontier's picture: error, NLL and calibration error against density.

Bands go from the lowest to the highest seed. Averaging over the posterior before the cut has that posterior's
density, whatever the target: it is one point, of all seeds, with its range.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from studies import style
from studies.frontier.report import measures, place_name, places
from studies.tables.cells import DATASETS
from studies.tables.published import printed
from studies.tables.report import NAMES

__all__ = ["draw", "write"]

_PANELS = (("accuracy", "error, %"), ("nll", "NLL, nats"), ("ece", "calibration error"))
_CURVES = {
    ("lrt", "median"): "LBBNN-LRT, median model",
    ("lrt", "average"): "LBBNN-LRT, averaging",
    ("flow", "median"): "LBBNN-FLOW, median model",
    ("flow", "average"): "LBBNN-FLOW, averaging",
    ("pruned", "median"): "pruned and refitted",
}
_STYLES = {"lrt": ("lrt", "o"), "flow": ("flow", "s"), "pruned": ("plain", "^")}


def draw(results: Path, path: Path) -> bool:
    """A row of panels for every data set and architecture with curves; False if there are none."""
    curves = places(results, "densities", ("lrt", "flow", "pruned"))
    rows = list(dict.fromkeys((d, a) for d, a, _, _ in curves))
    if not rows:
        return False
    with style.plain() as plt:
        figure, axes = plt.subplots(len(rows), 3, figsize=(9.6, 2.9 * len(rows) + 0.6), squeeze=False)
        entries: dict[str, Any] = {}
        for line, (dataset, architecture) in zip(axes, rows):
            own = {m: c for d, a, m, c in curves if (d, a) == (dataset, architecture)}
            for axis, (measure, label) in zip(line, _PANELS):
                _panel(axis, own, measure)
                axis.set_ylabel(label)
                axis.set_title(place_name(dataset, architecture))
            _papers(line[0], dataset, architecture)
            handles, labels = line[0].get_legend_handles_labels()
            entries = dict(zip(labels, handles)) | entries
        figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=3)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    return True


def _panel(axis: Any, curves: dict[str, dict[str, Any]], measure: str) -> None:
    for (method, model), label in _CURVES.items():
        if method not in curves:
            continue
        kind, marker = _STYLES[method]
        look = {**style.line(kind), "linestyle": "-" if model == "median" else "--"}
        blocks = [block["replicates"] for block in curves[method]["rows"]]
        if model == "average" and curves[method]["settings"].get("average_of") == "free":
            every = [row for block in blocks for row in block]
            place, least, value, most = _middle(every, measure, model, "density_free")
            own = {"color": look["color"], "markerfacecolor": "white", "capsize": 3, "zorder": 3}
            reach = [[value - least], [most - value]]
            axis.errorbar(place, value, reach, fmt=marker, label=f"{label} before the cut", **own)
            continue
        at, low, middle, high = zip(*(_middle(block, measure, model, "density") for block in blocks))
        axis.plot(at, middle, marker=marker, markersize=3.5, label=label, **look)
        axis.fill_between(at, low, high, color=look["color"], alpha=0.15, linewidth=0)
    _scales(axis)


def _middle(
    rows: list[dict[str, Any]], measure: str, model: str, density: str
) -> tuple[float, float, float, float]:
    """Density in per cent (median), then lowest, median and highest value over the rows."""
    found = measures(rows, f"{measure}_{model}")
    found = 100.0 - found if measure == "accuracy" else found
    at = 100.0 * float(np.median([row[density] for row in rows]))
    return at, float(found.min()), float(np.median(found)), float(found.max())


def _scales(axis: Any) -> None:
    """Both logarithmic, with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.set_yscale("log")
    ticks = [0.5, 1, 2, 5, 10, 20, 50]
    axis.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axis.set_xlim(0.4, max(60.0, 1.2 * axis.dataLim.x1))
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.minorticks_off()
    axis.set_xlabel("density, %")
    axis.grid(alpha=0.3)


def _papers(axis: Any, dataset: str, architecture: str) -> None:
    """The paper's own points, which have an accuracy and a density and nothing else."""
    if dataset not in DATASETS:
        return
    for method, marker in (("lbbnn", "x"), ("lrt", "+"), ("flow", "*")):
        paper = printed(architecture, dataset, method)
        error = 100.0 - paper.median[1]
        axis.plot(
            [100.0 * paper.density], [error], marker, color="black", label=f"the paper's {NAMES[method]}"
        )


def write(out: Path) -> None:
    """Renew the page's picture."""
    path = out / "docs" / "images" / "frontier.png"
    try:
        if draw(out / "results", path):
            print(f"Wrote {path}.")
    except ImportError:
        print("No picture: it needs matplotlib (pip install 'sparsebnn[plot]').")
