"""The study of the columns that default fits choose."""

import numpy as np
import pytest

from studies.runner import read_rows
from studies.selection import column_methods, column_report, column_selection
from studies.selection.column_selection import Case

pytest.importorskip("sklearn")


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_simulated_tables_have_the_stated_truth(correlation):
    case = Case("correlation", "regression", "linear", 0, 20, 5, correlation)
    x, y, real = column_selection.simulated(case, 0, 20_000)
    assert real.sum() == 5
    off = np.corrcoef(x.T)[~np.eye(20, dtype=bool)]
    np.testing.assert_allclose(off, correlation, atol=0.04)
    coefficients = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)[0][:-1]
    assert np.abs(coefficients[real]).min() > 0.15
    assert np.abs(coefficients[~real]).max() < 0.06
    np.testing.assert_allclose(np.var(y), 1.25, rtol=0.03)


def test_only_real_columns_decide_a_nonlinear_truth():
    case = Case("rows", "classification", "nonlinear", 0, 12, 6)
    x, y, real = column_selection.simulated(case, 0, 40_000)
    assert set(np.unique(y)) == {0, 1}
    # Columns matter through their sign, their square, or a product with another.
    products = np.einsum("ni,nj,n->ij", x, x, y - y.mean()) / len(x)
    matters = np.maximum(np.abs(products).max(1), np.abs((y - y.mean()) @ x) / len(x))
    assert matters[real].min() > 2.0 * matters[~real].max()


@pytest.mark.parametrize("method", ["Lasso-CV", "Carbonetto–Stephens"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_peers_find_strong_columns(method, task):
    case = Case("correlation", task, "linear", 400, 12, 3)
    row = column_selection.measured(case, method, 0)
    assert all(found["recall"] == 1.0 for found in row["rules"].values())
    assert row["score"] > (0.8 if task == "classification" else 0.7)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["Boruta", "LassoNet"])
def test_slow_peers_find_strong_columns(method):
    pytest.importorskip(method.lower())
    row = column_selection.measured(Case("correlation", "regression", "linear", 300, 8, 2), method, 0)
    assert all(found["recall"] == 1.0 for found in row["rules"].values())


def test_a_refused_rule_is_none():
    class Tempered:
        inclusion_ = np.array([0.9, 0.1])
        inclusions_are_no_posterior = "trained at temperature 0.1"

    class Posterior(Tempered):
        inclusions_are_no_posterior = None

    assert column_methods.fdr_rule(Tempered()) is None
    np.testing.assert_array_equal(column_methods.fdr_rule(Posterior()), [True, False])


def test_quick_version_keeps_rows(tmp_path):
    words = ["--quick", "--out", str(tmp_path), "--methods"]
    assert column_selection.main([*words, "Lasso-CV"]) == 0
    path = tmp_path / "results/column_selection/rows.jsonl"
    first = read_rows(path)
    assert column_selection.main([*words, "Lasso-CV", "Carbonetto–Stephens"]) == 0
    rows = read_rows(path)
    assert rows[: len(first)] == first
    assert [row["method"] for row in rows] == ["Lasso-CV"] * 2 + ["Carbonetto–Stephens"] * 2


@pytest.mark.slow
def test_quick_version_of_ours(tmp_path):
    words = ["--quick", "--out", str(tmp_path), "--methods", "ours", "--label", "sparsebnn (before)"]
    assert column_selection.main(words) == 0
    rows = read_rows(tmp_path / "results/column_selection/rows.jsonl")
    assert {row["method"] for row in rows} == {"sparsebnn (before)"}


def test_the_page_counts_refusals():
    score = {"precision": 0.5, "recall": 1.0, "chosen": 4.0}
    about = {"group": "correlation", "task": "regression", "kind": "linear", "rows": 500, "columns": 100}
    rows = [
        {**about, "correlation": 0.5, "method": "sparsebnn", "seconds": 1.0, "loss": 0.5, "score": 0.7,
         "rules": {"a_": score, "fdr": found}}
        for found in (None, {**score, "precision": 1.0})
    ]  # fmt: skip
    text = column_report.body(rows) + column_report.details(rows)
    assert "| `a_` | 0.50 | 1.00 | 0.50 ± 0.00 | 4.0 | 0.500 | 0.70 | 1.0 |" in text
    assert "| fdr | 1.00 | 1.00 | 0.00 ± 0.00 (1 of 2) | 4.0 |" in text
