"""Figures 1 and 2 of the paper, drawn from networks that were trained: a structure, and two weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from studies.style import COLOURS

__all__ = ["figure_1", "figure_2"]

Arrays = Mapping[str, np.ndarray]


def _layers(arrays: Arrays) -> list[np.ndarray]:
    names = sorted(name for name in arrays if name.startswith("structure/inclusion/"))
    return [arrays[name] for name in names]


def _heights(units: int) -> np.ndarray:
    return np.linspace(0.0, 1.0, units + 2)[1:-1][::-1]


def _network(axis: Any, layers: Sequence[np.ndarray], kept: Sequence[np.ndarray]) -> None:
    """Units as circles, the weights of ``kept`` as lines; a unit without any is hollow."""
    sizes = [layers[0].shape[1], *(layer.shape[0] for layer in layers)]
    for depth, there in enumerate(kept):
        left, right = _heights(sizes[depth]), _heights(sizes[depth + 1])
        for j, i in zip(*np.nonzero(there)):
            axis.plot([depth, depth + 1], [left[i], right[j]], color=COLOURS[0], linewidth=0.7, zorder=1)
    for depth, units in enumerate(sizes):
        used = np.zeros(units, dtype=bool)
        if depth < len(kept):
            used |= kept[depth].any(0)
        if depth > 0:
            used |= kept[depth - 1].any(1)
        fill = [COLOURS[1] if one else "white" for one in used]
        heights = _heights(units)
        look = {"s": 36, "edgecolors": "black", "linewidths": 0.7, "zorder": 2}
        axis.scatter(np.full(units, depth), heights, c=fill, **look)
    for k, height in enumerate(_heights(sizes[0])):
        axis.text(-0.12, height, f"x{k + 1}" if k < 2 else "noise", ha="right", va="center", size=7)
    for k, height in enumerate(_heights(sizes[-1])):
        axis.text(len(sizes) - 0.88, height, f"class {k + 1}", ha="left", va="center", size=7)
    axis.set_xlim(-0.7, len(sizes) - 0.2)
    axis.axis("off")


def figure_1(plt: Any, arrays: Arrays) -> Any:
    """A dense network and the structure that LBBNN-FLOW learned: weights with inclusion above one half."""
    layers = _layers(arrays)
    dense = [np.ones_like(layer, dtype=bool) for layer in layers]
    sparse = [layer > 0.5 for layer in layers]
    total = sum(layer.size for layer in layers)
    left = sum(int(layer.sum()) for layer in sparse)
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.0))
    _network(axes[0], layers, dense)
    _network(axes[1], layers, sparse)
    axes[0].set_title(f"dense: {total} weights")
    right = float(arrays["structure/accuracy"])
    axes[1].set_title(f"learned: {left} weights, test accuracy {right:.3f}")
    return figure


def _node(axis: Any, at: tuple[float, float], text: str, colour: str) -> None:
    box = {"boxstyle": "circle,pad=0.35", "facecolor": colour, "edgecolor": "black", "linewidth": 0.8}
    axis.text(*at, text, ha="center", va="center", bbox=box, size=8, zorder=3)


def _arrow(axis: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    look = {"arrowstyle": "->", "linewidth": 0.9, "shrinkA": 12, "shrinkB": 12}
    axis.annotate("", xy=end, xytext=start, arrowprops=look, zorder=1)


def _graph(axis: Any, latent: bool) -> None:
    """What each weight of one input depends on."""
    places = [0.0, 1.0, 2.0]
    for k, x in enumerate(places, start=1):
        _arrow(axis, (x, 0.0), (x, 1.0))
        _node(axis, (x, 0.0), f"$\\gamma_{{i{k}}}$", "white")
        _node(axis, (x, 1.0), f"$w_{{i{k}}}$", "#cfe4f3")
        if latent:
            _arrow(axis, (1.0, 2.0), (x, 1.0))
    if latent:
        _node(axis, (1.0, 2.0), "$z_i$", "#f7dca8")
        _arrow(axis, (-0.4, 2.0), (1.0, 2.0))
        _node(axis, (-0.4, 2.0), "$z_0$", "#f7dca8")
    axis.set_xlim(-0.9, 2.6)
    axis.set_ylim(-0.5, 2.5)
    axis.axis("off")


def figure_2(plt: Any, arrays: Arrays) -> Any:
    """Mean field and the latent z: the graphs, and draws of two weights of one input, as trained."""
    figure, axes = plt.subplots(2, 2, figsize=(6.4, 4.8), height_ratios=(1.0, 1.2))
    panels = (("spike_slab", "mean field (LBBNN-LRT)", False), ("flow", "with latent z (LBBNN-FLOW)", True))
    for column, (family, title, latent) in enumerate(panels):
        _graph(axes[0, column], latent)
        axes[0, column].set_title(title)
        draws = arrays[f"structure/{family}/draws"]
        unit, first, second = (int(k) for k in arrays[f"structure/{family}/pair"])
        axis = axes[1, column]
        axis.plot(draws[:, 0], draws[:, 1], ".", markersize=2.5, color=COLOURS[0])
        axis.set_xlabel(f"weight from x{unit + 1} to unit {first + 1}")
        axis.set_ylabel(f"… to unit {second + 1}")
        spread = draws.std(0)
        found = float(np.corrcoef(draws.T)[0, 1]) if bool((spread > 0).all()) else 0.0
        axis.set_title(f"draws, correlation {found:+.2f}")
    return figure
