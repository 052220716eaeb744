"""Stability selection's constants and counts; p-values by conditional randomization against simulation."""

import numpy as np
import pytest
from scipy import stats

from sparsebnn.checks import InvalidInput
from sparsebnn.selection import adjusted_p_values, randomization_p_values, stability_selection
from sparsebnn.selection.stability import error_constant


def test_the_bound_holds_for_a_method_that_guesses():
    # Choosing q of p inputs at random: every input is chosen by a half with probability q / p.
    p, q, pairs, repeats = 50, 15, 10, 300
    rng = np.random.default_rng(0)
    x, y = np.zeros((20, p)), np.zeros(20)

    def choose(x, y):
        return rng.choice(p, q, replace=False)

    for threshold in (0.6, 0.8):
        found = [
            stability_selection(choose, x, y, n_pairs=pairs, threshold=threshold) for _ in range(repeats)
        ]
        false = np.array([one.chosen.sum() for one in found])
        error = false.std(ddof=1) / np.sqrt(repeats)
        # A share of at least τ among 2B independent choices: the exact expectation.
        exact = p * stats.binom.sf(np.ceil(2 * pairs * threshold - 1e-9) - 1, 2 * pairs, q / p)
        assert abs(false.mean() - exact) < 4 * error + 1e-3
        assert found[0].mean_chosen == pytest.approx(q)
        assert false.mean() < found[0].expected_false_unimodal <= found[0].expected_false


def test_constants_of_the_paper():
    # Worst case 1/(2τ − 1); unimodal: both branches meet at 3/4 for many pairs.
    assert error_constant(0.9, 50, 0.1) == pytest.approx(1.25)
    low, high = (error_constant(t, 10**6, 0.1, unimodal=True) for t in (0.75, 0.75 + 1e-9))
    assert low == pytest.approx(1.0, abs=1e-5)
    assert high == pytest.approx(1.0, abs=1e-5)
    assert error_constant(0.6, 50, 0.7, unimodal=True) == np.inf


def test_halves_are_complementary():
    seen = []
    x = np.arange(10.0)[:, None] * np.ones((1, 2))
    stability_selection(lambda x, y: seen.append(x[:, 0]) or [0], x, np.zeros(10), n_pairs=3)
    for first, second in zip(seen[::2], seen[1::2]):
        assert sorted([*first, *second]) == list(range(10))


def correlated(rows, p, rho, rng):
    shared = np.sqrt(rho) * rng.standard_normal((rows, 1))
    return shared + np.sqrt(1 - rho) * rng.standard_normal((rows, p))


def test_halves_in_parallel_choose_the_same():
    x = np.random.default_rng(0).standard_normal((60, 8))
    y = x[:, 2] + np.random.default_rng(1).standard_normal(60)

    def largest(x, y):
        return np.argsort(-np.abs(x.T @ y))[:2]

    alone, shared = (stability_selection(largest, x, y, n_pairs=4, n_jobs=jobs) for jobs in (None, 2))
    assert np.array_equal(alone.frequency, shared.frequency)


@pytest.mark.parametrize("known", [True, False])
def test_p_values_of_null_inputs_are_uniform(known):
    rng, rho, p = np.random.default_rng(1), 0.8, 5
    covariance = rho + (1 - rho) * np.eye(p) if known else None
    found = []
    for _ in range(400):
        x = correlated(60, p, rho, rng)
        y = np.exp(x[:, 0]) + rng.standard_t(2, size=60)  # neither linear nor Gaussian
        found.append(randomization_p_values(x, y, covariance=covariance)[1:])
    flat = np.concatenate(found)
    assert stats.kstest(np.array(found)[:, 0], "uniform").pvalue > 1e-3
    assert (flat < 0.05).mean() < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


def test_p_value_against_drawn_copies():
    rng = np.random.default_rng(2)
    x = correlated(80, 3, 0.5, rng)
    x -= x.mean(0)
    y = 0.25 * x[:, 0] + rng.standard_normal(80)
    cov = 0.5 + 0.5 * np.eye(3)
    got = randomization_p_values(x, y, covariance=cov, predict=lambda others, y: others[:, 0])
    r = (y - y.mean()) - x[:, 1]  # of input 0, whose first other is input 1
    b = np.linalg.solve(cov[1:, 1:], cov[1:, 0])
    std = np.sqrt(cov[0, 0] - cov[0, 1:] @ b)
    copies = np.abs(std * rng.standard_normal((20000, 80)) @ r)
    share = (copies >= abs(r @ (x[:, 0] - x[:, 1:] @ b))).mean()
    assert got[0] == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 20000))


def test_adjustment_is_scipys():
    p = np.random.default_rng(3).random(30) ** 3
    assert np.allclose(adjusted_p_values(p), stats.false_discovery_control(p))


def test_bad_input_is_named():
    x, y = np.random.default_rng(0).standard_normal((10, 8)), np.zeros(10)
    with pytest.raises(InvalidInput, match="covariance"):
        randomization_p_values(x, y)
    with pytest.raises(InvalidInput, match="covariance"):
        randomization_p_values(x, y, covariance=np.zeros((8, 8)))
    rng = np.random.default_rng(1)
    columns = rng.standard_normal((60, 3))
    for singular in (columns[:, [0, 0, 1]], np.column_stack([columns, np.ones(60)])):
        with pytest.raises(InvalidInput, match="Remove duplicated"):
            randomization_p_values(singular, rng.standard_normal(60))
    with pytest.raises(InvalidInput, match="threshold"):
        stability_selection(lambda x, y: [0], x, y, threshold=0.5)
    with pytest.raises(InvalidInput, match="choose"):
        stability_selection(lambda x, y: [0.3], x, y)
