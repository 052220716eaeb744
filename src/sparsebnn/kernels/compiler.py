"""Compile the C sources of this folder with the system's compiler, once per user and machine, and load them.

A library is kept in a folder of the user's cache. Its name holds a hash of what it was made from (source,
compiler, flags, processor) and a hash of its content: one that was damaged is compiled again, and of two
processes that compile at once both get a whole file.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Kernel", "Library", "SOURCE", "cache_folder", "find_compiler", "kernel", "library"]

SOURCE = Path(__file__).with_name("sparse_network.c")
_FLAGS = (
    "-std=c99",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-shared",
    "-fPIC",
)
# The first set that the compiler takes.
_ATTEMPTS = (("-march=native", "-fopenmp"), ("-march=native",), ("-fopenmp",), ())
_SECONDS = 120


@dataclass(frozen=True)
class Library:
    """A loaded library, or None and why: no compiler, or what it said."""

    loaded: ctypes.CDLL | None
    description: str


@dataclass(frozen=True)
class Kernel:
    """The entry of ``sparse_network.c``, or None and why: no compiler, or what it said."""

    run: Callable[..., None] | None
    description: str


def find_compiler() -> str | None:
    """The C compiler that the environment variable ``CC`` names, else cc, gcc or clang."""
    named = os.environ.get("CC")
    names = (named,) if named else ("cc", "gcc", "clang")
    return next((path for path in map(shutil.which, names) if path), None)


def cache_folder() -> Path:
    """Where compiled libraries are kept; ``XDG_CACHE_HOME`` moves it."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "sparsebnn" / "kernels"


def _processor() -> str:
    """What ``-march=native`` depends on: home folders can be shared between machines."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return "\n".join(sorted({line for line in lines if line.startswith(("flags", "model", "Features"))}))
    return platform.processor()


def _key(compiler: str, source: Path) -> str:
    path = Path(compiler).resolve()
    made = path.stat()
    parts = (source.read_text(encoding="utf-8"), path, made.st_size, made.st_mtime_ns, _FLAGS, _ATTEMPTS)
    text = repr((*parts, platform.machine(), _processor()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _compile(compiler: str, source: Path, folder: Path, key: str) -> Path:
    """A new library in ``folder``; an OSError with the compiler's words if it cannot be made."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(suffix=".partial", prefix=f"{key}-", dir=folder)
    os.close(handle)
    partial, said = Path(name), ""
    try:
        for more in _ATTEMPTS:
            command = [compiler, *_FLAGS, *more, str(source), "-o", name, "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
            if done.returncode == 0:
                path = folder / f"{key}-{_digest(partial)}.so"
                os.replace(partial, path)
                return path
            said = done.stderr
        raise OSError(f"{compiler} failed: {said.strip()[-300:]}")
    finally:
        partial.unlink(missing_ok=True)


def _whole(folder: Path, key: str) -> Iterator[Path]:
    """Libraries of this key whose content is what was written; others are removed."""
    for path in sorted(folder.glob(f"{key}-*.so")):
        with contextlib.suppress(OSError):
            if path.stem == f"{key}-{_digest(path)}":
                yield path
            else:
                path.unlink()


@functools.cache
def library(source: Path) -> Library:
    """The compiled source, loaded into this process. Without a compiler, or where it fails, there is none."""
    compiler = find_compiler()
    if compiler is None:
        return Library(None, "no C compiler was found")
    try:
        key, folder = _key(compiler, source), cache_folder()
        for path in _whole(folder, key):
            with contextlib.suppress(OSError):
                return Library(ctypes.CDLL(str(path)), f"compiled by {compiler}")
        try:
            path = _compile(compiler, source, folder, key)
        except OSError:  # a folder that cannot be written; a compiler that fails fails again
            path = _compile(compiler, source, Path(tempfile.mkdtemp(prefix="sparsebnn-")), key)
        return Library(ctypes.CDLL(str(path)), f"compiled by {compiler}")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return Library(None, str(error))


def kernel() -> Kernel:
    """The kernel that evaluates sparse networks. Without a compiler ``run`` is None."""
    found = library(SOURCE)
    if found.loaded is None:
        return Kernel(None, found.description)
    run, pointer = found.loaded.sb_run, ctypes.c_void_p
    run.argtypes = (pointer, pointer, ctypes.c_size_t, pointer, pointer, ctypes.c_int)
    run.restype = None
    return Kernel(run, found.description)
