"""The evidence lower bound of a batch. All scaling happens here and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_, tree_unflatten

from sparsebnn.checks import check_count
from sparsebnn.likelihoods import Likelihood
from sparsebnn.nn.networks import bayesian_layers
from sparsebnn.nn.passes import PosteriorPass, run_pass
from sparsebnn.random.noise import Noise

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


class Batch(NamedTuple):
    """Examples with their weights; a padded example has weight 0. ``rows`` counts the real ones."""

    x: Any  # a tensor, or a tuple or a dict of tensors
    y: Any  # a tensor, or Mixed
    weight: Tensor
    rows: Tensor


class Mixed(NamedTuple):
    """Two targets for each row: the loss is ``share`` of the first and the rest of the second."""

    y: Tensor
    other: Tensor
    share: Tensor


class Parts(NamedTuple):
    """The loss of a batch and what it is made of; ``kl`` is unscaled, in nats."""

    loss: Tensor
    nll: Tensor
    kl: Tensor
    kl_by_layer: Tensor


def first_of(x: Any) -> Any:
    """Inputs of the first replicate: of one tensor, or of each in a tuple or a dict."""
    return x[0] if isinstance(x, Tensor) else tree_map(lambda one: one[0], x)


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
            nll = self.nll_terms(outputs, batch.y.y, batch.weight * batch.y.share).sum()
            nll = nll + self.nll_terms(outputs, batch.y.other, batch.weight * (1.0 - batch.y.share)).sum()
        else:
            nll = self.nll_terms(outputs, batch.y, batch.weight).sum()
        terms = opened.kl_by_layer()
        by_layer = torch.stack([_term_of(layer, terms) for layer in self._layers])
        kl = by_layer.sum()
        return Parts(nll + batch.rows / self.n_data * beta * kl, nll, kl, by_layer)

    def nll_terms(self, outputs: Any, y: Tensor, weight: Tensor) -> Tensor:
        """The weighted terms of the likelihood. Most likelihoods look at single rows; some compare rows."""
        if type(self.likelihood).weighted_nll is Likelihood.weighted_nll:
            return weight * self.likelihood.nll(outputs, y)
        return self.likelihood.weighted_nll(outputs, y, weight)

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
