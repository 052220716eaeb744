"""The page on the defaults says what its result file says, and the aims it names are met."""

import json
from pathlib import Path

import numpy as np
import pytest

from studies.estimators import defaults

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def rows():
    path = ROOT / "results" / "defaults" / "defaults.json"
    return json.loads(path.read_text(encoding="utf-8"))["rows"]


def test_the_page_has_the_table_of_the_result_file(rows):
    text = (ROOT / "docs" / "studies" / "defaults.md").read_text(encoding="utf-8")
    assert defaults.page(text, rows) == text


@pytest.mark.parametrize("name", defaults.BUNDLED)
def test_the_aims_are_met(rows, name):
    score = {r["method"]: np.mean(r["score"]) for r in rows if r["data"] == name}
    ours = score.pop(defaults.OURS)
    if name == "diabetes":
        assert ours >= score["ridge regression"] - 0.02
        return
    assert ours >= max(score.values()) - 0.01
    loss = {r["method"]: np.mean(r["log_loss"]) for r in rows if r["data"] == name}
    assert loss.pop(defaults.OURS) <= min(loss.values()) + 0.02


def test_every_row_has_fifteen_folds(rows):
    assert {len(row["score"]) for row in rows} == {15}
    assert len(rows) == 3 * len(defaults.BUNDLED)


@pytest.mark.slow
def test_a_small_run(tmp_path):
    assert defaults.main(["--quick", "--out", str(tmp_path)]) == 0
    made = json.loads((tmp_path / "results" / "defaults" / "defaults.json").read_text(encoding="utf-8"))
    assert {row["data"] for row in made["rows"]} == {"iris", "diabetes"}
