r"""Why a network predicts what it does: contributions of inputs, with intervals.

A network with given weights and piecewise linear activations (ReLU, LeakyReLU, maximum pools) is linear
around each row x:

.. math::
    f(x) = \sum_j \frac{\partial f}{\partial x_j}(x)\, x_j + c(x)

so input j contributes :math:`\partial_j f \cdot x_j` and the rest :math:`c(x)` is the base. With other
activations the contributions are those of the tangent at x; with the base they still add up to the output.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.checks import check_choice, check_count, check_number, check_seed, check_tensor, invalid
from sparsebnn.io.formatting import aligned
from sparsebnn.nn.passes import MedianPass, WeightPass, noise_size
from sparsebnn.random.noise import NoiseBuffer, logistics, normals, seed_tensor, stream_id

__all__ = ["Explanation", "explain"]

# Explanations have the draws of predictions, so that they add up to them.
_NORMAL = stream_id("prediction normal")
_LOGISTIC = stream_id("prediction logistic")
_BYTES = 1 << 27
COLORS = ("#2f6fb2", "#c8553d")


@dataclass(frozen=True)
class Explanation:
    """Contributions of inputs to predictions; with ``base`` they sum to the network's mean output.

    That is the prediction of a regression and the mean logit of a classification (not the logit of the mean
    probability), up to Monte Carlo error: ``explain`` uses different draws than ``predict``.

    ``contributions``, ``low`` and ``high`` have shape ``(rows, inputs, outputs)``, ``base`` has shape
    ``(rows, outputs)``: means and intervals over draws. ``names`` are the inputs, ``outputs`` the outputs.
    Of an estimator, inputs are its columns; contributions are in units of the target, or for classification
    log odds (two classes: one output) or unnormalized log probabilities. ``importance`` is the mean absolute
    contribution of each input, ``certain`` the share of rows in which its interval excludes 0.
    """

    names: tuple[str, ...]
    outputs: tuple[str, ...]
    contributions: np.ndarray
    low: np.ndarray
    high: np.ndarray
    base: np.ndarray
    level: float

    @property
    def value(self) -> np.ndarray:
        """The mean outputs that are explained, ``(rows, outputs)``."""
        return self.base + self.contributions.sum(1)

    @property
    def importance(self) -> np.ndarray:
        return np.abs(self.contributions).mean((0, 2))

    @property
    def certain(self) -> np.ndarray:
        return ((self.low > 0.0) | (self.high < 0.0)).mean((0, 2))

    def table(self, row: int = 0, output: int = -1, most: int = 10) -> str:
        """One row's contributions as text, the largest first."""
        values = self.contributions[row, :, output]
        order = np.argsort(-np.abs(values))
        first, rest = order[:most], values[order[most:]].sum()
        base = self.base[row, output]
        ends = [self.low[row, first, output], self.high[row, first, output]]
        numbers = [*values[first], rest, base, base + values.sum(), *ends[0], *ends[1]]
        shown = aligned([float(value) for value in numbers], sign=True, digits=4)
        size, count = max(12, *map(len, shown)), len(first)
        names = [self.names[j] for j in first]
        left = len(order) - most
        others, total = f"{left} other{'s' * (left > 1)}", f"sum: {self.outputs[output]}"
        width = max(9, len(total), *map(len, names))
        lines = [f"{'column':<{width}}  {'contribution':>{size}}  {self.level:.0%} interval"]
        for i, name in enumerate(names):
            low, high = shown[count + 3 + i], shown[2 * count + 3 + i]
            lines.append(f"{name:<{width}}  {shown[i]:>{size}}  {low} to {high}")
        if left > 0:
            lines.append(f"{others:<{width}}  {shown[count]:>{size}}")
        lines.append(f"{'base':<{width}}  {shown[count + 1]:>{size}}")
        return "\n".join([*lines, f"{total:<{width}}  {shown[count + 2]:>{size}}"])

    def summary(self, most: int = 10) -> str:
        """All rows as text: importance and certainty of inputs, the most important first."""
        width = max(9, *(len(name) for name in self.names))
        lines = [f"{'column':<{width}}  importance  certain"]
        for j in np.argsort(-self.importance)[:most]:
            lines.append(f"{self.names[j]:<{width}}  {self.importance[j]:10.3f}  {self.certain[j]:7.0%}")
        return "\n".join(lines)

    def frame(self) -> Any:
        """A pandas frame with a line for every row, input and output."""
        rows, inputs, outputs = self.contributions.shape
        index = np.indices((rows, inputs, outputs)).reshape(3, -1)
        return frame_of(
            {
                "row": index[0],
                "input": np.array(self.names, dtype=object)[index[1]],
                "output": np.array(self.outputs, dtype=object)[index[2]],
                **{name: getattr(self, name).reshape(-1) for name in ("low", "high")},
                "contribution": self.contributions.reshape(-1),
                "base": self.base[index[0], index[2]],
            }
        )

    def plot(
        self,
        row: int | None = None,
        output: int = -1,
        most: int = 10,
        path: str | Path | None = None,
        axis: Any = None,
    ) -> Any:
        """Bars: the contributions to one row with their intervals, or without ``row`` the importance."""
        values = self.importance if row is None else self.contributions[row, :, output]
        order = np.argsort(-np.abs(values))[:most][::-1]
        axis = axis_of(axis, (5.0, 0.3 * len(order) + 1.0))
        ends = None
        if row is not None:
            low, high = self.low[row, order, output], self.high[row, order, output]
            ends = np.maximum([values[order] - low, high - values[order]], 0.0)
        colors = [COLORS[int(value < 0.0)] for value in values[order]]
        axis.barh(range(len(order)), values[order], color=colors, xerr=ends, ecolor="#444444", capsize=2)
        axis.set_yticks(range(len(order)), [self.names[j] for j in order])
        what = "mean absolute contribution" if row is None else f"contribution to {self.outputs[output]}"
        axis.set_xlabel(what)
        return finished(axis, path)


def frame_of(columns: dict[str, Any]) -> Any:
    try:
        import pandas as pd
    except ImportError as missing:
        raise ImportError("A frame needs pandas: pip install 'sparsebnn[all]'") from missing
    return pd.DataFrame(columns)


def axis_of(axis: Any, size: tuple[float, float]) -> Any:
    if axis is not None:
        return axis
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ImportError("Plotting needs matplotlib: pip install 'sparsebnn[plot]'") from missing
    return Figure(figsize=size, layout="constrained").subplots()


def finished(axis: Any, path: str | Path | None) -> Any:
    axis.spines[["top", "right"]].set_visible(False)
    if path is not None:
        axis.figure.savefig(path, dpi=110)
    return axis


def slopes_of_draws(
    networks: Sequence[nn.Module],
    x: Tensor,
    each: int,
    model: str,
    seeds: Sequence[int],
    outputs: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs ``(draws, rows, outputs)`` and slopes ``(draws, rows, *inputs, outputs)``.

    ``each`` is the number of draws of every network, ``seeds`` has the seed of each network's draws.
    """
    kind = MedianPass if model == "median" else WeightPass
    values, slopes = [], []
    for network, seed in zip(networks, seeds, strict=True):
        own = copy.deepcopy(network).double().requires_grad_(False)
        size = noise_size(own, x, kind)
        steps, key = torch.arange(each), seed_tensor([seed], torch.device("cpu"))
        normal = normals(key, _NORMAL, steps, size.normal, torch.float64)
        logistic = logistics(key, _LOGISTIC, steps, size.logistic, torch.float64)

        def run(rows: Tensor, normal: Tensor, logistic: Tensor, own: Any = own) -> Any:
            with kind(NoiseBuffer(normal, logistic)):
                return own(rows)

        # Rows and draws are independent: the gradient of a sum over them holds the slope of each.
        rows = x.expand(each, *x.shape).clone().requires_grad_()
        with torch.enable_grad():
            value = torch.func.vmap(run)(rows, normal, logistic)
            value = value if outputs is None else value[..., list(outputs)]
            totals = value.sum((0, 1))
            found = [torch.autograd.grad(total, rows, retain_graph=True)[0] for total in totals]
        values.append(value.detach())
        slopes.append(torch.stack(found, -1))
    return torch.cat(values), torch.cat(slopes)


def interval(draws: Tensor, level: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, and ends of the interval that holds ``level`` of the draws, over the first axis."""
    ends = torch.tensor([(1.0 - level) / 2.0, (1.0 + level) / 2.0], dtype=draws.dtype)
    low, high = torch.quantile(draws, ends, dim=0)
    return draws.mean(0), low, high


def check_level(level: float, owner: str) -> float:
    return check_number(level, "level", owner, "strictly between 0 and 1", lambda value: 0.0 < value < 1.0)


def networks_of(network: Any, owner: str) -> list[nn.Module]:
    """A module, the replicates of a run, or a list of modules; each on the CPU in ``eval`` mode."""
    found = getattr(network, "networks", network)
    listed = [found] if isinstance(found, nn.Module) else list(found) if isinstance(found, Sequence) else []
    if not listed or not all(isinstance(each, nn.Module) for each in listed):
        expected = "a module, several of them, or a run of train"
        raise invalid("network", owner, expected, type(network).__name__)
    return [copy.deepcopy(each).cpu().eval() for each in listed]


def named(names: Sequence[str] | None, count: int, what: str, prefix: str, owner: str) -> tuple[str, ...]:
    found = tuple(f"{prefix}{i}" for i in range(count)) if names is None else tuple(map(str, names))
    if len(found) != count:
        raise invalid(what, owner, f"{count} names", f"{len(found)}")
    return found


def rows_of(x: Any, owner: str) -> Tensor:
    rows = check_tensor(x, "x", owner).detach().cpu().double()
    if rows.dim() < 2 or not len(rows):
        raise invalid("x", owner, "of shape (rows, …)", f"shape {tuple(rows.shape)}")
    return rows


def _which(output: int | None, count: int, owner: str) -> list[int]:
    if output is None:
        return list(range(count))
    if isinstance(output, bool) or not isinstance(output, int) or not -count <= output < count:
        raise invalid("output", owner, f"None, or the number of one of {count} outputs", repr(output))
    return [output % count]


@torch.no_grad()
def explain(
    network: Any,
    x: Any,
    *,
    n_draws: int = 100,
    level: float = 0.9,
    model: str = "average",
    output: int | None = None,
    reference: Any = None,
    names: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    seed: int = 0,
) -> Explanation:
    """The contribution of every input to every output (a class's logit, a target), or to one ``output``.

    ``network`` is a module, or a run of :func:`~sparsebnn.train`, whose replicates share the draws. Inputs of
    several axes (images) are flattened. Contributions count from ``reference``, a row (by default 0, the
    average of standardized inputs): slope · (x − reference). ``model="median"`` draws the weights of the
    median model.

    >>> import sparsebnn
    >>> network = sparsebnn.mlp([3, 4, 2], input_skip=True)
    >>> found = explain(network, torch.randn(5, 3), n_draws=20, names=["a", "b", "c"])
    >>> found.contributions.shape, found.low.shape, found.base.shape
    ((5, 3, 2), (5, 3, 2), (5, 2))
    """
    check_count(n_draws, "n_draws", "explain")
    check_choice(model, ("average", "median"), "model", "explain")
    check_level(level, "explain")
    check_seed(seed, "seed", "explain")
    networks, rows = networks_of(network, "explain"), rows_of(x, "explain")
    start = torch.zeros_like(rows[0]) if reference is None else _reference(reference, rows)
    count = _outputs_of(networks[0], rows)
    chosen = _which(output, count, "explain")
    each, seeds = -(-n_draws // len(networks)), [seed] * len(networks)
    chunk = max(1, _BYTES // (8 * each * len(networks) * rows[0].numel() * len(chosen) * 4))
    parts: list[tuple[Tensor, ...]] = []
    for part in rows.split(chunk):
        values, slopes = slopes_of_draws(networks, part, each, model, seeds, chosen)
        given = (slopes * (part - start)[None, ..., None]).flatten(2, -2)
        parts.append((*interval(given, level), (values - given.sum(2)).mean(0)))
    mean, low, high, base = (torch.cat(found).numpy() for found in zip(*parts))
    every = named(outputs, count, "outputs", "output ", "explain")
    columns = named(names, rows[0].numel(), "names", "x", "explain")
    return Explanation(columns, tuple(every[i] for i in chosen), mean, low, high, base, level)


def _reference(reference: Any, rows: Tensor) -> Tensor:
    start = check_tensor(reference, "reference", "explain").detach().cpu().double()
    if start.shape != rows.shape[1:]:
        expected = f"of shape {tuple(rows.shape[1:])}"
        raise invalid("reference", "explain", expected, f"shape {tuple(start.shape)}")
    return start


def _outputs_of(network: nn.Module, rows: Tensor) -> int:
    like = next(network.parameters())
    with WeightPass():
        y = network(rows[:1].to(like.dtype))
    if y.dim() != 2:
        raise invalid("network", "explain", "one with outputs of shape (rows, outputs)", tuple(y.shape))
    return int(y.shape[1])
