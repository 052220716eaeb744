"""Comparisons on the same rows, and what the report draws, against formulas and scikit-learn."""

from types import SimpleNamespace

import numpy as np
import polars
import pytest
from sklearn.metrics import confusion_matrix, log_loss, r2_score, roc_auc_score

from sparsebnn.app.commands import measuring
from sparsebnn.app.commands.splitting import posed


def probabilities(rows=400, seed=0):
    random = np.random.RandomState(seed)
    y = random.randint(0, 3, rows)
    ours = random.dirichlet(np.ones(3), rows) + 0.8 * np.eye(3)[y]
    theirs = random.dirichlet(np.ones(3), rows) + 0.7 * np.eye(3)[y]
    return y, ours / ours.sum(1, keepdims=True), theirs / theirs.sum(1, keepdims=True)


def test_differences_are_those_of_the_measures():
    y, ours, theirs = probabilities()
    found = measuring.differences("classification", ours, theirs, y, 0)
    assert found["nll"]["value"] == pytest.approx(log_loss(y, ours) - log_loss(y, theirs), rel=1e-10)
    mean, other = y + 0.1 * ours[:, 0], y + 0.5 * theirs[:, 1]
    found = measuring.differences("regression", mean, other, y.astype(float), 0)
    assert found["r2"]["value"] == pytest.approx(r2_score(y, mean) - r2_score(y, other), rel=1e-10)


def test_the_interval_is_that_of_paired_rows():
    """Of a mean of differences: its standard error; much narrower than two separate intervals."""
    y, ours, _ = probabilities(2000)
    theirs = 0.97 * ours + 0.01  # a little worse in every row
    gap = measuring.differences("classification", ours, theirs, y, 0)["nll"]
    each = -np.log(ours[np.arange(2000), y]) + np.log(theirs[np.arange(2000), y])
    error = each.std() / np.sqrt(2000)
    assert (gap["high"] - gap["low"]) / 2 == pytest.approx(1.96 * error, rel=0.15)
    assert gap["high"] < 0.0
    alone = measuring.class_measures(ours, y, 0)["nll"]
    assert alone["high"] - alone["low"] > 5 * (gap["high"] - gap["low"])


def test_curves_of_classes_as_scikit_learn_counts_them():
    y, probs, _ = probabilities()
    found = measuring.curves_of_classes(probs, y, np.array(["a", "b", "c"]))
    np.testing.assert_array_equal(found["confusion"], confusion_matrix(y, probs.argmax(1)))
    assert [each["name"] for each in found["ranking"]] == ["a", "b", "c"]
    assert found["ranking"][2]["auc"] == pytest.approx(roc_auc_score(y == 2, probs[:, 2]), rel=1e-10)
    assert found["ranking"][0]["roc"][-1] == [1.0, 1.0]


def test_baselines_read_many_levels():
    """A column of 60 levels that decides everything: each baseline has an encoding that finds it."""
    random = np.random.RandomState(0)
    towns = random.randint(0, 60, 900)
    table = polars.DataFrame({"town": [f"t{k}" for k in towns], "x": random.randn(900), "y": towns % 2})
    problem = posed(table, "y", "auto", 0.2, 0)
    from sparsebnn.estimators import Encoder, Table
    from sparsebnn.estimators.target_codes import Signal

    inputs = Table.of(problem.inputs)
    given = Signal(problem.y[:, None].astype(float), True, np.arange(900) % 5)
    columns = Encoder.learned(inputs, np.ones(900), None, lambda: given).columns
    assert columns[0].codes
    ours = np.full((len(problem.test), 2), 0.5)
    found = {each["name"]: each for each in measuring.baselines(problem, columns, ours, 0)}
    assert found["logistic regression"]["metrics"]["accuracy"]["value"] > 0.97
    assert found["gradient boosting"]["metrics"]["accuracy"]["value"] > 0.97
    assert found["gradient boosting"]["difference"]["nll"]["low"] > 0.0


def test_a_column_that_is_mostly_missing_has_a_curve_of_its_levels():
    values = np.array(["a", None, None, "b", None, "a", "other"], dtype=object)
    column = SimpleNamespace(kind="category", levels=("a", "b"), reference=None)
    assert measuring._grid(column, values) == ["a", "b"]
