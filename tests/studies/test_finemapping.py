"""The fine-mapping study: its data sets, its figures, and that it resumes."""

import shutil

import numpy as np
import pytest

from studies.runner import read_rows
from studies.selection import finemapping
from studies.selection.finemapping import Spec, by_seed, run_susie, score, simulate, summary, table


def genotypes(rows=3000, p=30):
    rng = np.random.default_rng(0)
    return np.cumsum(rng.standard_normal((rows, p)), axis=1)


@pytest.mark.parametrize("number", range(4))
def test_effects_explain_their_share_of_the_variance(number):
    x = genotypes()
    y, truth, pve = simulate(x, 3, number, seed=0)
    design = np.column_stack([x[:, truth], np.ones(len(x))])
    rest = np.linalg.lstsq(design, y, rcond=None)[1][0] / len(x)
    assert len(truth) == 3
    assert 1.0 - rest / y.var() == pytest.approx(pve, abs=0.04)
    again = simulate(x, 3, number, seed=0)
    np.testing.assert_array_equal(y, again[0])
    assert (y != simulate(x, 3, number, seed=1)[0]).all()


def row(method, number, sets, truth, seed=0):
    base = {
        "method": method,
        "effects": 2,
        "data_set": number,
        "seed": seed,
        "seconds": 1.0,
        "converged": True,
        "truth": truth,
        "sets": sets,
    }
    return base | score(sets, truth)


def test_summary_counts_data_sets_that_all_methods_have():
    rows = [
        row("structure sampling", 0, [[1], [2, 3]], [1, 9]),
        row("structure sampling", 1, [[4, 5, 6]], [4, 5]),
        row("structure sampling", 2, [[7]], [8, 9]),
        row("susieR", 0, [], [1, 9]),
        row("susieR", 1, [[4]], [4, 5]),
    ]
    ours, susie = summary(rows)
    assert (ours["data_sets"], ours["sets"], susie["sets"]) == (2, 3, 1)
    assert ours["coverage"] == pytest.approx(2 / 3)
    assert ours["power"] == pytest.approx(3 / 4)
    assert susie["power"] == pytest.approx(1 / 4)
    assert ours["median_size"] == 2.0
    assert "| 2 | susieR | 2 | 1 | 1.000 ± 0.000 | 0.250 | 1 |" in table([ours, susie])


def test_seeds_have_lines_of_their_own():
    rows = [
        row("structure sampling", 0, [[1], [2, 3, 4]], [1, 9], seed=7),
        row("susieR", 0, [[1]], [1, 9], seed=7),
        row("structure sampling", 0, [[5]], [5, 6], seed=8),
        row("susieR", 0, [[5, 6, 7]], [5, 6], seed=8),
    ]
    lines = by_seed(rows).splitlines()[2:]
    assert lines[0] == "| 7 | 2 | 1 | 0.500 and 1.000 | 0.500 and 0.500 | 2 and 1 |"
    assert lines[1] == "| 8 | 2 | 1 | 1.000 and 1.000 | 0.500 and 1.000 | 1 and 3 |"


def test_a_second_run_adds_what_is_missing(tmp_path, monkeypatch):
    finemapping.main(["--quick", "--out", str(tmp_path), "--effects", "1"])
    file = tmp_path / "results" / "finemapping" / "rows.jsonl"
    first = read_rows(file)
    assert [row["data_set"] for row in first] == [0, 0, 1, 1]
    assert {row["method"] for row in first} == {"structure sampling", "structure sampling, strict"}
    assert {"command", "commit", "versions", "cpu_seconds", "max_rhat"} <= set(first[0])
    asked = []
    real = finemapping.run_ours
    monkeypatch.setattr(
        finemapping, "run_ours", lambda x, cells, spec: asked.extend(cells) or real(x, cells, spec)
    )
    finemapping.main(["--quick", "--out", str(tmp_path), "--effects", "1", "--data-sets", "3"])
    assert asked == [(1, 2)]
    assert len(read_rows(file)) == 6


def test_genotypes_are_needed():
    with pytest.raises(SystemExit, match="--data"):
        finemapping.main([])


def test_without_r_susie_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    finemapping.main(["--quick", "--out", str(tmp_path), "--methods", "susieR"])
    assert "no Rscript" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="needs R with susieR")
def test_susie_finds_a_strong_effect():
    x = np.random.default_rng(0).standard_normal((300, 20))
    try:
        rows = run_susie(x, [(1, 3), (1, 7)], Spec())
    except RuntimeError as error:
        pytest.skip(str(error))
    assert [row["sets"] for row in rows] == [[row["truth"]] for row in rows]
    assert [row["data_set"] for row in rows] == [3, 7]
