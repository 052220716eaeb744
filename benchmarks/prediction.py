"""``python -m benchmarks.prediction``: averaging 100 draws on a CPU, next to loops over draws in PyTorch.

One loop samples the outputs of every layer, as ``predict`` does, with moments that are computed once for all
draws of a network without a flow; the other draws whole weights. Times are those of the process on one
thread, the shortest of several turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sparsebnn
from sparsebnn.app.provenance import commit, device_name, rounded, versions
from sparsebnn.kernels.dispatch import keep_freed_memory
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.networks import bayesian_layers
from sparsebnn.random.noise import NoiseCounter, RandomNoise
from sparsebnn.training.devices import one_thread
from studies.runner import filled, write_json

__all__ = ["loop", "main", "measure", "table"]

_PAGE = Path("docs/studies/performance.md")
_DRAWS = 100
CASES = (
    ((784, 400, 600, 10), "spike_slab", 1000),
    ((784, 400, 600, 10), "spike_slab", 10_000),
    ((784, 400, 600, 10), "flow", 1000),
    ((30, 50, 2), "spike_slab", 2000),
    ((50, 50, 50, 10), "spike_slab", 2000),
)


@torch.no_grad()
def loop(network: nn.Module, x: Tensor, n_draws: int, local: bool) -> Tensor:
    """Average probabilities of a network of dense layers and ReLUs, draw after draw."""
    layers: list[Any] = [layer for _, layer in bayesian_layers(network)]
    noise, known = RandomNoise(), {}
    for layer in layers:
        asked = NoiseCounter()
        moments = layer.weights.local(asked)
        if not any(asked.size):
            known[layer] = moments
    total = torch.zeros(())
    for _ in range(n_draws):
        h = x
        for place, layer in enumerate(layers):
            h = F.relu(h) if place else h
            if local:
                moments = known[layer] if layer in known else layer.weights.local(noise).with_scale(1)
                var = F.linear(h * h, moments.var, layer.biases.std**2)
                h = F.linear(h, moments.mean, layer.biases.mean) + var.sqrt() * torch.randn(var.shape)
            else:
                h = F.linear(h, layer.weights.draw(noise), layer.biases.draw(noise))
        total = total + torch.softmax(h, -1)
    return total / n_draws


def measure(sizes: Sequence[int], family: str, rows: int, turns: int) -> dict[str, Any]:
    """Seconds of ``predict`` and of both loops, timed in turns."""
    torch.manual_seed(0)
    network = sparsebnn.mlp(list(sizes), family=family).eval()
    x, form = torch.rand(rows, sizes[0]), Categorical(sizes[-1])
    ways: dict[str, Callable[[], object]] = {
        "predict": lambda: sparsebnn.predict(network, x, form, n_draws=_DRAWS),
        "loop_outputs": lambda: loop(network, x, _DRAWS, True),
        "loop_weights": lambda: loop(network, x, _DRAWS, False),
    }
    sparsebnn.predict(network, x, form, n_draws=2)
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(turns):
        for name, run in ways.items():
            began = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - began)
    return {"network": "-".join(map(str, sizes)), "family": family, "rows": rows, **best}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| network | family | rows | `predict`, s | loop, outputs drawn | loop, weights drawn |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        loops = [f"{row[name]:.3g} ({row[name] / row['predict']:.2f}×)" for name in row if "loop" in name]
        first = f"{row['network']} | {row['family']} | {row['rows']:,} | {row['predict']:.3g}"
        lines.append(f"| {first} | {' | '.join(loops)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write results/bench/prediction.json and the page's table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prediction", description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("."), help="folder that receives results/bench/")
    given = parser.parse_args(argv)
    keep_freed_memory("cpu")
    began, found = time.perf_counter(), []
    with one_thread():
        for case in CASES:
            found.append(measure(*case, 1 if case[2] > 5000 else given.turns))
            print(table(found[-1:]).splitlines()[-1], flush=True)
    more = "" if given.turns == 3 else f" --turns {given.turns}"
    made = {
        "command": f"python -m benchmarks.prediction{more}",
        "commit": commit(),
        "versions": versions(),
        "device": device_name(torch.device("cpu")),
        "seconds": time.perf_counter() - began,
    }
    record = rounded({"experiment": "prediction", "provenance": made, "rows": found}, 4)
    write_json(given.out / "results" / "bench" / "prediction.json", record)
    if (given.out / _PAGE).is_file():
        body = f"`{made['command']}` on {made['device']}, one thread; commit {made['commit']}."
        body = f"{body}\n\n{table(found)}"
        text = (given.out / _PAGE).read_text(encoding="utf-8")
        (given.out / _PAGE).write_text(filled(text, body, "loops"), encoding="utf-8")


if __name__ == "__main__":
    main()
