r"""The paper's logistic variable-selection data: the file if it exists, or its simulated design.

The twenty inputs, as the file shows them:

- x1–x3 and x4–x6: two categories of three levels, one 0/1 column per level, with a joint table;
- x7, x8: exponential with rate 0.3, x9–x11: uniform on (−10, 1), joined by latent normals u whose
  standard deviations :math:`\tau_j` are not 1: :math:`x_j = F_j^{-1}(\Phi(u_j))`. So only x11 is
  really uniform: with a small :math:`\tau` x9 and x10 keep to the middle, with a large one x7 and x8
  have heavier tails than an exponential;
- x12–x15: normal, correlated;
- x16 = sin(3.14 t / 360) and x17 = t² of a time t that runs from 1 to 2000;
- x18 = x2·x10, x19 = (−4 + 5 x1 + 6 x3)·x15, x20 = (−4 + 5 x1 + 6 x3)·x11.

.. math::
    \eta = 99 + x\beta + \varepsilon, \quad \varepsilon \sim \mathcal N(0, 0.5), \qquad
    y \sim \operatorname{Bernoulli}(\operatorname{sigmoid}(\eta))

β₁₃ is −37.1: with the paper's +37.1 and without intercept the file's targets are all but impossible.
Standard deviations, correlations and the table of categories below are estimates from the file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from sparsebnn.checks import check_count, invalid

__all__ = ["COEFFICIENTS", "INTERCEPT", "LogisticData", "find_logistic", "load_logistic", "simulate_logistic"]

INTERCEPT = 99.0
COEFFICIENTS = np.array(
    [-4, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1.2, 0, -37.1, 0, 0, 50, -0.00005, 10, 3, 0], dtype=np.float64
)
_LEVELS = np.array([[0.0645, 0.0525, 0.0035], [0.0525, 0.2755, 0.1245], [0.0040, 0.1000, 0.3230]])
_LATENT_STD = np.array([1.815, 1.415, 0.314, 0.235, 1.005])  # x7 … x11
_LATENT = np.array(
    [
        [1.0, 0.083, 0.0, 0.0, 0.0],
        [0.083, 1.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 1.0, -0.058, 0.871],
        [0.0, 0.0, -0.058, 1.0, 0.356],
        [0.0, 0.0, 0.871, 0.356, 1.0],
    ]
)
_NORMAL_STD = np.array([0.457, 0.407, 0.318, 0.599])  # x12 … x15
_NORMAL = np.array(
    [
        [1.0, -0.007, -0.772, 0.176],
        [-0.007, 1.0, -0.277, -0.947],
        [-0.772, -0.277, 1.0, 0.250],
        [0.176, -0.947, 0.250, 1.0],
    ]
)
_NOISE_VAR = 0.5
_LAST_TIME = 2000.0


class LogisticData(NamedTuple):
    """``x`` (rows, 20) as they are, not scaled; ``y`` 0 or 1; ``source`` is "file" or "simulated"."""

    x: np.ndarray
    y: np.ndarray
    names: tuple[str, ...]
    nonzero: np.ndarray
    source: str


def _record(x: np.ndarray, y: np.ndarray, source: str) -> LogisticData:
    names = tuple(f"x{i + 1}" for i in range(20))
    return LogisticData(x, y, names, COEFFICIENTS != 0.0, source)


def simulate_logistic(rows: int = 2000, *, seed: int = 0, correlation: float = 1.0) -> LogisticData:
    """The design with fresh numbers.

    ``correlation`` scales every correlation of the latent normals and the dependence of the two
    categories: 1 is the file's, 0 leaves only what x16–x20 are by construction. Time runs from 1 to
    2000 in equal steps whatever the number of rows.

    >>> data = simulate_logistic(100, seed=3)
    >>> data.x.shape, bool((data.x[:, :3].sum(1) == 1).all())
    ((100, 20), True)
    """
    check_count(rows, "rows", "simulate_logistic", least=2)
    if not 0.0 <= correlation <= 1.0:
        raise invalid("correlation", "simulate_logistic", "from 0 to 1", correlation)
    rng = np.random.default_rng(seed)
    x = np.zeros((rows, 20))
    table = _LEVELS / _LEVELS.sum()
    apart = np.outer(table.sum(1), table.sum(0))
    mixed = correlation * table + (1.0 - correlation) * apart
    cell = rng.choice(9, size=rows, p=mixed.ravel())
    x[np.arange(rows), cell // 3] = 1.0
    x[np.arange(rows), 3 + cell % 3] = 1.0
    latent = rng.standard_normal((rows, 5)) @ _factor(_LATENT, correlation).T * _LATENT_STD
    # log(1 − Φ(u)) = log Φ(−u) keeps its digits in the tail; torch has the Φ that numpy lacks.
    normal = torch.from_numpy(latent)
    x[:, 6:8] = -torch.special.log_ndtr(-normal[:, :2]).numpy() / 0.3
    x[:, 8:11] = -10.0 + 11.0 * torch.special.ndtr(normal[:, 2:]).numpy()
    x[:, 11:15] = rng.standard_normal((rows, 4)) @ _factor(_NORMAL, correlation).T * _NORMAL_STD
    time = np.linspace(1.0, _LAST_TIME, rows)
    x[:, 15], x[:, 16] = np.sin(3.14 * time / 360.0), time**2
    x[:, 17] = x[:, 1] * x[:, 9]
    slope = -4.0 + 5.0 * x[:, 0] + 6.0 * x[:, 2]
    x[:, 18], x[:, 19] = slope * x[:, 14], slope * x[:, 10]
    eta = INTERCEPT + x @ COEFFICIENTS + np.sqrt(_NOISE_VAR) * rng.standard_normal(rows)
    y = (rng.logistic(size=rows) < eta).astype(np.float64)
    return _record(x, y, "simulated")


def _factor(correlations: np.ndarray, strength: float) -> np.ndarray:
    """Cholesky factor with every correlation scaled."""
    return np.linalg.cholesky(strength * correlations + (1.0 - strength) * np.eye(len(correlations)))


def find_logistic() -> Path | None:
    """The folder with the paper's file: SPARSEBNN_LOGISTIC names it, or it is data/logistic."""
    named = os.environ.get("SPARSEBNN_LOGISTIC")
    place = Path(named or "data/logistic")
    return place if (place / "X.csv").exists() else None


def load_logistic(folder: str | Path | None = None, *, seed: int = 0) -> LogisticData:
    """The paper's file (``X.csv`` and ``y.csv`` of a folder), or its design simulated without a folder."""
    if folder is None:
        return simulate_logistic(seed=seed)
    place = Path(folder)
    if not (place / "X.csv").exists() or not (place / "y.csv").exists():
        advice = "Leave the folder out to use the simulated design."
        raise invalid("folder", "load_logistic", "a folder with X.csv and y.csv", repr(str(folder)), advice)
    x = np.loadtxt(place / "X.csv", delimiter=",", skiprows=1)
    y = np.loadtxt(place / "y.csv", delimiter=",", skiprows=1)
    if x.shape != (len(y), 20) or not np.isin(y, (0.0, 1.0)).all():
        got = f"{x.shape} and {len(y)} targets"
        raise invalid("folder", "load_logistic", "a folder with 20 inputs and targets of 0 and 1", got)
    return _record(x, y, "file")
