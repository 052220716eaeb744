"""The study of small input-skip networks: its splits, its rows, and that it resumes."""

import numpy as np
import pytest

from studies.runner import read_rows
from studies.selection import input_skip
from studies.selection.input_skip import CHOSEN, Candidate, run, split, table


def test_validation_rows_are_training_rows():
    for seed in range(3):
        training, test = split(53, seed, validate=False)
        inner, validation = split(53, seed, validate=True)
        assert sorted([*training, *test]) == list(range(53))
        assert sorted([*inner, *validation]) == sorted(training)
        assert len(test) == 10


def test_a_linear_truth_needs_one_weight():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 6))
    how = Candidate((), 1, 150, 1.0, 1.0, 0.05, learning_rate=0.05)
    found = run(x, (x[:, 2] > 0).astype(int), how, 0, validate=False)
    assert found["active"] == found["inputs"] == 1
    assert found["mean_length"] == 1.0
    assert found["accuracy"] > 0.95


def test_a_quick_study_resumes(tmp_path, monkeypatch, capsys):
    options = ["--quick", "--data", "wbc", "--seeds", "1", "--out", str(tmp_path)]
    input_skip.main(options)
    path = tmp_path / "results" / "input_skip" / "rows.jsonl"
    (row,) = read_rows(path)
    assert row["command"] == "python -m studies input_skip --data wbc --seeds 1 --quick"
    monkeypatch.setattr(input_skip, "run", None)  # nothing is left to do
    input_skip.main(options)
    assert len(read_rows(path)) == 1
    own = {**row, "settings": CHOSEN["wbc"].name}
    rows = [{**own, "accuracy": a, "active": n} for a, n in ((0.9, 3), (1.0, 4))]
    assert "| 2 | 95.00% (90.00% to 100.00%) | 3.5 |" in table(rows)
    with pytest.raises(SystemExit, match="--mice"):
        input_skip.load("mice", None)


def test_abalone_is_read_in_the_layout_of_uci(tmp_path):
    path = tmp_path / "abalone.data"
    path.write_text("M,0.5,0.4,0.1,0.5,0.2,0.1,0.15,15\nI,0.3,0.2,0.1,0.2,0.1,0.05,0.07,7\n")
    x, y = input_skip.load("abalone", path)
    assert x[:, :4].tolist() == [[1.0, 0.0, 0.0, 0.5], [0.0, 0.0, 1.0, 0.3]]
    assert y.tolist() == [15.0, 7.0]
    with pytest.raises(SystemExit, match="--abalone"):
        input_skip.load("abalone", None)


def test_numbers_are_scored_in_their_unit():
    """A linear truth in tens, with noise of standard deviation 10."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 3))
    y = 1000.0 + 100.0 * x[:, 1] + 10.0 * rng.standard_normal(400)
    how = Candidate((), 1, 100, 0.1, 1.0, 0.05, learning_rate=0.05, starts=2, farthest=5.0)
    found = run(x, y, how, 0, validate=False)
    assert found["active"] == found["inputs"] == 1
    assert 8.0 < found["rmse"] < 13.0
    row = {"data": "abalone", "settings": CHOSEN["abalone"].name, "seed": 0, "validate": False, **found}
    assert f"| 1 | {found['rmse']:.3f} (" in table([row])
