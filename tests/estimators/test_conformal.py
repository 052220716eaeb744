"""Conformal intervals and sets: coverage on simulated data, and MAPIE's sets."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import (
    ConformalClassifier,
    ConformalRegressor,
    SparseBNNClassifier,
    SparseBNNRegressor,
)

COVERAGE = 0.9
SHORT = {"epochs": 8, "replicates": 1, "hidden": (5,), "learning_rate": 0.1, "n_draws": 10, "random_state": 0}


class Wrong(RegressorMixin, BaseEstimator):
    """A regressor whose posterior is badly off, but whose spread knows where the noise is."""

    def fit(self, X, y):
        self.n_features_in_, self.mean_ = X.shape[1], y.mean()
        return self

    def predict(self, X, return_std=False):
        mean = np.full(len(X), self.mean_)
        return (mean, 0.1 + 0.3 * np.abs(X[:, 0])) if return_std else mean


class Vague(ClassifierMixin, BaseEstimator):
    """Probabilities that are too sure by a factor of three in the logits."""

    def fit(self, X, y):
        self.n_features_in_, self.classes_ = X.shape[1], np.unique(y)
        return self

    def predict_proba(self, X):
        logits = 3.0 * X[:, :3]
        p = np.exp(logits - logits.max(1, keepdims=True))
        return p / p.sum(1, keepdims=True)

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(1)]


def real(random, rows, heteroscedastic):
    x = random.randn(rows, 2)
    noise = 0.1 + np.abs(x[:, 0]) if heteroscedastic else 0.5
    return x, np.sin(x[:, 1]) + noise * random.randn(rows)


def labels(random, rows):
    x = random.randn(rows, 3)
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    return x, (p.cumsum(1) < random.rand(rows, 1)).sum(1)


def realized(make, simulate, sets, repeats, train=148, test=200):
    """Share of new targets that are covered, for each of ``repeats`` simulated data sets."""
    found = []
    for seed in range(repeats):
        random = np.random.RandomState(seed)
        x, y = simulate(random, train)
        new_x, new_y = simulate(random, test)
        made = make(seed).fit(x, y)
        if sets:
            found.append(made.predict_set(new_x, COVERAGE)[np.arange(test), new_y].mean())
        else:
            low, high = made.predict_interval(new_x, COVERAGE).T
            found.append(((low <= new_y) & (new_y <= high)).mean())
    return np.array(found)


def within_two_errors(found, expected):
    error = found.std(ddof=1) / np.sqrt(len(found))
    assert abs(found.mean() - expected) <= 2.0 * error, (found.mean(), error)


@pytest.mark.parametrize("heteroscedastic", [False, True])
def test_split_intervals_hold_whatever_the_model(heteroscedastic):
    """49 of 148 rows calibrate: the expected coverage is exactly 45/50."""
    found = realized(
        lambda seed: ConformalRegressor(Wrong(), calibration_fraction=49 / 148, random_state=seed),
        lambda random, rows: real(random, rows, heteroscedastic),
        False,
        100,
    )
    within_two_errors(found, 0.9)


def test_cross_intervals_hold_whatever_the_model():
    found = realized(
        lambda seed: ConformalRegressor(Wrong(), method="cross", random_state=seed),
        lambda random, rows: real(random, rows, True),
        False,
        100,
        train=149,
    )
    assert found.mean() >= 0.9 - 2.0 * found.std(ddof=1) / 10.0
    assert found.mean() < 0.92


@pytest.mark.parametrize("method", ["split", "cross"])
@pytest.mark.parametrize("conformity", ["lac", "aps"])
def test_sets_hold_whatever_the_model(method, conformity):
    found = realized(
        lambda seed: ConformalClassifier(
            Vague(), method=method, conformity=conformity, calibration_fraction=49 / 148, random_state=seed
        ),
        labels,
        True,
        100,
    )
    error = found.std(ddof=1) / 10.0
    assert found.mean() >= 0.9 - 2.0 * error
    if method == "split":
        within_two_errors(found, 0.9)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["split", "cross"])
@pytest.mark.parametrize("heteroscedastic", [False, True])
def test_intervals_of_networks_hold(method, heteroscedastic):
    """Short fits of the real estimator on 100 simulated data sets."""
    found = realized(
        lambda seed: ConformalRegressor(
            SparseBNNRegressor(**SHORT), method=method, calibration_fraction=49 / 148, random_state=seed
        ),
        lambda random, rows: real(random, rows, heteroscedastic),
        False,
        100,
        train=148 if method == "split" else 149,  # so that 90% is a rank: 45 of 50, or 135 of 150
    )
    print(f"{method} {heteroscedastic}: {found.mean():.4f} ± {found.std(ddof=1) / 10:.4f}")
    within_two_errors(found, 0.9)


@pytest.mark.slow
@pytest.mark.parametrize("conformity", ["lac", "aps"])
def test_sets_of_networks_hold(conformity):
    found = realized(
        lambda seed: ConformalClassifier(
            SparseBNNClassifier(**SHORT),
            conformity=conformity,
            calibration_fraction=49 / 148,
            random_state=seed,
        ),
        labels,
        True,
        100,
    )
    print(f"{conformity} sets: {found.mean():.4f} ± {found.std(ddof=1) / 10:.4f}")
    within_two_errors(found, 0.9)


def test_lac_sets_are_those_of_mapie():
    classification = pytest.importorskip("mapie.classification")
    random = np.random.RandomState(0)
    x, y = labels(random, 200)
    new_x, _ = labels(random, 50)
    ours = ConformalClassifier(Vague(), calibration_fraction=0.5, random_state=0).fit(x, y)
    fitted, held = ours._parts(200, y)[0]
    theirs = classification.SplitConformalClassifier(
        Vague().fit(x[fitted], y[fitted]), confidence_level=0.9, conformity_score="lac", prefit=True
    ).conformalize(x[held], y[held])
    np.testing.assert_array_equal(ours.predict_set(new_x, 0.9), theirs.predict_set(new_x)[1][:, :, 0])


def test_intervals_are_narrower_where_the_spread_is_small():
    random = np.random.RandomState(0)
    x, y = real(random, 300, True)
    made = ConformalRegressor(Wrong(), random_state=0).fit(x, y)
    low, high = made.predict_interval(x, 0.9).T
    np.testing.assert_allclose(
        (high - low) / (0.1 + 0.3 * np.abs(x[:, 0])), (high - low)[0] / (0.1 + 0.3 * abs(x[0, 0]))
    )
    flat = ConformalRegressor(Wrong(), normalize=False, random_state=0).fit(x, y).predict_interval(x, 0.9)
    assert np.ptp(flat[:, 1] - flat[:, 0]) < 1e-9


def test_the_coverage_is_stated_and_few_rows_give_infinite_intervals():
    random = np.random.RandomState(0)
    x, y = real(random, 148, False)
    made = ConformalRegressor(Wrong(), calibration_fraction=49 / 148, random_state=0).fit(x, y)
    assert made.expected_coverage(0.9)[0] == 0.9
    assert "calibrated on 49 rows" in made.summary()
    assert np.isinf(made.predict_interval(x[:2], 0.99)).all()
    cross = ConformalRegressor(Wrong(), method="cross", random_state=0).fit(x[:20], y[:20])
    assert np.isinf(cross.predict_interval(x[:2], 0.99)).all()
    assert "80% is guaranteed" in cross.summary()


def test_folds_in_parallel_give_the_same_intervals():
    x = np.random.RandomState(0).randn(60, 2)
    inner = SparseBNNRegressor(epochs=5, replicates=1, random_state=0)
    found = [
        ConformalRegressor(inner, method="cross", cv=2, random_state=0, n_jobs=jobs)
        .fit(x, x[:, 0])
        .predict_interval(x[:5])
        for jobs in (None, 2)
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_it_wraps_the_estimators_and_frames():
    pandas = pytest.importorskip("pandas")
    random = np.random.RandomState(0)
    x, y = real(random, 60, False)
    frame = pandas.DataFrame(x, columns=["a", "b"])
    made = ConformalRegressor(SparseBNNRegressor(**SHORT), random_state=0).fit(
        frame, y, sample_weight=np.ones(60)
    )
    assert made.predict_interval(frame[:3]).shape == (3, 2)
    sets = ConformalClassifier(SparseBNNClassifier(**SHORT), random_state=0).fit(
        frame, np.where(y > 0, "yes", "no")
    )
    assert sets.predict_set(frame[:3]).shape == (3, 2)
    assert set(sets.predict(frame)) <= {"yes", "no"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"method": "jackknife"}, "'method'"),
        ({"calibration_fraction": 1.5}, "'calibration_fraction'"),
        ({"method": "cross", "cv": 1}, "'cv'"),
    ],
)
def test_bad_settings(settings, named):
    x, y = real(np.random.RandomState(0), 20, False)
    with pytest.raises(InvalidInput, match=named):
        ConformalRegressor(Wrong(), **settings).fit(x, y)
    with pytest.raises(InvalidInput, match="'coverage'"):
        ConformalRegressor(Wrong(), random_state=0).fit(x, y).predict_interval(x, 90)
