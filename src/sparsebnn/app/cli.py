"""The command line: parse, dispatch, print. No numerics here."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sparsebnn
from sparsebnn.checks import InvalidInput, printable
from sparsebnn.io.storage import StorageError

__all__ = ["main", "one_line_errors"]

_WITHOUT_TYPER = "Error: the command line needs 'typer': pip install 'sparsebnn[cli]'."
_UNFORESEEN = 70  # "software error" of the BSDs' list


@contextlib.contextmanager
def one_line_errors(debug: bool = False) -> Iterator[None]:
    """What the user can put right: one line, status 1, or all of it. An interrupt: a line, status 130."""
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
def _all_errors_in_a_line(debug: bool) -> Iterator[None]:
    """Print unexpected errors in one line, too, and exit with status 70.

    ``debug`` shows the traceback instead.
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
    from sparsebnn.app.commands import typed

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
            from sparsebnn.app.report import write

            path = write(folder, out)
            if not quiet:
                print(printable(path))

    return app


def main() -> None:
    """The ``sparsebnn`` command."""
    try:
        app = _app()
    except ImportError:
        print(_WITHOUT_TYPER, file=sys.stderr)
        raise SystemExit(1) from None
    app()
