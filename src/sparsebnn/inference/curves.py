"""What-if curves: predictions along one or two inputs, with intervals."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.checks import check_count, invalid
from sparsebnn.inference.explanation import (
    COLORS,
    axis_of,
    check_level,
    finished,
    frame_of,
    interval,
    named,
    networks_of,
    rows_of,
)
from sparsebnn.inference.sampling import draw_outputs
from sparsebnn.likelihoods import Likelihood
from sparsebnn.likelihoods.base import ClassLikelihood

__all__ = ["WhatIf", "what_if"]


@dataclass(frozen=True)
class WhatIf:
    """Predictions along one or two inputs, the others as they are, averaged over the given rows.

    ``grid`` has the values of each of the inputs ``names``; ``mean``, ``low`` and ``high`` have shape
    ``(values, outputs)`` or ``(values of the first, of the second, outputs)``: mean and interval over draws.
    """

    names: tuple[str, ...]
    outputs: tuple[str, ...]
    grid: tuple[np.ndarray, ...]
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    level: float

    def frame(self) -> Any:
        """A pandas frame with a line for every point of the grid and output."""
        index = np.indices(self.mean.shape).reshape(self.mean.ndim, -1)
        values = {name: grid[i] for name, grid, i in zip(self.names, self.grid, index)}
        numbers = {name: getattr(self, name).reshape(-1) for name in ("mean", "low", "high")}
        return frame_of({**values, "output": np.array(self.outputs, dtype=object)[index[-1]], **numbers})

    def plot(self, output: int = -1, path: str | Path | None = None, axis: Any = None) -> Any:
        """A line with its band, or for two inputs a map of the mean."""
        axis = axis_of(axis, (4.5, 3.0))
        mean, low, high = (each[..., output] for each in (self.mean, self.low, self.high))
        axis.set_xlabel(self.names[0])
        if len(self.grid) == 2:
            shown = axis.pcolormesh(*self.grid, mean.T, shading="nearest")
            axis.figure.colorbar(shown, ax=axis, label=self.outputs[output])
            axis.set_ylabel(self.names[1])
            return finished(axis, path)
        if self.grid[0].dtype == object:
            axis.errorbar(range(len(mean)), mean, [mean - low, high - mean], fmt="o", color=COLORS[0])
            axis.set_xticks(range(len(mean)), self.grid[0])
        else:
            axis.plot(self.grid[0], mean, color=COLORS[0])
            axis.fill_between(self.grid[0], low, high, color=COLORS[0], alpha=0.25, linewidth=0)
        axis.set_ylabel(self.outputs[output])
        return finished(axis, path)


@torch.no_grad()
def what_if(
    network: Any,
    x: Any,
    inputs: int | Sequence[int],
    *,
    grid: Any = None,
    points: int = 30,
    likelihood: Likelihood | None = None,
    n_draws: int = 100,
    level: float = 0.9,
    model: str = "average",
    names: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    seed: int = 0,
) -> WhatIf:
    """What the network would predict for these rows if one or two inputs had other values.

    ``x`` is one row or several, over which every draw is averaged. ``grid`` has the values of the input, or
    one array for each of two; by default ``points`` values from the smallest to the largest in ``x``. With a
    ``likelihood`` the curves are class probabilities or means, otherwise outputs of the network.

    >>> import sparsebnn
    >>> network = sparsebnn.mlp([3, 4, 1])
    >>> curve = what_if(network, torch.randn(20, 3), 1, points=5, n_draws=10)
    >>> curve.grid[0].shape, curve.mean.shape
    ((5,), (5, 1))
    """
    networks, rows = networks_of(network, "what_if"), rows_of(x, "what_if")
    check_level(level, "what_if")
    if rows.dim() != 2:
        raise invalid("x", "what_if", "of shape (rows, inputs)", f"shape {tuple(rows.shape)}")
    chosen = [inputs] if isinstance(inputs, int) else list(inputs)
    width = rows.shape[1]
    if len(chosen) not in (1, 2) or not all(isinstance(i, int) and -width <= i < width for i in chosen):
        raise invalid("inputs", "what_if", f"one or two numbers of {width} inputs", repr(inputs))
    values = grids(grid, [rows[:, i].numpy() for i in chosen], points, "what_if")
    mesh = np.meshgrid(*values, indexing="ij")
    changed = rows.repeat(mesh[0].size, 1)
    for i, at in zip(chosen, mesh):
        changed[:, i] = torch.from_numpy(at.reshape(-1).astype(np.float64)).repeat_interleave(len(rows))
    each = -(-check_count(n_draws, "n_draws", "what_if") // len(networks))
    draws = torch.cat([_predicted(own, changed, each, model, seed, likelihood) for own in networks])
    averaged = draws.unflatten(1, (*mesh[0].shape, len(rows))).mean(-2)
    every = named(outputs, averaged.shape[-1], "outputs", "output ", "what_if")
    columns = named(names, width, "names", "x", "what_if")
    mean, low, high = (part.numpy() for part in interval(averaged, level))
    return WhatIf(tuple(columns[i] for i in chosen), every, tuple(values), mean, low, high, level)


def _predicted(
    network: nn.Module, x: Tensor, n_draws: int, model: str, seed: int, likelihood: Likelihood | None
) -> Tensor:
    """``(draws, rows, outputs)`` in double precision, on the scale of the targets with a likelihood."""
    network = network.double()
    parts = draw_outputs(network, x, n_draws, model=model, draws="weights", seed=seed)
    outputs = torch.cat([part.reshape(*part.shape[:2], -1) for _, part in parts], 1)
    if likelihood is None:
        return outputs
    form = copy.deepcopy(likelihood).cpu().double()
    return (form.probs(outputs) if isinstance(form, ClassLikelihood) else form.mean(outputs)).detach()


def grids(given: Any, values: Sequence[np.ndarray], points: int, owner: str) -> list[np.ndarray]:
    """The values along each input: those given, or a regular grid from the smallest to the largest."""
    check_count(points, "points", owner, least=2)
    if given is not None:
        listed = [given] if len(values) == 1 else list(given)
        if len(listed) != len(values) or not all(np.ndim(each) == 1 and len(each) for each in listed):
            raise invalid("grid", owner, "values of the input, or such a list for each of two", repr(given))
        return [np.asarray(each) for each in listed]
    found = []
    for each in values:
        low, high = np.nanmin(each), np.nanmax(each)
        if not low < high:
            raise invalid("grid", owner, "given if the rows have a single value of an input", "None")
        found.append(np.linspace(low, high, points))
    return found
