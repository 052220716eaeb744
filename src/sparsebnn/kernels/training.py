r"""The elementwise parts of a training step of dense networks, by compiled loops.

PyTorch runs them operation by operation, some ninety in a step of a small network, and each costs more to
start than to do. ``training.c`` does each in one pass. Tensors are stacked, ``(K, …)``; compiled loops take
contiguous tensors of float32 on a CPU.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsebnn.kernels.compiler import library

__all__ = [
    "Compiled",
    "Weights",
    "adam",
    "available",
    "finite",
    "logistics",
    "makes",
    "normals",
    "normals_at",
]

_SOURCE = Path(__file__).with_name("training.c")
_CHUNK = 2048  # SB_CHUNK of the C source
# Fewer numbers are not worth waking another thread.
_ALONE = 1 << 16
_P, _I, _F, _D, _T = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_double, ctypes.c_int
_TYPES = {
    **dict.fromkeys(
        ("normals", "normals_double", "logistics", "logistics_double"), (_P, _I, _I, _P, _I, _I, _I, _P, _T)
    ),
    "normals_at": (_P, _I, _I, _I, _I, _P, _P, _P, _I, _P, _T),
    "moments": (_I, _I, _P, _P, _P, _P, _I, _P, _P, _P, _T),
    "priors": (_I, _I, _P, _P, _I, _P, _I, _P, _I, _D, _D, _D, _P),
    "gradients": (_I, _I, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _T),
    "outputs": (_I, _I, _P, _P, _P, _I, _F, _T),
    "inputs": (_I, _I, _I, _P, _P, _P, _P),
    "slopes": (_I, _I, _P, _P, _P, _P, _P, _I, _F, _P, _T),
    "adam": (_I, _P, _P, _P, _P, _P, _P, _P, _I, _F, _F, _F, _F, _T),
    "finite": (_I, _P, _P, _I, _P, _T),
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


class Weights(NamedTuple):
    """Weights of a layer, or its biases, and their prior; without logits all are included.

    ``strengths`` are those of a learned std and a learned inclusion of the prior (None: not learned), and the
    largest inclusion (:class:`~sparsebnn.posteriors.learned_priors.EmpiricalPrior`).
    """

    mean: Tensor
    raw_std: Tensor
    logit: Tensor | None
    prior_mean: Tensor
    prior_std: Tensor
    prior_inclusion: Tensor | None
    strengths: tuple[float | None, float | None, float] = (None, None, 1.0)


def single_priors(w: Weights) -> bool:
    """Whether all is in single precision, and each prior has one value, or one per replicate.

    As many values as replicates may also be those of the inputs or units, so their shape decides.
    """
    values = (w.prior_mean, w.prior_std, *([] if w.prior_inclusion is None else [w.prior_inclusion]))
    own = (len(w.mean), *[1] * (w.mean.dim() - 1))
    single = all(v.numel() == 1 or v.shape == own for v in values)
    return single and all(v.dtype == torch.float32 and v.device == w.mean.device for v in (w.mean, *values))


class Compiled:
    """The elementwise parts of a step; ``sparsebnn.training.dense.Eager`` says what each of them is."""

    @staticmethod
    def takes(w: Weights) -> bool:
        """Whether the loops know them."""
        return single_priors(w) and not w.mean.is_cuda

    @staticmethod
    def moments(w: Weights) -> tuple[Tensor, Tensor, Any]:
        k, n = _counts(w.mean)
        first = w.mean if w.logit is None else torch.empty_like(w.mean)
        var = torch.empty_like(w.mean)
        sums = torch.empty(k, -(-n // _CHUNK), 2, dtype=torch.float64)
        _functions()["moments"](
            k, n, _at(w.mean), _at(w.raw_std), _at(w.logit), _at(w.prior_mean), w.prior_mean.numel() > 1,
            _at(first), _at(var), _at(sums), _threads(k * n),
        )  # fmt: skip
        return first, var, sums

    @staticmethod
    def gradients(
        w: Weights, known: Any, share: Tensor, by_mean: Tensor, by_var: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        k, n = _counts(w.mean)
        prior = torch.empty(k, 3, dtype=torch.float32)
        values: list[Any] = []
        for value in (w.prior_mean, w.prior_std, w.prior_inclusion):
            values += [_at(value), int(value is not None and value.numel() > 1)]
        strengths = [-1.0 if strength is None else strength for strength in w.strengths]
        _functions()["priors"](k, n, _at(known), *values, *strengths, _at(prior))
        by_logit = None if w.logit is None else torch.empty_like(w.mean)
        parts = torch.empty(k, -(-n // _CHUNK), dtype=torch.float64)
        kl = torch.empty(k, dtype=torch.float32)
        _functions()["gradients"](
            k, n, _at(w.mean), _at(w.raw_std), _at(w.logit), _at(prior), _at(share),
            _at(by_mean), _at(by_var), _at(by_logit), _at(parts), _at(kl), _threads(k * n),
        )  # fmt: skip
        found = [by_mean, by_var] if by_logit is None else [by_mean, by_var, by_logit]
        return found, kl

    @staticmethod
    def outputs(mean: Tensor, var: Tensor, noise: Tensor, start: int, least: float) -> None:
        k, n = _counts(mean)
        given = _at(mean), _at(var), noise.data_ptr() + 4 * start, noise.shape[1]
        _functions()["outputs"](k, n, *given, least, _threads(k * n))

    @staticmethod
    def inputs(outputs: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        k, rows, units = outputs.shape
        skipped = 0 if x is None else x.shape[-1]
        z, square = (outputs.new_empty(k, rows, units + skipped) for _ in range(2))
        _functions()["inputs"](k * rows, units, skipped, _at(outputs), _at(x), _at(z), _at(square))
        return z, square

    @staticmethod
    def slopes(
        by_mean: Tensor,
        by_var: Tensor | None,
        outputs: Tensor,
        std: Tensor,
        noise: Tensor,
        start: int,
        least: float,
    ) -> Tensor:
        k, n = _counts(by_mean)
        noisy = torch.empty_like(by_mean)
        _functions()["slopes"](
            k, n, _at(by_mean), _at(by_var), _at(outputs), _at(std),
            noise.data_ptr() + 4 * start, noise.shape[1], least, _at(noisy), _threads(k * n),
        )  # fmt: skip
        return noisy


def makes(seeds: Tensor, step: Tensor | int, count: int, dtype: torch.dtype) -> bool:
    """Whether the loops make these numbers; ``seeds`` and ``step`` broadcast."""
    steps = step.numel() if isinstance(step, Tensor) else 1
    fitting = len(seeds) > 0 and count > 0 and (steps in (1, len(seeds)) or (len(seeds) == 1 and steps > 0))
    known = dtype in (torch.float32, torch.float64) and seeds.device.type == "cpu"
    return fitting and known and available()


def normals(
    seeds: Tensor, stream: int, step: Tensor | int, count: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """``(K, count)`` standard normal numbers; the twin is :func:`sparsebnn.random.noise.normals`."""
    return _numbers("normals", seeds, stream, step, count, dtype)


def logistics(
    seeds: Tensor, stream: int, step: Tensor | int, count: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """``(K, count)`` standard logistic numbers; the twin is :func:`sparsebnn.random.noise.logistics`."""
    return _numbers("logistics", seeds, stream, step, count, dtype)


def _numbers(
    kind: str, seeds: Tensor, stream: int, step: Tensor | int, count: int, dtype: torch.dtype
) -> Tensor:
    steps, seeds = torch.as_tensor(step, dtype=torch.int64).reshape(-1).contiguous(), seeds.contiguous()
    rows = max(len(seeds), len(steps))
    found = torch.empty(rows, count, dtype=dtype)
    keys = _at(seeds), int(len(seeds) > 1), stream, _at(steps), int(len(steps) > 1)
    own = kind if dtype == torch.float32 else f"{kind}_double"
    _functions()[own](*keys, rows, count, _at(found), _threads(found.numel()))
    return found


def normals_at(seeds: Tensor, stream: int, step: int, pairs: Tensor, count: int) -> Tensor:
    """``count`` numbers of :func:`normals`; see :class:`sparsebnn.random.noise.NoisePart`."""
    found = torch.empty(len(seeds), count, dtype=torch.float32)
    seeds, pairs = seeds.contiguous(), pairs.contiguous()
    places = [_at(row) for row in pairs]
    given = _at(seeds), stream, step, len(seeds), count, *places, pairs.shape[1], _at(found)
    _functions()["normals_at"](*given, _threads(found.numel()))
    return found


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
    """One step in place; the twin is :func:`sparsebnn.training.optimizers.adam`."""
    names, k = list(parameters), len(alive)
    listed = [parameters[n] for n in names]
    own = [gradients[n].contiguous() for n in names]
    each = rates[[group_of[n] for n in names]].contiguous()
    pointers = [_pointers(t) for t in (listed, own, [first[n] for n in names], [second[n] for n in names])]
    threads = _threads(sum(t.numel() for t in listed))
    values = _at(each), _at(alive), k, root, *betas, eps, threads
    _functions()["adam"](len(names), _sizes(listed, k), *pointers, *values)


def finite(tensors: Sequence[Tensor], k: int) -> Tensor:
    """Whether all numbers of each tensor and replicate are finite, ``(tensors, K)``."""
    own = [tensor.contiguous() for tensor in tensors]
    found = torch.empty(len(own), k, dtype=torch.bool)
    threads = _threads(sum(tensor.numel() for tensor in own))
    _functions()["finite"](len(own), _sizes(own, k), _pointers(own), k, _at(found), threads)
    return found


def _counts(stack: Tensor) -> tuple[int, int]:
    """Replicates, and numbers of each."""
    k = stack.shape[0]
    return k, stack.numel() // k


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _threads(numbers: int) -> int:
    return torch.get_num_threads() if numbers > _ALONE else 1


def _pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def _sizes(tensors: Sequence[Tensor], k: int) -> Any:
    return (ctypes.c_int64 * len(tensors))(*(tensor.numel() // k for tensor in tensors))
