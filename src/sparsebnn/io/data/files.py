"""Files to arrays: .npz, idx and idx.gz, folders of either, and columns of Parquet and Arrow files.

An idx file is ``00 00 08 n``, then n sizes as big-endian 32-bit numbers, then that many bytes. ``n`` is 3
for images and 1 for labels; other element types than bytes (``08``) are not read.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsebnn.checks import InvalidInput, check_choice, check_rows, invalid
from sparsebnn.io.files import atomic_write

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
IDX_FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
Arrays = dict[str, np.ndarray]
_PIECE = 1 << 20
_MOST_UNPACKED = 1 << 30  # bytes in a compressed file of unknown content
_NPY_HEADER = 4096  # bytes of an array's header in an .npz, at most


@dataclass(frozen=True)
class Dataset:
    """Rows with their labels, split into training and test part.

    ``x_*`` are ``(rows, features)``, in float32 or as the uint8 pixels they were stored as (training and
    prediction divide those by 255); ``y_*`` labels in int64; ``image_shape`` is how a row reads as an image.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]


class DataError(InvalidInput):
    """A data file that is missing, damaged or not what it is called; the message says what to do."""


def idx_bytes(array: np.ndarray) -> bytes:
    """An array of bytes as the content of an idx file.

    >>> idx_bytes(np.array([7, 9], dtype=np.uint8)).hex()
    '00000801000000020709'
    """
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + np.ascontiguousarray(array, dtype=np.uint8).tobytes()


def as_bytes(array: np.ndarray) -> np.ndarray | None:
    """The same numbers in uint8; None when that would change them.

    >>> as_bytes(np.array([0, 255])), as_bytes(np.array([0, 256])), as_bytes(np.array([0.5]))
    (array([  0, 255], dtype=uint8), None, None)
    """
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.integer) and not np.issubdtype(array.dtype, np.floating):
        return None
    good = (array >= 0) & (array <= 255) & (array == np.floor(array))
    return array.astype(np.uint8) if bool(good.all()) else None


def parse_idx(content: bytes, path: Path) -> np.ndarray:
    """The array in the (unpacked) content of an idx file."""
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or content[3] == 0:
        raise DataError(f"{path} is not an idx file of bytes. Replace it, or pass another path.")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(f"{path} is truncated within its header. Delete it and fetch it again.")
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DataError(
            f"{path} is truncated or damaged: it should hold {math.prod(shape)} bytes after its header "
            f"and holds {len(content) - start}. Delete it and fetch it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def unpacked(path: Path, most: int | None = None) -> bytes:
    """The content of a file, through gzip where its first bytes say so.

    A small .gz file can unpack to gigabytes: unpacking stops at ``most`` bytes (default: 1 GiB).
    """
    with path.open("rb") as raw:
        if raw.read(2) != b"\x1f\x8b":
            return path.read_bytes()
        raw.seek(0)
        pieces, size = [], 0
        try:
            with gzip.GzipFile(fileobj=raw) as file:
                while piece := file.read(_PIECE):
                    size += len(piece)
                    _check_unpacked(size, most, path)
                    pieces.append(piece)
        except (EOFError, OSError, zlib.error) as error:
            reason = f"{path} is truncated or damaged ({error})"
            raise DataError(f"{reason}. Delete it and fetch it again.") from error
    return b"".join(pieces)


def _check_unpacked(size: int, most: int | None, path: Path) -> None:
    limit = _MOST_UNPACKED if most is None else most
    if size > limit:
        advice = "If you trust it, unpack it first." if most is None else "Delete it and fetch it again."
        raise DataError(f"{path} unpacks to more than {limit} bytes. {advice}")


def read_idx(path: Path, most: int | None = None) -> np.ndarray:
    """The array of an idx file, packed or not; ``most`` bounds what a packed one unpacks to."""
    return parse_idx(unpacked(path, most), path)


def read_npz(path: Path, most: Mapping[str, int] | None = None) -> Arrays:
    """The four arrays of an .npz file, whatever else it holds; ``most`` bounds their numbers of values."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            _check_members(file.zip, most, path)
            missing = [name for name in ARRAYS if name not in file]
            if missing:
                raise invalid(
                    "name",
                    "data.load",
                    f"a file with the arrays {', '.join(ARRAYS)}",
                    f"{path} without {missing[0]}",
                )
            return {name: file[name] for name in ARRAYS}
    except InvalidInput:
        raise
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged or truncated ({error}). Replace it.") from error


def _check_members(archive: zipfile.ZipFile, most: Mapping[str, int] | None, path: Path) -> None:
    """Refuse compressed arrays that are too large, before one of them is unpacked."""
    for array in ARRAYS:
        for member in archive.infolist():
            if member.filename == f"{array}.npy" and member.compress_type != zipfile.ZIP_STORED:
                # Bytes may be stored as numbers of up to eight bytes.
                limit = None if most is None else 8 * most[array] + _NPY_HEADER
                _check_unpacked(member.file_size, limit, path)


def _idx_in(folder: Path) -> dict[str, Path] | None:
    """The idx files of a folder by array, or None when one of them is not there."""
    found = {}
    for array, stem in IDX_FILES.items():
        # 'train-images.idx3-ubyte' is what some archives unpack to.
        names = (stem, f"{stem}.gz", stem.replace("-idx", ".idx"), stem.replace("-idx", ".idx") + ".gz")
        here = [folder / name for name in names if (folder / name).is_file()]
        if not here:
            return None
        found[array] = here[0]
    return found


def holds_data(path: Path) -> bool:
    """Whether :func:`read` would find its files there: a half-filled folder does not count."""
    if not path.is_dir():
        return path.is_file()
    return _idx_in(path) is not None or len(list(path.glob("*.npz"))) == 1


def read(path: Path, most: Mapping[str, int] | None = None) -> Arrays:
    """The four arrays at a path: an .npz, one of four idx files side by side, or a folder of either.

    ``most`` bounds what compressed files unpack to: for each array the size of its idx file in bytes.
    """
    if path.is_dir():
        idx = _idx_in(path)
        if idx is not None:
            return _read_all(idx, most)
        packed = sorted(path.glob("*.npz"))
        if len(packed) == 1:
            return read_npz(packed[0], most)
        expected = f"a folder with the files {', '.join(IDX_FILES.values())} (or .gz) or with one .npz"
        raise invalid("name", "data.load", expected, f"{path} with {len(packed)} .npz files")
    if path.suffix == ".npz":
        return read_npz(path, most)
    read_idx(path)  # report a wrong format before missing neighbors
    idx = _idx_in(path.parent)
    if idx is None:
        expected = f"in one folder with its three neighbors of {', '.join(IDX_FILES.values())} (or .gz)"
        raise invalid("name", "data.load", expected, path)
    return _read_all(idx, most)


def _read_all(files: Mapping[str, Path], most: Mapping[str, int] | None) -> Arrays:
    return {array: read_idx(file, None if most is None else most[array]) for array, file in files.items()}


def as_dataset(name: str, arrays: Arrays, class_names: tuple[str, ...] | None = None) -> Dataset:
    """Checked arrays as tensors: rows flattened, bytes kept as they are, other numbers in float32."""
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        check_rows(
            [(f"x_{part}", x.shape[0] if x.ndim else 0), (f"y_{part}", y.shape[0] if y.ndim else 0)], name
        )
        if x.ndim < 2 or y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
            got = f"shapes {x.shape} and {y.shape} of {y.dtype}"
            raise invalid(f"x_{part}", name, "of shape (rows, …) with a vector of integer labels", got)
    shape = arrays["x_train"].shape[1:]
    if arrays["x_test"].shape[1:] != shape:
        raise invalid(
            "x_test", name, f"of rows of shape {shape}, as x_train", f"{arrays['x_test'].shape[1:]}"
        )

    def rows(x: np.ndarray) -> torch.Tensor:
        flat = x.reshape(len(x), -1)
        return torch.from_numpy(np.array(flat, dtype=np.uint8 if x.dtype == np.uint8 else np.float32))

    def labels(y: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(y.astype(np.int64))

    if class_names is None:
        class_names = tuple(map(str, range(int(arrays["y_train"].max()) + 1)))
    parts = (
        rows(arrays["x_train"]),
        labels(arrays["y_train"]),
        rows(arrays["x_test"]),
        labels(arrays["y_test"]),
    )
    return Dataset(name, *parts, class_names, tuple(shape))


_TABLES = (".parquet", ".arrow", ".ipc", ".feather")
_AT_ONCE = 200_000  # converted at a time


def memory_mapped(
    path: str | Path, inputs: Sequence[str], target: str, folder: str | Path
) -> tuple[np.ndarray, np.ndarray]:
    """Write columns of a Parquet or Arrow (IPC) file to ``folder`` once, and open them as ``(x, y)``.

    ``x`` is float32 with one column per input; ``y`` keeps whole numbers. A block of rows is in memory at a
    time. Files in ``folder`` that are newer than the table are used as they are. Needs polars.
    """
    try:
        import polars
    except ImportError as error:
        raise ImportError("Reading tables needs polars: pip install 'sparsebnn[cli]'") from error
    source, where = Path(path), Path(folder)
    kind = check_choice(source.suffix.lower(), _TABLES, "path", "memory_mapped")
    table = polars.scan_parquet(source) if kind == ".parquet" else polars.scan_ipc(source)
    schema = table.collect_schema()
    for name in (*inputs, target):
        if name not in schema:
            raise invalid("column", "memory_mapped", "one of " + ", ".join(schema), repr(name))
        if not schema[name].is_numeric():
            advice = "Encode it as numbers first."
            raise invalid("column", "memory_mapped", "numeric", f"{name!r} of {schema[name]}", advice)
    tag = f"{'-'.join(inputs)}".encode()[:100].hex()[:24]
    files = where / f"{source.stem}-{tag}-x.npy", where / f"{source.stem}-{target}-y.npy"
    if not all(one.exists() and os.path.getmtime(one) >= os.path.getmtime(source) for one in files):
        where.mkdir(parents=True, exist_ok=True)
        rows = int(table.select(polars.len()).collect().item())
        whole = schema[target].is_integer()
        _write_columns(files[0], (rows, len(inputs)), np.float32, table.select(list(inputs)))
        _write_columns(files[1], (rows,), np.int64 if whole else np.float32, table.select(target))
    x, y = (np.load(one, mmap_mode="r") for one in files)
    return x, y


def _write_columns(file: Path, shape: tuple[int, ...], dtype: Any, table: Any) -> None:
    """One column or several, block by block; missing values are refused."""
    with atomic_write(file) as partial:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=dtype, shape=shape)
        for start in range(0, shape[0], _AT_ONCE):
            block = table.slice(start, _AT_ONCE).collect()
            if block.null_count().sum_horizontal().item():
                got = f"missing values in rows {start} to {start + len(block)}"
                raise invalid("columns", "memory_mapped", "complete", got, "Fill or drop them first.")
            values = block.to_numpy()
            array[start : start + len(block)] = values if len(shape) == 2 else values[:, 0]
        array.flush()
        del array
