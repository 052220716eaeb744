"""A fit that fails leaves the estimator as it was: the one fitted before, or not fitted at all."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor, feature_selection, persistence
from sparsebnn.training import Callback

QUICK = {"epochs": 3, "replicates": 2, "hidden": (4,), "n_draws": 4, "random_state": 0}
KINDS = [SparseBNNClassifier, SparseBNNRegressor]


class Stop(Callback):
    """Control-C in the second epoch."""

    def on_epoch_end(self, run, epoch):
        if epoch.epoch == 1:
            raise KeyboardInterrupt


def data(columns=3, classes=2):
    x = np.random.RandomState(columns).randn(60, columns)
    return x, (x[:, 0] * 2).astype(int) % classes


def too_few_targets(model, monkeypatch):
    x, y = data(5, 3)
    model.fit(x, y[:-1])


def a_missing_target(model, monkeypatch):
    x, y = data(5, 3)
    model.fit(x, np.where(np.arange(len(y)) == 7, np.nan, y))


def an_infinite_input(model, monkeypatch):
    import pandas

    x, y = data(5, 3)
    x[3, 4] = np.inf
    model.fit(pandas.DataFrame(x, columns=list("abcde")), y)


def an_unknown_family(model, monkeypatch):
    monkeypatch.setattr(model, "family", "lasso")
    model.fit(*data(5, 3))


def numbers_that_overflow(model, monkeypatch):
    monkeypatch.setattr(model, "learning_rate", 1e30)
    model.fit(*data(5, 3))


def an_interrupt(model, monkeypatch):
    monkeypatch.setattr(model, "_watchers", [Stop()], raising=False)
    model.fit(*data(5, 3))


def an_error_after_training(model, monkeypatch):
    def fail(*given):
        raise MemoryError

    monkeypatch.setattr(feature_selection, "worth", fail)
    model.fit(*data(5, 3))


FAILURES = {
    too_few_targets: ValueError,
    a_missing_target: ValueError,
    an_infinite_input: InvalidInput,
    an_unknown_family: InvalidInput,
    numbers_that_overflow: FloatingPointError,
    an_interrupt: KeyboardInterrupt,
    an_error_after_training: MemoryError,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fails", FAILURES, ids=lambda f: f.__name__)
def test_a_fitted_one_stays_the_one_it_was(kind, fails, monkeypatch, tmp_path):
    x, y = data()
    model = kind(**QUICK).fit(x, y)
    before, predicted = dict(vars(model)), model.predict(x)
    probs = model.predict_proba(x) if kind is SparseBNNClassifier else None
    model.save(tmp_path / "before.safetensors")
    with monkeypatch.context() as during, pytest.raises(FAILURES[fails]):
        fails(model, during)
    after = vars(model)
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    np.testing.assert_array_equal(model.predict(x), predicted)
    if probs is not None:
        np.testing.assert_array_equal(model.predict_proba(x), probs)
    model.save(tmp_path / "after.safetensors")
    assert persistence.header(tmp_path / "after.safetensors") == persistence.header(
        tmp_path / "before.safetensors"
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fails", FAILURES, ids=lambda f: f.__name__)
def test_one_not_fitted_stays_so(kind, fails, monkeypatch):
    model = kind(**QUICK)
    with monkeypatch.context() as during, pytest.raises(FAILURES[fails]):
        fails(model, during)
    assert vars(model) == vars(clone(model))
    with pytest.raises(NotFittedError):
        model.predict(data()[0])


def test_it_can_be_fitted_again_after_a_failure(monkeypatch):
    x, y = data(5, 3)
    model = SparseBNNClassifier(**QUICK).fit(*data())
    with monkeypatch.context() as during, pytest.raises(KeyboardInterrupt):
        an_interrupt(model, during)
    fresh = SparseBNNClassifier(**QUICK).fit(x, y)
    np.testing.assert_array_equal(model.fit(x, y).predict_proba(x), fresh.predict_proba(x))
