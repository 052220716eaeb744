"""Files to frames: separators, gaps, decimal commas, and files that cannot be read."""

import io
import pickle
import sys

import numpy as np
import polars as pl
import pytest

from sparsebnn.app.commands.reading import column_notes, read_table
from sparsebnn.app.commands.splitting import posed
from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import Encoder, Table


def read(folder, content, name="d.csv", **options):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_table(str(path), **options)


@pytest.mark.parametrize(
    "text",
    [
        "a,b,y\n1.5,2,u\n",
        "a;b;y\n1,5;2;u\n",
        "a\tb\ty\n1.5\t2\tu\n",
        "a|b|y\n1.5|2|u\n",
        "\ufeffa,b,y\r\n1.5,2,u\r\n",
        "a,b,y\r1.5,2,u\r",
        "a, b ,y\n 1.5, 2,u \n\n  \n",
        '"Größe, cm, x, y, z";b;y\n1,5;2;u\n',
        "sep=;\na;b;y\n1,5;2;u\n",
        "sep=,\r\na,b,y\r\n1.5,2,u\r\n",
    ],
)
def test_separators_and_line_ends(text, tmp_path):
    frame = read(tmp_path, text)
    assert frame.columns[1:] == ["b", "y"]
    assert frame.rows() == [("1.5", "2", "u")]


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a,b\n1,u\n")))
    assert read_table("-").rows() == [("1", "u")]


def test_names_are_told_apart(tmp_path):
    with column_notes() as notes:
        assert read(tmp_path, "x,,x,x.2\n1,2,3,4\n").columns == ["x", "column 2", "x.3", "x.2"]
    assert notes == ["several columns are named 'x': they are read as 'x', 'x.3'"]
    with pytest.raises(InvalidInput, match="'target'"):
        read(tmp_path, "x,y,x\n1,2,3\n", target="x")


def test_words_for_missing_are_missing_but_in_the_target(tmp_path):
    words = ["NA", "n/a", "NaN", "null", "None", "?", '""', ".", "#N/A", "<NA>"]
    frame = read(tmp_path, "a,y\n" + "".join(f"{w},{w}\n" for w in words) + "x,x\n", target="y")
    assert frame["a"].to_list() == [None] * 10 + ["x"]
    assert frame["y"].to_list() == ["NA", "n/a", None, "null", "None", "?", None, ".", "#N/A", "<NA>", "x"]


def test_a_row_of_empty_cells_is_a_row(tmp_path):
    """Else predictions would not be those of their rows; a line with nothing on it is none."""
    rows = [("1", "u"), (None, None), ("3", "v"), ("4", None)]
    assert read(tmp_path, "a,b\n1,u\n,\n\n  \n3,v\n4\n").rows() == rows


def test_decimal_commas_belong_to_semicolons(tmp_path):
    cells = "x{0}word\n1,5{0}a,b\n2{0}c\nNA{0}d\n"
    assert read(tmp_path, cells.format(";")).rows() == [("1.5", "a,b"), ("2", "c"), (None, "d")]
    assert read(tmp_path, cells.format("\t"))["x"].to_list() == ["1,5", "2", None]
    assert read(tmp_path, "x;word\n1,5%;a\n2,5 %;b\n")["x"].to_list() == ["1.5%", "2.5 %"]


def test_a_table_like_uci_credit_approval(tmp_path):
    """Leading zeros and ? for missing: A11 and A14 are numbers."""
    rows = [f"{'ab?'[k % 3]},{k % 7:02d},{40 * k:05d},{'+-'[k % 2]}" for k in range(30)]
    rows[4] = "a,?,?,+"
    frame = read(tmp_path, "\n".join(["A1,A11,A14,A16", *rows]), target="A16")
    inputs = Table.of(posed(frame, "A16", "auto", 0.2, 0).inputs)
    columns = Encoder.learned(inputs, np.ones(30)).columns
    assert [(c.kind, c.gaps) for c in columns] == [("category", True), ("number", True), ("number", True)]
    assert columns[0].inputs == ("A1=b", "A1 missing")


BAD = {
    "empty": (b"", "is empty"),
    "header only": (b"a,b,y\n", "no rows"),
    "binary": (b"\x89PNG\r\n\x1a\n\x00\x00", "cannot be read as CSV"),
    "a cell too many": (b"a,b\n1,2\n1,2,3\n", "cannot be read as CSV"),
    "UTF-16": ("a,b\n1,2\n".encode("utf-16"), "UTF-16, not UTF-8"),
    "pickle": (pickle.dumps({"y": 1}), "cannot be read as CSV"),
    "open quote": (b'a,y\n"1,2\n' + b"1,2\n" * 1000, "cannot be read as CSV"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_text(name, tmp_path):
    content, message = BAD[name]
    with pytest.raises(InvalidInput, match=message) as caught:
        read(tmp_path, content)
    assert "\n" not in str(caught.value)


def _write_bad_files(folder):
    pl.DataFrame({"a": [], "y": []}).write_parquet(folder / "none.parquet")
    (folder / "short.parquet").write_bytes(b"PAR1 and no more")
    np.savez(folder / "none.npz", a=np.zeros((0, 3)), y=np.zeros(0))
    np.savez(folder / "uneven.npz", a=np.zeros((4, 3)), y=np.zeros(5))
    np.save(folder / "array.npy", np.zeros((20, 2)))
    (folder / "array.npy").rename(folder / "array.npz")
    (folder / "void.npz").write_bytes(b"")
    np.savez(folder / "nothing.npz")
    for name in ("d.xlsx", "d.docx", "d.zip.gz"):
        (folder / name).write_bytes(b"")
    (folder / "d.csv.gz").write_bytes(b"a,b")
    (folder / "folder.csv").mkdir()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.parquet", "no rows"),
        ("short.parquet", "cannot be read as Parquet"),
        ("none.npz", "no rows"),
        ("uneven.npz", "same number of rows"),
        ("array.npz", "cannot be read as .npz"),
        ("void.npz", "cannot be read as .npz"),
        ("nothing.npz", "same number of rows"),
        ("d.xlsx", "cannot be read as a spreadsheet"),
        ("d.docx", "'data'"),
        ("d.zip.gz", "'data'"),
        ("d.csv.gz", "cannot be read as a gzip file"),
        ("folder.csv", "is a folder"),
        ("nowhere.csv", "no file"),
    ],
)
def test_bad_files(tmp_path, name, message):
    _write_bad_files(tmp_path)
    with pytest.raises(InvalidInput, match=message) as caught:
        read_table(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_arrays_of_an_archive(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.arange(6.0).reshape(3, 2), y=np.array(["u", "v", "u"]))
    frame = read_table(str(tmp_path / "d.npz"))
    assert frame.columns == ["x0", "x1", "y"]
    assert frame.rows() == [(0.0, 1.0, "u"), (2.0, 3.0, "v"), (4.0, 5.0, "u")]


def test_without_polars_the_reader_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match=r"polars.*sparsebnn\[cli\]"):
        read(tmp_path, "a\n1\n")
