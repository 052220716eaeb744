r"""The exact contribution of each column to a prediction, for every draw of the weights.

A ReLU network with given weights is linear around each row x:

.. math::
    f(x) = \sum_j \frac{\partial f}{\partial x_j}(x)\, x_j + c(x)

so input j contributes :math:`\partial_j f \cdot x_j` and the rest :math:`c(x)` is the base. Inputs are
standardized, so a contribution is the effect of the column's distance from its average.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsebnn.checks import check_count, invalid
from sparsebnn.likelihoods import Gaussian
from sparsebnn.nn.passes import MedianPass, WeightPass, noise_size
from sparsebnn.random.noise import NoiseBuffer, logistics, normals, seed_tensor, stream_id

__all__ = ["Effects", "Explanation", "effects", "explain", "signed"]

_NORMAL = stream_id("explanation normal")
_LOGISTIC = stream_id("explanation logistic")
_BYTES = 1 << 27


@dataclass(frozen=True)
class Explanation:
    """Contributions of columns to predictions; with ``base`` they sum to the network's mean output.

    That is the prediction of a regression and the mean logit of a classification (not the logit of the mean
    probability), up to Monte Carlo error: ``explain`` uses different draws than ``predict``.

    ``contributions``, ``low`` and ``high`` have shape ``(rows, columns, outputs)``, ``base`` has shape
    ``(rows, outputs)``: means and intervals over draws. For regression they are in units of the target; for
    classification they are log odds (two classes: one output) or unnormalized log probabilities. ``names``
    are the columns, ``outputs`` the outputs. ``importance`` is the mean absolute contribution of each column.
    """

    names: tuple[str, ...]
    outputs: tuple[str, ...]
    contributions: np.ndarray
    low: np.ndarray
    high: np.ndarray
    base: np.ndarray
    level: float

    @property
    def importance(self) -> np.ndarray:
        return np.abs(self.contributions).mean((0, 2))

    def table(self, row: int = 0, output: int = -1, most: int = 10) -> str:
        """One row's contributions as text, the largest first."""
        values = self.contributions[row, :, output]
        width = max(9, *(len(name) for name in self.names))
        lines = [f"{'column':<{width}}  contribution  {self.level:.0%} interval"]
        order = np.argsort(-np.abs(values))
        for j in order[:most]:
            ends = f"{self.low[row, j, output]:+.3f} to {self.high[row, j, output]:+.3f}"
            lines.append(f"{self.names[j]:<{width}}  {values[j]:+12.3f}  {ends}")
        if len(order) > most:
            lines.append(f"{f'{len(order) - most} others':<{width}}  {values[order[most:]].sum():+12.3f}")
        total = self.base[row, output] + values.sum()
        lines.append(f"{'base':<{width}}  {self.base[row, output]:+12.3f}")
        return "\n".join([*lines, f"{'sum: ' + self.outputs[output]:<{width}}  {total:+12.3f}"])


@dataclass(frozen=True)
class Effects:
    """Each column's average effect over rows, with its 95% interval over draws.

    For one output, ``value`` is the mean slope per standard deviation of the column, and ``direction`` its
    sign, or "mixed" if the interval contains 0. For several outputs, and for columns with several inputs
    (:func:`signed`), it is the mean absolute contribution and has no direction.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    direction: tuple[str | None, ...]

    def record(self) -> dict[str, Any]:
        ends = {name: getattr(self, name).tolist() for name in ("value", "low", "high")}
        return {**ends, "direction": list(self.direction)}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Effects:
        value, low, high = (np.array(record[name], dtype=np.float64) for name in ("value", "low", "high"))
        return cls(value, low, high, tuple(record["direction"]))


def _slopes(estimator: Any, x: Tensor, n_draws: int, model: str = "average") -> tuple[Tensor, Tensor]:
    """Outputs ``(draws, rows, outputs)`` and slopes ``(draws, rows, inputs, outputs)`` of all draws."""
    each = -(-n_draws // len(estimator.networks_))
    kind = MedianPass if model == "median" else WeightPass
    values, slopes = [], []
    for network in estimator.networks_:
        own = copy.deepcopy(network).double().requires_grad_(False)
        size = noise_size(own, x, kind)
        steps, seeds = torch.arange(each), seed_tensor([estimator._seed], torch.device("cpu"))
        normal = normals(seeds, _NORMAL, steps, size.normal, torch.float64)
        logistic = logistics(seeds, _LOGISTIC, steps, size.logistic, torch.float64)

        def outputs(rows: Tensor, normal: Tensor, logistic: Tensor, own: Any = own, kind: Any = kind) -> Any:
            with kind(NoiseBuffer(normal, logistic)):
                return own(rows)

        # Rows and draws are independent: the gradient of a sum over them holds the slope of each.
        rows = x.expand(each, *x.shape).clone().requires_grad_()
        with torch.enable_grad():
            value = torch.func.vmap(outputs)(rows, normal, logistic)
            totals = value.sum((0, 1))
            found = [torch.autograd.grad(total, rows, retain_graph=True)[0] for total in totals]
        values.append(value.detach())
        slopes.append(torch.stack(found, -1))
    return torch.cat(values), torch.cat(slopes)


def _in_units(estimator: Any, values: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Regression: means only, in units of the target."""
    form = estimator._likelihoods[0]
    if not isinstance(form, Gaussian):
        return estimator.logit_scale_ * values, estimator.logit_scale_ * slopes
    scale, shift = torch.from_numpy(estimator._y_std), torch.from_numpy(estimator._y_mean)
    count = form.n_targets
    return values[..., :count] * scale + shift, slopes[..., :count] * scale


def _by_column(estimator: Any, by_input: Tensor) -> Tensor:
    """Sums over the inputs of a column, ``(draws, rows, inputs, outputs)`` to columns."""
    columns = len(estimator._encoder.columns)
    index = torch.from_numpy(estimator._encoder.column_of)
    found = torch.zeros((*by_input.shape[:2], columns, by_input.shape[3]), dtype=by_input.dtype)
    return found.index_add_(2, index, by_input[:, :, : len(index)])


def output_names(estimator: Any) -> tuple[str, ...]:
    """The names of the outputs of an explanation."""
    if hasattr(estimator, "classes_"):
        classes = [str(c) for c in estimator.classes_]
        return (f"log odds of {classes[1]}",) if len(classes) == 2 else tuple(classes)
    count = len(estimator._y_mean)
    return ("target",) if count == 1 else tuple(f"target {i}" for i in range(count))


def explain(estimator: Any, x: np.ndarray, n_draws: int, level: float, model: str) -> Explanation:
    """Contributions for encoded rows, in chunks that bound the memory."""
    check_count(n_draws, "n_draws", "explain")
    if not 0.0 < level < 1.0:
        raise invalid("level", "explain", "strictly between 0 and 1", level)
    names = output_names(estimator)
    chunk = max(1, _BYTES // (8 * (n_draws + len(estimator.networks_)) * x.shape[1] * len(names) * 4))
    ends = torch.tensor([(1.0 - level) / 2.0, (1.0 + level) / 2.0], dtype=torch.float64)
    parts: list[tuple[Tensor, ...]] = []
    for start in range(0, len(x), chunk):
        rows = torch.from_numpy(x[start : start + chunk])
        values, slopes = _in_units(estimator, *_slopes(estimator, rows, n_draws, model))
        by_input = slopes * rows[None, :, :, None]
        columns = _by_column(estimator, by_input)
        low, high = torch.quantile(columns, ends, dim=0)
        parts.append((columns.mean(0), low, high, (values - by_input.sum(2)).mean(0)))
    contributions, low, high, base = (torch.cat(found).numpy() for found in zip(*parts))
    columns_names = tuple(column.name for column in estimator._encoder.columns)
    return Explanation(columns_names, names, contributions, low, high, base, level)


def signed(estimator: Any) -> np.ndarray:
    """Which columns have an effect with a sign: one output, and one input not counting that for gaps."""
    single = len(output_names(estimator)) == 1
    return np.array([single and len(c.inputs) - c.gaps == 1 for c in estimator._encoder.columns])


def effects(estimator: Any, x: np.ndarray, n_draws: int) -> Effects:
    """Average effects over encoded rows; see :class:`Effects`."""
    rows = torch.from_numpy(x)
    budget = _BYTES // (8 * n_draws * x.shape[1] * max(1, len(output_names(estimator))) * 4)
    rows = rows[: max(2, budget)]
    _, slopes = _in_units(estimator, *_slopes(estimator, rows, n_draws))
    columns = estimator._encoder.columns
    size = _by_column(estimator, slopes * rows[None, :, :, None]).abs().mean((1, 3))
    by_slope = signed(estimator)
    # The first input of the column; a second one only marks gaps.
    first = np.searchsorted(estimator._encoder.column_of, np.arange(len(columns)))
    slope = slopes[:, :, np.minimum(first, slopes.shape[2] - 1), 0].mean(1)
    each = torch.where(torch.from_numpy(by_slope), slope, size)
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low, high = torch.quantile(each, ends, dim=0).numpy()
    direction = [_direction(float(a), float(b)) if s else None for a, b, s in zip(low, high, by_slope)]
    return Effects(each.mean(0).numpy(), low, high, tuple(direction))


def _direction(low: float, high: float) -> str | None:
    if low == high == 0.0:
        return None
    return "+" if low > 0.0 else "-" if high < 0.0 else "mixed"
