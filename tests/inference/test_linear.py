"""Linear models written as networks, and the rows that choose between networks."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeCV

from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor
from sparsebnn.estimators.cross_fitting import choose
from sparsebnn.estimators.ensemble import Ensemble
from sparsebnn.estimators.plan import network, planned
from sparsebnn.inference.linear import can_be_linear, linear_network
from sparsebnn.likelihoods import Bernoulli, Categorical, Gaussian, StudentT
from sparsebnn.nn.passes import LocalPass
from sparsebnn.random.noise import NoiseCounter

PLAN = planned(SparseBNNClassifier().get_params(), 200, "classification", "test")


def outputs(one, x):
    with torch.no_grad(), LocalPass(NoiseCounter()):  # whose noise is 0
        return one(torch.from_numpy(x).float()).numpy()


@pytest.mark.parametrize("classes", [2, 3])
def test_the_network_predicts_what_the_logistic_regression_does(classes):
    random = np.random.RandomState(0)
    x = random.randn(200, 4)
    y = np.digitize(x[:, 0] - x[:, 1] + random.logistic(size=200), [0.0, 1.5][: classes - 1])
    form = Bernoulli() if classes == 2 else Categorical(3)
    template = network(PLAN, 4, 1 if classes == 2 else 3)
    made, _ = linear_network(template, form, x, y.astype(float), np.ones(200))
    wanted = LogisticRegression(max_iter=200).fit(x, y).decision_function(x).reshape(200, -1)
    np.testing.assert_allclose(outputs(made, x), wanted, atol=1e-4)


def test_a_regression_learns_its_noise():
    random = np.random.RandomState(0)
    x = random.randn(2000, 3)
    y = x @ np.array([[1.0], [0.0], [-2.0]]) + 0.5 * random.randn(2000, 1)
    made, form = linear_network(network(PLAN, 3, 1), Gaussian(), x, y, np.ones(2000))
    wanted = RidgeCV(np.logspace(-1, 3, 9)).fit(x, y[:, 0]).predict(x)
    np.testing.assert_allclose(outputs(made, x)[:, 0], wanted, atol=1e-4)
    assert float(torch.nn.functional.softplus(form.raw_std.detach())) == pytest.approx(0.5, rel=0.05)


def test_predictions_of_correlated_columns_vary_as_under_the_exact_posterior():
    """On average over the rows; the oracle is the covariance of all coefficients together."""
    random = np.random.RandomState(0)
    x = random.randn(300, 1) + 0.3 * random.randn(300, 4)
    x = (x - x.mean(0)) / x.std(0)
    y = x[:, :1] + random.randn(300, 1)
    made, form = linear_network(network(PLAN, 4, 1), Gaussian(), x, y, np.ones(300))
    noise = float(torch.nn.functional.softplus(form.raw_std.detach()))
    exact = np.trace(x @ np.linalg.inv(x.T @ x / noise**2 + np.eye(4)) @ x.T) / 300
    outputs = torch.cat([o for _, o in Ensemble([made], [form]).draws(x, 4000, "average", 0, "cpu")], 2)
    assert float(outputs[0].var(0).mean()) == pytest.approx(exact, rel=0.1)


def test_many_columns_get_few_coefficients():
    random = np.random.RandomState(0)
    x = random.randn(80, 200)
    y = (2.0 * x[:, 3] + random.logistic(size=80) > 0).astype(float)
    made, _ = linear_network(network(PLAN, 200, 1), Bernoulli(), x, y, np.ones(80))
    included = made.layers[1].weights.inclusion_prob()[0, 50:] > 0.5
    assert included[3]
    assert included.sum() < 60


def test_likelihoods_without_a_linear_model():
    forms = [Bernoulli(), Categorical(3), Gaussian(), Gaussian(noise="heteroscedastic"), StudentT()]
    assert [can_be_linear(form) for form in forms] == [True, True, True, False, False]


def test_left_out_rows_choose_the_networks_that_predict_them():
    """Of two sets, one knows the truth; the other says the opposite."""
    random = np.random.RandomState(0)
    x = random.randn(100, 2)
    y = (3.0 * x[:, 0] + random.logistic(size=100) > 0).astype(float)
    made = [
        linear_network(network(PLAN, 2, 1), Bernoulli(), x, target, np.ones(100)) for target in (1.0 - y, y)
    ]
    trained, forms = [m for m, _ in made for _ in range(2)], [f for _, f in made for _ in range(2)]
    fold = torch.from_numpy(np.arange(100) % 2).float()
    both = Ensemble(trained, forms)
    found = choose(both, [[0, 1], [2, 3]], x, torch.from_numpy(y), fold, np.ones(100), True)
    assert found.places == [2, 3]


def test_three_sets_predict_together_where_each_errs_on_its_own_rows():
    """Three linear networks, whose errors cancel: the average of all three is right, of two it is not."""
    random = np.random.RandomState(0)
    x = random.randn(120, 3)
    y = x.sum(1, keepdims=True) + 0.1 * random.randn(120, 1)
    trained, forms = [], []
    for j in range(3):
        wrong = y + 2.0 * x[:, [j]] - 2.0 * x[:, [(j + 1) % 3]]
        made, form = linear_network(network(PLAN, 3, 1), Gaussian(), x, wrong, np.ones(120))
        form.raw_std.data.fill_(1.0)
        trained, forms = trained + [made] * 2, forms + [form] * 2
    fold = torch.from_numpy(np.arange(120) % 2).float()
    given = Ensemble(trained, forms), [[0, 1], [2, 3], [4, 5]], x, torch.from_numpy(y), fold, np.ones(120)
    assert choose(*given, True, most=3).places == [0, 1, 2, 3, 4, 5]
    assert len(choose(*given, True).places) == 4


@pytest.mark.parametrize("kind", [SparseBNNClassifier, SparseBNNRegressor])
def test_a_linear_truth_and_few_rows_are_left_to_linear_networks(kind, tmp_path):
    random = np.random.RandomState(0)
    x = random.randn(400, 8)
    f = x @ np.linspace(-1.0, 1.0, 8)
    y = f + random.logistic(size=400) > 0 if kind is SparseBNNClassifier else f + random.randn(400)
    model = kind(random_state=0, epochs=60).fit(x, y)
    assert "linear networks" in model.predictors_
    assert set(range(16, 24)) <= set(model._places)
    assert len(model.posterior_networks_) == 8
    loaded = kind.load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))
    np.testing.assert_array_equal(loaded.inclusion_, model.inclusion_)
    assert loaded.predictors_ == model.predictors_
    again = loaded.set_params(warm_start=True, epochs=1).fit(x, y)
    assert len(again.posterior_networks_) == 8
