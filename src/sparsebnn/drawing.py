"""Draws of a network's outputs: which pass, in what batches of rows, from what noise, in bounded memory.

Draws run as one batched pass (``torch.func.vmap`` over blocks of noise), in chunks that bound the memory.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn import counter
from sparsebnn.allocation import keep_freed_memory
from sparsebnn.checks import (
    check_choice,
    check_count,
    check_finite,
    check_rows,
    check_seed,
    check_tensor,
    invalid,
)
from sparsebnn.kernels import noise as kernels
from sparsebnn.layers import BayesianLayer
from sparsebnn.networks import as_input, bayesian_layers, described
from sparsebnn.noise import NoiseSize, Tape
from sparsebnn.passes import LocalPass, MedianPass, Pass, WeightPass, noise_size

__all__ = ["draw_outputs", "draw_outputs_of_all", "pass_for"]

_NORMAL = counter.stream_id("prediction normal")
_LOGISTIC = counter.stream_id("prediction logistic")
# Noise held at a time, in bytes. On a CPU more than its caches hold is slower: 20 draws of 1,024 rows through
# 1,000 units take 1.85 s with 2^28, 0.45 s with 2^25 and 0.31 s with 2^23; through the paper's network 2.0 s,
# 0.77 s and 0.77 s. A GPU wants few large passes: what is made of the noise takes some ten times as much, so
# this share of its free memory is safe.
_MEMORY, _CPU_MEMORY, _SHARE = 1 << 28, 1 << 23, 32
_PASSES: dict[str, type[Pass]] = {"local": LocalPass, "weights": WeightPass, "median": MedianPass}


def _checked(x: Any, n_draws: int, owner: str) -> Tensor:
    check_count(n_draws, "n_draws", owner)
    x = check_tensor(x, "x", owner)
    if x.dim() < 2:
        raise invalid("x", owner, "of shape (rows, …)", f"shape {tuple(x.shape)}")
    check_rows([("x", x.shape[0])], owner)
    return check_finite(x, "x", owner)


def pass_for(network: nn.Module, model: str, draws: str) -> type[Pass]:
    """Which pass a prediction uses."""
    check_choice(model, ("average", "median"), "model", "predict")
    check_choice(draws, ("auto", "local", "weights"), "draws", "predict")
    if model == "median":
        return MedianPass
    if draws == "auto":
        drawn = any(layer.weights.draws_weights for _, layer in bayesian_layers(network))
        draws = "weights" if drawn else "local"
    return _PASSES[draws]


@torch.no_grad()
def draw_outputs(
    network: nn.Module,
    x: Tensor,
    n_draws: int = 100,
    *,
    model: str = "average",
    draws: str = "auto",
    seed: int = 0,
    batch_size: int = 1024,
    memory: int | None = None,
) -> Iterator[tuple[slice, Tensor]]:
    """Network outputs for draws of the posterior: ``(rows, outputs of shape (draws, rows, …))``.

    ``model="average"`` draws from the whole posterior, ``"median"`` from the median probability
    model. ``draws="local"`` samples the outputs of every layer (noise per example and unit),
    ``"weights"`` whole weight tensors; ``"auto"`` does as the family trains. Draw d of the weights is
    the same for every batch of rows. ``memory`` bounds the noise held at a time, in bytes; without it a CPU
    takes as much as its caches hold and a GPU as much as fills it. The draws are the same either way.
    """
    plan = _Plan(network, x, n_draws, model, draws, seed, batch_size, memory)

    def outputs(batch: Tensor, normal: Tensor, logistic: Tensor) -> Tensor:
        with plan.kind(Tape(normal, logistic)):
            return network(batch)

    for rows, batches in plan.groups():
        every = plan.over(plan.together(outputs, batches), (None, 0, 0))
        with _evaluating(network):
            drawn = torch.cat([every(batches, *noise) for noise in plan.noise(rows, batches)])
        yield from zip(rows, drawn.unbind(1))


@torch.no_grad()
def draw_outputs_of_all(
    networks: Sequence[nn.Module],
    x: Tensor,
    n_draws: int = 100,
    *,
    model: str = "average",
    draws: str = "auto",
    seed: int = 0,
    batch_size: int = 1024,
    memory: int | None = None,
) -> Iterator[tuple[slice, Tensor]]:
    """As :func:`draw_outputs` for K networks of one shape, as one program: outputs ``(K, draws, rows, …)``.

    All networks see the same noise, so each has the draws it has alone.
    """
    _check_alike(networks)
    parameters, buffers = torch.func.stack_module_state(list(networks))
    skeleton = copy.deepcopy(networks[0]).eval()
    plan = _Plan(networks[0], x, n_draws, model, draws, seed, batch_size, memory, len(networks))

    def of_one(state: Any, batches: Tensor, normal: Tensor, logistic: Tensor) -> Tensor:
        def outputs(batch: Tensor, normal: Tensor, logistic: Tensor) -> Tensor:
            with plan.kind(Tape(normal, logistic)):
                return torch.func.functional_call(skeleton, state, (batch,), tie_weights=False)

        return plan.together(outputs, batches)(batches, normal, logistic)

    every = plan.over(plan.over(of_one, (None, None, 0, 0)), (0, None, None, None))
    for rows, batches in plan.groups():
        parts = [every((parameters, buffers), batches, *noise) for noise in plan.noise(rows, batches)]
        yield from zip(rows, torch.cat(parts, dim=1).unbind(2))


@contextlib.contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Norms and dropout as they predict; afterwards every module trains that did before."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _check_alike(networks: Sequence[nn.Module]) -> None:
    if not networks:
        raise invalid("networks", "predict_all", "at least one network", "none")
    alike = []
    for network in networks:
        shapes = {name: tuple(t.shape) for name, t in network.state_dict().items()}
        alike.append((shapes, described(network)))
    for k, other in enumerate(alike):
        if other != alike[0]:
            advice = "Networks of different shapes or options are predicted one by one."
            raise invalid("networks", "predict_all", "of one shape", f"another one at place {k}", advice)


def _memory(device: torch.device) -> int:
    """Bytes of noise to hold at a time."""
    if device.type == "cuda":
        return max(_MEMORY, torch.cuda.mem_get_info(device)[0] // _SHARE)
    return _CPU_MEMORY if device.type == "cpu" else _MEMORY


def _counting(kind: type[Pass]) -> tuple[type[Pass], list[int]]:
    """A pass of that kind that notes how many numbers each layer puts out."""
    counts: list[int] = []

    class Counting(kind):  # type: ignore[misc, valid-type]
        def output(self, layer: BayesianLayer, x: Tensor) -> Tensor:
            put_out: Tensor = super().output(layer, x)
            counts.append(put_out.numel())
            return put_out

    return Counting, counts


def _at(value: Any, i: int) -> Any:
    """The i-th of a tensor, or of every tensor inside."""
    if isinstance(value, dict):
        return {name: _at(each, i) for name, each in value.items()}
    return tuple(_at(each, i) for each in value) if isinstance(value, tuple) else value[i]


def _first(value: Any) -> int:
    """The length of the first axis."""
    while not isinstance(value, Tensor):
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return len(value)


class _Plan:
    """How draws are made: which pass, in what batches of rows, from what noise."""

    def __init__(
        self,
        network: nn.Module,
        x: Tensor,
        n_draws: int,
        model: str,
        draws: str,
        seed: int,
        batch_size: int,
        memory: int | None,
        networks: int = 1,
    ) -> None:
        self.x = _checked(x, n_draws, "predict")
        check_count(batch_size, "batch_size", "predict")
        self.network, self.n_draws = network, n_draws
        self.kind = pass_for(network, model, draws)
        self.like = next(network.parameters())
        self.one_by_one = any(isinstance(module, nn.RNNBase) for module in network.modules())
        self.seeds = counter.seed_tensor([check_seed(seed, "seed", "predict")], self.like.device)
        self.batch_size = batch_size
        keep_freed_memory(self.like.device.type)
        self.memory = (_memory(self.like.device) if memory is None else memory) // networks
        self._sizes: dict[int, NoiseSize] = {}
        self._activations: dict[int, int] = {}

    def groups(self) -> Iterator[tuple[list[slice], Tensor]]:
        """Batches of rows that go together, ``(G, batch, …)``, and which rows they are.

        There are several in one pass where all their draws fit into the memory. A last batch that is
        shorter goes alone.
        """
        count, each = self.x.shape[0], self.batch_size
        at_once = 1
        if count >= 2 * each:
            at_once = max(1, self.memory // (self.n_draws * self._draw_bytes(self._rows(0, each))))
        start = 0
        while start < count:
            batches = max(1, min(at_once, (count - start) // each))
            end = min(start + batches * each, count)
            rows = [slice(first, min(first + each, end)) for first in range(start, end, each)]
            yield rows, self._rows(start, end).unflatten(0, (batches, -1))
            start = end

    def _rows(self, start: int, end: int) -> Tensor:
        """Rows as the network takes them."""
        rows = self.x[start:end].to(device=self.like.device)
        # Pixels: the same scale as in training.
        if rows.dtype == torch.uint8:
            return rows.to(self.like.dtype) / 255.0
        return as_input(rows, self.network, self.like.dtype, "predict")

    def together(self, outputs: Callable[..., Tensor], batches: Tensor) -> Callable[..., Tensor]:
        """``outputs`` of one draw for all batches of a group: each with its own noise, if that is local."""
        if len(batches) == 1:
            return lambda batches, *noise: outputs(
                batches[0], *(block.squeeze(0) if self.local else block for block in noise)
            ).unsqueeze(0)
        own = 0 if self.local else None
        return self.over(outputs, (0, own, own))

    def over(self, function: Callable[..., Tensor], dims: tuple[int | None, ...]) -> Callable[..., Tensor]:
        """``function`` over the first axis of the arguments whose place says 0, as one program.

        Recurrent modules have no batched form without a gradient: with them it is one after the other.
        """
        if not self.one_by_one:
            return torch.func.vmap(function, in_dims=dims)

        def looped(*given: Any) -> Tensor:
            count = next(_first(each) for each, dim in zip(given, dims) if dim == 0)

            def one(i: int) -> Tensor:
                return function(*(each if dim is None else _at(each, i) for each, dim in zip(given, dims)))

            return torch.stack([one(i) for i in range(count)])

        return looped

    @property
    def local(self) -> bool:
        """Whether noise belongs to rows. Whole weights must not change from batch to batch."""
        return self.kind is LocalPass

    def _noise_size(self, batch: Tensor) -> NoiseSize:
        """What one draw for such a batch consumes; found by a pass, once for every number of rows."""
        if len(batch) not in self._sizes:
            kind, outputs = _counting(self.kind)
            with _evaluating(self.network):
                self._sizes[len(batch)] = noise_size(self.network, batch, kind)
            self._activations[len(batch)] = sum(outputs)
        return self._sizes[len(batch)]

    def _draw_bytes(self, batch: Tensor) -> int:
        """Of one draw for such a batch: its noise, or what the layers put out, whichever is more.

        Whole weights of a convolution need little noise and put out much.
        """
        size = self._noise_size(batch)
        numbers = max(size.normal + size.logistic + 1, self._activations[len(batch)])
        return numbers * self.like.element_size()

    def noise(self, rows: list[slice], batches: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of noise for as many draws at a time as the memory allows: ``(draws, …)``.

        Local noise has an axis more, the batches of the group.
        """
        size = self._noise_size(batches[0])
        chunk = self.memory // (self._draw_bytes(batches[0]) * len(batches))
        chunk = max(1, min(self.n_draws, chunk))
        starts = torch.tensor([one.start for one in rows], device=self.like.device) << 32
        for first in range(0, self.n_draws, chunk):
            steps = torch.arange(first, min(first + chunk, self.n_draws), device=self.like.device)
            keys = (steps.unsqueeze(1) + starts).flatten() if self.local else steps
            shape = (len(steps), len(rows)) if self.local else (len(steps),)
            normal = kernels.normals(self.seeds, _NORMAL, keys, size.normal, self.like.dtype, eager=True)
            logistic = kernels.logistics(
                self.seeds, _LOGISTIC, keys, size.logistic, self.like.dtype, eager=True
            )
            yield normal.unflatten(0, shape), logistic.unflatten(0, shape)
