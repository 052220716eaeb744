"""Compacted networks in few bytes: of each weight its distance from the one before, and its value.

A distance takes one byte (255 stands for 255 zeros and no weight), a value two as float16 or one as int8, so
that a network of ten thousand weights is a file of some 30 or 20 kB.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.checks import check_choice, invalid
from sparsebnn.io import storage
from sparsebnn.nn.compaction import Take
from sparsebnn.nn.networks import InputSkip
from sparsebnn.nn.sparse import plain_network

__all__ = ["MODULES", "SparseFileError", "load_sparse", "save_sparse"]


class SparseFileError(storage.StorageError):
    """A file of a sparse network that cannot be written or must not be used; the message says why."""


_KIND = storage.Kind(
    noun="sparse network",
    version=1,
    error=SparseFileError,
    if_missing="Check the path, or save a network there first.",
    if_damaged="Save the network again.",
)
_VALUES = ("float16", "float32", "int8")
_ESCAPE = 255
_MOST = 127
_WEIGHTS = (nn.Linear, nn.Conv1d, nn.Conv2d)
_CONV = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "padding_mode")
_POOL = ("kernel_size", "stride", "padding", "ceil_mode")
# The modules that a file can name, and the arguments that make them.
MODULES: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "Linear": (nn.Linear, ("in_features", "out_features")),
    "Conv1d": (nn.Conv1d, _CONV),
    "Conv2d": (nn.Conv2d, _CONV),
    "AvgPool1d": (nn.AvgPool1d, (*_POOL, "count_include_pad")),
    "AvgPool2d": (nn.AvgPool2d, (*_POOL, "count_include_pad")),
    "MaxPool1d": (nn.MaxPool1d, (*_POOL, "dilation")),
    "MaxPool2d": (nn.MaxPool2d, (*_POOL, "dilation")),
    "ReLU": (nn.ReLU, ()),
    "LeakyReLU": (nn.LeakyReLU, ("negative_slope",)),
    "GELU": (nn.GELU, ("approximate",)),
    "SiLU": (nn.SiLU, ()),
    "Tanh": (nn.Tanh, ()),
    "Sigmoid": (nn.Sigmoid, ()),
    "Identity": (nn.Identity, ()),
    "Flatten": (nn.Flatten, ("start_dim", "end_dim")),
    "Take": (Take, ("dim",)),
}


def _gaps(weights: np.ndarray) -> np.ndarray:
    """Where weights that are not zero are, as bytes.

    >>> _gaps(np.array([0.0, 2.0, 1.0, *[0.0] * 300, 3.0])).tolist()
    [1, 0, 255, 45]
    """
    gaps = np.diff(weights.nonzero()[0], prepend=-1) - 1
    escapes = gaps // _ESCAPE
    found = np.full(int(escapes.sum()) + len(gaps), _ESCAPE, np.uint8)
    found[np.cumsum(escapes + 1) - 1] = gaps % _ESCAPE
    return found


def _places(gaps: np.ndarray) -> np.ndarray:
    """What :func:`_gaps` made bytes of."""
    steps = np.where(gaps == _ESCAPE, _ESCAPE, gaps.astype(np.int64) + 1)
    return np.cumsum(steps)[gaps != _ESCAPE] - 1


def _packed(module: nn.Module, values: str) -> dict[str, Tensor]:
    """The tensors of a layer with weights."""
    assert isinstance(module, _WEIGHTS)
    weight = module.weight.detach().to("cpu", torch.float32)
    flat = weight.flatten(1)
    tensors = {"gaps": torch.from_numpy(_gaps(flat.flatten().numpy()))}
    kept = flat[flat != 0]
    if values == "int8":
        scale = flat.abs().amax(1) / _MOST
        rows = (flat != 0).nonzero()[:, 0]
        tensors |= {"values": (kept / scale[rows]).round().to(torch.int8), "scale": scale}
    else:
        tensors["values"] = kept.to(getattr(torch, values))
    if module.bias is not None:
        kind = torch.float32 if values == "float32" else torch.float16
        tensors["bias"] = module.bias.detach().cpu().to(kind)
    for name in ("values", "bias"):
        if name in tensors and not bool(tensors[name].isfinite().all()):
            raise invalid("network", "save_sparse", f"one whose {name} are finite as {values}", "others")
    return tensors


def _unpacked(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Set the weights of a layer; a ValueError where they do not fit."""
    assert isinstance(module, _WEIGHTS)
    places = torch.from_numpy(_places(tensors["gaps"].numpy()))
    values = tensors["values"].to(torch.float32)
    weight = torch.zeros(module.weight.shape).flatten()
    if len(values) != len(places) or (len(places) and int(places[-1]) >= len(weight)):
        raise ValueError("weights and positions do not match")
    if "scale" in tensors:
        values = values * tensors["scale"][places // (len(weight) // module.weight.shape[0])]
    weight[places] = values
    module.weight.copy_(weight.reshape(module.weight.shape))
    if "bias" in tensors:
        assert module.bias is not None
        module.bias.copy_(tensors["bias"])


def save_sparse(network: nn.Module, path: str | Path, values: str = "float16") -> Path:
    """Write the compacted median model of a network, or an ordinary chain of layers, to a small file.

    ``values`` is how weights are kept: ``"float16"``, ``"float32"`` (without loss) or ``"int8"`` with a scale
    per unit. :func:`load_sparse` returns the network as ordinary layers in float32.

    >>> import tempfile
    >>> network = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     loaded = load_sparse(save_sparse(network, f"{folder}/small.safetensors", "float32"))
    >>> torch.equal(loaded[0].weight, network[0].weight)
    True
    """
    check_choice(values, _VALUES, "values", "save_sparse")
    modules, tensors = [], dict[str, Tensor]()
    skip: list[int] = []
    flat: list[nn.Module] = []
    for module in plain_network(network):
        if isinstance(module, InputSkip):
            # As its layers and then its activation; the header says where they are.
            skip = [len(flat), len(flat) + len(module.layers)]
        flat += [*module.layers, module.activation] if isinstance(module, InputSkip) else [module]
    for place, module in enumerate(flat):
        name = type(module).__name__
        if name not in MODULES or getattr(module, "groups", 1) != 1:
            expected = "made of Linear, Conv1d, Conv2d, activations, pools and Flatten"
            raise invalid("network", "save_sparse", expected, str(module))
        if isinstance(module, _WEIGHTS):
            tensors |= {f"{place}.{key}": tensor for key, tensor in _packed(module, values).items()}
        elif isinstance(module, Take):
            tensors[f"{place}.index"] = module.index.to(torch.int32)
        modules.append([name, {key: getattr(module, key) for key in MODULES[name][1]}])
    target = Path(path)
    storage.write(_KIND, target, tensors, {"modules": modules, **({"input_skip": skip} if skip else {})})
    return target


def _made(name: str, options: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    kind, keys = MODULES[name]
    if options.keys() != set(keys):
        raise ValueError(f"options of {name} are missing")
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in options.items()
    }
    if kind is Take:
        return Take(tensors["index"].long(), **given)
    if kind not in _WEIGHTS:
        return kind(**given)
    module = torch.nn.utils.skip_init(kind, **given, bias="bias" in tensors)
    _unpacked(module, tensors)
    return module


@torch.no_grad()
def load_sparse(path: str | Path) -> nn.Sequential:
    """The network in a file of :func:`save_sparse`, as ordinary layers."""
    source = Path(path)
    tensors, header = storage.read(_KIND, source)
    try:
        modules = []
        for place, (name, options) in enumerate(header["modules"]):
            own = {key.split(".", 1)[1]: t for key, t in tensors.items() if key.startswith(f"{place}.")}
            modules.append(_made(name, options, own))
        if "input_skip" in header:
            start, end = header["input_skip"]
            modules[start : end + 1] = [InputSkip(modules[start:end], modules[end])]
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise SparseFileError(f"{source} is damaged ({error}). {_KIND.if_damaged}") from error
    return nn.Sequential(*modules).eval()
