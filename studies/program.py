"""What studies share as programs: how they end (a mistake is told in one line), and options that count."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from sparsebnn.app.cli import one_line_errors

__all__ = ["count", "one_line_errors", "run_as_program"]


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
