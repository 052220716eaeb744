"""Draws of a network's outputs: which pass, in what batches of rows, from what noise, in bounded memory.

Draws run as one batched pass (``torch.func.vmap`` over blocks of noise), in chunks that bound the memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sparsebnn.checks import (
    check_choice,
    check_count,
    check_finite,
    check_rows,
    check_seed,
    check_tensor,
    invalid,
)
from sparsebnn.kernels import training
from sparsebnn.kernels.dispatch import keep_freed_memory
from sparsebnn.nn.description import described
from sparsebnn.nn.networks import as_input, bayesian_layers
from sparsebnn.nn.passes import LocalPass, MedianPass, Pass, WeightPass, measure, must_draw
from sparsebnn.posteriors.base import Family, Moments
from sparsebnn.random import noise as counter
from sparsebnn.random.noise import Noise, NoiseBuffer, NoiseCounter, NoiseSize, RowNoiseBuffer

_NORMAL = counter.stream_id("prediction normal")
_LOGISTIC = counter.stream_id("prediction logistic")
_ROW_NORMAL = counter.stream_id("prediction row normal")
_ROW_LOGISTIC = counter.stream_id("prediction row logistic")
# Noise held at a time, in bytes. On a CPU more than its caches hold is slower: 20 draws of 1,024 rows through
# 1,000 units take 1.85 s with 2^28, 0.45 s with 2^25 and 0.31 s with 2^23. A GPU wants few large passes: what
# is made of the noise takes some ten times as much, so this share of its free memory is safe.
_MEMORY, _CPU_MEMORY, _SHARE = 1 << 28, 1 << 23, 32
_MANY_NUMBERS = 1 << 18
_LEAST_ROWS = 8  # run together
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
    model. ``draws="local"`` samples the outputs of every layer (noise per example and unit; layers that the
    network calls more than once draw their weights), ``"weights"`` whole weight tensors; ``"auto"`` does as
    the family trains. Draws of weights are the same for all rows, and the noise of a row depends on the seed
    and on the values of that row, so neither ``batch_size`` nor the other rows change a row's outputs, apart
    from rounding. (Exception: a network with recurrent modules whose Bayesian layers have no rows along their
    first axis.) ``memory`` bounds what is held at a time, in bytes; without it a CPU takes as much as its
    caches hold and a GPU as much as fills it. The draws are the same either way.
    """
    plan = _Plan(
        network, x, n_draws, model=model, draws=draws, seed=seed, batch_size=batch_size, memory=memory
    )

    known = plan.known()

    def outputs(batch: Tensor, noise: _Blocks) -> Tensor:
        with plan.opened(noise, known):
            return plan.network(batch)

    every = plan.over(plan.by_rows(outputs), (None, 0))
    for rows, batch in plan.batches():
        parts = [torch.cat([every(few, n) for n in plan.noise(few)]) for few in plan.groups(batch)]
        yield from plan.pieces(rows, torch.cat(parts, dim=1), 1)


@torch.no_grad()
def draw_outputs_of_all(
    networks: Sequence[nn.Module],
    x: Tensor,
    n_draws: int = 100,
    *,
    seed: int | Sequence[int] = 0,
    like: Tensor | None = None,
    **options: Any,
) -> Iterator[tuple[slice, Tensor]]:
    """As :func:`draw_outputs` for K networks of one shape, as one program: outputs ``(K, draws, rows, …)``.

    ``options`` are those of :func:`draw_outputs`. Each network has the draws it has alone. With one ``seed``
    all see the same noise; with one each they see independent noise, and the error of their average is that
    of K times as many draws. With ``like`` they are run with its precision, on its device.
    """
    _check_alike(networks)
    parameters, buffers = torch.func.stack_module_state(list(networks))
    first = networks[0]
    if like is not None:
        parameters, buffers = (
            {name: t.to(like if t.is_floating_point() else like.device) for name, t in kind.items()}
            for kind in (parameters, buffers)
        )
        first = copy.deepcopy(first).to(like)
    if isinstance(seed, Sequence) and len(seed) != len(networks):
        raise invalid("seed", "predict_all", f"one for all or one each ({len(networks)})", len(seed))
    plan = _Plan(first, x, n_draws, len(networks), seed=seed, **options)

    def of_one(state: Any, batch: Tensor, noise: _Blocks) -> Tensor:
        def outputs(batch: Tensor, noise: _Blocks) -> Tensor:
            with plan.opened(noise):
                return torch.func.functional_call(plan.network, state, (batch,), tie_weights=False)

        return plan.by_rows(outputs)(batch, noise)

    every = plan.over(plan.over(of_one, (None, None, 0)), (0, None, 0 if plan.each_its_own else None))
    for rows, batch in plan.batches():
        state, parts = (parameters, buffers), []
        for few in plan.groups(batch):
            parts.append(torch.cat([every(state, few, noise) for noise in plan.noise(few)], dim=1))
        yield from plan.pieces(rows, torch.cat(parts, dim=2), 2)


@torch.no_grad()
def draw_weights(
    network: nn.Module, x: Tensor, n_draws: int = 100, *, model: str = "average", seed: int = 0
) -> list[dict[str, tuple[Tensor, Tensor | None]]]:
    """The weights and biases behind ``draw_outputs(..., draws="weights")``, by layer, for every draw.

    ``x`` is any row that the network takes. Layers that the network does not call are left out.

    >>> import sparsebnn
    >>> drawn = draw_weights(sparsebnn.mlp([4, 8, 3]), torch.zeros(1, 4), n_draws=2)
    >>> len(drawn), drawn[0]["2"][0].shape
    (2, torch.Size([3, 8]))
    """
    plan = _Plan(network, x[:1], n_draws, model=model, draws="weights", seed=seed)
    layers = dict(bayesian_layers(plan.network))
    _, row = next(plan.batches())
    found = []
    for blocks in plan.noise(row):
        for normal, logistic in zip(blocks.normal, blocks.logistic):
            with plan.kind(NoiseBuffer(normal, logistic)) as opened:
                plan.network(row)
            drawn = {name: opened.drawn(layer) for name, layer in layers.items()}
            found.append({name: pair for name, pair in drawn.items() if pair is not None})
    return found


def _evaluating(network: nn.Module) -> nn.Module:
    """The network as it predicts: itself, or a copy in evaluation mode with the same tensors.

    The network itself is not switched, since another thread may be using it.
    """
    if not any(module.training for module in network.modules()):
        return network
    tensors = {id(t): t for t in (*network.parameters(), *network.buffers())}
    return copy.deepcopy(network, memo=tensors).eval()


def _check_alike(networks: Sequence[nn.Module]) -> None:
    if not networks:
        raise invalid("networks", "predict_all", "at least one network", "none")
    shapes = [{name: tuple(t.shape) for name, t in each.state_dict().items()} for each in networks]
    for k, other in enumerate(networks):
        if (shapes[k], described(other)) != (shapes[0], described(networks[0])):
            advice = "Networks of different shapes or options are predicted one by one."
            raise invalid("networks", "predict_all", "of one shape", f"another one at place {k}", advice)


def _memory(device: torch.device) -> int:
    """Bytes of noise to hold at a time."""
    if device.type == "cuda":
        return max(_MEMORY, torch.cuda.mem_get_info(device)[0] // _SHARE)
    return _CPU_MEMORY if device.type == "cpu" else _MEMORY


def _at(value: Any, i: int) -> Any:
    """The i-th of a tensor, or of every tensor inside."""
    if isinstance(value, dict):
        return {name: _at(each, i) for name, each in value.items()}
    if isinstance(value, _Blocks):
        return _Blocks(*(each[i] for each in value))
    return tuple(_at(each, i) for each in value) if isinstance(value, tuple) else value[i]


def _first(value: Any) -> int:
    """The length of the first axis."""
    while not isinstance(value, Tensor):
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return len(value)


class _Blocks(NamedTuple):
    """The noise of draws: of all rows, ``(draws, length)``, and of each row, ``(draws, rows, length)``."""

    normal: Tensor
    logistic: Tensor
    row_normal: Tensor
    row_logistic: Tensor


class _Plan:
    """How draws are made: which pass, in what batches of rows, from what noise."""

    def __init__(
        self,
        network: nn.Module,
        x: Tensor,
        n_draws: int,
        networks: int = 1,
        *,
        model: str = "average",
        draws: str = "auto",
        seed: int | Sequence[int] = 0,
        batch_size: int = 1024,
        memory: int | None = None,
    ) -> None:
        self.x = _checked(x, n_draws, "predict")
        check_count(batch_size, "batch_size", "predict")
        self.network, self.n_draws = _evaluating(network), n_draws
        self.kind = pass_for(network, model, draws)
        self.like = next(network.parameters())
        self.one_by_one = any(isinstance(module, nn.RNNBase) for module in network.modules())
        self.each_its_own = isinstance(seed, Sequence)
        listed = [check_seed(s, "seed", "predict") for s in (seed if isinstance(seed, Sequence) else [seed])]
        self.seeds = counter.seed_tensor(listed, self.like.device).split(1)
        self.batch_size = batch_size
        keep_freed_memory(self.like.device.type)
        self.memory = (_memory(self.like.device) if memory is None else memory) // networks
        self._measure()
        # Compiled loops make the numbers some ten times as fast; the first use ever compiles them.
        numbers = n_draws * networks * (sum(self.size) + len(x) * sum(self.row_size))
        known = self.like.device.type == "cpu" and self.like.dtype in (torch.float32, torch.float64)
        self.fused = known and numbers > _MANY_NUMBERS and training.available()

    def batches(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows as the network takes them: as many batches together as the memory holds with all draws."""
        per_row = self.like.element_size() * max(sum(self.row_size), self.activations, 1)
        each = self.batch_size * max(1, self.memory // (self.n_draws * self.batch_size * per_row))
        each = self.batch_size if self.batched_noise else each
        for start in range(0, len(self.x), each):
            rows = slice(start, min(start + each, len(self.x)))
            yield rows, self._rows(rows)

    def groups(self, batch: Tensor) -> Sequence[Tensor]:
        """The rows that are run together.

        On a CPU, few rows with all draws where draws have no noise in common: what comes before the first
        noise, the products of the first layer, is then computed once for all draws.
        """
        if self.like.device.type != "cpu" or any(self.size) or not any(self.row_size):
            return [batch]
        per_row = self.like.element_size() * max(sum(self.row_size), self.activations)
        return batch.split(max(_LEAST_ROWS, self.memory // (self.n_draws * per_row)))

    def pieces(self, rows: slice, drawn: Tensor, axis: int) -> Iterator[tuple[slice, Tensor]]:
        """Outputs of these rows, a batch at a time."""
        for start in range(rows.start, rows.stop, self.batch_size):
            piece = slice(start, min(start + self.batch_size, rows.stop))
            yield piece, drawn.narrow(axis, start - rows.start, piece.stop - piece.start)

    def _rows(self, rows: slice) -> Tensor:
        chosen = self.x[rows].to(device=self.like.device)
        # Pixels: the same scale as in training.
        if chosen.dtype == torch.uint8:
            return chosen.to(self.like.dtype) / 255.0
        return as_input(chosen, self.network, self.like.dtype, "predict")

    def _measure(self) -> None:
        """How much noise a draw takes, for all rows together and for each, and how large its outputs are.

        Two batches of different length show whether every layer has its rows along the first axis. If not,
        rows are evaluated one by one, so that each still has its own noise.
        """
        first = self._rows(slice(0, 1))
        sizes = [self._counted(first.expand(rows, *first.shape[1:])) for rows in (2, 3)]
        self.by_row = any(found[2] - {rows} for rows, found in zip((2, 3), sizes))
        # Recurrent modules have no batched form: their rows would be run one after the other.
        self.batched_noise = self.by_row and self.one_by_one
        self.by_row = self.by_row and not self.one_by_one
        rows = 1 if self.by_row else 2
        self.size, per_row, _, activations = self._counted(first) if self.by_row else sizes[0]
        self.row_size = NoiseSize(per_row.normal // rows, per_row.logistic // rows)
        self.activations = -(-activations // rows)

    def _counted(self, batch: Tensor) -> tuple[NoiseSize, NoiseSize, set[int], int]:
        """Noise for all rows and for single ones, the sizes of its first axes, and the numbers put out."""
        shared, own = NoiseCounter(), NoiseCounter()
        activations = measure(self.network, batch, self.kind, shared, own)
        return shared.size, own.size, own.leading, activations

    def by_rows(self, outputs: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """``outputs`` of a batch: at once, or row by row if the layers mix up the rows' places."""
        if not self.by_row:
            return outputs

        def one(row: Tensor, normal: Tensor, logistic: Tensor, noise: _Blocks) -> Tensor:
            own = noise._replace(row_normal=normal, row_logistic=logistic)
            return outputs(row.unsqueeze(0), own).squeeze(0)

        each = torch.func.vmap(one, in_dims=(0, 0, 0, None))
        return lambda batch, noise: each(batch, noise.row_normal, noise.row_logistic, noise)

    def known(self) -> dict[Family, Moments]:
        """The moments that no noise changes, computed once for all passes."""
        found = {}
        for _, layer in bayesian_layers(self.network) if self.kind is LocalPass else ():
            asked = NoiseCounter()
            if not must_draw(layer) and (moments := layer.weights.local(asked)) and not any(asked.size):
                found[layer.weights] = moments
        return found

    def opened(self, noise: _Blocks, known: Mapping[Family, Moments] | None = None) -> Pass:
        """The pass of one draw."""
        both = self.noise_of(noise)
        return LocalPass(*both, known) if self.kind is LocalPass else self.kind(*both)

    def noise_of(self, noise: _Blocks) -> tuple[Noise, Noise | None]:
        """The noise of one draw, for all rows together and for single ones."""
        shared = NoiseBuffer(noise.normal, noise.logistic)
        if self.kind is not LocalPass:
            return shared, None
        if self.by_row or self.batched_noise:
            return shared, NoiseBuffer(noise.row_normal.flatten(), noise.row_logistic.flatten())
        return shared, RowNoiseBuffer(noise.row_normal, noise.row_logistic)

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

    def noise(self, batch: Tensor) -> Iterator[_Blocks]:
        """Noise for as many draws at a time as the memory allows; of each network where it has its own."""
        rows, (size, row_size) = len(batch), (self.size, self.row_size)
        numbers = max(sum(size) + rows * sum(row_size) + 1, rows * self.activations)
        chunk = max(1, min(self.n_draws, self.memory // (numbers * self.like.element_size())))
        content = counter.content_keys(batch) if any(row_size) else torch.zeros(rows, dtype=torch.int64)
        content = content.to(self.like.device)
        for first in range(0, self.n_draws, chunk):
            steps = torch.arange(first, min(first + chunk, self.n_draws), device=self.like.device)
            own = (steps.unsqueeze(1) + content).flatten()
            wanted = (
                (counter.normals, _NORMAL, steps, size.normal),
                (counter.logistics, _LOGISTIC, steps, size.logistic),
                (counter.normals, _ROW_NORMAL, own, row_size.normal, len(steps)),
                (counter.logistics, _ROW_LOGISTIC, own, row_size.logistic, len(steps)),
            )
            made = [[self._numbers(seed, *each) for seed in self.seeds] for each in wanted]
            yield _Blocks(*(torch.stack(each) if self.each_its_own else each[0] for each in made))

    def _numbers(
        self, seed: Tensor, make: Callable[..., Tensor], stream: int, keys: Tensor, count: int, draws: int = 0
    ) -> Tensor:
        """``(draws, count)`` numbers, or ``(draws, rows, count)`` for the keys of rows."""
        made = self.like.new_empty(len(keys), 0)
        if count:
            made = make(seed, stream, keys, count, self.like.dtype, eager=True, fused=self.fused)
        return made.unflatten(0, (draws, -1)) if draws else made
