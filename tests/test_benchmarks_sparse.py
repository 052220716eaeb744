"""The benchmark of sparse inference: it times the same computation, and its table says what was timed."""

from pathlib import Path

import pytest
import torch

from benchmarks import sparse_inference, tables
from benchmarks.sparse_inference import network, times, ways
from studies.runner import filled


@pytest.mark.parametrize("architecture", ["fc", "skip"])
def test_all_ways_compute_the_same(architecture):
    torch.manual_seed(0)
    dense = network(architecture, 0.03)
    x = torch.rand(3, 784)
    runs = ways(dense, x, 1, compiled=False)
    assert {"dense", "torch_csr", "ours"} <= set(runs)
    for name, run in runs.items():
        found = run(x)
        found = torch.as_tensor(found[0] if isinstance(found, list) else found)
        torch.testing.assert_close(found, dense(x), rtol=0, atol=5e-3 if name == "int8" else 1e-5)


def test_times_are_per_call():
    """A way that takes longer has longer times, however many calls make a turn."""
    x = torch.rand(200, 200)
    found = times({"dense": lambda x: x + 1, "slow": lambda x: [x @ x for _ in range(50)]}, x, 0.02)
    assert len(found["dense"]) == len(found["slow"]) >= 5
    assert min(found["slow"]) > 3 * min(found["dense"])


def test_the_density_is_the_one_asked_for():
    for architecture, density in (("fc", 0.03), ("lenet", 0.1), ("skip", 0.03)):
        layers = [m for m in network(architecture, density).modules() if hasattr(m, "weight")]
        kept = sum(int((layer.weight != 0).sum()) for layer in layers)
        assert abs(kept / sum(layer.weight.numel() for layer in layers) - density) < 0.01 * density**0.5


def test_cells():
    row = {"architecture": "fc", "density": 0.03, "batch": 1000, "threads": 2}
    row["us"] = {"dense": 20_000.0, "ours": 1_000.0, "int8": 40_000.0}
    line = ("fc", "0.03", "1,000", "2", "20,000", "·", "·", "·", "·", "1,000 (20.0×)", "·", "40,000 (0.5×)")
    assert sparse_inference.cells(row) == line
    record = {"provenance": {"kind": "cpu"}, "spec": {"replicates": [1], "parts": ["sparse"]}, "rows": []}
    (table,) = tables.tables({**record, "sparse": [row], "scaling": None})
    assert table.lines == (line,)


@pytest.mark.results
def test_the_page_shows_the_files():
    root = Path(__file__).resolve().parents[1]
    page = (root / "docs/studies/sparse_inference.md").read_text(encoding="utf-8")
    for name, body in sparse_inference.blocks(root / "results/bench").items():
        assert filled(page, body, name) == page
    file = (root / "results/bench/sparse_inference.md").read_text(encoding="utf-8")
    assert sparse_inference.details(root / "results/bench") == file
