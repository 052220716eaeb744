"""What is measured on some of the rows does not depend on their order, on copies, or on other targets."""

import numpy as np
import pytest
import torch
from scipy.special import expit

from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor, cross_fitting, load
from sparsebnn.estimators.cross_fitting import copies, folds
from sparsebnn.estimators.ensemble import some_rows

QUICK = {"replicates": 2, "random_state": 0}


def test_some_rows_are_spread_over_the_table():
    assert some_rows(5, 5).tolist() == [0, 1, 2, 3, 4]
    found = some_rows(10_000, 1000)
    assert (np.diff(found) > 0).all()
    # 4 standard errors of the mean of 1,000 of 10,000 places.
    assert abs(found.mean() - 5000) < 4 * 10_000 / np.sqrt(12 * 1000)
    assert np.array_equal(found, some_rows(10_000, 1000))


def test_the_calibration_of_a_sorted_table(monkeypatch):
    """Before, the first of the rows left out decided: of one class, if the table is sorted by class."""
    monkeypatch.setattr(cross_fitting, "_MOST_ROWS", 60)
    rng = np.random.RandomState(0)
    x = rng.randn(600, 3)
    y = (rng.rand(600) < expit(2 * x[:, 0] - 1)).astype(int)
    order = np.argsort(y, kind="stable")
    scales = [
        SparseBNNClassifier(epochs=80, **QUICK).fit(x[rows], y[rows]).logit_scale_
        for rows in (np.arange(600), order)
    ]
    assert scales[1] == pytest.approx(scales[0], rel=0.2)


def test_effects_of_a_sorted_table():
    """y = 3 max(x, 0): the mean slope is 1.5, and 0 in the lower half of the rows."""
    rng = np.random.RandomState(0)
    x = rng.randn(399, 2)
    y = 3 * np.maximum(x[:, 0], 0) + 0.1 * rng.randn(399)
    order = np.argsort(x[:, 0])
    model = SparseBNNRegressor(epochs=60, **QUICK).fit(x[order], y[order])
    assert model.effects_.value[0] == pytest.approx(1.5, abs=0.3)


def test_gains_of_a_sorted_table():
    """Only the last sixth of the rows, sorted by x, shows that x matters."""
    rng = np.random.RandomState(0)
    x = rng.randn(2990, 2)
    y = np.where(x[:, 0] > 1, 3 * (x[:, 0] - 1), 0) + 0.3 * rng.randn(2990)
    order = np.argsort(x[:, 0])
    model = SparseBNNRegressor(epochs=15, **QUICK).fit(x[order], y[order])
    assert model.feature_importances_[0] > 0.9


def test_copies_are_told_from_rows_that_are_equal_by_chance():
    rng = np.random.RandomState(0)
    x, y = rng.randn(130, 4), torch.from_numpy(rng.randn(130))
    assert copies(x, y) is None
    thrice = np.tile(np.arange(130), 3)
    found = copies(x[thrice], y[torch.from_numpy(thrice)])
    assert len(np.unique(found)) == 130
    for row in range(130):
        assert len(np.unique(found[thrice == row])) == 1
    # Few categories and noisy classes: nearly every row has an equal one, of either class.
    few = rng.randint(3, size=(2000, 3)).astype(float)
    assert copies(few, torch.from_numpy((rng.rand(2000) < 0.3).astype(np.int64))) is None
    # Rare classes agree by chance.
    assert copies(few, torch.from_numpy((rng.rand(2000) < 0.01).astype(np.int64))) is None
    # A rule without noise on few categories: a group holds more than a twentieth of the rows.
    assert copies(few[:, :2], torch.from_numpy(few[:, 0])) is None


def test_copies_share_a_fold_and_a_note_says_so():
    rng = np.random.RandomState(1)
    x, y = rng.randn(60, 3), rng.randn(60)
    group = np.tile(np.arange(60), 3)
    fold = folds(torch.from_numpy(np.tile(y, 3)), 10, 0, False, group).numpy()
    assert (fold.reshape(3, 60) == fold[:60]).all()
    assert np.bincount(fold[:60].astype(int), minlength=10).tolist() == [6] * 10
    model = SparseBNNRegressor(epochs=5, **QUICK).fit(np.tile(x, (3, 1)), np.tile(y, 3))
    assert any("120 of 180 rows are copies" in note for note in model.notes_)


@pytest.mark.slow
def test_intervals_hold_with_copies():
    """Before, the 90% intervals of a table with every row three times held 0.65."""
    held = []
    for seed in range(3):
        rng = np.random.RandomState(seed)
        x = rng.randn(1100, 10)
        y = x[:, 0] + x[:, 1] * x[:, 2] + rng.randn(1100)
        model = SparseBNNRegressor(random_state=0).fit(np.tile(x[:100], (3, 1)), np.tile(y[:100], 3))
        low, high = model.predict_interval(x[100:], 0.9).T
        held.append(np.mean((low <= y[100:]) & (y[100:] <= high)))
    assert np.mean(held) > 0.8


def test_every_target_has_its_own_scale(tmp_path):
    """Noise of standard deviation 1 and none: one scale for both gave the first interval 57%."""
    rng = np.random.RandomState(0)
    x = rng.randn(1300, 4)
    y = np.column_stack([x[:, 0] + rng.randn(1300), x[:, 1], 5 * x[:, 2] - x[:, 3]])
    model = SparseBNNRegressor(epochs=150, **QUICK).fit(x[:300], y[:300])
    assert model.logit_scale_.shape == (3,)
    found = model.predict_interval(x[300:], 0.9)
    held = ((found[..., 0] <= y[300:]) & (y[300:] <= found[..., 1])).mean(0)
    assert 0.8 < held[0] < 0.97
    assert (held[1:] > 0.85).all()
    std = model.predict(x[300:], return_std=True)[1]
    assert np.median(std[:, 0]) == pytest.approx(1.0, rel=0.25)
    again = load(model.save(tmp_path / "three.safetensors"))
    np.testing.assert_allclose(again.predict_interval(x[300:310], 0.9), found[:10], rtol=1e-12)
    np.testing.assert_allclose(again.predict(x[300:310], return_std=True)[1], std[:10], rtol=1e-12)


def test_contributions_of_ordinal_classes_add_up_to_log_odds():
    """Base and contributions are the log odds of a class after the first; the threshold is part of them."""
    rng = np.random.RandomState(0)
    x = rng.randn(300, 3)
    y = np.digitize(2 * x[:, 0] - x[:, 1] + rng.logistic(size=300), [-2, 0, 2])
    model = SparseBNNClassifier(likelihood="ordinal", epochs=60, **QUICK).fit(x, y)
    explained = model.explain(x[:100])
    total = (explained.base + explained.contributions.sum(1))[:, 0]
    # An average of log odds is not the log odds of an average, but close.
    np.testing.assert_allclose(expit(total), 1 - model.predict_proba(x[:100])[:, 0], atol=0.05)
