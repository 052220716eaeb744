"""What every family of weight distributions can do: the verbs that layers, training and prediction use."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sparsebnn.checks import invalid
from sparsebnn.init import Initial
from sparsebnn.kernels.contraction import row_sums
from sparsebnn.kernels.dispatch import for_compiler, for_kernels
from sparsebnn.posteriors.priors import Prior
from sparsebnn.random.noise import Noise


class Moments(NamedTuple):
    """Mean and variance of independent weights.

    With ``scale`` (one row per example, or one for all) the weights seen by example b are multiplied by
    ``scale[b]``; then ``mean`` and ``var`` are those of the unscaled part and ``scaled_var`` is the
    part of the variance that grows with ``scale²`` (none: no part does). With ``gate`` (one probability per
    output) all weights of an output are included or excluded together; ``mean`` and ``var`` are those of
    included weights.
    """

    mean: Tensor
    var: Tensor
    scale: Tensor | None = None
    scaled_var: Tensor | None = None
    gate: Tensor | None = None

    def with_scale(self, axis: int) -> Moments:
        """The same with the only row of ``scale`` multiplied into the weights, along one axis."""
        if self.scale is None:
            return self
        (row,) = self.scale
        by = spread(row, self.mean.shape, axis)
        var = self.var if self.scaled_var is None else self.var + by**2 * self.scaled_var
        return Moments(by * self.mean, var, gate=self.gate)


class Sample(NamedTuple):
    """What one training pass needs of a weight tensor, all of it from the same draw.

    Either ``moments`` (the layer then samples its outputs) or a drawn ``weight``; and the KL in nats,
    summed over the weights.
    """

    moments: Moments | None
    weight: Tensor | None
    kl: Tensor


class Family(nn.Module):
    """The distribution of one weight tensor.

    ===================  ==============================================================
    ``local(noise)``     moments of the weights, for the local reparametrization
    ``draw(noise)``      one exact draw of the weights, excluded ones at 0
    ``median_draw(…)``   a draw in which weights with inclusion ≤ 0.5 are 0
    ``kl(noise)``        divergence from the prior, or an estimate of a bound on it
    ``sample(noise)``    what a training step uses: moments or weights, and the KL of that draw
    ``sample_weights``   the same with the weights drawn, for layers that are called more than once
    ===================  ==============================================================

    ``draws_weights`` says which of the two a training step gets. ``reused`` is set when a network is found to
    use the family in more than one call of a forward pass.
    """

    name: str
    draws_weights = False
    reused = False
    priors: tuple[type[Prior], ...] = ()

    def __init__(self, shape: Sequence[int], initial: Initial) -> None:
        super().__init__()
        self.shape = tuple(int(n) for n in shape)
        self.initial = initial
        # Values of tensors that are on the meta device, which has none.
        self._off_device: dict[str, Tensor] = {}

    def _constants(self) -> dict[str, Tensor]:
        """The tensors that nothing draws: buffers, and values given to a prior."""
        priors = [(name, part) for name, part in self.named_modules() if isinstance(part, Prior)]
        given = {f"{name}.{key}": t for name, part in priors for key, t in part.given().items()}
        return {name: t.detach() for name, t in (*self.named_buffers(), *given.items())}

    def _check_dtype(self, dtype: torch.dtype) -> None:
        """Complain unless all given values can be used in that precision."""
        for part in self.children():
            if isinstance(part, Prior):
                part.check_dtype(dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move or cast all tensors; constants keep their values through ``to_empty`` and the meta device."""
        before = self._constants()
        real = next((t for t in before.values() if t.is_floating_point() and not t.is_meta), None)
        if real is not None:
            dtype = fn(torch.empty(0, dtype=real.dtype, device=real.device)).dtype
            if dtype != real.dtype:
                self._check_dtype(dtype)
        super()._apply(fn, recurse)
        after = self._constants()
        with torch.no_grad():
            for name, old in before.items():
                value = self._off_device.pop(name) if old.is_meta else old
                if after[name].is_meta:
                    self._off_device[name] = value
                else:
                    after[name].copy_(value)
        return self

    def _own(self, prior: Prior | None) -> Prior:
        """This tensor's own copy of a prior that suits the family and broadcasts to the shape."""
        given = self.priors[0]() if prior is None else prior
        if not isinstance(given, self.priors):
            names = " or ".join(p.__name__ for p in self.priors)
            advice = "The family decides which weights exist, so it decides which priors make sense."
            raise invalid("prior", f"the {self.name!r} family", f"a {names}", type(given).__name__, advice)
        given.check_shape(self.shape)
        # What one layer learns must not move another layer's prior.
        return copy.deepcopy(given)

    @property
    def per_example(self) -> bool:
        """Whether ``local`` draws something for every example."""
        return False

    def reset_parameters(self) -> None:
        raise NotImplementedError

    def inclusion_prob(self) -> Tensor:
        """Posterior probability of each weight being there, in the weights' shape."""
        raise NotImplementedError

    def group_prob(self) -> Tensor:
        """The same per group of weights: independent, in a shape that broadcasts."""
        return self.inclusion_prob()

    def posterior_mean(self) -> Tensor:
        """Mean of each weight given that it is included (for flows: at z = 1)."""
        raise NotImplementedError

    def local(self, noise: Noise, batch: int = 1) -> Moments:
        raise NotImplementedError

    def draw(self, noise: Noise) -> Tensor:
        raise NotImplementedError

    def median_draw(self, noise: Noise) -> Tensor:
        raise NotImplementedError

    def kl(self, noise: Noise) -> Tensor:
        raise NotImplementedError

    def log_density(self, weight: Tensor) -> Tensor:
        """log q of a draw of the weights (excluded ones at 0), as far as the family knows it.

        It tells components of a mixture apart (:mod:`sparsebnn.inference.mixture`), whose bound stays one
        whatever is returned here: 0, as in this base class, says nothing.
        """
        return weight.new_zeros(())

    def sample(self, noise: Noise, batch: int = 1) -> Sample:
        raise NotImplementedError

    def sample_weights(self, noise: Noise) -> Sample:
        """As :meth:`sample`, with the weights drawn: gradients reach every parameter.

        A draw has the mean and variance of the weights, and every sum over them the distribution that the
        local reparametrization gives it (``concrete`` returns its relaxed draw).
        """
        raise NotImplementedError


def spread(vector: Tensor, shape: Sequence[int], axis: int) -> Tensor:
    """``vector``, shaped to multiply weights of that shape along one axis."""
    rows = shape[0]
    parts = max(d for d in range(1, 17) if rows % d == 0) if rows > 16 else 1
    if axis == 1 and len(shape) == 2 and parts > 1 and for_kernels(vector):
        # Its gradient is a sum down the columns. Taken in two steps, over parts of the rows and then
        # over the parts, there is enough to do at once for a whole GPU.
        in_parts = vector.expand(parts, -1).unsqueeze(1)
        return in_parts.expand(parts, rows // parts, -1).reshape(tuple(shape))
    return vector.reshape([len(vector) if i == axis else 1 for i in range(len(shape))])


def contract(vector: Tensor, weight: Tensor, axis: int) -> Tensor:
    """Sum of ``weight`` times ``vector`` along one axis, the other axes flattened.

    Compiled, multiply-and-sum joins the pass that made ``weight``; eagerly a matrix product is one
    pass fewer.
    """
    if axis == 1 and weight.dim() == 2 and for_kernels(weight):
        return row_sums(weight, vector)
    if for_compiler():
        return (weight * spread(vector, weight.shape, axis)).sum(axis).flatten()
    return vector @ weight.movedim(axis, 0).flatten(1)
