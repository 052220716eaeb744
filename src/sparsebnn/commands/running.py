"""``fit`` and ``predict`` from files to files; a folder or file is there whole or not at all."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsebnn.checks import InvalidInput, invalid
from sparsebnn.commands import recording
from sparsebnn.commands.progress import Stages, stages
from sparsebnn.commands.reading import read_table
from sparsebnn.commands.splitting import Problem, posed
from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor, Table, load, storing
from sparsebnn.experiments.provenance import commit, rounded, versions

__all__ = ["fit", "info", "predict"]


def fit(
    data: str,
    target: str,
    out: Path,
    *,
    task: str = "auto",
    test_share: float = 0.2,
    force: bool = False,
    seed: int = 0,
    command: str = "",
    quiet: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Train on a file's rows, measure on held-out ones, and write the run folder; returns its record."""
    _check_free(out, force)
    with stages(quiet) as shown:
        problem = posed(read_table(data), target, task, test_share, seed)
        for note in problem.notes if not quiet else ():
            print(f"Note: {note}.", file=sys.stderr)
        model = _fitted(problem, seed, shown, settings)
        name = "standard input" if data == "-" else Path(data).name
        record = recording.record(model, problem, name, seed)
        record |= {"command": command, "commit": commit(), "versions": versions()}
        record = rounded(record, digits=8)
        if shown is not None:
            shown.say("writing")
        _write(out, model, problem, record)
    return record


def _fitted(problem: Problem, seed: int, shown: Stages | None, settings: dict[str, Any]) -> Any:
    kind = SparseBNNClassifier if problem.task == "classification" else SparseBNNRegressor
    model = kind(random_state=seed, **settings)
    model._watchers = [] if shown is None else [shown]
    model.fit(problem.inputs.rows(problem.training), problem.y[problem.training])
    del model._watchers
    return model


def _write(out: Path, model: Any, problem: Problem, record: dict[str, Any]) -> None:
    """The run folder, whole or not at all."""
    partial = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    try:
        partial.mkdir(parents=True)
        model.save(partial / "model.safetensors")
        _write_predictions(partial / "predictions.csv", model, problem)
        text = json.dumps(record, indent=1, allow_nan=False)
        (partial / "record.json").write_text(text + "\n", encoding="utf-8")
        _report(partial)
        _replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_free(out: Path, force: bool) -> None:
    """Before any work starts: may the folder be written?"""
    if not out.exists():
        return
    if not force:
        advice = "Choose another --out, or --force to replace it."
        raise InvalidInput(f"The folder {out} exists already. {advice}")
    if not out.is_dir() or (any(out.iterdir()) and not (out / "record.json").exists()):
        advice = "Choose another --out."
        raise invalid("out", "sparsebnn fit", "a run folder, to be replaced", str(out), advice)


def _replace(partial: Path, out: Path) -> None:
    if out.exists():
        old = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
        os.replace(out, old)
        os.replace(partial, out)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(partial, out)


def _report(folder: Path) -> None:
    """The report, where its room and its template engine are there."""
    if importlib.util.find_spec("sparsebnn.report") is None or importlib.util.find_spec("jinja2") is None:
        return
    importlib.import_module("sparsebnn.report").write(folder)


def _write_csv(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with partial.open("w", newline="", encoding="utf-8") as file:
        _rows(file, columns)
    os.replace(partial, path)


def _rows(file: Any, columns: Mapping[str, Sequence[Any]]) -> None:
    writer = csv.writer(file)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values()))


def _write_predictions(path: Path, model: Any, problem: Problem) -> None:
    columns: dict[str, Sequence[Any]] = {
        "row": (problem.rows[problem.test] + 1).tolist(),
        "truth": problem.y[problem.test].tolist(),
        **recording.predictions(model, problem.inputs.rows(problem.test)),
    }
    _write_csv(path, columns)


def _model_file(given: Path) -> Path:
    return given / "model.safetensors" if given.is_dir() else given


def predict(model: Path, data: str, out: Path | None, *, force: bool = False) -> Table:
    """Predict a file's rows by a saved model and write them as CSV (standard output without ``out``)."""
    if out is not None and out.exists() and not force:
        raise InvalidInput(f"The file {out} exists already. Choose another --out, or --force to replace it.")
    loaded = load(_model_file(model))
    table = read_table(data)
    wanted = [str(name) for name in getattr(loaded, "feature_names_in_", table.names)]
    missing = [name for name in wanted if name not in table.names]
    if missing:
        expected = "all columns of training"
        got = f"none named {', '.join(map(repr, missing[:5]))}"
        raise invalid("data", "sparsebnn predict", expected, got, "Check the header line.")
    inputs = table.of_columns([table.names.index(name) for name in wanted])
    columns = {"row": list(range(1, len(table) + 1)), **recording.predictions(loaded, inputs)}
    if out is None:
        _rows(sys.stdout, columns)
    else:
        _write_csv(out, columns)
    return inputs


def info(model: Path) -> tuple[dict[str, Any], str]:
    """What a saved model says of itself: its header and its summary."""
    path = _model_file(model)
    return storing.header(path), load(path).summary()
