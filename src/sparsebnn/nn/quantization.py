"""Static quantization: weights as int8 with a scale per unit, activations as uint8, sums as int32.

A value v between layers is the level q = clamp(round(v / scale) + zero, 0, 255). ``scale`` and ``zero`` come
from the smallest and largest values that given rows produce. Outputs of the network are floats.

The inputs that an input-skip network passes on keep their levels and a separate scale. A unit then adds
up levels of two scales: its integer weights are those of w · scale.
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
from sparsebnn.nn.networks import SkipLayer
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


@dataclass(frozen=True)
class _Between:
    """The levels between two ops: those of units, and of the ``carried`` inputs that are passed on."""

    units: _Scale
    carried: int
    passed: _Scale

    def scales(self, op: Op) -> np.ndarray:
        """What a level of every input of a linear op is worth."""
        own = [self.units.scale, self.passed.scale]
        return np.repeat(own, [op.channels - self.carried, self.carried])

    def zeros(self, op: Op) -> np.ndarray:
        """The level of 0 of every input of a linear op."""
        return np.repeat([self.units.zero, self.passed.zero], [op.channels - self.carried, self.carried])


def _weights(op: Op, before: _Between) -> dict[str, Any]:
    """The quantized arrays of a layer with weights."""
    assert op.value is not None
    assert op.start is not None
    assert op.bias is not None
    start = op.start.astype(np.int64)
    counts = start[1:] - start[:-1]
    unit = np.repeat(np.arange(op.units), counts)
    linear = op.name == "linear"  # the indices of a convolution are places in planes of one scale
    value = op.value * (before.scales(op)[op.index] if linear else before.units.scale)
    zero = before.zeros(op)[op.index] if linear else before.units.zero
    largest = np.zeros(op.units)
    np.maximum.at(largest, unit, np.abs(value))
    scale = np.maximum(largest / _MOST, np.abs(op.bias) / _BIAS)
    scale[scale == 0.0] = 1.0
    level = np.rint(value / scale[unit]).astype(np.int8)
    of_zeros = np.zeros(op.units, np.int64)
    np.add.at(of_zeros, unit, zero * level.astype(np.int64))
    bias = np.rint(op.bias / scale).astype(np.int64) - of_zeros
    worst = np.abs(bias) + _LEVELS * _MOST * counts
    if int(worst.max()) >= 1 << 31:
        got = f"{int(counts.max())} weights in a unit"
        raise invalid("network", "quantize", "one whose sums fit in 32 bits", got)
    return {
        "level": level,
        "bias_level": bias.astype(np.int32),
        "scale": scale.astype(np.float32),
        "value": None,
        "bias": None,
    }


class QuantizedNetwork(nn.Module):
    """A quantized network for inference on a CPU; :func:`quantize` makes it.

    It runs by the compiled kernel, or without a compiler by :meth:`reference`, the same in PyTorch.
    ``program`` is what ``sparsebnn.export(..., int8=rows)`` writes as C.
    """

    def __init__(self, program: Program, scales: Sequence[_Between]) -> None:
        super().__init__()
        self.program, self._scales = program, tuple(scales)
        self._run: Any = None

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
        levels = self._scales[0].units.levels(x.to("cpu", torch.float32))
        ops = self.program.ops
        for op, span, before, after in zip(ops, self.program.spans, self._scales, self._scales[1:]):
            passed: list[Tensor] = []
            for module in span:
                if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
                    levels = _sums(module, op, levels, before)
                elif isinstance(module, SkipLayer):
                    passed = [levels[..., op.channels - op.carried :]]
                    levels = module.activation(_sums(module.layer, op, levels, before))
                elif op.name in ("average", "maximum") and not isinstance(module, nn.Flatten | nn.Identity):
                    levels = (module(levels) + (0.5 if op.name == "average" else 0.0)).floor()
                elif op.name == "activation" and not isinstance(module, nn.Flatten | nn.Identity):
                    assert op.scale is not None
                    levels = module((levels - before.units.zero) * float(op.scale[0]))
                else:
                    levels = module(levels)
            if op.name in ("linear", "conv", "activation") and op is not ops[-1]:
                levels = after.units.levels(levels)
            levels = torch.cat([levels, *passed], -1) if passed else levels
        return levels

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_run": None}


def _sums(module: Any, op: Op, levels: Tensor, before: _Between) -> Tensor:
    """A linear layer or a convolution on levels: integer sums, then floats in units of the output."""
    assert op.scale is not None
    assert op.level is not None
    assert op.bias_level is not None
    weight = torch.zeros(module.weight.shape, dtype=torch.float64)
    weight[module.weight != 0] = torch.from_numpy(op.level).double()
    bias = torch.from_numpy(op.bias_level).double()
    if isinstance(module, nn.Linear):
        sums = F.linear(levels.double(), weight, bias)
    else:
        # Beyond the border there are zeros, not the level of 0.
        bias = bias + before.units.zero * weight.flatten(1).sum(1)
        sums = module._conv_forward(levels.double() - before.units.zero, weight, bias)
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
    program = lower(plain, rows.shape[1:])
    if not program.ops or program.ops[-1].name not in ("linear", "conv"):
        expected = "one whose last layer, before an activation, has weights"
        raise invalid("network", "quantize", expected, str(list(plain)[-1]) if len(plain) else "none")
    first, ops, values = _Scale.of(rows), [], rows
    scales = [_Between(first, 0, first)]
    for op, span in zip(program.ops, program.spans):
        for module in span:
            values = module(values)
        before = scales[-1]
        # Pools and selections pass levels on.
        after = before
        if op.name not in ("average", "maximum", "take"):
            own = _Scale.of(values[..., : op.units] if op.carried else values)
            after = _Between(own, op.carried, before.passed if before.carried else before.units)
        arrays: dict[str, Any] = _weights(op, before) if op.name in ("linear", "conv") else {}
        if op.name == "activation":
            arrays = {"scale": np.array([before.units.scale], np.float32)}
        levels: dict[str, Any] = {
            "inverse": after.units.inverse,
            "zero_in": before.units.zero,
            "zero_out": after.units.zero,
        }
        ops.append(replace(op, **arrays, **levels))
        scales.append(after)
    outer: dict[str, Any] = {"inverse_in": first.inverse, "zero_in": first.zero}
    return QuantizedNetwork(replace(program, ops=tuple(ops), quantized=True, **outer), scales)
