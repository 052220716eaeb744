"""An ordinary chain of layers as the table of ops that ``kernels/sparse_network.c`` evaluates.

Weights become constant arrays: per output its weights that are not zero, and where each of them reads. Shapes
are fixed here, so that the C code needs no allocation. An input-skip network is a chain whose layers pass the
input on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.checks import invalid
from sparsebnn.nn.compaction import Take
from sparsebnn.nn.networks import SkipLayer, steps

__all__ = ["ACTIVATIONS", "ARRAYS", "BORDERS", "KINDS", "Op", "Program", "lower"]

# In the order of the enums in the C source.
KINDS = ("linear", "conv", "average", "maximum", "activation", "take")
ACTIVATIONS = ("identity", "relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")
BORDERS = ("zeros", "reflect", "replicate", "circular")
# The pointers of the C struct sb_op, in its order.
ARRAYS = ("value", "index16", "index32", "start", "bias", "level", "bias_level", "scale")
_PLAIN = {nn.ReLU: "relu", nn.SiLU: "silu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
_AXES = ("height", "width")
_POOLS = {nn.AvgPool1d: "average", nn.AvgPool2d: "average", nn.MaxPool1d: "maximum", nn.MaxPool2d: "maximum"}


@dataclass(frozen=True, eq=False)
class Op:
    """One op; the fields are those of the C struct ``sb_op``, which explains them."""

    value: np.ndarray | None = None
    index16: np.ndarray | None = None
    index32: np.ndarray | None = None
    start: np.ndarray | None = None
    bias: np.ndarray | None = None
    level: np.ndarray | None = None
    bias_level: np.ndarray | None = None
    scale: np.ndarray | None = None
    kind: int = 0
    activation: int = 0
    slope: float = 0.0
    inverse: float = 1.0
    zero_in: int = 0
    zero_out: int = 0
    channels: int = 1
    height: int = 1
    width: int = 1
    outputs: int = 1
    out_height: int = 1
    out_width: int = 1
    kernel_height: int = 1
    kernel_width: int = 1
    stride_height: int = 1
    stride_width: int = 1
    dilation_height: int = 1
    dilation_width: int = 1
    pad_top: int = 0
    pad_left: int = 0
    border: int = 0
    plane_height: int = 0
    plane_width: int = 0
    carried: int = 0

    @property
    def name(self) -> str:
        return KINDS[self.kind]

    @property
    def units(self) -> int:
        """Outputs that have weights."""
        return self.outputs - self.carried

    @property
    def size_in(self) -> int:
        return self.channels * self.height * self.width

    @property
    def size_out(self) -> int:
        return self.outputs * self.out_height * self.out_width

    @property
    def arranged(self) -> int:
        """Values in the arranged planes of a convolution."""
        phases = self.stride_height * self.stride_width
        return self.channels * phases * self.plane_height * self.plane_width if self.name == "conv" else 0

    @property
    def index(self) -> np.ndarray:
        found = self.index16 if self.index16 is not None else self.index32
        assert found is not None
        return found


@dataclass(frozen=True, eq=False)
class Program:
    """The ops of a network for inputs of one shape; ``spans`` are the modules that each op stands for."""

    ops: tuple[Op, ...]
    spans: tuple[tuple[nn.Module, ...], ...]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    quantized: bool = False
    inverse_in: float = 1.0
    zero_in: int = 0

    @property
    def inputs(self) -> int:
        return int(np.prod(self.input_shape))

    @property
    def outputs(self) -> int:
        return int(np.prod(self.output_shape))

    @property
    def products(self) -> int:
        """Products of a weight and an input that a row takes."""
        weighted = (op for op in self.ops if op.start is not None)
        return sum(len(op.index) * op.out_height * max(op.plane_width, 1) for op in weighted)

    def sizes(self) -> dict[str, int]:
        """``largest``, ``arranged`` and ``plane`` of the C struct ``sb_network``."""
        largest = max([self.inputs, *(size for op in self.ops for size in (op.size_in, op.size_out))])
        planes = [op.out_height * op.plane_width for op in self.ops if op.name == "conv"]
        return {
            "largest": largest,
            "arranged": max((op.arranged for op in self.ops), default=0),
            "plane": max(planes, default=0),
        }

    def floats(self, block: int) -> int:
        """Floats of scratch for one thread, as ``sb_floats`` computes them."""
        sizes = self.sizes()
        return 2 * sizes["largest"] * block + sizes["arranged"] + sizes["plane"]


def _two(value: Any, dims: int) -> tuple[int, int]:
    """Height and width of a setting; in one dimension the height is 1 (0 for a padding: see callers)."""
    values = (value,) * dims if isinstance(value, int) else tuple(value)
    return (1, values[0]) if dims == 1 else (values[0], values[1])


def _indices(index: np.ndarray) -> dict[str, Any]:
    small = index.size == 0 or int(index.max()) < 1 << 16
    return {
        "index16": index.astype(np.uint16) if small else None,
        "index32": None if small else index.astype(np.uint32),
    }


def _csr(weight: np.ndarray, offsets: np.ndarray) -> dict[str, Any]:
    """Weights ``(outputs, inputs)`` that are not zero, with the offset of each input."""
    rows, columns = weight.nonzero()
    start = np.searchsorted(rows, np.arange(len(weight) + 1)).astype(np.uint32)
    value = np.ascontiguousarray(weight[rows, columns], dtype=np.float32)
    return {"value": value, "start": start, **_indices(offsets[columns])}


def _numbers(tensor: Tensor | None, size: int) -> np.ndarray:
    if tensor is None:
        return np.zeros(size, np.float32)
    return np.array(tensor.detach().to("cpu", torch.float32).numpy())


def _window(*settings: tuple[int, int]) -> dict[str, Any]:
    """Kernel, stride and dilation as fields of an op."""
    pairs = dict(zip(("kernel", "stride", "dilation"), settings))
    return {f"{name}_{axis}": pair[i] for name, pair in pairs.items() for i, axis in enumerate(_AXES)}


def _linear(module: nn.Linear, shape: tuple[int, ...]) -> tuple[Op, tuple[int, ...]]:
    if len(shape) != 1 or shape[0] != module.in_features:
        expected = f"one that gives {module} rows of {module.in_features} numbers"
        raise invalid("network", "lower", expected, f"rows of shape {shape}", "Put a Flatten before it.")
    weight = _numbers(module.weight, 0)
    arrays = _csr(weight, np.arange(module.in_features))
    bias = _numbers(module.bias, module.out_features)
    op = Op(**arrays, bias=bias, channels=module.in_features, outputs=module.out_features)
    return op, (module.out_features,)


def _skip(module: SkipLayer, shape: tuple[int, ...]) -> tuple[Op, tuple[int, ...]]:
    """A linear op that passes its last inputs on."""
    bend = _activation(module.activation)
    if bend is None and not isinstance(module.activation, nn.Identity):
        raise invalid("network", "lower", "one of known activations", type(module.activation).__name__)
    op, (units,) = _linear(module.layer, shape)  # type: ignore[arg-type]
    outputs = units + module.carried
    return replace(op, outputs=outputs, carried=module.carried, **(bend or {})), (outputs,)


def _conv(module: nn.Conv1d | nn.Conv2d, shape: tuple[int, ...]) -> tuple[Op, tuple[int, ...]]:
    dims = 1 if isinstance(module, nn.Conv1d) else 2
    if module.groups != 1:
        raise invalid("network", "lower", "free of grouped convolutions", str(module))
    if len(shape) != dims + 1 or shape[0] != module.in_channels:
        expected = f"one that gives {module} rows of {module.in_channels} channels of {dims} axes"
        raise invalid("network", "lower", expected, f"rows of shape {shape}")
    height, width = _two(shape[1:], dims)
    kernel, stride, dilation = (
        _two(value, dims) for value in (module.kernel_size, module.stride, module.dilation)
    )
    # torch keeps the pads of every axis, last axis first, left before right.
    pads: Any = module._reversed_padding_repeated_twice
    left, right = pads[:2]
    top, bottom = pads[2:] if dims == 2 else (0, 0)
    full = (height + top + bottom, width + left + right)
    out = [(f - d * (k - 1) - 1) // s + 1 for f, d, k, s in zip(full, dilation, kernel, stride)]
    if min(out) < 1:
        expected = f"one that gives {module} inputs as large as its kernel"
        raise invalid("network", "lower", expected, f"rows of shape {shape}")
    planes = [-(-f // s) for f, s in zip(full, stride)]
    # Tap (i, j) of channel c reads phase (i·d mod s) of the stride, shifted by i·d // s.
    down = np.arange(kernel[0]) * dilation[0]
    across = np.arange(kernel[1]) * dilation[1]
    rows = (down % stride[0]) * stride[1] * planes[0] * planes[1] + down // stride[0] * planes[1]
    columns = (across % stride[1]) * planes[0] * planes[1] + across // stride[1]
    channel = np.arange(module.in_channels) * (stride[0] * stride[1] * planes[0] * planes[1])
    offsets = channel[:, None, None] + rows[:, None] + columns
    weight = _numbers(module.weight, 0).reshape(module.out_channels, -1)
    op = Op(
        **_csr(weight, offsets.reshape(-1)),
        bias=_numbers(module.bias, module.out_channels),
        kind=KINDS.index("conv"),
        channels=module.in_channels,
        height=height,
        width=width,
        outputs=module.out_channels,
        out_height=out[0],
        out_width=out[1],
        **_window(kernel, stride, dilation),
        pad_top=top,
        pad_left=left,
        border=BORDERS.index(module.padding_mode),
        plane_height=planes[0],
        plane_width=planes[1],
    )
    return op, (module.out_channels, *out[2 - dims :])


def _pool(module: Any, shape: tuple[int, ...]) -> tuple[Op, tuple[int, ...]]:
    dims = 1 if isinstance(module, nn.AvgPool1d | nn.MaxPool1d) else 2
    if len(shape) != dims + 1:
        raise invalid("network", "lower", f"one that gives {module} channels of {dims} axes", shape)
    pad = module.padding if isinstance(module.padding, tuple) else (module.padding,) * dims
    average = isinstance(module, nn.AvgPool1d | nn.AvgPool2d)
    if average and module.count_include_pad and any(pad):
        expected = "free of average pools that count their padding"
        raise invalid("network", "lower", expected, str(module), "Set count_include_pad=False.")
    if getattr(module, "divisor_override", None) or getattr(module, "return_indices", False):
        raise invalid("network", "lower", "free of pools with a divisor or indices", str(module))
    out = tuple(module(torch.zeros(1, *shape)).shape[1:])
    height, width = _two(shape[1:], dims)
    kernel, stride = _two(module.kernel_size, dims), _two(module.stride, dims)
    dilation = _two(getattr(module, "dilation", 1), dims)
    op = Op(
        kind=KINDS.index(_POOLS[type(module)]),
        channels=shape[0],
        height=height,
        width=width,
        outputs=shape[0],
        out_height=1 if dims == 1 else out[1],
        out_width=out[-1],
        **_window(kernel, stride, dilation),
        pad_top=0 if dims == 1 else int(pad[0]),
        pad_left=int(pad[-1]),
    )
    return op, out


def _activation(module: nn.Module) -> dict[str, Any] | None:
    """The C runtime's activation of a module, None for something else."""
    if isinstance(module, nn.LeakyReLU):
        return {"activation": ACTIVATIONS.index("leaky_relu"), "slope": float(module.negative_slope)}
    if isinstance(module, nn.GELU):
        return {"activation": ACTIVATIONS.index("gelu_tanh" if module.approximate == "tanh" else "gelu")}
    name = _PLAIN.get(type(module))
    return None if name is None else {"activation": ACTIVATIONS.index(name)}


def _shaped(shape: tuple[int, ...]) -> dict[str, Any]:
    """A shape as an op's channels, height and width, in and out."""
    channels, height, width = (*shape[:1], *(1,) * (3 - len(shape)), *shape[1:])
    inside = {"channels": channels, "height": height, "width": width}
    return {**inside, "outputs": channels, "out_height": height, "out_width": width}


def _take(module: Take, shape: tuple[int, ...]) -> tuple[Op, tuple[int, ...]]:
    index = module.index.cpu().numpy()
    if module.dim != 1 and len(shape) != 1:
        raise invalid("network", "lower", "one that takes features of rows, or channels", f"shape {shape}")
    if index.size and int(index.max()) >= shape[0]:
        raise invalid("network", "lower", f"one for inputs of more than {int(index.max())} entries", shape[0])
    op = replace(Op(**_shaped(shape)), kind=KINDS.index("take"), outputs=len(index), **_indices(index))
    return op, (len(index), *shape[1:])


def _elementwise(shape: tuple[int, ...], bend: dict[str, Any]) -> Op:
    return Op(**_shaped((int(np.prod(shape)),)), kind=KINDS.index("activation"), **bend)


def _op(module: nn.Module, shape: tuple[int, ...]) -> tuple[Op, tuple[int, ...]]:
    """The op of a module that is no activation, and the shape of its outputs."""
    if isinstance(module, nn.Linear):
        return _linear(module, shape)
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return _conv(module, shape)
    if isinstance(module, SkipLayer):
        return _skip(module, shape)
    if type(module) in _POOLS:
        return _pool(module, shape)
    if isinstance(module, Take):
        return _take(module, shape)
    expected = "made of Linear, Conv1d, Conv2d, activations, pools and Flatten"
    raise invalid("network", "lower", expected, type(module).__name__)


def _flat(module: nn.Flatten, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(module(torch.empty(1, *shape)).shape[1:]) or shape


def lower(network: nn.Module, input_shape: Sequence[int]) -> Program:
    """The ops of a chain of ordinary layers for inputs of shape ``(rows, *input_shape)``.

    >>> program = lower(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), [3])
    >>> [(op.name, ACTIVATIONS[op.activation]) for op in program.ops]
    [('linear', 'relu'), ('linear', 'identity')]
    """
    shape = tuple(int(size) for size in input_shape)
    first, ops, spans, waiting = shape, list[Op](), list[list[nn.Module]](), list[nn.Module]()
    for module in steps(network):
        bend = _activation(module)
        waiting.append(module)
        if isinstance(module, nn.Identity):
            continue
        if isinstance(module, nn.Flatten):
            shape = _flat(module, shape)
            continue
        if bend is not None and ops and ops[-1].name in ("linear", "conv") and ops[-1].activation == 0:
            ops[-1] = replace(ops[-1], **bend)
            spans[-1] += waiting
        else:
            op, shape = _op(module, shape) if bend is None else (_elementwise(shape, bend), shape)
            ops.append(op)
            spans.append(waiting)
        waiting = []
    if spans:
        spans[-1] += waiting
    return Program(tuple(ops), tuple(map(tuple, spans)), first, shape)
