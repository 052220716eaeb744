"""The cost of fine-mapping: its data sets, its table, and that it resumes."""

import shutil

import numpy as np
import pytest

from studies.runner import read_rows
from studies.selection import finemapping_cost

pytest.importorskip("sklearn")


def test_simulated_columns_correlate_with_their_neighbors():
    x, y, truth = finemapping_cost.simulated(20_000, 30, 2, 0)
    np.testing.assert_allclose(np.diag(np.corrcoef(x.T), 1), 0.9, atol=0.02)
    rest = np.linalg.lstsq(np.column_stack([x[:, truth], np.ones(len(x))]), y, rcond=None)[1][0] / len(x)
    assert 1.0 - rest / y.var() == pytest.approx(0.2, abs=0.02)


def test_quick_run_resumes(tmp_path, capsys):
    words = ["--quick", "--out", str(tmp_path)]
    finemapping_cost.main(words)
    file = tmp_path / "results/finemapping_cost/rows.jsonl"
    rows = read_rows(file)
    assert len(rows) == (1 if shutil.which("Rscript") is None else 2)
    assert all(row["cpu_seconds"] >= 0.0 for row in rows)
    finemapping_cost.main(words)
    assert len(read_rows(file)) == len(rows)
    assert "| 60 | 40 | 1 | 1 |" in capsys.readouterr().out


def test_the_table_has_medians_and_what_was_found():
    row = {"rows": 574, "columns": 1000, "effects": 3, "effects_found": 2}
    rows = [
        row | {"method": "structure sampling", "data_set": n, "cpu_seconds": s}
        for n, s in enumerate((1.0, 9.0, 2.0))
    ]
    rows.append(row | {"method": "susieR", "data_set": 0, "cpu_seconds": 0.5, "effects_found": 1})
    assert "| 574 | 1,000 | 3 | 3 | 2.0 | 0.5 | 2.0 and 1.0 |" in finemapping_cost.table(rows)
