"""Screen, then refit: what is kept, the shape of the networks, and what it buys."""

import numpy as np
import pytest
import torch

from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor
from sparsebnn.estimators.ensemble import Ensemble, linear_layers
from sparsebnn.estimators.plan import network, planned
from sparsebnn.estimators.training import Screen, screened
from sparsebnn.likelihoods import Gaussian

PLAN = planned(SparseBNNRegressor(hidden=(7, 6)).get_params(), 200, "regression", "test")


def one(inputs, kept=()):
    """A network with random weights that includes only some inputs, in its first layer."""
    torch.manual_seed(0)
    made = network(PLAN, inputs, 1)
    for place, layer in enumerate(linear_layers(made)):
        layer.weights.mean.data.normal_()
        layer.weights.raw_std.data.fill_(-20.0)
        layer.biases.raw_std.data.fill_(-20.0)
        layer.weights.inclusion_logit.data.fill_(20.0)
        own = layer.in_features - inputs if place else 0
        layer.weights.inclusion_logit.data[:, own:] = -20.0
        if not place:
            layer.weights.inclusion_logit.data[:, list(kept)] = 20.0
    return made.eval()


def outputs(made, x):
    return next(Ensemble([made], [Gaussian()]).draws(x, 1, "average", 0, "cpu"))[1]


def test_each_replicate_keeps_what_it_includes():
    found = screened([one(40, (3, 5)), one(40, (5,))], [Gaussian()] * 2, np.arange(40), 40)
    assert [torch.nonzero(each).flatten().tolist() for each in found.kept] == [[3, 5], [5]]
    assert found.inputs.tolist() == [3, 5]


def test_all_inputs_of_a_column_are_kept():
    found = screened([one(40, (3,))], [Gaussian()], np.repeat(np.arange(10), 4).clip(0, 34), 35)
    assert torch.nonzero(found.kept[0]).flatten().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("inputs", "kept"), [(20, (3,)), (40, range(30))])
def test_no_screen_for_few_columns_or_if_most_are_kept(inputs, kept):
    assert screened([one(inputs, kept)], [Gaussian()], np.arange(inputs), inputs) is None


def test_a_widened_network_predicts_what_the_narrow_one_does():
    kept = torch.zeros(1, 40, dtype=torch.bool)
    kept[0, [2, 9, 31]] = True
    narrow = one(3, (0, 1, 2))
    for layer in linear_layers(narrow):
        layer.weights.inclusion_logit.data.fill_(20.0)
    wide = Screen(kept).widened(narrow, network(PLAN, 40, 1))
    x = np.random.RandomState(0).randn(8, 40)
    expected = outputs(narrow, x[:, [2, 9, 31]])
    torch.testing.assert_close(outputs(wide, x), expected, rtol=0, atol=1e-6)


def curved(rows, seed):
    random = np.random.RandomState(seed)
    x = random.randn(rows, 60)
    return x, np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * random.randn(rows)


@pytest.fixture(scope="module")
def fits():
    settings = {"random_state": 0, "replicates": 3}
    return [SparseBNNRegressor(**settings, screen=screen).fit(*curved(400, 0)) for screen in (False, True)]


def test_it_predicts_a_curve_of_few_columns_better(fits, tmp_path):
    x, y = curved(2000, 1)
    before, after = (np.mean((model.predict(x) - y) ** 2) for model in fits)
    assert after < 0.8 * before
    assert any("screened" in each for each in fits[1].predictors_)
    np.testing.assert_array_equal(fits[0].inclusion_, fits[1].inclusion_)
    loaded = SparseBNNRegressor.load(fits[1].save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(loaded.predict(x), fits[1].predict(x))
    assert loaded.predictors_ == fits[1].predictors_
    np.testing.assert_array_equal(loaded.replicate_weights_, fits[1].replicate_weights_)
    np.testing.assert_array_equal(loaded.sample_inclusions(50), fits[1].sample_inclusions(50))
    assert "screened columns" in fits[1].summary()


def test_a_replicate_never_uses_a_column_that_it_did_not_keep(fits):
    model = fits[1]
    count = model.plan_.replicates
    first = Ensemble(model.posterior_networks_, model._likelihoods).inclusion(np.arange(60), 60)
    chosen = [k for k in model._places if k >= 2 * count]
    again = Ensemble([model._all_networks[k] for k in chosen], model._likelihoods).inclusion(
        np.arange(60), 60
    )
    assert len(chosen) >= count
    for place, each in enumerate(again):
        assert not (each[first[place % count] <= 0.09] > 1e-6).any()


def test_a_warning_if_columns_outnumber_rows_and_it_is_off():
    x = np.random.RandomState(0).randn(50, 60)
    with pytest.warns(UserWarning, match="60 columns and 50 rows.*screen=True"):
        model = SparseBNNClassifier(random_state=0, epochs=2, screen=False).fit(x, x[:, 0] > 0)
    assert any("not trained again" in note for note in model.notes_)
