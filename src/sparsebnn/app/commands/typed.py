"""The options of ``fit``, ``predict`` and ``info`` as typer reads them, and what they print."""

from __future__ import annotations

import inspect
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sparsebnn.checks import printable

__all__ = ["register"]

# Options that say what is printed and replaced, not what is learned.
_NOT_IN_THE_COMMAND = ("force", "json_", "quiet", "debug")
_NAMES = {"nll": "log-loss", "ece": "calib. error", "r2": "R²", "rmse": "RMSE", "brier": "Brier score"}


def register(app: Any, one_line_errors: Callable[[bool], AbstractContextManager[None]]) -> None:
    """Add the commands to the application."""
    import typer

    debugging = typer.Option(False, "--debug", help="Show the traceback of an error.")
    as_json = typer.Option(False, "--json", help="Print JSON for machines.")

    @app.command()  # type: ignore[untyped-decorator]
    def fit(
        data: str = typer.Argument(..., help="A .csv, .parquet or .npz file; - is CSV on standard input."),
        target: str = typer.Option(..., help="The column to predict."),
        out: Path = typer.Option(Path("run"), help="The run folder: model, predictions, record, report."),
        task: str = typer.Option("auto", help="classification or regression; auto looks at the target."),
        family: str = typer.Option(
            "spike_slab", help="spike_slab; flow (slower); concrete; gaussian (without sparsity)."
        ),
        epochs: int = typer.Option(None, help="Passes over the data (default: by its size)."),
        time_budget: float = typer.Option(None, help="Seconds that fitting the model may take."),
        replicates: int = typer.Option(5, help="Networks to train and average."),
        test_share: float = typer.Option(0.2, help="Share of the rows held out for the figures."),
        device: str = typer.Option("auto", help="auto, cpu or cuda."),
        seed: int = typer.Option(0, help="Seed of everything random."),
        force: bool = typer.Option(False, "--force", help="Replace an older run in that folder."),
        json_: bool = as_json,
        quiet: bool = typer.Option(False, "--quiet", help="Print nothing but errors."),
        debug: bool = debugging,
    ) -> None:
        """Train on a table and measure on rows held out.

        Examples:

        sparsebnn fit patients.csv --target outcome

        sparsebnn fit houses.csv --target price --task regression --out runs/houses

        cat patients.csv | sparsebnn fit - --target outcome --json
        """
        typed = _command("fit", fit, locals())
        with one_line_errors(debug):
            from sparsebnn.app.commands import running

            record = running.fit(
                data,
                target,
                out,
                task=task,
                test_share=test_share,
                force=force,
                seed=seed,
                command=typed,
                quiet=quiet or json_,
                family=family,
                epochs="auto" if epochs is None else epochs,
                time_budget=time_budget,
                replicates=replicates,
                device=device,
            )
            if json_:
                print(json.dumps(record))
            elif not quiet:
                _show(record, out)

    @app.command()  # type: ignore[untyped-decorator]
    def predict(
        model: Path = typer.Argument(..., help="A run folder, or its model.safetensors."),
        data: str = typer.Argument(..., help="New rows with the columns of training; - is standard input."),
        out: Path = typer.Option(None, help="Where the CSV goes (default: standard output)."),
        force: bool = typer.Option(False, "--force", help="Replace an existing file."),
        quiet: bool = typer.Option(False, "--quiet", help="Print nothing but errors (and the rows)."),
        debug: bool = debugging,
    ) -> None:
        """Predict new rows: probabilities and entropy, or means, deviations and 90% intervals.

        Text that a spreadsheet would take for a formula gets an apostrophe in front.

        Example: sparsebnn predict run new.csv --out predictions.csv
        """
        with one_line_errors(debug):
            from sparsebnn.app.commands import running

            table = running.predict(model, data, out, force=force)
            if out is not None and not quiet:
                print(f"{len(table)} rows predicted: {printable(out)}", file=sys.stderr)

    @app.command()  # type: ignore[untyped-decorator]
    def info(
        model: Path = typer.Argument(..., help="A run folder, or its model.safetensors."),
        json_: bool = as_json,
        debug: bool = debugging,
    ) -> None:
        """What a saved model is and which columns it uses.

        Example: sparsebnn info run
        """
        with one_line_errors(debug):
            from sparsebnn.app.commands import running

            header, summary = running.info(model)
            print(json.dumps(header) if json_ else "\n".join(map(printable, summary.split("\n"))))


def _command(name: str, function: Callable[..., None], given: Mapping[str, Any]) -> str:
    """What was typed, with every option that is not at its default: pasted, it does the same again."""
    words = ["sparsebnn", name]
    for option, parameter in inspect.signature(function).parameters.items():
        declared, value = parameter.default, given[option]
        if option in _NOT_IN_THE_COMMAND or value == declared.default:
            continue
        words += [] if type(declared).__name__ == "ArgumentInfo" else [f"--{option.replace('_', '-')}"]
        words.append(str(value))
    return shlex.join(words)


def _show(record: dict[str, Any], out: Path) -> None:
    """The figures as one table, and where the files are."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    data, console = record["data"], Console(highlight=False)

    def say(line: str) -> None:
        console.print(printable(line), markup=False)

    rows = f"{data['train_rows']} rows to learn from, {data['test_rows']} held out"
    say(f"{record['task'].capitalize()} of {record['target']}: {rows}.")
    figures = {"sparsebnn": record["metrics"]["average"], "its sparse model": record["metrics"]["median"]}
    figures |= {each["name"]: each["metrics"] for each in record["baselines"]}
    names = list(figures["sparsebnn"])
    table = Table("held-out rows", box=SIMPLE_HEAD, pad_edge=False)
    for name in names:
        # A narrow terminal folds the methods' names, not the figures.
        table.add_column(_NAMES.get(name, name), no_wrap=True)
    for method, measures in figures.items():
        table.add_row(method, *(_cell(measures.get(name)) for name in names))
    console.print(table)
    used = [each["name"] for each in record["inputs"] if each["selected"]]
    listed = ", ".join(used[:8]) + (" …" if len(used) > 8 else "") if used else "none"
    say(f"{record['density']:.1%} of the weights are left.")
    say(f"Columns in use: {len(used)} of {len(record['inputs'])}: {listed}")
    say(f"{out}/ holds {', '.join(sorted(p.name for p in out.iterdir()))}.")
    if (out / "report.html").exists():
        say(f"Open {out / 'report.html'} in a browser.")
    say(f"Next: sparsebnn predict {out} new.csv; sparsebnn info {out}")


def _cell(measure: dict[str, float] | None) -> str:
    if measure is None or measure["value"] is None:
        return "–"
    return f"{measure['value']:.3f}\n({measure['low']:.3f}–{measure['high']:.3f})"
