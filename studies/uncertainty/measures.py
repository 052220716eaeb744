"""What a predictor's uncertainty is worth: its numbers on the clusters, and the arrays behind the figures."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsebnn import metrics
from sparsebnn.inference.prediction import ClassPrediction
from studies.data.clusters import Clusters, Scaling
from studies.tables.evaluation import quality

__all__ = ["Problem", "SCORES", "interval", "judge", "lattice", "paired", "t_quantile"]

Predict = Callable[[Tensor], ClassPrediction]
# Each score as it would raise an alarm: large means "not from here".
SCORES: dict[str, Callable[[ClassPrediction], Tensor]] = {
    "entropy": lambda found: found.entropy,
    "mutual_information": lambda found: found.mutual_information,
    "max_output": lambda found: found.max_output,
}


def lattice(low: float, high: float, points: int) -> Tensor:
    """A square grid, ``(points², 2)``, in float64; the second coordinate runs fastest."""
    ticks = torch.linspace(low, high, points, dtype=torch.float64)
    return torch.cartesian_prod(ticks, ticks)


@dataclass(frozen=True)
class Problem:
    """One data set of the study, all of it on the scale of its own training rows."""

    clusters: Clusters
    scaling: Scaling
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    @classmethod
    def draw(cls, clusters: Clusters, per_class: int, test_per_class: int, seed: int) -> Problem:
        """Training rows of one seed, fresh rows of another; both scaled as the training rows say."""
        x, y = clusters.sample(per_class, 2 * seed)
        x_test, y_test = clusters.sample(test_per_class, 2 * seed + 1)
        scaling = Scaling.of(x)
        return cls(clusters, scaling, scaling.apply(x), y, scaling.apply(x_test), y_test)

    def true_probs(self, x: Tensor) -> Tensor:
        return self.clusters.probs(self.scaling.invert(x))

    def bayes_accuracy(self) -> float:
        """Of the generating model, on the test rows."""
        return metrics.accuracy(self.true_probs(self.x_test), self.y_test)


def judge(
    predict: Predict, many: Predict, problem: Problem, grid: int, outer: int, seed: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """All numbers of one predictor on one data set, and the arrays that the figures need.

    ``many`` is the same predictor with ten times the draws; it is asked about small training sets only.
    """
    train, test = predict(problem.x), predict(problem.x_test)
    inner = lattice(0.0, 1.0, grid)
    there = predict(inner)
    numbers: dict[str, Any] = {
        "train_accuracy": metrics.accuracy(train.probs, problem.y),
        "train_accuracy_many_draws": (
            metrics.accuracy(many(problem.x).probs, problem.y) if len(problem.x) <= 250 else float("nan")
        ),
        "train_bayes_accuracy": metrics.accuracy(problem.true_probs(problem.x), problem.y),
        "bayes_accuracy": problem.bayes_accuracy(),
        **_on_grid(there, inner, problem),
        **_on_test(test, problem.y_test, seed),
    }
    wide = lattice(-1.0, 2.0, outer)
    beyond = predict(wide)
    outside = ((wide < 0.0) | (wide > 1.0)).any(-1)
    numbers["detection"] = {
        name: _detection(score(train), score(test), score(beyond)[outside]) for name, score in SCORES.items()
    }
    numbers["outside_entropy"] = float(beyond.entropy[outside].mean())
    numbers["outside_max_prob"] = float(beyond.probs[outside].max(-1).values.mean())
    arrays = {
        "grid_entropy": there.entropy,
        "outer_max_output": beyond.max_output,
        "outer_entropy": beyond.entropy,
        **_curves(test, problem.y_test),
    }
    return numbers, {name: values.float().numpy() for name, values in arrays.items()}


def _on_grid(found: ClassPrediction, grid: Tensor, problem: Problem) -> dict[str, float]:
    """How far the entropy is from the generating model's, in all and away from the training rows."""
    truth = metrics.entropy(problem.true_probs(grid))
    away = torch.cdist(grid, problem.x).min(1).values > 0.15
    far = found.probs[away].max(-1).values if bool(away.any()) else torch.full((1,), float("nan"))
    return {
        "entropy_error": float((found.entropy.double() - truth).abs().mean()),
        "grid_entropy": float(found.entropy.mean()),
        "grid_true_entropy": float(truth.mean()),
        "grid_aleatoric": float(found.expected_entropy.mean()),
        "grid_epistemic": float(found.mutual_information.mean()),
        "away_share": float(away.double().mean()),
        "away_max_prob": float(far.mean()),
        "away_entropy": float(found.entropy[away].mean()),
    }


def _on_test(found: ClassPrediction, labels: Tensor, seed: int) -> dict[str, Any]:
    probs = found.probs
    top = probs.max(-1).values.sort(descending=True).values
    order = found.entropy.argsort()
    last = order[-(len(labels) // 10) :]
    return {
        **quality(probs, labels, seed),
        "max_prob_halfway": float(top[len(top) // 2]),
        "least_certain_accuracy": metrics.accuracy(probs[last], labels[last]),
        "test_aleatoric": float(found.expected_entropy.mean()),
        "test_epistemic": float(found.mutual_information.mean()),
    }


def _detection(train: Tensor, inside: Tensor, outside: Tensor) -> dict[str, float]:
    """The rule of figure 10: an alarm above the 95% quantile of the training rows."""
    threshold = torch.quantile(train.double(), 0.95)
    return {
        "threshold": float(threshold),
        "flagged_inside": float((inside.double() > threshold).double().mean()),
        "flagged_outside": float((outside.double() > threshold).double().mean()),
        "auroc": metrics.auroc(inside, outside),
        "fpr95": metrics.fpr_at_tpr(inside, outside),
    }


def _curves(found: ClassPrediction, labels: Tensor, blocks: int = 100) -> dict[str, Tensor]:
    """Figure 9: rows from most to least certain, a hundredth at a time; and the reliability diagram."""
    correct = (found.probs.argmax(-1) == labels).double()
    sorted_right = correct[found.entropy.argsort(stable=True)]
    step = len(labels) // blocks
    parts = sorted_right[: step * blocks].reshape(blocks, step)
    top = found.probs.max(-1).values.sort(descending=True).values
    diagram = metrics.reliability(found.probs, labels)
    filled = torch.nan_to_num(torch.stack([diagram.confidence, diagram.accuracy]))
    return {
        "block_accuracy": parts.mean(1),
        "cumulative_accuracy": metrics.rejection_curve(found.probs, labels)[1][step - 1 :: step],
        "sorted_entropy": found.entropy.sort().values[step // 2 :: step],
        "sorted_max_prob": top[step // 2 :: step],
        "reliability": torch.stack([diagram.rows.double(), *filled]),
    }


# -- intervals over replicates --------------------------------------------------------------------------


@functools.cache
def t_quantile(freedom: int, level: float = 0.95) -> float:
    """The two-sided quantile of Student's t, from its density.

    >>> round(t_quantile(9), 3)
    2.262
    """
    x = np.linspace(0.0, 60.0, 600_001)
    density = (1.0 + x**2 / freedom) ** (-(freedom + 1) / 2.0)
    # Beyond the grid the density goes as a power; its integral is known.
    tail = freedom ** ((freedom + 1) / 2.0) * x[-1] ** (-freedom) / freedom
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) * (x[1] - x[0]) / 2.0)])
    return float(np.interp(level, mass / (mass[-1] + tail), x))


def interval(values: list[float]) -> dict[str, float]:
    """Mean over replicates and its 95% interval by Student's t."""
    each = np.array(values, dtype=np.float64)
    middle = float(each.mean())
    if len(each) < 2:
        return {"mean": middle, "low": float("nan"), "high": float("nan")}
    half = t_quantile(len(each) - 1) * float(each.std(ddof=1)) / len(each) ** 0.5
    return {"mean": middle, "low": middle - half, "high": middle + half}


def paired(first: list[float], second: list[float]) -> dict[str, float]:
    """The interval of first − second, replicate by replicate: both saw the same data sets."""
    return interval([a - b for a, b in zip(first, second)])
