"""Data parallelism: the processes of a group train one run, each on its rows of every batch.

Order and noise are functions of a row's place in the whole batch, so any number of processes gives the result
of one, up to rounding: each takes its slice of the batch and of the noise, gradients are added up, and every
process makes the same update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sparsebnn.checks import InvalidInput, invalid
from sparsebnn.likelihoods import Cox
from sparsebnn.nn.passes import PosteriorPass, measure
from sparsebnn.random.noise import NoiseCounter, NoisePart
from sparsebnn.training.batches import Batch, first_of
from sparsebnn.training.checkpoint import CheckpointError
from sparsebnn.training.objective import Objective, Parts, Replicates
from sparsebnn.training.trainer import ProcessLost

T = TypeVar("T")


def check_apart(objective: nn.Module) -> None:
    """Refuse what looks at several rows at once, where a batch is computed in parts."""
    advice = "Use parallel='replicates' and accumulate=1."
    for name, part in objective.named_modules():
        if isinstance(part, Cox):
            expected = "one of single rows where a batch is computed in parts"
            raise invalid("likelihood", "train", expected, type(part).__name__, advice)
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training:
            expected = "free of statistics of the batch where it is computed in parts"
            raise invalid("network", "train", expected, f"{name} ({type(part).__name__})", advice)


class Part:
    """Some rows of every batch, which are computed apart from the others."""

    def __init__(self, first: int, end: int, size: int) -> None:
        self.first, self.end, self.size = first, end, size
        # The part of the KL that these rows add.
        self.share = (end - first) / size
        self.noise: tuple[NoisePart, NoisePart] | None = None

    def divided(self, count: int) -> list[Part]:
        """The rows in ``count`` parts."""
        rows = self.end - self.first
        if rows < count:
            raise invalid("accumulate", "Settings", f"at most the {rows} rows of a process's batch", count)
        ends = [self.first + rows * i // count for i in range(count + 1)]
        return [Part(first, end, self.size) for first, end in zip(ends, ends[1:])]

    def of(self, batch: Batch, whole: tuple[int, int]) -> Batch:
        """These rows of a batch of the rows ``whole``; ``rows`` is their share of the real ones."""

        def cut(t: Tensor) -> Tensor:
            return t[:, self.first - whole[0] : self.end - whole[0]]

        share = (self.end - self.first) / (whole[1] - whole[0])
        return Batch(tree_map(cut, batch.x), cut(batch.y), cut(batch.weight), batch.rows * share)

    def noise_parts(self, network: nn.Module, x: Any) -> tuple[NoisePart, NoisePart]:
        """Which normal and which logistic numbers of the whole batch's noise belong to these rows.

        The network runs on these rows and on one more: noise that grows belongs to rows, the rest is shared.
        """
        few, more = _requests(network, x), _requests(network, tree_map(lambda t: torch.cat([t, t[:1]]), x))
        device = tree_leaves(x)[0].device
        index: dict[str, list[Tensor]] = {"normal": [], "logistic": []}
        rows, at = self.end - self.first, {"normal": 0, "logistic": 0}
        for (kind, shape), (_, grown) in zip(few, more):
            start, count = at[kind], math.prod(shape)
            if shape == grown:
                index[kind].append(torch.arange(start, start + count))
                at[kind] += count
                continue
            per_row = count // rows
            if not shape or shape[0] % rows or grown != (shape[0] // rows * (rows + 1), *shape[1:]):
                expected = "one whose Bayesian layers have the rows of the batch along the first axis"
                advice = "Train it in one process, or with parallel='replicates'."
                raise invalid("network", "train", expected, f"outputs of shape {shape}", advice)
            index[kind].append(torch.arange(start + self.first * per_row, start + self.end * per_row))
            at[kind] += per_row * self.size
        made = []
        for kind in ("normal", "logistic"):
            own = torch.cat([torch.empty(0, dtype=torch.int64), *index[kind]]).to(device)
            made.append(NoisePart.of(own, at[kind]))
        return made[0], made[1]


class Shard(Part):
    """What one process of a group does: which rows are its own, and how results are added up."""

    def __init__(self, size: int, objective: nn.Module, group: Any = None) -> None:
        self.group = group
        check_apart(objective)
        self.rank, self.processes = dist.get_rank(group), dist.get_world_size(group)
        if size < self.processes:
            advice = "Use a larger batch_size, fewer processes, or parallel='replicates'."
            got = f"batches of {size} rows for {self.processes} processes"
            raise invalid("batch_size", "train", "at least one row per process", got, advice)
        first, end = (size * r // self.processes for r in (self.rank, self.rank + 1))
        super().__init__(first, end, size)
        self.interrupted = False  # here
        self.stopping = False  # in any process, as of the last step
        self._flat: Tensor | None = None

    def reduced(self, gradients: dict[str, Tensor], parts: Parts) -> tuple[dict[str, Tensor], Parts]:
        """Sums over all processes; the same numbers in each of them."""
        scaled = Parts(parts.loss, parts.nll, parts.kl * self.share, parts.kl_by_layer * self.share)
        pieces = [*gradients.values(), *scaled, parts.loss.new_full((1,), float(self.interrupted))]
        sizes = [piece.numel() for piece in pieces]
        if self._flat is None:
            self._flat = pieces[0].new_empty(sum(sizes))
        torch.cat([piece.reshape(-1) for piece in pieces], out=self._flat)
        self._add_up(self._flat)
        summed = [part.view_as(piece) for part, piece in zip(self._flat.split(sizes), pieces)]
        self.stopping = bool(summed[-1] > 0)
        return dict(zip(gradients, summed)), Parts(*summed[len(gradients) : -1])

    def _add_up(self, tensor: Tensor) -> None:
        try:
            dist.all_reduce(tensor, group=self.group)
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> ProcessLost:
        why = str(error).strip().splitlines()[:1]
        return ProcessLost(
            f"Process {self.rank} of {self.processes} stops training, because another process ended or did "
            f"not answer in time ({''.join(why)[:200]})."
        )

    def bytes_per_step(self) -> int:
        """What a process gives to the reduction in a step."""
        return 0 if self._flat is None else self._flat.numel() * self._flat.element_size()

    def from_first(self, act: Callable[[], T]) -> T:
        """What ``act`` returns in the first process, in all of them; its error likewise."""
        answer: list[Any] = [None, None]
        failure: Exception | None = None
        if self.rank == 0:
            try:
                answer[0] = act()
            except (CheckpointError, InvalidInput) as error:
                failure, answer[1] = error, str(error)
        try:
            dist.broadcast_object_list(answer, src=0, group=self.group)
        except RuntimeError as error:
            raise self._lost(error) from error
        if failure is not None:
            raise failure
        if answer[1] is not None:
            raise CheckpointError(answer[1])
        return answer[0]

    def begin(self, replicates: Replicates, described: Mapping[str, Any]) -> None:
        """Start every process where the first one starts; refuse processes that train something else."""
        told: list[Any] = [None] * self.processes
        dist.all_gather_object(told, dict(described), group=self.group)
        for key, value in told[0].items():
            others = [rank for rank, one in enumerate(told) if one[key] != value]
            if others:
                advice = "Give every process the same network, data, seeds and settings."
                got = f"other {key} in process {others[0]} than in process 0"
                raise invalid("processes", "train", "all training the same", got, advice)
        for kind in (replicates.parameters, replicates.shared, replicates.varied):
            self.copy_first(kind)

    def copy_first(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite tensors by those of the first process."""
        for tensor in tensors.values():
            dist.broadcast(tensor.data, src=0, group=self.group)


def accumulated(
    pieces: Sequence[Part],
    batch: Batch,
    whole: tuple[int, int],
    gradients_of: Callable[[Part, Batch], tuple[dict[str, Tensor], Parts]],
) -> tuple[dict[str, Tensor], Parts]:
    """The gradients of a batch, computed piece by piece and added up."""
    total: dict[str, Tensor] = {}
    sums: Parts | None = None
    for piece in pieces:
        gradients, parts = gradients_of(piece, piece.of(batch, whole))
        share = (piece.end - piece.first) / (whole[1] - whole[0])
        scaled = Parts(parts.loss, parts.nll, parts.kl * share, parts.kl_by_layer * share)
        if sums is None:
            total, sums = gradients, scaled
            continue
        total = {name: total[name] + gradient for name, gradient in gradients.items()}
        sums = Parts(*(a + b for a, b in zip(sums, scaled)))
    assert sums is not None
    return total, sums


class _Log(NoiseCounter):
    """Remembers every request: its kind and shape."""

    def reset(self) -> None:
        super().reset()
        self.asked: list[tuple[str, tuple[int, ...]]] = []

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        self.asked.append(("normal", tuple(shape)))
        return super().normal(shape, like)

    def logistic(self, shape: Sequence[int], like: Tensor) -> Tensor:
        self.asked.append(("logistic", tuple(shape)))
        return super().logistic(shape, like)


def _requests(network: nn.Module, x: Any) -> list[tuple[str, tuple[int, ...]]]:
    log = _Log()
    measure(network, x, PosteriorPass, log)
    return log.asked


def own_replicates(
    seeds: list[int],
    per_replicate: Mapping[str, Any] | None,
    start: Any,
    folder: str | Path | None,
) -> tuple[list[int], dict[str, Any], Any, Path | None]:
    """What this process trains with ``parallel="replicates"``: its seeds, their values, starts and folder."""
    rank, processes = dist.get_rank(), dist.get_world_size()
    if len(seeds) < processes:
        advice = "Use fewer processes, or parallel='rows'."
        expected = "at least one per process"
        raise invalid("replicates", "train", expected, f"{len(seeds)} for {processes} processes", advice)
    mine = slice(len(seeds) * rank // processes, len(seeds) * (rank + 1) // processes)
    for name, values in (per_replicate or {}).items():
        if len(values) != len(seeds):
            expected = f"one value per replicate ({len(seeds)})"
            raise invalid(f"per_replicate[{name}]", "train", expected, f"{len(values)} values")
    values = {name: given[mine] for name, given in (per_replicate or {}).items()}
    where = None if folder is None else Path(folder) / f"process-{rank}-of-{processes}"
    if where is not None and not where.exists():
        others = [path.name for path in Path(folder or "").glob("process-*-of-*")]
        if any(not name.endswith(f"-of-{processes}") for name in others):
            advice = "Resume with the same number of processes, or choose another folder."
            got = f"{processes} processes, and {others[0]} in the folder"
            raise invalid("folder", "train", "that of a run with the same number of processes", got, advice)
    return seeds[mine], values, start if isinstance(start, str) else list(start)[mine], where


def pieces(objective: Objective, batch: Batch, rows: tuple[int, int], size: int, count: int) -> list[Part]:
    """The parts in which a batch is computed, with their noise."""
    check_apart(objective)
    found = Part(*rows, size).divided(count)
    for piece in found:
        piece.noise = piece.noise_parts(objective.network, first_of(piece.of(batch, rows).x))
    return found
