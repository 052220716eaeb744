"""Rows outside the range of the training rows."""

import numpy as np
import pytest
from scipy import stats

from estimators.quick import QUICK, two_classes
from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor


@pytest.fixture(scope="module")
def line():
    random = np.random.RandomState(0)
    x = random.uniform(-1.0, 1.0, (150, 2))
    return SparseBNNRegressor(**QUICK).fit(x, 10.0 * x[:, 0] + 0.1 * random.randn(150)), x


def test_predictions_stop_growing_and_intervals_widen(line):
    model, _ = line
    rows = np.array([[1.0, 0.0], [1.15, 0.0], [2.0, 0.0], [20.0, 0.0]])
    mean, std = model.predict(rows, return_std=True)
    assert mean[1] < mean[2] == mean[3] < 14.0
    assert std[0] < std[2] < std[3]
    assert std[3] > 100.0
    low, high = model.predict_quantiles(rows, [0.05, 0.95]).T
    assert low[3] < 200.0 < high[3]
    assert model.sample_predictive(rows, 50)[:, 3].std() > 50.0


def test_student_t_widens_by_the_difference_too():
    """The variance grows by the square of the difference that the limit makes, whatever the tails."""
    random = np.random.RandomState(0)
    x = random.uniform(-1.0, 1.0, (150, 2))
    model = SparseBNNRegressor(**QUICK, likelihood="student_t").fit(x, 10.0 * x[:, 0] + random.randn(150))
    rows = np.array([[1.0, 0.0], [2.0, 0.0], [5.0, 0.0], [20.0, 0.0]])
    mean, std = model.predict(rows, return_std=True)
    assert mean[1] == mean[2] == mean[3]
    at_limit = model.predict(np.array([[1.2, 0.0]]), return_std=True)[1][0]
    grown = np.sqrt(std[1:] ** 2 - at_limit**2)
    assert grown[2] / grown[1] == pytest.approx(
        (20.0 - 1.2) / (5.0 - 1.2), rel=0.05
    )  # networks are piecewise linear
    assert 120.0 < grown[2] < 260.0
    low, middle, high = model.predict_quantiles(rows, [0.05, 0.5, 0.95]).T
    np.testing.assert_allclose(middle[1:], middle[1], atol=0.5)
    df = np.mean([form.scale_and_df()[1].item() for form in model._likelihoods])
    wide = 2.0 * stats.t.ppf(0.95, df) * np.sqrt((df - 2.0) / df) * std[3]  # of a single t distribution
    assert high[3] - low[3] == pytest.approx(wide, rel=0.05)
    assert model.sample_predictive(rows, 400)[:, 3].std() == pytest.approx(std[3], rel=0.3)


def test_counts_stop_at_the_limit():
    x = np.random.RandomState(0).uniform(-1.0, 1.0, (150, 2))
    model = SparseBNNRegressor(**QUICK, likelihood="poisson").fit(x, np.round(3.0 * x[:, 0] + 3.0))
    mean, std = model.predict(np.array([[2.0, 0.0], [20.0, 0.0]]), return_std=True)
    assert (mean[0], std[0]) == (mean[1], std[1])


def test_rows_outside_are_named(line):
    model, x = line
    assert not model.outside_range(x).any()
    found = model.outside_range([[0.0, 5.0], [-1.05, 0.0], [-9.0, 0.0]])
    assert found.tolist() == [[False, True], [False, False], [True, False]]


def test_a_classifier_has_the_same_limits():
    x, y = two_classes()
    model = SparseBNNClassifier(**QUICK).fit(x, y)
    far, farther = np.full((1, 4), 50.0), np.full((1, 4), 500.0)
    assert model.outside_range(far).all()
    np.testing.assert_array_equal(model.predict_proba(far), model.predict_proba(farther))


def test_more_rows_may_lie_anywhere(line):
    _, x = line
    model = SparseBNNRegressor(**QUICK).partial_fit(x, x[:, 0])
    assert not model.outside_range(50.0 * x).any()
