"""studies/density_choice.py: what it fits, and that the page shows what the file says."""

import json
from pathlib import Path

import pytest
from studies.pages import filled

from studies.estimators import density_choice

ROOT = Path(__file__).resolve().parents[2]


def test_the_quick_study(tmp_path, capsys):
    assert density_choice.main(["--quick", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "results/density_choice/density_choice.json").read_text())
    assert [(row["target"], row["fold"]) for row in record["rows"]] == [(0.1, 0), (0.1, 1)]
    for row in record["rows"]:
        assert row["density"] == pytest.approx(0.1, rel=0.1)
        assert 0.0 < row["score"] <= 1.0
        assert row["log_loss"] > 0.0
    assert "| breast cancer | 0.1 | 0.1" in capsys.readouterr().out


def test_the_page_shows_what_the_file_says():
    rows = json.loads((ROOT / "results/density_choice/density_choice.json").read_text())["rows"]
    page = (ROOT / "docs/studies/defaults.md").read_text(encoding="utf-8")
    assert filled(page, density_choice.table(rows), "density") == page


def test_densities_are_reached():
    rows = json.loads((ROOT / "results/density_choice/density_choice.json").read_text())["rows"]
    asked = [row for row in rows if row["target"] is not None]
    assert len(asked) == 20
    assert all(row["density"] == pytest.approx(row["target"], rel=0.1) for row in asked)
