"""Static quantization: weights as int8 with a scale per unit, activations as uint8, sums as int32.

A value v between layers is the level q = clamp(round(v / scale) + zero, 0, 255). ``scale`` and ``zero`` come
from the smallest and largest values that given rows produce. Outputs of the network are floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import check_finite, check_rows, check_tensor, invalid
from sparsebnn.kernels.compiler import kernel
from sparsebnn.nn.compiled import compiled_call
from sparsebnn.nn.lowering import Op, Program, lower
from sparsebnn.nn.networks import InputSkip
from sparsebnn.nn.sparse import plain_network

__all__ = ["QuantizedNetwork", "quantize"]

_LEVELS = 255
_MOST = 127
# Biases are sums of levels, too; so many keep them exact as floats.
_BIAS = 1 << 22


@dataclass(frozen=True)
class _Scale:
    """What a level is worth, and the level of 0."""

    scale: float
    zero: int

    @classmethod
    def of(cls, values: Tensor) -> _Scale:
        low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
        scale = float(np.float32((high - low) / _LEVELS)) or 1.0
        return cls(scale, round(-low / scale))

    @property
    def inverse(self) -> float:
        return float(np.float32(1.0 / self.scale))

    def levels(self, values: Tensor) -> Tensor:
        """Float32 arithmetic as in the C code."""
        at = values * self.inverse + self.zero
        return (at.clamp(0.0, _LEVELS) + 0.5).floor()


def _weights(op: Op, before: _Scale) -> dict[str, Any]:
    """The quantized arrays of a layer with weights."""
    assert op.value is not None
    assert op.start is not None
    assert op.bias is not None
    start = op.start.astype(np.int64)
    counts = start[1:] - start[:-1]
    unit = np.repeat(np.arange(op.outputs), counts)
    largest = np.zeros(op.outputs)
    np.maximum.at(largest, unit, np.abs(op.value))
    scale = np.maximum(largest / _MOST, np.abs(op.bias) / (before.scale * _BIAS))
    scale[scale == 0.0] = 1.0
    level = np.rint(op.value / scale[unit]).astype(np.int8)
    sums = np.zeros(op.outputs, np.int64)
    np.add.at(sums, unit, level.astype(np.int64))
    bias = np.rint(op.bias / (scale * before.scale)).astype(np.int64) - before.zero * sums
    worst = np.abs(bias) + _LEVELS * _MOST * counts
    if int(worst.max()) >= 1 << 31:
        got = f"{int(counts.max())} weights in a unit"
        raise invalid("network", "quantize", "one whose sums fit in 32 bits", got)
    return {
        "level": level,
        "bias_level": bias.astype(np.int32),
        "scale": (scale * before.scale).astype(np.float32),
        "value": None,
        "bias": None,
    }


class QuantizedNetwork(nn.Module):
    """A quantized network for inference on a CPU; :func:`quantize` makes it.

    It runs by the compiled kernel, or without a compiler by :meth:`reference`, the same in PyTorch.
    ``program`` is what ``sparsebnn.export(..., int8=rows)`` writes as C.
    """

    def __init__(self, program: Program, scales: Sequence[_Scale]) -> None:
        super().__init__()
        self.program, self._scales = program, tuple(scales)
        self._run: Any = None

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights, indices, biases and scales in memory."""
        names = ("level", "index16", "index32", "start", "bias_level", "scale")
        arrays = (getattr(op, name) for op in self.program.ops for name in names)
        return sum(array.nbytes for array in arrays if array is not None)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.program.input_shape:
            raise invalid(
                "x", "QuantizedNetwork", f"rows of shape {self.program.input_shape}", tuple(x.shape)
            )
        if kernel().run is None:
            return self.reference(x)
        if self._run is None:
            self._run = compiled_call(self.program, kernel())
        return self._run(x.to("cpu", torch.float32).contiguous())

    @torch.no_grad()
    def reference(self, x: Tensor) -> Tensor:
        """The integers in PyTorch (sums in float64, which are exact); layer by layer, slow."""
        levels = self._scales[0].levels(x.to("cpu", torch.float32))
        ops = self.program.ops
        for op, span, before, after in zip(ops, self.program.spans, self._scales, self._scales[1:]):
            for module in span:
                if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
                    levels = _sums(module, op, levels, before)
                elif op.name in ("average", "maximum") and not isinstance(module, nn.Flatten | nn.Identity):
                    levels = (module(levels) + (0.5 if op.name == "average" else 0.0)).floor()
                elif op.name == "activation" and not isinstance(module, nn.Flatten | nn.Identity):
                    assert op.scale is not None
                    levels = module((levels - before.zero) * float(op.scale[0]))
                else:
                    levels = module(levels)
            if op.name in ("linear", "conv", "activation") and op is not ops[-1]:
                levels = after.levels(levels)
        return levels

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_run": None}


def _sums(module: nn.Linear | nn.Conv1d | nn.Conv2d, op: Op, levels: Tensor, before: _Scale) -> Tensor:
    """A layer on levels: integer sums, then floats in units of the output."""
    assert op.scale is not None
    assert op.level is not None
    assert op.bias_level is not None
    weight = torch.zeros(module.weight.shape, dtype=torch.float64)
    weight[module.weight != 0] = torch.from_numpy(op.level).double()
    bias = torch.from_numpy(op.bias_level).double() + before.zero * weight.flatten(1).sum(1)
    x = levels.double() - before.zero
    if isinstance(module, nn.Linear):
        sums = F.linear(x, weight, bias)
    else:
        sums = module._conv_forward(x, weight, bias)
    scale = torch.from_numpy(op.scale).reshape(-1, *[1] * (sums.dim() - 2))
    return sums.float() * scale


@torch.no_grad()
def quantize(network: nn.Module, rows: Tensor) -> QuantizedNetwork:
    """Quantize the median model of a network, or an ordinary chain of layers, with ranges from ``rows``.

    Some hundred rows like those of the application are enough; values beyond their range are clamped.

    >>> network = nn.Sequential(nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 3))
    >>> x = torch.randn(100, 8)
    >>> (quantize(network, x)(x) - network(x)).abs().max() < 0.05
    tensor(True)
    """
    rows = check_finite(check_tensor(rows, "rows", "quantize", torch.float32), "rows", "quantize").cpu()
    check_rows([("rows", len(rows))], "quantize")
    plain = plain_network(network).to("cpu", torch.float32)
    if any(isinstance(module, InputSkip) for module in plain):
        advice = "The inputs that are passed on have another scale than the units; use float weights."
        raise invalid("network", "quantize", "a chain of layers", "an InputSkip", advice)
    program = lower(plain, rows.shape[1:])
    if not program.ops or program.ops[-1].name not in ("linear", "conv"):
        expected = "one whose last layer, before an activation, has weights"
        raise invalid("network", "quantize", expected, str(list(plain)[-1]) if len(plain) else "none")
    scales, ops, values = [_Scale.of(rows)], [], rows
    for op, span in zip(program.ops, program.spans):
        for module in span:
            values = module(values)
        before = scales[-1]
        # Pools and selections pass levels on.
        after = before if op.name in ("average", "maximum", "take") else _Scale.of(values)
        arrays: dict[str, Any] = _weights(op, before) if op.name in ("linear", "conv") else {}
        if op.name == "activation":
            arrays = {"scale": np.array([before.scale], np.float32)}
        levels: dict[str, Any] = {"inverse": after.inverse, "zero_in": before.zero, "zero_out": after.zero}
        ops.append(replace(op, **arrays, **levels))
        scales.append(after)
    first: dict[str, Any] = {"inverse_in": scales[0].inverse, "zero_in": scales[0].zero}
    return QuantizedNetwork(replace(program, ops=tuple(ops), quantized=True, **first), scales)
