"""What a training step costs: ours beside a deterministic network and a straightforward eager version.

All figures of one table come from one run on one machine; the ratios are what carries over.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.reference import deterministic, reference, step_of
from sparsebnn.experiments.paper import METHODS, cell
from sparsebnn.likelihoods import Categorical
from sparsebnn.training.batches import Batches
from sparsebnn.training.capture import matmul_precision
from sparsebnn.training.engine import Engine
from sparsebnn.training.objective import Objective
from sparsebnn.training.replicas import Replicas

__all__ = ["milliseconds", "table"]

_ROWS = 6000


def milliseconds(step: Callable[[], Any], device: torch.device, seconds: float = 2.0) -> float:
    """Median time of a step over repeated rounds, after warming up."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        step()
    wait()
    began = time.perf_counter()
    step()
    wait()
    each = max(1, int(seconds / 7 / max(time.perf_counter() - began, 1e-6)))
    rounds = []
    for _ in range(7):
        began = time.perf_counter()
        for _ in range(each):
            step()
        wait()
        rounds.append((time.perf_counter() - began) / each * 1e3)
    return statistics.median(rounds)


def _data(architecture: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (_ROWS, 784) if architecture == "fc" else (_ROWS, 1, 28, 28)
    x = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return x, torch.randint(0, 10, (_ROWS,), generator=generator)


def _engine(architecture: str, method: str, replicates: int, device: torch.device, mode: str) -> Engine:
    one, form = cell(architecture, method), Categorical(10)
    batches = Batches.of(_data(architecture), form, 100, device, torch.float32)
    replicas = Replicas(Objective(one.network(), form, _ROWS), range(replicates), device)
    engine = Engine(replicas, batches, one.settings, mode=mode)
    engine.prepare()
    engine.begin_epoch(0)
    return engine


def table(
    architectures: tuple[str, ...], replicates: tuple[int, ...], device: torch.device, tf32: bool = True
) -> list[dict[str, Any]]:
    """One row per architecture, method and number of replicates."""
    rows: list[dict[str, Any]] = []
    for architecture in architectures:
        x, y = _data(architecture)
        batch = (x[:100].float() / 255).to(device), y[:100].to(device)
        with matmul_precision(tf32):
            plain = milliseconds(step_of(deterministic(architecture).to(device), *batch, 60), device)
            for method in METHODS:
                straightforward = reference(architecture, method).to(device)
                eager = milliseconds(step_of(straightforward, *batch, 60), device)
                for k in replicates:
                    engine = _engine(architecture, method, k, device, "compiled")

                    def advance(engine: Engine = engine) -> None:
                        engine.run(1)
                        engine["position"].remainder_(engine.batches.per_epoch)

                    ours = milliseconds(advance, device)
                    rows.append(
                        {
                            "architecture": architecture,
                            "method": method,
                            "replicates": k,
                            "ms": round(ours, 4),
                            "ms_deterministic": round(plain, 4),
                            "ms_reference": round(eager, 4),
                            "times_deterministic": round(ours / k / plain, 3),
                            "times_faster_than_reference": round(eager * k / ours, 2),
                            "compile_seconds": round(engine.compile_seconds, 1),
                            "mode": engine.mode,
                        }
                    )
                    print(rows[-1], flush=True)
    return rows
