"""``python -m benchmarks.kinks``: where single precision parts from double, and that a ReLU's kink is why.

A replicate of :mod:`benchmarks.parity` alone, eagerly on the CPU, in both precisions from the same start and
with the same noise: the first step at which the input of a ReLU is above 0 in one run and not in the other,
the two inputs and the median size of that layer's, how many ReLUs of a batch differ in the last step, and how
far apart the parameters end; beside it the same with a smooth activation.
"""

from __future__ import annotations

import argparse
import copy
import sys
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import parity
from sparsebnn.training import Run

__all__ = ["CASES", "first_kink", "main"]

CASES = ("784-400-600-10, LBBNN-LRT", "LeNet, LBBNN-LRT")


class _Recorder(nn.ReLU):
    """A ReLU that keeps what it was given."""

    def __init__(self, kept: list[Tensor]) -> None:
        super().__init__()
        self.kept = kept

    def __deepcopy__(self, memo: dict[int, Any]) -> _Recorder:
        return _Recorder(self.kept)  # a copy of the network writes into the same list

    def forward(self, x: Tensor) -> Tensor:
        self.kept.append(x.detach().clone())
        return super().forward(x)


def _recording(network: nn.Sequential, kept: list[Tensor]) -> nn.Sequential:
    made = copy.deepcopy(network)
    for name, module in made.named_children():
        if isinstance(module, nn.ReLU):
            setattr(made, name, _Recorder(kept))
    return made


def _both(network: nn.Sequential, seed: int, kept: list[Tensor]) -> tuple[list[Run], list[list[Tensor]]]:
    runs, inputs = [], []
    for run in (parity.on_cpu, parity.in_double):
        kept.clear()
        runs.append(run(network, [seed]))
        inputs.append(list(kept))
    return runs, inputs


def first_kink(network: nn.Sequential, seed: int) -> dict[str, Any]:
    """Where the runs of one replicate part; ``step`` is None if no ReLU ever differs."""
    kept: list[Tensor] = []
    recording = _recording(network, kept)
    each = sum(isinstance(module, _Recorder) for module in recording)
    runs, (single, double) = _both(recording, seed, kept)
    used = parity.STEPS * each  # before the first step the network is looked at once or twice
    found: dict[str, Any] = {"step": None, "apart": parity.apart(*runs)["largest"], "last": 0}
    for i, (x, y) in enumerate(zip(single[-used:], double[-used:])):
        differ = ((x > 0) != (y > 0)).nonzero()
        if len(differ) and found["step"] is None:
            at = tuple(differ[0].tolist())
            found |= {"step": i // each + 1, "inputs": (float(x[at]), float(y[at]))}
            found["median"] = float(x.abs().median())
        if i // each == parity.STEPS - 1:
            found["last"] += len(differ)
    runs, _ = _both(parity.smooth(network), seed, [])
    return {**found, "smooth": parity.apart(*runs)["largest"]}


def line(case: str, seed: int, found: dict[str, Any]) -> str:
    """What was found, as text."""
    where = "no ReLU differs"
    if found["step"] is not None:
        two = " and ".join(f"{value:+.1e}" for value in found["inputs"])
        where = f"step {found['step']}: input {two}, median size {found['median']:.1e}"
        where += f"; {found['last']} ReLUs in the last step"
    return f"{case}, seed {seed}: {where}; apart {found['apart']:.1e}, smooth {found['smooth']:.1e}"


def main(argv: list[str] | None = None) -> int:
    """Print a line for every network and seed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kinks", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(parity.CASES), default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    for case in given.cases:
        for seed in given.seeds:
            print(line(case, seed, first_kink(parity.CASES[case](), seed)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
