"""The methods of the study ``tabular``, each with the encoding that suits it.

Each is ``fit(x, y)`` and ``predict(x)`` on a frame; in regression some also have ``interval(x, coverage)``.
Nothing is tuned but the size of the plain network, by its own validation rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["OURS", "PEERS", "make"]

OURS = "sparsebnn"
LINEAR, BOOSTING, CATBOOST = "linear", "gradient boosting", "CatBoost"
FOREST, NETWORK, QUANTILES = "random forest", "plain network", "CatBoost quantiles"
PATIENT = "plain network, patient"
PEERS = (LINEAR, BOOSTING, CATBOOST, FOREST, NETWORK, PATIENT, QUANTILES)
_TAILS = (0.05, 0.25, 0.5, 0.75, 0.95)


def _numeric(x: Any) -> list[str]:
    return list(x.select_dtypes("number").columns)


def _scaled(x: Any) -> Any:
    """Medians for missing numbers with an indicator, standardized; one-hot text; rare levels together."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = _numeric(x)
    rest = [name for name in x.columns if name not in numbers]
    once = OneHotEncoder(sparse_output=False, handle_unknown="infrequent_if_exist", min_frequency=5)
    filled = SimpleImputer(strategy="median", add_indicator=True)
    parts = [("numbers", make_pipeline(filled, StandardScaler()), numbers)]
    parts += [("rest", once, rest)] if rest else []
    return ColumnTransformer(parts)


def _as_categories(x: Any) -> Any:
    """Text as pandas categories, for trees that split on them."""
    return x.astype({name: "category" for name in x.columns if name not in _numeric(x)})


def _as_text(x: Any) -> Any:
    """Missing text as a separate level, which CatBoost requires."""
    rest = [name for name in x.columns if name not in _numeric(x)]
    return x.assign(**{name: x[name].astype(object).fillna("missing").astype(str) for name in rest})


class _Peer:
    """A scikit-learn model behind an encoding of the frame; class probabilities or numbers."""

    def __init__(self, model: Callable[[Any], Any], task: str, encode: Callable[[Any], Any] | None = None):
        self.make, self.task, self.encode = model, task, encode

    def fit(self, x: Any, y: np.ndarray) -> _Peer:
        from sklearn.pipeline import make_pipeline

        if self.encode is None:
            self.model = make_pipeline(_scaled(x), self.make(x))
        else:
            self.model = self.make(x)
        self.model.fit(self._encoded(x), y)
        return self

    def predict(self, x: Any) -> np.ndarray:
        found = self.model.predict_proba if self.task == "classification" else self.model.predict
        return np.asarray(found(self._encoded(x)), dtype=np.float64)

    def _encoded(self, x: Any) -> Any:
        return x if self.encode is None else self.encode(x)


class _BayesianRidge(_Peer):
    """Ridge regression with its penalty by evidence, and normal intervals."""

    def interval(self, x: Any, coverage: float) -> np.ndarray:
        from scipy.stats import norm

        mean, std = self.model.predict(x, return_std=True)
        reach = norm.ppf(0.5 + 0.5 * coverage) * std
        return np.stack([mean - reach, mean + reach], axis=1)


class _Quantiles(_Peer):
    """The 5, 25, 50, 75 and 95% quantiles in one model; the median is the prediction."""

    def predict(self, x: Any) -> np.ndarray:
        return self._all(x)[:, _TAILS.index(0.5)]

    def interval(self, x: Any, coverage: float) -> np.ndarray:
        ends = [_TAILS.index(round(tail, 3)) for tail in (0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage)]
        return self._all(x)[:, ends]

    def _all(self, x: Any) -> np.ndarray:
        return np.sort(np.asarray(self.model.predict(self._encoded(x))), axis=1)


class _Network(_Peer):
    """The best of three sizes by its own tenth of the rows; ten epochs without progress end a fit.

    With scikit-learn's batches of 200, ten epochs are 30 steps on a small table, so fits end too soon there.
    The patient one has batches of 32 and ends after 30 epochs without progress.
    """

    sizes = ((32,), (100,), (100, 100))

    def __init__(self, task: str, seed: int, **settings: Any) -> None:
        super().__init__(lambda x: None, task)
        self.settings = {"early_stopping": True, "max_iter": 500, "random_state": seed, **settings}

    def fit(self, x: Any, y: np.ndarray) -> _Network:
        from sklearn.neural_network import MLPClassifier, MLPRegressor

        kind = MLPClassifier if self.task == "classification" else MLPRegressor
        self.scaler = _scaled(x).fit(x)
        values = self.scaler.transform(x)
        self.mean, self.std = float(y.mean()), float(y.std())
        target = y if self.task == "classification" else (y - self.mean) / self.std
        fits = [kind(hidden_layer_sizes=size, **self.settings).fit(values, target) for size in self.sizes]
        self.model = max(fits, key=lambda fit: fit.best_validation_score_)
        return self

    def predict(self, x: Any) -> np.ndarray:
        values = self.scaler.transform(x)
        if self.task == "classification":
            return self.model.predict_proba(values)
        return self.model.predict(values) * self.std + self.mean


class _Ours:
    """The estimators with their defaults; they take the frame as it is."""

    def __init__(self, task: str, seed: int, settings: dict[str, Any]) -> None:
        from sparsebnn import SparseBNNClassifier, SparseBNNRegressor

        kind: Any = SparseBNNClassifier if task == "classification" else SparseBNNRegressor
        self.task, self.model = task, kind(random_state=seed, device="cpu", **settings)

    def fit(self, x: Any, y: np.ndarray) -> _Ours:
        self.model.fit(x, y)
        return self

    def predict(self, x: Any) -> np.ndarray:
        found = self.model.predict_proba if self.task == "classification" else self.model.predict
        return np.asarray(found(x), dtype=np.float64)

    def interval(self, x: Any, coverage: float) -> np.ndarray:
        return np.asarray(self.model.predict_interval(x, coverage=coverage))

    def facts(self) -> dict[str, Any]:
        """What the fit says about itself."""
        used = len(self.model.selected_features_)
        return {"density": float(self.model.density_), "used": used, "epochs": int(self.model.n_epochs_)}


def _catboost(kind: str, x: Any, seed: int, **settings: Any) -> Any:
    try:
        import catboost
    except ImportError as error:
        raise ImportError("This study needs 'catboost': pip install 'sparsebnn[peers]'") from error
    rest = [name for name in x.columns if name not in _numeric(x)]
    return getattr(catboost, kind)(
        cat_features=rest,
        random_seed=seed,
        thread_count=1,
        verbose=False,
        allow_writing_files=False,
        **settings,
    )


def make(method: str, task: str, seed: int, settings: dict[str, Any] | None = None) -> Any:
    """An unfitted method; None where it does not apply."""
    from sklearn import ensemble, linear_model

    classes = task == "classification"
    kind = "Classifier" if classes else "Regressor"
    if method == OURS:
        return _Ours(task, seed, settings or {})
    if method == LINEAR and classes:
        return _Peer(lambda x: linear_model.LogisticRegression(max_iter=2000), task)
    if method == LINEAR:
        return _BayesianRidge(lambda x: linear_model.BayesianRidge(), task)
    if method == BOOSTING:
        trees: Any = getattr(ensemble, f"HistGradientBoosting{kind}")
        return _Peer(lambda x: trees(random_state=seed), task, _as_categories)
    if method == CATBOOST:
        return _Peer(lambda x: _catboost(f"CatBoost{kind}", x, seed), task, _as_text)
    if method == FOREST:
        forest: Any = getattr(ensemble, f"RandomForest{kind}")
        # Leaves of one row give probabilities of 0, which log-loss punishes.
        return _Peer(lambda x: forest(300, min_samples_leaf=3 if classes else 1, random_state=seed), task)
    if method == NETWORK:
        return _Network(task, seed)
    if method == PATIENT:
        return _Network(task, seed, batch_size=32, n_iter_no_change=30)
    if classes:
        return None
    loss = "MultiQuantile:alpha=" + ",".join(map(str, _TAILS))
    return _Quantiles(lambda x: _catboost("CatBoostRegressor", x, seed, loss_function=loss), task, _as_text)


def known(methods: Sequence[str]) -> tuple[str, ...]:
    """The methods that options name: ``ours``, ``peers`` or their names.

    >>> known(["ours", "linear"])
    ('sparsebnn', 'linear')
    """
    from sparsebnn.checks import check_choice

    found: list[str] = []
    for method in methods:
        if method == "peers":
            found += PEERS
        else:
            name = OURS if method == "ours" else method
            check_choice(name, (OURS, *PEERS), "methods", "tabular")
            found.append(name)
    return tuple(found)
