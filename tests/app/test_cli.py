"""The command line: what is dispatched where. (``demo`` has tests of its own.)"""

from __future__ import annotations

import importlib
import inspect
import json
import runpy
import sys

import pytest

from sparsebnn.app import cli
from studies import STUDIES, program


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run ``sparsebnn`` with these words; its exit status."""
    monkeypatch.setattr(sys, "argv", ["sparsebnn", *words])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


def test_the_help_begins_with_what_most_people_look_for(monkeypatch, capsys):
    assert command(monkeypatch, "--help") == 0
    listed = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("│ ")]
    names = [name for name in listed if name.isidentifier()]
    assert [name for name in names if name in ("fit", "predict", "info", "report", "reproduce")] == [
        "fit",
        "predict",
        "info",
        "report",
        "reproduce",
    ]


def test_reproduce_lists_the_studies(monkeypatch, capsys):
    assert command(monkeypatch, "reproduce") == 0
    printed = capsys.readouterr().out
    assert all(name in printed and shows in printed for name, shows in STUDIES.items())


def test_reproduce_hands_options_to_the_study(monkeypatch, capsys):
    from studies.bounds import bound

    seen: list[list[str]] = []
    monkeypatch.setattr(bound, "main", seen.append)
    assert command(monkeypatch, "reproduce", "bound", "--quick", "--seed", "3") == 0
    assert seen == [["--quick", "--seed", "3"]]


def test_reproduce_names_the_nearest_study(monkeypatch, capsys):
    assert command(monkeypatch, "reproduce", "bond") == 1
    error = capsys.readouterr().err
    assert error.startswith("Error: The 'study' of sparsebnn reproduce must be one of")
    assert "Did you mean 'bound'?" in error


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_a_command(name, capsys):
    module = importlib.import_module(f"studies.{name}")
    with pytest.raises(SystemExit) as left:
        module.main(["--help"])
    assert left.value.code == 0
    assert f"python -m studies.{name}" in capsys.readouterr().out


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


# -- python -m --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "words", "status", "says"),
    [
        ("table1", ["--epochs", "0"], 2, "--epochs: must be a whole number, at least 1. Got '0' instead."),
        ("table2", ["--draws", "few"], 2, "--draws: must be a whole number, at least 1. Got 'few' instead."),
        ("groups", ["--replicates", "-1"], 2, "must be a whole number, at least 1. Got '-1' instead."),
        ("frontier", ["--datasets", "nope"], 1, "Error: The '--datasets' of the command must be one of"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_a_study_run_as_a_module_tells_bad_input_in_a_line(module, words, status, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [module, *words])
    with pytest.raises(SystemExit) as left:
        runpy.run_module(f"studies.{module}", run_name="__main__")
    assert left.value.code == status
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


def test_every_study_ends_as_a_program_should():
    for name in STUDIES:
        source = inspect.getsource(importlib.import_module(f"studies.{name}"))
        assert source.endswith('if __name__ == "__main__":\n    run_as_program(main)\n'), name


def test_an_interrupt_and_an_error_nobody_foresaw(capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt("Stopped; go on with --resume.")

    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(SystemExit) as left:
        program.run_as_program(interrupted)
    assert left.value.code == 130
    assert "go on with --resume" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        program.run_as_program(broken)
