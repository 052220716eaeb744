"""The command of a study of cells: its options, its list of cells, its workers.

``table1``, ``table2``, ``ablations`` and ``frontier`` read the same options and hand their cells to a
:class:`~studies.classification.Runner`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sparsebnn.checks import invalid
from sparsebnn.init import Uniform
from studies.cells import Job
from studies.classification import DATASETS, METHODS, Runner, quick_cell
from studies.paper import Logits, cell, logits_of, with_logits
from studies.program import count

__all__ = ["command_line", "complete", "execute", "jobs", "main", "table_options"]


def command_line(study: str, claim: str) -> argparse.ArgumentParser:
    """The options all studies of cells share."""
    program = f"python -m studies.{study}"
    parser = argparse.ArgumentParser(prog=program, description=claim, allow_abbrev=False)
    add = parser.add_argument
    add("--replicates", help="a count (10), or a part of the cell to be merged later: 0-4, or 5,7,9")
    add(
        "--epochs",
        type=count,
        help="passes over the data (tables: 250, frontier: 100); milestones move along",
    )
    add("--draws", type=count, help="draws of each predictor (default 100)")
    add("--data", type=Path, help="folder with the data sets (else SPARSEBNN_DATA, the cache, a download)")
    add("--out", type=Path, help="folder that receives results/ (default: here; with --quick: runs)")
    add("--runs", type=Path, default=Path("runs"), help="folder of checkpoints and networks (default runs)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, … (default auto)")
    add("--mode", default="auto", choices=("auto", "eager", "compiled"), help="how steps are run")
    add("--seed", type=int, default=0, help="first seed when --replicates is a count (default 0)")
    add("--quick", action="store_true", help="handwritten digits, two replicates: minutes on two cores")
    resume = argparse.BooleanOptionalAction
    add("--resume", action=resume, default=True, help="go on from checkpoints (default)")
    add("--force", action="store_true", help="run finished seeds again; replace files of other settings")
    add("--merge", action="store_true", help="only merge parts that are there")
    add("--trace", type=int, default=10, help="epochs between two looks at the test accuracy; 0: none")
    add("--checkpoint-seconds", type=float, default=120.0, help="seconds between two checkpoints")
    add("--gpu-lock", type=Path, help="a lock file: processes that share it train one after the other")
    add("--quiet", action="store_true", help="no live line")
    add("--workers", type=count, default=1, help="processes; one trains while the others compile")
    return parser


def complete(given: argparse.Namespace) -> argparse.Namespace:
    """Defaults that depend on other options."""
    given.replicates = given.replicates or ("2" if given.quick else "10")
    given.draws = given.draws or (10 if given.quick else 100)
    # A rehearsal must not overwrite the results that the documentation quotes.
    given.out = given.out or (Path("runs") if given.quick else Path("."))
    return given


def execute(
    study: str,
    given: argparse.Namespace,
    todo: Sequence[Job],
    words: Callable[[Job], list[str]],
    argv: Sequence[str] | None,
    kind: type[Runner] = Runner,
) -> None:
    """Run, or merge, or hand over to workers first; leaves with status 1 when a cell failed."""
    runner = kind(study, given, todo, words)
    runner.prepare()
    if given.merge:
        runner.merge()
        return
    if given.workers > 1:
        runner.fetch()
        _work(study, given, list(sys.argv[1:] if argv is None else argv))
    failed = runner.run()
    if failed:
        raise SystemExit(1)


def _work(study: str, given: argparse.Namespace, argv: Sequence[str]) -> None:
    """The same command in several processes; they take cells from the same list. What they leave is ours."""
    lock = given.gpu_lock or Path(given.runs) / f".{study}.gpu.lock"
    # What had to be forgotten was forgotten once; a worker must not forget what another has finished.
    own = [word for word in argv if word != "--force"]
    command = [sys.executable, "-m", "studies", study, *own]
    command += ["--workers", "1", "--quiet", "--gpu-lock", str(lock)]
    began = []
    try:
        for _ in range(given.workers):
            began.append(subprocess.Popen(command))
        for process in began:
            process.wait()
    except KeyboardInterrupt:
        for process in began:
            process.wait()  # they were interrupted too, and save
        raise


# --- tables ------------------------------------------------------------------------------------------


def _schedule_words(given: argparse.Namespace) -> list[str]:
    """What the command says of LBBNN's schedule, to be said again."""
    words = ["--lbbnn-start", *(f"{end:g}" for end in given.lbbnn_start)] if given.lbbnn_start else []
    words += ["--lbbnn-rate", f"{given.lbbnn_rate:g}"] if given.lbbnn_rate else []
    steady = {None: [], True: ["--lbbnn-steady"], False: ["--no-lbbnn-steady"]}
    return words + steady[given.lbbnn_steady]


def _asked_logits(table: Logits, given: argparse.Namespace) -> Logits:
    """LBBNN's schedule as the command has it: what it does not name is the table's."""
    low, high = given.lbbnn_start or (table.start.low, table.start.high)
    if low > high:
        raise invalid("lbbnn_start", "the table", "two numbers, the lower first", (low, high))
    steady = table.steady if given.lbbnn_steady is None else given.lbbnn_steady
    return Logits(Uniform(low, high), given.lbbnn_rate or table.rate, steady)


def jobs(architecture: str, given: argparse.Namespace) -> list[Job]:
    """The cells of a table that the command asks for, in the paper's order."""
    made = []
    for dataset in given.datasets:
        for method in given.methods:
            quick = quick_cell(architecture, method) if given.quick else None
            one = quick or cell(architecture, method, dataset)
            if method == "lbbnn" and _schedule_words(given):
                # From the cell whose rates fall: that they stay can be asked of it, not taken from it.
                asked = _asked_logits(logits_of(architecture, dataset), given)
                one = with_logits(quick or cell(architecture, method), asked)
            one = one.for_epochs(given.epochs) if given.epochs else one
            made.append(Job(f"{dataset}-{method}", dataset, one, given.draws))
    return made


def table_options(study: str, claim: str, argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of a table."""
    parser = command_line(study, claim)
    add = parser.add_argument
    add("--datasets", nargs="+", metavar="NAME", help=f"some of {', '.join(DATASETS)} or digits")
    add("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="some methods")
    add("--lbbnn-rate", type=float, help="of LBBNN's inclusion logits, instead of the table's")
    add("--lbbnn-start", type=float, nargs=2, metavar=("LOW", "HIGH"), help="where these logits start")
    steady = "LBBNN's other rates stay as they are, as published"
    add("--lbbnn-steady", action=argparse.BooleanOptionalAction, default=None, help=steady)
    given = complete(parser.parse_args(argv))
    given.datasets = given.datasets or (["digits"] if given.quick else list(DATASETS))
    return given


def main(study: str, architecture: str, claim: str, argv: Sequence[str] | None = None) -> None:
    """A table of the paper: every data set with every method."""
    given = table_options(study, claim, argv)

    def words(job: Job) -> list[str]:
        own = _schedule_words(given) if job.cell.method == "lbbnn" else []
        return ["--datasets", job.dataset, "--methods", job.cell.method, *own]

    execute(study, given, jobs(architecture, given), words, argv)
