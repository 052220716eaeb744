"""Beyond the paper: accuracy, density and calibration under the recommended recipe.

Five stages, each of which appends rows to ``results/frontier/rows.jsonl`` and skips those it finds:

``choose``
    settings on validation rows (the rule: :mod:`~studies.frontier.choose`);
``final``
    ten seeds, all training rows, at most 100 epochs, measured on the test rows;
``densities``
    target densities from 0.5% to 10%, and magnitude pruning (method ``pruned``) at the same ones;
``targets``
    the same target densities by the controller alone, with no refit after it;
``page``
    tables and picture from these rows.

With a refit a training has two results: the posterior before the structure is fixed, and the one after it.
Averaging may use the first (``average_of`` is "free" in the settings; ``accuracy_average`` is then the
first's and ``accuracy_average_refitted`` the second's); the median probability model is always the second's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sparsebnn.checks import check_choice
from sparsebnn.inference.calibration import Correction
from sparsebnn.training import BeforeRefit, Callback, Run
from studies.frontier import choose, curve, picture, plan, report, stored
from studies.frontier.plan import AVERAGES, Candidate, Lines, cell_of
from studies.runner import Study, arguments
from studies.tables import cells
from studies.tables.cells import DATASETS, Job, Runner
from studies.tables.evaluation import RECORDED
from studies.tables.paper import ARCHITECTURES

__all__ = ["METHODS", "STAGES", "Final", "main"]

STAGES = ("choose", "final", "densities", "targets", "page")
METHODS = ("lrt", "flow", "pruned")
_CURVES = {"densities": METHODS, "targets": ("lrt", "flow")}
_CLAIM = "Beyond the paper: accuracy, density and calibration under the recommended recipe."


@dataclass(frozen=True)
class Final(Job):
    """A cell with settings that validation rows chose, brought to the density ``target``."""

    choice: Candidate = Candidate(1.0)
    target: float = 1.0
    chosen_by: str = ""

    def settings(self) -> dict[str, Any]:
        how = {"cut": self.choice.cut, "density": self.target, "average_of": self.choice.average_of}
        # Recorded only where they correct something, as in older files.
        for name, none in vars(Correction()).items():
            by = {model: getattr(c, name) for model, c in self.choice.corrections.items()}
            by = {model: number for model, number in by.items() if number != none}
            how |= {RECORDED[name]: by} if by else {}
        return {**super().settings(), **how, "chosen_by": self.chosen_by}

    def corrections_of(self, state: str) -> dict[str, Correction]:
        """What corrects the posterior before the refit ("free") or after it: averaging has one of them."""
        own = {"average"} if state == self.choice.average_of else set()
        own |= {"median"} if state == "refitted" else set()
        by = self.choice.corrections
        return {model: c for model, c in by.items() if model in own and c != Correction()}


class _Runner(Runner):
    """The tables' runner, which also keeps the posterior before the refit and measures both."""

    def _callbacks(self, job: Job, folder: Path | None) -> list[Callback]:
        assert isinstance(job, Final)
        own = plan.watchers(job.choice.cut, job.target, folder and folder / "before-refit.safetensors")
        return [*own, Lines(job.stem, self.given.quiet)]

    def _measured(
        self, job: Job, run: Run, k: int, x: Tensor, y: Tensor, callbacks: list[Callback]
    ) -> dict[str, Any]:
        assert isinstance(job, Final)
        before = callbacks[0]
        assert isinstance(before, BeforeRefit)
        of = {state: job.corrections_of(state) for state in AVERAGES}
        found = plan.outcomes(run, before, k, x, job.cell, job.draws)
        row = plan.measured(found, y, of)
        return plan.of_state(row, job.choice.average_of)


def _cells(given: argparse.Namespace, methods: Sequence[str]) -> list[tuple[str, str, str]]:
    wanted = [method for method in given.methods if method in methods]
    return [(d, a, m) for a in given.architectures for d in given.datasets for m in wanted]


def _jobs(given: argparse.Namespace) -> list[Job]:
    made: list[Job] = []
    for dataset, architecture, method in _cells(given, ("lrt", "flow")):
        candidate, source = stored.chosen(Path(given.out), dataset, architecture, method, given.chosen_on)
        cell = cell_of(architecture, method, dataset, given.quick, given.epochs)
        target = plan.target_of(architecture, dataset)
        cell = plan.with_candidate(cell, candidate, target)
        stem = f"{dataset}-{architecture}-{method}"
        made.append(Final(stem, dataset, cell, given.draws, candidate, target, source))
    return made


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    add = parser.add_argument
    add("--stage", nargs="+", choices=STAGES, default=list(STAGES), help="some stages (default: all in turn)")
    add("--datasets", nargs="+", default=["digits"], help="kmnist, mnist, fmnist or digits (default digits)")
    add("--architectures", nargs="+", choices=ARCHITECTURES, default=["fc"], help="default fc")
    add("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="default lrt flow pruned")
    add("--programs", type=int, nargs="+", help="choose: which of the cell's programs (from 0; default all)")
    each = "choose, targets: seeds per candidate or target (default %(default)s)"
    add("--seeds", type=int, default=plan.SEEDS, help=each)
    add("--choose-draws", type=int, help="choose: draws of each predictor (default 100)")
    on = plan.CHOSEN_ON
    add("--chosen-on", default=on, help=f"whose choice serves a data set without one (default {on})")
    add("--targets", type=float, nargs="+", help="densities: the target densities (default 0.5%% to 10%%)")
    shared = cells.options()
    shared.set_defaults(trace=0)
    given = cells.complete(arguments("frontier", _CLAIM, argv, [shared, parser]))
    for name in given.datasets:
        check_choice(name, [*DATASETS, "digits"], "--datasets", "the command")
    given.choose_draws = given.choose_draws or plan.CHOOSE_DRAWS[given.quick]
    return given


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stages asked for; what has rows is not run again."""
    given = _arguments(argv)
    study = Study("frontier", given)
    if "choose" in given.stage:
        for place in _cells(given, METHODS):
            choose.run(study, *place)
    if "final" in given.stage:
        _Runner(study, _jobs(given)).run()
    for stage in (stage for stage in given.stage if stage in _CURVES):
        for place in _cells(given, _CURVES[stage]):
            curve.run(study, *place, stage)
    if "page" in given.stage:
        if not given.quick:  # the page shows full runs
            report.write(Path(given.out))
        picture.write(Path(given.out))
