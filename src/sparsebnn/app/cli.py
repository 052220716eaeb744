"""The ``sparsebnn`` command: parse options, call the work, print. No numerics."""

from __future__ import annotations

import contextlib
import inspect
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import sparsebnn
from sparsebnn.checks import InvalidInput, invalid, printable
from sparsebnn.io.storage import StorageError

__all__ = ["main", "one_line_errors"]

_UNEXPECTED = 70  # EX_SOFTWARE of sysexits.h
_NOT_RECORDED = ("force", "json_", "quiet", "debug")  # options that do not change the model
_MEASURES = {"nll": "log-loss", "ece": "calib. error", "r2": "R²", "rmse": "RMSE", "brier": "Brier score"}


@contextlib.contextmanager
def one_line_errors(debug: bool = False) -> Iterator[None]:
    """Print errors that the user can fix in one line, status 1; an interrupt has status 130."""
    try:
        yield
    except KeyboardInterrupt as error:
        print(f"\n{printable(error) or 'Interrupted.'}", file=sys.stderr)
        raise SystemExit(130) from error
    except (InvalidInput, StorageError, ImportError, FloatingPointError, OSError) as error:
        if debug:
            raise
        print(f"Error: {printable(error)}", file=sys.stderr)
        raise SystemExit(1) from error


@contextlib.contextmanager
def _all_errors_in_one_line(debug: bool) -> Iterator[None]:
    """Unexpected errors, too, with status 70; ``debug`` shows their traceback instead."""
    try:
        with one_line_errors(debug):
            yield
    except Exception as error:
        if debug:
            raise
        why = printable(" ".join(str(error).split()))
        print(f"Error: {type(error).__name__}: {why} (--debug shows the traceback)", file=sys.stderr)
        raise SystemExit(_UNEXPECTED) from error


def _app() -> Any:
    import typer

    app = typer.Typer(
        name="sparsebnn",
        help="Sparse Bayesian neural networks for tables: fit, predict, export, report.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    debugging = typer.Option(False, "--debug", help="Show the traceback of an error.")
    as_json = typer.Option(False, "--json", help="Print JSON.")
    saved = typer.Argument(..., help="A run folder, or its model.safetensors.")

    def version(wanted: bool) -> None:
        if wanted:
            print(f"sparsebnn {sparsebnn.__version__}")
            raise typer.Exit

    @app.callback()
    def options(
        _: bool = typer.Option(
            False, "--version", callback=version, is_eager=True, help="Print the version."
        ),
    ) -> None: ...

    @app.command()
    def fit(
        data: str = typer.Argument(
            ..., help="A .csv, .tsv, .csv.gz, .xlsx, .parquet or .npz file; - reads CSV from standard input."
        ),
        target: str = typer.Option(None, help="The column to predict."),
        time: str = typer.Option(None, help="For survival: the column of times until the event or the end."),
        event: str = typer.Option(None, help="For survival: the column with 1 for an event, 0 for censored."),
        entry: str = typer.Option(
            None, help="For survival: the column of times of entry, if rows enter late."
        ),
        out: Path = typer.Option(Path("run"), help="The run folder: model, predictions, record, report."),
        task: str = typer.Option("auto", help="classification or regression; auto looks at the target."),
        likelihood: str = typer.Option(
            "auto",
            help="For example poisson (counts), student_t (outliers), ordinal (ordered classes).",
        ),
        drop: list[str] = typer.Option([], help="A column to leave out; may be repeated."),
        id_: list[str] = typer.Option(
            [], "--id", help="A column that names the rows: left out, copied to predictions."
        ),
        numeric: list[str] = typer.Option([], help="A column to read as numbers."),
        categorical: list[str] = typer.Option(
            [], help="A column to read as categories, also if it holds numbers."
        ),
        family: str = typer.Option(
            "spike_slab", help="spike_slab; flow (slower); concrete; gaussian (not sparse)."
        ),
        epochs: int = typer.Option(None, help="Passes over the data (default: until training converges)."),
        time_budget: float = typer.Option(None, help="Limit for fitting the model, in seconds."),
        replicates: int = typer.Option(8, help="Number of networks to train and average."),
        test_share: float = typer.Option(0.2, help="Share of rows held out for the measures."),
        tune: int = typer.Option(0, help="Trials of a search over settings; rerun to continue it."),
        device: str = typer.Option("auto", help="auto, cpu or cuda."),
        seed: int = typer.Option(0, help="Random seed."),
        force: bool = typer.Option(False, "--force", help="Replace an existing run."),
        json_: bool = as_json,
        quiet: bool = typer.Option(False, "--quiet", help="Print only errors."),
        debug: bool = debugging,
    ) -> None:
        """Train on a table and measure on held-out rows.

        Examples:

        sparsebnn fit patients.csv --target outcome

        sparsebnn fit houses.csv --target price --task regression --out runs/houses --drop notes
        --categorical zip

        sparsebnn fit trial.csv --time days --event died

        sparsebnn fit claims.csv --target claims --likelihood poisson

        cat patients.csv | sparsebnn fit - --target outcome --json
        """
        command = _command("fit", fit, locals())
        with _all_errors_in_one_line(debug):
            from sparsebnn.app.commands import running, writing

            record = running.fit(
                data,
                target,
                out,
                times=_times(target, time, event, entry),
                task=task,
                likelihood=likelihood,
                test_share=test_share,
                force=force,
                seed=seed,
                command=command,
                quiet=quiet or json_,
                kinds={"drop": drop, "id": id_, "number": numeric, "category": categorical},
                family=family,
                epochs="auto" if epochs is None else epochs,
                time_budget=time_budget,
                replicates=replicates,
                device=device,
                **({"tune": tune} if tune else {}),
            )
            with writing.to_a_reader():
                if json_:
                    print(json.dumps(record))
                elif not quiet:
                    _show(record, out)

    @app.command()
    def predict(
        model: Path = saved,
        data: str = typer.Argument(..., help="Rows with the columns of training; - reads standard input."),
        out: Path = typer.Option(
            None, help="A .csv, .csv.gz, .tsv or .parquet file (default: standard output)."
        ),
        id_: list[str] = typer.Option(
            [], "--id", help="A column to copy to the predictions; may be repeated."
        ),
        force: bool = typer.Option(False, "--force", help="Replace an existing file."),
        quiet: bool = typer.Option(False, "--quiet", help="Print only errors (and the predictions)."),
        debug: bool = debugging,
    ) -> None:
        """Predict new rows: probabilities and entropy, or means, standard deviations and 90% intervals.

        Columns that the model does not use may be missing, and others are ignored. In CSV files, text that a
        spreadsheet would run as a formula gets a leading apostrophe.

        Example: sparsebnn predict run new.csv --out predictions.csv
        """
        with _all_errors_in_one_line(debug):
            from sparsebnn.app.commands import running

            rows = running.predict(model, data, out, ids=id_, force=force, quiet=quiet)
            if out is not None and not quiet:
                print(f"{rows} rows predicted: {printable(out)}", file=sys.stderr)

    @app.command()
    def export(
        model: Path = saved,
        out: Path = typer.Argument(
            ..., help="A .onnx, .pt2 or .c file, or a folder for the Hugging Face Hub."
        ),
        which: str = typer.Option("average", "--model", help="average; median (the smallest file)."),
        draws: int = typer.Option(
            None, help="Draws of the weights to store (default: as the model predicts)."
        ),
        format_: str = typer.Option("auto", "--format", help="onnx, pt2, c, hub, mlflow; auto: by the name."),
        force: bool = typer.Option(False, "--force", help="Replace an existing file or folder."),
        quiet: bool = typer.Option(False, "--quiet", help="Print only errors."),
        debug: bool = debugging,
    ) -> None:
        """Write a model as a file that predicts without sparsebnn.

        Example: sparsebnn export run model.onnx
        """
        with _all_errors_in_one_line(debug):
            from sparsebnn.app.commands import running, writing

            written = running.export(model, out, model=which, n_draws=draws, format=format_, overwrite=force)
            with writing.to_a_reader():
                for path, size in written if not quiet else ():
                    print(f"{printable(path)}: {size / 1000:,.0f} kB")

    @app.command()
    def info(
        model: Path = saved,
        json_: bool = as_json,
        formula: bool = typer.Option(False, "--formula", help="Print a small model as an equation."),
        form: str = typer.Option("text", "--as", help="Of the formula: text, latex, sql or sympy."),
        debug: bool = debugging,
    ) -> None:
        """Describe a saved model and the columns it uses.

        Example: sparsebnn info run
        """
        with _all_errors_in_one_line(debug):
            from sparsebnn.app.commands import running, writing

            if formula:
                lines = running.equation(model, form).split("\n")
            else:
                header, summary = running.info(model)
                lines = [json.dumps(header)] if json_ else summary.split("\n")
            with writing.to_a_reader():
                print("\n".join(map(printable, lines)))

    @app.command()
    def report(
        folder: Path = typer.Argument(..., help="A run folder of 'sparsebnn fit'."),
        out: Path = typer.Option(None, help="The file to write (default: report.html in the folder)."),
        quiet: bool = typer.Option(False, "--quiet", help="Print only errors."),
        debug: bool = debugging,
    ) -> None:
        """Write the report of a run folder again: one HTML file that loads nothing.

        Example: sparsebnn report run/ --out report.html
        """
        with _all_errors_in_one_line(debug):
            from sparsebnn.app.commands import writing
            from sparsebnn.app.report import write

            path = write(folder, out)
            with writing.to_a_reader():
                if not quiet:
                    print(printable(path))

    return app


def main() -> None:
    """The ``sparsebnn`` command."""
    try:
        app = _app()
    except ImportError:
        print("Error: the command line needs 'typer': pip install 'sparsebnn[cli]'.", file=sys.stderr)
        raise SystemExit(1) from None
    app()


def _times(target: str | None, time: str | None, event: str | None, entry: str | None) -> Any:
    """The columns of times and events, None if there is a target."""
    from sparsebnn.app.commands.survival import Times

    advice = "Give --target COLUMN, or --time COLUMN and --event COLUMN."
    if target is None and (time is None or event is None):
        raise invalid("target", "sparsebnn fit", "given", "no target", advice)
    if target is None:
        return Times(str(time), str(event), entry)
    if any(each is not None for each in (time, event, entry)):
        raise invalid("target", "sparsebnn fit", "left out for survival", repr(target), advice)
    return None


def _command(name: str, function: Callable[..., None], given: Mapping[str, Any]) -> str:
    """A shell command that repeats this call, without options at their defaults."""
    words = ["sparsebnn", name]
    for option, parameter in inspect.signature(function).parameters.items():
        declared, value = parameter.default, given[option]
        if option in _NOT_RECORDED or value == declared.default:
            continue
        flag = (
            [] if type(declared).__name__ == "ArgumentInfo" else [f"--{option.strip('_').replace('_', '-')}"]
        )
        for each in value if isinstance(value, list) else [value]:
            words += [*flag, str(each)]
    return shlex.join(words)


def _show(record: dict[str, Any], out: Path) -> None:
    """Print the measures as a table, and where the files are."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    data, console = record["data"], Console(highlight=False)

    def say(line: str) -> None:
        console.print(printable(line), markup=False)

    rows = f"{data['train_rows']} rows for training, {data['test_rows']} held out"
    say(f"{record['task'].capitalize()} of {record['target']}: {rows}.")
    models = {"sparsebnn": record["metrics"]["average"], "its sparse model": record["metrics"]["median"]}
    models |= {each["name"]: each["metrics"] for each in record["baselines"]}
    names = list(models["sparsebnn"])
    table = Table("held-out rows", box=SIMPLE_HEAD, pad_edge=False)
    for name in names:
        # A narrow terminal wraps the names of models, not the numbers.
        table.add_column(_MEASURES.get(name, name), no_wrap=True)
    for model, measures in models.items():
        table.add_row(model, *(_cell(measures.get(name)) for name in names))
    console.print(table)
    used = [each["name"] for each in record["inputs"] if each["selected"]]
    listed = ", ".join(used[:8]) + (" …" if len(used) > 8 else "")
    if not used:
        listed = (
            "none is certain, but one of several is (see the report)" if record["credible_sets"] else "none"
        )
    say(f"{record['density']:.1%} of the weights are kept.")
    say(f"Columns in use: {len(used)} of {len(record['inputs'])}: {listed}")
    say(f"Files in {out}/: {', '.join(sorted(p.name for p in out.iterdir()))}.")
    if (out / "report.html").exists():
        say(f"Open {out / 'report.html'} in a browser.")
    say(f"Next: sparsebnn predict {out} new.csv; sparsebnn info {out}")


def _cell(measure: dict[str, float] | None) -> str:
    if measure is None or measure["value"] is None:
        return "–"
    return f"{measure['value']:.3f}\n({measure['low']:.3f}–{measure['high']:.3f})"
