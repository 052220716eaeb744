"""Result files: whole or not at all, and saying where they come from."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch

from sparsebnn.checks import InvalidInput
from studies import STUDIES, provenance
from studies.provenance import Study, arguments, commit, device_name, rounded, write_json


def test_a_rehearsal_does_not_write_where_results_live():
    assert arguments("bound", "", []).out == Path(".")
    assert arguments("bound", "", ["--quick"]).out == Path("runs")
    assert arguments("bound", "", ["--quick", "--out", "x"]).out == Path("x")


def test_the_command_leaves_the_folder_out(tmp_path):
    study = Study("bound", arguments("bound", "", ["--seed", "3", "--out", str(tmp_path)]))
    record = study.provenance([3, 4])
    assert record["command"] == "python -m studies.bound --seed 3"
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


def repository(folder, package, name):
    """A git repository with one commit, in which a package lies; returns the commit."""
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    run = partial(subprocess.run, cwd=folder, check=True, capture_output=True, text=True)
    run(["git", "init", "-q"])
    run(["git", "add", "."])
    run(["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-q", "-m", "First"])
    return run(["git", "rev-parse", "HEAD"]).stdout.strip()


@pytest.mark.parametrize(
    ("place", "name", "ours"),
    [
        ("src/sparsebnn", "sparsebnn", True),
        ("src/sparsebnn", "theirs", False),
        ("lib/site-packages/sparsebnn", "theirs", False),
        ("lib/site-packages/sparsebnn", "sparsebnn", False),
    ],
)
def test_only_a_checkout_of_this_project_has_a_commit(place, name, ours, tmp_path, monkeypatch):
    """Inside the repository of somebody else, its commit is not the package's."""
    package = tmp_path / place
    head = repository(tmp_path, package, name)
    monkeypatch.setattr(provenance.sparsebnn, "__file__", str(package / "__init__.py"))
    monkeypatch.delenv("SPARSEBNN_COMMIT", raising=False)
    assert commit() == (head if ours else None)
    (package / "__init__.py").write_text("changed = True")
    assert commit() == (f"{head}+changes" if ours else None)
    monkeypatch.setenv("SPARSEBNN_COMMIT", "told")
    assert provenance.commit_and_source()[1] == ("git" if ours else "SPARSEBNN_COMMIT")
    assert provenance.versions()["sparsebnn"] == provenance.sparsebnn.__version__


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
    assert study.provenance([0])["command"] == ("python -m studies.table3 --data DATA --methods b --simulate")
    assert Study("table3", arguments("table3", "", ["--rate", "0.1"], [own])).given.words == []


def test_the_device_is_the_studys():
    given = arguments("bound", "", [])
    assert Study("bound", given).provenance([0])["device"] == device_name(torch.device("cpu"))
    assert Study("bound", given, torch.device("meta")).provenance([0])["device"].startswith("meta")


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_takes_what_its_command_says(name, capsys):
    """A command in a result file can be typed again: every study reads its own options."""
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(f"studies.{name}").main(["--help"])
    assert stopped.value.code == 0
    assert "--seed" in capsys.readouterr().out


# --- a result is not replaced without a word -----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Spec:
    rows: int = 10
    rate: float = 0.1 + 0.2  # rounded in the file
    names: tuple[str, ...] = ("a", "b")


def _saved(folder, spec, *options):
    study = Study("bound", arguments("bound", "", ["--out", str(folder), *options]))
    study.check(spec)
    return study.save(spec, [0], rows=[spec.rows])


def test_the_same_settings_replace_a_result(tmp_path):
    path = _saved(tmp_path, _Spec())
    before = path.read_text()
    assert _saved(tmp_path, _Spec()) == path
    assert json.loads(path.read_text())["spec"] == json.loads(before)["spec"]


def test_other_settings_are_refused_before_any_work_or_forced(tmp_path):
    path = _saved(tmp_path, _Spec())
    with pytest.raises(InvalidInput) as refused:
        _saved(tmp_path, _Spec(rows=20))
    assert str(refused.value) == (
        f"The '{path}' of the command must be a result of the settings asked for. "
        "Got spec.rows 10 where 20 is asked for instead. "
        "Give another --out, or --force to run it again and replace the file."
    )
    assert json.loads(path.read_text())["rows"] == [10]
    _saved(tmp_path, _Spec(rows=20), "--force")
    assert json.loads(path.read_text())["rows"] == [20]


@pytest.mark.parametrize("spec", [_Spec(), _Spec(rows=20)])
@pytest.mark.parametrize("options", [["--quick"], ["--quick", "--force"]])
def test_a_rehearsal_never_replaces_a_result(tmp_path, spec, options):
    path = _saved(tmp_path, _Spec())
    before = path.read_text()
    with pytest.raises(InvalidInput) as refused:
        _saved(tmp_path, spec, *options)
    assert str(refused.value) == (
        f"The '{path}' of the command must be a result of --quick too. "
        "Got one of 'python -m studies.bound' instead. "
        "Give another --out, or leave --quick out."
    )
    assert path.read_text() == before


def test_a_rehearsal_replaces_a_rehearsal(tmp_path):
    _saved(tmp_path, _Spec(), "--quick")
    path = _saved(tmp_path, _Spec(rows=20), "--quick", "--force")
    assert json.loads(path.read_text())["rows"] == [20]


def test_what_is_no_result_is_not_replaced(tmp_path):
    path = _saved(tmp_path, _Spec())
    path.write_text("half a fi")
    with pytest.raises(InvalidInput, match=r"is not a result file .* Remove it and run again\.$"):
        _saved(tmp_path, _Spec())
    assert path.read_text() == "half a fi"


def test_what_was_not_checked_before_is_kept_beside(tmp_path):
    """Hours of work are not thrown away by a check that comes after them."""
    path = _saved(tmp_path, _Spec())
    before = path.read_text()
    study = Study("bound", arguments("bound", "", ["--out", str(tmp_path)]))
    with pytest.raises(InvalidInput, match=r"What was found now is in .*bound\.new\.json\.$"):
        study.save(_Spec(rows=20), [0], rows=[20])
    assert path.read_text() == before
    assert json.loads(path.with_name("bound.new.json").read_text())["rows"] == [20]


_FILES = {
    "groups": ("digits-fc", []),
    "lbbnn_schedule": ("kmnist-fc", []),
    "table3": ("lrt", ["--methods", "lrt", "--simulate"]),
}
# The tables' cells and the frontier have files and tests of their own; 'across_devices' too. The studies of
# uncertainty find out when they save.
_OTHERS = ("table1", "table2", "ablations", "frontier", "across_devices")


@pytest.mark.parametrize("name", [name for name in STUDIES if name not in _OTHERS])
@pytest.mark.parametrize("options", [[], ["--quick", "--force"]])
def test_every_study_refuses_before_its_work(name, options, tmp_path, monkeypatch):
    module = importlib.import_module(f"studies.{name}")

    def work(*given, **more):
        raise AssertionError("work has begun")

    monkeypatch.setattr(module, "run", work)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    stem, own = _FILES.get(name, (name, []))
    path = tmp_path / "results" / name / f"{stem}.json"
    content = {"provenance": {"command": "an earlier one"}, "command": "an earlier one"}
    text = json.dumps({**content, "spec": {"other": 1}, "data": {}, "rows": []})
    if options and name == "lbbnn_schedule":
        path = path.with_name("digits-fc.json")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(InvalidInput, match="must be a result of"):
        module.main(["--out", str(tmp_path), *own, *options])
    assert path.read_text() == text


def test_the_commit_is_the_one_at_the_start(tmp_path, monkeypatch):
    """Whoever commits while a study runs does not change what made its numbers."""
    head = ["first"]
    monkeypatch.setattr(provenance, "_is_checkout", lambda: True)
    monkeypatch.setattr(provenance, "_git", lambda word, *_: head[-1] if word == "rev-parse" else "")
    study = Study("bound", arguments("bound", "", ["--out", str(tmp_path)]))
    schedule = importlib.import_module("studies.lbbnn_schedule")

    def work(*given, **more):
        head.append("second")
        return {}

    monkeypatch.setattr(schedule, "_comparison", work)
    schedule.main(["--quick", "--out", str(tmp_path)])
    assert head == ["first", "second"]
    path = tmp_path / "results" / "lbbnn_schedule" / "digits-fc.json"
    assert json.loads(path.read_text())["commit"] == "first"
    content = json.loads(study.save(_Spec(), [0], rows=[]).read_text())
    assert content["provenance"]["commit"] == "first"
