"""Result files: whole or not at all, and saying where they come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsebnn.experiments.provenance import Study, arguments, commit, rounded, write_json


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
