"""Beyond the paper: accuracy, density and calibration under the recommended recipe.

Five stages, each of which leaves its files and skips what is there; a file of other settings is an error
before the first stage begins, or replaced by ``--force``:

``choose``
    settings on validation rows, ``results/frontier/choose-<dataset>-<architecture>-<method>.json``
    (the rule: :mod:`~studies.frontier_choose`);
``final``
    ten seeds, all training rows, at most 100 epochs, measured on the test rows,
    ``results/frontier/<dataset>-<architecture>-<method>.json``, with the fields of the tables' files;
``densities``
    target densities from 0.5% to 10%, and magnitude pruning (method ``pruned``) at the same ones;
``targets``
    the same target densities by the controller alone, with no refit after it;
``page``
    tables and picture from these files.

With a refit a training has two results: the posterior before the structure is fixed, and the one after it.
Averaging may use the first (``average_of`` is "free" in the settings; ``accuracy_average`` is then the
first's and ``accuracy_average_refitted`` the second's); the median probability model is always the second's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sparsebnn import data as datasets
from sparsebnn.checks import check_choice
from sparsebnn.inference.calibration import Correction
from sparsebnn.training import BeforeRefit, Callback, Run
from studies import (
    cell_command,
    cells,
    classification,
    frontier_choose,
    frontier_curve,
    frontier_picture,
    frontier_plan,
    frontier_report,
    frontier_tried,
    provenance,
)
from studies.cells import Job
from studies.frontier_plan import AVERAGES, Candidate, Lines, cell_of
from studies.paper import ARCHITECTURES
from studies.program import run_as_program

__all__ = ["METHODS", "STAGES", "Final", "main"]

STAGES = ("choose", "final", "densities", "targets", "page")
METHODS = ("lrt", "flow", "pruned")
_CURVES = {"densities": METHODS, "targets": ("lrt", "flow")}
_NAME = "frontier"
_CLAIM = "Beyond the paper: accuracy, density and calibration under the recommended recipe."


@dataclass(frozen=True)
class Final(Job):
    """A cell with settings that validation rows chose, brought to the density ``target``."""

    choice: Candidate = Candidate(1.0)
    target: float = 1.0
    chosen_by: str = ""

    def settings(self) -> dict[str, Any]:
        how = {"cut": self.choice.cut, "density": self.target, "average_of": self.choice.average_of}
        # Under their names only where they correct something, as in files of before.
        for name, none in vars(Correction()).items():
            by = {model: getattr(c, name) for model, c in self.choice.corrections.items()}
            by = {model: number for model, number in by.items() if number != none}
            how |= {name: by} if by else {}
        return {**super().settings(), **how, "chosen_by": self.chosen_by}

    def corrections_of(self, state: str) -> dict[str, Correction]:
        """What corrects the posterior before the refit ("free") or after it: averaging has one of them."""
        own = {"average"} if state == self.choice.average_of else set()
        own |= {"median"} if state == "refitted" else set()
        by = self.choice.corrections
        return {model: c for model, c in by.items() if model in own and c != Correction()}


class _Runner(classification.Runner):
    """The tables' runner, which also keeps the posterior before the refit and measures both."""

    def _watchers(self, job: Job, folder: Path | None) -> list[Callback]:
        assert isinstance(job, Final)
        path = None if folder is None else folder / "before-refit.safetensors"
        own = frontier_plan.watchers(job.choice.cut, job.target, path)
        return [*own, Lines(job.stem, self.given.quiet)]

    def _measured(
        self, job: Job, run: Run, k: int, x: Tensor, y: Tensor, others: list[Callback]
    ) -> dict[str, Any]:
        assert isinstance(job, Final)
        before = others[0]
        assert isinstance(before, BeforeRefit)
        of = {state: job.corrections_of(state) for state in AVERAGES}
        found = frontier_plan.outcomes(run, before, k, x, job.cell, job.draws)
        row = frontier_plan.measured(found, y, of)
        return frontier_plan.of_state(row, job.choice.average_of)


def _cells(given: argparse.Namespace, methods: Sequence[str]) -> list[tuple[str, str, str]]:
    wanted = [method for method in given.methods if method in methods]
    return [(d, a, m) for a in given.architectures for d in given.datasets for m in wanted]


def _data(given: argparse.Namespace, name: str) -> datasets.Dataset:
    return datasets.load(name, root=given.data)


def _check(given: argparse.Namespace) -> None:
    """Complain of files with other settings before the first stage begins, as far as they can be known.

    What is chosen anew decides what later stages ask for: they then look for themselves. No stage of a
    rehearsal replaces a result in full, whatever it asks for.
    """
    for place in _cells(given, METHODS) if given.quick and given.force else []:
        stems = {"choose": frontier_tried.stem(*place), "final": "-".join(place)}
        stems |= {stage: frontier_curve.stem(*place, stage) for stage in _CURVES}
        for stage in given.stage:
            if stage in stems:
                provenance.check_replaceable(frontier_plan.file_of(given, stems[stage]), {}, given)
    if "choose" in given.stage and any([frontier_tried.check(given, *c) for c in _cells(given, METHODS)]):
        return
    if given.force:
        return
    if "final" in given.stage:
        for job in _jobs(given):
            cells.check(Path(given.out) / "results" / _NAME, job)
    for stage in (stage for stage in given.stage if stage in _CURVES):
        for place in _cells(given, _CURVES[stage]):
            path = frontier_plan.file_of(given, frontier_curve.stem(*place, stage))
            frontier_curve.finished(path, frontier_curve.plan(given, *place, stage))


def _choose(given: argparse.Namespace) -> None:
    for dataset, architecture, method in _cells(given, METHODS):
        if not frontier_tried.check(given, dataset, architecture, method):
            print(f"{frontier_tried.stem(dataset, architecture, method)}: already there")
            continue
        path = frontier_choose.run(given, _data(given, dataset), dataset, architecture, method)
        print(f"Wrote {path}.", flush=True)


def _jobs(given: argparse.Namespace) -> list[Job]:
    made: list[Job] = []
    for dataset, architecture, method in _cells(given, ("lrt", "flow")):
        candidate, source = frontier_choose.chosen(given, dataset, architecture, method)
        cell = cell_of(architecture, method, dataset, given.quick, given.epochs)
        target = frontier_plan.target_of(architecture, dataset)
        cell = frontier_plan.with_candidate(cell, candidate, target)
        stem = f"{dataset}-{architecture}-{method}"
        made.append(Final(stem, dataset, cell, given.draws, candidate, target, source))
    return made


def _final(given: argparse.Namespace, argv: Sequence[str] | None) -> None:
    def words(job: Job) -> list[str]:
        where = ["--datasets", job.dataset, "--architectures", job.cell.architecture]
        other = ["--chosen-on", given.chosen_on] if given.chosen_on != frontier_plan.CHOSEN_ON else []
        return ["--stage", "final", *where, "--methods", job.cell.method, *other]

    own = [*(sys.argv[1:] if argv is None else argv), "--stage", "final"]
    cell_command.execute(_NAME, given, _jobs(given), words, own, _Runner)


def _curves(given: argparse.Namespace, stage: str) -> None:
    for dataset, architecture, method in _cells(given, _CURVES[stage]):
        path = frontier_plan.file_of(given, frontier_curve.stem(dataset, architecture, method, stage))
        asked = frontier_curve.plan(given, dataset, architecture, method, stage)
        if not given.force and frontier_curve.finished(path, asked):
            print(f"{path.stem}: already there")
            continue
        content = frontier_curve.run(given, _data(given, dataset), asked)
        provenance.write_json(path, provenance.rounded(content))
        print(frontier_report.curve_lines(content))
        print(f"Wrote {path}.", flush=True)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = cell_command.command_line(_NAME, _CLAIM)
    add = parser.add_argument
    add(
        "--stage", nargs="+", choices=STAGES, default=list(STAGES), help="some of them (default: all in turn)"
    )
    add("--datasets", nargs="+", metavar="NAME", help="kmnist, mnist, fmnist or digits (default digits)")
    add("--architectures", nargs="+", choices=ARCHITECTURES, default=["fc"], help="default fc")
    add("--methods", nargs="+", choices=METHODS, help="default lrt flow, and pruned for densities")
    add("--programs", type=int, nargs="+", help="choose: which of the cell's programs (from 0; default all)")
    each = "choose, targets: seeds per candidate or target (default %(default)s)"
    add("--seeds", type=int, default=frontier_plan.SEEDS, help=each)
    add("--choose-draws", type=int, help="choose: draws of each predictor (default 100)")
    on = frontier_plan.CHOSEN_ON
    add("--chosen-on", default=on, help=f"whose choice serves a data set without one (default {on})")
    add("--targets", type=float, nargs="+", help="densities: the target densities (default 0.5%% to 10%%)")
    parser.set_defaults(trace=0)
    given = cell_command.complete(parser.parse_args(argv))
    # Now, not at the end of a stage: the code that runs is the code that is there at the start.
    given.commit = provenance.commit_and_source()
    given.datasets = given.datasets or ["digits"]
    for name in given.datasets:
        check_choice(name, [*classification.DATASETS, "digits"], "--datasets", "the command")
    given.methods = given.methods or list(METHODS)
    given.choose_draws = given.choose_draws or frontier_plan.CHOOSE_DRAWS[given.quick]
    return given


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stages asked for."""
    given = _options(argv)
    _check(given)
    if "choose" in given.stage:
        _choose(given)
    if "final" in given.stage:
        _final(given, argv)
    for stage in ("densities", "targets"):
        if stage in given.stage:
            _curves(given, stage)
    if "page" in given.stage:
        if not given.quick:  # a rehearsal leaves the page as it is
            frontier_report.write(Path(given.out))
        frontier_picture.write(Path(given.out))


if __name__ == "__main__":
    run_as_program(main)
