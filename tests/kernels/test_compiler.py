"""compiler.py: compiled once, whole or not at all, and absent without an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparsebnn.kernels import compiler
from sparsebnn.kernels.compiler import find_compiler, kernel, library

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler was found")

FLAGS = ("-std=c99", "-O0", "-shared", "-fPIC")  # as the library's, but quick
# Without the rest of the library, whose import takes longer than the compiler.
PROGRAM = f"""
import compiler
from compiler import kernel
compiler._FLAGS = {FLAGS}
print(kernel().run is not None, kernel().description)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache of its own; the process's kernel is looked for again, before and after."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "_FLAGS", FLAGS)
    library.cache_clear()
    yield compiler.cache_folder()
    library.cache_clear()


def environment():
    return {**os.environ, "PYTHONPATH": str(compiler.SOURCE.parent)}


def libraries(folder):
    return sorted(path.name for path in folder.iterdir())


def test_compiled_once(folder, monkeypatch):
    assert kernel().run is not None
    first = libraries(folder)
    assert len(first) == 1
    library.cache_clear()
    monkeypatch.setattr(compiler, "_compile", lambda *_: pytest.fail("it was compiled again"))
    assert kernel().run is not None
    assert libraries(folder) == first


def test_another_source_is_another_library(folder, tmp_path, monkeypatch):
    kernel()
    other = tmp_path / "other.c"
    other.write_text(compiler.SOURCE.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    monkeypatch.setattr(compiler, "SOURCE", other)
    library.cache_clear()
    assert kernel().run is not None
    assert len(libraries(folder)) == 2


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[: len(whole) // 2], lambda whole: b"", lambda _: b"x" * 99]
)
def test_a_damaged_file_is_compiled_again(folder, damage):
    """In processes of their own: a library that is loaded must not be written to."""
    command = [sys.executable, "-c", PROGRAM]
    for _ in range(2):
        done = subprocess.run(command, env=environment(), capture_output=True, text=True)
        assert done.stdout.startswith("True"), done.stderr
        (path,) = folder.iterdir()
        path.write_bytes(damage(path.read_bytes()))


def test_two_processes_at_once(folder):
    command = [sys.executable, "-c", PROGRAM]
    running = [
        subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert all(process.communicate()[0].startswith("True") for process in running)
    assert not [name for name in libraries(folder) if not name.endswith(".so")]


def test_no_compiler(folder, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)
    assert kernel() == compiler.Kernel(None, "no C compiler was found")


def test_a_compiler_that_fails(folder, tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho it is broken >&2\nexit 3\n", encoding="utf-8")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    found = kernel()
    assert found.run is None
    assert "it is broken" in found.description


def test_a_cache_that_cannot_be_written(folder, monkeypatch):
    """Something else is where the folder should be."""
    folder.parent.mkdir(parents=True)
    Path(folder).write_text("in the way", encoding="utf-8")
    assert kernel().run is not None
