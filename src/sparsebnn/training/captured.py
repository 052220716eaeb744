"""Captured steps of dense networks: the gradients of :mod:`sparsebnn.training.dense` by kernels on CUDA.

Between products of matrices, one kernel makes the moments of a layer's weights, one its outputs, one their
gradients; the last one goes from gradients of moments to those of parameters and takes Adam's step.
What is limited by memory (moments, parameters) runs in a stream beside what is limited by latency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sparsebnn.kernels.training import Weights, single_priors
from sparsebnn.likelihoods import Categorical
from sparsebnn.training.batches import Batch
from sparsebnn.training.dense import DenseGradients, State
from sparsebnn.training.objective import Parts
from sparsebnn.training.optimizers import BETAS, EPS, average, corrected, count_step, mark_stopped

if TYPE_CHECKING:
    from sparsebnn.training.engine import Engine

_CLASSES = 1024  # as many fit into a tile of the kernel

__all__ = ["CapturedDense", "joined_step"]


class Adam(NamedTuple):
    """What Adam needs beside its moments; rates ``(groups, K)`` and root are those of ``corrected``."""

    rates: Tensor
    root: Tensor
    alive: Tensor
    group_of: Mapping[str, int]


class _Saved(NamedTuple):
    """What the backward pass needs of a layer."""

    mean: Tensor
    var: Tensor
    prior: Tensor
    z: Tensor
    square: Tensor
    std: Tensor
    noise_at: int


class Beside:
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

    def fits(self, state: State, batch: Batch) -> bool:
        parts = [part for layer in self.layers for part in layer.parts(state)]
        taken = batch.x.dtype == torch.float32 and all(map(single_priors, parts))
        return taken and super().fits(state, batch)

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
        """The loss, and the backward pass: it takes Adam's step and returns the other gradients, or all."""
        from sparsebnn.kernels import triton_dense as kernels

        x, normal = batch.x.contiguous(), noise[0].contiguous()
        least = torch.finfo(x.dtype).tiny ** 0.75
        parts = [layer.parts(state) for layer in self.layers]
        beside, second = Beside(x.is_cuda), Beside(x.is_cuda)
        made = [beside.run(_moments, weights) for weights, _ in parts]
        priors = [beside.run(_prior, sums, *of)[0] for ((_, _, sums), _), of in zip(made, parts)]
        saved: list[_Saved] = []
        z, square, at = x, x * x, 0
        for n, (_, biases) in enumerate(parts):
            (mean, var, _), ready = made[n]
            beside.join(ready)
            std, _ = second.run(torch.bmm, square, var.mT)
            outputs = torch.bmm(z, mean.mT)
            second.join()
            bias, last = (biases.mean, biases.raw_std), n == len(parts) - 1
            squares = kernels.outputs(outputs, std, bias, normal, at, least, last)
            saved.append(_Saved(mean, var, priors[n][0], z, square, std, at))
            at += outputs[0].numel()
            z, square = outputs, outputs if squares is None else squares
            if self.skip and not last:
                z, square = torch.cat([z, x], -1), torch.cat([square, saved[0].square], -1)
        beside.join()
        if type(self.objective.likelihood) is Categorical and z.shape[2] <= _CLASSES:
            slope, nll = kernels.classes(z, batch.y.contiguous(), batch.weight.contiguous())
            others: dict[str, Tensor] = {}
        else:
            slope, nll, others = self._likelihood(state, batch, z)
        share = (batch.rows / self.objective.n_data * beta).contiguous()
        by_layer = torch.stack([kl for _, kl in priors], dim=1)
        kl = by_layer.sum(1)

        def back(adam: Adam | None) -> dict[str, Tensor]:
            return others | self._back(state, saved, slope.contiguous(), share, normal, adam, least**0.5)

        return Parts(nll + share * kl, nll, kl, by_layer), back

    @torch.no_grad()
    def _back(
        self,
        state: State,
        saved: Sequence[_Saved],
        slope: Tensor,
        share: Tensor,
        normal: Tensor,
        adam: Adam | None,
        least: float,
    ) -> dict[str, Tensor]:
        from sparsebnn.kernels import triton_dense as kernels

        found: dict[str, Tensor] = {}
        beside, second = Beside(slope.is_cuda), Beside(slope.is_cuda)
        kept: list[Any] = []
        by_var = above = None
        for n in reversed(range(len(saved))):
            of_layer = saved[n]
            noisy = kernels.slopes(slope, by_var, above, of_layer.std, normal, of_layer.noise_at, least)
            beside.run(self._move, n, state, of_layer, (slope, noisy), share, adam, found)
            kept += [slope, noisy, by_var]
            if n > 0:
                width, above = saved[n - 1].std.shape[2], of_layer.z
                by_var, _ = second.run(torch.bmm, noisy, of_layer.var[..., :width])
                slope = torch.bmm(slope, of_layer.mean[..., :width])
                second.join()
        beside.join()
        return found

    def _move(
        self,
        n: int,
        state: State,
        of_layer: _Saved,
        slopes: tuple[Tensor, Tensor],
        share: Tensor,
        adam: Adam | None,
        found: dict[str, Tensor],
    ) -> None:
        """Adam's step for the parameters of a layer, or their gradients into ``found``."""
        from sparsebnn.kernels import triton_dense as kernels

        layer, (slope, noisy) = self.layers[n], slopes
        of_weights = torch.bmm(slope.mT, of_layer.z), torch.bmm(noisy.mT, of_layer.square)
        makers = (
            ("weights", kernels.parameters, of_weights, of_layer.prior),
            ("biases", kernels.biases, slopes, of_layer.prior[:, 3:]),
        )
        for (part, make, given, prior), w in zip(makers, layer.parts(state)):
            held = [p for p in (w.mean, w.raw_std, w.logit) if p is not None]
            names = list(layer.named(part, held))
            if adam is None:
                first = second = [torch.empty_like(p) for p in held]
                found |= dict(zip(names, first))
                how = None
            else:
                first, second = ([state[kind][name] for name in names] for kind in ("first", "second"))
                how = adam.rates, adam.root, adam.alive, [adam.group_of[name] for name in names]
            make(*given, held, prior, share, first, second, how, (*BETAS, EPS))


def _moments(w: Weights) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of weights, and sums for their KL."""
    from sparsebnn.kernels import triton_dense as kernels

    return kernels.moments(w.mean, w.raw_std, w.logit, w.prior_mean)


def _prior(sums: Tensor, weights: Weights, biases: Weights) -> tuple[Tensor, Tensor]:
    """The priors of a layer as they have learned, and the KL."""
    from sparsebnn.kernels import triton_dense as kernels

    inclusion = weights.prior_std if weights.prior_inclusion is None else weights.prior_inclusion
    of_weights = weights.prior_mean, weights.prior_std, inclusion
    of_biases = (biases.mean, biases.raw_std), (biases.prior_mean, biases.prior_std)
    given = weights.mean[0].numel(), of_weights, *of_biases, weights.strengths, weights.logit is None
    return kernels.prior(sums, *given)


def joined_step(engine: Engine, dense: CapturedDense) -> None:
    """A captured step with gradients and Adam in one pass; what is small runs beside it."""
    state, loop = engine.state, engine.state["loop"]
    beside = Beside(loop["step"].is_cuda)
    (rates, root), ready = beside.run(lambda: corrected(loop["rates"], loop["step"] + 1))
    noise = engine._noise(state)  # kept until the streams have joined
    parts, back = dense.forward(state, engine._batch(state), loop["beta"], noise)
    with torch.no_grad():
        mark_stopped(loop, torch.isfinite(parts.loss))
        beside.run(count_step, loop, parts)
        beside.join(ready)
        engine._plain_adam(state, rates, root)(back(Adam(rates, root, loop["alive"], engine.group_of)))
        beside.join()
        if engine.settings.average is not None:
            average(state["average"], state["trained"], engine.settings.average, loop["step"] - 1)
