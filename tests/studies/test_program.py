"""Studies as programs: how they are found, how they end."""

from __future__ import annotations

import importlib
import inspect
import runpy
import sys

import pytest

from sparsebnn.checks import InvalidInput
from studies import STUDIES, program
from studies.__main__ import main


def test_the_studies_are_listed(capsys):
    main([])
    printed = capsys.readouterr().out
    assert all(name in printed and shows in printed for name, shows in STUDIES.items())


def test_options_go_to_the_study(monkeypatch):
    from studies import bound

    seen: list[list[str]] = []
    monkeypatch.setattr(bound, "main", seen.append)
    main(["bound", "--quick", "--seed", "3"])
    assert seen == [["--quick", "--seed", "3"]]


def test_the_nearest_study_is_named():
    with pytest.raises(InvalidInput, match=r"'study' of python -m studies.*Did you mean 'bound'"):
        main(["bond"])


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_a_command(name, capsys):
    module = importlib.import_module(f"studies.{name}")
    with pytest.raises(SystemExit) as left:
        module.main(["--help"])
    assert left.value.code == 0
    assert f"python -m studies.{name}" in capsys.readouterr().out


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
