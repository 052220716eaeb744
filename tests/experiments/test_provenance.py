"""Result files: whole or not at all, and saying where they come from."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

import pytest
import torch

from sparsebnn.experiments import STUDIES
from sparsebnn.experiments.provenance import Study, arguments, commit, device_name, rounded, write_json


def test_a_rehearsal_does_not_write_where_results_live():
    assert arguments("bound", "", []).out == Path(".")
    assert arguments("bound", "", ["--quick"]).out == Path("runs")
    assert arguments("bound", "", ["--quick", "--out", "x"]).out == Path("x")


def test_the_command_leaves_the_folder_out(tmp_path):
    study = Study("bound", arguments("bound", "", ["--seed", "3", "--out", str(tmp_path)]))
    record = study.provenance([3, 4])
    assert record["command"] == "python -m sparsebnn.experiments.bound --seed 3"
    assert record["seeds"] == [3, 4]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "deep" / "result.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}


def test_numbers_are_rounded_to_significant_digits():
    assert rounded([123456.789, 1e-9, float("inf"), "text", 7]) == [123457.0, 1e-9, None, "text", 7]


def test_commit_is_a_hash_or_nothing():
    found = commit()
    assert found is None or len(found.removesuffix("+changes")) == 40


def test_the_command_names_a_studys_own_options(tmp_path):
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--data", type=Path)
    own.add_argument("--methods", nargs="+", default=["a", "b"])
    own.add_argument("--rate", type=float, default=0.1)
    own.add_argument("--simulate", action="store_true")
    own.add_argument("--workers", type=int, default=2)
    own.add_argument("--device", default="auto")
    argv = ["--data", str(tmp_path), "--methods", "b", "--simulate", "--workers", "1", "--device", "cpu"]
    study = Study("table3", arguments("table3", "", argv, [own]))
    assert study.provenance([0])["command"] == (
        "python -m sparsebnn.experiments.table3 --data DATA --methods b --simulate"
    )
    assert Study("table3", arguments("table3", "", ["--rate", "0.1"], [own])).given.words == []


def test_the_device_is_the_studys():
    given = arguments("bound", "", [])
    assert Study("bound", given).provenance([0])["device"] == device_name(torch.device("cpu"))
    assert Study("bound", given, torch.device("meta")).provenance([0])["device"].startswith("meta")


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_takes_what_its_command_says(name, capsys):
    """A command in a result file can be typed again: every study reads its own options."""
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(f"sparsebnn.experiments.{name}").main(["--help"])
    assert stopped.value.code == 0
    assert "--seed" in capsys.readouterr().out
