"""Captured steps of dense networks: the gradients of :mod:`sparsebnn.training.dense` by kernels on CUDA.

Between products of matrices, one kernel makes the moments of a layer's weights, one its outputs, one their
gradients; the last one goes from gradients of moments to those of parameters and takes Adam's step.
What is limited by memory (moments, parameters) runs in streams beside what is limited by latency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sparsebnn.kernels.training import single_priors
from sparsebnn.likelihoods import Categorical
from sparsebnn.posteriors.flow import FlowFamily
from sparsebnn.training.batches import Batch, Batches
from sparsebnn.training.dense import DenseGradients, PlacedLayer, State
from sparsebnn.training.objective import Objective, Parts
from sparsebnn.training.optimizers import BETAS, EPS, average

if TYPE_CHECKING:
    from sparsebnn.training.engine import Engine

_CLASSES = 1024  # as many fit into a tile of the kernel

__all__ = ["Adam", "CapturedDense", "Goal", "MeanField", "joined_step"]


class Adam(NamedTuple):
    """What Adam needs beside its moments; rates ``(groups, K)`` and root are those of ``corrected``."""

    rates: Tensor
    root: Tensor
    alive: Tensor
    group_of: Mapping[str, int]


class Goal:
    """Where kernels put gradients: into Adam's step, or without ``adam`` into ``found`` by name."""

    constants = (*BETAS, EPS)

    def __init__(self, state: State, adam: Adam | None) -> None:
        self.state, self.adam = state, adam
        self.found: dict[str, Tensor] = {}

    def of(self, names: Sequence[str], held: Sequence[Tensor]) -> tuple[Any, Any, Any]:
        """For parameters: where first and second moments go, and Adam's rates, root, alive and groups."""
        if self.adam is None:
            made = [torch.empty_like(p) for p in held]
            self.found |= dict(zip(names, made))
            return made, made, None
        first, second = ([self.state[kind][name] for name in names] for kind in ("first", "second"))
        rates, root, alive, group_of = self.adam
        return first, second, (rates, root, alive, [group_of[name] for name in names])


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
        """Let the current stream wait for this one, or for an event of it."""
        if self.stream is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self.stream) if event is None else current.wait_event(event)


class MeanField:
    """Independent weights of a layer: their moments, their KL, and Adam's step."""

    def __init__(self, placed: PlacedLayer) -> None:
        self.placed = placed

    @property
    def noise(self) -> int:
        """How many numbers of the noise come before those of the outputs."""
        return 0

    def moments(self, state: State, noise: Tensor, at: int) -> tuple[Any, ...]:
        """Mean and variance of weights, sums for their KL, and what is to be known later."""
        from sparsebnn.kernels import triton_dense as kernels

        w, _ = self.placed.parts(state)
        return kernels.moments(w.mean, w.raw_std, w.logit, w.prior_mean)

    def divergence(
        self, state: State, begun: Begun, layer: int, share: Tensor, by_layer: Tensor
    ) -> tuple[Tensor, Any]:
        """The priors of a layer as they have learned, and what is to be known later; puts the KL in place."""
        from sparsebnn.kernels import triton_dense as kernels

        weights, biases = self.placed.parts(state)
        inclusion = weights.prior_std if weights.prior_inclusion is None else weights.prior_inclusion
        of_weights = weights.prior_mean, weights.prior_std, inclusion
        of_biases = (biases.mean, biases.raw_std), (biases.prior_mean, biases.prior_std)
        given = weights.mean[0].numel(), of_weights, *of_biases, weights.strengths, weights.logit is None
        return kernels.prior(begun.made[layer][0][2], *given, by_layer, layer), None

    def held(self, part: str, state: State) -> tuple[list[Tensor], list[str]]:
        """The parameters of weights or biases, and their names."""
        w = self.placed.parts(state)[part == "biases"]
        tensors = [p for p in (w.mean, w.raw_std, w.logit) if p is not None]
        return tensors, list(self.placed.named(part, tensors))

    def move(
        self, goal: Goal, saved: Saved, by_moments: tuple[Tensor, Tensor], share: Tensor, noise: Tensor
    ) -> list[Tensor]:
        """Take the step of the weights; the result must be kept until the streams have joined."""
        from sparsebnn.kernels import triton_dense as kernels

        held, names = self.held("weights", goal.state)
        to = goal.of(names, held)
        kernels.parameters(*by_moments, held, saved.prior, share, *to, goal.constants)
        return []


class Saved(NamedTuple):
    """What the backward pass needs of a layer."""

    made: Sequence[Any]
    prior: Tensor
    known: Any
    z: Tensor
    square: Tensor
    std: Tensor
    noise_at: int


class Begun(NamedTuple):
    """What does not depend on the batch: noise, moments of layers with an event, where their noise begins."""

    noise: tuple[Tensor, Tensor]
    ready: Any  # an event: the noise is there
    made: list[tuple[tuple[Any, ...], Any]]
    at: list[int]


class CapturedDense(DenseGradients):
    """Gradients and parts of the loss, as its parent's; and the step of Adam in the same pass."""

    flows = True

    def __init__(self, objective: Objective, layers: list[Any], skip: bool, fused: bool) -> None:
        super().__init__(objective, layers, skip, fused)
        self.weights = [_strategy(placed) for placed in self.layers]
        self.streams: list[Beside] = []  # one for each layer
        self.others: list[Beside] = []  # for products of matrices, and for noise

    def fits(self, state: State, batch: Batch) -> bool:
        parts = [part for layer in self.layers for part in layer.parts(state)]
        taken = batch.x.dtype == torch.float32 and all(map(single_priors, parts))
        return taken and super().fits(state, batch)

    def __call__(
        self, state: State, batch: Batch, beta: Tensor, noise: tuple[Tensor, Tensor]
    ) -> tuple[dict[str, Tensor], Parts]:
        begun = self.begin(state, lambda: noise, len(batch.weight[0]))
        share = (batch.rows / self.objective.n_data * beta).contiguous()
        x = batch.x.contiguous()
        (terms, by_layer), back = self.forward(state, batch._replace(x=x), x * x, share, begun)
        found = back(None, None)
        nll, kl = terms.view(len(share), -1).sum(1), by_layer.sum(1)
        named = {name: found[name] for name in state["trained"]}
        return named, Parts(nll + share * kl, nll, kl, by_layer)

    @torch.no_grad()
    def begin(self, state: State, noise: Callable[[], tuple[Tensor, Tensor]], rows: int) -> Begun:
        """Make noise, and moments beside it; those of flows need noise themselves."""
        cuda = state["trained"][next(iter(state["trained"]))].is_cuda
        if not self.streams:
            self.streams = [Beside(cuda) for _ in self.layers]
            self.others = [Beside(cuda), Beside(cuda)]
        plain = not any(weights.noise for weights in self.weights)
        at, place = [], 0
        for placed, weights in zip(self.layers, self.weights):
            at.append(place)
            place += weights.noise + rows * placed.layer.out_features
        made = self._moments(state, self._none, at) if plain else []

        def drawn() -> tuple[Tensor, Tensor]:
            normal, logistic = noise()
            return normal.contiguous(), logistic

        (normal, logistic), ready = self.others[1].run(drawn) if plain else (drawn(), None)
        made = made or self._moments(state, normal, at)
        return Begun((normal, logistic), ready, made, at)

    _none = torch.empty(0)

    def _moments(self, state: State, normal: Tensor, at: Sequence[int]) -> list[Any]:
        rooms = zip(self.streams, self.weights, at)
        return [stream.run(weights.moments, state, normal, place) for stream, weights, place in rooms]

    @torch.no_grad()
    def forward(
        self, state: State, batch: Batch, squares_of_x: Tensor, share: Tensor, begun: Begun
    ) -> tuple[tuple[Tensor, Tensor], Callable[[Adam | None, Any], dict[str, Tensor]]]:
        """Terms of the NLL, the KL of layers, for which :meth:`join` waits, and a function that goes back.

        It takes Adam's step, and an event before which that must not begin. Without Adam it returns all
        gradients, otherwise those that are left. ``share`` is what the KL counts.
        """
        from sparsebnn.kernels import triton_dense as kernels

        x, normal = batch.x, begun.noise[0]
        least = torch.finfo(x.dtype).tiny ** 0.75
        by_layer = x.new_empty(len(x), len(self.layers))
        of_kl: list[tuple[Tensor, Any]] = [
            stream.run(weights.divergence, state, begun, n, share, by_layer)[0]
            for n, (stream, weights) in enumerate(zip(self.streams, self.weights))
        ]
        saved: list[Saved] = []
        second = self.others[0]
        z, square = x, squares_of_x
        for n, (made, ready) in enumerate(begun.made):
            self.streams[n].join(ready)
            std, _ = second.run(torch.bmm, square, made[1].mT)
            outputs = torch.bmm(z, made[0].mT)
            second.join()
            if n == 0 and begun.ready is not None:
                torch.cuda.current_stream().wait_event(begun.ready)
            biases, last = self.layers[n].parts(state)[1], n == len(begun.made) - 1
            bias, at = (biases.mean, biases.raw_std), begun.at[n] + self.weights[n].noise
            squares = kernels.outputs(outputs, std, bias, normal, at, least, last)
            saved.append(Saved(made, *of_kl[n], z, square, std, at))
            z, square = outputs, outputs if squares is None else squares
            if self.skip and not last:
                z, square = torch.cat([z, x], -1), torch.cat([square, saved[0].square], -1)
        others: dict[str, Tensor] = {}
        if type(self.objective.likelihood) is Categorical and z.shape[2] <= _CLASSES:
            slope, terms = kernels.classes(z, batch.y.contiguous(), batch.weight.contiguous())
        else:
            slope, terms, others = self._likelihood(state, batch, z)

        def back(adam: Adam | None, allowed: Any) -> dict[str, Tensor]:
            goal = Goal(state, adam)
            self._back(goal, saved, slope.contiguous(), share, normal, least**0.5, allowed)
            return others | goal.found

        return (terms, by_layer), back

    def join(self) -> None:
        """Let the current stream wait for what the layers do beside it."""
        for stream in self.streams:
            stream.join()

    @torch.no_grad()
    def _back(
        self,
        goal: Goal,
        saved: Sequence[Saved],
        slope: Tensor,
        share: Tensor,
        normal: Tensor,
        least: float,
        allowed: Any,
    ) -> None:
        from sparsebnn.kernels import triton_dense as kernels

        second = self.others[0]
        kept: list[Any] = []
        by_var = above = None
        for n in reversed(range(len(saved))):
            of_layer = saved[n]
            noisy = kernels.slopes(slope, by_var, above, of_layer.std, normal, of_layer.noise_at, least)
            self.streams[n].run(self._move, n, goal, of_layer, (slope, noisy), share, normal, allowed, kept)
            kept += [slope, noisy, by_var]
            if n > 0:
                width, above = saved[n - 1].std.shape[2], of_layer.z
                by_var, _ = second.run(torch.bmm, noisy, of_layer.made[1][..., :width])
                slope = torch.bmm(slope, of_layer.made[0][..., :width])
                second.join()
        self.join()

    def _move(
        self,
        n: int,
        goal: Goal,
        saved: Saved,
        slopes: tuple[Tensor, Tensor],
        share: Tensor,
        normal: Tensor,
        allowed: Any,
        kept: list[Any],
    ) -> None:
        """Adam's step for the parameters of a layer, or their gradients."""
        from sparsebnn.kernels import triton_dense as kernels

        slope, noisy = slopes
        by_moments = torch.bmm(slope.mT, saved.z), torch.bmm(noisy.mT, saved.square)
        if allowed is not None:
            torch.cuda.current_stream().wait_event(allowed)
        kept += [*by_moments, self.weights[n].move(goal, saved, by_moments, share, normal)]
        held, names = self.weights[n].held("biases", goal.state)
        kernels.biases(slope, noisy, held, saved.prior[:, 3:], share, *goal.of(names, held), goal.constants)


def _strategy(placed: PlacedLayer) -> MeanField:
    if not isinstance(placed.layer.weights, FlowFamily):
        return MeanField(placed)
    from sparsebnn.training.captured_flow import Flow

    return Flow(placed)


def _plain_rows(engine: Engine) -> bool:
    """Whether batches are rows of a table in memory as they are, or of pixels."""
    if not isinstance(engine.batches, Batches) or engine.augment or engine.shard is not None:
        return False
    data = engine.state["data"]
    plain = "shifts" not in engine.state["loop"] and all(t.is_contiguous() for t in data.values())
    return plain and data["x"].dim() == 2 and data["x"].dtype in (torch.uint8, torch.float32)


def joined_step(engine: Engine, dense: CapturedDense) -> None:
    """A captured step with gradients and Adam in one pass; what is small runs beside it."""
    from sparsebnn.kernels import triton_batch as kernels

    state, loop = engine.state, engine.state["loop"]
    beside = Beside(loop["step"].is_cuda)
    # What streams share is kept until they have joined.
    begun = dense.begin(state, lambda: engine._noise(state), loop["offsets"].numel())
    if _plain_rows(engine):
        x, squares, y, weight, share = kernels.gather(state["data"], loop, dense.objective.n_data)
        batch = Batch(x, y, weight, share)
    else:
        batch = engine._batch(state)
        batch = batch._replace(x=batch.x.contiguous())
        share = (batch.rows / dense.objective.n_data * loop["beta"]).contiguous()
        squares = batch.x * batch.x
    (rates, root), _ = beside.run(kernels.corrected, loop, BETAS)
    (terms, by_layer), back = dense.forward(state, batch, squares, share, begun)

    def account() -> None:
        """Needed before Adam's step, and not by the gradients."""
        dense.join()
        kernels.account(loop, terms.contiguous(), by_layer, share)

    with torch.no_grad():
        _, allowed = beside.run(account)
        others = back(Adam(rates, root, loop["alive"], engine.group_of), allowed)
        beside.join()
        engine._plain_adam(state, rates, root)(others)
        if engine.settings.average is not None:
            average(state["average"], state["trained"], engine.settings.average, loop["step"] - 1)
