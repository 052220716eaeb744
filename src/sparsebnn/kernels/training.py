"""The elementwise parts of a training step on a CPU, by compiled loops (``training.c``): one pass per tensor.

PyTorch runs them operation by operation, some ninety in a step of a small network, and each costs more to
start than to do. Tensors are float32, contiguous and stacked, ``(K, …)``. The tests compare each function
with its eager twin.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsebnn.kernels.compiler import library

__all__ = [
    "adam",
    "available",
    "finite",
    "gradients",
    "inputs",
    "moments",
    "normals",
    "outputs",
    "priors",
    "slopes",
]

_SOURCE = Path(__file__).with_name("training.c")
_CHUNK = 2048  # SB_CHUNK of the C source
# Fewer numbers are not worth waking another thread.
_ALONE = 1 << 16
_P, _I, _F, _D, _T = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_double, ctypes.c_int
_TYPES = {
    "normals": (_P, _I, _I, _I, _I, _P, _T),
    "moments": (_I, _I, _P, _P, _P, _P, _I, _P, _P, _P, _T),
    "priors": (_I, _I, _P, _P, _I, _P, _I, _P, _I, _D, _D, _D, _P),
    "gradients": (_I, _I, _P, _P, _P, _P, _P, _P, _P, _P, _P, _T),
    "outputs": (_I, _I, _P, _P, _P, _I, _F, _T),
    "inputs": (_I, _I, _I, _P, _P, _P, _P),
    "slopes": (_I, _I, _P, _P, _P, _P, _P, _I, _F, _P, _T),
    "adam": (_I, _P, _P, _P, _P, _P, _P, _P, _I, _F, _F, _F, _F, _T),
    "finite": (_I, _P, _P, _I, _P),
}


@functools.cache
def _functions() -> dict[str, Any]:
    loaded = library(_SOURCE).loaded
    found = {}
    for name, types in _TYPES.items() if loaded is not None else ():
        function = getattr(loaded, f"sb_{name}")
        function.argtypes, function.restype = types, None
        found[name] = function
    return found


def available() -> bool:
    """Whether there is a C compiler; the first question compiles."""
    return bool(_functions())


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _threads(numbers: int) -> int:
    return torch.get_num_threads() if numbers > _ALONE else 1


def normals(seeds: Tensor, stream: int, step: int, count: int) -> Tensor:
    """``(K, count)`` standard normal numbers; the twin is :func:`sparsebnn.random.noise.normals`."""
    found = torch.empty(len(seeds), count)
    threads = _threads(found.numel())
    _functions()["normals"](seeds.data_ptr(), stream, step, len(seeds), count, found.data_ptr(), threads)
    return found


def moments(
    mean: Tensor, raw_std: Tensor, logit: Tensor | None, prior_mean: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the weights, and sums that :func:`priors` learns from."""
    k, n = len(mean), mean[0].numel()
    first = mean if logit is None else torch.empty_like(mean)
    var = torch.empty_like(mean)
    sums = torch.empty(k, -(-n // _CHUNK), 2, dtype=torch.float64)
    stride = prior_mean.numel() > 1
    _functions()["moments"](
        k, n, mean.data_ptr(), raw_std.data_ptr(), _at(logit), prior_mean.data_ptr(), stride,
        first.data_ptr(), var.data_ptr(), sums.data_ptr(), _threads(k * n),
    )  # fmt: skip
    return first, var, sums


def priors(
    n: int,
    sums: Tensor,
    mean: Tensor,
    std: Tensor,
    inclusion: Tensor | None,
    strengths: tuple[float, float, float] = (-1.0, -1.0, 1.0),
) -> Tensor:
    """``(K, 3)``: mean, log std and inclusion logit of the prior of n weights.

    ``strengths`` are those of a learned std and a learned inclusion (negative: not learned), and the largest
    inclusion. Values have one element, or one per replicate.
    """
    k = len(sums)
    found = torch.empty(k, 3)
    values = []
    for value in (mean, std, inclusion):
        values += [_at(value), int(value is not None and value.numel() > 1)]
    _functions()["priors"](k, n, sums.data_ptr(), *values, *strengths, found.data_ptr())
    return found


def gradients(
    mean: Tensor,
    raw_std: Tensor,
    logit: Tensor | None,
    prior: Tensor,
    share: Tensor,
    by_mean: Tensor,
    by_var: Tensor,
) -> tuple[list[Tensor], Tensor]:
    """Gradients by mean, raw_std and logit from those by the moments, which are overwritten; and the KL."""
    k, n = len(mean), mean[0].numel()
    by_logit = None if logit is None else torch.empty_like(mean)
    kl = torch.empty(k, -(-n // _CHUNK), dtype=torch.float64)
    _functions()["gradients"](
        k, n, mean.data_ptr(), raw_std.data_ptr(), _at(logit), prior.data_ptr(), share.data_ptr(),
        by_mean.data_ptr(), by_var.data_ptr(), _at(by_logit), kl.data_ptr(), _threads(k * n),
    )  # fmt: skip
    found = [by_mean, by_var] if by_logit is None else [by_mean, by_var, by_logit]
    return found, kl.sum(1)


def outputs(mean: Tensor, var: Tensor, noise: Tensor, start: int, least: float) -> None:
    """mean ← mean + √var · noise and var ← √var; a replicate's noise begins at ``start`` in its row."""
    k, n = len(mean), mean[0].numel()
    first = noise.data_ptr() + 4 * start
    threads = _threads(k * n)
    _functions()["outputs"](k, n, mean.data_ptr(), var.data_ptr(), first, noise.shape[1], least, threads)


def inputs(outputs: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
    """The inputs of the next layer, rectified outputs and then x, and their squares."""
    k, rows, units = outputs.shape
    skipped = 0 if x is None else x.shape[-1]
    z, square = (torch.empty(k, rows, units + skipped) for _ in range(2))
    given = outputs.data_ptr(), _at(x), z.data_ptr(), square.data_ptr()
    _functions()["inputs"](k * rows, units, skipped, *given)
    return z, square


def slopes(
    by_mean: Tensor,
    by_var: Tensor | None,
    outputs: Tensor,
    std: Tensor,
    noise: Tensor,
    start: int,
    least: float,
) -> Tensor:
    """The gradient by the outputs, in the place of ``by_mean``; the result is that times noise / (2 std)."""
    k, n = len(by_mean), by_mean[0].numel()
    noisy = torch.empty_like(by_mean)
    _functions()["slopes"](
        k, n, by_mean.data_ptr(), _at(by_var), outputs.data_ptr(), std.data_ptr(),
        noise.data_ptr() + 4 * start, noise.shape[1], least, noisy.data_ptr(), _threads(k * n),
    )  # fmt: skip
    return noisy


def _pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def _sizes(tensors: Sequence[Tensor], k: int) -> Any:
    return (ctypes.c_int64 * len(tensors))(*(tensor.numel() // k for tensor in tensors))


def adam(
    parameters: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    first: Mapping[str, Tensor],
    second: Mapping[str, Tensor],
    rates: Tensor,
    group_of: Mapping[str, int],
    root: float,
    alive: Tensor,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """One step in place; ``rates`` ``(groups, K)`` include the first correction, ``root`` is the second's."""
    names, k = list(parameters), len(alive)
    listed = [parameters[n] for n in names]
    own = [gradients[n].contiguous() for n in names]
    each = rates[[group_of[n] for n in names]].contiguous()
    pointers = [_pointers(t) for t in (listed, own, [first[n] for n in names], [second[n] for n in names])]
    threads = _threads(sum(t.numel() for t in listed))
    values = each.data_ptr(), alive.data_ptr(), k, root, *betas, eps, threads
    _functions()["adam"](len(names), _sizes(listed, k), *pointers, *values)


def finite(tensors: Sequence[Tensor], k: int) -> Tensor:
    """Whether all numbers of each tensor and replicate are finite, ``(tensors, K)``."""
    own = [tensor.contiguous() for tensor in tensors]
    found = torch.empty(len(own), k, dtype=torch.bool)
    _functions()["finite"](len(own), _sizes(own, k), _pointers(own), k, found.data_ptr())
    return found
