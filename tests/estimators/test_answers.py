"""Counts, outliers, several labels, ordered and noisy classes through the estimators."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.base import clone

from estimators.quick import QUICK
from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor, SparseBNNSurvival, load
from sparsebnn.likelihoods import Poisson

R = np.random.RandomState(3)
X = R.randn(300, 3)
RATE = np.exp(0.7 + 0.8 * X[:, 0])
OVERDISPERSED = R.negative_binomial(2.0, 2.0 / (2.0 + RATE))
EXPOSURE = R.uniform(0.2, 5.0, 300)
FAST = {**QUICK, "epochs": 60}


@pytest.fixture(scope="module")
def counts():
    return SparseBNNRegressor(**{**FAST, "n_draws": 200}, likelihood="negative_binomial").fit(
        X, OVERDISPERSED
    )


def randomized_pit(model, x, y, seed=0):
    """P(Y < y) + u · P(Y = y), uniform if the model is right; from draws of the predictive distribution."""
    drawn = model.sample_predictive(x, 400, random_state=seed)
    below, equal = (drawn < y).mean(0), (drawn == y).mean(0)
    return below + np.random.RandomState(seed).rand(len(y)) * equal


def test_over_dispersed_counts_have_calibrated_pits(counts):
    """Kolmogorov–Smirnov against uniform on new rows; a Poisson model of the same counts fails it."""
    random = np.random.RandomState(4)
    x = random.randn(400, 3)
    rate = np.exp(0.7 + 0.8 * x[:, 0])
    y = random.negative_binomial(2.0, 2.0 / (2.0 + rate))
    assert stats.kstest(randomized_pit(counts, x, y), "uniform").pvalue > 0.01
    wrong = SparseBNNRegressor(**FAST, likelihood="poisson").fit(X, OVERDISPERSED)
    assert stats.kstest(randomized_pit(wrong, x, y), "uniform").pvalue < 0.01


@pytest.mark.parametrize("task", ["counts", "times"])
def test_long_tails_do_not_ruin_exponentials_of_outputs(task):
    """Skewed columns give some rows far outputs at first: at the usual rate, counts end up unrelated."""
    random = np.random.RandomState(0)
    x = np.concatenate([random.randn(600, 1), np.exp(1.2 * random.randn(600, 3)), random.randn(600, 3)], 1)
    rate = np.exp(1.0 + 0.8 * x[:, 0])
    options = {"random_state": 0, "replicates": 1, "device": "cpu"}
    if task == "counts":
        model = SparseBNNRegressor(**options, likelihood="poisson").fit(x[:400], random.poisson(rate)[:400])
    else:
        model = SparseBNNSurvival(**options).fit(x[:400], random.exponential(1.0 / rate)[:400])
    assert model.plan_.settings.learning_rate == 0.01
    assert stats.spearmanr(model.predict(x[400:]), rate[400:]).statistic > 0.95


def test_counts_with_extra_zeros_have_calibrated_pits():
    random = np.random.RandomState(5)
    x = random.randn(900, 2)
    y = random.poisson(np.exp(1.0 + 0.5 * x[:, 0])) * (random.rand(900) < 0.6)
    fits = [
        SparseBNNRegressor(**FAST, likelihood=kind).fit(x[:500], y[:500])
        for kind in ("zero_inflated_poisson", "poisson")
    ]
    right, wrong = (stats.kstest(randomized_pit(m, x[500:], y[500:]), "uniform").pvalue for m in fits)
    assert right > 0.01
    assert wrong < 0.01


def test_quantiles_means_and_draws_of_counts_agree(counts):
    drawn = counts.sample_predictive(X[:5], 4000)
    mean, std = counts.predict(X[:5], return_std=True)
    np.testing.assert_allclose(drawn.mean(0), mean, atol=5 * std.max() / np.sqrt(4000) + 0.1)
    quantiles = counts.predict_quantiles(X[:5], [0.1, 0.5, 0.9])
    assert (quantiles == quantiles.round()).all()
    for level, q in zip((0.1, 0.5, 0.9), quantiles.T):
        assert ((drawn <= q).mean(0) >= level - 0.04).all()
        assert ((drawn <= q - 1).mean(0) <= level + 0.04).all()
    np.testing.assert_array_equal(counts.predict_interval(X[:5], 0.8), quantiles[:, [0, 2]])
    parts = counts.predict_uncertainty(X[:5])
    np.testing.assert_allclose(parts["aleatoric"] ** 2 + parts["epistemic"] ** 2, std**2)


def test_exposure():
    y = np.random.RandomState(5).poisson(RATE * EXPOSURE)
    model = SparseBNNRegressor(**FAST, likelihood="poisson").fit(X, y, exposure=EXPOSURE)
    per_unit = model.predict(X)
    assert np.corrcoef(np.log(per_unit), np.log(RATE))[0, 1] > 0.97
    assert abs(np.log(per_unit / RATE).mean()) < 0.1
    np.testing.assert_allclose(model.predict(X, exposure=EXPOSURE), per_unit * EXPOSURE)
    assert (model.predict_quantiles(X, 0.9, exposure=10 * EXPOSURE) > model.predict_quantiles(X, 0.9)).all()


def test_outliers_move_student_t_less():
    truth = X[:, 0]
    y = truth + 0.1 * np.random.RandomState(6).randn(300)
    y[::15] += 30.0
    errors = [
        np.abs(SparseBNNRegressor(**FAST, likelihood=kind).fit(X, y).predict(X) - truth).mean()
        for kind in ("gaussian", "student_t")
    ]
    assert errors[1] < 0.5 * errors[0]


def test_multi_output_student_t_and_own_likelihoods(tmp_path):
    y = np.stack([X[:, 0], X[:, 1]], axis=1)
    model = SparseBNNRegressor(**FAST, likelihood="student_t").fit(X, y)
    assert model.predict_interval(X[:4]).shape == (4, 2, 2)
    assert model.predict_uncertainty(X[:4])["std"].shape == (4, 2)
    again = load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(again.predict_quantiles(X), model.predict_quantiles(X))
    own = SparseBNNRegressor(**{**FAST, "epochs": 5}, likelihood=Poisson(rate=2.0))
    named = clone(own).fit(X, OVERDISPERSED)
    assert (named.predict(X) > 0).all()


@pytest.mark.parametrize("kind", ["zero_inflated_poisson", "negative_binomial"])
def test_counts_are_saved_and_explained(kind, tmp_path):
    model = SparseBNNRegressor(**{**FAST, "epochs": 5}, likelihood=kind).fit(X, OVERDISPERSED)
    again = load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert model.explain(X[:2]).outputs[0] == "log rate"
    assert "log rate" in model.summary() or kind.startswith("zero")


@pytest.mark.parametrize(
    ("settings", "y", "options", "named"),
    [
        ({"likelihood": "poisson"}, -OVERDISPERSED - 1, {}, "'y'"),
        ({"likelihood": "negative_binomial"}, OVERDISPERSED + 0.5, {}, "'y'"),
        ({"likelihood": "poisson"}, OVERDISPERSED, {"exposure": 0 * EXPOSURE}, "'exposure'"),
        ({"likelihood": "poisson"}, OVERDISPERSED, {"exposure": -EXPOSURE}, "'exposure'"),
        ({"likelihood": "poisson"}, OVERDISPERSED, {"exposure": EXPOSURE[:5]}, "'exposure'"),
        ({"likelihood": "gaussian"}, OVERDISPERSED, {"exposure": EXPOSURE}, "'exposure'"),
        ({"likelihood": "poisson", "calibrate": True}, OVERDISPERSED, {}, "'calibrate'"),
        ({"likelihood": "poisson", "noise": "heteroscedastic"}, OVERDISPERSED, {}, "'noise'"),
        ({"likelihood": "weibull"}, OVERDISPERSED, {}, "'likelihood'"),
        ({"likelihood": "poisson"}, np.stack([OVERDISPERSED] * 2, axis=1), {}, "'y'"),
    ],
)
def test_bad_counts(settings, y, options, named):
    with pytest.raises(InvalidInput, match=named):
        SparseBNNRegressor(**FAST, **settings).fit(X, y, **options)


# -- labels --------------------------------------------------------------------------------------------------


def test_several_labels(tmp_path):
    y = pd.DataFrame({"a": X[:, 0] > 0, "b": X[:, 1] > 0.5, "c": R.rand(300) > 0.5}).astype(int)
    model = SparseBNNClassifier(**FAST).fit(X, y)
    probs = model.predict_proba(X)
    assert probs.shape == (300, 3)
    assert ((model.predict(X) == y.to_numpy()).mean(0)[:2] > 0.9).all()
    parts = model.predict_uncertainty(X)
    np.testing.assert_allclose(parts["entropy"], parts["aleatoric"] + parts["epistemic"], atol=1e-6)
    drawn = model.sample_predictive(X[:5], 400)
    np.testing.assert_allclose(drawn.mean(0), probs[:5], atol=0.12)
    again = load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(again.predict_proba(X), probs)
    assert again.classes_.tolist() == ["a", "b", "c"]
    assert "3 labels" in model.summary()
    assert model.explain(X[:2]).outputs == ("log odds of a", "log odds of b", "log odds of c")
    with pytest.raises(InvalidInput, match="'y'"):
        SparseBNNClassifier(**FAST).fit(X, y + 1)


@pytest.mark.parametrize("kind", ["ordinal", "noisy_categorical"])
def test_ordered_and_noisy_classes(kind, tmp_path):
    y = np.digitize(X[:, 0], [-0.7, 0.7])
    seen = np.where(R.rand(300) < 0.15, (y + 1) % 3, y) if kind == "noisy_categorical" else y
    model = SparseBNNClassifier(**FAST, likelihood=kind, temperature=0.15).fit(X, seen)
    assert (model.predict(X) == y).mean() > 0.85
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1.0)
    again = load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    if kind == "noisy_categorical":
        rate = 0.5 * torch.sigmoid(model._likelihoods[0].raw_rate).item()
        assert 0.05 < rate < 0.3


def test_intervals_of_probabilities():
    model = SparseBNNClassifier(**FAST).fit(X, X[:, 0] > 0)
    labels, std = model.predict(X, return_std=True)
    np.testing.assert_array_equal(labels, model.predict(X))
    ends = model.predict_interval(X, 0.9)
    assert ends.shape == (300, 2, 2)
    own = ends[np.arange(300), labels.astype(int)]
    probs = model.predict_proba(X).max(1)
    assert ((own[:, 0] <= probs + 1e-9) & (probs <= own[:, 1] + 0.1)).mean() > 0.9
    assert np.corrcoef(own[:, 1] - own[:, 0], std)[0, 1] > 0.8
    assert model.predict_quantiles(X[:3], 0.5).shape == (3, 2)
