"""The methods of the study ``column_selection``: each chooses columns, most also predict.

A method is a function of training rows, test inputs, task and seed. It returns :class:`Found`: masks of
chosen columns by the name of the rule, and class probabilities or numbers for the test rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["METHODS", "OURS", "Found", "fdr_rule", "known"]

OURS = "sparsebnn"
LEVEL = 0.1
SELECTED, HALF, FDR = "selected_features_", "inclusion_ > .5", 'select(rule="fdr", level=.1)'


@dataclass
class Found:
    """What a fit gives: a mask per rule (None: the rule was refused), and predictions if there are any."""

    rules: dict[str, np.ndarray | None]
    predicted: np.ndarray | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def fdr_rule(model: Any) -> np.ndarray | None:
    """What the rule chooses; None where ``inclusion_`` holds no posterior probabilities."""
    from sparsebnn.selection import select

    try:
        return select(model, rule="fdr", level=LEVEL).chosen.numpy()
    except ValueError:
        return None


def _ours(x: np.ndarray, y: np.ndarray, test: np.ndarray, task: str, seed: int, **settings: Any) -> Found:
    from sparsebnn import SparseBNNClassifier, SparseBNNRegressor

    kind: Any = SparseBNNClassifier if task == "classification" else SparseBNNRegressor
    model = kind(random_state=seed, device="cpu", **settings).fit(x, y)
    inclusion = np.asarray(model.inclusion_)
    rules = {
        SELECTED: np.isin(np.array(model.names_), model.selected_features_.astype(str)),
        HALF: inclusion > 0.5,
        FDR: fdr_rule(model),
    }
    predicted = model.predict_proba(test) if task == "classification" else model.predict(test)
    return Found(rules, predicted, {"density": float(model.density_), "epochs": int(model.n_epochs_)})


def _lasso(x: np.ndarray, y: np.ndarray, test: np.ndarray, task: str, seed: int) -> Found:
    """The penalty with the best cross-validated loss."""
    from sklearn.linear_model import LassoCV, LogisticRegressionCV

    if task == "regression":
        model: Any = LassoCV(cv=5, random_state=seed).fit(x, y)
        return Found({"not 0": model.coef_ != 0.0}, model.predict(test))
    model = LogisticRegressionCV(
        Cs=np.logspace(-2, 1, 10), cv=5, l1_ratios=(1.0,), solver="liblinear", scoring="neg_log_loss",
        use_legacy_attributes=False, random_state=seed,
    ).fit(x, y)  # fmt: skip
    return Found({"not 0": model.coef_[0] != 0.0}, model.predict_proba(test))


def _linear(x: np.ndarray, y: np.ndarray, test: np.ndarray, task: str, seed: int) -> Found:
    """Logistic or ridge regression; all columns are used."""
    from sklearn.linear_model import LogisticRegression, RidgeCV

    if task == "regression":
        return Found({}, RidgeCV(np.logspace(-2, 4, 13)).fit(x, y).predict(test))
    return Found({}, LogisticRegression(max_iter=2000).fit(x, y).predict_proba(test))


def _carbonetto_stephens(x: np.ndarray, y: np.ndarray, test: np.ndarray, task: str, seed: int) -> Found:
    """Inclusion probabilities averaged over a grid of prior ones; slab and noise are fitted."""
    from studies.baselines.carbonetto_stephens import CarbonettoStephens

    classes = task == "classification"
    grid = [k / x.shape[1] for k in (1, 3, 10, 30) if k < x.shape[1]]
    model = CarbonettoStephens(
        likelihood="bernoulli" if classes else "gaussian",
        inclusion_prob=grid, fit_slab=True, fit_noise=not classes, seed=seed, tolerance=1e-4, max_sweeps=1000,
    ).fit(x, y.astype(np.float64))  # fmt: skip
    found: Any = model.predict(test, seed=seed)
    predicted = found.probs if classes else found.mean
    masks = {HALF: model.inclusion_ > 0.5, FDR: fdr_rule(model)}
    return Found(masks, predicted.numpy() if classes else predicted.numpy().ravel())


def _boruta(x: np.ndarray, y: np.ndarray, test: np.ndarray, task: str, seed: int) -> Found:
    """Confirmed columns; trees of depth 7, as its authors advise."""
    try:
        from boruta import BorutaPy
    except ImportError as error:
        raise ImportError("This study needs 'Boruta': pip install 'sparsebnn[peers]'") from error
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    forest: Any = RandomForestClassifier if task == "classification" else RandomForestRegressor
    model = BorutaPy(forest(max_depth=7, random_state=seed), n_estimators=100, max_iter=50, random_state=seed)
    model.fit(x, y)
    return Found({"confirmed": model.support_})


def _lassonet(x: np.ndarray, y: np.ndarray, test: np.ndarray, task: str, seed: int) -> Found:
    """The network of its path with the lowest loss on a fifth of the rows."""
    import torch
    from lassonet import LassoNetClassifier, LassoNetRegressor

    classes = task == "classification"
    kind: Any = LassoNetClassifier if classes else LassoNetRegressor
    order = np.random.RandomState(seed).permutation(len(x))
    held, own = order[: len(x) // 5], order[len(x) // 5 :]
    inputs = x.astype(np.float32)
    target = y.astype(np.int64) if classes else y.astype(np.float32)
    model = kind(
        hidden_dims=(64,), path_multiplier=1.1, n_iters=(200, 30), patience=(20, 5), random_state=seed
    )

    def predicted(rows: np.ndarray) -> np.ndarray:
        return np.asarray(model.predict_proba(rows) if classes else model.predict(rows), dtype=np.float64)

    best = np.inf
    torch.manual_seed(seed)
    for point in model.path(inputs[own], target[own], return_state_dicts=True):
        model.load(point.state_dict)
        loss = losses(predicted(inputs[held]), y[held], task)["loss"]
        if loss < best:
            best, chosen, state = loss, point.selected.numpy(), point.state_dict
    model.load(state)
    return Found({"path, held-out loss": chosen}, predicted(test.astype(np.float32)))


def losses(predicted: np.ndarray, y: np.ndarray, task: str) -> dict[str, float]:
    """Log-loss and accuracy, or root mean squared error and R².

    >>> losses(np.array([[0.25, 0.75], [0.25, 0.75]]), np.array([1, 0]), "classification")["score"]
    0.5
    """
    if task == "classification":
        own = predicted[np.arange(len(y)), y.astype(int)]
        loss = float(-np.log(np.maximum(own, 1e-12)).mean())
        return {"loss": loss, "score": float((predicted.argmax(1) == y).mean())}
    error = float(np.mean((predicted.ravel() - y) ** 2))
    return {"loss": error**0.5, "score": 1.0 - error / float(np.var(y))}


METHODS: dict[str, Callable[..., Found]] = {
    OURS: _ours,
    "linear": _linear,
    "Lasso-CV": _lasso,
    "Carbonetto–Stephens": _carbonetto_stephens,
    "Boruta": _boruta,
    "LassoNet": _lassonet,
}


def known(methods: list[str]) -> tuple[str, ...]:
    """The methods that options name: ``ours``, ``peers`` or their names.

    >>> known(["ours", "Boruta"])
    ('sparsebnn', 'Boruta')
    """
    from sparsebnn.checks import check_choice

    found: list[str] = []
    for method in methods:
        if method == "peers":
            found += [name for name in METHODS if name != OURS]
        else:
            name = OURS if method == "ours" else method
            check_choice(name, METHODS, "methods", "column_selection")
            found.append(name)
    return tuple(found)
