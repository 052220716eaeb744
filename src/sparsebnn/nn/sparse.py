"""The median model for inference on a CPU: each layer in the form that is fastest on this machine.

A layer with few weights left is faster as a list of weights than as a matrix. How few depends on the machine
and on the batch, so it is measured: dense PyTorch, PyTorch's or SciPy's CSR product, or the compiled kernel
(``kernels/sparse_network.c``), which runs any number of consecutive layers in one call.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn.checks import InvalidInput, check_count, invalid
from sparsebnn.kernels.compiler import kernel
from sparsebnn.nn.compaction import Take, compact
from sparsebnn.nn.compiled import compiled_call
from sparsebnn.nn.layers import BayesianLayer
from sparsebnn.nn.lowering import lower
from sparsebnn.nn.networks import InputSkip, SkipLayer, chain, check_no_hooks, steps

__all__ = ["METHODS", "SparseNetwork", "plain_network"]

METHODS = ("dense", "torch_csr", "scipy_csr", "kernel")
_BATCH_SIZES = (1, 32, 1000)
_WEIGHTS = (nn.Linear, nn.Conv1d, nn.Conv2d, InputSkip, SkipLayer)
_SECONDS = 0.02
_SHAPES = 64
Run = Callable[[Tensor], Tensor]


def plain_network(network: nn.Module) -> nn.Sequential:
    """A copy of a network as ordinary layers: the compacted median model of a Bayesian one."""
    if any(isinstance(module, BayesianLayer) for module in network.modules()):
        return compact(network).network
    if not isinstance(network, nn.Sequential | InputSkip):
        expected = "a Sequential or InputSkip"
        raise invalid("network", "SparseNetwork", expected, type(network).__name__)
    check_no_hooks(network, "SparseNetwork")
    return nn.Sequential(*(copy.deepcopy(module) for module in chain(network))).eval()


class _TorchCSR(nn.Module):
    """A linear layer as PyTorch's CSR product."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "in beta state"
            self.weight = layer.weight.detach().to_sparse_csr()
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        y = (self.weight @ x.t()).t()
        return y if self.bias is None else y + self.bias


class _ScipyCSR(nn.Module):
    """A linear layer as SciPy's CSR product."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        from scipy.sparse import csr_matrix

        self.matrix = csr_matrix(layer.weight.detach().numpy())
        self.bias = 0.0 if layer.bias is None else layer.bias.detach().numpy()

    def forward(self, x: Tensor) -> Tensor:
        array = x.numpy()
        y = self.matrix @ (array[0] if len(array) == 1 else array.T)
        return torch.from_numpy(y.T.reshape(len(array), -1) + self.bias)


def _stages(network: nn.Module) -> list[list[nn.Module]]:
    """Layers with weights, each with what follows it; the first also with what comes before it."""
    stages: list[list[nn.Module]] = [[]]
    for module in steps(network):
        if isinstance(module, _WEIGHTS) and any(isinstance(m, _WEIGHTS) for m in stages[-1]):
            stages.append([])
        stages[-1].append(module)
    return stages


def _replaced(stage: Sequence[nn.Module], kind: type[nn.Module]) -> nn.Module:
    modules = []
    for module in stage:
        if isinstance(module, SkipLayer):
            module = SkipLayer(kind(module.layer), module.activation, module.carried)
        modules.append(kind(module) if isinstance(module, nn.Linear) else module)
    return nn.Sequential(*modules)


def _times(runs: Mapping[Any, Run], x: Tensor, seconds: float = _SECONDS) -> dict[Any, float]:
    """The shortest time of each, measured in turns; at least three turns, and at least ``seconds`` in all."""
    best = dict.fromkeys(runs, math.inf)
    began, turns = time.perf_counter(), 0
    while turns < 3 or time.perf_counter() - began < seconds:
        for name, run in runs.items():
            start = time.perf_counter()
            run(x)
            best[name] = min(best[name], time.perf_counter() - start)
        turns += 1
    return best


@dataclass(frozen=True)
class _Plan:
    """How rows of one shape are run up to some batch size."""

    most: float
    methods: tuple[str, ...]
    run: Run


class SparseNetwork(nn.Module):
    """The median model of ``network``, or a plain ``nn.Sequential`` with zeros in its weights, for inference.

    On a CPU each layer runs in the form that was fastest here for the batch size at hand, and the whole is
    never left slower than dense PyTorch; :attr:`methods` tells the choice. On another device, and for other
    dtypes than float32, it is the compacted dense network, :attr:`dense`. Outputs have no gradient; weights
    are those of the time of construction.

    ``input_shape`` is the shape of one row, which convolutions need to be measured at once; without it that
    happens with the first batch. Choices are made for ``batch_sizes`` and apply to those near them.

    >>> import sparsebnn
    >>> from sparsebnn.init import Initial, Normal
    >>> network = sparsebnn.mlp([8, 20, 3], initial=Initial(inclusion_logit=Normal(-2, 1)))
    >>> sparse = SparseNetwork(network)
    >>> x = torch.randn(5, 8)
    >>> torch.allclose(sparse(x), compact(network).network(x), atol=1e-5)
    True
    """

    dense: nn.Sequential

    def __init__(
        self,
        network: nn.Module,
        input_shape: Sequence[int] | None = None,
        batch_sizes: Sequence[int] = _BATCH_SIZES,
    ) -> None:
        super().__init__()
        self.dense = plain_network(network).requires_grad_(False)
        self.batch_sizes = self._checked(batch_sizes)
        layers = [module for module in self.dense if isinstance(module, _WEIGHTS)]
        if not layers:
            raise invalid("network", "SparseNetwork", "one with Linear, Conv1d or Conv2d", "none")
        # Without convolutions and Flatten every axis but the last is a kind of row.
        self._rowwise = not any(isinstance(m, nn.Flatten | nn.Conv1d | nn.Conv2d) for m in self.dense)
        self._shape: tuple[int, ...] | None = None
        self._plans: tuple[_Plan, ...] = ()
        self._runs: dict[torch.Size, Run] = {}  # by the shape of a batch: a call is then one look-up
        if input_shape is None and isinstance(self.dense[0], nn.Linear | InputSkip):
            input_shape = (self.dense[0].in_features,)
        self._check_modules()
        if input_shape is not None:
            self.tune(input_shape)

    @staticmethod
    def _checked(batch_sizes: Sequence[int]) -> tuple[int, ...]:
        sizes = {check_count(size, "batch_sizes", "SparseNetwork") for size in batch_sizes}
        if not sizes:
            raise invalid("batch_sizes", "SparseNetwork", "at least one number", "none")
        return tuple(sorted(sizes))

    def _check_modules(self) -> None:
        from sparsebnn.nn.compaction import _ELEMENTWISE, _POOLS

        for module in self.dense:
            if not isinstance(module, (*_WEIGHTS, *_ELEMENTWISE, *_POOLS, nn.Flatten, Take)):
                expected = "made of Linear, Conv1d, Conv2d, activations, pools and Flatten"
                raise invalid("network", "SparseNetwork", expected, type(module).__name__)

    @property
    def kernel(self) -> str:
        """What became of the compiled kernel: by which compiler, or why there is none."""
        return kernel().description

    @property
    def methods(self) -> dict[int, tuple[str, ...]]:
        """For each batch size the method of every layer: one of :data:`METHODS`."""
        return {size: plan.methods for size, plan in zip(self.batch_sizes, self._plans)}

    @torch.no_grad()
    def tune(self, input_shape: Sequence[int], batch_sizes: Sequence[int] | None = None) -> None:
        """Measure the methods on random rows of this shape, with torch's current number of threads."""
        if batch_sizes is not None:
            self.batch_sizes = self._checked(batch_sizes)
        shape = tuple(check_count(size, "input_shape", "SparseNetwork") for size in input_shape)
        dense = self.dense if self._on_cpu() else None
        plans = []
        generator = torch.Generator().manual_seed(0)
        for size, following in zip(self.batch_sizes, (*self.batch_sizes[1:], None)):
            most = math.inf if following is None else math.sqrt(size * following)
            if dense is None:
                plans.append(_Plan(most, (), self.dense))
                continue
            x = torch.randn(size, *shape, generator=generator)
            methods, run = _fastest(dense, x)
            plans.append(_Plan(most, methods, run))
        self._shape, self._plans = shape, tuple(plans)
        self._runs.clear()

    def _on_cpu(self) -> bool:
        parameter = next(self.dense.parameters())
        return parameter.device.type == "cpu" and parameter.dtype == torch.float32

    def __call__(self, x: Tensor) -> Tensor:
        """As of any module; a batch of a known shape takes a shorter way, which a single row notices."""
        run = self._runs.get(x.shape)
        hooked = self._forward_hooks or self._forward_pre_hooks
        if run is None or x.dtype is not torch.float32 or not x.is_cpu or hooked:
            return super().__call__(x)
        return run(x if x.is_contiguous() else x.contiguous())

    def forward(self, x: Tensor) -> Tensor:
        run = self._runs.get(x.shape)
        if run is None or x.dtype is not torch.float32 or not x.is_cpu:
            return self._first_forward(x)
        return run(x if x.is_contiguous() else x.contiguous())

    @torch.no_grad()
    def _first_forward(self, x: Tensor) -> Tensor:
        """For a shape that is new, and for what the dense network computes."""
        if x.dtype is not torch.float32 or not x.is_cpu or not self._on_cpu():
            return self.dense(x)
        if self._rowwise and x.dim() != 2:
            y = self(x.reshape(-1, x.shape[-1]))
            return y.reshape(*x.shape[:-1], y.shape[-1])
        if x.shape[1:] != self._shape:
            self.dense(x[:1])  # torch's own message where shapes do not fit
            self.tune(x.shape[1:])
        plan = next(plan for plan in self._plans if len(x) <= plan.most)
        if len(self._runs) >= _SHAPES:
            self._runs.clear()
        self._runs[x.shape] = plan.run
        return plan.run(x.contiguous())

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """After a move to another device or dtype, choices are made again."""
        self._plans, self._shape = (), None
        self._runs.clear()
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        """Without what cannot be copied: plans are made again with the next batch."""
        return {**super().__getstate__(), "_plans": (), "_shape": None, "_runs": {}}

    def extra_repr(self) -> str:
        return f"batch_sizes={self.batch_sizes}, kernel={self.kernel!r}"


def _kernel_run(modules: Sequence[nn.Module], shape: Sequence[int]) -> Run | None:
    """The modules as one call of the compiled kernel, if there is one that can."""
    made = kernel()
    if made.run is None:
        return None
    try:
        return compiled_call(lower(nn.Sequential(*modules), shape), made)
    except InvalidInput:
        return None


def _candidates(stage: Sequence[nn.Module], x: Tensor) -> dict[str, Run]:
    """The methods that a stage has for such inputs."""
    runs: dict[str, Run] = {"dense": nn.Sequential(*stage)}
    if x.dim() == 2 and any(isinstance(module, nn.Linear | SkipLayer) for module in stage):
        runs["torch_csr"] = _replaced(stage, _TorchCSR)
        if importlib.util.find_spec("scipy"):
            runs["scipy_csr"] = _replaced(stage, _ScipyCSR)
    compiled = _kernel_run(stage, x.shape[1:])
    if compiled is not None:
        runs["kernel"] = compiled
    return runs


def _assembled(
    stages: Sequence[Sequence[nn.Module]], methods: Sequence[str], inputs: Sequence[Tensor]
) -> Run:
    """Every stage by its method; consecutive stages of the kernel are one call."""
    parts: list[Run] = []
    at = 0
    while at < len(stages):
        end = at + 1
        if methods[at] in ("kernel", "dense"):
            while end < len(stages) and methods[end] == methods[at]:
                end += 1
        modules = [module for stage in stages[at:end] for module in stage]
        run: Run | None = _kernel_run(modules, inputs[at].shape[1:]) if methods[at] == "kernel" else None
        if run is None:
            kind = {"torch_csr": _TorchCSR, "scipy_csr": _ScipyCSR}.get(methods[at])
            run = nn.Sequential(*modules) if kind is None else _replaced(modules, kind)
        parts.append(run)
        at = end
    if len(parts) == 1:
        return parts[0]

    def run_parts(x: Tensor) -> Tensor:
        for part in parts:
            x = part(x.contiguous())
        return x

    return run_parts


def _fastest(dense: nn.Sequential, x: Tensor) -> tuple[tuple[str, ...], Run]:
    """The methods of the stages, by measurement: each stage by itself, then the best as a whole."""
    stages = _stages(dense)
    inputs, best = [x], []
    for stage in stages:
        runs = _candidates(stage, inputs[-1])
        times = _times(runs, inputs[-1])
        best.append(min(times, key=times.__getitem__))
        inputs.append(runs["dense"](inputs[-1]).contiguous())
    wholes = {("dense",) * len(stages), tuple(best)}
    if _kernel_run(list(dense), x.shape[1:]) is not None:
        wholes.add(("kernel",) * len(stages))
    whole_runs = {methods: _assembled(stages, methods, inputs) for methods in sorted(wholes)}
    whole_runs[("dense",) * len(stages)] = dense
    whole_times = _times(whole_runs, x)
    chosen = min(whole_times, key=whole_times.__getitem__)
    return chosen, whole_runs[chosen]
