"""Three things the paper states without showing, each with its baseline.

One z per batch against one per observation; hard-tanh against tanh in the auxiliary; MNF (every inclusion
fixed at 1) on MNIST with the LeNet, against its published 99.30%. Each case is a cell of table 1 or 2 with
one thing changed, run by the tables' own runner; what it is compared with is that cell.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from studies.runner import Study, arguments, fill_page
from studies.tables import cells
from studies.tables import report as tables
from studies.tables.cells import Job, quick_cell, read_cells
from studies.tables.paper import cell
from studies.tables.published import MNF_MNIST_LENET

__all__ = ["CASES", "Case", "jobs", "main", "rows"]


@dataclass(frozen=True)
class Case:
    """A cell with one thing changed, and the question it answers."""

    question: str
    dataset: str
    architecture: str
    changed: dict[str, Any] = field(default_factory=dict)
    published: float | None = None

    @property
    def baseline(self) -> tuple[str, str]:
        """Study and stem of the cell it is compared with."""
        study = {"fc": "table1", "lenet": "table2"}[self.architecture]
        return study, f"{self.dataset}-flow"


CASES = {
    "z-per-observation": Case(
        "one z per observation instead of one per batch",
        "kmnist",
        "fc",
        {"family_options": {"z_per": "example"}},
    ),
    "tanh": Case(
        "tanh instead of hard-tanh in the auxiliary", "kmnist", "fc", {"family_options": {"squash": "tanh"}}
    ),
    "mnf": Case(
        "MNF: every inclusion fixed at 1",
        "mnist",
        "lenet",
        {"family": "mnf", "method": "mnf", "prior": "gaussian"},
        MNF_MNIST_LENET,
    ),
}


def jobs(given: argparse.Namespace) -> list[Job]:
    """The cases the command asks for."""
    made = []
    for name in given.cases:
        case = CASES[name]
        quick = quick_cell(case.architecture, "flow")
        base = quick if given.quick else cell(case.architecture, "flow")
        options = {**base.family_options, **case.changed.get("family_options", {})}
        one = replace(base, **{**case.changed, "family_options": options})
        one = one.for_epochs(given.epochs) if given.epochs else one
        dataset = "digits" if given.quick else case.dataset
        made.append(Job(f"{dataset}-{case.architecture}-{name}", dataset, one, given.draws))
    return made


_HEAD = [
    "",
    "median model, %",
    "density",
    "Δ median",
    "95% interval",
    "averaging, %",
    "Δ median",
    "95% interval",
]


def rows(results: Path) -> list[list[str]]:
    """Each case under the cell it is compared with; differences of medians with bootstrap intervals."""
    lines = []
    for name, case in CASES.items():
        stem = f"{case.dataset}-{case.architecture}-{name}"
        ours = read_cells(results / "ablations", [stem]).get(stem)
        study, base_stem = case.baseline
        base = read_cells(results / study, [base_stem]).get(base_stem)
        where = f"{case.dataset.upper()}, {'LeNet-5' if case.architecture == 'lenet' else 'fully connected'}"
        lines.append([f"LBBNN-FLOW ({where})", *_columns(base, None)])
        lines.append([case.question, *_columns(ours, base)])
        if case.published is not None:
            lines.append(["MNF as published", "–", "1", "–", "–", f"{case.published:.2f}", "–", "–"])
    return lines


def _columns(result: dict[str, Any] | None, base: dict[str, Any] | None) -> list[str]:
    if result is None:
        return ["–"] * 7
    columns: list[str] = []
    for model in ("median", "average"):
        ours = tables.accuracies(result, model)
        columns.append(tables.spread(ours))
        if model == "median":
            density = float(np.mean([row["density"] for row in result["replicates"]]))
            columns.append("1" if density == 1.0 else f"{density:.3f}")
        if base is None:
            columns += ["", ""]
            continue
        theirs = tables.accuracies(base, model)
        low, high = tables.bootstrap_interval(ours, theirs)
        difference = float(np.median(ours) - np.median(theirs))
        columns += [tables.signed(difference), f"{tables.signed(low)} to {tables.signed(high)}"]
    return columns


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, print the comparison; a full run also renews ``docs/studies/ablations.md``."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), help="some cases")
    parser.add_argument("--show", action="store_true", help="run nothing")
    claim = "Statements of the paper that it does not show."
    given = cells.complete(arguments("ablations", claim, argv, [cells.options(), parser]))
    if not given.show:
        cells.Runner(Study("ablations", given), jobs(given)).run()
    if given.quick:
        return
    found = rows(given.out / "results")
    print(tables.grid(_HEAD, found))
    page = given.out / "docs" / "studies" / "ablations.md"
    if page.exists():
        fill_page(page, tables.pipes(_HEAD, found))
