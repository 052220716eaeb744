"""Fitted models of every kind, small enough to fit in a second, for parity tests."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

import sparsebnn
from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor
from sparsebnn.init import Initial, Normal
from sparsebnn.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from sparsebnn.nn.convolutions import Conv1d, Conv2d
from sparsebnn.nn.layers import Linear

ROWS = 120


class Network(NamedTuple):
    """A trained network, its likelihood with what it learned, and rows for it."""

    module: torch.nn.Module
    likelihood: Likelihood
    x: torch.Tensor


def _options(family: str) -> dict[str, Any]:
    spread = Initial(inclusion_logit=Normal(-0.5, 2.0), mean=Normal(0.0, 0.5))
    return {"family": family, **({} if family == "gaussian" else {"initial": spread})}


def _trained(network: torch.nn.Module, likelihood: Likelihood, x: torch.Tensor) -> Network:
    """A few steps of training, from inclusions that are spread out."""
    generator = torch.Generator().manual_seed(0)
    count = likelihood.n_outputs(x[:, 0])
    if isinstance(likelihood, Gaussian):
        y = torch.randn(len(x), likelihood.n_targets, generator=generator)
    else:
        y = torch.randint(0, max(2, count), (len(x),), generator=generator)
    settings = sparsebnn.Settings(epochs=3, batch_size=max(2, len(x) // 3), learning_rate=1e-2)
    options = {"likelihood": likelihood, "settings": settings, "mode": "eager", "progress": False}
    run = sparsebnn.train(network, (x, y), device="cpu", **options)
    return Network(run.network.eval(), run.likelihood, x)


def _mlp(family: str, likelihood: Likelihood, outputs: int, activation: str = "relu", **more: Any) -> Network:
    torch.manual_seed(0)
    network = sparsebnn.mlp([7, 12, 9, outputs], activation=activation, **_options(family), **more)
    return _trained(network, likelihood, torch.randn(ROWS, 7))


def _leaves_inputs_out() -> Network:
    """A sparse network, as a target density leaves it: its median model reads few inputs."""
    found = _mlp("spike_slab", Categorical(3), 3)
    logit = found.module[0].weights.inclusion_logit
    with torch.no_grad():
        logit[:, [1, 4, 5]] = -6.0
        logit[:, 0] = 6.0
    return found


# Layers of a thousand inputs: outputs as large as those of the other networks.
_SMALL = {"initial": Initial(inclusion_logit=Normal(-0.5, 2.0), mean=Normal(0.0, 0.1))}


def _lenet(family: str, **more: Any) -> Network:
    torch.manual_seed(1)
    return _trained(sparsebnn.lenet(**_options(family), **more), Categorical(10), torch.rand(6, 1, 28, 28))


def _strided() -> Network:
    torch.manual_seed(2)
    network = torch.nn.Sequential(
        Conv2d(2, 5, 3, stride=2, padding=1, **_options("spike_slab")),
        torch.nn.LeakyReLU(0.1),
        Conv2d(5, 4, (2, 3), dilation=(2, 1), padding=(0, 2), **_options("spike_slab")),
        torch.nn.SiLU(),
        torch.nn.MaxPool2d(2, stride=1),
        torch.nn.Flatten(),
        Linear(4 * 3 * 6, 3, **_options("spike_slab")),
    )
    return _trained(network, Categorical(3), torch.randn(20, 2, 11, 9))


def _signal() -> Network:
    torch.manual_seed(3)
    network = torch.nn.Sequential(
        Conv1d(2, 6, 3, stride=2, padding=2, **_options("spike_slab")),
        torch.nn.Sigmoid(),
        torch.nn.AvgPool1d(2),
        torch.nn.Flatten(),
        Linear(6 * 5, 1, **_options("spike_slab")),
    )
    return _trained(network, Gaussian(1, std=0.3), torch.randn(20, 2, 17))


class Residual(torch.nn.Module):
    """A network that is not a chain: a skip connection and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = Linear(7, 7, **_options("spike_slab")), torch.nn.BatchNorm1d(7)
        self.last = Linear(7, 3, **_options("spike_slab"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x + torch.relu(self.norm(self.first(x))))


def _residual() -> Network:
    torch.manual_seed(4)
    return _trained(Residual().eval(), Categorical(3), torch.randn(ROWS, 7))


NETWORKS: dict[str, Callable[[], Network]] = {
    **{f"mlp {family}": lambda f=family: _mlp(f, Categorical(3), 3) for family in ("gaussian", "spike_slab")},
    **{
        f"mlp {family}": lambda f=family: _mlp(f, Categorical(3), 3) for family in ("concrete", "flow", "mnf")
    },
    **{
        f"mlp {activation}": lambda a=activation: _mlp("spike_slab", Bernoulli(), 1, a)
        for activation in ("leaky_relu", "gelu", "silu", "tanh")
    },
    "regression": lambda: _mlp("spike_slab", Gaussian(2, std=0.4), 2),
    "heteroscedastic": lambda: _mlp("spike_slab", Gaussian(1, "heteroscedastic"), 2),
    "lenet spike_slab": lambda: _lenet("spike_slab"),
    "lenet flow": lambda: _lenet("flow"),
    "lenet skip": lambda: _lenet("spike_slab", input_skip=True, dense=_SMALL),
    "input skip": lambda: _mlp("spike_slab", Categorical(3), 3, input_skip=True),
    "strided": _strided,
    "signal": _signal,
    "residual": _residual,
    "leaves inputs out": _leaves_inputs_out,
}
CHAINS = [name for name in NETWORKS if name != "residual"]


def table(seed: int = 0, rows: int = ROWS) -> pd.DataFrame:
    """Numbers with gaps, two and more levels, dates, a constant, and names that C and ONNX must escape."""
    random = np.random.RandomState(seed)
    return pd.DataFrame(
        {
            "age": np.where(random.rand(rows) < 0.1, np.nan, 80.0 * random.rand(rows)),
            "income, €": 1e6 + 3e4 * random.randn(rows),
            "sex": random.choice(["f", "m"], rows),
            "double": random.choice(["rot", 'bl"au', "grün\\n", None], rows),
            "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(random.randint(0, 900, rows), "D"),
            "always": 1.0,
            "raw": random.randn(rows),
            "town": random.choice([*(f'town "{k}"' for k in range(39)), None], rows),  # coded by the target
        }
    )


def strange(frame: pd.DataFrame) -> pd.DataFrame:
    """The same table with what training did not have: gaps, unknown levels, values far away."""
    found = frame.astype({"sex": object, "double": object, "town": object}).copy()
    found.loc[:9, "sex"] = None
    found.loc[5:19, "double"] = "violet"
    found.loc[15:24, "sex"] = "x"
    found.loc[10:14, "town"], found.loc[26:31, "town"] = "elsewhere", None
    found.loc[20:29, "income, €"] = np.nan
    found.loc[30:34, "age"] = 1e4
    found.loc[35:39, "when"] = pd.NaT
    return found


def _frame_labels(frame: pd.DataFrame) -> np.ndarray:
    return np.where((frame["age"].fillna(40.0) > 40.0) ^ (frame["sex"] == "f"), "yes", "no")


def _fitted(estimator: Any, X: Any, y: Any) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(X, y), X


def _classifier(**options: Any) -> tuple[Any, Any]:
    frame = table()
    model = SparseBNNClassifier(epochs=8, n_draws=20, random_state=0, **options)
    return _fitted(model, frame, _frame_labels(frame))


def _three_classes(**options: Any) -> tuple[Any, Any]:
    frame = table(1)
    model = SparseBNNClassifier(epochs=8, n_draws=20, random_state=0, **options)
    return _fitted(model, frame, np.arange(ROWS) % 3 + 4)


def _regressor(**options: Any) -> tuple[Any, Any]:
    frame = table(2)
    y = 1e6 + 500.0 * frame["raw"].to_numpy() + np.random.RandomState(3).randn(ROWS)
    return _fitted(SparseBNNRegressor(epochs=8, n_draws=20, random_state=0, **options), frame, y)


def _array(**options: Any) -> tuple[Any, Any]:
    random = np.random.RandomState(4)
    X = random.randn(ROWS, 5)
    X[random.rand(ROWS, 5) < 0.05] = np.nan
    return _fitted(
        SparseBNNClassifier(epochs=8, n_draws=20, random_state=0, **options), X, np.arange(ROWS) % 2
    )


def _targets(**options: Any) -> tuple[Any, Any]:
    X = np.random.RandomState(5).randn(ROWS, 4)
    return _fitted(
        SparseBNNRegressor(epochs=8, n_draws=20, random_state=0, **options), X, X[:, :2] * [1.0, 100.0]
    )


ESTIMATORS: dict[str, Callable[[], tuple[Any, Any]]] = {
    **{
        f"table {family}": lambda f=family: _classifier(family=f)
        for family in ("spike_slab", "flow", "concrete", "gaussian")
    },
    "table one replicate": lambda: _classifier(replicates=1),
    "table two layers": lambda: _classifier(hidden=(10, 6)),
    "table sparse": lambda: _classifier(target_density=0.1),
    "one sparse network": lambda: _regressor(target_density=0.1, replicates=1),
    "table linear": lambda: _classifier(hidden=()),
    "three classes": _three_classes,
    "three classes flow": lambda: _three_classes(family="flow"),
    "regression": _regressor,
    "regression calibrated": lambda: _regressor(calibrate=True),
    "regression heteroscedastic": lambda: _regressor(noise="heteroscedastic"),
    "array": _array,
    "array uncalibrated": lambda: _array(calibrate=False),
    "several targets": _targets,
    "many columns": lambda: _many_columns(SparseBNNClassifier, lambda signal: signal > 0.0),
    "many columns, regression": lambda: _many_columns(SparseBNNRegressor, lambda signal: signal),
}


def _many_columns(make: Callable[..., Any], y: Callable[[pd.DataFrame], Any]) -> tuple[Any, Any]:
    """Enough columns to be screened: networks that train again, on the columns that they include."""
    random = np.random.RandomState(6)
    frame = table(6, 300).assign(**{f"z{i}": random.randn(300) for i in range(34)})
    signal = frame["z0"] + frame["z1"] * (frame["sex"] == "f") + 0.3 * random.randn(300)
    return _fitted(make(random_state=0, epochs=200, hidden=(12, 8)), frame, y(signal))


def _small(family: str) -> tuple[Any, Any]:
    """An estimator of one network; that of the Gaussian family is a chain, the default has input skip."""
    return _classifier(replicates=1, family=family)


ONE_NETWORK = {"chain": lambda: _small("gaussian"), "input skip": lambda: _small("spike_slab")}
