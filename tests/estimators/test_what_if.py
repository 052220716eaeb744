"""What-if curves of estimators are predictions for a changed table."""

import numpy as np
import pandas as pd
import pytest

from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor

RANDOM = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "size": RANDOM.normal(50.0, 10.0, 80),
        "kind": RANDOM.choice(["flat", "house", "hut"], 80),
        "when": pd.date_range("2020-01-01", periods=80),
    }
)
PRICE = 3.0 * FRAME["size"].to_numpy() + 20.0 * (FRAME["kind"] == "house").to_numpy()


@pytest.fixture(scope="module", params=["classes", "numbers"])
def model(request):
    options = {"replicates": 2, "epochs": 20, "random_state": 0, "hidden": (8,), "n_draws": 30}
    if request.param == "classes":
        return SparseBNNClassifier(**options).fit(FRAME, np.where(PRICE > 160, "dear", "cheap"))
    return SparseBNNRegressor(**options).fit(FRAME, PRICE)


def predicted(model, frame):
    return model.predict_proba(frame).mean(0) if hasattr(model, "classes_") else [model.predict(frame).mean()]


def test_curves_are_predictions(model):
    rows = FRAME[:9]
    for column, values in (("size", [30.0, 60.0]), ("kind", ["flat", "hut"])):
        curve = model.what_if(rows, column, grid=values, n_draws=30)
        wanted = [predicted(model, rows.assign(**{column: value})) for value in values]
        np.testing.assert_allclose(curve.mean, wanted, rtol=1e-6)
        assert (curve.low <= curve.high).all()
    both = model.what_if(rows, ["kind", 0], points=3, n_draws=30)
    assert both.mean.shape[:2] == (rows["kind"].nunique(), 3)
    at = rows.assign(kind=both.grid[0][1], size=both.grid[1][2])
    np.testing.assert_allclose(both.mean[1, 2], predicted(model, at), rtol=1e-6)


def test_bad_columns(model):
    with pytest.raises(InvalidInput, match="'columns' of what_if"):
        model.what_if(FRAME, "sizes")
    with pytest.raises(InvalidInput, match="'grid' of what_if"):
        model.what_if(FRAME, "when")
