"""The regressor: quantiles and deviations against their definitions, several targets, files."""

import pickle

import numpy as np
import pytest
import torch
from scipy.stats import norm

from estimators.quick import two_classes
from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor, SparseBNNSurvival, load
from sparsebnn.estimators.observations import gaussian_quantiles

QUICK = {
    "epochs": 60,
    "replicates": 2,
    "hidden": (10,),
    "learning_rate": 0.03,
    "n_draws": 20,
    "random_state": 0,
}


def line(rows=150, seed=0):
    rng = np.random.RandomState(seed)
    x = rng.randn(rows, 3)
    return x, 100.0 + 20.0 * x[:, 0] + 5.0 * rng.randn(rows)


@pytest.fixture(scope="module")
def fitted():
    return SparseBNNRegressor(**QUICK).fit(*line())


def test_learns_in_the_units_of_the_target(fitted):
    x, y = line(seed=1)
    assert fitted.score(x, y) > 0.8
    mean, std = fitted.predict(x, return_std=True)
    assert abs(np.mean(np.abs(y - mean) < 1.645 * std) - 0.9) < 0.12


def test_quantiles_solve_the_mixture():
    mean, std = torch.randn(7, 5, 2, dtype=torch.float64), torch.rand(7, 5, 2, dtype=torch.float64) + 0.1
    for level, found in zip((0.05, 0.3, 0.9), gaussian_quantiles(mean, std, [0.05, 0.3, 0.9])):
        mass = norm.cdf(found.numpy(), mean.numpy(), std.numpy()).mean(0)
        np.testing.assert_allclose(mass, level, atol=1e-10)


def test_samples_have_the_predicted_mean_and_std(fitted):
    x, _ = line(4, seed=2)
    model = pickle.loads(pickle.dumps(fitted)).set_params(n_draws=4000)
    mean, std = model.predict(x, return_std=True)
    samples = model.sample_predictive(x, 4000)
    assert (np.abs(samples.mean(0) - mean) < 4 * std / np.sqrt(4000)).all()
    assert (np.abs(samples.std(0) / std - 1) < 4 / np.sqrt(2 * 4000) * 1.2).all()


def test_several_targets(tmp_path):
    x, y = line()
    both = np.column_stack([y, -3.0 * y + 1.0])
    model = SparseBNNRegressor(**QUICK).fit(x, both)
    mean, std = model.predict(x[:4], return_std=True)
    assert mean.shape == std.shape == (4, 2)
    three = model.predict_quantiles(x[:4], [0.1, 0.5, 0.9])
    assert three.shape == (4, 2, 3)
    assert (model.predict_quantiles(x[:4], 0.5) == three[..., 1]).all()
    drawn = [model.sample_predictive(x[:4], 5, given) for given in (3, np.random.RandomState(3))]
    assert (drawn[0] == drawn[1]).all()
    assert model.score(x, both) > 0.8
    assert model.explain(x[:4], n_draws=4).contributions.shape == (4, 3, 2)


@pytest.mark.parametrize("noise", ["learned", "heteroscedastic"])
def test_saved_and_loaded_predicts_the_same_bits(noise, tmp_path):
    x, y = line(60)
    model = SparseBNNRegressor(**{**QUICK, "epochs": 10}, noise=noise).fit(x, y)
    again = load(model.save(tmp_path / "model.safetensors"))
    assert (again.predict(x) == model.predict(x)).all()
    assert (again.predict_quantiles(x) == model.predict_quantiles(x)).all()


def test_parameters_set_after_the_fit_change_no_saved_prediction(tmp_path):
    """What was fitted is what is saved; the parameters come back as they were set."""
    x, y = line(60)
    model = SparseBNNRegressor(**{**QUICK, "epochs": 3}).fit(x, y)
    expected = model.predict(x)
    model.set_params(noise="heteroscedastic", family="flow", hidden=(5,))
    again = load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(again.predict(x), expected)
    assert again.get_params()["noise"] == "heteroscedastic"


def test_the_summary_says_what_priors_have_learned():
    from sparsebnn import mlp
    from sparsebnn.estimators.summary import _priors
    from sparsebnn.nn.description import prior_values
    from sparsebnn.posteriors import EmpiricalPrior

    networks = [mlp([3, 4, 1], prior=EmpiricalPrior(0.25)) for _ in range(2)]
    first, last = _priors(networks)
    std = sum(prior_values(network)[0].slab_std for network in networks) / 2
    assert first == f"prior that layer 0 learned: slab std {std:.3g}, inclusion 0.25"
    assert last.startswith("prior that layer 2 learned: ")
    assert _priors([mlp([3, 1], family="gaussian")]) == []


def test_contributions_add_up_to_the_prediction():
    """With as many draws, whose noise differs between networks, as the prediction has."""
    x, y = line(60)
    model = SparseBNNRegressor(epochs=5, replicates=3, n_draws=12, random_state=0).fit(x, y)
    explained = model.explain(x[:5], n_draws=12)
    np.testing.assert_allclose(explained.value[:, 0], model.predict(x[:5]), rtol=1e-9)


def test_effects_and_summary_name_what_matters(fitted):
    x, _ = line(5, seed=4)
    explained = fitted.explain(x, n_draws=20)
    assert explained.names == ("x0", "x1", "x2")
    assert int(explained.importance.argmax()) == 0
    assert fitted.effects_.direction[0] == "+"
    assert abs(fitted.effects_.value[0] - 20.0) < 6.0
    text = fitted.summary()
    assert "SparseBNNRegressor: 1 target" in text
    assert text.index("x0") < text.index("x1")
    assert "prior that layer layers.0 learned: slab std 1, inclusion 0." in text


@pytest.mark.parametrize("kind", [SparseBNNClassifier, SparseBNNRegressor, SparseBNNSurvival])
@pytest.mark.parametrize("settings", [{}, {"family": "flow"}, {"time_budget": 60.0}])
def test_torchs_generator_stays_as_it_was(kind, settings, tmp_path):
    """Whoever seeded it gets the same numbers after a fit as before."""
    x, y = two_classes(60)
    targets = y if kind is SparseBNNClassifier else np.abs(x[:, 0]) + 0.1
    before = torch.get_rng_state()
    model = kind(**{**QUICK, "epochs": 2, **settings}).fit(x, targets)
    load(model.save(tmp_path / "model.safetensors")).predict(x)
    model.sample_inclusions(10)
    model.explain(x[:2], n_draws=4)
    assert torch.equal(torch.get_rng_state(), before)
