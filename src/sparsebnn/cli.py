"""The command line: parse, dispatch, print. No numerics here."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sparsebnn
from sparsebnn.checks import check_choice, invalid, printable
from sparsebnn.experiments import STUDIES
from sparsebnn.experiments.program import one_line_errors

__all__ = ["main"]

_WITHOUT_TYPER = (
    "Error: the command line needs 'typer': pip install 'sparsebnn[cli]'. "
    "Every experiment also runs without it: python -m sparsebnn.experiments.demo"
)
_UNFORESEEN = 70  # "software error" of the BSDs' list


@contextlib.contextmanager
def _all_errors_in_a_line(debug: bool) -> Iterator[None]:
    """What the user cannot put right is told in one line too, status 70.

    The traceback comes with ``--debug``.
    """
    try:
        with one_line_errors(debug):
            yield
    except Exception as error:
        if debug:
            raise
        why = printable(" ".join(str(error).split()))
        print(f"Error: {type(error).__name__}: {why} (--debug shows where)", file=sys.stderr)
        raise SystemExit(_UNFORESEEN) from error


def _app() -> Any:
    import typer

    app = typer.Typer(
        name="sparsebnn",
        help=sparsebnn.__doc__,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

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

    # What most people look for comes first in the help.
    from sparsebnn.commands import typed

    typed.register(app, _all_errors_in_a_line)

    @app.command()
    def report(
        folder: Path = typer.Argument(..., help="Run folder, as 'sparsebnn fit' makes it."),
        out: Path = typer.Option(None, help="Where the page goes (default: report.html in the folder)."),
        quiet: bool = typer.Option(False, "--quiet", help="Do not print where it is."),
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    ) -> None:
        """Write a run folder's report: one HTML file that needs no network.

        Example: sparsebnn report run/ --out report.html
        """
        with _all_errors_in_a_line(debug):
            from sparsebnn.report import write

            path = write(folder, out)
            if not quiet:
                print(printable(path))

    @app.command()
    def demo(
        out: Path = typer.Option(Path("runs/demo"), help="Folder for model, picture and figures."),
        seed: int = typer.Option(0, help="Seed of the first of three replicates."),
        epochs: int = typer.Option(100, help="Passes over the data."),
        quiet: bool = typer.Option(False, "--quiet", help="No progress."),
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    ) -> None:
        """Train LBBNN-FLOW on handwritten digits, beside a deterministic network."""
        with _all_errors_in_a_line(debug):
            from sparsebnn.experiments import demo as study

            study.show(study.run(study.Spec(seed=seed, epochs=epochs), out, quiet))

    @app.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
    def reproduce(
        study: str = typer.Argument("", help="Name of the study; without it, the list of all."),
        options: list[str] = typer.Argument(None, help="The study's own options."),
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    ) -> None:
        """Run a study of the paper or of this project: its table, its figure, its result file."""
        with _all_errors_in_a_line(debug):
            _reproduce(study, options or [])

    @app.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
    def tables(
        options: list[str] = typer.Argument(None, help="--results FOLDER, --markdown, --write PAGE …"),
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    ) -> None:
        """Tables 1 and 2 of the paper, its figures beside those in results/."""
        with _all_errors_in_a_line(debug):
            from sparsebnn.experiments import tables as study

            study.main(options or [])

    @app.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
    def frontier(
        options: list[str] = typer.Argument(None, help="--stage …, --datasets …, --methods …"),
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    ) -> None:
        """Accuracy, NLL and calibration against density: seeds and target densities as one program."""
        with _all_errors_in_a_line(debug):
            _reproduce("frontier", options or [])

    @app.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
    def bench(
        options: list[str] = typer.Argument(None, help="The options of python -m benchmarks."),
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    ) -> None:
        """Time steps and predictions beside plain PyTorch and other libraries (in the source checkout)."""
        with _all_errors_in_a_line(debug):
            status = _bench(options or [])
        raise typer.Exit(status)

    return app


def _bench(argv: list[str]) -> int:
    """The benchmarks are part of the source checkout, not of the package: they run from its root."""
    if not Path("benchmarks/__main__.py").is_file():
        advice = "Change to the folder that holds 'benchmarks' and 'src', and call it there."
        raise invalid("folder", "sparsebnn bench", "the root of the source checkout", Path.cwd(), advice)
    return subprocess.run([sys.executable, "-m", "benchmarks", *argv], check=False).returncode


def _reproduce(study: str, argv: list[str]) -> None:
    """Every study keeps its own options: they go to its ``main`` as they came."""
    if study in ("", "--help", "-h"):
        width = max(map(len, STUDIES))
        print("\n".join(f"{name:<{width}}  {shows}" for name, shows in STUDIES.items()))
        print("\nExample: sparsebnn reproduce bound --quick (each study explains its options with --help)")
        return
    check_choice(study, STUDIES, "study", "sparsebnn reproduce")
    importlib.import_module(f"sparsebnn.experiments.{study}").main(argv)


def main() -> None:
    """The ``sparsebnn`` command."""
    try:
        app = _app()
    except ImportError:
        print(_WITHOUT_TYPER, file=sys.stderr)
        raise SystemExit(1) from None
    app()
