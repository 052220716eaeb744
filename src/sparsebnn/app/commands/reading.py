"""Files of rows to tables: CSV (also from standard input), Parquet, NumPy archives."""

from __future__ import annotations

import csv
import io
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparsebnn.checks import InvalidInput, invalid
from sparsebnn.estimators.encoding import Table, names_apart
from sparsebnn.estimators.parsing import absent, label, number_form

__all__ = ["DATA", "GAPS", "read_table", "spellings"]

GAPS = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
_GAPS_OF_TARGET = frozenset({"", "nan"})  # "none" and "?" may be classes
_TEXT = (".csv", ".tsv", ".txt", "")
DATA = (".csv", ".tsv", ".txt", ".parquet", ".npz")


def read_table(source: str, *, target: str | None = None, words: Collection[str] = ()) -> Table:
    """The table in a file, or on standard input for ``-``.

    A column of a CSV file is numeric if every cell is a number. ``words`` names columns that are categories
    whatever they look like, so that a row means the same in every file. In ``target`` only an empty cell is
    missing, and numbers that would be written differently (1.0, 2.50, 007) stay as they are.
    """
    if source == "-":
        return _parse(sys.stdin.buffer.read(), "standard input", target, words)
    path = Path(source)
    if not path.exists():
        raise InvalidInput(f"There is no file {source}. Check the path.")
    if path.is_dir():
        raise InvalidInput(f"{source} is a folder. Give a .csv, .parquet or .npz file.")
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _npz(path, target)
    if suffix == ".parquet":
        return _parquet(path)
    if suffix not in _TEXT:
        expected = "a .csv, .tsv, .parquet or .npz file"
        raise invalid("data", "sparsebnn", expected, repr(path.name), "Convert it first.")
    return _parse(path.read_bytes(), source, target, words)


def _not_csv(name: str, why: str, advice: str = "") -> InvalidInput:
    return InvalidInput(f"{name} cannot be read as CSV: {why}. {advice}".rstrip())


def _no_rows(name: object) -> InvalidInput:
    return InvalidInput(f"{name} has a header and no rows. Give at least one row.")


def _named(names: Sequence[str], target: str | None) -> tuple[str, ...]:
    """Names told apart; the target's must be that of one column in the file itself."""
    if target is not None and names.count(target) > 1:
        advice = "Rename the columns of that name."
        got = f"{target!r}, twice or more,"
        raise invalid("target", "sparsebnn fit", "the name of one column", got, advice)
    return tuple(names_apart(names))


def _parse(content: bytes, name: str, target: str | None, words: Collection[str]) -> Table:
    if b"\x00" in content:
        raise _not_csv(name, "it holds binary data", "Give a text file of rows with a header line.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    if not text.strip():
        raise InvalidInput(f"{name} is empty. Give a file with a header line and rows.")
    text, delimiter = _separated(text)
    reader = csv.reader(io.StringIO(text, newline=None), delimiter=delimiter)  # a lone \r ends a line too
    try:
        # A line with nothing on it is no row; one of empty cells is.
        lines = [row for row in reader if len(row) > 1 or any(map(str.strip, row))]
    except csv.Error as error:
        advice = "Check the file's quotes: one may not be closed."
        raise _not_csv(name, f"line {reader.line_num}: {error}", advice) from error
    header, body = [cell.strip() for cell in lines[0]], lines[1:]
    if not body:
        raise _no_rows(name)
    for number, row in enumerate(body, start=2):
        if len(row) != len(header):
            why = f"row {number} has {len(row)} cells and the header {len(header)}"
            raise _not_csv(name, why, "Check that cell and the file's quotes and separators.")
    names = _named([cell or f"column {i}" for i, cell in enumerate(header, start=1)], target)
    columns = []
    for i, own in enumerate(names):
        gaps = _GAPS_OF_TARGET if own == target else GAPS
        column = [row[i] for row in body]
        columns.append(_column(column, gaps, own in words, delimiter == ";", written=own == target))
    return Table(names, tuple(columns), (False,) * len(columns))


def _separated(text: str) -> tuple[str, str]:
    """The text, and what stands between its cells: what is most frequent in the header outside quotes.

    Excel may say so in a line of its own before the header.

    >>> _separated('"size, cm, wet";b;y')[1], _separated("sep=;\\na;b")
    (';', ('a;b', ';'))
    """
    said = re.match(r"\s*sep=([,;\t|])(?:\r\n|\r|\n)", text)
    if said is not None:
        return text[said.end() :], said[1]
    header = re.sub(r'"[^"]*"', "", text.lstrip()).splitlines() or [""]
    return text, max(",;\t|", key=header[0].count)


def _column(
    cells: list[str], gaps: Collection[str], words: bool, comma: bool, written: bool = False
) -> np.ndarray:
    """Numbers where all that is there is a number; else words, None where missing.

    >>> _column(["1,5", "", "2"], GAPS, False, True).tolist()
    [1.5, nan, 2.0]
    """
    stripped = [cell.strip() for cell in cells]
    present = [None if word.lower() in gaps else word for word in stripped]
    there = [word for word in present if word is not None]
    if not words and not (written and _spelled_otherwise(there)):
        try:
            return np.array([np.nan if word is None else _number(word, comma) for word in present])
        except ValueError:
            pass
    found = np.empty(len(present), dtype=object)
    found[:] = present
    return found


def _spelled_otherwise(words: Sequence[str]) -> bool:
    """Whether these are numbers, none with a decimal comma, that would not be written like this again."""
    try:
        return any(label(float(word)) != word for word in words)
    except ValueError:
        return False


def _number(word: str, comma: bool) -> float:
    """Where semicolons stand between the cells, a comma stands in the numbers."""
    if "_" in word:
        raise ValueError("2000_01 is a word, though Python reads a number")
    return float(word.replace(",", ".") if comma else word)


def _npz(path: Path, target: str | None) -> Table:
    try:
        opened = np.load(path, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise ValueError("it holds one array without a name")
        with opened as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"{path} cannot be read as .npz: {error}. Save plain arrays by name.") from error
    names: list[str] = []
    values: list[np.ndarray] = []
    for name, array in arrays.items():
        if array.size == 0:
            raise InvalidInput(f"{path} has no rows in {name!r}. Give at least one row.")
        flat = array.reshape(len(array), -1) if array.ndim else array.reshape(1, 1)
        many = flat.shape[1] > 1
        names += [f"{name}{i}" if many else name for i in range(flat.shape[1])]
        values += list(flat.T)
    if not values or len({len(v) for v in values}) != 1:
        raise InvalidInput(f"{path} must hold arrays with the same number of rows.")
    return Table(_named(names, target), tuple(values), (False,) * len(values))


def _parquet(path: Path) -> Table:
    """By polars, which reads Parquet on its own, or by pandas with pyarrow: whichever is there."""
    for reader in (_by_polars, _by_pandas):
        try:
            found = reader(path)
        except ImportError:
            continue
        if not len(found):
            raise _no_rows(path)
        return found
    raise ImportError("Reading .parquet needs polars: pip install 'sparsebnn[parquet]'")


def _by_polars(path: Path) -> Table:
    import polars

    try:
        # Bytes, not the path: a path with brackets or stars would be taken for a pattern.
        return Table.of(polars.read_parquet(io.BytesIO(path.read_bytes())))
    except (polars.exceptions.PolarsError, OSError, ValueError) as error:
        raise _not_parquet(path, error) from error


def _by_pandas(path: Path) -> Table:
    import pandas

    try:
        return Table.of(pandas.read_parquet(path))
    except (ValueError, OSError) as error:
        raise _not_parquet(path, error) from error


def _not_parquet(path: Path, error: Exception) -> InvalidInput:
    why = (str(error).splitlines() or [""])[0].rstrip(".")
    return InvalidInput(f"{path} cannot be read as Parquet: {why}. Write it again, or give a .csv file.")


def spellings(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Labels in one spelling each, and notes on those that were joined.

    Labels that differ in capitals and surrounding blanks only are one class, in its most frequent spelling;
    so are numbers of one value (1 and 1.0), unless some have leading zeros (1 and 001).

    >>> spellings(np.array(["Yes", "yes", "no", "Yes"], dtype=object))
    (array(['Yes', 'Yes', 'no', 'Yes'], dtype=object),
     ["the labels 'Yes', 'yes' are taken as one class: 'Yes'"])
    """
    if values.dtype.kind in "biuf":
        return values, []
    words = [None if absent(v) else str(v).strip() for v in values.tolist()]
    counts = Counter(word for word in words if word is not None)
    padded = any(re.fullmatch(r"0\d+", word) for word in counts)
    numeric = number_form(list(counts)) == "" and not padded
    groups: dict[str | float, list[str]] = {}
    for word in sorted(counts, key=lambda w: (-counts[w], w)):
        key = float(word) if numeric else " ".join(word.casefold().split())
        groups.setdefault(key, []).append(word)
    chosen = {word: group[0] for group in groups.values() for word in group}
    joined: Any = np.empty(len(words), dtype=object)
    joined[:] = [None if word is None else chosen[word] for word in words]
    notes = [
        f"the labels {', '.join(map(repr, group))} are taken as one class: {group[0]!r}"
        for group in groups.values()
        if len(group) > 1
    ]
    return joined, notes
