"""Every Triton kernel against its twin without a GPU, where Triton is installed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_interpreted_kernels_are_their_twins():
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    path = os.pathsep.join(
        [*(str(ROOT / part) for part in ("src", "tests")), os.environ.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "kernels" / "interpreted.py")],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("Triton's interpreter does not know this numpy yet")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("as the twins") == 3
