"""The methods of the UCI study: each is fitted to training rows and predicts test rows, with uncertainty.

All networks of peers have one hidden layer of 50 units, as in the papers that introduced them on these data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["METHODS", "OURS", "Prediction", "mixture_log_density"]

OURS = "sparsebnn"
_UNITS, _BATCH, _RATE = 50, 32, 1e-2
_EPOCHS, _LEAST_STEPS = 40, 5000  # of peers; chosen on validation rows
_MEMBERS = 5
_NORMAL_90 = 1.6448536269514722


@dataclass(frozen=True)
class Prediction:
    """Means, the log density of the truth, and the ends of the 90% intervals, in units of the target."""

    mean: np.ndarray
    log_density: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mixture_log_density(y: np.ndarray, means: np.ndarray, stds: np.ndarray) -> np.ndarray:
    """Log of an equal mixture of Gaussians; means and stds are ``(draws, rows)``."""
    each = -0.5 * ((y - means) / stds) ** 2 - np.log(stds) - 0.5 * math.log(2.0 * math.pi)
    top = each.max(0)
    return top + np.log(np.exp(each - top).mean(0))


def _of_mixture(truth: np.ndarray, means: np.ndarray, stds: np.ndarray) -> Prediction:
    """An equal mixture of Gaussians, with the interval of a Gaussian that has its mean and variance."""
    center, total = means.mean(0), np.sqrt(means.var(0) + (stds**2).mean(0))
    low, high = center - _NORMAL_90 * total, center + _NORMAL_90 * total
    return Prediction(center, mixture_log_density(truth, means, stds), low, high)


class _Scaled:
    """Standardized tensors, and predictions back in units of the target."""

    def __init__(self, x: np.ndarray, y: np.ndarray, new: np.ndarray) -> None:
        center, scale = x.mean(0), x.std(0)
        scale[scale <= 1e-9 * np.abs(center)] = 1.0  # constant up to rounding
        self.middle, self.spread = float(y.mean()), float(y.std())
        self.x = torch.from_numpy((x - center) / scale).float()
        self.y = torch.from_numpy((y - self.middle) / self.spread).float()
        self.new = torch.from_numpy((new - center) / scale).float()
        self.epochs = max(_EPOCHS, math.ceil(_LEAST_STEPS / math.ceil(len(x) / _BATCH)))

    def prediction(self, truth: np.ndarray, means: Tensor, stds: Tensor) -> Prediction:
        """Of Gaussians ``(draws, rows)`` in standardized units."""
        m, s = (each.detach().double().numpy() * self.spread for each in (means, stds))
        return _of_mixture(truth, m + self.middle, s)


def ours(x: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray, seed: int) -> Prediction:
    """The estimator as it is: the density is that of the mixture over draws."""
    from sparsebnn.estimators import SparseBNNRegressor

    model = SparseBNNRegressor(random_state=seed, device="cpu").fit(x, y)
    parts = [form.moments(outputs) for form, outputs in model._observed(new, "average", None)]
    means, variances = (torch.cat([p[i] for p in parts], dim=1)[..., 0].cpu().numpy() for i in (0, 1))
    means, stds = means * model._y_std[0] + model._y_mean[0], np.sqrt(variances) * model._y_std[0]
    low, high = model.predict_interval(new, 0.9).T
    return Prediction(means.mean(0), mixture_log_density(truth, means, stds), low, high)


def _mean_and_std(x: Tensor, parameters: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Of all members, ``(members, rows)``, for x of ``(members, rows, inputs)``."""
    first, bias, second, last = parameters
    outputs = torch.baddbmm(last, torch.relu(torch.baddbmm(bias, x, first)), second)
    return outputs[..., 0], nn.functional.softplus(outputs[..., 1]) + 1e-3


def deep_ensemble(x: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray, seed: int) -> Prediction:
    """Five networks with a mean and a std as outputs, trained side by side on their own batches."""
    data, random = _Scaled(x, y, new), torch.Generator().manual_seed(seed)
    parameters = []
    for inputs, outputs in ((x.shape[1], _UNITS), (_UNITS, 2)):
        for rows in (inputs, 1):
            drawn = 2.0 * torch.rand(_MEMBERS, rows, outputs, generator=random) - 1.0
            parameters.append((drawn / math.sqrt(inputs)).requires_grad_())
    optimizer = torch.optim.Adam(parameters, lr=_RATE, weight_decay=1e-5)
    for _ in range(data.epochs):
        order = torch.stack([torch.randperm(len(x), generator=random) for _ in range(_MEMBERS)])
        for rows in order.split(_BATCH, dim=1):
            mean, std = _mean_and_std(data.x[rows], parameters)
            # The sum over members of the mean over rows: members do not influence each other.
            loss = (0.5 * ((data.y[rows] - mean) / std) ** 2 + torch.log(std)).mean(1).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return data.prediction(truth, *_mean_and_std(data.new.expand(_MEMBERS, -1, -1), parameters))


def dense_bnn(x: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray, seed: int) -> Prediction:
    """Bayes by backprop with this library: independent Gaussian weights, prior N(0, 1), temperature 1."""
    import sparsebnn
    from sparsebnn.inference.sampling import draw_outputs
    from sparsebnn.posteriors.priors import GaussianPrior

    data = _Scaled(x, y, new)
    network = sparsebnn.mlp([x.shape[1], _UNITS, 1], family="gaussian", prior=GaussianPrior())
    settings = sparsebnn.Settings(epochs=data.epochs, batch_size=_BATCH, learning_rate=_RATE,
                                  temperature=1.0, warmup=0.5)  # fmt: skip
    form = sparsebnn.likelihoods.Gaussian(std=0.7)
    run = sparsebnn.train(network, (data.x, data.y), likelihood=form, settings=settings, seed=seed,
                          device="cpu", progress=False)  # fmt: skip
    parts = [o for _, o in draw_outputs(run.network, data.new, 100, draws="weights", seed=seed)]
    trained = run.likelihood
    assert isinstance(trained, sparsebnn.likelihoods.Gaussian)
    means, stds = trained.mean_and_std(torch.cat(parts, dim=1))
    return data.prediction(truth, means[..., 0], stds[..., 0])


def laplace(x: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray, seed: int) -> Prediction:
    """laplace-torch on a trained network: all weights, full matrix, prior and noise by their evidence."""
    from laplace import Laplace

    data, random = _Scaled(x, y, new), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(x.shape[1], _UNITS), nn.Tanh(), nn.Linear(_UNITS, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=_RATE, weight_decay=1e-5)
    for _ in range(data.epochs):
        for rows in torch.randperm(len(x), generator=random).split(_BATCH):
            loss = ((net(data.x[rows])[:, 0] - data.y[rows]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    net = net.double()  # the matrix is hardly positive definite in single precision
    rows = torch.utils.data.TensorDataset(data.x.double(), data.y[:, None].double())
    posterior: Any = Laplace(net, "regression", subset_of_weights="all", hessian_structure="full")
    posterior.fit(torch.utils.data.DataLoader(rows, batch_size=500))
    logs = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logs], lr=1e-1)
    for _ in range(100):
        loss = -posterior.log_marginal_likelihood(*logs.exp())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    parts = [posterior(rows) for rows in data.new.double().split(500)]
    mean, var = (torch.cat([p[i].reshape(-1) for p in parts]) for i in (0, 1))
    std = torch.sqrt(var + posterior.sigma_noise**2)
    return data.prediction(truth, mean[None], std[None])


def boosting(x: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray, seed: int) -> Prediction:
    """Means from squared errors; intervals from two quantiles, whose width sets the std of the density."""
    from sklearn.ensemble import HistGradientBoostingRegressor as Boosting

    mean = Boosting(random_state=seed).fit(x, y).predict(new)
    low, high = (
        Boosting(loss="quantile", quantile=q, random_state=seed).fit(x, y).predict(new) for q in (0.05, 0.95)
    )
    std = np.maximum(np.abs(high - low) / (2.0 * _NORMAL_90), 1e-3 * y.std())
    return Prediction(mean, mixture_log_density(truth, mean[None], std[None]), low, high)


METHODS: dict[str, Callable[..., Prediction]] = {
    OURS: ours,
    "deep ensemble": deep_ensemble,
    "dense BNN": dense_bnn,
    "laplace-torch": laplace,
    "gradient boosting": boosting,
}
