"""benchmarks/estimators.py: a fit in a process of its own, measured; the page says what the file says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import estimators

ROOT = Path(__file__).resolve().parents[1]
ROW = {
    "task": "regression",
    "rows": 200,
    "columns": 50,
    "seconds": 4.25,
    "processor_seconds": 4.0,
    "gibibytes_above": 0.125,
}


@pytest.mark.slow
def test_a_fit_is_measured_in_a_process_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert estimators.main(["--rows", "40", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "results/bench/estimators.json").read_text())
    assert [row["task"] for row in record["rows"]] == ["classification", "regression"]
    for row in record["rows"]:
        assert row["rows"] == 40
        assert row["processor_seconds"] > 0.0
        # A fit of 40 rows needs some memory, and far less than the packages that were there before.
        assert 0.0 <= row["gibibytes_above"] < 0.5
    assert record["provenance"]["command"] == "python -m benchmarks.estimators --rows 40"
    assert "| regression | 40 × 50 |" in capsys.readouterr().out


def test_the_table_names_its_limits():
    lines = estimators.table([ROW, {**ROW, "rows": 100_000}, {**ROW, "rows": 7}]).splitlines()
    assert lines[2] == "| regression | 200 × 50 | 4.2 | 4.0 | 0.12 | 15 s |"
    assert lines[3].endswith("| 40 s, 2 GiB |")
    assert lines[4].endswith("| 0.12 |  |")
    assert estimators.table([{**ROW, "task": "digits"}]).endswith("| 4 s |")


@pytest.mark.slow
def test_memory_that_is_taken_is_seen():
    """In a fresh process: a peak of this one may lie behind it."""
    program = (
        "from benchmarks.estimators import _peak\n"
        "before = _peak()\n"
        "taken = b'x' * (300 << 20)\n"
        "print(_peak() - before)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert 0.25 < float(done.stdout) < 0.4


def test_the_page_says_what_the_file_says():
    record = json.loads((ROOT / "results/bench/estimators.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/studies/defaults.md").read_text(encoding="utf-8")
    assert estimators.page(page, record) == page
    for row in record["rows"]:
        seconds, memory = estimators.limits(row)
        assert row["seconds"] < seconds
        assert memory is None or row["gibibytes_above"] < memory
