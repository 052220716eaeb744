"""``python -m benchmarks``: step times as one table and one JSON file."""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path

import torch

import sparsebnn
from benchmarks.steps import table
from sparsebnn.experiments.provenance import commit, write_json

_COLUMNS = (
    "architecture",
    "method",
    "replicates",
    "ms",
    "times_deterministic",
    "times_faster_than_reference",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--architectures", nargs="+", default=["fc"], choices=["fc", "lenet"])
    parser.add_argument("--replicates", nargs="+", type=int, default=[1])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    given = parser.parse_args()
    device = torch.device(given.device)
    rows = table(tuple(given.architectures), tuple(given.replicates), device)
    print("  ".join(f"{c:>12}" for c in _COLUMNS))
    for row in rows:
        print("  ".join(f"{row[c]!s:>{max(12, len(c))}}" for c in _COLUMNS))
    machine = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"cpu, {torch.get_num_threads()} threads"
    )
    versions = {
        "sparsebnn": sparsebnn.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    path = given.out / f"steps-{device.type}.json"
    write_json(path, {"device": machine, "commit": commit(), "versions": versions, "rows": rows})
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
