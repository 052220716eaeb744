"""The study of interactions between correlated columns."""

import numpy as np
import pytest

from studies.runner import read_rows
from studies.selection import nonlinear
from studies.selection.nonlinear import Spec

pytest.importorskip("sklearn")


@pytest.mark.parametrize("design", nonlinear.DESIGNS)
def test_simulated_tables_have_the_stated_truth(design):
    x, y, real = nonlinear.simulated(design, 3, Spec(rows=40_000))
    a, b, c, d, e = x[:, real].T
    signal = a * b + c * d + e
    assert np.std(y - signal / signal.std()) == pytest.approx(0.5, abs=0.01)
    corr = np.corrcoef(x.T)
    among = corr[np.ix_(real, real)][~np.eye(5, dtype=bool)]
    near = (corr[real] > 0.8).sum(1)
    if design == "blocks":
        assert np.abs(among).max() < 0.03
        assert near.tolist() == [4] * 5
    else:
        assert near.tolist() == [20] * 5


def test_figures_of_known_choices():
    def row(seed, chosen, sets):
        return {
            "design": "blocks", "method": "m", "data_set": 0, "seed": seed, "real": [0, 1], "seconds": 1.0,
            "rules": {"r": chosen}, "sets": sets,
        }  # fmt: skip

    rows = [row(0, [0, 5], [[0], [2, 3]]), row(1, [0, 1], [[1, 4]]), row(2, None, [])]
    rule, sets = nonlinear.summary(rows)
    assert (rule["precision"], rule["recall"], rule["chosen"]) == (0.75, 0.75, 2.0)
    assert rule["stability"] == pytest.approx(1 / 3)
    assert rule["refused"] == pytest.approx(1 / 3)
    assert sets["precision"] == pytest.approx(2 / 3)
    assert sets["recall"] == pytest.approx(1 / 3)
    assert (sets["sets"], sets["size"]) == (1.0, 2.0)
    assert "1.7 in 1.0 sets, median size 2" in nonlinear.table([rule, sets])


def test_quick_run_resumes(tmp_path, capsys):
    words = ["--quick", "--out", str(tmp_path), "--methods", "networks", "random forest"]
    nonlinear.main(words)
    rows = read_rows(tmp_path / "results/nonlinear/rows.jsonl")
    assert len(rows) == 8  # designs, seeds, methods
    assert {row["method"] for row in rows} == {"networks", "random forest"}
    nonlinear.main(words)
    assert len(read_rows(tmp_path / "results/nonlinear/rows.jsonl")) == 8
    assert "| networks | credible sets |" in capsys.readouterr().out
