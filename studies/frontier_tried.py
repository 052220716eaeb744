"""What a choice of the frontier has tried already: which programs its file holds, and what is left to do.

A choice is made program by program. Its file names in ``parts`` those that were tried; more of them are added
to it, and the choice is then among all. A program that is finished while others are not lies under
``results/frontier/parts``, by its own number in the cell's list.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsebnn.checks import InvalidInput, invalid
from studies import cells, frontier_plan, provenance
from studies.cells import Result
from studies.frontier_plan import Candidate, Program, cell_of, most_density
from studies.paper import Cell

__all__ = ["base_of", "check", "held_out_rows", "interrupted", "part_file", "part_of", "program_of", "stem"]
__all__ += ["to_do", "together"]

_HELD_OUT = {"digits": 300}
_IMAGES_HELD_OUT = 10_000
# Settings that every candidate brings its own of; those of the recipe do not matter.
_BY_CANDIDATE = ("temperature", "learning_rate", "learning_rates", "refit", "target_density")
# What tells candidates apart before they are measured.
_TRIED = ("temperature", "rate", "logit_rate", "refit", "cut", "heat", "shift")


def held_out_rows(dataset: str) -> int:
    """How many of the last training rows are validation rows."""
    return _HELD_OUT.get(dataset, _IMAGES_HELD_OUT)


def stem(dataset: str, architecture: str, method: str) -> str:
    return f"choose-{dataset}-{architecture}-{method}"


def base_of(given: argparse.Namespace, dataset: str, architecture: str, method: str) -> Cell:
    """The cell that candidates change."""
    return cell_of(architecture, "lrt" if method == "pruned" else method, dataset, given.quick, given.epochs)


def _asked(given: argparse.Namespace, dataset: str, architecture: str, method: str) -> dict[str, Any]:
    """What makes two choices the same, whatever programs they have tried."""
    return _same(
        base_of(given, dataset, architecture, method).record(),
        method,
        seeds_each=given.seeds,
        draws=given.choose_draws,
        seed=given.seed,
        held_out=held_out_rows(dataset),
        most_density=most_density(architecture, dataset),
    )


def _told_by(content: Result) -> dict[str, Any]:
    """The same, of a file."""
    first = min(seed for row in content["rows"] for seed in row["seeds"])
    how = {name: content[name] for name in ("seeds_each", "draws", "held_out", "most_density")}
    return _same(content["settings"], content["method"], seed=content.get("seed", first), **how)


def _same(record: dict[str, Any], method: str, draws: int, **how: Any) -> dict[str, Any]:
    how |= {} if method == "pruned" else {"draws": draws}  # of a pruned network nothing is drawn
    own = {name: value for name, value in record["settings"].items() if name not in _BY_CANDIDATE}
    return json.loads(json.dumps(provenance.rounded({**record, "settings": own, **how})))


def program_of(row: dict[str, Any], programs: Sequence[Program]) -> int | None:
    """Which program a row is of; None if it is of none."""
    told = {"shift": 0, **row}  # older rows do not name it

    def same(candidate: Candidate) -> bool:
        return all(told[name] == provenance.rounded(getattr(candidate, name)) for name in _TRIED)

    return next((i for i, program in enumerate(programs) if any(map(same, program.candidates))), None)


def to_do(
    given: argparse.Namespace, dataset: str, architecture: str, method: str
) -> tuple[list[int], Result | None]:
    """Programs that are asked for and not there yet, and the file to add them to.

    A file with other settings, with programs that are no longer tried, or that cannot be added to is an
    error; with ``--force`` what is asked for is run anew, and such a file is not added to.
    """
    programs = frontier_plan.programs_of(architecture, method, dataset, given.quick)
    wanted = sorted(set(given.programs or range(len(programs))))
    if wanted[0] < 0 or wanted[-1] >= len(programs):
        expected = f"programs of {dataset}-{architecture}-{method}, from 0 to {len(programs) - 1}"
        raise invalid("--programs", "the command", expected, " ".join(map(str, given.programs)))
    path = frontier_plan.file_of(given, stem(dataset, architecture, method))
    if not path.exists():
        return wanted, None
    content = json.loads(path.read_text(encoding="utf-8"))
    tried = {program_of(row, programs) for row in content["rows"]}
    try:
        cells.check_same(path, _told_by(content), _asked(given, dataset, architecture, method))
        missing = [i for i in wanted if i not in tried]
        # Before there was uniform_mix, predictors were corrected by less.
        open_to_more = "parts" in content and all("doubt_median" in row for row in content["rows"])
        if None in tried or ((missing or given.force) and not open_to_more):
            which = " ".join(str(i) for i in sorted(i for i in tried if i is not None)) or "none"
            found = f"one of programs {which}" + (" and of others" if None in tried else "")
            expected = f"a choice among programs {' '.join(map(str, wanted))}, or one that can be added to"
            advice = "" if None in tried else f"Ask for no more than --programs {which}, or give "
            advice = f"{advice or 'Give '}another --out, or --force to choose anew and replace the file."
            raise invalid(str(path), "the command", expected, found, advice)
    except InvalidInput:
        if not given.force:
            raise
        return wanted, None
    return (wanted if given.force else missing), content


def check(given: argparse.Namespace, dataset: str, architecture: str, method: str) -> list[int]:
    """Programs to be trained; complain first of files that would be replaced."""
    todo, _ = to_do(given, dataset, architecture, method)
    programs = frontier_plan.programs_of(architecture, method, dataset, given.quick)
    for i in todo:
        interrupted(given, i, part_of(given, dataset, architecture, method, programs[i]))
    return todo


def part_file(given: argparse.Namespace, i: int, dataset: str, architecture: str, method: str) -> Path:
    """Where program i of a cell is kept until the choice is written."""
    return frontier_plan.file_of(given, f"parts/{stem(dataset, architecture, method)}.{i}")


def part_of(
    given: argparse.Namespace, dataset: str, architecture: str, method: str, program: Program
) -> dict[str, Any]:
    """What a part is of."""
    place = {"dataset": dataset, "architecture": architecture, "method": method}
    of = {**place, "program": dataclasses.asdict(program), **_asked(given, dataset, architecture, method)}
    return json.loads(json.dumps(of))


def interrupted(given: argparse.Namespace, i: int, of: dict[str, Any]) -> dict[str, Any] | None:
    """What an interrupted run left of a program; of another one is an error."""
    path = part_file(given, i, of["dataset"], of["architecture"], of["method"])
    if given.force or not path.exists():
        return None
    kept = json.loads(path.read_text(encoding="utf-8"))
    cells.check_same(path, kept["of"], of)
    return kept


def together(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Programs as one: seconds summed, every device and commit named; and each of them in ``parts``."""
    names = {n: " + ".join(dict.fromkeys(str(p[n]) for p in parts)) for n in ("device", "mode")}
    commits = dict.fromkeys(str(part["commit"] or "unknown") for part in parts)
    seconds = {n: round(sum(part[n] for part in parts), 3) for n in ("train_seconds", "compile_seconds")}
    stopped = [entry for part in parts for entry in part["stopped"]]
    commit = None if list(commits) == ["unknown"] else " + ".join(commits)
    return {**names, "commit": commit, **seconds, "stopped": stopped, "parts": list(parts)}
