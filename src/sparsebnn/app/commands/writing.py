"""Folders and files that are there whole or not at all, and are tried before the work starts."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsebnn.checks import InvalidInput, invalid
from sparsebnn.io.files import atomic_write

__all__ = ["FILES", "as_text", "check_file", "check_folder", "write_csv", "write_folder", "write_rows"]

# What a spreadsheet takes for the beginning of a formula, the wide forms of East Asian keyboards included.
_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?([0-9]+([.,][0-9]*)?|[.,][0-9]+)([eE][+-]?[0-9]+)?")
FILES = ("model.safetensors", "predictions.csv", "report.html", "record.json")


def check_folder(out: Path, force: bool, data: str) -> None:
    """Before any work starts: may the run folder be written, and is nothing lost but an older run?"""
    if out.exists():
        if not force:
            advice = "Choose another --out, or --force to replace it."
            raise InvalidInput(f"The folder {out} exists already. {advice}")
        if not out.is_dir() or (any(out.iterdir()) and not (out / "record.json").exists()):
            advice = "Choose another --out."
            raise invalid("out", "sparsebnn fit", "a run folder, to be replaced", str(out), advice)
        if data != "-" and Path(data).resolve() in [(out / name).resolve() for name in FILES]:
            advice = "Choose another --out, or copy the file first."
            raise invalid("data", "sparsebnn fit", f"no file that is replaced in {out}", data, advice)
    _try(_beside(out), f"The folder {out}")


def check_file(out: Path, force: bool) -> None:
    """Before any work starts: may the file be written?"""
    if out.is_dir():
        raise InvalidInput(f"{out} is a folder. Give --out the name of a file.")
    if out.exists() and not force:
        raise InvalidInput(f"The file {out} exists already. Choose another --out, or --force to replace it.")
    _try(_beside(out), f"The file {out}")


def _beside(path: Path) -> Path:
    """A name of its own: in the folder where there is one, else beside what is to come."""
    if path.is_dir():
        return path / f".{secrets.token_hex(4)}"
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def _try(partial: Path, what: str) -> None:
    """Permissions, full names, read-only disks: making the folder and taking it away tells them all."""
    made: list[Path] = []
    try:
        made += [each for each in (partial, *partial.parents) if not each.exists()]
        partial.mkdir(parents=True)
    except OSError as error:
        why = error.strerror or error
        raise InvalidInput(f"{what} cannot be written ({why}). Choose another --out.") from error
    finally:
        for each in made:
            with contextlib.suppress(OSError):
                each.rmdir()


def write_folder(out: Path, fill: Callable[[Path], None]) -> None:
    """The run folder; an older run's files are replaced when all new ones are there, other files stay."""
    partial = _beside(out)
    try:
        partial.mkdir(parents=True)
        fill(partial)
        if not out.exists():
            os.replace(partial, out)
            return
        for name in FILES:
            if (partial / name).exists():
                os.replace(partial / name, out / name)
            else:
                (out / name).unlink(missing_ok=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_csv(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Columns as a CSV file."""
    with atomic_write(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        write_rows(file, columns)


def write_rows(file: Any, columns: Mapping[str, Sequence[Any]]) -> None:
    """A header line and the rows; text in both is :func:`as_text`."""
    writer = csv.writer(file)
    writer.writerow(map(as_text, columns))
    writer.writerows([as_text(cell) for cell in row] for row in zip(*columns.values()))


def as_text(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: such text gets an apostrophe in front.

    Numbers, also those in text, stay as they are. To read the text back, take one apostrophe away where
    apostrophes are followed by one of ``= + - @``, a tab or a line end; text that had apostrophes there
    has got another one, so nothing is lost.

    >>> as_text("=1+1"), as_text("'=1"), as_text("it's"), as_text("-3.5"), as_text(-3.5)
    ("'=1+1", "''=1", "it's", '-3.5', -3.5)
    """
    formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if formula else cell
