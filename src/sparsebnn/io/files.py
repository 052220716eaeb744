"""Write a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

__all__ = ["atomic_write"]


@contextlib.contextmanager
def atomic_write(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """A temporary path next to ``path`` that replaces it when the block ends without an error.

    Whoever reads ``path`` finds the old file or the new one. ``sync`` waits until the content is on disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder, "a.txt")) as partial:
    ...         _ = partial.write_text("all of it")
    ...     os.listdir(folder), Path(folder, "a.txt").read_text()
    (['a.txt'], 'all of it')
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield partial
        if sync:
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
