"""What structure sampling costs, next to susieR: growth with columns, rows and effects.

Columns are simulated, neighbors correlated by 0.9; effects N(0, 0.6²) at random places explain 20% of the
variance. ``SpikeSlabRegression()`` as it is (effective sample size 1,000) and susieR with L = 10, one thread
each.

Run: ``python -m studies finemapping_cost``. A row per size, data set and method is appended to one file; rows
that it finds there are skipped.
"""

from __future__ import annotations

import argparse
import shutil
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from studies.runner import Study, arguments, count, fill_page, read_rows
from studies.selection.finemapping import Spec as FineSpec
from studies.selection.finemapping import score, susie

__all__ = ["METHODS", "SIZES", "main", "simulated", "table"]

METHODS = ("structure sampling", "susieR")
# Rows, columns, effects: the two sizes of the question, then one of the three varied.
SIZES = (
    (574, 1000, 3),
    (1000, 5000, 3),
    (574, 250, 3),
    (574, 4000, 3),
    (2000, 1000, 3),
    (574, 1000, 1),
    (574, 1000, 5),
    (574, 1000, 10),
)
_DATA_SETS = 3
_VARIANCE = 0.2


def simulated(rows: int, columns: int, effects: int, seed: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Inputs, targets, and the columns with effects."""
    rng = np.random.default_rng([rows, columns, effects, seed])
    x = rng.standard_normal((rows, columns))
    for j in range(1, columns):
        x[:, j] = 0.9 * x[:, j - 1] + np.sqrt(1.0 - 0.9**2) * x[:, j]
    places = rng.choice(columns, effects, replace=False)
    signal = x[:, places] @ rng.normal(0.0, 0.6, effects)
    noise = np.sqrt(signal.var() * (1.0 - _VARIANCE) / _VARIANCE)
    return x, signal + noise * rng.standard_normal(rows), sorted(places.tolist())


def run_ours(x: np.ndarray, y: np.ndarray, seed: int) -> dict[str, Any]:
    """A fit of the estimator with its defaults."""
    from sklearn.exceptions import ConvergenceWarning

    from sparsebnn.estimators import SpikeSlabRegression

    began, worked = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a column of the row
        model = SpikeSlabRegression(random_state=seed).fit(x, y)
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    return {
        "sets": [list(one.members) for one in model.credible_sets_],
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu, 3),
        "converged": model.diagnostics_["converged"],
    }


def run_susie(x: np.ndarray, y: np.ndarray, seed: int) -> dict[str, Any]:
    """susieR, through Rscript; reading the data is not counted."""
    return susie(x, [y], FineSpec())[0]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Median processor seconds by size, as a Markdown table."""
    made = [
        "| rows | columns | effects | data sets | structure sampling: processor s | susieR | effects found |"
    ]
    made.append("|---|---|---|---|---|---|---|")
    order = {size: place for place, size in enumerate(SIZES)}
    keys = {(row["rows"], row["columns"], row["effects"]) for row in rows}
    for size in sorted(keys, key=lambda size: (order.get(size, len(order)), size)):
        own = [row for row in rows if (row["rows"], row["columns"], row["effects"]) == size]
        cells, found = [], []
        for method in METHODS:
            mine = [row for row in own if row["method"] == method]
            cells.append(f"{np.median([row['cpu_seconds'] for row in mine]):.1f}" if mine else "")
            if mine:
                found.append(f"{np.mean([row['effects_found'] for row in mine]):.1f}")
        number = len({row["data_set"] for row in own})
        shape = f"{size[0]:,} | {size[1]:,} | {size[2]}"
        made.append(f"| {shape} | {number} | {' | '.join(cells)} | {' and '.join(found)} |")
    return "\n".join(made)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, append its rows, and print the table of all rows."""
    claim = "What structure sampling costs by rows, columns and effects, next to susieR."
    options = argparse.ArgumentParser(add_help=False)
    names = ("ROWS", "COLUMNS", "EFFECTS")
    options.add_argument("--size", nargs=3, type=count, metavar=names, help="one size (default: all)")
    options.add_argument("--data-sets", type=count, default=_DATA_SETS, help="per size (default 3)")
    study = Study("finemapping_cost", arguments("finemapping_cost", claim, argv, [options]))
    torch.set_num_threads(1)
    file = study.folder / "rows.jsonl"
    given = study.given
    sizes, data_sets = ((60, 40, 1),) if given.quick else SIZES, 1 if given.quick else given.data_sets
    sizes = (tuple(given.size),) if given.size else sizes
    done = {
        tuple(row[n] for n in ("method", "rows", "columns", "effects", "data_set")) for row in read_rows(file)
    }
    ways = {METHODS[0]: run_ours, METHODS[1]: run_susie}
    if shutil.which("Rscript") is None:
        print("susieR is left out: there is no Rscript here.")
        del ways[METHODS[1]]
    for number in range(study.given.seed, study.given.seed + data_sets):
        for size in sizes:
            missing = [method for method in ways if (method, *size, number) not in done]
            if not missing:
                continue
            x, y, truth = simulated(*size, number)
            for method in missing:
                about = dict(zip(("rows", "columns", "effects", "data_set"), (*size, number)))
                found = ways[method](x, y, number)
                study.append([{"method": method, **about} | found | score(found["sets"], truth)])
    rows = read_rows(file)
    print(table(rows))
    page = Path(study.given.out) / "docs" / "studies" / "finemapping.md"
    if page.exists() and not study.given.quick:
        fill_page(page, table(rows), "cost")
    print(f"Wrote {file}.")
