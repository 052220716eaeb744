"""``python -m benchmarks.input_skip``: a training step with input-skip next to one without, as ratios.

A skip network has more weights. It should cost at most that: the ratio of the times is compared with the
ratio of the numbers of weights. Steps of both are timed in turns, and the shortest time of each counts. On a
CPU it is the time of the process, which other processes do not add to.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch
from torch import nn

import sparsebnn
from sparsebnn.likelihoods import Categorical
from sparsebnn.training.batches import Batches
from sparsebnn.training.engine import Engine
from sparsebnn.training.objective import Objective, Replicates
from sparsebnn.training.settings import Settings

CASES = (
    ((784, 400, 600, 10), 100, 1),
    ((784, 400, 600, 10), 1000, 1),
    ((50, 50, 2), 100, 3),
    ((100, 50, 50, 2), 256, 3),
)


def engine(network: nn.Module, sizes: Sequence[int], batch: int, replicates: int, device: str) -> Engine:
    """Ready to run steps of that network on random rows."""
    generator = torch.Generator().manual_seed(0)
    rows = 4 * batch
    data = torch.randn(rows, sizes[0], generator=generator), torch.randint(0, sizes[-1], (rows,))
    form, where = Categorical(sizes[-1]), torch.device(device)
    batches = Batches.of(data, form, batch, where, torch.float32)
    stacked = Replicates(Objective(network, form, rows), range(replicates), where)
    made = Engine(stacked, batches, Settings(), mode="captured" if where.type == "cuda" else "eager")
    made.prepare()
    made.begin_epoch(0)
    return made


def milliseconds(engines: Sequence[Engine], turns: int, cuda: bool) -> list[float]:
    """The shortest time of a step of each, in turns."""
    best = [float("inf")] * len(engines)
    clock = time.perf_counter if cuda else time.process_time
    for _ in range(turns):
        for place, made in enumerate(engines):
            made["position"].zero_()
            began = clock()
            made.run(4)
            if cuda:
                torch.cuda.synchronize()
            best[place] = min(best[place], (clock() - began) / 4)
    return [1e3 * each for each in best]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.input_skip", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=40)
    given = parser.parse_args(argv)
    print(f"{'network':<20} {'batch':>5} {'K':>2} {'ms':>8} {'ms, skip':>8} {'ratio':>6} {'weights':>8}")
    for sizes, batch, replicates in CASES:
        networks = [sparsebnn.mlp(sizes), sparsebnn.mlp(sizes, input_skip=True)]
        counts = [sparsebnn.density(network).total for network in networks]
        made = [engine(network, sizes, batch, replicates, given.device) for network in networks]
        turns = max(3, given.turns * 100 // batch // (sizes[0] // 50))
        plain, skip = milliseconds(made, turns, given.device.startswith("cuda"))
        name, weights = "-".join(map(str, sizes)), counts[1] / counts[0]
        figures = f"{plain:8.2f} {skip:8.2f} {skip / plain:6.2f} {weights:8.2f}"
        print(f"{name:<20} {batch:>5} {replicates:>2} {figures}", flush=True)


if __name__ == "__main__":
    main()
