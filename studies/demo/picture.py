"""The demo's picture: the remaining network, and the digits it is least sure of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.inference.prediction import ClassPrediction
from sparsebnn.io.data import Dataset
from sparsebnn.nn.networks import bayesian_layers
from sparsebnn.random.noise import RandomNoise

__all__ = ["Connections", "connections", "draw"]

# Okabe and Ito's palette, which reads with every common colour vision.
_BLUE, _ORANGE, _GREY, _INK = "#0072B2", "#D55E00", "#B8B8B8", "#222222"
_SHOWN = 6


@dataclass(frozen=True)
class Connections:
    """A layer of the median probability model: which weights are included, and their mean strength."""

    kept: Tensor
    strength: Tensor


@torch.no_grad()
def connections(network: nn.Module, n_draws: int = 50) -> list[Connections]:
    """Each layer's surviving weights; their strength is the mean of draws, since z scales a flow's."""
    noise = RandomNoise(torch.Generator().manual_seed(0))
    found = []
    for _, layer in bayesian_layers(network):
        mean = torch.stack([layer.weights.median_draw(noise) for _ in range(n_draws)]).mean(0)
        found.append(Connections(layer.weights.inclusion_prob() > 0.5, mean))
    return found


def live_units(layers: list[Connections]) -> list[Tensor]:
    """For each column of units, which lie on a path of surviving weights from an input to an output."""
    forward = [torch.ones(layers[0].kept.shape[1], dtype=torch.bool)]
    for layer in layers:
        forward.append((layer.kept & forward[-1]).any(1))
    backward = [torch.ones(layers[-1].kept.shape[0], dtype=torch.bool)]
    for layer in reversed(layers):
        backward.append((layer.kept & backward[-1][:, None]).any(0))
    return [f & b for f, b in zip(forward, reversed(backward))]


def draw(network: nn.Module, data: Dataset, prediction: ClassPrediction, note: str, path: Path) -> Path:
    """Draw and write the picture; ``prediction`` is of the test part, ``note`` the line under the title."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    layers = connections(network)
    kept = sum(int(layer.kept.sum()) for layer in layers)
    total = sum(layer.kept.numel() for layer in layers)
    title = f"What is left of a network that reads digits: {kept:,} of {total:,} weights ({kept / total:.1%})"
    figure = Figure(figsize=(12.0, 7.2), dpi=100, facecolor="white")
    figure.text(0.03, 0.945, title, fontsize=16, fontweight="bold", color=_INK)
    figure.text(0.03, 0.908, note, fontsize=10.5, color="#555555")
    grid = figure.add_gridspec(
        1, 2, width_ratios=[1.6, 1.0], left=0.03, right=0.975, top=0.84, bottom=0.045, wspace=0.1
    )
    left = grid[0].subgridspec(2, 2, height_ratios=[1.9, 1.0], width_ratios=[0.8, 1], hspace=0.2, wspace=0.2)
    right = grid[1].subgridspec(_SHOWN, 2, width_ratios=[1, 3.6], hspace=0.42, wspace=0.08)
    _paths(figure.add_subplot(left[0, :]), layers, data.class_names)
    _pixels(figure.add_subplot(left[1, 0]), layers[0], data.image_shape)
    _densities(figure.add_subplot(left[1, 1]), layers)
    _unsure(figure, right, data, prediction)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    # A palette makes the file a quarter as large without a visible difference.
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels.quantize(192).save(path, optimize=True)
    return path


def _title(axes: Any, text: str) -> None:
    axes.set_title(text, fontsize=11, loc="left", color=_INK)


def _bare(axes: Any, *sides: str) -> None:
    """No ticks, and no frame but on these sides."""
    axes.tick_params(length=0, pad=2)
    for side, spine in axes.spines.items():
        spine.set_visible(side in sides)
        spine.set_color(_GREY)


def _paths(axes: Any, layers: list[Connections], class_names: Sequence[str]) -> None:
    """Units as dots in columns, surviving weights as lines; hidden units ordered to cross little."""
    live = live_units(layers)
    heights = _heights(layers, live)
    for column, layer in enumerate(layers):
        _lines(axes, column, layer, live[column : column + 2], heights[column : column + 2])
    names = ["pixels", *["hidden units"] * (len(layers) - 1), "digits"]
    for column, (alive, height) in enumerate(zip(live, heights)):
        axes.scatter(
            [column] * int(alive.sum()), height[alive].tolist(), s=9, color=_INK, zorder=3, linewidths=0
        )
        text = f"{int(alive.sum())} of {len(alive)} {names[column]}"
        axes.text(column, -0.045, text, ha="center", va="top", fontsize=9.5, color=_INK)
    for name, height in zip(class_names, heights[-1].tolist()):
        axes.text(len(layers) + 0.05, height, name, fontsize=10, va="center", color=_INK)
    axes.set_xlim(-0.27, len(layers) + 0.2)
    axes.set_ylim(-0.1, 1.02)
    axes.axis("off")
    _title(axes, "Every surviving path from a pixel to a digit (blue: positive weight, orange: negative)")


def _lines(axes: Any, column: int, layer: Connections, live: list[Tensor], heights: list[Tensor]) -> None:
    """The weights between two columns, the strong ones on top and darker."""
    from matplotlib.collections import LineCollection

    targets, sources = torch.nonzero(layer.kept & live[0] & live[1][:, None], as_tuple=True)
    if len(targets) == 0:
        return
    weight = layer.strength[targets, sources]
    size = (weight.abs() / weight.abs().quantile(0.98).clamp_min(1e-12)).clamp(0.1, 1.0)
    order = size.argsort()
    ends = torch.stack([heights[0][sources], heights[1][targets]], 1)[order]
    axes.add_collection(
        LineCollection(
            [[(column, low), (column + 1, high)] for low, high in ends.tolist()],
            colors=[_BLUE if w > 0 else _ORANGE for w in weight[order].tolist()],
            linewidths=(1.5 * size[order]).tolist(),
            alpha=(0.7 * size[order]).tolist(),
        )
    )


def _heights(layers: list[Connections], live: list[Tensor]) -> list[Tensor]:
    """Where each unit is drawn, 0 to 1; hidden columns sorted by the mean height of their neighbours."""
    heights = [torch.linspace(1, 0, len(alive)) for alive in live]
    heights[0] = _spaced(heights[0], live[0])
    weights = [layer.strength.abs() * layer.kept for layer in layers]
    for _ in range(8):
        for column in range(1, len(layers)):
            before, after = weights[column - 1], weights[column]
            pull = before @ heights[column - 1] + after.T @ heights[column + 1]
            share = (before.sum(1) + after.sum(0)).clamp_min(1e-12)
            heights[column] = _spaced(pull / share, live[column])
    return heights


def _spaced(height: Tensor, alive: Tensor) -> Tensor:
    """The same order, equal distances, live units only."""
    placed = height.clone()
    index = alive.nonzero().flatten()
    order = index[height[index].argsort(descending=True)]
    placed[order] = torch.linspace(1, 0, max(2, len(order)))[: len(order)]
    return placed


def _pixels(axes: Any, first: Connections, shape: tuple[int, ...]) -> None:
    """How many weights of the first layer read each pixel, in the place of the pixel."""
    counts = first.kept.sum(0).reshape(shape)
    axes.imshow(counts.numpy(), cmap="Blues", vmin=0)
    for row, line in enumerate(counts.tolist()):
        for column, count in enumerate(line):
            colour = "white" if count > 0.55 * int(counts.max()) else _INK
            axes.text(column, row, str(count), ha="center", va="center", fontsize=7.5, color=colour)
    axes.set_xticks([])
    axes.set_yticks([])
    _bare(axes, "left", "right", "top", "bottom")
    _title(axes, "Surviving weights per pixel")


def _densities(axes: Any, layers: list[Connections]) -> None:
    """The density of each layer as a bar."""
    for place, layer in enumerate(layers):
        kept, total = int(layer.kept.sum()), layer.kept.numel()
        axes.barh(place, 1.0, color="#EDEDED", height=0.6)
        axes.barh(place, kept / total, color=_BLUE, height=0.6)
        inside = kept / total > 0.5
        axes.text(
            kept / total + (-0.02 if inside else 0.02),
            place,
            f"{kept / total:.1%}  ({kept:,} of {total:,})",
            ha="right" if inside else "left",
            va="center",
            fontsize=9.5,
            color="white" if inside else _INK,
        )
    names = [f"{layer.kept.shape[1]} → {layer.kept.shape[0]}" for layer in layers]
    axes.set_yticks(range(len(layers)), names, fontsize=9.5)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0%", "50%", "100%"], fontsize=8.5)
    _bare(axes)
    _title(axes, "Share of weights left, by layer")


def _unsure(figure: Any, grid: Any, data: Dataset, prediction: ClassPrediction) -> None:
    """The test digits of highest predictive entropy with their class probabilities."""
    most = prediction.entropy.argsort(descending=True)[:_SHOWN]
    for place, row in enumerate(most.tolist()):
        truth, said = int(data.y_test[row]), int(prediction.probs[row].argmax())
        image = figure.add_subplot(grid[place, 0])
        image.imshow(data.x_test[row].reshape(data.image_shape).numpy(), cmap="gray_r", vmin=0, vmax=1)
        image.set_xticks([])
        image.set_yticks([])
        _bare(image, "left", "right", "top", "bottom")
        bars = figure.add_subplot(grid[place, 1])
        probs = prediction.probs[row].tolist()
        colours = {said: _ORANGE, truth: _BLUE}
        bars.bar(
            range(len(probs)), probs, color=[colours.get(c, _GREY) for c in range(len(probs))], width=0.75
        )
        bars.set_ylim(0, 1.15)
        bars.set_yticks([])
        bars.set_xticks(range(len(probs)), data.class_names, fontsize=8.5)
        _bare(bars, "bottom")
        verdict = f"a {data.class_names[truth]}, read as {data.class_names[said]}"
        total, epistemic = float(prediction.entropy[row]), float(prediction.mutual_information[row])
        text = f"{verdict}\nentropy {total:.2f} nats, {epistemic / max(total, 1e-12):.0%} epistemic"
        bars.text(1.0, 1.02, text, transform=bars.transAxes, ha="right", va="top", fontsize=8.5, color=_INK)
        if place == 0:
            _title(image, "Least sure of (blue: truth, orange: wrong answer)")
