r"""Which columns does a default fit choose, next to LassoNet, Boruta, the Lasso and spike-and-slab models?

Simulated tables with known truth, standard normal columns with equal correlation ρ; the real ones are at
random places. The signal f has standard deviation 1: linear (effects 0.5 to 1.5 of alternating sign) or, with
a, b, … the real columns,

.. math:: \sin 2a + (b^2 - 1)/\sqrt 2 + cd + \tanh 3e + g + \dots,

further columns linear. Numbers are f + noise of standard deviation 0.5; classes have log-odds ``scale`` · f.
A row per case, seed and method goes to ``results/column_selection/rows.jsonl``; rows that are there are kept.
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
import torch

from studies.estimators.column_choice import scores
from studies.runner import Study, arguments, fill_page, read_rows, write_details
from studies.selection.column_methods import METHODS, OURS, known, losses
from studies.selection.column_report import body, details

__all__ = ["CASES", "Case", "Spec", "main", "measured", "run", "simulated"]

_TASKS = ("classification", "regression")
_TEST_ROWS = 2000


@dataclass(frozen=True)
class Case:
    """One kind of table."""

    group: str
    task: str
    kind: str
    rows: int
    columns: int
    real: int
    correlation: float = 0.0
    scale: float = 3.0
    seeds: int = 5

    @property
    def key(self) -> str:
        """A name for the rows of the result file."""
        return f"{self.group}, {self.task}, {self.kind}, {self.rows} × {self.columns}, {self.correlation:g}"


# Methods that are too slow for the larger tables are run on the first group only.
_ONLY_FIRST = ("Boruta", "LassoNet")
_ONLY_LAST = ("linear",)
CASES: tuple[Case, ...] = (
    *(
        Case("correlation", task, kind, 500, 100, real, correlation)
        for task in _TASKS
        for kind, real in (("linear", 10), ("nonlinear", 6))
        for correlation in (0.0, 0.5, 0.9)
    ),
    *(
        Case("rows", task, kind, rows, 50, 10, seeds=3)
        for rows in (200, 1000, 3000, 10_000)
        for task in _TASKS
        for kind in ("linear", "nonlinear")
    ),
    Case("wide and small", "classification", "linear", 100, 1000, 3),
    Case("wide and small", "classification", "linear", 300, 10, 10, scale=1.0),
    Case("wide and small", "classification", "linear", 200, 2000, 5),
)


@dataclass(frozen=True)
class Spec:
    """What the tables are made from."""

    cases: tuple[Case, ...] = CASES
    methods: tuple[str, ...] = tuple(METHODS)
    seed: int = 0
    label: str = OURS


def simulated(case: Case, seed: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets, and which columns are real."""
    random = np.random.RandomState(seed)
    z, shared = random.randn(rows, case.columns), random.randn(rows, 1)
    x = np.sqrt(1.0 - case.correlation) * z + np.sqrt(case.correlation) * shared
    effects = np.linspace(0.5, 1.5, case.real) * np.where(np.arange(case.real) % 2, 1.0, -1.0)
    if case.kind == "linear":
        signal = x[:, : case.real] @ effects
    else:
        a, b, c, d, e = x[:, :5].T
        signal = np.sin(2.0 * a) + (b**2 - 1.0) / np.sqrt(2.0) + c * d + np.tanh(3.0 * e)
        signal = signal + x[:, 5 : case.real] @ np.abs(effects[5:])
    # By its own rows: the unit of f is the same for training and test rows up to 1 / √rows.
    signal = (signal - signal.mean()) / signal.std()
    order = random.permutation(case.columns)
    real = (np.arange(case.columns) < case.real)[order]
    if case.task == "classification":
        return x[:, order], (case.scale * signal + random.logistic(size=rows) > 0.0).astype(int), real
    return x[:, order], signal + 0.5 * random.randn(rows), real


def measured(case: Case, method: str, seed: int, **settings: Any) -> dict[str, Any]:
    """Choice and prediction of one method on one table; inputs are standardized for all."""
    x, y, real = simulated(case, seed, case.rows + _TEST_ROWS)
    own, test = slice(0, case.rows), slice(case.rows, None)
    x = (x - x[own].mean(0)) / x[own].std(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence of peers, columns of ours
        began = time.process_time()
        found = METHODS[method](x[own], y[own], x[test], case.task, seed, **settings)
        seconds = time.process_time() - began
    row: dict[str, Any] = {"seconds": seconds, **found.facts}
    row["rules"] = {rule: mask if mask is None else scores(mask, real) for rule, mask in found.rules.items()}
    if found.predicted is not None:
        row |= losses(found.predicted, y[test], case.task)
    return row


def _applies(method: str, case: Case) -> bool:
    if method in _ONLY_FIRST:
        return case.group == "correlation"
    return method not in _ONLY_LAST or case.group == "wide and small"


def run(
    spec: Spec,
    study: Study,
    tell: Callable[[str], None] = lambda text: print(text, flush=True),
    **settings: Any,
) -> list[dict[str, Any]]:
    """The missing rows, method by method, small tables first; all rows of the file."""
    path = study.folder / "rows.jsonl"
    done = {(r["case"], r["method"], r["seed"]) for r in read_rows(path)}
    jobs = [
        (method, number, case)
        for method in spec.methods
        for case in sorted(spec.cases, key=lambda case: case.rows * case.columns)
        for number in range(case.seeds)
        if _applies(method, case)
    ]
    for method, number, case in jobs:
        label, seed = spec.label if method == OURS else method, spec.seed + number
        if (case.key, label, seed) in done:
            continue
        about = {name: getattr(case, name) for name in ("group", "task", "kind", "rows", "columns", "real")}
        row = {"case": case.key, **about, "correlation": case.correlation, "method": label, "seed": seed}
        row |= measured(case, method, seed, **(settings if method == OURS else {}))
        study.append([row])
        tell(f"{label:<22}{seed}  {case.key:<62}{row.get('loss', 0.0):.3f}  {row['seconds']:.1f} s")
    return read_rows(path)


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies column_selection``"""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--methods", nargs="+", default=["ours", "peers"], help="ours, peers, or names of peers"
    )
    groups = list(dict.fromkeys(case.group for case in CASES))
    options.add_argument("--groups", nargs="+", default=groups, choices=groups, help="cases (default: all)")
    options.add_argument("--label", default=OURS, help="what rows of ours are called (default sparsebnn)")
    options.add_argument("--page", action="store_true", help="run nothing; write the page from the rows")
    given = arguments(
        "column_selection", "Columns that a default fit chooses, next to others.", argv, [options]
    )
    study = Study("column_selection", given)
    torch.set_num_threads(1)
    cases = tuple(case for case in CASES if case.group in given.groups)
    spec = Spec(cases, known(given.methods), given.seed, given.label)
    settings: dict[str, Any] = {}
    if given.quick:
        few = [Case("correlation", task, "nonlinear", 150, 8, 6, seeds=1) for task in _TASKS]
        methods = tuple(m for m in spec.methods if m in (OURS, "Lasso-CV", "Carbonetto–Stephens"))
        spec = Spec(tuple(few), methods, given.seed, given.label)
        settings = {"epochs": 3, "replicates": 2}
    rows = read_rows(study.folder / "rows.jsonl") if given.page else run(spec, study, **settings)
    print(body(rows))
    page = Path(given.out) / "docs" / "studies" / "column_selection.md"
    if page.is_file() and not given.quick:
        fill_page(page, body(rows), "selection")
        write_details(study.folder, details(rows))
    return 0
