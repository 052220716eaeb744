"""The classifier: against oracles, in scikit-learn's company, saved and loaded."""

import dataclasses
import datetime
import pickle
import re

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from estimators.quick import QUICK, two_classes
from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import (
    ColumnWarning,
    EstimatorError,
    SparseBNNClassifier,
    SparseBNNRegressor,
    load,
    persistence,
)
from sparsebnn.estimators.feature_selection import slopes_of
from sparsebnn.inference.sampling import draw_outputs
from sparsebnn.io import storage
from sparsebnn.selection.rules import input_inclusion


@pytest.fixture(scope="module")
def fitted():
    return SparseBNNClassifier(**QUICK).fit(*two_classes())


@pytest.fixture(scope="module")
def flowers():
    x, y = load_iris(return_X_y=True)
    return SparseBNNClassifier(**QUICK).fit(x, y), x


def test_learns_and_labels_keep_their_type(fitted):
    x, y = two_classes(seed=1)
    assert fitted.score(x, y) > 0.9
    assert set(fitted.predict(x)) <= {"yes", "no"}
    each = torch.stack([input_inclusion(n) for n in fitted.posterior_networks_]).numpy()
    np.testing.assert_allclose(fitted.inclusion_, fitted.replicate_weights_ @ each, rtol=1e-5)
    np.testing.assert_array_equal(fitted.get_support(), fitted.used_)
    np.testing.assert_array_equal(fitted.transform(x), x[:, fitted.used_])
    assert list(fitted.get_feature_names_out()) == list(fitted.selected_features_)


def test_probabilities_are_the_average_over_drawn_networks(fitted):
    """Against a plain loop: each network's own draws, one network after the other."""
    x, _ = two_classes(5, seed=2)
    inputs = torch.from_numpy(fitted._inputs(x))
    probs = []
    for k, network in enumerate(pickle.loads(pickle.dumps(fitted.networks_))):
        drawn = draw_outputs(network.double(), inputs, 10, draws="weights", seed=fitted._seed + k)
        probs += [torch.sigmoid(fitted.logit_scale_ * outputs[..., 0]) for _, outputs in drawn]
    yes = torch.cat(probs).mean(0).numpy()
    np.testing.assert_allclose(fitted.predict_proba(x)[:, 1], yes, rtol=1e-12)


def test_uncertainty_adds_up(flowers):
    model, x = flowers
    parts, probs = model.predict_uncertainty(x), model.predict_proba(x)
    np.testing.assert_allclose(parts["entropy"], -(probs * np.log(probs)).sum(1), rtol=1e-8, atol=1e-12)
    together = parts["aleatoric"] + parts["epistemic"]
    np.testing.assert_allclose(together, parts["entropy"], rtol=1e-8, atol=1e-12)


def test_sampled_labels_have_the_predicted_frequencies(flowers):
    model, x = flowers
    model, row = pickle.loads(pickle.dumps(model)).set_params(n_draws=4000), x[[70]]
    probs = model.predict_proba(row)[0]
    labels = model.sample_predictive(row, 4000)[:, 0]
    for k in range(3):
        error = np.sqrt(probs[k] * (1 - probs[k]) / 4000) + 1e-9
        assert abs((labels == k).mean() - probs[k]) < 4 * error + 1e-12


def test_a_column_of_several_inputs_is_available_when_any_input_is():
    """Against drawn structures."""
    rng = np.random.RandomState(0)
    town = rng.choice(["a", "b", "c"], 150)
    x = np.empty((150, 2), dtype=object)
    x[:, 0], x[:, 1] = town, rng.randn(150)
    model = SparseBNNClassifier(**{**QUICK, "replicates": 1, "epochs": 120, "temperature": 1.0}).fit(
        x, town == "a"
    )
    first, last = (layer.weights.inclusion_prob() for layer in model.networks_[0].layers)
    hidden = len(first)
    generator, hits, draws = torch.Generator().manual_seed(0), 0.0, 4000
    for _ in range(draws):
        one = torch.rand(first.shape, generator=generator) < first
        two = torch.rand(last.shape, generator=generator) < last
        reach = (two[:, :hidden].any(0)[:, None] & one).any(0) | two[:, hidden:].any(0)
        hits += float(reach[:3].any())
    p = float(model.inclusion_[0])
    assert abs(hits / draws - p) <= 4 * np.sqrt(p * (1 - p) / draws) + 1e-6


def test_contributions_sum_to_the_outputs(flowers):
    """Slopes are those of finite differences."""
    model, x = flowers
    explained = model.explain(x[:6], n_draws=40)
    total = explained.base + explained.contributions.sum(1)
    rows = torch.from_numpy(model._inputs(x[:6]))
    values, slopes = slopes_of(model, rows, 40)
    np.testing.assert_allclose(total, model.logit_scale_ * values.mean(0).numpy(), rtol=1e-9, atol=1e-9)
    assert (explained.low <= explained.contributions + 1e-12).all()
    assert slopes.shape == (40, 6, 4, 3)
    for j in range(4):
        moved = rows.clone()
        moved[:, j] += 1e-6
        difference = (slopes_of(model, moved, 40)[0] - values) / 1e-6
        np.testing.assert_allclose(slopes[:, :, j], difference, rtol=1e-4, atol=1e-4)


def test_weights_and_repeated_rows_agree_in_expectation():
    """The mean prediction over seeds: the difference lies within 4 standard errors."""
    x, y = two_classes(40)
    y = y.copy()
    y[:8] = np.where(y[:8] == "yes", "no", "yes")
    weight = np.ones(40)
    weight[:10] = 3.0
    repeated = np.concatenate([np.arange(40), np.arange(10), np.arange(10)])
    settings = {**QUICK, "replicates": 12, "epochs": 60, "n_draws": 120, "batch_size": 64}
    # Copies of a row in other folds would tell which networks are better.
    settings |= {"temperature": 0.15, "calibrate": False}
    one = SparseBNNClassifier(**settings).fit(x, y, sample_weight=weight)
    other = SparseBNNClassifier(**settings).fit(x[repeated], y[repeated])
    by_seed = []
    for model in (one, other):
        outputs = torch.cat([o for _, o in model._draws(x, "average")], dim=2)
        by_seed.append(torch.sigmoid(outputs[..., 0]).mean((1, 2)).numpy())
    error = np.sqrt(sum(each.var(ddof=1) / len(each) for each in by_seed))
    assert abs(by_seed[0].mean() - by_seed[1].mean()) < 4 * error


def test_rare_classes_count_when_balanced():
    rng = np.random.RandomState(0)
    x = np.concatenate([rng.randn(190, 2), rng.randn(10, 2) + 1.5])
    y = np.repeat([0, 1], [190, 10])
    plain = SparseBNNClassifier(**QUICK).fit(x, y)
    balanced = SparseBNNClassifier(**QUICK, class_weight="balanced").fit(x, y)
    assert balanced.predict_proba(x)[y == 1, 1].mean() > plain.predict_proba(x)[y == 1, 1].mean() + 0.1


@pytest.mark.parametrize("family", ["lrt", "flow", "lbbnn", "dense"])
def test_every_family_and_both_models(family):
    x, y = two_classes()
    model = SparseBNNClassifier(**QUICK, family=family).fit(x, y)
    assert model.score(x, y) > 0.85
    # LBBNN's inclusions are still between 0 and 1 after so few steps: its median model trails.
    assert np.mean(model.predict(x, model="median") == y) > 0.7
    assert (model.density_ == 1.0) == (family == "dense")
    assert model.explain(x[:2], n_draws=4).contributions.shape == (2, 4, 1)


def test_in_pipelines_searches_and_copies():
    x, y = two_classes(60)
    quick = SparseBNNClassifier(**{**QUICK, "epochs": 2, "replicates": 1})
    pipeline = make_pipeline(StandardScaler(), quick).set_output(transform="default")
    assert len(cross_val_score(pipeline, x, y, cv=3)) == 3
    grid = {"epochs": np.array([2, 3]), "temperature": np.array([0.1, 1.0], dtype=np.float32)}
    search = GridSearchCV(quick, grid, cv=2, error_score="raise").fit(x, y)
    assert search.best_params_["epochs"] in (2, 3)
    assert clone(quick).get_params() == quick.get_params()


def test_numpys_numbers_are_as_good_as_pythons(fitted, tmp_path):
    x, y = two_classes()
    given = {
        "epochs": np.int64(40),
        "replicates": np.int32(2),
        "hidden": np.array([8]),
        "learning_rate": np.float64(0.05),
        "n_draws": np.int64(20),
        "prior_inclusion": np.float32(0.1),
        "validation_fraction": np.float32(0.1),
        "patience": np.int64(5),
        "random_state": np.int64(0),
    }
    model = SparseBNNClassifier(**given).fit(x, y)
    np.testing.assert_allclose(model.predict_proba(x), fitted.predict_proba(x), rtol=1e-4)
    again = load(model.save(tmp_path / "m.safetensors"))
    assert (again.predict_proba(x) == model.predict_proba(x)).all()


def test_two_columns_of_one_name_are_told_apart():
    pandas = pytest.importorskip("pandas")
    x, y = two_classes()
    frame = pandas.DataFrame(x, columns=["a", "a", "b", "c"])
    with pytest.warns(ColumnWarning, match=r"named 'a': they are read as 'a', 'a\.2'"):
        model = SparseBNNClassifier(**QUICK).fit(frame, y)
    assert list(model.feature_names_in_) == list(model.names_) == ["a", "a.2", "b", "c"]
    assert "'a.2'" in model.notes_[0]
    assert model.score(frame, y) > 0.9


# -- ending early -------------------------------------------------------------------------------------


def test_stops_on_the_validation_elbo_and_keeps_the_best():
    model = SparseBNNClassifier(**{**QUICK, "epochs": 120}, early_stopping=True, patience=1)
    model.fit(*two_classes())
    assert model.n_epochs_ < 120
    assert model.score(*two_classes(seed=1)) > 0.85


# -- files --------------------------------------------------------------------------------------------


def test_saved_and_loaded_predicts_the_same_bits(fitted, tmp_path):
    path = fitted.save(tmp_path / "model.safetensors")
    x, _ = two_classes(seed=3)
    for again in (load(path), SparseBNNClassifier.load(path)):
        assert (again.predict_proba(x) == fitted.predict_proba(x)).all()
        assert (again.predict(x) == fitted.predict(x)).all()
        assert again.get_params() == fitted.get_params()
        assert again.summary() == fitted.summary()
        assert (again.explain(x[:3]).low == fitted.explain(x[:3]).low).all()


@pytest.mark.parametrize(
    "labels", [np.array([0, 1]), np.array([False, True]), np.array([0.5, 1.5]).astype(str)]
)
def test_labels_of_every_type_survive_a_file(labels, tmp_path):
    x, y = two_classes(40)
    given = labels[(y == "yes").astype(int)]
    model = SparseBNNClassifier(**{**QUICK, "epochs": 3}).fit(x, given)
    again = load(model.save(tmp_path / "m.safetensors"))
    assert again.classes_.dtype == model.classes_.dtype
    assert (again.predict(x) == model.predict(x)).all()


@pytest.mark.parametrize(("label", "shown"), [(0.0, "0.0"), ("a", "'a'"), (True, "True")])
def test_one_class_is_refused_by_its_name(label, shown):
    with pytest.raises(InvalidInput, match=re.escape(f"Got 1 class ({shown}) instead")):
        SparseBNNClassifier(**QUICK).fit(np.eye(4), np.full(4, label))


@pytest.mark.parametrize("version", [1, 5])
def test_files_that_are_not_ours_are_refused(fitted, tmp_path, monkeypatch, version):
    """Of another version or kind, damaged, or foreign; a pickle is never loaded (test_checkpoint.py)."""
    path = tmp_path / "model.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(persistence, "_KIND", dataclasses.replace(persistence._KIND, version=version))
        fitted.save(path)
    with pytest.raises(EstimatorError, match=f"version {version}"):
        load(path)
    fitted.save(path)
    with pytest.raises(EstimatorError, match="holds a SparseBNNClassifier, not a SparseBNNRegressor"):
        SparseBNNRegressor.load(path)
    for content in (path.read_bytes()[:-40], b"", b"not ours", b"PK\x03\x04" + b"\0" * 64):
        path.write_bytes(content)
        with pytest.raises(EstimatorError, match="is damaged or truncated"):
            load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t, _: t["1/network/layers.0.weights.mean"].fill_(float("nan")),
            "must not be used: 'layers.0.weights.mean' has",
        ),
        (
            lambda t, _: t["0/network/layers.0.weights.prior.std"].neg_(),
            "'layers.0.weights.prior.std' must be positive and finite and is -",
        ),
        (lambda _, h: h.update(replicates=10**12), "is damaged (ValueError: it says"),
        (lambda _, h: h["plan"].update(hidden=[10**9]), "is damaged (ValueError: it says"),
        (lambda _, h: h.update(targets=None), "is damaged (TypeError:"),
        (lambda _, h: h.update(columns=3), "is damaged (TypeError:"),
    ],
)
def test_files_with_values_that_cannot_be_are_refused(fitted, tmp_path, change, message):
    path = fitted.save(tmp_path / "model.safetensors")
    tensors, header = storage.read(persistence._KIND, path)
    change(tensors, header)
    storage.write(persistence._KIND, path, tensors, header)
    with pytest.raises(EstimatorError, match=re.escape(message)):
        load(path)


@pytest.mark.gpu
def test_a_model_of_the_gpu_loads_on_a_cpu(tmp_path):
    x, y = two_classes()
    model = SparseBNNClassifier(**{**QUICK, "device": "cuda"}).fit(x, y)
    again = load(model.save(tmp_path / "m.safetensors")).set_params(device="cpu")
    np.testing.assert_allclose(again.predict_proba(x), model.predict_proba(x), rtol=1e-9)


def test_a_model_for_a_gpu_predicts_where_there_is_none(fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    x, _ = two_classes(seed=3)
    trained_there = pickle.loads(pickle.dumps(fitted)).set_params(device="cuda:1")
    again = load(trained_there.save(tmp_path / "m.safetensors"))
    assert again.device == "cuda:1"
    assert (again.predict_proba(x) == fitted.predict_proba(x)).all()
    assert (again.predict_uncertainty(x)["entropy"] == fitted.predict_uncertainty(x)["entropy"]).all()
    with pytest.raises(InvalidInput, match=r"'device' of SparseBNNClassifier .*'cuda:1'"):
        again.fit(*two_classes(20))


# -- messages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "more"),
    [
        ("family", "spikeslab", {}),
        ("prior_inclusion", 1.0, {}),
        ("temperature", -1.0, {}),
        *(("hidden", value, {}) for value in ("wide", True, (5.7,))),
        ("target_density", "x", {}),
        ("target_density", 0.1, {"family": "dense"}),
        ("epochs", 3, {"target_density": 0.1}),
        ("time_budget", "3", {}),
        ("learning_rate", None, {}),
        ("device", "banana", {}),
    ],
)
def test_messages(name, value, more):
    with pytest.raises(InvalidInput, match=f"The '{name}' of SparseBNNClassifier must be "):
        SparseBNNClassifier(**{name: value}, **more).fit(*two_classes(20))


@pytest.mark.parametrize(
    "mixed",
    [["a", 1, 2.5], [True, "a"], np.array([True, 0.5], dtype=object), np.array(["a", 1], dtype=object)],
)
def test_labels_of_several_types_are_refused(mixed):
    """NumPy would make text of a list: 1 and "1" would be one class."""
    labels = mixed * 20 if isinstance(mixed, list) else np.tile(mixed, 20)
    with pytest.raises(InvalidInput, match="The 'y' of SparseBNNClassifier must be labels of one type"):
        SparseBNNClassifier(**QUICK).fit(np.zeros((len(labels), 1)), labels)


def test_labels_that_are_neither_text_nor_numbers_are_refused():
    days = np.array([datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)] * 20)
    with pytest.raises(InvalidInput, match=r"The 'y' of .* Got a date instead"):
        SparseBNNClassifier(**QUICK).fit(np.zeros((40, 1)), days)
    with pytest.raises(InvalidInput, match=r"The 'y' of SparseBNNRegressor .* dates"):
        SparseBNNRegressor(**QUICK).fit(np.zeros((40, 1)), days.astype("datetime64[D]"))
    with pytest.raises(InvalidInput, match=r"The 'y' of .* Got a datetime64 instead"):
        SparseBNNClassifier(**QUICK).fit(np.zeros((40, 1)), days.astype("datetime64[D]"))
    for kind in (SparseBNNClassifier, SparseBNNRegressor):
        with pytest.raises(InvalidInput, match=f"The 'y' of {kind.__name__} must be numbers. Got 'v'"):
            kind(**QUICK).fit(np.zeros((40, 1)), np.array([["1", "v"]] * 40))


@pytest.mark.parametrize(("dtype", "labels"), [("Int64", [1, 2]), ("boolean", [True, False])])
def test_labels_of_pandas_own_types(dtype, labels):
    pandas = pytest.importorskip("pandas")
    x = two_classes(40)[0]
    model = SparseBNNClassifier(**QUICK).fit(x, pandas.Series(labels * 20, dtype=dtype))
    assert model.classes_.dtype == np.array(labels).dtype
    with pytest.raises(InvalidInput, match=r"The 'y' of .* free of missing labels"):
        SparseBNNClassifier(**QUICK).fit(x, pandas.Series([labels[0], None] * 20, dtype=dtype))


@pytest.mark.parametrize("labels", [[1, 0], [True, False], [2.0, 3.0]])
def test_numbers_as_objects_are_labels(labels):
    x, y = two_classes()
    given = np.where(y == "yes", *labels).astype(object)
    model = SparseBNNClassifier(**QUICK).fit(x, given)
    assert model.classes_.tolist() == sorted(labels)
    assert model.classes_.dtype == np.array(labels).dtype


def test_labels_that_differ_in_white_space_are_pointed_out():
    """They stay apart: what is predicted must be a label as it was given."""
    x, y = two_classes()
    with pytest.warns(ColumnWarning, match="'yes', 'yes '"):
        model = SparseBNNClassifier(**QUICK).fit(x, np.where(x[:, 2] > 0, "yes ", y))
    assert model.classes_.tolist() == ["no", "yes", "yes "]


# -- scikit-learn's habits ----------------------------------------------------------------------------


def test_the_model_is_chosen_at_prediction():
    x, _ = two_classes(20, seed=3)
    fitted = SparseBNNClassifier(**QUICK, temperature=1.0).fit(*two_classes())
    average, median = fitted.predict_proba(x), fitted.predict_proba(x, model="median")
    assert (average != median).any()
    np.testing.assert_array_equal(fitted.classes_[median.argmax(1)], fitted.predict(x, model="median"))
    with pytest.raises(InvalidInput, match="'model'"):
        fitted.predict(x, model="mode")


def test_the_seed_decides(fitted):
    """Without a random state it comes from NumPy."""
    x, y = two_classes()
    again = clone(fitted).fit(x, y)
    assert (again.predict_proba(x) == fitted.predict_proba(x)).all()
    assert SparseBNNClassifier().random_state is None

    def probs(seed):
        np.random.seed(seed)
        return SparseBNNClassifier(**{**QUICK, "epochs": 5, "random_state": None}).fit(x, y).predict_proba(x)

    first = probs(1)
    assert (first == probs(1)).all()
    assert (first != probs(2)).any()
