"""locking.py: one holder at a time, in a process and among several; a killed holder leaves no lock."""

import errno
import subprocess
import sys

import pytest

from sparsebnn.io.files import locked

fcntl = pytest.importorskip("fcntl")

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_one_holder_at_a_time(tmp_path):
    path = tmp_path / "new" / "lock"
    with locked(path) as first, locked(path, wait=False) as second:
        assert (first, second) == (True, False)
        # One that was refused has not released it.
        with locked(path, wait=False) as third:
            assert third is False
    with locked(path, wait=False) as again:
        assert again


def test_an_exception_releases_it(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock"):
        raise ZeroDivisionError
    with locked(tmp_path / "lock", wait=False) as again:
        assert again


def test_it_ends_with_the_process_that_holds_it(tmp_path):
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "held\n"
        with locked(path, wait=False) as ours:
            assert not ours
        child.kill()
        child.wait(10)
    assert path.exists()
    with locked(path, wait=False) as ours:
        assert ours


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with locked(tmp_path / "lock", wait=False) as ours:
        assert ours
    assert "cannot be locked (No locks available): the file system does not support it." in caplog.text
