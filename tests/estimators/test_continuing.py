"""Fits that continue, and importances for scikit-learn's selectors."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.feature_selection import SelectFromModel

from estimators.quick import QUICK, two_classes
from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor, load
from sparsebnn.estimators.continuing import Seen

STILL = {**QUICK, "learning_rate": 1e-9, "warm_start": True}


def values(model):
    return torch.cat([p.detach().flatten() for network in model.networks_ for p in network.parameters()])


def test_a_warm_start_begins_where_the_last_fit_ended():
    """With a learning rate of nearly 0, the networks stay where they are; a cold start goes back."""
    x, y = two_classes()
    model = SparseBNNClassifier(**QUICK).fit(x, y)
    before, noise = values(model), model._seed
    torch.testing.assert_close(values(model.set_params(**STILL).fit(x, y)), before, atol=1e-6, rtol=0.0)
    assert model._seed == noise
    cold = values(model.set_params(warm_start=False).fit(x, y))
    assert (cold - before).abs().max() > 0.1


def test_a_warm_start_keeps_the_scale_of_targets_and_the_noise():
    x = np.random.RandomState(0).randn(90, 3)
    model = SparseBNNRegressor(**QUICK, temperature=1.0).fit(x, 5.0 * x[:, 0])
    scale, noise = model._y_std, model._likelihoods[0].raw_std.item()
    model.set_params(**STILL).fit(x, 50.0 * x[:, 0])
    assert model._y_std == scale
    assert abs(model._likelihoods[0].raw_std.item() - noise) < 0.5  # the mean over replicates


@pytest.mark.parametrize(
    ("change", "parameter"), [({"hidden": (4,)}, "hidden"), ({"family": "gaussian"}, "family")]
)
def test_another_network_cannot_continue(change, parameter):
    x, y = two_classes()
    model = SparseBNNClassifier(**QUICK, warm_start=True).fit(x, y)
    before = values(model)
    with pytest.raises(ValueError, match=f"'{parameter}'"):
        model.set_params(**change).fit(x, y)
    assert torch.equal(values(model), before)


def test_passes_over_parts_of_the_rows_learn_like_one_fit(tmp_path):
    x, y = two_classes(400)
    model = SparseBNNClassifier(**QUICK)
    for _ in range(6):
        for part in range(2):
            model.partial_fit(x[part::2], y[part::2], classes=["no", "yes"])
    new, truth = two_classes(400, seed=1)
    assert model.score(new, truth) > 0.93
    assert model._seen.rows == 400
    loaded = load(model.save(tmp_path / "model.safetensors")).partial_fit(new, truth)
    assert loaded._seen.rows == 200 + 400  # the rows of the last pass, and new ones


def test_rows_are_counted_once():
    random = np.random.RandomState(0)
    seen = Seen()
    for _ in range(3):
        seen = seen.after(np.arange(30.0)[:, None], np.zeros(30), 1)
    assert (seen.rows, seen.steps) == (30, 3)
    for part in np.array_split(random.randn(40_000, 2), 5):
        seen = seen.after(part, np.zeros(len(part)), 1)
    assert abs(seen.rows / 40_030 - 1.0) < 4.0 / np.sqrt(4096)  # four standard errors


def test_equal_rows_of_a_batch_are_several(tmp_path):
    """A table of two categories has few different rows, but each counts; passing it again adds none."""
    random = np.random.RandomState(0)
    x = pd.DataFrame({"a": random.choice(list("pqr"), 2000), "b": random.choice(list("uv"), 2000)})
    y = np.where(random.rand(2000) < 0.3, "yes", "no")
    model = SparseBNNClassifier(**QUICK)
    for _ in range(2):
        model.partial_fit(x, y, classes=["no", "yes"])
        assert model._seen.rows == 2000
    model.partial_fit(x[:500], y[:500])
    assert model._seen.rows == 2000
    again = load(model.partial_fit(x, y).save(tmp_path / "model.safetensors"))
    again.partial_fit(x[:500], y[:500])  # a file knows the number of rows, not the rows
    assert again._seen.rows == 2500


def test_what_a_pass_refuses():
    x, y = two_classes()
    with pytest.raises(ValueError, match="'classes'"):
        SparseBNNClassifier(**QUICK).partial_fit(x, y)
    with pytest.raises(ValueError, match="'target_density'"):
        SparseBNNRegressor(**QUICK, target_density=0.1).partial_fit(x, x[:, 0])
    model = SparseBNNClassifier(**QUICK).partial_fit(x, y, classes=["no", "yes"])
    with pytest.raises(ValueError, match=r"'y'.*'maybe'"):
        model.partial_fit(x, np.where(y == "no", "maybe", y))
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(x[:, :2], y)


def test_selectors_of_scikit_learn_read_the_importances():
    x, y = two_classes(300)
    model = SparseBNNClassifier(**QUICK).fit(x, y)
    assert model.feature_importances_.sum() == pytest.approx(1.0)
    assert set(np.argsort(model.feature_importances_)[-2:]) == {0, 1}
    assert SelectFromModel(model, prefit=True).transform(x).shape == (300, 2)
