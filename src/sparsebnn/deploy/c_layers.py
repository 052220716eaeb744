"""The layers of ordinary networks as C: sparse arrays, and a function per network."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsebnn.checks import invalid
from sparsebnn.nn.compaction import Take
from sparsebnn.nn.networks import chain

__all__ = ["HELPERS", "Layers", "array"]


def _helpers() -> dict[str, str]:
    """The C functions by name, in the order of ``helpers.c``."""
    text = resources.files("sparsebnn.deploy").joinpath("helpers.c").read_text(encoding="utf-8")
    parts = re.split(r"/\* == (\w+) == \*/\n", text)[1:]
    return {name: code.rstrip() + "\n" for name, code in zip(parts[::2], parts[1::2])}


HELPERS = _helpers()
_INPLACE: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.SiLU: "silu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "hyperbolic",
}
_DENSE = 0.5  # a sparse weight takes six bytes, a dense one four
_LARGEST = 1 << 16  # columns that fit 16 bits


def array(values: Any) -> str:
    """A C initializer."""
    values = np.asarray(values)
    if values.ndim > 1:
        return "{" + ", ".join(array(row) for row in values) + "}"
    if values.dtype.kind == "f":
        single = values.dtype == np.float32
        shown = [_float(np.float32(v)) if single else repr(float(v)) for v in values]
    else:
        shown = [str(int(v)) for v in values]
    return "{" + ", ".join(shown) + "}"


def _float(value: np.float32) -> str:
    text = str(value)
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, tuple):
        return (1, int(value[0])) if len(value) == 1 else (int(value[0]), int(value[1]))
    return int(value), int(value)


class Layers:
    """Collects networks; writes their arrays and functions."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.input_size = int(np.prod(shape))
        self.helpers: dict[str, None] = {}
        self.outputs = 0
        self._arrays: list[str] = []
        self._functions: list[list[str]] = []
        self._largest = self.input_size

    @property
    def scratch(self) -> int:
        """Floats: the inputs, and two buffers that layers read and write in turn."""
        return self.input_size + 2 * self._largest

    def numbers(self) -> list[str]:
        return self._arrays

    def functions(self) -> list[str]:
        """A function per network, and the table of them."""
        count = len(self._functions)
        lines = [f"enum {{ BUFFER = {self._largest} }};", ""]
        for d, body in enumerate(self._functions):
            lines += [f"static const float *network_{d}(const float *x, float *work) {{", *body, "}", ""]
        kind = f"static const float *(*const networks[{count}])(const float *, float *)"
        return [*lines, f"{kind} = {{{', '.join(f'network_{d}' for d in range(count))}}};", ""]

    @torch.no_grad()
    def add(self, network: nn.Module) -> None:
        """Write one network of ordinary layers."""
        writer = _Writer(self, len(self._functions))
        x = torch.zeros(1, *self.shape)
        for module in chain(network):
            y = module(x)
            writer.write(module, tuple(x.shape[1:]), tuple(y.shape[1:]))
            x = y
        self.outputs = x.numel()
        self._functions.append(writer.finished())
        self._largest = max(self._largest, writer.largest)


class _Writer:
    """One network: statements, and where the numbers are at the moment."""

    def __init__(self, layers: Layers, number: int) -> None:
        self.layers, self.number, self.lines = layers, number, []  # type: ignore[var-annotated]
        self.place = "x"  # then "a" and "b" in turn
        self.largest = layers.input_size
        self._count = 0
        self._used: set[str] = set()

    def finished(self) -> list[str]:
        used = [name for name in "ab" if name in self._used]
        buffers = {"a": "  float *const a = work;", "b": "  float *const b = work + BUFFER;"}
        declared = [buffers[name] for name in used] or ["  (void)work;"]
        return [*declared, *self.lines, f"  return {self.place};"]

    def _next(self, size: int) -> tuple[str, str]:
        """From where to where the next layer works."""
        before = self.place
        self.place = "b" if before == "a" else "a"
        self._used.add(self.place)
        self.largest = max(self.largest, size)
        return before, self.place

    def _array(self, kind: str, values: Any) -> str:
        name = f"n{self.number}_{self._count}"
        self._count += 1
        values = np.asarray(values)
        if values.size == 0:  # C has no arrays of no elements
            values = np.zeros(1, values.dtype)
        self.layers._arrays.append(f"static const {kind} {name}[{values.size}] = {array(values.ravel())};")
        return name

    def _call(self, helper: str, *arguments: object) -> None:
        self.layers.helpers[helper] = None
        shown = [f"{each}u" if isinstance(each, int) else str(each) for each in arguments]
        self.lines.append(f"  {helper}({', '.join(shown)});")

    def write(self, module: nn.Module, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        size = int(np.prod(after))
        if isinstance(module, nn.Flatten | nn.Identity):
            return
        if isinstance(module, nn.Linear):
            self._linear(module)
        elif isinstance(module, nn.Conv1d | nn.Conv2d):
            self._convolution(module, before, after)
        elif isinstance(module, Take):
            index = self._array("uint32_t", module.index.numpy())
            inner = 1 if module.dim == -1 else int(np.prod(before[1:]))
            source, to = self._next(size)
            self._call("take", source, to, index, len(module.index), inner)
        elif isinstance(module, nn.AvgPool1d | nn.AvgPool2d | nn.MaxPool1d | nn.MaxPool2d):
            self._pool(module, before, after)
        else:
            self._activation(module, size)

    def _activation(self, module: nn.Module, size: int) -> None:
        if self.place == "x":  # the inputs are not overwritten
            source, to = self._next(size)
            self.lines.append(f"  for (uint32_t i = 0; i < {size}u; ++i) {to}[i] = {source}[i];")
        if type(module) in _INPLACE:
            self._call(_INPLACE[type(module)], self.place, size)
        elif isinstance(module, nn.LeakyReLU):
            self._call("leaky_relu", self.place, size, _float(np.float32(module.negative_slope)))
        elif isinstance(module, nn.GELU):
            self._call("gelu" if module.approximate == "none" else "gelu_tanh", self.place, size)
        else:
            raise _unsupported(module)

    def _linear(self, module: nn.Linear) -> None:
        weight = module.weight.detach().float().numpy()
        bias = self._bias(module)
        source, to = self._next(len(weight))
        if np.mean(weight != 0.0) > _DENSE or weight.shape[1] > _LARGEST:
            name = self._array("float", weight)
            self._call("dense", source, to, name, bias, weight.shape[1], len(weight))
            return
        starts = np.concatenate([[0], (weight != 0.0).sum(1).cumsum()])
        rows, columns = np.nonzero(weight)
        names = [
            self._array("uint32_t", starts),
            self._array("uint16_t", columns),
            self._array("float", weight[rows, columns]),
        ]
        self._call("sparse", source, to, *names, bias, len(weight))

    def _bias(self, module: Any) -> str:
        outputs = len(module.weight)
        values = (
            np.zeros(outputs, np.float32) if module.bias is None else module.bias.detach().float().numpy()
        )
        return self._array("float", values)

    def _convolution(self, module: Any, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        if module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str):
            raise _unsupported(module)
        flat = len(before) == 2
        height, width = (1, before[1]) if flat else before[1:]
        (down, right), (ph, pw) = _pair(module.stride), _pair(module.padding)
        dh, dw = _pair(module.dilation)
        if flat:
            ph, down = 0, 1
        if ph or pw:
            padded = (height + 2 * ph) * (width + 2 * pw) * before[0]
            source, to = self._next(padded)
            self._call("pad", source, to, before[0], height, width, ph, pw)
            height, width = height + 2 * ph, width + 2 * pw
        weight = module.weight.detach().float().numpy()
        weight = weight[:, :, None, :] if flat else weight
        out, channel, row, column = np.nonzero(weight)
        offsets = channel * height * width + row * dh * width + column * dw
        starts = np.concatenate([[0], np.bincount(out, minlength=len(weight)).cumsum()])
        bias = self._bias(module)
        names = [
            self._array("uint32_t", starts),
            self._array("uint32_t", offsets),
            self._array("float", weight[out, channel, row, column]),
        ]
        oh, ow = (1, after[1]) if flat else after[1:]
        source, to = self._next(int(np.prod(after)))
        self._call("convolution", source, to, *names, bias, len(weight), oh, ow, down * width, right)

    def _pool(self, module: Any, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        flat = len(before) == 2
        plain = not any(_pair(module.padding)[1:] if flat else _pair(module.padding)) and not module.ceil_mode
        if (
            not plain
            or _pair(getattr(module, "dilation", 1))[1] != 1
            or getattr(module, "divisor_override", None)
        ):
            raise _unsupported(module)
        (kh, kw), (sh, sw) = _pair(module.kernel_size), _pair(module.stride)
        if flat:
            kh = sh = 1
        height, width = (1, before[1]) if flat else before[1:]
        oh, ow = (1, after[1]) if flat else after[1:]
        kind = "average_pool" if isinstance(module, nn.AvgPool1d | nn.AvgPool2d) else "max_pool"
        source, to = self._next(int(np.prod(after)))
        self._call(kind, source, to, before[0], height, width, oh, ow, kh, kw, sh, sw)


def _unsupported(module: nn.Module) -> Exception:
    expected = (
        "made of dense layers, convolutions and pools without groups or ceil_mode, and activations for C"
    )
    return invalid("model", "export", expected, str(module).splitlines()[0], "ONNX and pt2 take any module.")
