"""A model saved on one device and loaded on another: the same predictions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from studies.estimators import across_devices

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_networks_saved_by_another_process_are_the_same_here(tmp_path):
    """In one that has torch, numpy and safetensors alone, as a GPU machine may."""
    block = (
        "import sys\n"
        "for name in ('sklearn', 'scipy', 'matplotlib', 'pandas'):\n"
        "    sys.modules[name] = None\n"
        "from studies.estimators import across_devices\n"
        "raise SystemExit(across_devices.main(sys.argv[1:]))\n"
    )
    words = ["--quick", "--device", "cpu", "--out", str(tmp_path / "there")]
    subprocess.run([sys.executable, "-c", block, *words], check=True, capture_output=True, cwd=ROOT)
    here = ["--check", str(tmp_path / "there"), "--out", str(tmp_path)]
    assert across_devices.main(here) == 0
    record = json.loads((tmp_path / "results/across_devices/across_devices.json").read_text())
    assert record["same"]
    assert set(record["largest_difference"]) == set(across_devices.FAMILIES)


def test_an_estimator_is_among_them(tmp_path):
    across_devices.make(tmp_path, "cpu", epochs=1)
    found = across_devices.check(tmp_path)
    assert set(found["largest_difference"]) == {*across_devices.FAMILIES, "estimator"}
    assert found["largest_difference"]["estimator"] == 0.0
    expected = json.loads((tmp_path / "expected.json").read_text())
    expected["probs"]["estimator"][0][0] += 1e-3
    (tmp_path / "expected.json").write_text(json.dumps(expected))
    assert not across_devices.check(tmp_path)["same"]
