"""``python -m benchmarks.kinks``: where single precision parts from double; is a ReLU's kink there?

A replicate of :mod:`benchmarks.parity` alone, eagerly on the CPU, in both precisions from the same start and
with the same noise: the first step at which the input of a ReLU is above 0 in one run and not in the other,
the two inputs and the median size of that layer's, how many ReLUs of a batch differ in the last step, and how
far apart the parameters end, also with a smooth activation.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import parity
from sparsebnn.app.provenance import rounded
from sparsebnn.training import Run
from studies.runner import write_json

__all__ = ["CASES", "block", "first_kink", "line", "main", "parted"]

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


def _both(network: nn.Sequential, seed: int) -> list[Run]:
    return [parity.on_cpu(network, [seed]), parity.in_double(network, [seed])]


def parted(single: Sequence[Tensor], double: Sequence[Tensor], each: int) -> dict[str, Any]:
    """Of inputs of ReLUs, ``each`` of them a step: the first whose sign differs; how many in the last step.

    >>> plus, minus = torch.tensor([1e-7, 2.0]), torch.tensor([-1e-8, 2.0])
    >>> parted([plus, plus, plus], [plus, minus, plus], 1)["step"]
    2
    """
    found: dict[str, Any] = {"step": None, "last": 0}
    for i, (x, y) in enumerate(zip(single, double, strict=True)):
        differ = ((x > 0) != (y > 0)).nonzero()
        if len(differ) and found["step"] is None:
            at = tuple(differ[0].tolist())
            two = [float(x[at]), float(y[at])]
            found |= {"step": i // each + 1, "inputs": two, "median": float(x.abs().median())}
        if i >= len(single) - each:
            found["last"] += len(differ)
    return found


def first_kink(network: nn.Sequential, seed: int) -> dict[str, Any]:
    """Where the runs of one replicate part; ``step`` is None if no ReLU ever differs."""
    kept: list[Tensor] = []
    recording = parity.with_activation(network, lambda: _Recorder(kept))
    each = sum(isinstance(module, _Recorder) for module in recording)
    runs, length = _both(recording, seed), parity.STEPS * each
    # Before its first step a run looks at the network, as often in either precision.
    half, rest = divmod(len(kept), 2)
    if rest or half < length:
        raise RuntimeError(f"Two runs of {parity.STEPS} steps left {len(kept)} inputs of {each} ReLUs.")
    found = parted(kept[half - length : half], kept[-length:], each)
    smooth = _both(parity.smooth(network), seed)
    return {**found, "apart": parity.apart(*runs)["largest"], "smooth": parity.apart(*smooth)["largest"]}


def _cells(row: dict[str, Any]) -> list[str]:
    ends = [f"{row['apart']:.1e}", f"{row['smooth']:.1e}"]
    if row["step"] is None:
        return ["none", "–", "–", "0", *ends]
    two = " and ".join(f"{value:+.1e}" for value in row["inputs"])
    return [f"step {row['step']}", two, f"{row['median']:.2f}", str(row["last"]), *ends]


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    first, two, median, last, apart, smooth = _cells(row)
    where = f"{first}: input {two}, median size {median}; {last} differ in the last step"
    where = "no ReLU differs" if row["step"] is None else where
    return f"{row['case']}, seed {row['seed']}: {where}; apart {apart}, smooth {smooth}"


def block(folder: Path) -> str:
    """The result file of a folder as a table for the page; nothing if there is none."""
    path = folder / "kinks.json"
    if not path.exists():
        return ""
    record = json.loads(path.read_text(encoding="utf-8"))
    heads = ["", "seed", "first ReLU that differs", "its input", "median size", "differ in the last step"]
    heads += ["parameters apart", "with a smooth activation"]
    lines = [f"| {' | '.join(heads)} |", "|---|---:|---|---|---:|---:|---:|---:|"]
    for row in record["rows"]:
        lines.append(f"| {' | '.join([row['case'], str(row['seed']), *_cells(row)])} |")
    return f"{parity.made_by(record, 'kinks')}\n\n" + "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print a line for every network and seed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kinks", description=__doc__)
    with_relu = [case for case in parity.CASES if "smooth" not in case]
    parser.add_argument("--cases", nargs="+", choices=with_relu, default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="file for the figures")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    record = parity.record_of("kinks", "cpu")
    for case in given.cases:
        for seed in given.seeds:
            row = {"case": case, "seed": seed, **first_kink(parity.CASES[case](), seed)}
            record["rows"].append(row)
            print(line(row), flush=True)
            if given.out:
                write_json(given.out, rounded(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
