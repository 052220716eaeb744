"""sparse_files.py: what is read is what was written, in few bytes."""

import numpy as np
import pytest
import torch
from torch import nn

import sparsebnn
from contracts.members import generator
from nn.test_sparse import images, pruned
from sparsebnn.checks import InvalidInput
from sparsebnn.io import sparse_files, storage
from sparsebnn.io.sparse_files import SparseFileError, load_sparse, save_sparse
from sparsebnn.nn.compaction import compact


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.5, 1.0])
def test_places_are_bytes_and_back(share):
    chosen = np.random.default_rng(0).random(20_000) < share
    gaps = sparse_files._gaps(chosen.astype(float))
    assert gaps.dtype == np.uint8
    assert np.array_equal(sparse_files._places(gaps), chosen.nonzero()[0])


@pytest.mark.parametrize(("values", "loss"), [("float32", 0.0), ("float16", 1e-3), ("int8", 2e-2)])
def test_networks_come_back(values, loss, tmp_path):
    initial = sparsebnn.init.Initial(inclusion_logit=sparsebnn.init.Normal(-2.0, 1.0))
    median = compact(sparsebnn.mlp([30, 40, 3], initial=initial)).network
    odd = nn.Sequential(
        nn.Conv1d(2, 3, 3, padding="same", dilation=2, bias=False, padding_mode="reflect"),
        nn.LeakyReLU(0.3),
        nn.MaxPool1d(3, 2, padding=1, ceil_mode=True),
        nn.GELU("tanh"),
        nn.AvgPool1d(2),
        nn.Flatten(),
        nn.Linear(6, 4),
        nn.Sigmoid(),
    )
    for network, shape in ((median, (30,)), (pruned(images(padding=1), 0.2), (2, 12, 12)), (odd, (2, 9))):
        loaded = load_sparse(save_sparse(network, tmp_path / "small.safetensors", values))
        assert [type(m) for m in loaded] == [type(m) for m in network]
        x = torch.randn(20, *shape, generator=generator(0))
        expected = network(x).detach()
        off = (loaded(x).detach() - expected).abs().max()
        assert float(off) <= loss * max(1.0, float(expected.abs().max()))


def test_bytes_per_weight(tmp_path):
    """784-400-600-10 at density 0.02: 3 bytes a weight as float16, 2 as int8, and the biases."""
    network = nn.Sequential(
        nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 600), nn.ReLU(), nn.Linear(600, 10)
    )
    network = pruned(network, 0.02)
    weights = sum(int((m.weight != 0).sum()) for m in network if isinstance(m, nn.Linear))
    sizes = {v: save_sparse(network, tmp_path / v, v).stat().st_size for v in ("float16", "int8")}
    biases = 2 * 1010
    assert sizes["float16"] < 3.05 * weights + biases + 1_500
    assert sizes["int8"] < 2.05 * weights + 3 * biases + 1_500


def test_damaged_files(tmp_path):
    path = save_sparse(nn.Sequential(nn.Linear(30, 20)), tmp_path / "small.safetensors")
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(SparseFileError, match="damaged"):
        load_sparse(path)
    good, header = {"0.gaps": torch.zeros(2, dtype=torch.uint8), "0.values": torch.ones(2)}, ["Linear", {}]
    options = {"in_features": 1, "out_features": 1}
    for tensors, modules in (
        (good, [["Linear", options]]),  # two weights where one is
        ({"0.gaps": good["0.gaps"]}, [["Linear", {"in_features": 2, "out_features": 1}]]),
        (good, [header]),
        (good, [["Softmax", {}]]),
        (good, 3),
    ):
        storage.write(sparse_files._KIND, path, tensors, {"modules": modules})
        with pytest.raises(SparseFileError, match="damaged"):
            load_sparse(path)


def test_messages(tmp_path):
    path = tmp_path / "small.safetensors"
    with pytest.raises(InvalidInput, match="'values' of save_sparse"):
        save_sparse(nn.Sequential(nn.Linear(2, 2)), path, "int4")
    with pytest.raises(InvalidInput, match="Got Softmax"):
        save_sparse(nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1)), path)
    large = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        large[0].weight[0, 0] = 1e6
    with pytest.raises(InvalidInput, match="finite as float16"):
        save_sparse(large, path)
    assert not path.exists()
