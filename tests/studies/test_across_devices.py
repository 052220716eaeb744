"""studies/across_devices.py and the file behind it: saved on one machine, loaded on another."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from sparsebnn.checks import InvalidInput
from sparsebnn.io import saving, storage
from studies.estimators import across_devices

ROOT = Path(__file__).resolve().parents[2]


def test_networks_saved_by_another_process_are_the_same_here(tmp_path):
    """In one that has torch, numpy and safetensors alone, as a GPU machine may."""
    block = (
        "import sys\n"
        "for name in ('sklearn', 'scipy', 'matplotlib', 'pandas'):\n"
        "    sys.modules[name] = None\n"
        "from studies import across_devices\n"
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


def test_a_file_that_holds_another_network_is_noticed(tmp_path):
    across_devices.make(tmp_path, "cpu", epochs=1)
    other = across_devices._network("gaussian")
    saving.save(other, tmp_path / "gaussian.safetensors")
    assert across_devices.main(["--check", str(tmp_path), "--out", str(tmp_path)]) == 1


def test_models_trained_otherwise_do_not_replace_a_record(tmp_path):
    across_devices.make(tmp_path / "a", "cpu", epochs=1)
    across_devices.make(tmp_path / "b", "cpu", epochs=2)
    here = ["--out", str(tmp_path), "--check"]
    across_devices.main([*here, str(tmp_path / "a")])
    across_devices.main([*here, str(tmp_path / "a")])
    path = tmp_path / "results/across_devices/across_devices.json"
    with pytest.raises(InvalidInput, match="epochs 1 where 2 is asked for"):
        across_devices.main([*here, str(tmp_path / "b")])
    with pytest.raises(InvalidInput, match="a result of --quick too"):
        across_devices.main(["--quick", "--force", *here, str(tmp_path / "b")])
    assert json.loads(path.read_text())["made"]["epochs"] == 1
    across_devices.main(["--force", *here, str(tmp_path / "b")])
    assert json.loads(path.read_text())["made"]["epochs"] == 2


def test_without_a_folder_it_says_what_to_do(tmp_path):
    with pytest.raises(InvalidInput, match="Make it with --out"):
        across_devices.check(tmp_path)


def test_what_is_written_is_safetensors(tmp_path):
    """Read back by the library itself: every type, scalars, empty ones, views, and the header."""
    torch.manual_seed(0)
    types = (torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8)
    tensors = {str(dtype): torch.rand(3, 4).mul(50).to(dtype) for dtype in types}
    tensors |= {"truth": torch.tensor([True, False]), "scalar": torch.tensor(1.5), "none": torch.empty(0, 3)}
    tensors["view"] = torch.randn(4, 6).T[1:3]
    tensors["trained"] = torch.nn.Parameter(torch.randn(5))
    path = tmp_path / "x.safetensors"
    kind = saving._KIND
    storage.write(kind, path, tensors, {"a": 'æ \u2028 "quoted"'})
    found = safetensors.torch.load_file(path)
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor.detach())
    again, header = storage.read(kind, path)
    assert header == {"a": 'æ \u2028 "quoted"'}
    assert set(again) == set(tensors)


class Elsewhere(torch.Tensor):
    """A tensor that says it lies on a GPU, and gives its values only when moved to the CPU."""

    moved = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.to and args[1:] == ("cpu",):
            Elsewhere.moved += 1
            return torch.Tensor.as_subclass(args[0], torch.Tensor)
        if func is torch.Tensor.numpy:
            raise TypeError("can't convert a device tensor to numpy; use Tensor.cpu() first")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensors_of_a_device_are_brought_home_before_they_are_read(tmp_path):
    values = torch.randn(7)
    before = Elsewhere.moved
    storage.write(saving._KIND, tmp_path / "x.safetensors", {"w": values.as_subclass(Elsewhere)}, {})
    assert Elsewhere.moved == before + 1
    assert torch.equal(safetensors.torch.load_file(tmp_path / "x.safetensors")["w"], values)
