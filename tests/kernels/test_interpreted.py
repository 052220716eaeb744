"""Every Triton kernel without a GPU, where Triton is installed: against its twin, and to machine code."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(script: str, **settings: str) -> subprocess.CompletedProcess:
    """A script beside this file, in a process of its own."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    path = os.pathsep.join(
        [*(str(ROOT / part) for part in ("src", "tests")), os.environ.get("PYTHONPATH", "")]
    )
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "kernels" / script)],
        env={**os.environ, **settings, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_interpreted_kernels_are_their_twins():
    done = run("interpreted.py", TRITON_INTERPRET="1")
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("Triton's interpreter does not know this numpy yet")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("as the twins") == 8


@pytest.mark.slow
def test_kernels_are_translated_for_a_gpu():
    """At the sizes and tiles of the paper's networks; what needs too much shared memory fails."""
    done = run("translated.py")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "of 33 kernels" in done.stdout
