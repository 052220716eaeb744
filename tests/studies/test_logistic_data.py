"""The simulator of the paper's logistic design against the figures of the paper's file.

The file is not part of the project. What it shows is written here: means, standard deviations and
correlations to three digits.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from studies.data.logistic import (
    COEFFICIENTS,
    INTERCEPT,
    load_logistic,
    simulate_logistic,
)

MEANS = [0.1205, 0.4525, 0.427, 0.121, 0.428, 0.451, 5.574, 4.576, -4.492, -4.523, -4.483]
MEANS += [0.002, -0.009, -0.001, 0.016, 0.048, 1334333.5, -2.055, -0.046, 3.746]
STDS = [0.326, 0.498, 0.495, 0.326, 0.495, 0.498, 8.064, 5.619, 1.312, 1.002, 3.155, 0.457, 0.407, 0.318]
STDS += [0.599, 0.709, 1193426.8, 2.362, 1.820, 16.136]
# (i, j, correlation in the file), inputs counted from 1.
CORRELATIONS = [(1, 4, 0.470), (1, 2, -0.337), (2, 3, -0.785), (3, 6, 0.534), (2, 5, 0.330), (5, 6, -0.784)]
CORRELATIONS += [(9, 11, 0.850), (10, 11, 0.354), (9, 10, -0.059), (7, 8, 0.038), (7, 11, 0.000)]
CORRELATIONS += [(12, 14, -0.772), (13, 15, -0.947), (13, 14, -0.277), (12, 15, 0.176), (14, 15, 0.250)]
ROWS = 2000


@pytest.fixture(scope="module")
def large():
    return simulate_logistic(200_000, seed=1).x


def test_moments_are_the_files(large):
    """The file's mean has the error of 2000 rows; the simulation's own is a tenth of that."""
    fixed = [15, 16]  # functions of time alone: the same numbers, but for the density of steps
    for j, (mean, std) in enumerate(zip(MEANS, STDS)):
        x = large[:, j]
        tolerance = 0.005 * std if j in fixed else 4.2 * x.std() / math.sqrt(ROWS)
        assert abs(x.mean() - mean) < tolerance, f"x{j + 1}"
        kurtosis = ((x - x.mean()) ** 4).mean() / x.var() ** 2
        error = 0.005 * std if j in fixed else 4.2 * x.std() * math.sqrt((kurtosis - 1.0) / (4 * ROWS))
        assert abs(x.std() - std) < error + 0.001, f"x{j + 1}"


@pytest.mark.parametrize(("i", "j", "value"), CORRELATIONS)
def test_correlations_are_the_files(large, i, j, value):
    simulated = np.corrcoef(large[:, i - 1], large[:, j - 1])[0, 1]
    assert abs(simulated - value) < 4.2 * (1.0 - value**2) / math.sqrt(ROWS) + 0.001


def test_columns_that_follow_from_others():
    x = simulate_logistic(ROWS, seed=2).x
    time = np.arange(1, ROWS + 1)
    np.testing.assert_allclose(x[:, 15], np.sin(3.14 * time / 360), atol=1e-9)
    np.testing.assert_allclose(x[:, 16], time**2, rtol=1e-12)
    np.testing.assert_array_equal(x[:, 17], x[:, 1] * x[:, 9])
    np.testing.assert_allclose(x[:, 18], (-4 + 5 * x[:, 0] + 6 * x[:, 2]) * x[:, 14])
    np.testing.assert_allclose(x[:, 19], (-4 + 5 * x[:, 0] + 6 * x[:, 2]) * x[:, 10])
    assert (x[:, :3].sum(1) == 1).all()
    assert (x[:, 3:6].sum(1) == 1).all()


def test_targets_follow_the_corrected_coefficients():
    data = simulate_logistic(ROWS, seed=3)
    eta = INTERCEPT + data.x @ COEFFICIENTS
    # In the file 59.6% are 1, and the sign of η tells 99.3% of the targets.
    assert abs(data.y.mean() - 0.596) < 4 * math.sqrt(2 * 0.24 / ROWS)
    assert abs(((eta > 0) == data.y).mean() - 0.993) < 4 * math.sqrt(2 * 0.007 / ROWS)
    assert data.nonzero.sum() == 9
    assert COEFFICIENTS[12] == -37.1


def test_correlation_scales_what_is_random_and_seeds_reproduce():
    apart = simulate_logistic(50_000, seed=4, correlation=0.0).x
    half = simulate_logistic(50_000, seed=4, correlation=0.5).x
    error = 4.0 / math.sqrt(50_000)
    for i, j in ((1, 4), (9, 11), (13, 15)):
        assert abs(np.corrcoef(apart[:, i - 1], apart[:, j - 1])[0, 1]) < error
    assert np.corrcoef(half[:, 12], half[:, 14])[0, 1] == pytest.approx(-0.947 / 2, abs=error)
    np.testing.assert_array_equal(simulate_logistic(50, seed=5).x, simulate_logistic(50, seed=5).x)
    assert not np.array_equal(simulate_logistic(50, seed=5).x, simulate_logistic(50, seed=6).x)


def test_a_file_is_read_back(tmp_path):
    data = simulate_logistic(30, seed=7)
    np.savetxt(tmp_path / "X.csv", data.x, delimiter=",", header=",".join(data.names), comments="")
    np.savetxt(tmp_path / "y.csv", data.y, header="y", comments="")
    read = load_logistic(tmp_path)
    np.testing.assert_allclose(read.x, data.x)
    np.testing.assert_array_equal(read.y, data.y)
    assert read.source == "file"
