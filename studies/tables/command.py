"""Tables 1 and 2 of the paper: KMNIST, MNIST and FMNIST with the networks 784-400-600-10 and LeNet-5."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sparsebnn.checks import invalid
from sparsebnn.init import Uniform
from studies.runner import Study, arguments
from studies.tables import cells
from studies.tables.cells import DATASETS, METHODS, Job, Runner, quick_cell
from studies.tables.paper import Logits, cell, logits_of, with_logits

__all__ = ["jobs", "table1", "table2", "table_arguments"]


def _asked_logits(table: Logits, given: argparse.Namespace) -> Logits:
    """LBBNN's schedule: what the command does not name is the table's."""
    low, high = given.lbbnn_start or (table.start.low, table.start.high)
    if low > high:
        raise invalid("lbbnn_start", "the table", "two numbers, the lower first", (low, high))
    steady = table.steady if given.lbbnn_steady is None else given.lbbnn_steady
    return Logits(Uniform(low, high), given.lbbnn_rate or table.rate, steady)


def jobs(architecture: str, given: argparse.Namespace) -> list[Job]:
    """The cells of a table that the command asks for, in the paper's order."""
    other_logits = given.lbbnn_start or given.lbbnn_rate or given.lbbnn_steady is not None
    made = []
    for dataset in given.datasets:
        for method in given.methods:
            quick = quick_cell(architecture, method) if given.quick else None
            one = quick or cell(architecture, method, dataset)
            if method == "lbbnn" and other_logits:
                # Start from the cell whose rates fall; --lbbnn-steady decides whether they do.
                asked = _asked_logits(logits_of(architecture, dataset), given)
                one = with_logits(quick or cell(architecture, method), asked)
            one = one.for_epochs(given.epochs) if given.epochs else one
            made.append(Job(f"{dataset}-{method}", dataset, one, given.draws))
    return made


def table_arguments(study: str, claim: str, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line of a table."""
    parser = argparse.ArgumentParser(add_help=False)
    add = parser.add_argument
    add("--datasets", nargs="+", metavar="NAME", help=f"some of {', '.join(DATASETS)} or digits")
    add("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="some methods")
    add("--lbbnn-rate", type=float, help="rate of LBBNN's inclusion logits, instead of the table's")
    add("--lbbnn-start", type=float, nargs=2, metavar=("LOW", "HIGH"), help="where these logits start")
    steady = "keep LBBNN's other rates constant, as published"
    add("--lbbnn-steady", action=argparse.BooleanOptionalAction, default=None, help=steady)
    given = cells.complete(arguments(study, claim, argv, [cells.options(), parser]))
    given.datasets = given.datasets or (["digits"] if given.quick else list(DATASETS))
    return given


def table1(argv: Sequence[str] | None = None) -> None:
    """Train and evaluate what is missing of table 1."""
    given = table_arguments("table1", "Table 1 of the paper: fully connected networks.", argv)
    Runner(Study("table1", given), jobs("fc", given)).run()


def table2(argv: Sequence[str] | None = None) -> None:
    """Train and evaluate what is missing of table 2."""
    given = table_arguments("table2", "Table 2 of the paper: convolutional networks.", argv)
    Runner(Study("table2", given), jobs("lenet", given)).run()
