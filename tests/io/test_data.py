"""Data sets by name: what they hold, that the split is fixed, and what is said when it cannot be had."""

import gzip
import hashlib
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.io.data import catalogue, files, load
from sparsebnn.io.data.files import IDX_FILES, idx_bytes


def test_digits_are_scikit_learns_pixels_divided_by_16():
    data, (pixels, labels) = load("digits"), load_digits(return_X_y=True)
    ours = torch.cat([data.x_train, data.x_test]).numpy() * 16.0
    targets = torch.cat([data.y_train, data.y_test]).numpy()
    expected, got = np.c_[pixels, labels], np.c_[ours, targets]
    order, other = np.lexsort(expected.T), np.lexsort(got.T)
    assert (expected[order] == got[other]).all()
    assert (data.x_train.dtype, data.y_train.dtype) == (torch.float32, torch.int64)
    assert data.image_shape == (8, 8)
    assert data.class_names[3] == "3"
    # A quarter is held out, evenly over the digits.
    assert len(data.y_test) == 450
    held = torch.bincount(data.y_test) / (torch.bincount(data.y_train) + torch.bincount(data.y_test))
    assert float((held - 0.25).abs().max()) < 0.005


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="'digits' needs scikit-learn"):
        load("digits")


def test_the_split_is_fixed():
    first, second = load("digits"), load("digits")
    assert torch.equal(first.x_test, second.x_test)
    # The rows themselves, so that a change of the split cannot go unnoticed.
    assert first.y_test[:12].tolist() == [2, 0, 4, 9, 4, 1, 2, 4, 6, 7, 9, 1]
    assert float(first.x_test.double().sum()) == 8794.5625


# --- files -------------------------------------------------------------------------------------------


def small_arrays(dtype=np.uint8):
    generator = np.random.default_rng(1)
    shapes = {"x_train": (12, 3, 4), "y_train": (12,), "x_test": (5, 3, 4), "y_test": (5,)}
    arrays = {name: generator.integers(0, 3, shape).astype(np.uint8) for name, shape in shapes.items()}
    return {name: a.astype(dtype) if name.startswith("x") else a for name, a in arrays.items()}


def write_idx(folder, arrays, packed):
    folder.mkdir(parents=True, exist_ok=True)
    for name, stem in IDX_FILES.items():
        content = idx_bytes(arrays[name])
        if packed:
            (folder / f"{stem}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / stem).write_bytes(content)


def check(loaded, arrays):
    assert np.array_equal(loaded.x_train.numpy(), arrays["x_train"].reshape(12, 12))
    assert loaded.y_test.tolist() == arrays["y_test"].tolist()
    assert loaded.image_shape == (3, 4)
    assert loaded.y_train.dtype == torch.int64


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files(tmp_path, packed):
    arrays = small_arrays()
    write_idx(tmp_path / "own", arrays, packed)
    check(load(tmp_path / "own"), arrays)
    one = sorted((tmp_path / "own").iterdir())[0]
    check(load(one), arrays)
    assert load(one).x_train.dtype == torch.uint8


def test_npz_files(tmp_path):
    arrays = small_arrays()
    np.savez(tmp_path / "own.npz", **arrays)
    check(load(tmp_path / "own.npz"), arrays)
    check(load(str(tmp_path)), arrays)
    assert load(tmp_path / "own.npz").name == "own"
    assert load(tmp_path / "own.npz").class_names == ("0", "1", "2")
    np.savez(tmp_path / "own.npz", **small_arrays(np.float64))
    assert load(tmp_path / "own.npz").x_test.dtype == torch.float32


def said(*arguments, **options):
    with pytest.raises(InvalidInput) as error:
        load(*arguments, **options)
    return str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    assert "Did you mean 'digits'?" in said("digit")
    assert "a file or folder that exists" in said(tmp_path / "none.npz")
    arrays, own = small_arrays(), tmp_path / "own.npz"
    for change, words in (
        ({"y_train": None}, f"Got {own} without y_train"),
        ({"y_train": arrays["y_train"][:-1]}, "'y_train' of own must be as long as 'x_train' (12 rows)"),
        ({"x_test": arrays["x_test"][:, :2]}, "'x_test' of own must be of rows of shape (3, 4)"),
    ):
        np.savez(own, **{name: a for name, a in {**arrays, **change}.items() if a is not None})
        assert words in said(own)
    whole = own.read_bytes()
    own.write_bytes(whole[: len(whole) // 2])
    assert f"{own} is damaged or truncated (" in said(own)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "a folder with the files train-images-idx3-ubyte" in said(empty)


def test_idx_files_that_cannot_be_read(tmp_path):
    arrays = small_arrays()
    folder = tmp_path / "own"
    write_idx(folder, arrays, packed=False)
    first = folder / IDX_FILES["x_train"]
    content = first.read_bytes()
    for written, words in (
        (content[:-5], "should hold 144 bytes after its header and holds 139"),
        (content[:9], "truncated within its header"),
        (b"not idx", "not an idx file of bytes"),
        (gzip.compress(content)[:-9], "truncated or damaged ("),
    ):
        first.write_bytes(written)
        assert str(first) in said(folder)
        assert words in said(folder)
    first.write_bytes(content)
    (folder / IDX_FILES["y_test"]).unlink()
    assert "three neighbors" in said(first)


def test_compressed_files_are_unpacked_up_to_a_limit(known, tmp_path, monkeypatch):
    """By name the limit is that of the published files, by path a general one."""
    folder = tmp_path / "root" / "mnist"
    write_idx(folder, known, packed=True)
    packed = folder / f"{IDX_FILES['y_train']}.gz"
    good = packed.read_bytes()
    packed.write_bytes(good + gzip.compress(bytes(1 << 20)))
    assert said("mnist", root=tmp_path / "root") == (
        f"{packed} unpacks to more than 60008 bytes. Delete it and fetch it again."
    )
    zeros = {**known, "y_train": np.zeros(1 << 20, dtype=np.uint8)}
    np.savez_compressed(tmp_path / "root" / "mnist.npz", **zeros)
    assert said("mnist", root=tmp_path / "root").startswith(
        f"{tmp_path / 'root' / 'mnist.npz'} unpacks to more than 484160 bytes."
    )
    monkeypatch.setattr(files, "_MOST_UNPACKED", 1 << 19, raising=False)
    for path, own in ((folder, packed), (tmp_path / "root" / "mnist.npz",) * 2):
        assert said(path) == f"{own} unpacks to more than 524288 bytes. If you trust it, unpack it first."
    # What is not compressed is as large as its file: no limit.
    np.savez(tmp_path / "large.npz", **{**known, "x_train": np.zeros((12, 1 << 16, 1))})
    assert "x_test" in said(tmp_path / "large.npz")
    packed.write_bytes(good)
    check(load(folder), known)


@pytest.fixture
def known(monkeypatch, tmp_path):
    """'mnist' with the checksums of small arrays; no folder of the environment is looked at."""
    arrays = small_arrays()
    sums = {name: hashlib.sha256(idx_bytes(array)).hexdigest() for name, array in arrays.items()}
    entry = catalogue.Entry("MNIST", tuple("0123456789"), sums, ())
    monkeypatch.setitem(catalogue.CATALOGUE, "mnist", entry)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARSEBNN_DATA", raising=False)
    return arrays


def test_a_name_is_found_on_the_search_path(known, monkeypatch, tmp_path):
    root, told, cache = (tmp_path / name for name in ("root", "told", "cache/sparsebnn"))
    write_idx(cache / "mnist", known, packed=True)
    check(load("mnist", download=False), known)
    told.mkdir()
    np.savez(told / "mnist.npz", **known)
    monkeypatch.setenv("SPARSEBNN_DATA", str(told))
    (cache / "mnist" / f"{IDX_FILES['x_test']}.gz").unlink()
    check(load("mnist", download=False), known)
    # The argument comes first: what lies there is taken, and found to be something else.
    root.mkdir()
    np.savez(root / "mnist.npz", **{**known, "x_test": known["x_test"] + 1})
    assert said("mnist", root=root) == (
        f"{root / 'mnist.npz'} does not hold MNIST: its x_test differ from the published rows (SHA-256). "
        "Replace it, or load it by its path instead of by name."
    )
    assert said("mnist", root=tmp_path / "no") == (
        f"The 'root' of data.load must be a folder. Got {tmp_path / 'no'} instead. Check the path."
    )


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_whole_numbers_of_another_type_are_the_bytes_they_stand_for(known, tmp_path, dtype):
    np.savez(tmp_path / "mnist.npz", **{name: array.astype(dtype) for name, array in known.items()})
    data = load("mnist", root=tmp_path)
    assert (data.x_train.dtype, data.y_train.dtype) == (torch.uint8, torch.int64)
    check(data, known)


@pytest.mark.parametrize("name", ["x_train", "y_test"])
@pytest.mark.parametrize("change", ["wrapped", "negative", "parts", "nan"])
def test_numbers_that_are_no_bytes_are_refused(known, tmp_path, name, change):
    """256 more, or less, is the same byte: the checksum alone would not see it."""
    own = known[name].astype(np.int64)
    own = {"wrapped": own + 256, "negative": own - 256, "parts": own + 0.25, "nan": own * np.nan}[change]
    np.savez(tmp_path / "mnist.npz", **{**known, name: own})
    assert said("mnist", root=tmp_path) == (
        f"{tmp_path / 'mnist.npz'} does not hold MNIST: its {name} of {own.dtype} are not whole numbers from "
        "0 to 255. Replace it, or load it by its path instead of by name."
    )


def test_bytes_train_as_the_same_numbers_divided_by_255(known, tmp_path):
    np.savez(tmp_path / "mnist.npz", **known)
    data = load("mnist", root=tmp_path)
    as_float = data.x_train.float() / 255.0
    losses = [
        sparsebnn.train(sparsebnn.mlp([12, 4, 3]), (x, data.y_train), settings=sparsebnn.Settings(epochs=2))
        .history[-1]
        .loss
        for x in (data.x_train, as_float)
    ]
    assert losses[0] == losses[1]
