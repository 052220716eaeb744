"""The evidence lower bound of a batch, and its gradients for K replicates at once.

All scaling of the objective happens in :class:`Objective` and nowhere else. :class:`Replicates` stacks the
parameters of K copies of it, which :func:`torch.func.vmap` runs as one program.
"""

from __future__ import annotations

import contextlib
import copy
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_, tree_unflatten

from sparsebnn.checks import check_count
from sparsebnn.kernels.dispatch import single
from sparsebnn.likelihoods import Likelihood
from sparsebnn.nn.networks import NO_POSTERIOR, bayesian_layers, initialize
from sparsebnn.nn.passes import ClosedPass, PosteriorPass, noise_size, run_pass
from sparsebnn.random import noise as counter
from sparsebnn.random.noise import Noise, NoiseBuffer, NoisePart, NoiseSize
from sparsebnn.training.arguments import named_so, stacked_buffers
from sparsebnn.training.batches import Batch, Mixed, first_of

try:
    from torch._functorch.eager_transforms import (
        _create_differentiable,
        _undo_create_differentiable,
        _wrap_all_tensors,
        grad_increment_nesting,
    )

    _FAST = True
except ImportError:  # internals of PyTorch may move
    _FAST = False

LOGITS = "inclusion_logit"
_NORMAL = counter.stream_id("training normal")
_LOGISTIC = counter.stream_id("training logistic")


class Parts(NamedTuple):
    """The loss of a batch and what it is made of; ``kl`` is unscaled, in nats."""

    loss: Tensor
    nll: Tensor
    kl: Tensor
    kl_by_layer: Tensor


class Objective(nn.Module):
    r"""Negative evidence lower bound, as a batch estimates it.

    .. math::
        \sum_{i \in B} w_i \cdot \mathrm{nll}_i + \frac{|B|}{N} \cdot \beta \cdot \mathrm{KL}

    Summed over the batches of an epoch this is :math:`\sum_i w_i\,\mathrm{nll}_i + \beta\,\mathrm{KL}`,
    whatever the batch size. The objective keeps N, so callers do not pass it. :math:`\beta` is
    the temperature times the warm-up factor of the moment; 1 is the Bayes posterior's bound.
    """

    def __init__(self, network: nn.Module, likelihood: Likelihood, n_data: int) -> None:
        super().__init__()
        self.network = network
        self.likelihood = likelihood
        self.n_data = check_count(n_data, "n_data", "Objective")
        found = list(bayesian_layers(network))
        self.layer_names = tuple(name or type(layer).__name__ for name, layer in found)
        self._layers = [layer for _, layer in found]
        self.autocast: torch.dtype | None = None
        self.channels_last = False

    def forward(self, batch: Batch, beta: Tensor, noise: Noise | None = None) -> Parts:
        outputs, opened = self._outputs(batch.x, noise)
        if isinstance(batch.y, Mixed):
            y, other, share = batch.y
            nll = nll_terms(self.likelihood, outputs, y, batch.weight * share).sum()
            nll = nll + nll_terms(self.likelihood, outputs, other, batch.weight * (1.0 - share)).sum()
        else:
            nll = nll_terms(self.likelihood, outputs, batch.y, batch.weight).sum()
        terms = opened.kl_by_layer()
        by_layer = torch.stack([_term_of(layer, terms) for layer in self._layers])
        kl = by_layer.sum()
        return Parts(nll + batch.rows / self.n_data * beta * kl, nll, kl, by_layer)

    def _outputs(self, x: Any, noise: Noise | None) -> tuple[Any, PosteriorPass]:
        """The network's outputs in full precision, and the pass."""
        if self.channels_last:
            x = tree_map(_channels_last, x)
        if self.autocast is None:
            return run_pass(self.network, x, noise)
        # Casts of weights are not kept: under vmap they would outlive the tensors they were made of.
        with torch.autocast(tree_leaves(x)[0].device.type, self.autocast, cache_enabled=False):
            outputs, opened = run_pass(self.network, x, noise)
        exact = next(self.network.parameters()).dtype
        return tree_map(lambda one: one.to(exact) if one.is_floating_point() else one, outputs), opened


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def nll_terms(likelihood: Likelihood, outputs: Any, y: Tensor, weight: Tensor) -> Tensor:
    """The weighted terms of a likelihood. Most likelihoods look at single rows; some compare rows."""
    if type(likelihood).weighted_nll is Likelihood.weighted_nll:
        return weight * likelihood.nll(outputs, y)
    return likelihood.weighted_nll(outputs, y, weight)


def _term_of(layer: nn.Module, terms: Sequence[tuple[object, Tensor]]) -> Tensor:
    """The KL of a layer in this pass; raises if the forward did not call the layer."""
    for met, kl in terms:
        if met is layer:
            return kl
    raise RuntimeError(
        f"The layer {layer} was not called by the network's forward, so its KL is unknown. "
        "Remove it from the module, or keep it out of convert() with keep=[...]."
    )


def grad_and_value(function: Callable[..., tuple[Any, Any]]) -> Callable[..., Any]:
    """``torch.func.grad_and_value(function, has_aux=True)``, by the first argument.

    PyTorch's own version imports its compiler, which takes seconds, in a process that compiles nothing. The
    steps here are the same in the same order, so the numbers are too.

    >>> gradient, (value, half) = grad_and_value(lambda x: ((x**2).sum(), x / 2))(torch.ones(2))
    >>> gradient.tolist(), value.item(), half.tolist()
    ([2.0, 2.0], 2.0, [0.5, 0.5])
    """
    if not _FAST or "torch._dynamo" in sys.modules:
        return torch.func.grad_and_value(function, has_aux=True)

    def differentiated(*arguments: Any) -> Any:
        with grad_increment_nesting() as level, torch.enable_grad():
            wrapped = _wrap_all_tensors(arguments, level)
            tree_map_(partial(_create_differentiable, level=level), wrapped[0])
            value, aux = function(*wrapped)
            inputs, form = tree_flatten(wrapped[0])
            found = torch.autograd.grad((value,), inputs, create_graph=True, allow_unused=True)
            gradients = [torch.zeros_like(i) if g is None else g for g, i in zip(found, inputs)]
            gradient = _undo_create_differentiable(tree_unflatten(gradients, form), level)
            return gradient, (
                _undo_create_differentiable(value, level),
                _undo_create_differentiable(aux, level),
            )

    return differentiated


class Replicates:
    """The state of K replicates: what is trained, what differs, and what all share.

    Initialization, data order and noise of a replicate depend on its seed alone, so replicate k is
    the same alone, among ten or among a hundred. ``start`` is ``"seed"``, ``"given"`` (the values the
    objective has) or a network for each replicate. ``per_replicate`` gives buffers (by the end of their name,
    such as ``prior.inclusion_prob``) one value per replicate.
    """

    def __init__(
        self,
        objective: Objective,
        seeds: Sequence[int],
        device: torch.device,
        per_replicate: Mapping[str, Sequence[float] | Tensor] | None = None,
        start: str | Sequence[nn.Module] = "seed",
    ) -> None:
        self.seeds = list(seeds)
        self.objective = copy.deepcopy(objective)
        for _, layer in bayesian_layers(self.objective):
            layer.train()
        self.parameters = {
            name: torch.empty(len(self), *p.shape, dtype=p.dtype, device=device)
            for name, p in self.objective.named_parameters()
        }
        for k, seed in enumerate(self.seeds):
            self._begin(start, k, seed)
            for name, parameter in self.objective.named_parameters():
                self.parameters[name][k] = parameter.detach()
        self.objective.to(device)
        self.frozen = {n for n, p in self.objective.named_parameters() if not p.requires_grad}
        self.shared = dict(self.objective.named_buffers())
        self.varied = stacked_buffers(self.shared, per_replicate or {}, len(self))
        for name in self.varied:
            del self.shared[name]
        self.recurrent = any(isinstance(part, nn.RNNBase) for part in self.objective.modules())
        # Running statistics are learned, by each replicate for itself.
        self.statistics = _statistics(self.objective)
        for name in self.statistics & self.shared.keys():
            value = self.shared.pop(name)
            self.varied[name] = value.expand(len(self.seeds), *value.shape).contiguous()
        self.seed_tensor = counter.seed_tensor(self.seeds, device)
        self.dtype = next(iter(self.parameters.values())).dtype
        self.size = NoiseSize(0, 0)
        # With several processes: which numbers of the noise belong to the rows of this one.
        self.noise_parts: tuple[NoisePart, NoisePart] | None = None
        # Why a replicate's inclusions are not posterior probabilities; None if they are.
        self.notes: list[str | None] = [None] * len(self)
        if len(self) == 1:
            # A single replicate runs as the ordinary module it is; its parameters are the stack's.
            for name, parameter in self.objective.named_parameters():
                parameter.data = self.parameters[name][0]
            for name, value in self.varied.items():
                owner_of(self.objective, name)[0].register_buffer(name.split(".")[-1], value[0])

    def _begin(self, start: str | Sequence[nn.Module], k: int, seed: int) -> None:
        """Put the template where replicate k starts."""
        if start == "seed":
            initialize(self.objective, seed)
        elif not isinstance(start, str):
            self.objective.network.load_state_dict(start[k].state_dict())

    def __len__(self) -> int:
        return len(self.seeds)

    @property
    def trained(self) -> dict[str, Tensor]:
        """The stacked parameters that training moves."""
        return {n: p for n, p in self.parameters.items() if n not in self.frozen}

    @property
    def ordinary(self) -> list[str]:
        """The names of trained parameters of the network outside its Bayesian layers."""
        inside = {id(p) for _, layer in bayesian_layers(self.objective) for p in layer.parameters()}
        named = self.objective.network.named_parameters(prefix="network")
        return [n for n, p in named if id(p) not in inside and n not in self.frozen]

    def make_per_replicate(self, ending: str) -> None:
        """Give every replicate its own copy of the buffers with that ending, at their present values."""
        for name in named_so(self.shared, ending):
            value = self.shared.pop(name)
            self.varied[name] = value.expand(len(self), *value.shape).contiguous()
            if len(self) == 1:
                owner, last = owner_of(self.objective, name)
                owner.register_buffer(last, self.varied[name][0])

    def measure(self, x: Any) -> NoiseSize:
        """Find out how much noise a step on a batch like ``x`` takes, and remember it."""
        if len(self) > 1:
            for name, parameter in self.objective.named_parameters():
                parameter.data = self.parameters[name][0]
        held = {**self.shared, **{name: self.varied[name] for name in self.statistics}}
        before = {name: value.clone() for name, value in held.items()}
        self.size = noise_size(self.objective.network, x)
        for name, value in before.items():
            held[name].copy_(value)
        return self.size

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """All state that :meth:`gradients` and :meth:`noise` read, by kind and name."""
        return {
            "trained": self.trained,
            "frozen": {n: self.parameters[n] for n in sorted(self.frozen)},
            "varied": self.varied,
            "shared": self.shared,
            "random": {"seeds": self.seed_tensor},
        }

    def noise(self, seeds: Tensor, step: Tensor | int, fused: bool = False) -> tuple[Tensor, Tensor]:
        """The noise of a step, one row per replicate; ``fused`` noise is made by compiled loops on a CPU."""
        if self.noise_parts is not None:
            normals, logistics = self.noise_parts
            return (
                counter.part_of_normals(seeds, _NORMAL, step, normals, self.dtype, fused=fused),
                counter.part_of_logistics(seeds, _LOGISTIC, step, logistics, self.dtype),
            )
        normal = counter.normals(seeds, _NORMAL, step, self.size.normal, self.dtype, fused=fused)
        if not self.size.logistic:
            return normal, normal.new_empty(len(self), 0)
        return normal, counter.logistics(seeds, _LOGISTIC, step, self.size.logistic, self.dtype)

    def gradients(
        self,
        state: dict[str, dict[str, Tensor]],
        batch: Batch,
        beta: Tensor,
        noise: tuple[Tensor, Tensor],
    ) -> tuple[dict[str, Tensor], Parts]:
        """Gradients and parts of the loss, per replicate; the batch is ``(K, size, …)``."""

        def loss(
            trained: dict[str, Tensor],
            frozen: dict[str, Tensor],
            varied: dict[str, Tensor],
            x: Any,
            y: Any,
            weight: Tensor,
            scale: Tensor,
            normal: Tensor,
            logistic: Tensor,
        ) -> tuple[Tensor, Parts]:
            everything = {**trained, **frozen, **varied, **state["shared"]}
            one = Batch(x, y, weight, batch.rows)
            given = (one, scale, NoiseBuffer(normal, logistic))
            # A module under two names is one module; tying would swap its tensors twice.
            parts = functional_call(self.objective, everything, given, tie_weights=False)
            return parts.loss, parts

        stacked = (state["trained"], state["frozen"], state["varied"])
        given = (*stacked, batch.x, batch.y, batch.weight, beta, *noise)
        with cudnn_left_out(self.recurrent, batch.weight.is_cuda):
            gradients, (_, parts) = vmap(grad_and_value(loss))(*given)
        return gradients, parts

    def gradients_single(
        self, batch: Batch, beta: Tensor, noise: tuple[Tensor, Tensor]
    ) -> tuple[dict[str, Tensor], Parts]:
        """As :meth:`gradients` for one replicate, without the machinery."""
        one = Batch(first_of(batch.x), first_of(batch.y), batch.weight[0], batch.rows)
        with single():
            parts = self.objective(one, beta[0], NoiseBuffer(noise[0][0], noise[1][0]))
        named = [(n, p) for n, p in self.objective.named_parameters() if p.requires_grad]
        # A parameter that the network does not use has a gradient of 0, as it has among several.
        with ClosedPass():
            gradients = torch.autograd.grad(parts.loss, [p for _, p in named], materialize_grads=True)
        stacked = {n: g.unsqueeze(0) for (n, _), g in zip(named, gradients)}
        return stacked, Parts(*(part.detach().unsqueeze(0) for part in parts))

    def note_training(self, cut: bool, temperatures: Sequence[float]) -> None:
        """Note why the inclusions of each replicate are not posterior probabilities; None if they are."""
        tempered = [None if t == 1.0 else f"trained at temperature {t:g}" for t in temperatures]
        self.notes = ["brought to a density, or refitted,"] * len(self) if cut else [*tempered]

    def inclusion_logits(self) -> dict[str, Tensor]:
        """The stacked inclusion logits, by name."""
        return {name: p for name, p in self.parameters.items() if name.endswith(LOGITS)}

    def weights_per_logit(self) -> dict[str, Tensor]:
        """How many weights each inclusion logit of a layer decides about, in the shape of its logits."""
        counts = {}
        for name, p in self.inclusion_logits().items():
            weights = self.parameters[name.removesuffix(LOGITS) + "mean"][0].numel()
            counts[name] = torch.full_like(p[0], weights / p[0].numel(), dtype=torch.float64)
        return counts

    @torch.no_grad()
    def density(self) -> Tensor:
        """Share of weights with an inclusion probability above one half, ``(K,)``; all layers together."""
        kept = torch.zeros(len(self), dtype=torch.float64, device=self.seed_tensor.device)
        total = 0.0
        for name, p in self.inclusion_logits().items():
            size = self.parameters[name.removesuffix(LOGITS) + "mean"][0].numel()
            kept += (p > 0).flatten(1).double().mean(1) * size
            total += size
        for _, layer in bayesian_layers(self.objective.network):
            if not any(name.endswith(LOGITS) for name, _ in layer.weights.named_parameters()):
                kept += math.prod(layer.weights.shape)
                total += math.prod(layer.weights.shape)
        return kept / total

    def unstack(self, k: int, stacked: Mapping[str, Tensor] | None = None) -> Objective:
        """Replicate k as a separate, ordinary objective (network and likelihood).

        ``stacked`` holds earlier parameters and varied buffers, used instead of the present ones.
        """
        values = {**self.parameters, **self.varied, **(stacked or {})}
        one = copy.deepcopy(self.objective)
        with torch.no_grad():
            for name, parameter in one.named_parameters():
                parameter.data = values[name][k].to(parameter.device, copy=True)
            for name in self.varied:
                owner, last = owner_of(one, name)
                owner.register_buffer(last, values[name][k].to(self.varied[name].device, copy=True))
        # The network may have been trained before and carry an old note.
        setattr(one.network, NO_POSTERIOR, self.notes[k])
        return one.eval()


def owner_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The submodule that holds a buffer, and the buffer's own name."""
    path, _, last = name.rpartition(".")
    return module.get_submodule(path), last


def cudnn_left_out(recurrent: bool, cuda: bool) -> contextlib.AbstractContextManager[None]:
    """A scope without cuDNN for recurrent layers on CUDA.

    cuDNN reads the addresses of their weights, and a stack under vmap has none.
    """
    if recurrent and cuda:
        return torch.backends.cudnn.flags(enabled=False)
    return contextlib.nullcontext()


def _statistics(module: nn.Module) -> set[str]:
    """The names of the buffers that batch normalization in training mode writes."""
    return {
        f"{name}.{buffer}"
        for name, part in module.named_modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training and part.track_running_stats
        for buffer, _ in part.named_buffers(recurse=False)
    }
