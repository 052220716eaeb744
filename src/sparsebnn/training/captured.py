"""Captured steps of dense networks: the gradients of :mod:`sparsebnn.training.dense` by kernels on CUDA.

Per layer one kernel makes the moments of the weights, one the outputs, one the gradient of the layer below;
the last one goes from the gradients of the moments to those of the parameters and takes Adam's step with
them. What is limited by memory (moments, parameters) runs in a stream beside what is limited by latency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsebnn.kernels.training import Weights
from sparsebnn.training.batches import Batch
from sparsebnn.training.dense import DenseGradients, State
from sparsebnn.training.objective import Objective, Parts
from sparsebnn.training.optimizers import BETAS, EPS

__all__ = ["Adam", "CapturedDense"]


class Adam(NamedTuple):
    """What Adam's step needs beside its moments; rates ``(groups, K)`` and root are those of ``corrected``."""

    rates: Tensor
    root: Tensor
    alive: Tensor
    group_of: Mapping[str, int]


class _Way(NamedTuple):
    """What the way back needs of a layer."""

    mean: Tensor
    var: Tensor
    prior: Tensor
    z: Tensor
    square: Tensor
    std: Tensor
    noise_at: int


class _Beside:
    """A stream beside the current one, which must be joined before what it uses is let go."""

    def __init__(self, cuda: bool) -> None:
        self.stream = torch.cuda.Stream() if cuda else None

    def run(self, function: Callable[..., Any], *given: Any) -> tuple[Any, Any]:
        """Begin after what the current stream has been given; the result, and an event to wait for."""
        if self.stream is None:
            return function(*given), None
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            return function(*given), self.stream.record_event()

    def join(self, event: Any = None) -> None:
        if self.stream is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self.stream) if event is None else current.wait_event(event)


class CapturedDense(DenseGradients):
    """Gradients and parts of the loss, as its parent's; and the step of Adam in the same pass."""

    @classmethod
    def fitting(
        cls, objective: Objective, state: State, batch: Batch, fused: bool = False
    ) -> DenseGradients | None:
        """If network, likelihood, device and precision allow it."""
        x, y = batch.x, batch.y
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.dim() != 3 or not x.is_cuda:
            return None
        found = None if objective.autocast or x.dtype != torch.float32 else cls.of(objective)
        return found if found is not None and found.fits(state, batch) else None

    def fits(self, state: State, batch: Batch) -> bool:
        parts = [part for layer in self.layers for part in layer.parts(state)]
        return all(_takes(part) for part in parts) and super().fits(state, batch)

    def __call__(
        self, state: State, batch: Batch, beta: Tensor, noise: tuple[Tensor, Tensor]
    ) -> tuple[dict[str, Tensor], Parts]:
        parts, back = self.forward(state, batch, beta, noise)
        found = back(None)
        return {name: found[name] for name in state["trained"]}, parts

    @torch.no_grad()
    def forward(
        self, state: State, batch: Batch, beta: Tensor, noise: tuple[Tensor, Tensor]
    ) -> tuple[Parts, Callable[[Adam | None], dict[str, Tensor]]]:
        """The loss, and the way back: it takes Adam's step and returns the other gradients, or all of them."""
        from sparsebnn.kernels import triton_dense as kernels

        x, normal = batch.x.contiguous(), noise[0].contiguous()
        least = torch.finfo(x.dtype).tiny ** 0.75
        ways: list[_Way] = []
        beside = _Beside(x.is_cuda)
        made = [beside.run(_moments, *layer.parts(state)) for layer in self.layers]
        z, square, at = x, x * x, 0
        inputs = z, square
        for n, layer in enumerate(self.layers):
            biases, last = layer.parts(state)[1], n == len(self.layers) - 1
            (mean, var, prior, _), ready = made[n]
            beside.join(ready)
            bias = biases.mean, biases.raw_std
            outputs, squares, std = kernels.forward(z, mean, var, bias, normal, at, least, last)
            ways.append(_Way(mean, var, prior, z, square, std, at))
            at += outputs[0].numel()
            z, square = outputs, squares
            if self.skip and not last:
                z, square = (torch.cat(pair, -1) for pair in zip((z, square), inputs))
        beside.join()
        slope, nll, others = self._likelihood(state, batch, z)
        share = (batch.rows / self.objective.n_data * beta).contiguous()
        by_layer = torch.stack([kl for (_, _, _, kl), _ in made], dim=1)
        kl = by_layer.sum(1)

        def back(adam: Adam | None) -> dict[str, Tensor]:
            return others | self._back(state, ways, slope.contiguous(), share, normal, adam, least**0.5)

        return Parts(nll + share * kl, nll, kl, by_layer), back

    @torch.no_grad()
    def _back(
        self,
        state: State,
        ways: Sequence[_Way],
        slope: Tensor,
        share: Tensor,
        normal: Tensor,
        adam: Adam | None,
        least: float,
    ) -> dict[str, Tensor]:
        from sparsebnn.kernels import triton_dense as kernels

        found: dict[str, Tensor] = {}
        beside, kept = _Beside(slope.is_cuda), []
        noisy = kernels.noisy(slope, ways[-1].std, normal, ways[-1].noise_at, least)
        for n in reversed(range(len(ways))):
            way, now = ways[n], (slope, noisy)
            kept.append(now)
            if n > 0:
                drawn = ways[n - 1].std, normal, ways[n - 1].noise_at
                slope, noisy = kernels.slope_below(*now, way.mean, way.var, way.z, *drawn, least)
            beside.run(self._move, n, state, way, now, share, adam, found)
        beside.join()
        return found

    def _move(
        self,
        n: int,
        state: State,
        way: _Way,
        slopes: tuple[Tensor, Tensor],
        share: Tensor,
        adam: Adam | None,
        found: dict[str, Tensor],
    ) -> None:
        """Adam's step for the parameters of a layer, or their gradients into ``found``."""
        from sparsebnn.kernels import triton_dense as kernels

        layer, (slope, noisy) = self.layers[n], slopes
        of_weights = torch.bmm(slope.mT, way.z), torch.bmm(noisy.mT, way.square)
        of_biases = slope.sum(1), noisy.sum(1)
        both = zip(("weights", "biases"), layer.parts(state), (of_weights, of_biases), (0, 3))
        for part, w, gradients, at in both:
            held = [p for p in (w.mean, w.raw_std, w.logit) if p is not None]
            names = list(layer.named(part, held))
            if adam is None:
                first = second = [torch.empty_like(p) for p in held]
                found |= dict(zip(names, first))
                how = None
            else:
                first, second = ([state[kind][name] for name in names] for kind in ("first", "second"))
                how = adam.rates, adam.root, adam.alive, [adam.group_of[name] for name in names]
            known = way.prior[:, at:], share
            kernels.parameters(*gradients, held, *known, first, second, how, (*BETAS, EPS))


def _moments(weights: Weights, biases: Weights) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean and variance of the weights of a layer, the priors as they have learned, and the KL."""
    from sparsebnn.kernels import triton_dense as kernels

    mean, var, sums = kernels.moments(weights.mean, weights.raw_std, weights.logit, weights.prior_mean)
    inclusion = weights.prior_std if weights.prior_inclusion is None else weights.prior_inclusion
    of_weights = weights.prior_mean, weights.prior_std, inclusion
    of_biases = (biases.mean, biases.raw_std), (biases.prior_mean, biases.prior_std)
    given = mean[0].numel(), of_weights, *of_biases, weights.strengths, weights.logit is None
    return mean, var, *kernels.prior(sums, *given)


def _takes(w: Weights) -> bool:
    """Single precision, and priors of one value, or one per replicate."""
    values = (w.prior_mean, w.prior_std, *([] if w.prior_inclusion is None else [w.prior_inclusion]))
    single = all(v.numel() in (1, len(w.mean)) for v in values)
    return single and all(v.dtype == torch.float32 and v.is_cuda for v in (w.mean, *values))
