"""The studies' runner: command lines, provenance, result files, rows."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

from sparsebnn.app import provenance
from sparsebnn.app.provenance import device_name
from sparsebnn.checks import InvalidInput
from studies import STUDIES
from studies.__main__ import main
from studies.runner import Study, append_rows, arguments, filled, read_rows, write_json


@dataclasses.dataclass(frozen=True)
class _Spec:
    rows: int = 10
    rate: float = 0.1 + 0.2  # rounded in the file


def test_a_quick_run_does_not_write_where_results_live():
    assert arguments("bound", "", []).out == Path(".")
    assert arguments("bound", "", ["--quick"]).out == Path("runs")
    assert arguments("bound", "", ["--quick", "--out", "x"]).out == Path("x")


def test_the_command_names_the_options_that_matter(tmp_path):
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--data", type=Path)
    own.add_argument("--methods", nargs="+", default=["a", "b"])
    own.add_argument("--rate", type=float, default=0.1)
    own.add_argument("--workers", type=int, default=2)
    own.add_argument("--device", default="auto")
    argv = ["--data", str(tmp_path), "--methods", "b", "--workers", "1", "--device", "cpu", "--seed", "3"]
    study = Study("table3", arguments("table3", "", argv, [own]))
    assert study.command == "python -m studies table3 --data DATA --methods b --seed 3"
    assert Study("table3", arguments("table3", "", ["--rate", "0.1"], [own])).given.words == []


def test_a_result_file_has_its_provenance(tmp_path, monkeypatch):
    """The commit is the one at the start: committing during a run does not change what made its numbers."""
    head = ["first"]
    monkeypatch.setattr(provenance, "_git", lambda word, *_: head[-1] if word == "rev-parse" else "")
    monkeypatch.setattr(provenance, "_is_checkout", lambda: True)
    study = Study("bound", arguments("bound", "", ["--out", str(tmp_path)]), torch.device("cpu"))
    head.append("second")
    content = json.loads(study.save(_Spec(), [3, 4], rows=[1 / 3]).read_text())
    assert content["spec"] == {"rows": 10, "rate": 0.3}
    assert content["rows"] == [0.333333]
    made = content["provenance"]
    assert (made["commit"], made["seeds"], made["device"]) == ("first", [3, 4], device_name(study.device))
    assert made["versions"]["torch"] == torch.__version__
    assert made["seconds"] >= 0.0


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "deep" / "result.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}


def test_rows_survive_an_interrupted_write(tmp_path):
    path = tmp_path / "results" / "rows.jsonl"
    assert read_rows(path) == []
    append_rows(path, [{"a": 1}])
    with path.open("a") as file:
        file.write('{"a": 2')
    append_rows(path, [{"a": 3}])
    assert read_rows(path) == [{"a": 1}, {"a": 3}]


def test_a_page_without_markers_is_refused():
    with pytest.raises(InvalidInput, match="'page'"):
        filled("nothing here", "new")


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_a_main(name):
    module, _, function = STUDIES[name][0].partition(":")
    assert callable(getattr(importlib.import_module(f"studies.{module}"), function or "main"))


def test_the_command_lists_and_refuses(capsys):
    main([])
    said = capsys.readouterr().out
    assert all(name in said for name in STUDIES)
    with pytest.raises(InvalidInput, match="'study'"):
        main(["boud"])


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_a_mistake_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["studies", "table1", "--replicates", "none"])
    with pytest.raises(SystemExit):
        runpy.run_module("studies", run_name="__main__", alter_sys=True)
    error = capsys.readouterr().err
    assert error.startswith("Error: The '--replicates'")
    assert len(error.splitlines()) == 1
