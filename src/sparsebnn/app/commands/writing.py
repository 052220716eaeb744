"""Write run folders and CSV files completely or not at all; check that before the work starts."""

from __future__ import annotations

import contextlib
import csv
import gzip
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsebnn.app.commands.reading import load_polars
from sparsebnn.checks import InvalidInput, invalid
from sparsebnn.io.files import atomic_write

__all__ = [
    "FILES",
    "as_text",
    "check_file",
    "check_folder",
    "discard_output",
    "opened_rows",
    "to_a_reader",
    "write_csv",
    "write_folder",
    "write_parquet",
    "write_rows",
]

# How a formula begins in a spreadsheet, including the full-width forms of East Asian keyboards.
_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?([0-9]+([.,][0-9]*)?|[.,][0-9]+)([eE][+-]?[0-9]+)?")
FILES = ("model.safetensors", "predictions.csv", "report.html", "record.json")


@contextlib.contextmanager
def to_a_reader() -> Iterator[None]:
    """Print until the reader closes the pipe (``| head``), which is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Keep Python from flushing the rest into a closed pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_folder(out: Path, force: bool, data: str) -> None:
    """Check that the run folder can be written and that nothing but an older run would be replaced."""
    if out.exists():
        if not force:
            advice = "Choose another --out, or --force to replace it."
            raise InvalidInput(f"The folder {out} exists already. {advice}")
        if not out.is_dir() or (any(out.iterdir()) and not (out / "record.json").exists()):
            advice = "Choose another --out."
            raise invalid("out", "sparsebnn fit", "a run folder", str(out), advice)
        if data != "-" and Path(data).resolve() in [(out / name).resolve() for name in FILES]:
            advice = "Choose another --out, or copy the file first."
            raise invalid("data", "sparsebnn fit", f"a file that is not replaced in {out}", data, advice)
    _try(_temporary(out), f"The folder {out}")


def check_file(out: Path, force: bool) -> None:
    """Check that the file can be written."""
    if out.is_dir():
        raise InvalidInput(f"{out} is a folder. Give --out the name of a file.")
    if out.exists() and not force:
        raise InvalidInput(f"The file {out} exists already. Choose another --out, or --force to replace it.")
    _try(_temporary(out), f"The file {out}")


def _temporary(path: Path) -> Path:
    """An unused name inside the folder ``path``, or next to ``path`` if it does not exist."""
    if path.is_dir():
        return path / f".{secrets.token_hex(4)}"
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def _try(partial: Path, what: str) -> None:
    """Create and remove a folder: finds missing permissions, names that are too long, read-only disks."""
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
    """Write the run folder; replace an older run once all new files exist, and keep other files."""
    partial = _temporary(out)
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
    """Write columns as a CSV file."""
    with opened_rows(path) as write:
        write(columns)


@contextlib.contextmanager
def opened_rows(path: Path | None) -> Iterator[Callable[[Mapping[str, Sequence[Any]]], None]]:
    """A function that writes blocks of rows to a file, which takes its place when it is complete.

    The name of the file decides: ``.parquet``, compressed ``.csv.gz``, tabs in ``.tsv``, otherwise CSV.
    Without a path, CSV goes to standard output.
    """
    if path is None:
        yield _TextBlocks(sys.stdout, ",")
        return
    name = path.name.lower()
    if path.suffix and not name.endswith((".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")):
        raise invalid("out", "predict", "a .csv, .csv.gz, .tsv or .parquet file", repr(path.name))
    with atomic_write(path) as partial:
        if name.endswith(".parquet"):
            blocks: list[Mapping[str, Sequence[Any]]] = []
            yield blocks.append
            write_parquet(partial, blocks)
            return
        compressed = name.endswith(".gz")
        opener: Any = gzip.open if compressed else open
        separator = "\t" if name.removesuffix(".gz").endswith(".tsv") else ","
        with opener(partial, "wt", newline="", encoding="utf-8") as file:
            yield _TextBlocks(file, separator)


class _TextBlocks:
    """Blocks of rows as text, after one header."""

    def __init__(self, file: Any, separator: str) -> None:
        self.file, self.separator, self.first = file, separator, True

    def __call__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        write_rows(self.file, columns, self.first, self.separator)
        self.first = False
        self.file.flush()


def write_parquet(path: Path, blocks: Sequence[Mapping[str, Sequence[Any]]]) -> None:
    """Write blocks of columns as one Parquet file; cells keep their types and need no apostrophes."""
    polars = load_polars()
    frames = [polars.DataFrame(dict(block), strict=False) for block in blocks]
    polars.concat(frames, how="vertical_relaxed").write_parquet(path)


def write_rows(
    file: Any, columns: Mapping[str, Sequence[Any]], header: bool = True, separator: str = ","
) -> None:
    """Write a header and the rows, all text through :func:`as_text`."""
    writer = csv.writer(file, delimiter=separator)
    if header:
        writer.writerow(map(as_text, columns))
    writer.writerows([as_text(cell) for cell in row] for row in zip(*columns.values()))


def as_text(cell: Any) -> Any:
    """Prefix text that a spreadsheet would run as a formula with an apostrophe.

    Numbers, also as text, are unchanged. To read the text back, remove one apostrophe where apostrophes are
    followed by one of ``= + - @``, a tab or a line end; nothing is lost.

    >>> as_text("=1+1"), as_text("'=1"), as_text("it's"), as_text("-3.5"), as_text(-3.5)
    ("'=1+1", "''=1", "it's", '-3.5', -3.5)
    """
    formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if formula else cell
