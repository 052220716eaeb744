"""The command line: what is dispatched where."""

from __future__ import annotations

import json
import re
import sys

import pytest

from sparsebnn.app import cli


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run ``sparsebnn`` with these words; its exit status."""
    monkeypatch.setattr(sys, "argv", ["sparsebnn", *words])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


def test_the_help_lists_the_commands_that_users_need(monkeypatch, capsys):
    assert command(monkeypatch, "--help") == 0
    listed = re.findall(r"^│ (\w+) ", capsys.readouterr().out, flags=re.MULTILINE)
    assert listed == ["fit", "predict", "info", "report"]


def test_report_writes_the_page(monkeypatch, capsys, tmp_path):
    from report.records import example

    assert command(monkeypatch, "report", str(tmp_path)) == 1
    error = capsys.readouterr().err
    assert error.startswith("Error: The 'folder' of report must be a run folder with a 'record.json'.")
    assert "Traceback" not in error
    (tmp_path / "record.json").write_text(json.dumps(example()), encoding="utf-8")
    assert command(monkeypatch, "report", str(tmp_path)) == 0
    assert "report.html" in capsys.readouterr().out
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert command(monkeypatch, "report", str(tmp_path), "--out", str(tmp_path / "x.html"), "--quiet") == 0
    assert capsys.readouterr().out == ""
