"""Estimators on correlated columns: replicates disagree, and credible sets name what can be said."""

import numpy as np
import pytest

from sparsebnn import SparseBNNClassifier, SparseBNNRegressor
from sparsebnn.checks import InvalidInput
from sparsebnn.estimators.cross_fitting import of_all_rows
from sparsebnn.estimators.explanation import correlations
from sparsebnn.selection import sample_inputs, select


@pytest.fixture(scope="module")
def near_copies():
    """Columns a, b, c correlate by 0.97; one of them and d have effects."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(3)
    shared = rng.standard_normal((200, 1))
    alike = np.sqrt(0.97) * shared + np.sqrt(0.03) * rng.standard_normal((200, 3))
    frame = pandas.DataFrame(np.hstack([alike, rng.standard_normal((200, 4))]), columns=list("abcdefg"))
    y = frame["b"] + frame["d"] + 0.7 * rng.standard_normal(200)
    return SparseBNNRegressor(random_state=0, epochs=250).fit(frame, y), frame


def test_a_set_holds_the_columns_that_replace_each_other(near_copies):
    model, frame = near_copies
    chosen = select(model, rule="credible_sets", X=frame)
    assert sorted(sorted(one.names) for one in chosen.sets if len(one) > 1) in (
        [["a", "b"]],
        [["b", "c"]],
        [["a", "b", "c"]],
    )
    assert ("d",) in [one.names for one in chosen.sets]
    for one in chosen.sets:
        assert one.coverage >= 0.95
        if len(one) > 1:
            own = np.abs(np.corrcoef(frame[list(one.names)].to_numpy().T))
            assert one.purity == pytest.approx(own.min(), abs=1e-6)


def test_disagreeing_replicates_are_warned_of(near_copies):
    model, _ = near_copies
    each = model.replicate_inclusion_
    assert each.shape == (len(model.posterior_networks_), 7)
    with pytest.warns(UserWarning, match="the replicates disagree.*credible sets"):
        select(model, rule="fdr", level=0.1)
    assert "replicates disagree" in model.summary()


def test_inclusions_count_the_rows_that_replicates_leave_out(near_copies):
    model, _ = near_copies
    average = model.replicate_weights_ @ model.replicate_inclusion_
    sharper = of_all_rows(average, 10)
    copies = np.isin(model.names_, ["a", "b", "c"]) & (average > average.mean())
    assert copies.sum() > 1
    # Which of the copies a replicate includes does not depend on the number of rows.
    assert model.inclusion_[copies] == pytest.approx(average[copies])
    assert model.inclusion_[~copies] == pytest.approx(sharper[~copies])
    assert np.abs(sharper - average).min() > 0.0


def test_evidence_grows_with_the_rows():
    """Gaussian numbers whose mean is 0, or ``mean`` with a known prior probability."""
    count, rate, mean = 10, 0.2, 0.7
    rows = np.random.RandomState(0).randn(5000, 2 * count) + mean * (np.arange(5000) < 1000)[:, None]

    def inclusion(rows):
        evidence = (mean * rows - mean**2 / 2.0).sum(1)
        return 1.0 / (1.0 + (1.0 - rate) / rate * np.exp(-evidence))

    folds = [[2 * k, 2 * k + 1, (2 * k + 2) % 20, (2 * k + 3) % 20] for k in range(count)]
    average = np.mean([inclusion(np.delete(rows, left, axis=1)) for left in folds], axis=0)
    error = np.abs(average - inclusion(rows)).mean()
    assert np.abs(of_all_rows(average, count) - inclusion(rows)).mean() < 0.6 * error


def test_inclusions_of_0_and_1_stay():
    assert of_all_rows(np.array([0.0, 0.0]), 10).tolist() == [0.0, 0.0]
    assert of_all_rows(np.array([1.0, 1.0]), 10).tolist() == [1.0, 1.0]
    assert of_all_rows(np.array([1.0, 0.5, 0.0]), 10)[[0, 2]].tolist() == [1.0, 0.0]
    assert of_all_rows(np.array([1.0 + 1e-8, 0.5]), 10)[0] == 1.0  # rounded
    assert of_all_rows(np.array([0.9, 0.5]), 2).tolist() == [0.9, 0.5]  # every replicate leaves out all rows


def test_replicates_that_agree_are_not_mentioned():
    x = np.random.default_rng(0).standard_normal((200, 4))
    model = SparseBNNRegressor(random_state=0, epochs=250).fit(x, x[:, 0] + x[:, 1])
    assert "disagree" not in model.summary()


def test_drawn_columns_have_the_inclusions(near_copies):
    model, _ = near_copies
    drawn = sample_inputs(model)
    assert drawn.shape == (2000, 7)
    assert np.abs(drawn.mean(0) - model.inclusion_).max() < 4 * 0.5 / np.sqrt(2000)
    assert np.array_equal(drawn, model.sample_inclusions())


def test_one_replicate_is_checked_like_one_network(near_copies):
    _, frame = near_copies
    y = frame["b"] + frame["d"]
    one = SparseBNNRegressor(replicates=1, epochs=300, random_state=1).fit(frame[list("abde")], y)
    with pytest.warns(UserWarning, match="single network"):
        assert "d" in select(one, rule="fdr").variables
    with pytest.raises(InvalidInput, match=r"they correlate by 0\.9"):
        select(one, rule="fdr", X=frame[list("abde")])


def test_correlations_of_columns_with_categories():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    town = rng.choice(["a", "b", "c"], 120)
    z = rng.standard_normal(120)
    frame = pandas.DataFrame({"town": town, "north": (town == "b") * 1.0, "z": z, "same": 1.0})
    model = SparseBNNClassifier(epochs=2, replicates=2).fit(frame, z > 0)
    found = model.column_correlations(frame)
    assert np.array_equal(found, found.T)
    assert found[0, 1] == pytest.approx(1.0)
    assert found[2, 1] == pytest.approx(abs(np.corrcoef(z, town == "b")[0, 1]), abs=1e-5)
    assert not found[3].any()
    x = model._inputs(frame)
    places = model._encoder.column_of
    slow = np.abs(np.corrcoef(x.T))
    assert found[0, 2] == pytest.approx(slow[np.ix_(places == 0, places == 2)].max(), abs=1e-6)
    assert np.array_equal(correlations(x, model._encoder), found)
    with pytest.raises(InvalidInput, match="trained for 2 steps"):
        model.credible_sets(frame)


def test_duplicated_columns_form_one_set_and_constant_ones_none():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 4))
    x = np.column_stack([x, x[:, 0], np.ones(120)])
    model = SparseBNNRegressor(random_state=0, epochs=420, replicates=4)
    model.fit(x, x[:, 0] + 0.5 * rng.standard_normal(120))
    assert [set(one.members) for one in model.credible_sets(x)] == [{0, 4}]
    assert model.inclusion_[5] == 0.0
    assert not model.column_correlations(x)[5].any()


def test_more_columns_than_rows_and_separated_classes():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((60, 100))
    model = SparseBNNClassifier(random_state=0, epochs=420, replicates=3).fit(x, x[:, 2] > 0)
    assert model.inclusion_.argmax() == 2
    assert all(2 in one.members for one in model.credible_sets(x))
    assert np.isfinite(model.predict_proba(100.0 * x)).all()


def test_columns_missing_in_the_same_rows_are_no_copies():
    x = np.random.RandomState(0).randn(200, 3)
    y = x[:, 0] - x[:, 1]
    x[:5, :2] = np.nan
    model = SparseBNNRegressor(random_state=0, replicates=2, epochs=3).fit(x, y)
    found = model.column_correlations(x)
    assert found[0, 1] < 0.3
    assert (np.diag(found) > 0.99).all()


def test_constant_columns_have_no_credible_sets():
    x, y = np.ones((60, 3)), np.arange(60) % 2
    model = SparseBNNClassifier(random_state=0, epochs=450, replicates=2, batch_size=60).fit(x, y)
    assert model.credible_sets(x) == []
    assert not model.column_correlations(x).any()
    assert select(model, rule="credible_sets", X=x).variables == ()
