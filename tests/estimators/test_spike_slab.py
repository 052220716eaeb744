"""The spike-and-slab estimators: posterior quantities, predictions, difficult data."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import SpikeSlabClassifier, SpikeSlabRegression
from sparsebnn.selection import select

SHORT = {"n_iter": 400, "burn_in": 100, "random_state": 0}


def linear(rows=120, p=6, seed=0):
    rng = np.random.default_rng(seed)
    x = 3.0 + 2.0 * rng.standard_normal((rows, p))
    return x, 1.0 + 1.5 * x[:, 1] - 0.7 * x[:, 4] + 0.5 * rng.standard_normal(rows)


def test_linear_effects_noise_and_predictions():
    x, y = linear()
    model = SpikeSlabRegression(**SHORT).fit(x, y)
    assert model.get_support().tolist() == [False, True, False, False, True, False]
    design = np.column_stack([x[:, [1, 4]], np.ones(len(x))])
    solution, rest, *_ = np.linalg.lstsq(design, y, rcond=None)
    error = np.sqrt(rest[0] / len(x) * np.diag(np.linalg.inv(design.T @ design)))
    assert (np.abs(np.append(model.coef_[[1, 4]], model.intercept_) - solution) < error).all()
    assert model.noise_std_ == pytest.approx(0.5, rel=0.15)
    mean, std = model.predict(x, return_std=True)
    np.testing.assert_allclose(mean, model.predict(x))
    assert np.abs((y - mean) / std).std() < 1.2
    assert std.min() > 0.95 * model.noise_std_
    np.testing.assert_array_equal(model.transform(x), x[:, [1, 4]])


def test_units_of_the_columns_change_nothing_but_the_coefficients():
    x, y = linear()
    scale = np.array([1.0, 100.0, 1e-3, 1.0, 0.5, 7.0])
    plain, scaled = (SpikeSlabRegression(**SHORT).fit(each, y) for each in (x, x * scale + 5.0))
    np.testing.assert_allclose(plain.inclusion_, scaled.inclusion_, atol=1e-6)
    np.testing.assert_allclose(plain.coef_, scaled.coef_ * scale, atol=1e-6)


def test_known_noise_and_fixed_priors_are_used():
    x, y = linear()
    model = SpikeSlabRegression(noise_std=2.0, slab_var=0.5, inclusion_prob=0.1, **SHORT).fit(x, y)
    assert model.noise_std_ == pytest.approx(2.0)
    assert model.slab_var_ == pytest.approx(0.5)
    null = SpikeSlabRegression(inclusion_prob=1e-6, **SHORT).fit(x, np.random.default_rng(0).random(len(x)))
    assert null.inclusion_.max() < 0.01
    assert null.credible_sets_ == []


def test_poisson_rates():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((250, 5))
    y = rng.poisson(np.exp(0.5 + 0.6 * x[:, 3]))
    model = SpikeSlabRegression(likelihood="poisson", **SHORT).fit(x, y)
    assert model.get_support().tolist() == [False, False, False, True, False]
    assert model.coef_[3] == pytest.approx(0.6, abs=0.15)
    mean, std = model.predict(x, return_std=True)
    assert mean.mean() == pytest.approx(y.mean(), rel=0.05)
    assert (std >= np.sqrt(mean)).all()
    with pytest.raises(InvalidInput, match="'y'"):
        model.fit(x, y - 0.5)


def test_classifier_probabilities():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 5))
    y = np.where(1.5 * x[:, 0] + rng.logistic(size=400) > 0, "yes", "no")
    model = SpikeSlabClassifier(**SHORT).fit(x, y)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.get_support().tolist() == [True, False, False, False, False]
    truth = 1.0 / (1.0 + np.exp(-1.5 * x[:, 0]))
    assert np.abs(model.predict_proba(x)[:, 1] - truth).mean() < 0.06
    assert 0.0 < model.diagnostics_["importance_error"] < 0.05


def test_duplicated_columns_form_one_set():
    x, y = linear()
    twice = np.column_stack([x, x[:, 1], x[:, 0]])
    model = SpikeSlabRegression(**SHORT).fit(twice, y)
    sets = [set(one.members) for one in model.credible_sets_]
    assert {1, 6} in sets
    assert {4} in sets
    np.testing.assert_allclose(model.inclusion_[[1, 6]], 0.5, atol=0.1)
    assert model.diagnostics_["converged"]


def test_constant_columns_are_left_out():
    x, y = linear()
    more = np.column_stack([np.full(len(x), 0.1), x, np.zeros(len(x))])
    model = SpikeSlabRegression(**SHORT).fit(more, y)
    assert model.inclusion_[[0, 7]].tolist() == [0.0, 0.0]
    assert model.diagnostics_["constant_columns"] == [0, 7]
    assert model.sample_inclusions().shape[1] == 8
    assert [one.members for one in model.credible_sets_] == [(2,), (5,)]
    np.testing.assert_allclose(model.inclusion_[1:7], SpikeSlabRegression(**SHORT).fit(x, y).inclusion_)


def test_constant_columns_alone_are_refused():
    with pytest.raises(InvalidInput, match="'X'"):
        SpikeSlabRegression(**SHORT).fit(np.ones((30, 2)), np.arange(30.0))


def test_more_columns_than_rows():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 800))
    y = 2.0 * x[:, 17] - 2.0 * x[:, 400] + 0.5 * rng.standard_normal(50)
    model = SpikeSlabRegression(**SHORT).fit(x, y)
    assert np.nonzero(model.get_support())[0].tolist() == [17, 400]


def test_separated_classes_have_finite_coefficients():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 4))
    y = (x[:, 2] > 0).astype(int)
    model = SpikeSlabClassifier(**SHORT).fit(x, y)
    assert model.inclusion_[2] > 0.99
    assert np.isfinite(model.coef_).all()
    assert model.score(x, y) > 0.95


def test_constant_targets():
    x, _ = linear()
    model = SpikeSlabRegression(**SHORT).fit(x, np.full(len(x), 3.0))
    np.testing.assert_allclose(model.predict(x), 3.0)


@pytest.mark.parametrize("model", [SpikeSlabRegression(), SpikeSlabClassifier()])
def test_missing_values_and_unfitted_models_are_refused(model):
    x, y = linear()
    with pytest.raises(NotFittedError):
        model.predict(x)
    x[3, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model.fit(x, y > y.mean())


@pytest.mark.parametrize(
    "given",
    [
        {"likelihood": "gamma"},
        {"noise_std": -1.0},
        {"noise_std": "auto"},
        {"inclusion_prob": 1.5},
        {"inclusion_prob": (1.0, -1.0)},
        {"slab_var": 0.0},
        {"slab_var": "auto"},
        {"intercept_std": -1.0},
        {"n_iter": 0},
        {"n_chains": 0},
        {"temperatures": (0.5, 1.0)},
        {"max_seconds": 0},
        {"start": np.ones(3)},
        {"coverage": 2.0},
    ],
)
def test_bad_parameters_are_named(given):
    x, y = linear()
    with pytest.raises(InvalidInput, match=f"'{next(iter(given))}'"):
        SpikeSlabRegression(**(SHORT | given)).fit(x, y)


def test_three_classes_are_refused():
    x, _ = linear()
    with pytest.raises(ValueError, match="binary"):
        SpikeSlabClassifier(**SHORT).fit(x, np.arange(len(x)) % 3)


def test_chains_that_have_not_converged_warn():
    x, y = linear()
    with pytest.warns(ConvergenceWarning, match="effective sample size"):
        SpikeSlabRegression(n_iter=10, burn_in=2, random_state=0).fit(x, y)


def test_time_limit_keeps_what_was_sampled():
    x, y = linear()
    with pytest.warns(ConvergenceWarning, match="stopped early"):
        model = SpikeSlabRegression(max_seconds=1e-9, random_state=0).fit(x, y)
    assert model.diagnostics_["iterations"] == 1


def test_names_selection_and_pickling():
    pandas = pytest.importorskip("pandas")
    x, y = linear()
    frame = pandas.DataFrame(x, columns=list("abcdef"))
    model = SpikeSlabRegression(**SHORT).fit(frame, y)
    assert sorted(one.names for one in model.credible_sets_) == [("b",), ("e",)]
    chosen = select(model, rule="credible_sets")
    assert chosen.variables == ("b", "e")
    assert chosen.sets == tuple(model.credible_sets_)
    assert "b: probability" in chosen.table()
    assert select(model, rule="fdr", level=0.1).variables == ("b", "e")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(frame), model.predict(frame))
    with pytest.raises(InvalidInput, match="'source'"):
        select([0.5, 0.5], rule="credible_sets")


def test_same_random_state_same_fit():
    x, y = linear()
    model = SpikeSlabRegression(**SHORT)
    np.testing.assert_array_equal(model.fit(x, y).coef_, clone(model).fit(x, y).coef_)


def test_progress_is_printed_when_asked_for(capsys):
    x, y = linear()
    SpikeSlabRegression(**SHORT).fit(x, y)
    assert capsys.readouterr().out == ""
    SpikeSlabRegression(**SHORT, verbose=True).fit(x, y)
    assert "iteration 500 of 500" in capsys.readouterr().out


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_columns_that_are_no_numbers_are_named(package):
    frames = pytest.importorskip(package)
    x, y = linear(30)
    x = x[:, :2]
    good = {"a": x[:, 0], "b": x[:, 1]}
    gap = np.where(np.arange(30) < 2, np.nan, x[:, 0])
    cases = {
        "text in 'c'": good | {"c": ["red"] * 30},
        r"NaN in 'c' \(2 rows\)": good | {"c": gap},
        r"NaN in 'c' \(2 rows\) and inf in 'd' \(1 row\)": good | {"c": gap, "d": [np.inf] + [0.0] * 29},
    }
    for message, columns in cases.items():
        with pytest.raises(InvalidInput, match=message):
            SpikeSlabRegression(**SHORT).fit(frames.DataFrame(columns), y)
    model = SpikeSlabRegression(**SHORT).fit(frames.DataFrame(good), y)
    with pytest.raises(InvalidInput, match="text in 'b'"):
        model.predict(frames.DataFrame(good | {"b": ["red"] * 30}))
    with pytest.raises(InvalidInput, match=r"NaN in column 0 \(2 rows\)"):
        SpikeSlabRegression(**SHORT).fit(np.column_stack([gap, x]), y)


def test_categories_times_and_numbers_as_text_are_no_numbers():
    pandas = pytest.importorskip("pandas")
    x, y = linear(30)
    times = pandas.date_range("2020", periods=30)
    for kind, column in {
        "categories": pandas.Categorical(np.arange(30) % 3),
        "text": [str(i % 3) for i in range(30)],
        "times": times,
    }.items():
        with pytest.raises(InvalidInput, match=f"Got {kind} in 'c'"):
            SpikeSlabRegression(**SHORT).fit(pandas.DataFrame({"a": x[:, 0], "c": column}), y)
    frame = pandas.DataFrame(x[:, :2], columns=["a", "a"])
    with pytest.raises(InvalidInput, match="Got 'a' twice"):
        SpikeSlabRegression(**SHORT).fit(frame, y)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_targets_that_cannot_be_used_are_named_before_sampling(missing):
    x, y = linear(30)
    with pytest.raises(ValueError, match=r"missing values in 1 row|NaN"):
        SpikeSlabRegression(**SHORT).fit(x, [missing, *y[1:].tolist()])
    with pytest.raises(InvalidInput, match=r"must be numbers\. Got 'a' instead"):
        SpikeSlabRegression(**SHORT).fit(x, ["a"] * 30)
    with pytest.raises(InvalidInput, match="'y' of SpikeSlabRegression"):
        SpikeSlabRegression(**SHORT).fit(x, np.arange("2020-01-01", "2020-01-31", dtype="datetime64[D]"))
