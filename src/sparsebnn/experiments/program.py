"""What studies share as programs: how they end (a mistake is told in one line), and options that count."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from sparsebnn.checks import InvalidInput, printable
from sparsebnn.storage import StorageError

__all__ = ["count", "one_line_errors", "run_as_program"]


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


def run_as_program(main: Callable[[], Any]) -> NoReturn:
    """What ``python -m`` does with a study; an error that nobody foresaw keeps its traceback."""
    with one_line_errors():
        raise SystemExit(main())


def count(text: str) -> int:
    """The type of an option that counts something.

    >>> count("3")
    3
    """
    number = int(text) if text.strip().lstrip("+").isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1. Got {text!r} instead.")
    return number
