"""UCI regression on the field's fixed splits: RMSE, log-likelihood and coverage of 90% intervals.

Ours with its defaults and the peers of ``uci_methods`` are run here; MC dropout's figures are published ones
(Gal and Ghahramani, 2016, with the grid search).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsebnn.checks import invalid
from studies.peers.uci_methods import METHODS, OURS
from studies.runner import Study, arguments, count, fill_page, installed, read_rows, write_details

__all__ = ["Spec", "details", "main", "table"]

DATA = ("yacht", "bostonHousing", "energy", "concrete", "wine-quality-red", "kin8nm", "power-plant",
        "naval-propulsion-plant", "protein-tertiary-structure")  # fmt: skip
# MC dropout: RMSE and log-likelihood. None: not comparable in the published precision.
PUBLISHED: dict[str, tuple[float | None, float]] = {
    "bostonHousing": (2.90, -2.40),
    "concrete": (4.82, -2.93),
    "energy": (0.54, -1.21),
    "kin8nm": (0.08, 1.14),
    "naval-propulsion-plant": (None, 4.45),
    "power-plant": (4.01, -2.80),
    "protein-tertiary-structure": (4.27, -2.87),
    "wine-quality-red": (0.62, -0.93),
    "yacht": (0.67, -1.25),
}
LARGE = 5000  # rows; larger data sets have fewer splits


@dataclass(frozen=True)
class Spec:
    """What the table is made from; at most ``rows`` training rows are used."""

    data: tuple[str, ...] = DATA
    splits: int = 10
    large_splits: int = 3  # of data sets with more than LARGE rows
    rows: int = 10_000
    seed: int = 0


def load(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    path = folder / "uci" / f"{name}.npz"
    if not path.is_file():
        raise invalid(
            "data", "uci", f"a folder with uci/{name}.npz", repr(str(folder)), "Pass --data FOLDER."
        )
    with np.load(path) as found:
        return found["X"], found["y"], found["test"]


def run(
    spec: Spec,
    study: Study,
    folder: Path,
    methods: Sequence[str] = tuple(METHODS),
    tell: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """The methods on all data sets and splits; rows that are there already are kept."""
    path = study.folder / "rows.jsonl"
    done = {(r["data"], r["method"], r["split"]) for r in read_rows(path)}
    for name in spec.data:
        x, y, tests = load(name, folder)
        for split in range(min(spec.large_splits if len(x) > LARGE else spec.splits, len(tests))):
            test = tests[split]
            training = np.setdiff1d(np.arange(len(x)), test)
            training = np.random.RandomState(spec.seed).permutation(training)[: spec.rows]
            for method in methods:
                if (name, method, split) in done:
                    continue
                began = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = METHODS[method](x[training], y[training], x[test], y[test], spec.seed + split)
                row = {
                    "data": name, "method": method, "split": split, "rows": len(training),
                    "seed": spec.seed + split,
                    "rmse": float(np.sqrt(((found.mean - y[test]) ** 2).mean())),
                    "log_likelihood": float(found.log_density.mean()),
                    "coverage": float(((found.low <= y[test]) & (y[test] <= found.high)).mean()),
                    "seconds": time.perf_counter() - began,
                }  # fmt: skip
                study.append([row])
                tell(f"{name:<28}{method:<20}{split}  {row['rmse']:.3f}  {row['log_likelihood']:.3f}")
    return read_rows(path)


def _mean(rows: Sequence[dict[str, Any]], name: str, method: str, key: str) -> float:
    """Over splits; NaN if there are none."""
    values = [r[key] for r in rows if (r["data"], r["method"]) == (name, method)]
    return float(np.mean(values)) if values else float("nan")


def verdicts(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, bool]]:
    """For each data set: is ours at least as good as MC dropout, as published, and as the deep ensemble?

    The deep ensemble is compared on the splits that ours has. Ours is rounded to the two decimals of the
    published figures before it is compared with them.
    """
    found = {}
    own = {(row["data"], row["split"]) for row in rows if row["method"] == OURS}
    rows = [row for row in rows if (row["data"], row["split"]) in own]
    for name in dict.fromkeys(row["data"] for row in rows):
        rmse, log_likelihood = (_mean(rows, name, OURS, key) for key in ("rmse", "log_likelihood"))
        published, published_ll = PUBLISHED[name]
        found[name] = {
            "rmse, MC dropout": published is None or round(rmse, 2) <= published,
            "rmse, deep ensemble": rmse <= _mean(rows, name, "deep ensemble", "rmse"),
            "log-likelihood, MC dropout": round(log_likelihood, 2) >= published_ll,
            "log-likelihood, deep ensemble": log_likelihood
            >= _mean(rows, name, "deep ensemble", "log_likelihood"),
            "coverage": 0.88 <= round(_mean(rows, name, OURS, "coverage"), 3) <= 0.92,
        }
    return found


def _mean_and_error(rows: Sequence[dict[str, Any]], key: str) -> str:
    """A mean over splits, with its standard error if there are several."""
    values = [row[key] for row in rows]
    error = f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):.2g}" if len(values) > 1 else ""
    return f"{np.mean(values):.3g}{error}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """RMSE and log-likelihood, a line per data set, next to MC dropout's published figures, and the aims."""
    lines = []
    for place, (key, title) in enumerate({"rmse": "RMSE", "log_likelihood": "log-likelihood"}.items()):
        head = [title, *METHODS, "MC dropout, published"]
        lines += [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
        for name in [each for each in DATA if any(row["data"] == each for row in rows)]:
            cells = [name]
            for method in METHODS:
                own = [r for r in rows if r["data"] == name and r["method"] == method]
                cells.append(_mean_and_error(own, key) if own else "")
            known = PUBLISHED[name][place]
            lines.append(f"| {' | '.join([*cells, '' if known is None else f'{known:g}'])} |")
        lines.append("")
    judged = verdicts(rows)
    if judged:
        lines += [f"Ours is at least as good, of {len(judged)} data sets, on:", ""]
    for aim in next(iter(judged.values()), {}):
        reached = [name for name, each in judged.items() if each[aim]]
        missed = [name for name, each in judged.items() if not each[aim]]
        title = "coverage from .88 to .92" if aim == "coverage" else aim
        lines.append(f"- {title}: {len(reached)}" + (f" (not on {', '.join(missed)})" if missed else ""))
    return "\n".join(lines)


def details(rows: Sequence[dict[str, Any]]) -> str:
    """The table of ``results/uci/tables.md``: all measures, with coverage and seconds."""
    lines = [
        "| data | method | RMSE | log-likelihood | coverage of 90% | seconds |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for name in [each for each in DATA if any(row["data"] == each for row in rows)]:
        for method in METHODS:
            own = [r for r in rows if r["data"] == name and r["method"] == method]
            if not own:
                continue
            cells = [f"{name}, {len(own)} split{'s' * (len(own) > 1)}", method]
            cells += [_mean_and_error(own, key) for key in ("rmse", "log_likelihood", "coverage")]
            lines.append("| " + " | ".join([*cells, f"{np.mean([r['seconds'] for r in own]):.1f}"]) + " |")
        rmse, log_likelihood = PUBLISHED[name]
        shown = "" if rmse is None else f"{rmse:g}"
        lines.append(f"| {name} | MC dropout, published | {shown} | {log_likelihood:g} | | |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies uci``"""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with uci/")
    options.add_argument("--splits", type=count, default=10, help="fixed splits of small data sets")
    options.add_argument(
        "--large-splits", type=count, default=3, help=f"and of those with more than {LARGE} rows"
    )
    options.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="default: all")
    given = arguments("uci", "UCI regression on fixed splits.", argv, [options])
    study = Study("uci", given)
    spec = Spec(splits=given.splits, large_splits=given.large_splits, seed=given.seed)
    if given.quick:
        spec = Spec(("yacht",), splits=1, rows=100, seed=given.seed)
    rows = run(spec, study, given.data, installed(given.methods, {"laplace-torch": "laplace"}))
    print(table(rows))
    page = Path(given.out) / "docs" / "studies" / "uci.md"
    if page.is_file() and not given.quick:
        fill_page(page, table(rows), "uci")
        write_details(study.folder, details(rows))
    return 0
