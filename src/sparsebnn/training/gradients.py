"""``torch.func.grad_and_value`` without the import of PyTorch's compiler, which takes seconds.

PyTorch's own version asks ``torch._dynamo`` to stand aside while it differentiates, and so imports it, in a
process that compiles nothing. The steps here are the same ones in the same order, so the numbers are too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_, tree_unflatten

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


def grad_and_value(function: Callable[..., tuple[Any, Any]]) -> Callable[..., Any]:
    """``torch.func.grad_and_value(function, has_aux=True)``, by the first argument.

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
