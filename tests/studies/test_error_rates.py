"""The study of error rates in small: rows, resuming, refusals in the table."""

import json

from studies.selection import error_rates


def test_quick_run_resumes_and_tabulates(tmp_path, capsys, monkeypatch):
    arguments = ["--quick", "--out", str(tmp_path)]
    error_rates.main(arguments)
    file = tmp_path / "results" / "error_rates" / "rows.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 2 * len(error_rates.SCENARIOS) * 4
    assert "mixture, where not refused" in capsys.readouterr().out
    monkeypatch.setattr(error_rates, "run", None)
    error_rates.main(arguments)
    assert len(file.read_text().splitlines()) == len(rows)


def test_refused_data_sets_are_left_out():
    rates = {"0.1": {"false_share": 1.0, "found": 0, "chosen": 1, "effects": 2}}
    bad = {"scenario": "a", "method": "mixture", "rates": rates, "promised_by_one": {"0.1": 0.6}}
    fine = {**bad, "rates": {"0.1": {**rates["0.1"], "false_share": 0.0, "found": 2}}}
    lines = error_rates.summary([bad, {**fine, "promised_by_one": {"0.1": 0.02}}])
    assert [(line["fdr"], line["refused"]) for line in lines] == [(0.5, 0.0), (0.0, 0.5)]
