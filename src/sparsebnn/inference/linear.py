"""Linear models written as networks.

With few rows, or many columns, nothing beats a linear model where the truth is linear. Its network has no
hidden units: coefficients are means of the weights from inputs to outputs, and the standard deviations are
those of independent weights next to Laplace's approximation.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsebnn.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from sparsebnn.nn.layers import Linear
from sparsebnn.nn.networks import NO_POSTERIOR, InputSkip
from sparsebnn.posteriors.priors import inverse_softplus

__all__ = ["OUT", "can_be_linear", "linear_network"]

OUT, _IN = -30.0, 30.0  # inclusion logits of weights that are out, and in
_LEAST_STD = 1e-4
_WIDE = 0.5  # columns per row from which on few of them are assumed to matter


def can_be_linear(form: Likelihood) -> bool:
    """Whether there is a linear model for this likelihood."""
    known = type(form) in (Bernoulli, Categorical, Gaussian)
    return known and getattr(form, "noise", "learned") == "learned"


@torch.no_grad()
def linear_network(
    network: nn.Module, form: Likelihood, x: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> tuple[nn.Module, Likelihood]:
    """A linear model of these rows in the shape of the network, and its likelihood."""
    network, form = copy.deepcopy(network), copy.deepcopy(form)
    assert isinstance(network, InputSkip)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that has not converged is compared like any other
        coef, intercept, std, noise = _fitted(form, x, y, weight)
    *before, last = (layer for layer in network.modules() if isinstance(layer, Linear))
    for layer in before:
        layer.weights.inclusion_logit.fill_(OUT)  # type: ignore[operator]
    weights: Any = last.weights
    hidden = last.in_features - x.shape[1]
    weights.inclusion_logit.fill_(OUT)
    weights.inclusion_logit[:, hidden:].masked_fill_(torch.from_numpy(coef != 0.0), _IN)
    weights.mean[:, hidden:] = torch.from_numpy(coef).to(weights.mean)
    weights.raw_std[:, hidden:] = inverse_softplus(torch.from_numpy(std)).to(weights.mean)
    assert last.biases is not None
    last.biases.mean.copy_(torch.from_numpy(intercept))
    last.biases.raw_std.fill_(float(inverse_softplus(torch.tensor(_LEAST_STD))))
    if isinstance(form, Gaussian):
        form.raw_std.copy_(inverse_softplus(torch.from_numpy(noise)))
    setattr(network, NO_POSTERIOR, "that is a penalized linear model")
    return network, form


def _fitted(
    form: Likelihood, x: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Coefficients ``(outputs, inputs)``, intercepts, standard deviations, and the std of the noise."""
    from sklearn.linear_model import LassoCV, LogisticRegression, MultiTaskLassoCV, RidgeCV

    wide = x.shape[1] > _WIDE * len(x)
    if isinstance(form, Gaussian):
        one = y.shape[1] == 1
        model: Any = RidgeCV(np.logspace(-1, 3, 9))
        if wide:
            model = (LassoCV if one else MultiTaskLassoCV)(cv=5, random_state=0)
        targets = y[:, 0] if one else y
        model.fit(x, targets, **({"sample_weight": weight} if not wide or one else {}))
        coef = np.atleast_2d(model.coef_)
        error = y - x @ coef.T - model.intercept_
        used = min(len(x) - 1.0, float(max((coef != 0.0).sum(1))) + 1.0)
        noise = np.sqrt((weight[:, None] * error**2).sum(0) / weight.sum() * len(x) / (len(x) - used))
        noise = np.maximum(noise, _LEAST_STD)
        curvature = np.ones((1, len(x))) / noise.max() ** 2
        return coef, np.atleast_1d(model.intercept_), _stds(x, weight * curvature, coef), noise
    model = _sparse(form) if wide else LogisticRegression(max_iter=200)
    model.fit(x, y, sample_weight=weight)
    model = getattr(model, "best_estimator_", model)
    probs = model.predict_proba(x)
    if isinstance(form, Bernoulli):
        probs = probs[:, 1:]
    curvature = (probs * (1.0 - probs)).T
    return model.coef_, model.intercept_, _stds(x, weight * curvature, model.coef_), np.ones(1)


def _sparse(form: Likelihood) -> Any:
    """Logistic regression with an L1 penalty, chosen by cross-validation."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    # The name of the penalty changed with scikit-learn 1.8.
    renamed = inspect.signature(LogisticRegression).parameters["penalty"].default == "deprecated"
    penalty: dict[str, Any] = {"l1_ratio": 1.0} if renamed else {"penalty": "l1"}
    solver = "liblinear" if isinstance(form, Bernoulli) else "saga"
    model = LogisticRegression(solver=solver, max_iter=100, random_state=0, **penalty)
    return GridSearchCV(model, {"C": np.logspace(-2, 1, 7)}, cv=3, scoring="neg_log_loss")


def _stds(x: np.ndarray, curvature: np.ndarray, coef: np.ndarray) -> np.ndarray:
    r"""Standard deviations of the coefficients ``(outputs, inputs)`` under a N(0, 1) prior, included ones.

    Weights are drawn independently of each other. Of all such posteriors the one nearest to Laplace's
    Gaussian has :math:`\sigma_j = \Lambda_{jj}^{-1/2}` with its precision :math:`\Lambda`. On average over
    the rows, its predictions have the variance that they have under Laplace's. The marginal
    :math:`(\Lambda^{-1})_{jj}^{1/2}` would be too large where columns are correlated.
    """
    std = 1.0 / np.sqrt(curvature @ x**2 + 1.0)
    return np.maximum(np.where(coef != 0.0, std, 0.0), _LEAST_STD)
