"""Files that several processes share: written whole or not at all, and locked."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

_log = logging.getLogger("sparsebnn")
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


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


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock on ``path``; yields whether it was acquired, which only ``wait=False`` leaves open.

    One process, and one thread of it, holds it at a time. A lock ends with its process, even by kill -9.
    The file stays behind when the lock is released: removing it would let two processes hold "the" lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        acquired = _lock(file, wait)
        try:
            yield acquired
        finally:
            if acquired:
                _unlock(file)


if sys.platform == "win32":
    import msvcrt

    def _lock(file: TextIO, wait: bool) -> bool:
        while True:
            try:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
                return True
            except OSError:
                if not wait:
                    return False
                time.sleep(0.1)

    def _unlock(file: TextIO) -> None:
        with contextlib.suppress(OSError):  # closing the file releases it too
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: TextIO, wait: bool) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            _log.warning(
                "%s cannot be locked (%s): the file system does not support it. "
                "Make sure that no other process uses it at the same time.",
                file.name,
                error.strerror,
            )
        return True

    def _unlock(file: TextIO) -> None:
        # Explicitly: a forked process may still have the file open.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
