"""What is timed: a step of ours, of the eager reference, of a plain network, of a peer; a prediction.

A subject is a function ``advance(n)`` that runs n steps (or n predictions), ready to be timed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers import PEERS, peer
from benchmarks.reference import deterministic, reference, step_of
from sparsebnn.inference.prediction import predict
from sparsebnn.kernels.dispatch import keep_freed_memory
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.networks import initialize, mlp
from sparsebnn.posteriors.priors import SpikeSlabPrior
from sparsebnn.training.batches import Batches
from sparsebnn.training.engine import Engine
from sparsebnn.training.objective import Objective, Replicates
from studies.tables.paper import METHODS, cell

__all__ = ["DRAWS", "Task", "Subject", "prepare"]

DRAWS = 100

_ROWS = 60_000
_BATCH = 100


@dataclass(frozen=True)
class Task:
    """One timing. ``code`` is ``ours``, ``reference``, ``deterministic``, ``predict`` or a peer's name.

    ``hidden`` replaces the paper's fully connected network by one of these hidden sizes. ``model`` and
    ``images`` say what is predicted, for how many images.
    """

    code: str
    architecture: str
    method: str = ""
    replicates: int = 1
    hidden: tuple[int, ...] | None = None
    model: str = ""
    images: int = 0

    def row(self) -> dict[str, Any]:
        """The columns that say what was timed."""
        row = dataclasses.asdict(self)
        return {name: row[name] for name in row if row[name] not in (None, "", 0)}


@dataclass
class Subject:
    """Something to time, and what else is known of it."""

    advance: Callable[[int], None]
    compile_seconds: float = 0.0
    mode: str = "eager"
    rehearsals: int = 3


@functools.cache
def rows(architecture: str) -> tuple[Tensor, Tensor]:
    """Random pixels and labels; what is in them does not change the time of a step."""
    generator = torch.Generator().manual_seed(0)
    shape = (_ROWS, 784) if architecture == "fc" else (_ROWS, 1, 28, 28)
    x = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return x, torch.randint(0, 10, (_ROWS,), generator=generator)


def _network(task: Task) -> nn.Module:
    one = cell(task.architecture, task.method)
    if task.hidden is None:
        return one.network()
    sizes = [784, *task.hidden, 10]
    return mlp(sizes, family=METHODS[task.method], prior=SpikeSlabPrior(0.1), initial=one.initial)


def engine(
    task: Task, device: torch.device, ready: Callable[[], None] | None = None, mode: str = "compiled"
) -> Engine:
    """Our engine at the start of an epoch, ready to run in that mode."""
    form = Categorical(10)
    batches = Batches.of(rows(task.architecture), form, _BATCH, device, torch.float32)
    replicates = Replicates(Objective(_network(task), form, _ROWS), range(task.replicates), device)
    settings = cell(task.architecture, task.method).settings
    made = Engine(replicates, batches, settings, mode=mode)
    made.prepare(ready)
    made.begin_epoch(0)
    return made


def _ours(task: Task, device: torch.device, ready: Callable[[], None] | None) -> Subject:
    made = engine(task, device, ready)

    def advance(steps: int) -> None:
        while steps > 0:
            now = min(steps, made.batches.per_epoch)
            made["position"].zero_()
            made.run(now)
            steps -= now

    return Subject(advance, made.compile_seconds, made.mode)


def _prediction(task: Task, device: torch.device) -> Subject:
    """All images through ``predict``, for one replicate after the other; at the start of training."""
    networks = []
    for seed in range(task.replicates):
        network = _network(task)
        initialize(network, seed)
        networks.append(network.to(device).eval())
    x = rows(task.architecture)[0][: task.images].to(device)

    def advance(times: int) -> None:
        for _ in range(times):
            for network in networks:
                predict(network, x, Categorical(10), n_draws=DRAWS, model=task.model)

    predict(networks[0], x[:1024], Categorical(10), n_draws=DRAWS, model=task.model)
    return Subject(advance, rehearsals=0)


def prepare(task: Task, device: torch.device, ready: Callable[[], None] | None = None) -> Subject:
    """The task's subject; everything that happens once has happened.

    ``ready`` is called after compiling, before anything compiled runs.
    """
    # The engine does so; what it is compared with shall not lose by page faults either.
    keep_freed_memory(device.type)
    if task.code == "ours":
        return _ours(task, device, ready)
    if task.code == "predict":
        return _prediction(task, device)
    if task.code == "deterministic":
        network: nn.Module = deterministic(task.architecture)
    elif task.code in PEERS:
        network = peer(task.code, task.architecture)
    else:
        network = reference(task.architecture, task.method)
    x, y = rows(task.architecture)
    batch = (x[:_BATCH].float() / 255).to(device), y[:_BATCH].to(device)
    step = step_of(network.to(device), *batch, _ROWS // _BATCH)

    def advance(steps: int) -> None:
        for _ in range(steps):
            step()

    return Subject(advance)
