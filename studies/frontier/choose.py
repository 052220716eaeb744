"""The frontier's settings, chosen on validation rows: the last 10,000 training rows (digits: 300).

Every candidate is trained on the other rows with a few seeds; those that can differ inside a program are one
program. The rule: of the candidates within the density limit, those whose validation accuracy (mean of
averaging and median model, over the seeds) is within half a standard error of the best,
:math:`\\tfrac12\\sqrt{p(1-p)/n}` for n rows; of these the one with the lowest validation NLL (mean of both).
If no candidate is sparse enough, the sparsest. The test rows are not looked at. NLL and calibration are those
of predictors that were corrected (``inference.calibration``) by what the same rows chose, all seeds
together.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sparsebnn import data as datasets
from sparsebnn.app.provenance import rounded
from sparsebnn.checks import invalid
from sparsebnn.likelihoods import Categorical
from sparsebnn.training import Run, train
from studies.frontier import plan, pruned, stored
from studies.frontier.plan import AVERAGES, Candidate, Lines, Program, cell_of
from studies.runner import Study
from studies.tables import evaluation
from studies.tables.lbbnn_schedule import split
from studies.tables.paper import Cell

__all__ = ["run", "table"]

_ERRORS = ("accuracy", "nll", "ece")
# The validation rows choose how both predictors are corrected.
_FITTED = dict.fromkeys(evaluation.MODELS)


def run(study: Study, dataset: str, architecture: str, method: str) -> None:
    """Train the candidates of a cell that have no rows yet, measure them on the validation rows, append them.

    Candidates that differ only in what can vary inside a program share one (``--programs`` selects some).
    """
    given = study.given
    place = {"stage": "choose", "dataset": dataset, "architecture": architecture, "method": method}
    base = cell_of(architecture, "lrt" if method == "pruned" else method, dataset, given.quick, given.epochs)
    programs = plan.programs_of(architecture, method, dataset, given.quick)
    wanted = sorted(set(given.programs or range(len(programs))))
    if wanted[0] < 0 or wanted[-1] >= len(programs):
        expected = f"programs of {dataset}-{architecture}-{method}, from 0 to {len(programs) - 1}"
        raise invalid("--programs", "the command", expected, " ".join(map(str, given.programs)))
    settings = stored.plain(
        {
            **base.record(),
            "seeds_each": given.seeds,
            "seed": given.seed,
            "draws": given.choose_draws,
            "held_out": stored.held_out_rows(dataset),
        }
    )
    old = stored.rows_of(study.folder, *place.values())
    done = {row["program"] for row in old if row["settings"] == settings}
    name = stored.stem(*place.values())
    if set(wanted) <= done or (not old and (study.folder / f"{name}.json").exists()):
        print(f"{name}: already there", flush=True)
        return
    data = datasets.load(dataset, root=given.data)
    for i in wanted:
        if i in done:
            continue
        setup = _Setup.of(given, data, dataset, base, programs[i])
        train_program = _pruned_program if method == "pruned" else _program
        rows, runs = train_program(given, setup, programs[i], f"{name} [{i + 1}/{len(programs)}]")
        seconds = sum(one.train_seconds for one in runs) / len(rows)
        made = {**place, "program": i, "settings": settings, "train_seconds": seconds, "mode": runs[0].mode}
        study.append([rounded({**made, **row}) for row in rows], runs[0].batches.x.device)
    content = stored.read(study.folder.parent, *place.values())
    assert content is not None
    print(table(content["rows"], content["chosen"]), flush=True)


_Found = tuple[list[dict[str, Any]], list[Run]]


@dataclasses.dataclass(frozen=True)
class _Setup:
    """What a program is trained on and measured on; ``each`` has a candidate for every replicate."""

    each: tuple[Candidate, ...]
    target: float
    made: Cell
    rows: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]

    @classmethod
    def of(
        cls, given: argparse.Namespace, data: datasets.Dataset, dataset: str, base: Cell, program: Program
    ) -> _Setup:
        (x, y), (x_val, y_val) = split(data, stored.held_out_rows(dataset))
        each = tuple(candidate for candidate in program.candidates for _ in range(given.seeds))
        target = plan.target_of(base.architecture, dataset)
        made = plan.with_candidate(base, program.candidates[0], target)
        shown = [evaluation.inputs(part, made, data.image_shape) for part in (x, x_val)]
        return cls(each, target, made, (shown[0], y), (shown[1], y_val))

    def held_out_on(self, run: Run) -> tuple[Tensor, Tensor]:
        """The validation rows, on the device of a run."""
        device = run.batches.x.device
        return self.held_out[0].to(device), self.held_out[1].to(device)


def _program(given: argparse.Namespace, setup: _Setup, program: Program, label: str) -> _Found:
    made = setup.made
    before, *cut = plan.watchers(program.cut, setup.target)
    trained = train(
        made.network(),
        setup.rows,
        likelihood=Categorical(made.sizes[-1]),
        settings=made.settings,
        replicates=len(setup.each),
        seed=given.seed,
        per_replicate={
            "temperature": [candidate.temperature for candidate in setup.each],
            "learning_rate": [candidate.rate for candidate in setup.each],
            "learning_rates.inclusion_logit": [candidate.logit_rate for candidate in setup.each],
        },
        callbacks=[before, *cut, Lines(label, given.quiet)],
        **plan.train_options(given),
    )
    images, labels = setup.held_out_on(trained)
    gone = plan.gone(trained)
    rows: list[dict[str, Any]] = []
    for c, candidate in enumerate(program.candidates):
        own = [k for k in range(c * given.seeds, (c + 1) * given.seeds) if k not in gone]
        if not own:
            continue
        said = [plan.outcomes(trained, before, k, images, made, given.choose_draws) for k in own]
        corrections = plan.fitted(said, labels)
        found = [plan.measured(one, labels, corrections) for one in said]
        seeds = [trained.seeds[k] for k in own]
        rows += [_row(candidate, state, seeds, found) for state in AVERAGES]
    return rows, [trained]


def _pruned_program(given: argparse.Namespace, setup: _Setup, program: Program, label: str) -> _Found:
    """The same for magnitude pruning, at the cell's density."""
    made, rates = setup.made, [candidate.rate for candidate in setup.each]
    seeds = range(given.seed, given.seed + len(rates))
    dense, cut = pruned.trained(given, setup.rows, made, rates, seeds, [setup.target], label)
    images, labels = setup.held_out_on(cut)
    gone = plan.gone(dense) | plan.gone(cut)
    rows = []
    for c, candidate in enumerate(program.candidates):
        own = [k for k in range(c * given.seeds, (c + 1) * given.seeds) if k not in gone]
        found = [evaluation.evaluate(cut.networks[k], images, labels, made, 1, 0, _FITTED) for k in own]
        rows += [_row(candidate, "refitted", [dense.seeds[k] for k in own], found)] if found else []
    return rows, [dense, cut]


def _row(
    candidate: Candidate, state: str, seeds: list[int], found: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A candidate that averages over one of the two posteriors: means over its seeds, then each seed."""
    each = [plan.of_state(one, state) for one in found]
    names = [n for n in each[0] if n != "density_per_layer"]
    row = {**dataclasses.asdict(candidate), "average_of": state, "seeds": seeds}
    row |= {name: statistics.fmean(one[name] for one in each) for name in names}
    wanted = [f"{error}_{model}" for error in _ERRORS for model in evaluation.MODELS]
    row["replicates"] = [{name: one[name] for name in ("density", *wanted)} for one in each]
    return row


_HEAD = (
    f"{'temperature':>11} {'rate':>6} {'logit rate':>10} {'refit':>5} {'cut':>7} {'heat':>4} {'shift':>5} "
    f"{'averages':>8}   "
    f"{'averaging':>9} {'NLL':>6} {'ECE':>6}   {'median':>6} {'NLL':>6} {'ECE':>6}   {'density':>7}"
)


def table(rows: Sequence[dict[str, Any]], chosen: dict[str, Any]) -> str:
    """The candidates as text; the chosen one is marked."""
    lines = [_HEAD]
    for row in rows:
        what = f"{row['temperature']:>11g} {row['rate']:>6g} {row['logit_rate']:>10g} {row['refit']:>5g}"
        what += f" {row['cut']:>7} {row['heat']:>4g} {row.get('shift', 0):>5} {row['average_of']:>8}"
        models = [
            f"{100 * row[f'accuracy_{m}']:>{w}.2f} {row[f'nll_{m}']:>6.4f} {row[f'ece_{m}']:>6.4f}"
            for m, w in (("average", 9), ("median", 6))
        ]
        mark = "  <- chosen" if all(row[key] == chosen[key] for key in chosen) else ""
        lines.append("   ".join([what, *models, f"{row['density']:>7.4f}"]) + mark)
    return "\n".join(lines)
