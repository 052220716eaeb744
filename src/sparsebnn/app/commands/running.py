"""The commands ``fit``, ``predict`` and ``info``, from files to files, and the progress line of ``fit``."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import re
import statistics
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsebnn.app import report
from sparsebnn.app.commands import recording, survival, writing
from sparsebnn.app.commands.reading import (
    DATA,
    as_note,
    column_kinds,
    column_notes,
    identifiers,
    joined,
    load_polars,
    matched,
    new_levels,
    read_blocks,
    read_table,
    strange_levels,
)
from sparsebnn.app.commands.splitting import Problem, posed
from sparsebnn.app.provenance import commit, rounded, versions
from sparsebnn.checks import check_choice, check_count, invalid, printable
from sparsebnn.estimators import (
    SparseBNNClassifier,
    SparseBNNRegressor,
    SparseBNNSurvival,
    Table,
    load,
    persistence,
    plan,
)
from sparsebnn.io.storage import StorageError
from sparsebnn.training import Callback, Epoch, Interrupted, Run

__all__ = ["Stages", "export", "fit", "info", "predict", "stages"]

_MOST_SEED = 2**32 - 1  # NumPy's limit
_FIT = "sparsebnn fit"
_LIKELIHOODS = {
    "gaussian": "regression",
    "student_t": "regression",
    "poisson": "regression",
    "negative_binomial": "regression",
    "zero_inflated_poisson": "regression",
    "zero_inflated_negative_binomial": "regression",
    "ordinal": "classification",
    "noisy_categorical": "classification",
}


def fit(
    data: str,
    target: str | None,
    out: Path,
    *,
    times: survival.Times | None = None,
    task: str = "auto",
    likelihood: str = "auto",
    test_share: float = 0.2,
    force: bool = False,
    seed: int = 0,
    command: str = "",
    quiet: bool = False,
    kinds: Mapping[str, Sequence[str]] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train on the rows of a file, measure on held-out rows, write the run folder, return its record.

    ``kinds`` are columns by how they are read: "drop", "id", "number", "category".
    """
    tune = settings.pop("tune", 0)
    _check(task, test_share, seed, settings)
    if likelihood != "auto":
        task = _task_of(likelihood, task, times)
        settings["likelihood"] = likelihood
    writing.check_folder(out, force, data)
    try:
        with stages(quiet) as shown:
            with column_notes() as named:
                table = read_table(data, target=target if times is None else times.time)
            if times is not None:
                problem = survival.posed(table, times, test_share, seed)
            else:
                problem = posed(table, target or "", task, test_share, seed)
            problem = dataclasses.replace(problem, notes=(*named, *problem.notes))
            settings["column_kinds"] = column_kinds(kinds or {}, problem.target, problem.inputs.columns)
            _print_notes(problem.notes, quiet)
            if tune:
                settings |= _tuned(problem, seed, settings, tune, out, shown)
            model, notes = _fitted(problem, seed, shown, settings)
            _print_notes(notes, quiet)
            name = "standard input" if data == "-" else Path(data).name
            record = recording.record(model, problem, name, seed)
            record["notes"] += notes
            record |= {"command": command, "commit": commit(), "versions": versions()}
            record = rounded(record, digits=8)
            if shown is not None:
                shown.say("writing")
            writing.write_folder(out, lambda folder: _fill(folder, model, problem, record))
    except KeyboardInterrupt as error:
        why = f"Interrupted. Nothing was written to {out}."
        raise Interrupted(f"{why} --time-budget or --epochs make a fit shorter.") from error
    return record


def _check(task: str, test_share: float, seed: int, settings: dict[str, Any]) -> None:
    """Check all options before the data are read."""
    check_choice(task, ("auto", "classification", "regression"), "task", _FIT)
    if not 0.0 < test_share < 1.0:
        raise invalid("test-share", _FIT, "strictly between 0 and 1", test_share)
    if not 0 <= seed <= _MOST_SEED:
        raise invalid("seed", _FIT, f"between 0 and {_MOST_SEED}", seed)
    _check_device(str(settings.get("device", "auto")))
    if settings.get("time_budget") is not None:
        plan.positive(settings["time_budget"], "time-budget", _FIT, "positive seconds")
    # Making a plan checks the other settings; the number of rows does not matter here.
    plan.planned({**SparseBNNClassifier().get_params(), **settings}, 1000, "classification", _FIT)


def _task_of(likelihood: str, task: str, times: Any) -> str:
    """The task that a likelihood is for."""
    check_choice(likelihood, ("auto", *_LIKELIHOODS), "likelihood", _FIT)
    if times is not None:
        raise invalid("likelihood", _FIT, "left out for survival", repr(likelihood))
    if task not in ("auto", _LIKELIHOODS[likelihood]):
        raise invalid("likelihood", _FIT, f"one for {task}", repr(likelihood), "Leave --task out.")
    return _LIKELIHOODS[likelihood]


def _check_device(device: str) -> None:
    if re.fullmatch(r"cuda(:\d+)?", device) is None:
        check_choice(device, ("auto", "cpu", "cuda"), "device", _FIT)
    elif int(device[5:] or 0) >= torch.cuda.device_count():
        got = f"{device!r}, of which PyTorch finds {torch.cuda.device_count()},"
        raise invalid("device", _FIT, "an available device", got, "Use --device auto.")


def _print_notes(notes: Sequence[str], quiet: bool) -> None:
    for note in notes if not quiet else ():
        print(f"Note: {printable(note)}.", file=sys.stderr)


def _tuned(
    problem: Problem, seed: int, settings: dict[str, Any], trials: int, out: Path, shown: Stages | None
) -> dict[str, Any]:
    """The settings that a search found, which keeps its trials next to the run folder."""
    from sparsebnn.app import tuning

    if shown is not None:
        shown.say(f"trying {trials} settings")
    if problem.task not in ("classification", "regression"):
        raise invalid("tune", _FIT, "left out where the target is a time", trials)
    kind = SparseBNNClassifier if problem.task == "classification" else SparseBNNRegressor
    check_count(trials, "tune", _FIT)
    storage = out.with_name(f"{out.name}.tune.db")
    storage.parent.mkdir(parents=True, exist_ok=True)
    rows = problem.inputs[problem.training], problem.y[problem.training]
    return tuning.search(kind(random_state=seed, **settings), *rows, trials, seed, storage)


def _fitted(
    problem: Problem, seed: int, shown: Stages | None, settings: dict[str, Any]
) -> tuple[Any, list[str]]:
    """The fitted model, and its notes on columns that are not used and on the training."""
    kinds = {"classification": SparseBNNClassifier, "survival": SparseBNNSurvival}
    model = kinds.get(problem.task, SparseBNNRegressor)(random_state=seed, **settings)
    model._watchers = [] if shown is None else [shown]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the notes have the same text
        model.fit(problem.inputs[problem.training], problem.y[problem.training])
    del model._watchers
    notes = [as_note(note) for note in getattr(model, "notes_", ())]
    for column in model._encoder.columns:
        if column.kind == "dropped" and not any(repr(column.name) in note for note in notes):
            notes.append(f"column {column.name!r} is left out: {column.note}")
    return model, notes


def _fill(folder: Path, model: Any, problem: Problem, record: dict[str, Any]) -> None:
    model.save(folder / "model.safetensors")
    _write_predictions(folder / "predictions.csv", model, problem)
    text = json.dumps(record, indent=1, allow_nan=False)
    (folder / "record.json").write_text(text + "\n", encoding="utf-8")
    _report(folder)


def _report(folder: Path) -> None:
    """Write the report if jinja2 is installed."""
    if importlib.util.find_spec("jinja2") is not None:
        report.write(folder)


def _write_predictions(path: Path, model: Any, problem: Problem) -> None:
    held = problem.inputs[problem.test]
    made = {**_truth(problem.y[problem.test]), **recording.predictions(model, held)}
    numbered = {"row": (problem.rows[problem.test] + 1).tolist()}
    writing.write_csv(path, joined(numbered, identifiers(model, held, ()), made))


def _truth(y: np.ndarray) -> dict[str, list[Any]]:
    """One column, or those of times and events."""
    return {n: y[n].tolist() for n in y.dtype.names} if y.dtype.names else {"truth": y.tolist()}


def _model_file(given: Path) -> Path:
    return given / "model.safetensors" if given.is_dir() else given


def _loaded(given: Path) -> Any:
    """Load a model and try it, so that a header edited by hand leads to one line here."""
    path = _model_file(given)
    if path.suffix.lower() in DATA:
        expected, advice = "a run folder or its model.safetensors", "Give the model first, then the rows."
        raise invalid("model", "the command", expected, repr(str(given)), advice)
    try:
        model = load(path)
        columns = model._encoder.columns
        names = tuple(map(str, getattr(model, "feature_names_in_", [column.name for column in columns])))
        if len(names) != len(columns):
            raise ValueError(f"{len(names)} names of {len(columns)} columns")
        recording.predictions(model, load_polars().DataFrame({name: [None] for name in names}))
        model.summary()
    except (StorageError, ImportError, OSError):
        raise
    except Exception as error:  # a wrong value can raise anything
        why = " ".join(str(error).split()).rstrip(".")
        raise StorageError(f"{path} is damaged ({type(error).__name__}: {why}). Fit again.") from error
    return model


def predict(
    model: Path,
    data: str,
    out: Path | None,
    *,
    ids: Sequence[str] = (),
    force: bool = False,
    quiet: bool = False,
) -> int:
    """Predict the rows of a file with a saved model; write to ``out`` or, as CSV, to standard output.

    ``ids`` are columns to copy to the predictions; by default those that training recognized as
    identifiers. The file may be larger than the memory. Returns the number of rows.
    """
    if out is not None:
        writing.check_file(out, force)
    loaded = _loaded(model)
    columns = loaded._encoder.columns
    rows, found = 0, [Counter[str]() for _ in columns]
    notes: dict[str, None] = {}
    with column_notes() as named, writing.opened_rows(out) as write:
        for table in read_blocks(data):
            inputs, more = matched(loaded, table)
            notes |= dict.fromkeys(more)
            for levels, column, values in zip(found, columns, Table.of(inputs).values):
                levels.update(strange_levels(column, values))
            numbered = {"row": list(range(rows + 1, rows + len(table) + 1))}
            made = joined(numbered, identifiers(loaded, table, ids), recording.predictions(loaded, inputs))
            try:
                write(_for_terminal(made) if out is None and sys.stdout.isatty() else made)
            except BrokenPipeError:
                writing.discard_output()  # the reader has closed the pipe (``| head``)
                return rows
            rows += len(table)
            if out is not None and not quiet and sys.stderr.isatty():
                print(f"\r{rows} rows", end="\r", file=sys.stderr, flush=True)
    _print_notes([*named, *notes, *new_levels(columns, found, rows)], quiet=False)
    return rows


def export(saved: Path, out: Path, **options: Any) -> list[tuple[Path, int]]:
    """Write a saved model as a file that predicts without sparsebnn; returns what was written, with sizes."""
    from sparsebnn.deploy import export as write

    path = write(_loaded(saved), out, **options)
    written = [path, path.with_suffix(".h")] if path.suffix == ".c" else [path]
    return [
        (each, sum(f.stat().st_size for f in (each.rglob("*") if each.is_dir() else [each])))
        for each in written
    ]


def _for_terminal(columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Columns without control characters."""
    return {
        printable(name): [printable(cell) if isinstance(cell, str) else cell for cell in cells]
        for name, cells in columns.items()
    }


def info(model: Path) -> tuple[dict[str, Any], str]:
    """The header and the summary of a saved model."""
    summary = _loaded(model).summary()
    return persistence.header(_model_file(model)), summary


def equation(model: Path, form: str) -> str:
    """A saved model as a formula: ``text``, ``latex``, ``sql`` or ``sympy``."""
    from sparsebnn.deploy import formula

    check_choice(form, ("text", "latex", "sql", "sympy"), "--as", "info")
    found = formula(_loaded(model))
    if form in ("text", "latex"):
        return str(found if form == "text" else found.latex(6))
    written = found.sql() if form == "sql" else found.sympy()
    return "\n".join(f"{name} = {each}" for name, each in written.items())


class Stages(Callback):
    """One line on a terminal."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress
        self.task = progress.add_task("reading", total=None, figures="")

    def say(self, what: str) -> None:
        """Show a stage of unknown length."""
        self.progress.reset(self.task, total=None, description=what, figures="")

    def on_train_start(self, run: Run) -> None:
        self.progress.reset(self.task, total=run.settings.epochs, description="training", figures="")

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        nll = statistics.fmean(epoch.nll) / run.batches.rows
        figures = f"nll {nll:.3f}  density {statistics.fmean(epoch.density):.2f}"
        self.progress.update(self.task, completed=epoch.epoch + 1, figures=figures)

    def on_train_end(self, run: Run) -> None:
        self.say("measuring")


@contextlib.contextmanager
def stages(quiet: bool, console: Any = None) -> Iterator[Stages | None]:
    """The line, on standard error, removed at the end; None if quiet or without a terminal."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
    except ImportError:
        yield None
        return
    console = console or Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = ("{task.description}", BarColumn(), TextColumn("{task.fields[figures]}"), TimeRemainingColumn())
    with Progress(SpinnerColumn(), *columns, console=console, transient=True) as progress:
        yield Stages(progress)
