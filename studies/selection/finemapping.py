"""Fine-mapping on real linkage disequilibrium, by SuSiE's protocol: structure sampling next to susieR.

Genotypes are real, phenotypes simulated: 1 to 5 columns, drawn at random, have effects N(0, 0.6²), and
noise is added so that they explain 5, 10, 20 or 40% of the variance, in turn (Wang et al., JRSS-B 82:1273,
section 4). A credible set covers if it contains a column with an effect; power is the share of effects that
some set contains.

Run: ``python -m studies finemapping --data n3finemapping.npz --jobs 16``, and for susieR (R package 'susieR')
``python -m studies finemapping --data n3finemapping.npz --methods susieR``, or ``pysusie`` for its Python
port. All append to one file, a row per method and data set, and skip the rows they find there; a data set is
a function of seed, effects and number.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studies.runner import Study, arguments, count, fill_page, in_parallel, installed, read_rows

__all__ = ["METHODS", "Spec", "run_ours", "run_susie", "score", "simulate", "summary", "susie", "table"]

# Strict sets contain an included column with probability 0.95; the others, like susieR's, do so given that
# there is an effect.
METHODS = ("structure sampling", "structure sampling, strict", "susieR", "pysusie")
PVES = (0.05, 0.1, 0.2, 0.4)

_R = """
suppressMessages(library(susieR))
a <- commandArgs(trailingOnly = TRUE)
n <- as.integer(a[2]); p <- as.integer(a[3]); d <- as.integer(a[4])
values <- readBin(a[1], "double", n * (p + d))
x <- matrix(values[1:(n * p)], n, p); y <- matrix(values[-(1:(n * p))], n, d)
for (i in 1:d) {
  began <- proc.time()
  fit <- susie(x, y[, i], L = 10, coverage = as.numeric(a[5]), min_abs_corr = as.numeric(a[6]))
  took <- proc.time() - began
  sets <- sapply(fit$sets$cs, function(s) paste0("[", paste(s - 1, collapse = ","), "]"))
  purity <- paste(fit$sets$purity[, 1], collapse = ",")
  cpu <- took[["user.self"]] + took[["sys.self"]]
  done <- if (isTRUE(fit$converged)) "true" else "false"
  cat(sprintf('{"sets": [%s], "purity": [%s], "seconds": %.3f, "cpu_seconds": %.3f, "converged": %s}\\n',
              paste(sets, collapse = ","), purity, took[["elapsed"]], cpu, done))
}
"""


@dataclass(frozen=True)
class Spec:
    """The whole study; ``n_iter`` to ``target_ess`` are the sampler's, which stops when it has converged."""

    effects: tuple[int, ...] = (1, 2, 3, 4, 5)
    data_sets: int = 152
    coverage: float = 0.95
    min_purity: float = 0.5
    # Both chosen on the data sets of seeds 4, 5 and 6.
    min_probability: float = 0.7
    max_false_members: float = 2.0
    n_iter: int = 3000
    burn_in: int = 250
    n_chains: int = 3
    temperatures: tuple[float, ...] = (1.0, 0.5)
    target_ess: float = 400.0
    seed: int = 0


def simulate(x: np.ndarray, effects: int, number: int, seed: int) -> tuple[np.ndarray, list[int], float]:
    """A phenotype, the columns with effects, and the share of variance that they explain."""
    rng = np.random.default_rng([seed, effects, number])
    pve = PVES[number % len(PVES)]
    columns = rng.choice(x.shape[1], effects, replace=False)
    signal = x[:, columns] @ rng.normal(0.0, 0.6, effects)
    noise_std = np.sqrt(signal.var() * (1.0 - pve) / pve)
    return signal + noise_std * rng.standard_normal(len(x)), sorted(columns.tolist()), pve


def score(sets: Sequence[Sequence[int]], truth: Sequence[int]) -> dict[str, Any]:
    """How many sets contain an effect, how many effects some set contains, and the sizes.

    >>> score([[1, 2], [5]], [2, 3])
    {'n_sets': 2, 'covering': 1, 'effects_found': 1, 'sizes': [2, 1]}
    """
    there = set(truth)
    return {
        "n_sets": len(sets),
        "covering": sum(bool(there & set(one)) for one in sets),
        "effects_found": len(there & {i for one in sets for i in one}),
        "sizes": [len(one) for one in sets],
    }


def _row(method: str, effects: int, number: int, seed: int, truth: list[int], pve: float) -> dict[str, Any]:
    return {
        "method": method,
        "effects": effects,
        "data_set": number,
        "seed": seed,
        "pve": pve,
        "truth": truth,
    }


def run_ours(x: np.ndarray, cells: Sequence[tuple[int, int]], spec: Spec) -> list[dict[str, Any]]:
    """Structure sampling on some data sets (effects, number)."""
    from sklearn.exceptions import ConvergenceWarning

    from sparsebnn.estimators import SpikeSlabRegression
    from sparsebnn.selection import credible_sets

    rows = []
    for effects, number in cells:
        y, truth, pve = simulate(x, effects, number, spec.seed)
        model = SpikeSlabRegression(
            n_iter=spec.n_iter,
            burn_in=spec.burn_in,
            n_chains=spec.n_chains,
            temperatures=spec.temperatures,
            target_ess=spec.target_ess,
            coverage=spec.coverage,
            min_purity=spec.min_purity,
            min_probability=spec.min_probability,
            max_false_members=spec.max_false_members,
            random_state=number,
        )
        began, worked = time.perf_counter(), time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a column of the row
            model.fit(x, y)
        fit = {
            "seconds": round(time.perf_counter() - began, 3),
            "cpu_seconds": round(time.process_time() - worked, 3),
            "converged": model.diagnostics_["converged"],
            "max_rhat": round(model.diagnostics_["max_rhat"], 4),
            "min_ess": round(model.diagnostics_["min_ess"], 1),
        }
        samples = model.sample_inclusions(redrawn=True)
        strict = credible_sets(samples, x, coverage=spec.coverage, min_purity=spec.min_purity)
        for method, found in ((METHODS[0], model.credible_sets_), (METHODS[1], strict)):
            sets = [list(one.members) for one in found]
            row = _row(method, effects, number, spec.seed, truth, pve) | {"sets": sets}
            row["purity"] = [round(one.purity, 4) for one in found]
            row["probability"] = [round(one.coverage, 4) for one in found]
            rows.append(row | fit | score(sets, truth))
    return rows


def run_susie(x: np.ndarray, cells: Sequence[tuple[int, int]], spec: Spec) -> list[dict[str, Any]]:
    """susieR on some data sets, through Rscript."""
    made = [simulate(x, effects, number, spec.seed) for effects, number in cells]
    rows = []
    for (effects, number), (_, truth, pve), found in zip(
        cells, made, susie(x, [y for y, _, _ in made], spec)
    ):
        row = _row(METHODS[2], effects, number, spec.seed, truth, pve)
        rows.append(row | found | score(found["sets"], truth))
    return rows


def susie(x: np.ndarray, targets: Sequence[np.ndarray], spec: Spec) -> list[dict[str, Any]]:
    """Sets, purity and seconds of susieR for each target, from one call of Rscript."""
    with tempfile.TemporaryDirectory() as folder:
        data, script = Path(folder) / "data.bin", Path(folder) / "susie.R"
        np.concatenate([x.T.ravel(), *targets]).astype("<f8").tofile(data)
        script.write_text(_R, encoding="utf-8")
        sizes = [*x.shape, len(targets), spec.coverage, spec.min_purity]
        command = ["Rscript", "--vanilla", str(script), str(data), *map(str, sizes)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"susieR failed: {done.stderr.strip()}")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if len(found) != len(targets):
        raise RuntimeError(f"susieR answered {len(found)} of {len(targets)} targets")
    return found


def run_pysusie(x: np.ndarray, cells: Sequence[tuple[int, int]], spec: Spec) -> list[dict[str, Any]]:
    """The Python port of susieR on some data sets."""
    import pysusie

    rows = []
    for effects, number in cells:
        y, truth, pve = simulate(x, effects, number, spec.seed)
        began, worked = time.perf_counter(), time.process_time()
        fit = pysusie.susie(x, y, L=10, coverage=spec.coverage, min_abs_corr=spec.min_purity)
        found: dict[str, Any] = {
            "sets": [[int(i) for i in one] for one in fit.sets["cs"] or []],
            "seconds": round(time.perf_counter() - began, 3),
            "cpu_seconds": round(time.process_time() - worked, 3),
            "converged": bool(fit.converged),
        }
        row = _row(METHODS[3], effects, number, spec.seed, truth, pve)
        rows.append(row | found | score(found["sets"], truth))
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per number of effects and method, over the data sets that all methods have."""
    methods = [method for method in METHODS if any(row["method"] == method for row in rows)]
    keys = [{_key(row)[1:] for row in rows if row["method"] == method} for method in methods]
    shared = set.intersection(*keys) if keys else set()
    lines = []
    for effects in sorted({key[0] for key in shared}):
        for method in methods:
            mine = [
                row
                for row in rows
                if row["method"] == method and row["effects"] == effects and _key(row)[1:] in shared
            ]
            sets = sum(row["n_sets"] for row in mine)
            sizes = [size for row in mine for size in row["sizes"]]
            lines.append(
                {
                    "effects": effects,
                    "method": method,
                    "data_sets": len(mine),
                    "sets": sets,
                    "coverage": sum(row["covering"] for row in mine) / max(1, sets),
                    "power": sum(row["effects_found"] for row in mine) / (effects * len(mine)),
                    "median_size": float(np.median(sizes)) if sizes else float("nan"),
                    "seconds": float(np.mean([row["seconds"] for row in mine])),
                    "converged": float(np.mean([row["converged"] for row in mine])),
                }
            )
    return lines


def table(lines: Sequence[dict[str, Any]]) -> str:
    """The summary as a Markdown table; coverage with its standard error."""
    made = ["| effects | method | data sets | sets | coverage | power | median size | seconds | converged |"]
    made.append("|---|---|---|---|---|---|---|---|---|")
    for line in lines:
        error = (line["coverage"] * (1.0 - line["coverage"]) / max(1, line["sets"])) ** 0.5
        made.append(
            f"| {line['effects']} | {line['method']} | {line['data_sets']} | {line['sets']} "
            f"| {line['coverage']:.3f} ± {error:.3f} | {line['power']:.3f} | {line['median_size']:g} "
            f"| {line['seconds']:.2f} | {line['converged']:.2f} |"
        )
    return "\n".join(made)


def paired(rows: Sequence[dict[str, Any]]) -> str:
    """Sampling and susieR effect by effect, as a Markdown table: who found it, and in how large a set."""
    by_key = {_key(row): row for row in rows}
    made = [
        "| effects | found by both | median size | smaller, equal, larger | sampling alone | susieR alone |"
    ]
    made.append("|---|---|---|---|---|---|")
    for effects in sorted({row["effects"] for row in rows}):
        both: list[tuple[int, int]] = []
        alone = [0, 0]
        for data_set in sorted({_key(row)[1:] for row in rows if row["effects"] == effects}):
            pair = [by_key.get((method, *data_set)) for method in (METHODS[0], METHODS[2])]
            if pair[0] is None or pair[1] is None:
                continue
            for column in pair[0]["truth"]:
                sizes = [min([len(s) for s in row["sets"] if column in s], default=0) for row in pair if row]
                if all(sizes):
                    both.append((sizes[0], sizes[1]))
                alone[0] += bool(sizes[0] and not sizes[1])
                alone[1] += bool(sizes[1] and not sizes[0])
        if both:
            ours, theirs = np.array(both).T
            order = f"{(ours < theirs).sum()}, {(ours == theirs).sum()}, {(ours > theirs).sum()}"
            medians = f"{np.median(ours):g} and {np.median(theirs):g}"
            made.append(f"| {effects} | {len(both)} | {medians} | {order} | {alone[0]} | {alone[1]} |")
    return "\n".join(made)


def by_seed(rows: Sequence[dict[str, Any]]) -> str:
    """Coverage, power and median size of sampling and of susieR for each seed, as a Markdown table."""
    made = ["| seed | effects | data sets | coverage | power | median size |", "|---|---|---|---|---|---|"]
    for seed in sorted({row["seed"] for row in rows}):
        lines = summary([row for row in rows if row["seed"] == seed])
        both = [[line for line in lines if line["method"] == method] for method in (METHODS[0], METHODS[2])]
        for ours, theirs in zip(*both):
            made.append(
                f"| {seed} | {ours['effects']} | {ours['data_sets']} "
                f"| {ours['coverage']:.3f} and {theirs['coverage']:.3f} "
                f"| {ours['power']:.3f} and {theirs['power']:.3f} "
                f"| {ours['median_size']:g} and {theirs['median_size']:g} |"
            )
    return "\n".join(made)


# --- the command -------------------------------------------------------------------------------------


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["method"], row["effects"], row["data_set"], row["seed"]


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--data", type=Path, help="n3finemapping.npz, or another .npz with genotypes X")
    options.add_argument("--methods", nargs="+", choices=[METHODS[0], *METHODS[2:]], default=[METHODS[0]])
    options.add_argument("--data-sets", type=count, help="per number of effects (default 152)")
    options.add_argument("--effects", type=count, nargs="+", help="numbers of effects (default 1 to 5)")
    options.add_argument("--iterations", type=count, help="of the sampler (default 3000)")
    options.add_argument("--jobs", dest="workers", type=count, default=1, help="processes (default 1)")
    return options


def _genotypes(given: argparse.Namespace) -> np.ndarray:
    """The genotypes of the file; for a quick run without one, correlated columns."""
    if given.data is not None:
        with np.load(given.data) as data:
            return data["X"].astype(np.float64)
    if not given.quick:
        raise SystemExit("finemapping needs genotypes: --data n3finemapping.npz (from the R package susieR).")
    steps = np.random.default_rng(0).standard_normal((120, 40))
    return np.cumsum(steps, axis=1) / np.sqrt(np.arange(1.0, 41.0))


def _spec(given: argparse.Namespace) -> Spec:
    quick = {"effects": (1, 2), "data_sets": 2, "n_iter": 200, "burn_in": 50} if given.quick else {}
    own = {"effects": given.effects and tuple(given.effects), "data_sets": given.data_sets}
    own["n_iter"] = given.iterations
    chosen: dict[str, Any] = quick | {name: value for name, value in own.items() if value}
    return Spec(seed=given.seed, **chosen)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, append its rows, and print the table of all rows."""
    claim = "Credible sets on real linkage disequilibrium: coverage, power and size, next to susieR."
    study = Study("finemapping", arguments("finemapping", claim, argv, [_options()]))
    spec, x = _spec(study.given), _genotypes(study.given)
    methods: dict[str, Callable[..., list[dict[str, Any]]]] = {METHODS[0]: run_ours, METHODS[2]: run_susie}
    methods[METHODS[3]] = run_pysusie
    workers = study.given.workers
    for method in installed(study.given.methods, {METHODS[3]: "pysusie"}):
        if method == METHODS[2] and shutil.which("Rscript") is None:
            print("susieR is left out: there is no Rscript here.")
            continue
        there = {_key(row) for row in read_rows(study.folder / "rows.jsonl")}
        cells = [(effects, number) for number in range(spec.data_sets) for effects in spec.effects]
        cells = [cell for cell in cells if (method, *cell, spec.seed) not in there]
        share = 10 if method == METHODS[2] else 1  # R starts once for ten data sets
        parts = [cells[at : at + share] for at in range(0, len(cells), share)]
        for at in range(0, len(parts), 4 * workers):
            now = parts[at : at + 4 * workers]
            jobs = [functools.partial(methods[method], x, part, spec) for part in now]
            for rows in in_parallel(jobs, workers):
                study.append(rows)
    rows = read_rows(study.folder / "rows.jsonl")
    rows = [row for row in rows if row["effects"] in spec.effects]
    print(table(summary(rows)))
    page = Path(study.given.out) / "docs" / "studies" / "finemapping.md"
    if page.exists():
        fill_page(page, table(summary(rows)))
        fill_page(page, paired(rows), "paired")
        fill_page(page, by_seed(rows), "seeds")
    print(f"Wrote {study.folder / 'rows.jsonl'}.")
