"""Rows that stand for many, copies among the rows, and parameters that were taken for something else."""

import warnings

import numpy as np
import pandas as pd
import pytest

import sparsebnn
from sparsebnn.app.commands.splitting import posed
from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import ConformalRegressor, SparseBNNClassifier, SparseBNNRegressor

FEW = {"replicates": 2, "random_state": 0, "epochs": 20}
X = np.random.RandomState(0).randn(60, 2)


def test_whole_weights_are_repeated_rows():
    """A table of counts: each row is left out by itself, not all rows of a cell."""
    cells = pd.DataFrame({"hair": ["a", "a", "b", "b"], "sex": ["f", "m", "f", "m"]})
    table = pd.concat([cells.assign(eye=eye) for eye in ("blue", "brown")], ignore_index=True)
    count = np.array([30, 28, 8, 5, 7, 4, 31, 25])
    weighted = SparseBNNClassifier(**FEW).fit(table[["hair", "sex"]], table.eye, sample_weight=count)
    rows = table.loc[table.index.repeat(count)]
    repeated = SparseBNNClassifier(**FEW).fit(rows[["hair", "sex"]], rows.eye)
    np.testing.assert_allclose(weighted.predict_proba(cells), repeated.predict_proba(cells), rtol=1e-9)
    assert weighted.logit_scale_ == pytest.approx(repeated.logit_scale_)
    assert weighted.logit_scale_ > 0.5


def test_copies_do_not_lend_their_target_to_the_code_of_a_level():
    random = np.random.RandomState(0)
    table = pd.DataFrame({"zip": [f"z{i:03d}" for i in random.randint(0, 100, 400)], "x": random.randn(400)})
    y = random.randn(400)
    model = SparseBNNRegressor(random_state=0, replicates=4).fit(pd.concat([table] * 2), np.tile(y, 2))
    assert list(model.selected_features_) == []
    assert any("400 of 800 rows are copies" in note for note in model.notes_)


def test_the_command_line_keeps_copies_on_one_side():
    polars = pytest.importorskip("polars")
    random = np.random.RandomState(0)
    once = polars.DataFrame({"g": [f"g{i}" for i in random.randint(0, 9, 100)], "x": random.randn(100)})
    once = once.with_columns(y=polars.Series(random.randn(100)))
    problem = posed(polars.concat([once] * 3), "y", "auto", 0.2, 0)
    assert not set(problem.training % 100) & set(problem.test % 100)
    assert len(problem.test) == 60
    assert any("200 of 300 rows are copies" in note for note in problem.notes)
    alone = posed(once, "y", "auto", 0.2, 0)
    assert len(alone.test) == 20
    assert not alone.notes


@pytest.mark.parametrize("name", ["calibrate", "early_stopping", "screen", "warm_start", "verbose"])
def test_switches_are_true_or_false(name):
    with pytest.raises(InvalidInput, match=f"'{name}' of SparseBNNClassifier must be True or False"):
        SparseBNNClassifier(**FEW, **{name: "no"}).fit(X, np.arange(60) % 2)


@pytest.mark.parametrize("weights", [{0: -1, 1: 2}, {0: float("nan"), 1: 1}, {0: 1}, "x"])
def test_class_weights_are_checked(weights):
    with pytest.raises(InvalidInput, match="'class_weight' of SparseBNNClassifier"):
        SparseBNNClassifier(**FEW, class_weight=weights).fit(X, np.arange(60) % 2)


def test_two_classes_must_have_weight():
    y = np.arange(60) % 2
    with pytest.raises(InvalidInput, match=r"'sample_weight'.*two classes"):
        SparseBNNClassifier(**FEW).fit(X, y, sample_weight=(y == 1).astype(float))


def test_ordered_classes_are_ordered_as_declared():
    names = np.array(["Low", "Medium", "High"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    model = SparseBNNClassifier(**FEW, likelihood="ordinal")
    with pytest.raises(InvalidInput, match="ordered as its labels are sorted"):
        model.fit(X, pd.Series(pd.Categorical(names, ["Low", "Medium", "High"], ordered=True)))
    with pytest.warns(UserWarning, match="High < Low < Medium"):
        model.fit(X, names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, np.digitize(X[:, 0], [-0.5, 0.5]))


def test_other_input_that_is_refused():
    y = X[:, 0]
    with pytest.raises(InvalidInput, match="'estimator' of ConformalRegressor must be a regressor"):
        ConformalRegressor(SparseBNNClassifier()).fit(X, np.arange(60) % 2)
    with pytest.raises(InvalidInput, match="'time_budget'"):
        SparseBNNRegressor(time_budget=float("inf")).fit(X, y)
    model = SparseBNNRegressor(**FEW).fit(X, y)
    with pytest.raises(InvalidInput, match="'levels' of predict_quantiles"):
        model.predict_quantiles(X, [])


def test_a_model_without_columns_is_not_exported_to_onnx(tmp_path):
    pytest.importorskip("onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SparseBNNRegressor(**FEW).fit(pd.DataFrame({"a": np.ones(60)}), X[:, 0])
    with pytest.raises(InvalidInput, match="'model' of export must be one that uses a column"):
        sparsebnn.export(model, tmp_path / "model.onnx")
