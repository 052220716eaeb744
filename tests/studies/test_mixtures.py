"""The mixture study in small: rows, resuming, tables."""

import json

from studies.selection import mixtures


def test_quick_run_resumes_and_tabulates(tmp_path, capsys, monkeypatch):
    arguments = ["--quick", "--out", str(tmp_path), "--kinds", "gaussian"]
    mixtures.main(arguments)
    file = tmp_path / "results" / "mixture" / "rows.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["method"] for row in rows} == {"sampler", "networks", "reweighted", "dependent"}
    errors = {name: value for row in rows for name, value in row["errors"].items()}
    assert errors["structure sampling"] < 0.02
    ways = {f"{family}{way}" for family in ("", "dependent, ") for way in ("one", "best", "mixture")}
    assert set(errors) == {"structure sampling", "average", "twice", "reweighted", *ways}
    assert "| mixture |" in capsys.readouterr().out
    monkeypatch.setattr(mixtures, "run_networks", None)
    monkeypatch.setattr(mixtures, "run_reweighted", None)
    monkeypatch.setattr(mixtures, "run_sampler", None)
    mixtures.main(arguments)
    assert len(file.read_text().splitlines()) == len(rows)
