"""The study that compares versions of the defaults fit by fit."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from studies.estimators import previous
from studies.runner import read_rows

pytest.importorskip("sklearn")


def test_a_difference_of_folds_is_less_certain_than_one_of_tables():
    one, other = np.random.RandomState(0).randn(2, 50)
    mean, error = previous.difference(one, other)
    np.testing.assert_allclose([mean, error], [(one - other).mean(), (one - other).std(ddof=1) / 50**0.5])
    # Nadeau and Bengio (2003): one quarter is the ratio of test to training rows in five folds.
    assert previous.difference(one, other, 5)[1] == pytest.approx(error * (1 + 50 / 4) ** 0.5)


def test_the_table_compares_fits_that_both_versions_have():
    rows = [
        {"data": "iris", "version": version, "seed": 1, "fold": fold, "accuracy": score, "log-loss": 0.1}
        for version, score in (("previous", 0.5), ("present", 0.75))
        for fold in range(5)
    ]
    assert "| iris | accuracy | 5 | 0.5000 | 0.7500 | +0.2500 ± 0.0000 |" in previous.table(rows)
    assert "| iris | accuracy | 4 |" in previous.table(rows[:-1])


def test_both_versions_see_the_same_rows():
    spec = previous.Spec({}, case=dataclasses.replace(previous.Spec({}).case, rows=50, columns=8))
    (name, *_), seen = previous.REPEATS, []
    for seed in (3, 3, 4):
        (job,) = previous.jobs(spec, name, seed)
        seen.append(job.x)
    np.testing.assert_array_equal(seen[0], seen[1])
    assert (seen[0] != seen[2]).any()
    assert len(list(previous.jobs(spec, "iris", 0))) == 5


@pytest.mark.slow
def test_quick_version_fits_another_checkout(tmp_path):
    here = Path(__file__).resolve().parents[2]
    words = ["--quick", "--out", str(tmp_path), "--checkout", str(here)]
    assert previous.main(words) == 0
    rows = read_rows(tmp_path / "results/previous/rows.jsonl")
    was, now = ([row for row in rows if row["version"] == version] for version in previous.VERSIONS)
    assert len(was) == 4
    assert [row["log-loss"] for row in was] == [row["log-loss"] for row in now]
    assert previous.main(words) == 0
    assert read_rows(tmp_path / "results/previous/rows.jsonl") == rows
