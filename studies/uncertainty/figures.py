"""Figures 1, 2 and 5 to 10 of the paper, and a reliability diagram, from the saved results alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from studies import style
from studies.uncertainty.diagrams import figure_1, figure_2
from studies.uncertainty.measures import t_quantile
from studies.uncertainty.methods import POSTERIOR
from studies.uncertainty.report import LABELS

__all__ = ["draw_all"]

Arrays = Mapping[str, np.ndarray]
_MOST = math.log(5.0)
_MARKERS = "o^sDv"


def draw_all(results: Path, images: Path) -> list[Path]:
    """Every figure as a PNG in ``images``; nothing is trained."""
    images.mkdir(parents=True, exist_ok=True)
    record = json.loads((results / "uncertainty.json").read_text(encoding="utf-8"))
    with np.load(results / "arrays.npz") as saved:
        arrays = {name: saved[name].astype(np.float64) for name in saved.files}
    sizes = [int(size) for size in record["summary"]["cells"]]
    by_size = {size: list(record["summary"]["cells"][str(size)]) for size in sizes}
    methods = [key for key in by_size[sizes[0]] if key not in POSTERIOR]
    bayes = [key for key in by_size[sizes[0]] if key in (*POSTERIOR, "dropout")]
    drawn = []
    with style.plain() as plt:
        figures = {
            "figure_1": figure_1(plt, arrays),
            "figure_2": figure_2(plt, arrays),
            "figure_5": _truth(plt, arrays, sizes),
            "figure_9": _by_certainty(plt, arrays, methods, sizes[0]),
            "figure_9_bayes": _by_certainty(plt, arrays, bayes, sizes[0]),
            "figure_10": _alarms(plt, arrays, record, methods, sizes[-1]),
            "reliability": _reliability(plt, arrays, methods, sizes),
        }
        for number, size in enumerate(sizes, start=6):
            figures[f"figure_{number}"] = _entropies(plt, arrays, by_size[size], size)
        for name, figure in figures.items():
            path = images / f"uncertainty_{name}.png"
            figure.savefig(path, metadata={"Software": None})
            drawn.append(path)
    return drawn


def _square(values: np.ndarray) -> np.ndarray:
    """A grid's values as an image: first coordinate to the right, second upwards."""
    side = math.isqrt(len(values))
    return values.reshape(side, side).T


def _map(axis: Any, values: np.ndarray, title: str, extent: tuple[float, ...], **scale: Any) -> Any:
    look = {"cmap": style.MAP, "interpolation": "nearest", **scale}
    image = axis.imshow(_square(values), origin="lower", extent=extent, **look)
    axis.set_title(title)
    axis.set_xticks(np.unique([extent[0], 0, 1, extent[1]]))
    axis.set_yticks(np.unique([extent[2], 0, 1, extent[3]]))
    return image


def _entropy_map(axis: Any, values: np.ndarray, title: str) -> Any:
    # One colour scale throughout: from certainty to five equally likely classes.
    return _map(axis, values, title, (0.0, 1.0, 0.0, 1.0), vmin=0.0, vmax=_MOST)


def _rows(axis: Any, arrays: Arrays, size: int, most: int = 250) -> None:
    x, y = arrays[f"truth/{size}/x"], arrays[f"truth/{size}/y"]
    step = max(1, len(x) // most)
    for k, marker in enumerate(_MARKERS):
        of_class = x[y == k][::step]
        axis.plot(
            of_class[:, 0], of_class[:, 1], marker, markersize=2.6, color="white", markeredgecolor="black",
            markeredgewidth=0.4, linestyle="none", clip_on=False,
        )  # fmt: skip


def _truth(plt: Any, arrays: Arrays, sizes: list[int]) -> Any:
    """Figure 5: the generating model, on the scale of each training set."""
    figure, axes = plt.subplots(1, len(sizes), figsize=(2.3 * len(sizes) + 0.6, 2.5), squeeze=False)
    for axis, size in zip(axes[0], sizes):
        values = arrays[f"truth/{size}/grid_entropy"]
        image = _entropy_map(axis, values, f"generating model,\nscaled by {size} per class")
    figure.colorbar(image, ax=axes, label="entropy, nats", shrink=0.9)
    return figure


def _entropies(plt: Any, arrays: Arrays, methods: list[str], size: int) -> Any:
    """Figures 6 to 8: predictive entropy of every method and of the generating model."""
    columns = 4
    lines = -(-(len(methods) + 1) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(7.6, 2.05 * lines), squeeze=False)
    flat = list(axes.flat)
    image = _entropy_map(flat[0], arrays[f"truth/{size}/grid_entropy"], "generating model")
    _rows(flat[0], arrays, size)
    for axis, method in zip(flat[1:], methods):
        title = LABELS[method].replace(", ", ",\n")
        _entropy_map(axis, arrays[f"{method}/{size}/grid_entropy"], title)
    for axis in flat[len(methods) + 1 :]:
        axis.axis("off")
    figure.colorbar(image, ax=axes, label="entropy, nats", shrink=0.8)
    return figure


def _band(axis: Any, x: np.ndarray, values: np.ndarray, method: str, label: str) -> None:
    """Mean over replicates with its 95% interval."""
    look = style.line(method)
    middle = values.mean(0)
    axis.plot(x, middle, label=label, **look)
    if len(values) > 1:
        half = t_quantile(len(values) - 1) * values.std(0, ddof=1) / len(values) ** 0.5
        axis.fill_between(x, middle - half, middle + half, color=look["color"], alpha=0.15, linewidth=0)


def _by_certainty(plt: Any, arrays: Arrays, methods: list[str], size: int) -> Any:
    """Figure 9: from the most to the least certain test rows, by entropy, a hundredth at a time."""
    panels = (
        ("cumulative_accuracy", "accuracy of all rows up to here", 1.0),
        ("block_accuracy", "accuracy of each hundredth", 1.0),
        ("sorted_entropy", "entropy, sorted, nats", _MOST),
        ("sorted_max_prob", "maximum probability, sorted", 1.0),
    )
    figure, axes = plt.subplots(2, 2, figsize=(7.2, 4.6), sharex=True)
    for axis, (name, title, most) in zip(axes.flat, panels):
        for method in methods:
            values = arrays[f"{method}/{size}/{name}"]
            share = (np.arange(values.shape[1]) + 1.0) / values.shape[1]
            _band(axis, share, values, method, LABELS[method])
        axis.set_title(title)
        axis.set_ylim(0.0, 1.02 * most)
    for axis in axes[1]:
        axis.set_xlabel("share of test rows, most certain first")
    axes[1, 1].axhline(0.5, color="0.6", linewidth=0.8)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _alarms(plt: Any, arrays: Arrays, record: Mapping[str, Any], methods: list[str], size: int) -> Any:
    """Figure 10: where the largest model-averaged output is above the training rows' 95% quantile."""
    from matplotlib.colors import ListedColormap

    two = ListedColormap(["white", "#0072B2"])
    extent = (-1.0, 2.0, -1.0, 2.0)
    drawn = [row for row in record["rows"] if row["per_class"] == size and row["replicate"] == 0]
    first = {row["method"]: row["detection"] for row in drawn}
    rules = (("outer_max_output", "max_output"), ("outer_entropy", "entropy"))
    figure, axes = plt.subplots(2, len(methods), figsize=(1.45 * len(methods), 3.4), squeeze=False)
    for column, method in enumerate(methods):
        for line, (name, score) in enumerate(rules):
            axis, rule = axes[line, column], first[method][score]
            alarm = arrays[f"{method}/{size}/{name}"] > rule["threshold"]
            title = LABELS[method] if line == 0 else ""
            _map(axis, alarm.astype(float), title, extent, cmap=two, vmin=0.0, vmax=1.0)
            axis.plot([0, 1, 1, 0, 0], [0, 0, 1, 1, 0], color="black", linewidth=0.9)
            axis.tick_params(labelsize=6)
            shares = f"{rule['flagged_outside']:.0%} outside\n{rule['flagged_inside']:.1%} fresh"
            axis.set_xlabel(shares, size=7)
    axes[0, 0].set_ylabel("maximum output\nabove quantile")
    axes[1, 0].set_ylabel("entropy\nabove quantile")
    return figure


def _reliability(plt: Any, arrays: Arrays, methods: list[str], sizes: list[int]) -> Any:
    """Accuracy against confidence, all replicates pooled; bins of fewer than 50 rows are left out."""
    figure, axes = plt.subplots(1, len(sizes), figsize=(2.4 * len(sizes), 2.9), sharey=True, squeeze=False)
    for axis, size in zip(axes[0], sizes):
        axis.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
        for method in methods:
            values = arrays[f"{method}/{size}/reliability"]
            rows = values[:, 0]
            total = rows.sum(0)
            mean = [(rows * values[:, k]).sum(0) / np.maximum(total, 1.0) for k in (1, 2)]
            used = total >= 50
            axis.plot(mean[0][used], mean[1][used], marker="o", markersize=2.5, label=LABELS[method],
                      **style.line(method))  # fmt: skip
        axis.set_title(f"{size} per class")
        axis.set_xlabel("probability of the most probable class")
        axis.set_xlim(0.15, 1.0)
    axes[0, 0].set_ylabel("how often it is right")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
