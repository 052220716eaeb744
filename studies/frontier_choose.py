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
import contextlib
import dataclasses
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from sparsebnn import data as datasets
from sparsebnn.checks import InvalidInput
from sparsebnn.likelihoods import Categorical
from sparsebnn.training import Run, train
from studies import evaluation, frontier_plan, frontier_pruned, provenance
from studies.frontier_plan import AVERAGES, Candidate, Lines, Program, most_density
from studies.frontier_tried import (
    base_of,
    held_out_rows,
    interrupted,
    part_file,
    part_of,
    program_of,
    stem,
    to_do,
    together,
)
from studies.lbbnn_schedule import split
from studies.paper import Cell

__all__ = ["choose", "chosen", "run", "table"]

_ERRORS = ("accuracy", "nll", "ece")
# The validation rows choose how both predictors are corrected.
_FITTED = dict.fromkeys(evaluation.MODELS)


def run(
    given: argparse.Namespace, data: datasets.Dataset, dataset: str, architecture: str, method: str
) -> Path:
    """Train what is tried for a cell, measure it on the validation rows, take one by the rule; its file.

    A program's rows are kept as soon as they are there, and an interrupted run goes on after them. With
    ``--programs`` the choice is among the programs tried so far, which the file names in ``parts``; a later
    run of others adds to it.
    """
    began = time.perf_counter()
    base = base_of(given, dataset, architecture, method)
    programs = frontier_plan.programs_of(architecture, method, dataset, given.quick)
    todo, old = to_do(given, dataset, architecture, method)
    rows: dict[int, list[dict[str, Any]]] = {}
    parts: dict[int, dict[str, Any]] = {}
    if old is not None:
        parts = {part["program"]: part for part in old["parts"] if part["program"] not in todo}
        rows = {i: [r for r in old["rows"] if program_of(r, programs) == i] for i in parts}
    for number, i in enumerate(todo):
        label = f"choose {dataset}-{architecture}-{method} [{number + 1}/{len(todo)}]"
        of = part_of(given, dataset, architecture, method, programs[i])
        part = _part(given, data, base, programs[i], i, of, label)
        rows[i], parts[i] = part["rows"], part["trained"]
    tried = sorted(parts)
    found = [row for i in tried for row in rows[i]]
    most, held = most_density(architecture, dataset), held_out_rows(dataset)
    winner = choose(found, most, held)
    print(table(found, winner))
    made = together([parts[i] for i in tried])
    partly = tried if len(tried) < len(programs) else None
    seconds = time.perf_counter() - began + (0.0 if old is None else old["seconds"])
    content = {
        **frontier_plan.record(given, "choose", dataset, architecture, method, made, partly),
        "settings": base.record(),
        "held_out": held,
        "most_density": most,
        "seeds_each": given.seeds,
        "seed": given.seed,
        "draws": given.choose_draws,
        "chosen": {f.name: found[winner].get(f.name, f.default) for f in dataclasses.fields(Candidate)},
        "seconds": round(seconds, 1),
        "rows": found,
    }
    written = write(given, content)
    for i in todo:
        part_file(given, i, dataset, architecture, method).unlink()
    with contextlib.suppress(OSError):  # another cell's parts are still there
        (written.parent / "parts").rmdir()
    return written


def _part(
    given: argparse.Namespace,
    data: datasets.Dataset,
    base: Cell,
    program: Program,
    i: int,
    of: dict[str, Any],
    label: str,
) -> dict[str, Any]:
    """One program's rows: as an interrupted run of the same left them, or trained now and kept."""
    kept = interrupted(given, i, of)
    if kept is not None:
        print(f"{label}: already there", flush=True)
        return kept
    train_program = _pruned_program if of["method"] == "pruned" else _program
    setup = _Setup.of(given, data, of["dataset"], base, program)
    rows, runs = train_program(given, setup, program, label)
    trained = {"program": i, "commit": given.commit[0], **frontier_plan.spent(runs)}
    part = {"of": of, "rows": rows, "trained": trained}
    provenance.write_json(part_file(given, i, of["dataset"], of["architecture"], of["method"]), part)
    return part


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
        (x, y), (x_val, y_val) = split(data, held_out_rows(dataset))
        each = tuple(candidate for candidate in program.candidates for _ in range(given.seeds))
        target = frontier_plan.target_of(base.architecture, dataset)
        made = frontier_plan.with_candidate(base, program.candidates[0], target)
        shown = [evaluation.inputs(part, made, data.image_shape) for part in (x, x_val)]
        return cls(each, target, made, (shown[0], y), (shown[1], y_val))

    def held_out_on(self, run: Run) -> tuple[Tensor, Tensor]:
        """The validation rows, on the device of a run."""
        device = run.batches.x.device
        return self.held_out[0].to(device), self.held_out[1].to(device)


def _program(given: argparse.Namespace, setup: _Setup, program: Program, label: str) -> _Found:
    made = setup.made
    before, *cut = frontier_plan.watchers(program.cut, setup.target)
    turn = frontier_plan.turn(given)
    with turn:
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
            callbacks=[before, *cut, turn, Lines(label, given.quiet)],
            **frontier_plan.train_options(given),
        )
        images, labels = setup.held_out_on(trained)
        gone = frontier_plan.gone(trained)
        rows: list[dict[str, Any]] = []
        for c, candidate in enumerate(program.candidates):
            own = [k for k in range(c * given.seeds, (c + 1) * given.seeds) if k not in gone]
            if not own:
                continue
            said = [frontier_plan.outcomes(trained, before, k, images, made, given.choose_draws) for k in own]
            corrections = frontier_plan.fitted(said, labels)
            found = [frontier_plan.measured(one, labels, corrections) for one in said]
            seeds = [trained.seeds[k] for k in own]
            rows += [_row(candidate, state, seeds, found) for state in AVERAGES]
        return rows, [trained]


def _pruned_program(given: argparse.Namespace, setup: _Setup, program: Program, label: str) -> _Found:
    """The same for magnitude pruning, at the cell's density."""
    made, rates = setup.made, [candidate.rate for candidate in setup.each]
    seeds = range(given.seed, given.seed + len(rates))
    dense, cut = frontier_pruned.trained(given, setup.rows, made, rates, seeds, [setup.target], label)
    images, labels = setup.held_out_on(cut)
    gone = frontier_plan.gone(dense) | frontier_plan.gone(cut)
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
    each = [frontier_plan.of_state(one, state) for one in found]
    names = [n for n in each[0] if n != "density_per_layer"]
    row = {**dataclasses.asdict(candidate), "average_of": state, "seeds": seeds}
    row |= {name: statistics.fmean(one[name] for one in each) for name in names}
    wanted = [f"{error}_{model}" for error in _ERRORS for model in evaluation.MODELS]
    row["replicates"] = [{name: one[name] for name in ("density", *wanted)} for one in each]
    return row


def choose(rows: Sequence[dict[str, Any]], most: float, held_out: int) -> int:
    """The rule (see above): which row.

    >>> def row(density, accuracy, nll):
    ...     both = {"accuracy_average": accuracy, "accuracy_median": accuracy}
    ...     return {"density": density, "nll_average": nll, "nll_median": nll, **both}
    >>> choose([row(0.3, 0.99, 0.1), row(0.03, 0.97, 0.1), row(0.03, 0.9705, 0.2)], 0.032, 10_000)
    1
    """
    sparse = [i for i, row in enumerate(rows) if row["density"] <= most]
    if not sparse:
        return min(range(len(rows)), key=lambda i: rows[i]["density"])

    def accuracy(i: int) -> float:
        return 0.5 * (rows[i]["accuracy_average"] + rows[i]["accuracy_median"])

    best = max(map(accuracy, sparse))
    error = 0.5 * math.sqrt(best * (1.0 - best) / held_out)
    near = [i for i in sparse if accuracy(i) >= best - error]
    return min(near, key=lambda i: rows[i]["nll_average"] + rows[i]["nll_median"])


_HEAD = (
    f"{'temperature':>11} {'rate':>6} {'logit rate':>10} {'refit':>5} {'cut':>7} {'heat':>4} {'shift':>5} "
    f"{'averages':>8}   "
    f"{'averaging':>9} {'NLL':>6} {'ECE':>6}   {'median':>6} {'NLL':>6} {'ECE':>6}   {'density':>7}"
)


def table(rows: Sequence[dict[str, Any]], winner: int | None = None) -> str:
    """The candidates as text; the winner is marked."""
    lines = [_HEAD]
    for i, row in enumerate(rows):
        what = f"{row['temperature']:>11g} {row['rate']:>6g} {row['logit_rate']:>10g} {row['refit']:>5g}"
        what += f" {row['cut']:>7} {row['heat']:>4g} {row.get('shift', 0):>5} {row['average_of']:>8}"
        models = [
            f"{100 * row[f'accuracy_{m}']:>{w}.2f} {row[f'nll_{m}']:>6.4f} {row[f'ece_{m}']:>6.4f}"
            for m, w in (("average", 9), ("median", 6))
        ]
        mark = "  <- chosen" if i == winner else ""
        lines.append("   ".join([what, *models, f"{row['density']:>7.4f}"]) + mark)
    return "\n".join(lines)


def write(given: argparse.Namespace, content: dict[str, Any]) -> Path:
    """The file of a choice."""
    path = frontier_plan.file_of(given, stem(content["dataset"], content["architecture"], content["method"]))
    provenance.write_json(path, provenance.rounded(content))
    return path


def chosen(given: argparse.Namespace, dataset: str, architecture: str, method: str) -> tuple[Candidate, str]:
    """What was chosen for a cell, and on which data set.

    The cell's own choice comes first, then those of ``--chosen-on`` with the same method, then with LRT.
    """
    methods = ("pruned",) if method == "pruned" else (method, "lrt")
    places = [(d, m) for m in methods for d in (dataset, given.chosen_on)]
    for where, own in places:
        for folder in (Path(given.out), Path(".")):
            path = folder / "results" / "frontier" / f"{stem(where, architecture, own)}.json"
            if path.exists():
                content = json.loads(path.read_text(encoding="utf-8"))
                return Candidate(**content["chosen"]), path.stem
    raise InvalidInput(
        f"Nothing has been chosen yet for {dataset}-{architecture}-{method}. Run it with --stage choose "
        "first, or name with --chosen-on a data set whose choice is there."
    )
