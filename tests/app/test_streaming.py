"""``predict`` in blocks of rows, and ``export``, from the command line."""

import tracemalloc

import numpy as np
import polars as pl
import pytest

from app.calls import call, refused, write
from sparsebnn.app.commands import reading, running, writing
from sparsebnn.app.commands.reading import read_blocks, read_table
from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import SparseBNNClassifier


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    random = np.random.RandomState(0)
    frame = pl.DataFrame({"size": random.randn(60).round(3), "color": random.choice(["red", "blue"], 60)})
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    SparseBNNClassifier(epochs=4, replicates=2, random_state=0).fit(frame, frame["size"] > 0).save(path)
    return path


@pytest.mark.parametrize("name", ["d.csv", "d.parquet"])
def test_blocks_are_the_table(tmp_path, name):
    path = tmp_path / name
    frame = pl.DataFrame({"a": [str(i) for i in range(57)], "b": ["x, y", 'a "quote"', "two\nlines"] * 19})
    frame.write_csv(path) if name.endswith("csv") else frame.write_parquet(path)
    blocks = list(read_blocks(str(path), rows=10))
    assert len(blocks) >= 5
    assert pl.concat(blocks).equals(read_table(str(path)))


@pytest.mark.parametrize("text", ["sep=;\na;b\n1,5;2\n3;4\n", "a;b\n\n1,5;2\n\n3;4\n"])
def test_blocks_of_odd_files(tmp_path, text):
    path = tmp_path / "d.csv"
    path.write_text(text)
    assert pl.concat(read_blocks(str(path), rows=1)).rows() == [("1.5", "2"), ("3", "4")]


def test_predictions_do_not_depend_on_the_blocks(model, tmp_path, monkeypatch):
    rows = [(i / 10, "red" if i % 2 else "green") for i in range(50)]
    path = write(tmp_path / "new.csv", ["size", "color"], rows)
    done = call("predict", model, path)
    whole, noted = pl.read_csv(done.stdout.encode()), done.stderr
    assert "(in 25 of 50 rows)" in noted
    monkeypatch.setattr(reading.read_blocks, "__defaults__", (7,))
    done = call("predict", model, path, "--out", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    found = pl.read_csv(tmp_path / "out.csv")
    assert found.columns == whole.columns
    assert found[:, :2].equals(whole[:, :2])
    np.testing.assert_allclose(found[:, 2:].to_numpy(), whole[:, 2:].to_numpy(), atol=1e-12)  # rounding
    assert noted.strip() in done.stderr


def test_a_bad_block_leaves_no_file(model, tmp_path, monkeypatch):
    monkeypatch.setattr(reading.read_blocks, "__defaults__", (7,))
    path = write(tmp_path / "new.csv", ["size", "color"], [(1, "red")] * 20 + [("tall", "red")])
    refused(call("predict", model, path, "--out", tmp_path / "out.csv"), "size", "tall")
    assert not (tmp_path / "out.csv").exists()


def test_memory_does_not_grow_with_the_file(model, tmp_path, monkeypatch):
    """Only Python's own memory is traced; polars and torch keep nothing between blocks."""
    monkeypatch.setattr(reading.read_blocks, "__defaults__", (200,))
    peaks = []
    for count in (400, 4000):
        path = write(tmp_path / f"{count}.csv", ["size", "color"], [(1.0, "red")] * count)
        tracemalloc.start()
        assert running.predict(model, str(path), tmp_path / f"{count}.out.csv", quiet=True) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_export(model, tmp_path):
    done = call("export", model, tmp_path / "m.c", "--model", "median")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "m.h").exists()
    refused(call("export", model, tmp_path / "m.c"), "'path' of export")
    assert call("export", model, tmp_path / "m.c", "--force", "--draws", "4", "--quiet").stdout == ""
    refused(call("export", model, tmp_path / "m.txt"), "'path' of export")
    refused(call("export", model, tmp_path / "n.c", "--model", "mode"), "'model' of export")


def test_endings_that_cannot_be_written_are_refused(tmp_path):
    refused = pytest.raises(InvalidInput, match=r"\.csv, \.csv\.gz, \.tsv or \.parquet")
    with refused, writing.opened_rows(tmp_path / "p.xlsx"):
        pytest.fail("a file was begun")
    assert not list(tmp_path.iterdir())
