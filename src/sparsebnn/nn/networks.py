"""Ready-made networks. A network is any module that holds Bayesian layers."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence, Sized
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sparsebnn.checks import check_choice, check_count, check_seed, invalid
from sparsebnn.nn.layers import BayesianLayer, Joined, Linear

# The mark of modules that a conversion left as they are.
KEPT = "kept_by_convert"
# The attribute that says why the inclusions of a trained network are not posterior probabilities; None or
# missing if they are.
NO_POSTERIOR = "inclusions_are_no_posterior"
_GENERATOR = threading.Lock()
_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
# From so many inputs on, two products are faster than one of a copy (benchmarks/input_skip.py): the inputs
# need no gradient.
_JOINED = 128

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class InputSkip(nn.Module):
    r"""Dense layers of which each sees the input as well as the layer before it:

    .. math::
        h^1 = W^1 x, \qquad h^l = W^l\,[a(h^{l-1});\, x], \qquad f = h^L .

    ``layers`` are Bayesian or ordinary linear layers; those after the first have as many inputs as the layer
    before has outputs, and then those of x. With one layer it is that layer.

    >>> network = InputSkip([nn.Linear(3, 4), nn.Linear(4 + 3, 2)], nn.ReLU())
    >>> network(torch.randn(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(self, layers: Sequence[nn.Module], activation: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.activation = activation
        before: Any = None
        for layer in layers:
            if not isinstance(layer, Linear | nn.Linear):
                raise invalid("layers", "InputSkip", "linear layers", type(layer).__name__)
            if before is not None and layer.in_features != before.out_features + self.in_features:
                expected = f"after one of {before.out_features} outputs of {self.in_features} more inputs"
                raise invalid("layers", "InputSkip", expected, layer.in_features)
            before = layer
        if before is None:
            raise invalid("layers", "InputSkip", "at least one layer", "none")

    @property
    def in_features(self) -> int:
        """The length of x."""
        return int(self.layers[0].in_features)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers[0](x)
        for layer in self.layers[1:]:
            h = self.activation(h)
            # What traces a forward has no tensors, and ordinary layers take nothing else.
            joined = isinstance(layer, Linear) and isinstance(h, Tensor) and x.shape[-1] >= _JOINED
            h = layer(Joined(h, x) if joined else torch.cat((h, x), -1))
        return h

    def steps(self) -> list[nn.Module]:
        """The same as a chain of modules, of which all but the last pass the input on."""
        *before, last = self.layers
        return [*(SkipLayer(layer, self.activation, self.in_features) for layer in before), last]


class SkipLayer(nn.Module):
    """A layer of an :class:`InputSkip` that also passes the input on: ``[h; x]`` to ``[a(W [h; x]); x]``.

    ``carried`` is the length of x; the first layer sees x alone.
    """

    def __init__(self, layer: nn.Module, activation: nn.Module, carried: int) -> None:
        super().__init__()
        self.layer, self.activation, self.carried = layer, activation, carried

    def forward(self, joined: Tensor) -> Tensor:
        return torch.cat((self.activation(self.layer(joined)), joined[..., -self.carried :]), -1)


@overload
def mlp(
    sizes: Sequence[int], *, activation: str = ..., input_skip: Literal[False] = ..., **layer: Any
) -> nn.Sequential: ...


@overload
def mlp(
    sizes: Sequence[int], *, activation: str = ..., input_skip: Literal[True], **layer: Any
) -> InputSkip: ...


def mlp(
    sizes: Sequence[int], *, activation: str = "relu", input_skip: bool = False, **layer: Any
) -> nn.Sequential | InputSkip:
    """A fully connected network; ``layer`` goes to every :class:`~sparsebnn.Linear`.

    With ``input_skip`` every layer sees the inputs as well as the layer before it: an
    :class:`~sparsebnn.nn.InputSkip`.

    >>> mlp([784, 400, 600, 10], family="flow", family_options={"hidden": (50, 50)})[0]
    Linear(
      784, 400, family='flow'
      ...
    >>> [layer.in_features for layer in mlp([10, 8, 4, 1], input_skip=True).layers]
    [10, 18, 14]
    """
    if not isinstance(sizes, Sized) or len(sizes) < 2:
        raise invalid("sizes", "mlp", "at least an input and an output size", repr(sizes))
    for size in sizes:
        check_count(size, "sizes", "mlp")
    between = _ACTIVATIONS[check_choice(activation, _ACTIVATIONS, "activation", "mlp")]
    if input_skip:
        return _input_skip(sizes, between(), layer)
    modules: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        if modules:
            modules.append(between())
        modules.append(Linear(inputs, outputs, **layer))
    return nn.Sequential(*modules)


def _input_skip(sizes: Sequence[int], activation: nn.Module, layer: dict[str, Any]) -> InputSkip:
    pairs = itertools.pairwise(sizes)
    return InputSkip(
        [Linear(n + (sizes[0] if place else 0), out, **layer) for place, (n, out) in enumerate(pairs)],
        activation,
    )


def bayesian_layers(network: nn.Module) -> Iterator[tuple[str, BayesianLayer]]:
    """Every Bayesian layer with its name, each once."""
    for name, module in network.named_modules():
        if isinstance(module, BayesianLayer):
            yield name, module


def kept(network: nn.Module) -> list[str]:
    """The names of the submodules that ``convert`` kept because of ``keep``."""
    return [name for name, part in network.named_modules() if getattr(part, KEPT, False)]


def altered(name: str, module: nn.Module) -> str | None:
    """Why the weights of this one module are not its own, or None."""
    kind = type(module).__name__
    if parametrize.is_parametrized(module):
        return f"{name} ({kind}) has a parametrization; remove it first with remove_parametrizations"
    hooks = [type(hook).__name__ for hook in module._forward_pre_hooks.values()]
    if "WeightNorm" in hooks or "SpectralNorm" in hooks:
        return f"{name} ({kind}) has a weight or spectral norm hook; remove it first"
    return None


def _of_norms(name: str, module: nn.Module, replicated: bool) -> str | None:
    """Why this normalization cannot be converted around, or replicated, or None."""
    if not isinstance(module, _NORMS):
        return None
    kind, batch = type(module).__name__, isinstance(module, nn.modules.batchnorm._BatchNorm)
    if module.track_running_stats and module.training and not batch:
        return (
            f"{name} ({kind}) updates running statistics, which replicates cannot share; "
            "call .eval() on it, or use GroupNorm or LayerNorm"
        )
    mixes = batch and not module.track_running_stats
    if mixes and replicated:
        return (
            f"{name} ({kind}) mixes the rows of a batch, also those that only fill it up; "
            "use GroupNorm or LayerNorm"
        )
    return None


def _within(name: str, outer: Collection[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in outer if one)


def obstacles(
    module: nn.Module,
    keep: Collection[str] = (),
    why_not: Callable[[str, nn.Module], str | None] | None = None,
) -> list[str]:
    """What in ``module`` cannot be replicated, one sentence each; with ``why_not``, what cannot be converted.

    What is kept need not be convertible. To be replicated nothing need be: no module may share statistics or
    weights, and what was not kept must have its weights to itself.
    """
    found: list[str] = []
    opaque: list[str] = []
    replicated = why_not is None
    owners: dict[int, tuple[nn.Module, str, bool]] = {}
    for name, part in module.named_modules(remove_duplicate=False):
        label, stays = name or "the module itself", _within(name, keep)
        if _within(name, opaque):
            continue
        reason = None if stays else (why_not or altered)(label, part)
        if reason is None and (replicated or not stays):
            reason = _of_norms(label, part, replicated)
        if reason is not None:
            found.append(reason)
            opaque.append(name)
            continue
        for own, parameter in part.named_parameters(recurse=False):
            first, where, first_stays = owners.setdefault(id(parameter), (part, f"{label}.{own}", stays))
            if first is not part and (replicated or not (stays and first_stays)):
                found.append(f"{label}.{own} is tied to {where}")
    return found


def as_input(x: Tensor, network: nn.Module, dtype: torch.dtype, owner: str) -> Tensor:
    """Rows as a network takes them: in its precision, but for pixels (uint8) and an embedding's numbers."""
    if x.dtype == torch.uint8:
        return x
    whole = not (x.is_floating_point() or x.is_complex())
    if whole and any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in network.modules()):
        return x
    if x.is_complex():
        raise invalid("x", owner, "real numbers", x.dtype, "Give real and imaginary parts as columns.")
    cast = x.to(dtype)
    if x.dtype != dtype and not bool(torch.isfinite(cast).all()):
        expected = f"small enough for {str(dtype).removeprefix('torch.')}"
        raise invalid("x", owner, expected, f"up to {float(x.abs().max()):g}", "Scale its columns.")
    return cast


def chain(network: nn.Module) -> list[nn.Module]:
    """The modules of a network one after the other, those inside a Sequential of a Sequential too.

    >>> [type(module).__name__ for module in chain(nn.Sequential(nn.Flatten(), nn.Sequential(nn.ReLU())))]
    ['Flatten', 'ReLU']
    """
    if isinstance(network, nn.Sequential) and type(network).forward is nn.Sequential.forward:
        if _has_hooks(network):
            return [network]
        return [inner for module in network for inner in chain(module)]
    return [network]


def _has_hooks(module: nn.Module) -> bool:
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return any(hooks) or "forward" in vars(module)


def hooked(network: nn.Module) -> str | None:
    """The name of the first module with hooks or with a replaced ``forward``, if any.

    >>> network = nn.Sequential(nn.ReLU())
    >>> _ = network[0].register_forward_hook(lambda module, given, found: 2 * found)
    >>> hooked(network), hooked(nn.ReLU())
    ('0', None)
    """
    return next(
        (name or type(module).__name__ for name, module in network.named_modules() if _has_hooks(module)),
        None,
    )


def check_no_hooks(network: nn.Module, owner: str) -> None:
    """Raise if any module has hooks or a replaced ``forward``, which ``owner`` would ignore."""
    if (name := hooked(network)) is not None:
        advice = "Move that code into the forward method of a module class."
        raise invalid(
            "network", owner, "free of hooks and replaced forward methods", f"one at {name!r}", advice
        )


def steps(network: nn.Module) -> list[nn.Module]:
    """As :func:`chain`, with input-skip networks as chains of their layers."""
    parts = (module.steps() if isinstance(module, InputSkip) else [module] for module in chain(network))
    return [step for part in parts for step in part]


@contextlib.contextmanager
def generator_kept() -> Iterator[None]:
    """Leave torch's generator as it was. Threads share it, so one of them draws at a time."""
    with _GENERATOR, torch.random.fork_rng(devices=[]):
        yield


@torch.no_grad()
def initialize(network: nn.Module, seed: int) -> None:
    """Draw the parameters of every Bayesian layer; what is drawn depends on the seed alone.

    Everything else keeps its values: ordinary modules, buffers, and parameters that are frozen
    (``requires_grad_(False)``). A layer that was converted from pretrained weights keeps its means. The state
    of torch's generator is left as it was.
    """
    with generator_kept():
        torch.manual_seed(check_seed(seed, "seed", "initialize"))
        for _, layer in bayesian_layers(network):
            parameters = list(layer.parameters())
            if parameters and not any(parameter.requires_grad for parameter in parameters):
                continue
            frozen = [(p, p.detach().clone()) for p in parameters if not p.requires_grad]
            layer.reset_parameters()
            for parameter, value in frozen:
                parameter.copy_(value)
