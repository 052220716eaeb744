"""The benchmarks next to other libraries, on small simulated tables."""

import importlib.util

import numpy as np
import pytest
from scipy import stats

from studies.peers import features, survival, uci, uci_methods

R = np.random.RandomState(0)


def test_survival_measures_and_verdicts():
    pytest.importorskip("sksurv")
    linear = pytest.importorskip("sksurv.linear_model")
    random = np.random.RandomState(0)
    x = random.randn(300, 3)
    y = np.zeros(300, dtype=[("event", bool), ("time", float)])
    y["event"] = random.rand(300) < 0.8
    y["time"] = random.exponential(np.exp(-2.0 * x[:, 0])) + 0.01
    training, test = np.arange(200), np.arange(200, 300)
    found = survival.measured(linear.CoxPHSurvivalAnalysis(), x, y, training, test)
    constant = survival.measured(linear.CoxPHSurvivalAnalysis(), random.randn(300, 3), y, training, test)
    assert found["concordance"] > constant["concordance"] + 0.1
    assert 0.0 < found["ibs"] < constant["ibs"]
    rows = [
        {
            "data": "a",
            "method": method,
            "fold": fold,
            "concordance": c + 0.01 * fold,
            "ibs": ibs,
            "seconds": 1.0,
        }
        for method, c, ibs in (("sparsebnn", 0.70, 0.2), ("Cox", 0.705, 0.21), ("LassoNet-Cox", 0.6, None))
        for fold in range(3)
    ]
    assert survival.verdicts(rows) == {"a": (True, True)}
    rows = [{**row, "concordance": 0.8} if row["method"] == "Cox" else row for row in rows]
    assert survival.verdicts(rows) == {"a": (False, True)}
    assert "on 0 of 1 data sets" in survival.table(rows)


def test_survival_probabilities_of_cox_models_do_not_underflow():
    linear = pytest.importorskip("sksurv.linear_model")
    random = np.random.RandomState(0)
    x = np.ones((400, 1))
    x[:100] = 0.0  # all of these have the event before any other row, so the coefficient diverges
    y = np.zeros(400, dtype=[("event", bool), ("time", float)])
    y["event"], y["time"] = True, np.where(x[:, 0] == 0.0, random.rand(400), 1.0 + random.rand(400))
    model = linear.CoxPHSurvivalAnalysis(alpha=1e-6).fit(x, y)
    times = np.array([1.25, 1.75])
    observed = [(y["time"][100:] > t).mean() for t in times]
    np.testing.assert_allclose(survival.survival_at(model, x[100:], times).mean(0), observed, atol=0.02)
    powers = np.stack([f(times) for f in model.predict_survival_function(x[100:])]).mean(0)
    assert (powers < 0.5 * np.array(observed)).all()  # why cumulative hazards are used


def test_survival_tables_are_encoded_by_training_rows():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"num_a": [1.0, np.nan, 3.0, 100.0] * 5, "fac_b": ["u", "v", "u", None] * 5, "num_c": [2.0] * 20}
    )
    found = survival.encoded(frame, np.arange(10))
    assert found.shape == (20, 2)  # the constant column is left out
    np.testing.assert_allclose(found[:10, 0].mean(), 0.0, atol=1e-12)


@pytest.mark.parametrize("method", ["sparsebnn", "random forest", "L1 logistic regression", "random columns"])
def test_features(method):
    x = R.randn(1000, 30).astype(np.float32)
    y = (x[:, 3] > 0).astype(int) + 2 * (x[:, 7] > 0)
    training, test = features.split(y, 300, 200, 0)
    assert len(training) == 300
    assert len(test) == 200
    assert not set(training) & set(test)
    row = features.measured(x, y, training, test, 2, 0, features.METHODS[method])
    assert (row["accuracy"] > 0.8) == (method != "random columns")
    assert row["k"] == 2
    assert (row["own_accuracy"] is None) == (method != "sparsebnn")
    rows = [{**row, "data": "simulated", "method": method, "seed": seed} for seed in (0, 1)]
    assert f"| {method} | {100 * row['accuracy']:.1f} ± 0.0 |" in features.table(rows)


def test_our_network_keeps_one_of_two_equal_columns():
    x = R.randn(600, 12).astype(np.float32)
    x[:, 1] = x[:, 0]  # a repeated column adds nothing, though alone it is as good as the first
    y = (x[:, 0] > 0).astype(int) + 2 * (x[:, 5] > 0)
    found = features.grouped(x[:400], y[:400], 2, 0)
    assert 5 in found.columns
    assert len({0, 1} & set(found.columns)) == 1
    assert found.predict is not None
    accuracy = (found.predict(x[400:]) == y[400:]).mean()
    assert accuracy > 0.8
    unused = np.setdiff1d(np.arange(12), found.columns)
    changed = x[400:].copy()
    changed[:, unused] = 0.0
    np.testing.assert_array_equal(found.predict(changed), found.predict(x[400:]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of laplace-torch's dependencies
def test_uci_mixtures_and_peers(monkeypatch):
    monkeypatch.setattr(uci_methods, "_LEAST_STEPS", 600)
    y, means, stds = R.randn(5), R.randn(3, 5), 0.5 + R.rand(3, 5)
    expected = np.log(stats.norm(means, stds).pdf(y).mean(0))
    np.testing.assert_allclose(uci_methods.mixture_log_density(y, means, stds), expected)
    x = R.randn(300, 2)
    target = x[:, 0] + 0.3 * R.randn(300)
    for method in ("deep ensemble", "dense BNN", "laplace-torch", "gradient boosting"):
        if method == "laplace-torch" and importlib.util.find_spec("laplace") is None:
            continue
        found = uci.METHODS[method](x[:200], target[:200], x[200:], target[200:], 0)
        assert np.sqrt(((found.mean - target[200:]) ** 2).mean()) < 0.5
        assert 0.6 < ((found.low <= target[200:]) & (target[200:] <= found.high)).mean() <= 1.0
        assert found.log_density.mean() > -1.5


def test_uci_verdicts_compare_means_over_splits():
    def rows(method, rmse, log_likelihood, coverage):
        each = {"data": "concrete", "method": method, "rmse": rmse, "log_likelihood": log_likelihood}
        return [{**each, "split": s, "coverage": coverage + 0.1 * s - 0.05, "seconds": 1.0} for s in (0, 1)]

    own = rows("sparsebnn", 4.824, -2.95, 0.9)
    found = uci.verdicts([*own, *rows("deep ensemble", 5.0, -2.90, 0.8)])
    assert found == {
        "concrete": {
            "rmse, MC dropout": True,  # 4.82 as published
            "rmse, deep ensemble": True,
            "log-likelihood, MC dropout": False,
            "log-likelihood, deep ensemble": False,
            "coverage": True,
        }
    }
    assert "- log-likelihood, MC dropout: 0 (not on concrete)" in uci.table(own)


@pytest.mark.slow
@pytest.mark.parametrize("study", [survival, uci, features])
def test_quick_versions(study, tmp_path):
    try:
        assert study.main(["--quick", "--out", str(tmp_path)]) == 0
    except (ImportError, ValueError) as error:
        pytest.skip(str(error))
    assert list((tmp_path / "results").rglob("rows.jsonl"))
