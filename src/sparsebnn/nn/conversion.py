"""``convert``: any module's Linear and Conv layers become Bayesian; its forward stays its own."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Collection
from typing import Any

from torch import nn

from sparsebnn.checks import InvalidInput, invalid
from sparsebnn.nn.convolutions import Conv1d, Conv2d
from sparsebnn.nn.layers import BayesianLayer, Linear
from sparsebnn.nn.networks import KEPT, altered, obstacles

_OPAQUE = (
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.Bilinear,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.LazyLinear,
    nn.TransformerEncoderLayer,
)


def _why_not(name: str, module: nn.Module) -> str | None:
    """Why this one module cannot be converted, or None."""
    kind, reason = type(module).__name__, altered(name, module)
    if reason is not None:
        return reason
    if isinstance(module, nn.TransformerEncoderLayer | nn.MultiheadAttention):
        return f"{name} ({kind}) reads its projections' weights without calling their forward"
    if isinstance(module, _OPAQUE):
        return f"{name} ({kind}) is of a kind that has no Bayesian form here"
    if not isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
        return None
    if type(module) not in (nn.Linear, nn.Conv1d, nn.Conv2d):
        return f"{name} ({kind}) is a subclass whose own forward would be lost"
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return f"{name} ({kind}) has hooks, which would be lost; remove them first"
    return None


def _bayesian(layer: nn.Module, pretrained: bool, options: dict[str, Any]) -> BayesianLayer:
    factory: dict[str, Any] = {"dtype": layer.weight.dtype, "device": layer.weight.device}
    made: BayesianLayer
    if isinstance(layer, nn.Linear):
        made = Linear(layer.in_features, layer.out_features, layer.bias is not None, **factory, **options)
    else:
        assert isinstance(layer, nn.Conv1d | nn.Conv2d)
        kind = Conv1d if isinstance(layer, nn.Conv1d) else Conv2d
        made = kind(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
            layer.bias is not None,
            layer.padding_mode,
            **factory,
            **options,
        )
    if pretrained:
        made.start_from(layer.weight, layer.bias)
    return made.train(layer.training)


def _check(module: Any, keep: Collection[str]) -> None:
    """A module, and names of its parts."""
    if not isinstance(module, nn.Module):
        made_first = isinstance(module, type) and issubclass(module, nn.Module)
        got = f"the class {module.__name__}" if made_first else type(module).__name__
        raise invalid("module", "convert", "an nn.Module", got, "Make one first." if made_first else "")
    if isinstance(keep, str):
        raise invalid("keep", "convert", "a list of names", repr(keep), f"Write keep=[{keep!r}].")
    known = [name for name, _ in module.named_modules(remove_duplicate=False) if name]
    unknown = [name for name in keep if name not in known]
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.5)
        advice = f"Did you mean {close[0]!r}?" if close else "module.named_modules() lists them."
        raise invalid("keep", "convert", "names of submodules", unknown, advice)


def convert(
    module: nn.Module, *, pretrained: bool = False, keep: Collection[str] = (), **layer: Any
) -> nn.Module:
    """A copy of ``module`` whose Linear, Conv1d and Conv2d layers are Bayesian.

    The module's own ``forward`` is untouched: open a pass around it (:func:`sparsebnn.nn.collect_kl`,
    :func:`sparsebnn.forward_with_kl`) and the KL is gathered, a layer used twice counted once.
    ``pretrained`` starts the posterior means at the module's weights; ``keep`` names submodules that
    stay as they are: they are not converted, and training goes on from the weights they have (freeze them
    with ``requires_grad_(False)``). What is converted is trained, whether it was frozen or not. ``layer``
    goes to every Bayesian layer.

    >>> network = convert(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), family="flow")
    >>> from sparsebnn.nn.networks import bayesian_layers
    >>> [name for name, _ in bayesian_layers(network)]
    ['0', '2']
    """
    _check(module, keep)
    found = obstacles(module, keep, _why_not)
    if found:
        raise InvalidInput(
            f"The 'module' of convert must be made of convertible parts. Got {type(module).__name__} "
            "instead, in which " + "; ".join(found) + ". Change these, or name them in keep=[...]."
        )
    result = copy.deepcopy(module)
    # By what they are: a module with two names stays under both.
    staying = {id(result.get_submodule(name)) for name in keep}
    for name in keep:
        setattr(result.get_submodule(name), KEPT, True)
    made: dict[int, BayesianLayer] = {}

    def replace(parent: nn.Module, prefix: str) -> None:
        for name, child in list(parent._modules.items()):
            path = f"{prefix}{name}"
            if child is None or id(child) in staying:
                continue
            if type(child) in (nn.Linear, nn.Conv1d, nn.Conv2d):
                if id(child) not in made:
                    made[id(child)] = _bayesian(child, pretrained, layer)
                setattr(parent, name, made[id(child)])
            else:
                replace(child, f"{path}.")

    if type(result) in (nn.Linear, nn.Conv1d, nn.Conv2d):
        return _bayesian(result, pretrained, layer)
    replace(result, "")
    if not made:
        raise InvalidInput(
            "The 'module' of convert must hold at least one Linear, Conv1d or Conv2d layer. "
            f"Got {type(module).__name__} without any instead."
        )
    return result
