"""Columns of Parquet and Arrow files as memory-mapped arrays, which ``train`` reads row by row."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparsebnn.checks import check_choice, invalid
from sparsebnn.io.files import atomic_write

__all__ = ["memory_mapped"]

_KINDS = (".parquet", ".arrow", ".ipc", ".feather")
_ROWS = 200_000  # converted at a time


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
    kind = check_choice(source.suffix.lower(), _KINDS, "path", "memory_mapped")
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
        _write(files[0], (rows, len(inputs)), np.float32, table.select(list(inputs)))
        _write(files[1], (rows,), np.int64 if whole else np.float32, table.select(target))
    x, y = (np.load(one, mmap_mode="r") for one in files)
    return x, y


def _write(file: Path, shape: tuple[int, ...], dtype: Any, table: Any) -> None:
    """One column or several, block by block; missing values are refused."""
    with atomic_write(file) as partial:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=dtype, shape=shape)
        for start in range(0, shape[0], _ROWS):
            block = table.slice(start, _ROWS).collect()
            if block.null_count().sum_horizontal().item():
                got = f"missing values in rows {start} to {start + len(block)}"
                raise invalid("columns", "memory_mapped", "complete", got, "Fill or drop them first.")
            values = block.to_numpy()
            array[start : start + len(block)] = values if len(shape) == 2 else values[:, 0]
        array.flush()
        del array
