"""A published data set to the cache: fetched with pooch, resumed where it broke off, checked first.

A file is written as ``….partial`` and renamed when its content has the right
checksum. One that broke off stays partial and is gone on with the next time; one that is wrong is removed.
Neither the file nor what it unpacks to may be larger than the published one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from sparsebnn.io.data.catalogue import Entry
from sparsebnn.io.data.files import IDX_FILES, DataError, unpacked

_BY_HAND = "Or fetch its files by hand into a folder and pass that folder's path."
_SECONDS = 30.0


class Bar:
    """One live line per file; silent where the output is not a terminal. Made to pooch's wishes."""

    def __init__(self, label: str, done: int, stream: TextIO | None = None) -> None:
        self.label, self.first, self.done = label, done, done
        self.stream = sys.stderr if stream is None else stream
        self.total = 0  # pooch sets what is still to come

    def update(self, count: int) -> None:
        whole = self.first + self.total
        self.done = min(self.done + count, whole) if self.total else self.done + count
        if self.stream.isatty():
            share = f"{self.done / 1e6:.1f} MB"
            share += f" of {whole / 1e6:.1f} ({100 * self.done // whole}%)" if self.total else ""
            self.stream.write(f"\r\x1b[2KDownloading {self.label}  {share}")
            self.stream.flush()

    def reset(self) -> None:
        self.done = self.first

    def close(self) -> None:
        if self.stream.isatty():
            self.stream.write("\n")


class _Elsewhere(Exception):
    """This home does not have the file or cannot be reached: another may."""


class _Misfit(Exception):
    """The partial file does not match the beginning of the file at this address."""


class _Bounded:
    """A file that takes no more than ``room`` bytes."""

    def __init__(self, file: BinaryIO, room: int) -> None:
        self.file, self.room = file, room

    def write(self, piece: bytes) -> int:
        self.room -= len(piece)
        if self.room < 0:
            raise _Misfit
        return self.file.write(piece)

    def flush(self) -> None:
        self.file.flush()


def fetch(entry: Entry, folder: Path) -> None:
    """Have the four files of a data set in ``folder``, each checked; existing ones are kept."""
    for array, sha256 in entry.sha256.items():
        target = folder / f"{IDX_FILES[array]}.gz"
        if not target.exists():
            _from_any(entry, array, target, sha256)


def _from_any(entry: Entry, array: str, target: Path, sha256: str) -> None:
    reasons = []
    for url in entry.urls(array):
        try:
            _from(url, target, sha256, entry.title, entry.sizes[array])
            return
        except _Elsewhere as reason:
            reasons.append(str(reason))
    raise DataError(f"{entry.title} could not be downloaded: {' '.join(reasons)} {_BY_HAND}")


def _from(url: str, target: Path, sha256: str, title: str, size: int) -> None:
    """One file from one place; the first try continues a partial file, the second starts over."""
    partial = target.with_name(f"{target.name}.partial")
    resumed = partial.exists() and partial.stat().st_size > 0
    try:
        # What does not compress grows by less than a thousandth.
        _transfer(url, partial, f"{title} {target.name}", size + size // 1000 + 1024)
        if _is_good(partial, sha256, size):
            os.replace(partial, target)
            return
    except _Misfit:
        pass
    # A beginning that does not fit is thrown away, and the whole file is asked for once.
    partial.unlink(missing_ok=True)
    if resumed:
        _from(url, target, sha256, title, size)
        return
    raise DataError(
        f"The download from {url} is corrupted: its content has another SHA-256 than the published file. "
        "It was removed. Try again later; if the error persists, the file at that address has changed. "
        f"{_BY_HAND}"
    )


def _is_good(path: Path, sha256: str, size: int) -> bool:
    try:
        content = unpacked(path, size)
    except DataError:
        return False
    return hashlib.sha256(content).hexdigest() == sha256


def _pooch() -> Any:
    try:
        import pooch
        import requests
    except ImportError as error:
        message = f"Downloading data sets needs 'pooch': pip install 'sparsebnn[data]'. {_BY_HAND}"
        raise ImportError(message) from error
    return pooch, requests


def _transfer(url: str, partial: Path, label: str, most: int) -> None:
    """Append what is missing of ``url`` to ``partial``, up to ``most`` bytes in all.

    Every way to fail has its own message.
    """
    pooch, requests = _pooch()
    start = partial.stat().st_size if partial.exists() else 0
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
        downloader = pooch.HTTPDownloader(
            progressbar=Bar(label, start), chunk_size=1 << 13, headers=headers, timeout=_SECONDS
        )
        with partial.open("ab") as file:
            downloader(url, _Bounded(file, most - start), None)
    except requests.exceptions.HTTPError as error:
        _drop_if_empty(partial)
        if start and error.response.status_code == 416:  # asked for more than there is
            raise _Misfit from error
        raise _Elsewhere(f"{url} answered {error.response.status_code} {error.response.reason}.") from error
    except (
        requests.exceptions.ChunkedEncodingError,
        requests.exceptions.ConnectionError,
        requests.exceptions.Timeout,
    ) as error:
        _drop_if_empty(partial)
        come = partial.stat().st_size if partial.exists() else 0
        if come == start and not isinstance(error, requests.exceptions.ChunkedEncodingError):
            raise _Elsewhere(f"{url} could not be reached. Is there a network?") from error
        raise DataError(
            f"The download from {url} broke off after {come} bytes. "
            "The part that arrived is kept: load the data set again to continue."
        ) from error
    except OSError as error:
        if isinstance(error, requests.exceptions.RequestException):
            raise _Elsewhere(f"{url} failed ({error}).") from error
        reason = error.strerror or error
        raise DataError(
            f"{partial} could not be written ({reason}). Free space, or set XDG_CACHE_HOME to another folder."
        ) from error


def _drop_if_empty(partial: Path) -> None:
    with contextlib.suppress(OSError):
        if partial.stat().st_size == 0:
            partial.unlink()
