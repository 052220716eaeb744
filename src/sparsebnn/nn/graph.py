"""What is connected in a feed-forward network: its forward with weights of 0 and 1.

The forward is traced with torch.fx and run without activations and biases. All numbers are then at least 0,
and nothing cancels: the derivative of an output by an input, or by a weight, is positive exactly if a path of
included weights leads from the input, or through the weight, to the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sparsebnn.checks import InvalidInput, invalid
from sparsebnn.nn.convolutions import Conv1d, Conv2d
from sparsebnn.nn.layers import BayesianLayer, Linear
from sparsebnn.nn.networks import InputSkip

__all__ = ["Graph", "inclusion", "weighted"]

_ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.Softplus)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
TRANSPARENT = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, *_ACTIVATIONS)
_MAXIMA = (nn.MaxPool1d, nn.MaxPool2d)
_AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
# Operations by name, the same for functions and methods.
_SAME = frozenset(
    """relu relu_ leaky_relu gelu silu tanh sigmoid elu softplus dropout exp abs neg square pow clamp
    contiguous clone""".split()  # noqa: SIM905
)
_SUMS = frozenset(("add", "sub", "iadd", "isub", "add_", "sub_"))
_PRODUCTS = frozenset(("mul", "imul", "mul_", "truediv", "div"))
_MOVES = frozenset(
    """cat concat concatenate stack flatten reshape view transpose permute mean sum getitem squeeze unsqueeze
    chunk split flip expand movedim avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d getattr
    size dim""".split()  # noqa: SIM905
)
_POOLS: dict[str, type[nn.Module]] = {"max_pool1d": nn.MaxPool1d, "max_pool2d": nn.MaxPool2d}
# How many axes of an input are places.
_SPATIAL: tuple[tuple[tuple[type[nn.Module], ...], int], ...] = (
    ((Conv1d, nn.Conv1d, nn.MaxPool1d, nn.AvgPool1d), 1),
    ((Conv2d, nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d), 2),
)
_SHAPE_ADVICE = "For example shape=(1, 28, 28) for an image of one channel."


def weighted(module: nn.Module) -> bool:
    """Whether a module has weights that paths lead through."""
    return isinstance(module, BayesianLayer | nn.Linear | nn.Conv1d | nn.Conv2d)


def inclusion(module: nn.Module) -> Tensor:
    """The inclusion probability of each weight, on the CPU; weights of an ordinary layer are all included.

    Where weights share an inclusion there is one entry for them, in a shape that broadcasts to the weights.
    """
    if isinstance(module, BayesianLayer):
        return module.weights.group_prob().detach().cpu().double()
    return torch.ones(_weights_shape(module), dtype=torch.float64)


def _weights_shape(module: nn.Module) -> tuple[int, ...]:
    weights = module.weights if isinstance(module, BayesianLayer) else module.weight
    return tuple(weights.shape)  # type: ignore[arg-type]


class _Tracer(fx.Tracer):
    """Layers are leaves, as torch's modules are."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, BayesianLayer) or super().is_leaf_module(m, module_qualified_name)


class Graph:
    """A network as its paths see it. ``layers`` are those with weights, by name, in the order of their calls.

    ``shape`` is that of one input, where the first layer does not tell it; ``owner`` is named in errors.
    """

    def __init__(self, network: nn.Module, shape: Sequence[int] | None = None, owner: str = "Graph") -> None:
        self.owner = owner
        try:
            root = nn.Sequential(network) if weighted(network) else network
            traced = fx.GraphModule(root, _Tracer().trace(root))
        except Exception as error:  # whatever the forward of a module raises when it meets a proxy
            expected, why = (
                "a module whose forward torch.fx can trace",
                str(error).splitlines()[0].rstrip("."),
            )
            raise invalid("network", owner, expected, type(network).__name__, f"{why}.") from error
        self.traced = traced
        nodes = [node for node in traced.graph.nodes if node.op == "call_module"]
        modules = dict(traced.named_modules())
        self.layers = {str(n.target): modules[n.target] for n in nodes if weighted(modules[n.target])}
        if not any(isinstance(layer, BayesianLayer) for layer in self.layers.values()):
            advice = "Build it with mlp, lenet or convert."
            raise invalid("network", owner, "a module with Bayesian layers", type(network).__name__, advice)
        self.shape = self._checked(shape if shape is not None else _dense_shape(network))

    def _checked(self, shape: Sequence[int] | None) -> tuple[int, ...]:
        """The shape, if an input of it passes through the network."""
        owner = self.owner
        if shape is None:
            expected = "given for a network of images or sequences"
            raise invalid("shape", owner, expected, None, _SHAPE_ADVICE)
        sizes = shape if isinstance(shape, Sequence) else ()
        if not sizes or not all(isinstance(n, int) and n > 0 for n in sizes):
            expected = "the sizes of one input, without the rows' axis"
            raise invalid("shape", owner, expected, repr(shape), _SHAPE_ADVICE)
        self.shape = tuple(int(n) for n in sizes)
        self._run({name: torch.ones(_weights_shape(m)).double() for name, m in self.layers.items()}, rows=1)
        return self.shape

    def _run(self, masks: Mapping[str, Tensor], rows: int, counting: bool = False) -> tuple[Tensor, Tensor]:
        """An input of ones that carries a gradient, and the outputs, ``(rows, outputs)``."""
        with torch.enable_grad():
            x = torch.ones((rows, *self.shape), dtype=torch.float64)
            if counting:
                x[1:] = 0.0
            x.requires_grad_()
            y = _Structural(self, masks, counting).run(x)
            if not isinstance(y, Tensor):
                raise invalid("network", self.owner, "one whose output is a tensor", type(y).__name__)
            return x, y.reshape(rows, -1)

    def spread(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Masks, or what broadcasts to them, in the shapes of the weights."""
        return {name: mask.expand(_weights_shape(self.layers[name])) for name, mask in masks.items()}

    def median(self) -> dict[str, Tensor]:
        """The structure of the median probability model: 1 where the inclusion is above one half."""
        return self.spread({name: (inclusion(m) > 0.5).double() for name, m in self.layers.items()})

    def reach(self, masks: Mapping[str, Tensor]) -> Tensor:
        """1 for every input from which a path leads to an output, else 0, of the shape of an input."""
        x, y = self._run(masks, rows=1)
        if not y.requires_grad:
            return torch.zeros(self.shape, dtype=torch.float64)
        # A sum: with a tensor of weights for y, PyTorch would first import a computer algebra system.
        with torch.enable_grad():
            total = y.sum()
        (slope,) = torch.autograd.grad(total, x)
        return (slope[0] > 0).double()

    def active(self, masks: Mapping[str, Tensor], output: int | None = None) -> dict[str, Tensor]:
        """Which weights lie on a path from an input to an output (or to that one), by layer."""
        leaves = {name: mask.clone().requires_grad_() for name, mask in masks.items()}
        _, y = self._run(leaves, rows=1)
        which = torch.ones_like(y) if output is None else F.one_hot(torch.tensor([output]), y.shape[1]).to(y)
        slopes = torch.autograd.grad(y, list(leaves.values()), which, allow_unused=True)
        return {
            name: torch.zeros_like(mask, dtype=torch.bool) if slope is None else (slope > 0) & (mask > 0)
            for (name, mask), slope in zip(masks.items(), slopes)
        }

    def lengths(self, masks: Mapping[str, Tensor]) -> Tensor:
        """How many paths of 0, 1, 2, … weights lead from an input to each output, ``(outputs, lengths)``."""
        # A row of the batch for every length; a layer moves all paths to the next row.
        _, y = self._run(masks, rows=1 + self._calls(), counting=True)
        return y.detach().T

    def _calls(self) -> int:
        modules = dict(self.traced.named_modules())
        calls = (node for node in self.traced.graph.nodes if node.op == "call_module")
        return sum(weighted(modules[node.target]) for node in calls)


def _dense_shape(network: nn.Module) -> tuple[int, ...] | None:
    """The shape of an input that the first module of a network tells."""
    for module in network.modules():
        if isinstance(module, Linear | nn.Linear | InputSkip):
            return (module.in_features,)
        if any(True for _ in module.children()) or isinstance(module, (nn.Flatten, *TRANSPARENT)):
            continue
        return None
    return None


class _Structural(fx.Interpreter):
    """Runs a traced network with masks for weights; what depends on the input carries a gradient."""

    def __init__(self, graph: Graph, masks: Mapping[str, Tensor], counting: bool) -> None:
        super().__init__(graph.traced)
        self.extra_traceback = False  # which node it was is no help to a reader of the error
        self.owner, self.given, self.masks, self.counting = graph.owner, graph.shape, masks, counting

    def _refuse(self, what: str) -> InvalidInput:
        expected = "made of layers, activations, pooling, sums, concatenations and changes of shape"
        return invalid("network", self.owner, expected, what, "Paths through other modules cannot be traced.")

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self.fetch_attr(target)
        x = args[0] if args else next(iter(kwargs.values()))
        if isinstance(module, TRANSPARENT) or (isinstance(module, _NORMS) and not module.training):
            return x
        if not (weighted(module) or isinstance(module, (*_MAXIMA, *_AVERAGES, nn.Flatten, nn.Unflatten))):
            raise self._refuse(type(module).__name__)
        before = tuple(x.shape[1:])
        spatial = next((n for kinds, n in _SPATIAL if isinstance(module, kinds)), None)
        expected = "that of one input of the network"
        if spatial is not None and len(before) != spatial + 1:
            axes = "(channels, height, width)" if spatial == 2 else "(channels, length)"
            got = f"{before} for a {type(module).__name__}, which takes {axes},"
            raise invalid("shape", self.owner, expected, got, _SHAPE_ADVICE)
        try:
            return self._through(target, module, x)
        except RuntimeError as error:
            got = f"{self.given}, of which {before} comes to a {type(module).__name__},"
            why = f"{str(error).splitlines()[0].rstrip('.')}."
            raise invalid("shape", self.owner, expected, got, why) from error

    def _through(self, target: str, module: nn.Module, x: Tensor) -> Tensor:
        if not weighted(module):
            return windows(module, x, self.counting) if isinstance(module, _MAXIMA) else module(x)
        mask = self.masks[target]
        if not self.counting:
            mask = mask / max(1, mask[0].numel())  # keeps the numbers in range
        if isinstance(module, BayesianLayer):
            y = module.op(x, mask, None)
        elif isinstance(module, nn.Linear):
            y = F.linear(x, mask)
        else:
            y = module._conv_forward(x, mask, None)  # type: ignore[operator]
        return torch.cat((torch.zeros_like(y[:1]), y[:-1])) if self.counting else y

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._operation(getattr(target, "__name__", str(target)), target, args, kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        method = getattr(type(args[0]), target, None)
        return self._operation(str(target), method, args, kwargs)

    def _operation(self, name: str, run: Callable[..., Any] | None, args: Any, kwargs: Any) -> Any:
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        moving = [tensor for tensor in tensors if tensor.requires_grad]
        if run is None or (not moving and not tensors):
            return run(*args, **kwargs) if run is not None else None
        if not moving or name in _MOVES:
            return run(*args, **kwargs)
        if name in _SAME:
            return moving[0]
        if name in _POOLS:
            return windows(_POOLS[name](*args[1:], **kwargs), args[0], self.counting)
        if name in _SUMS or (name in _PRODUCTS and len(moving) == len(tensors)):
            # What is added to or multiplied with something that moves passes it on.
            total = moving[0]
            for other in [*moving[1:], *(t for t in tensors if not t.requires_grad)]:
                total = total + (other if other.requires_grad else torch.zeros_like(other, dtype=total.dtype))
            return total
        if name in _PRODUCTS:
            constant = next(tensor for tensor in tensors if not tensor.requires_grad)
            return moving[0] * (constant.detach().cpu() != 0)
        raise self._refuse(name)


def windows(module: nn.Module, x: Tensor, total: bool = False) -> Tensor:
    """The mean (or total) of every window of a maximum pool: whichever input is largest, all of them can be.

    >>> x = torch.arange(5.0).reshape(1, 1, 5)
    >>> [windows(nn.MaxPool1d(2, ceil_mode=ceil), x).tolist() for ceil in (False, True)]
    [[[[0.5, 2.5]]], [[[0.5, 2.5, 2.0]]]]
    """
    assert isinstance(module, _MAXIMA)
    size, count = x.shape[2:], x.shape[1]
    how = (module.kernel_size, module.stride, module.padding, module.dilation)
    kernel, stride, padding, dilation = (n if isinstance(n, tuple) else (n,) * len(size) for n in how)
    # Some give indices as well.
    said = module(x.detach())
    outputs = (said[0] if isinstance(said, tuple) else said).shape[2:]
    # A last window may reach beyond the padding: there is nothing there.
    sides: list[int] = []
    for n, k, s, p, d, out in zip(size, kernel, stride, padding, dilation, outputs):
        reach = (out - 1) * s + d * (k - 1) + 1
        sides = [p, max(0, reach - n - p), *sides]
    weights = x.new_full((count, 1, *kernel), 1.0 if total else 1.0 / math.prod(kernel))
    convolve = F.conv1d if len(size) == 1 else F.conv2d
    return convolve(F.pad(x, sides), weights, stride=stride, dilation=dilation, groups=count)
