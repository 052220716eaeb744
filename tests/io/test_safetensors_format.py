"""Files of tensors are safetensors: the library of that name reads them."""

import safetensors.torch
import torch

from sparsebnn.io import saving, storage


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
