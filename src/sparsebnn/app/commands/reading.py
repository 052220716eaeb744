"""Files of rows to polars frames, and new rows next to the columns of training.

Formats are CSV (also compressed or from standard input), Excel, Parquet and NumPy archives.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import re
import sys
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsebnn.checks import InvalidInput, check_choice, invalid
from sparsebnn.estimators.columns import Column, ColumnWarning
from sparsebnn.estimators.encoding import names_apart, shared_names
from sparsebnn.io.cells import MISSING, labels

if TYPE_CHECKING:
    import polars

__all__ = [
    "DATA",
    "as_note",
    "column_kinds",
    "column_notes",
    "identifiers",
    "joined",
    "load_polars",
    "matched",
    "new_levels",
    "read_blocks",
    "read_table",
    "strange_levels",
]

_TEXT = (".csv", ".tsv", ".txt")
_EXCEL = (".xlsx", ".xls", ".xlsb", ".ods")
DATA = (*_TEXT, ".gz", ".parquet", ".npz", *_EXCEL)
_EXPECTED = "a .csv, .tsv, .csv.gz, .xlsx, .parquet or .npz file"
_MOST_UNPACKED = 8 << 30  # bytes of a compressed file


def load_polars() -> Any:
    """The polars module, with a clear message if it is missing."""
    try:
        import polars
    except ImportError as error:
        raise ImportError("Reading tables needs polars: pip install 'sparsebnn[cli]'") from error
    return polars


def read_blocks(source: str, rows: int = 20_000) -> Iterator[polars.DataFrame]:
    """The table in a file, some rows at a time, so that it may be larger than the memory."""
    path = Path(source)
    if source != "-" and path.suffix.lower() == ".parquet" and path.is_file():
        yield from _parquet_blocks(path, rows)
    elif source != "-" and (path.suffix.lower() not in (*_TEXT, ".gz", "") or not path.is_file()):
        yield read_table(source)
    else:
        if source != "-":
            _check_name(path)
        with contextlib.nullcontext(sys.stdin.buffer) if source == "-" else _opened(path) as file:
            yield from _csv_blocks(file, "standard input" if source == "-" else source, rows)


def _csv_blocks(file: Any, name: str, rows: int) -> Iterator[polars.DataFrame]:
    """Each block has the header in front; a cell with line ends in quotes is not divided."""
    head: list[bytes] = []
    block: list[bytes] = []
    quotes, first = 0, True
    for line in file:
        if not line.strip():
            continue
        if not head or (len(head) == 1 and re.match(rb"(\xef\xbb\xbf)?sep=.\s", head[0])):
            head.append(line)
            continue
        block.append(line)
        quotes += line.count(b'"')
        if len(block) >= rows and quotes % 2 == 0:
            yield _csv(b"".join([*head, *block]), name, None)
            block, first = [], False
    if first or block:
        yield _csv(b"".join([*head, *block]), name, None)


def _parquet_blocks(path: Path, rows: int) -> Iterator[polars.DataFrame]:
    polars = load_polars()
    try:
        # glob=False: a path with brackets or stars is not a pattern.
        lazy = polars.scan_parquet(path, glob=False)
        count = lazy.select(polars.len()).collect().item()
        for start in range(0, max(1, count), rows):
            yield _checked(lazy.slice(start, rows).collect(), str(path))
    except (polars.exceptions.PolarsError, OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise _unreadable(path, "Parquet", error) from error


def read_table(source: str, *, target: str | None = None) -> polars.DataFrame:
    """The table in a file, or on standard input for ``-``.

    The cells of a CSV file stay text: the estimator decides once per column whether they are numbers, dates
    or categories, so that a row means the same in every file. In ``target`` only an empty cell is missing.
    """
    if source == "-":
        return _csv(sys.stdin.buffer.read(), "standard input", target)
    path = Path(source)
    if not path.exists():
        raise InvalidInput(f"There is no file {source}. Check the path.")
    if path.is_dir():
        raise InvalidInput(f"{source} is a folder. Give {_EXPECTED}.")
    suffix = _check_name(path)
    if suffix in _EXCEL:
        return _checked(_excel(path, target), source)
    if suffix == ".npz":
        return _npz(path, target)
    if suffix == ".parquet":
        return _checked(_parquet(path), source)
    with _opened(path) as file:
        return _csv(file.read(_MOST_UNPACKED), source, target)


def _check_name(path: Path) -> str:
    """The ending of a file that can be read, in lower case."""
    suffix = path.suffix.lower()
    packed = suffix == ".gz" and Path(path.stem).suffix.lower() not in (*_TEXT, "")
    if suffix not in (*DATA, "") or packed:
        raise invalid("data", "sparsebnn", _EXPECTED, repr(path.name), "Convert it first.")
    return suffix


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The bytes of a file, uncompressed."""
    if path.suffix.lower() != ".gz":
        with path.open("rb") as file:
            yield file
        return
    try:
        with gzip.open(path, "rb") as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _unreadable(path, "a gzip file", error) from error


def _excel(path: Path, target: str | None) -> polars.DataFrame:
    """The first sheet; cells keep their types (numbers, dates, text)."""
    polars = load_polars()
    try:
        import fastexcel
    except ImportError as error:
        advice = "pip install 'sparsebnn[excel]', or save the sheet as CSV"
        raise ImportError(f"Reading {path.name} needs fastexcel: {advice}.") from error
    try:
        frame = polars.read_excel(path, engine="calamine", drop_empty_rows=True, drop_empty_cols=True)
    except (fastexcel.FastExcelError, polars.exceptions.PolarsError, OSError, ValueError) as error:
        raise _unreadable(path, "a spreadsheet", error) from error
    names = _unique([str(name).strip() for name in frame.columns], target)
    return polars.DataFrame(dict(zip(names, frame.get_columns())))


def _checked(frame: polars.DataFrame, name: str) -> polars.DataFrame:
    if not len(frame):
        raise InvalidInput(f"{name} has a header and no rows. Give at least one row.")
    return frame


def _unreadable(name: object, kind: str, why: object) -> InvalidInput:
    first = (str(why).splitlines() or [""])[0].rstrip(".")
    return InvalidInput(f"{name} cannot be read as {kind}: {first}. Correct the file or write it again.")


def _unique(names: list[str], target: str | None) -> list[str]:
    if target is not None and names.count(target) > 1:
        got = f"{target!r}, twice or more,"
        raise invalid("target", "sparsebnn fit", "the name of one column", got, "Rename these columns.")
    for shared in shared_names(names):
        warnings.warn(shared, ColumnWarning, stacklevel=2)
    return names_apart(names)


@contextlib.contextmanager
def column_notes() -> Iterator[list[str]]:
    """What files are read with a warning of, as notes."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ColumnWarning)
        yield found
    found += dict.fromkeys(as_note(str(each.message)) for each in caught)


def as_note(sentence: str) -> str:
    """A sentence as the commands print it behind "Note: "."""
    return f"{sentence[:1].lower()}{sentence[1:].rstrip('.')}"


def _csv(content: bytes, name: str, target: str | None) -> polars.DataFrame:
    polars = load_polars()
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise _unreadable(name, "CSV", "it is UTF-16, not UTF-8")
    if b"\x00" in content:
        raise _unreadable(name, "CSV", "it holds binary data")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    # polars would take an empty line as a row; a line of empty cells is one.
    lines = [line for line in re.split(r"\r\n|\r|\n", text) if line.strip(" ")]
    if not lines:
        raise InvalidInput(f"{name} is empty. Give a file with a header line and rows.")
    excel = re.fullmatch(r"sep=([,;\t|])", lines[0])
    separator = excel[1] if excel else max(",;\t|", key=re.sub(r'"[^"]*"', "", lines[0]).count)
    body = "\n".join(lines[1:] if excel else lines)
    options = {"has_header": False, "infer_schema": False, "separator": separator}
    try:
        rows = polars.read_csv(body.encode(), **options)
    except polars.exceptions.PolarsError as error:
        raise _unreadable(name, "CSV", error) from error
    header = [(cell or "").strip() or f"column {i}" for i, cell in enumerate(rows.row(0), start=1)]
    names = _unique(header, target)
    columns = [column.str.strip_chars() for column in rows[1:]]
    for i, (own, cells) in enumerate(zip(names, columns)):
        gaps = MISSING if own != target else ("", "nan")  # "none" and "?" may be classes
        cells = cells.set(cells.str.to_lowercase().is_in(gaps), None)
        points = cells.str.replace(",", ".", literal=True)
        plain = points.str.strip_suffix("%").str.strip_chars_end().cast(float, strict=False)
        decimal = separator == ";" and plain.null_count() == cells.null_count()
        columns[i] = points if decimal else cells
    return _checked(polars.DataFrame(dict(zip(names, columns))), name)


def _npz(path: Path, target: str | None) -> polars.DataFrame:
    try:
        opened = np.load(path, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise ValueError("it holds one array without a name")
        with opened as archive:
            arrays = {name: np.atleast_1d(archive[name]) for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, ".npz", error) from error
    if len({len(array) for array in arrays.values()}) != 1:
        raise InvalidInput(f"{path} must hold arrays with the same number of rows.")
    columns: list[tuple[str, np.ndarray]] = []
    for name, array in arrays.items():
        flat = array.reshape(len(array), -1) if array.size else np.zeros((0, 1))
        columns += [(f"{name}{i}" if flat.shape[1] > 1 else name, flat[:, i]) for i in range(flat.shape[1])]
    names = _unique([name for name, _ in columns], target)
    return _checked(load_polars().DataFrame(dict(zip(names, (v for _, v in columns)))), str(path))


def _parquet(path: Path) -> polars.DataFrame:
    polars = load_polars()
    try:
        # Bytes, not the path: a path with brackets or stars would be taken for a pattern.
        return polars.read_parquet(io.BytesIO(path.read_bytes()))
    except (polars.exceptions.PolarsError, OSError, ValueError) as error:
        raise _unreadable(path, "Parquet", error) from error


_MOST_WORDS = 5  # named in a note
_NEGLIGIBLE = 0.01  # of the total gain: a column with a smaller share may be missing
_PREDICT = "sparsebnn predict"


def column_kinds(
    kinds: Mapping[str, Sequence[str]], target: str, names: Sequence[str]
) -> dict[str, str] | None:
    """The options ``--drop``, ``--id``, ``--numeric`` and ``--categorical`` as a kind per column."""
    options = {"drop": "drop", "id": "id", "number": "numeric", "category": "categorical"}
    found: dict[str, str] = {}
    for kind, columns in kinds.items():
        for name in columns:
            if name == target:
                advice = "Leave it out, or choose another --target."
                raise invalid(
                    options[kind], "sparsebnn fit", "a column besides the target", repr(name), advice
                )
            check_choice(name, names, options[kind], "sparsebnn fit")
            if found.setdefault(name, kind) != kind:
                first = f"--{options[found[name]]} {name}"
                raise invalid(options[kind], "sparsebnn fit", f"another column than {first}", repr(name))
    return found or None


def matched(model: Any, table: polars.DataFrame) -> tuple[polars.DataFrame, list[str]]:
    """The columns of training, in their order, and notes.

    Other columns are ignored. A missing column that training left out, or that is not in use and without
    value for the predictions (``used_``, ``feature_importances_``), is filled with missing values.
    """
    import polars

    columns = model._encoder.columns
    wanted = [str(name) for name in getattr(model, "feature_names_in_", table.columns)]
    lost = [name not in table.columns for name in wanted]
    needs = model.used_ | (model.feature_importances_ > _NEGLIGIBLE)
    needed = [name for name, gone, need in zip(wanted, lost, needs) if gone and need]
    if needed:
        got = f"no column {', '.join(map(repr, needed[:_MOST_WORDS]))}"
        expected = "a table with the columns that predictions need"
        raise invalid("data", _PREDICT, expected, got, "Check the header line.")
    given = [name for name, gone in zip(wanted, lost) if not gone]
    if not given:
        got = f"none of {', '.join(map(repr, wanted[:_MOST_WORDS]))}"
        raise invalid("data", _PREDICT, "a table with columns of training", got, "Check the header line.")
    read = [n for n, gone, c in zip(wanted, lost, columns) if gone and c.kind != "dropped"]
    notes = []
    if read:
        listed = ", ".join(map(repr, read[:_MOST_WORDS])) + (", …" if len(read) > _MOST_WORDS else "")
        notes.append(f"missing columns with little value count as the average: {listed}")
    filled = [polars.lit(None).alias(name) if gone else polars.col(name) for name, gone in zip(wanted, lost)]
    return table.select(filled), notes


def identifiers(model: Any, table: polars.DataFrame, asked: Sequence[str]) -> dict[str, list[Any]]:
    """Columns that name the rows: those asked for, or those that training recognized."""
    for name in asked:
        check_choice(name, table.columns, "id", _PREDICT)
    own = [c.name for c in model._encoder.columns if c.identifier and c.kind == "dropped"]
    names = list(asked) or [name for name in own if name in table.columns]
    return {name: table[name].to_list() for name in names}


def joined(
    numbered: Mapping[str, list[Any]], ids: Mapping[str, list[Any]], made: Mapping[str, list[Any]]
) -> dict[str, list[Any]]:
    """The columns of a predictions file; an identifier that is named like another of them is renamed.

    >>> joined({"row": [1]}, {"row": ["a"], "id": [7]}, {"prediction": [0.5]})
    {'row': [1], 'row.2': ['a'], 'id': [7], 'prediction': [0.5]}
    """
    fixed = [*numbered, *made]
    names = names_apart([*fixed, *ids])[len(fixed) :]
    return {**numbered, **dict(zip(names, ids.values())), **made}


def strange_levels(column: Column, values: np.ndarray) -> Counter[str]:
    """Levels that training did not have, with their counts; empty if rare levels were left out.

    >>> from sparsebnn.estimators.columns import learn
    >>> column = learn("w", np.array(["Yes", "No", "No"], dtype=object), np.ones(3))
    >>> strange_levels(column, np.array(["yes", "No", "yes"], dtype=object))
    Counter({'yes': 2})
    """
    if column.kind != "category" or column.merged:
        return Counter()
    known = {*column.levels, column.reference}
    return Counter(level for level in labels(values) if level is not None and level not in known)


def new_levels(columns: Sequence[Column], found: Sequence[Counter[str]], rows: int) -> list[str]:
    """Notes on categories that did not occur in training; point out those that differ only in case."""
    notes = []
    for column, levels in zip(columns, found):
        if levels:
            listed = ", ".join(repr(word) for word, _ in levels.most_common(_MOST_WORDS))
            listed += ", …" if len(levels) > _MOST_WORDS else ""
            known = {level.casefold(): level for level in (*column.levels, column.reference) if level}
            slips = [known[word.casefold()] for word in levels if word.casefold() in known]
            meant = f"; {slips[0]!r} did: check upper and lower case" if slips else ""
            new = f"column {column.name!r} has values that did not occur in training"
            notes.append(f"{new}: {listed} (in {levels.total()} of {rows} rows){meant}")
    return notes
