"""Result files of a table's cells: one JSON per cell, written whole, split by replicates, merged again.

A cell's file is ``results/<study>/<stem>.json``. A run of some of its replicates leaves a part,
``<stem>.0-4.json``; when the parts hold every replicate of the cell they are merged and removed. Two runs
belong to the same cell when their ``settings`` are equal, letter for letter; a file of other settings is
never replaced without being asked to. A replicate that stopped has no row: ``stopped_seeds`` names it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsebnn.checks import InvalidInput, invalid
from studies.paper import Cell
from studies.provenance import check_same, write_json

__all__ = [
    "Job",
    "absorb",
    "check",
    "check_same",
    "finished",
    "forget",
    "held",
    "merged",
    "others",
    "read_results",
    "seed_label",
    "seeds_in",
    "seeds_of",
    "set_aside",
    "stored",
    "without",
]

Result = dict[str, Any]
_SECONDS = ("train_seconds", "compile_seconds", "evaluation_seconds")


@dataclass(frozen=True)
class Job:
    """A cell to be run: its data set, its settings, and how it is evaluated."""

    stem: str
    dataset: str
    cell: Cell
    draws: int = 100

    def settings(self) -> dict[str, Any]:
        """What makes two runs the same cell."""
        return {**self.cell.record(), "draws": self.draws}

    def key(self) -> str:
        """A short name for these settings."""
        text = json.dumps([self.dataset, self.cell.architecture, self.settings()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def seeds_of(text: str, first: int = 0) -> tuple[list[int], bool]:
    """Seeds meant by ``--replicates``, and whether they are a part: ``10`` is a whole cell, ``0-4`` a part.

    >>> seeds_of("3"), seeds_of("2-4"), seeds_of("0,7")
    (([0, 1, 2], False), ([2, 3, 4], True), ([0, 7], True))
    """
    expected, owner = "a count (10), a range (0-4) or seeds (0,3,7)", "the command"
    try:
        if text.isdecimal():
            if int(text) < 1:
                raise ValueError
            return list(range(first, first + int(text))), False
        seeds = _listed(text, ",")
    except ValueError:
        raise invalid("--replicates", owner, expected, repr(text)) from None
    if not seeds or len(set(seeds)) != len(seeds):
        raise invalid("--replicates", owner, expected, repr(text))
    return sorted(seeds), True


def _listed(text: str, between: str) -> list[int]:
    seeds: list[int] = []
    for piece in text.split(between):
        low, _, high = piece.partition("-")
        seeds += range(int(low), int(high or low) + 1)
    return seeds


def seeds_in(label: str) -> list[int]:
    """Seeds meant by a :func:`seed_label`.

    >>> seeds_in("0-2_5")
    [0, 1, 2, 5]
    """
    return _listed(label, "_")


def seed_label(seeds: Sequence[int]) -> str:
    """Seeds as a piece of a file name.

    >>> seed_label([0, 1, 2, 5])
    '0-2_5'
    """
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return "_".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _read(path: Path) -> Result | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None  # merged and removed a moment ago
    except ValueError as error:
        raise InvalidInput(
            f"{path} is not a result file ({error}). Remove it and run its cell again."
        ) from error


def stored(folder: Path, stem: str) -> list[tuple[Path, Result]]:
    """The cell's file and its parts, as far as they are there."""
    paths = [folder / f"{stem}.json", *sorted(folder.glob(f"{stem}.*.json"))]
    return [(path, content) for path in paths if (content := _read(path)) is not None]


def finished(folder: Path, job: Job) -> list[tuple[Path, Result]]:
    """Those of the stored files that were made with the job's settings."""
    wanted = json.loads(json.dumps(job.settings()))
    return [
        (path, content)
        for path, content in stored(folder, job.stem)
        if content["settings"] == wanted and content["dataset"] == job.dataset
    ]


def others(folder: Path, job: Job) -> list[tuple[Path, Result]]:
    """Those that were made with other settings: what a run of the job would mix with or replace."""
    mine = {path for path, _ in finished(folder, job)}
    return [(path, content) for path, content in stored(folder, job.stem) if path not in mine]


def check(folder: Path, job: Job) -> None:
    """Complain of the cell's files that were made with other settings."""
    for path, content in others(folder, job):
        there = {"dataset": content["dataset"], **content["settings"]}
        check_same(path, there, {"dataset": job.dataset, **job.settings()})


def _gone(content: Result) -> dict[int, str]:
    """Seeds that a run was asked for and has no row of, and why they stopped."""
    return dict(zip(content.get("stopped_seeds", []), content["stopped"]))


def held(folder: Path, job: Job) -> tuple[set[int], dict[int, str]]:
    """Seeds whose rows are there, and those that have none because they stopped."""
    files = [content for _, content in finished(folder, job)]
    rows = {row["seed"] for content in files for row in content["replicates"]}
    return rows, {s: why for content in files for s, why in _gone(content).items() if s not in rows}


def set_aside(path: Path, folder: Path) -> None:
    """Move a result file out of the way of the one that will replace it, under a number of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{path.stem}.{len(list(folder.glob(f'{path.stem}.*.json')))}.json"
    shutil.move(path, kept)
    print(f"{path.name}: what it had is kept as {kept}", flush=True)


def without(content: Result, seeds: Sequence[int]) -> Result | None:
    """A result less some of its seeds; None when nothing is left.

    Its seconds and its history stay those of the run that made it, with all its seeds.
    """
    gone = _gone(content)
    if not set(seeds) & {*gone, *(row["seed"] for row in content["replicates"])}:
        return content
    left = {**content, "replicates": [row for row in content["replicates"] if row["seed"] not in seeds]}
    gone = {seed: why for seed, why in gone.items() if seed not in seeds}
    left["stopped_seeds"], left["stopped"] = list(gone), list(gone.values())
    if "parts" in content:
        parts = [{**part, "seeds": [s for s in part["seeds"] if s not in seeds]} for part in content["parts"]]
        left["parts"] = [part for part in parts if part["seeds"]]
    return left if left["replicates"] or gone else None


def forget(folder: Path, runs: Path, job: Job, seeds: Sequence[int]) -> None:
    """Drop what is finished or begun of these seeds; others stay.

    What the files had is kept under ``runs``: a run that is forced and then fails costs nothing.
    """
    for path, content in finished(folder, job):
        left = without(content, seeds)
        if left is not content:
            set_aside(path, runs / "replaced")
            if left is not None:
                write_json(path, left)
    for begun in runs.glob(f"{job.stem}.*.{job.key()}"):
        if set(seeds_in(begun.name.split(".")[-2])) <= set(seeds):
            shutil.rmtree(begun)


def absorb(folder: Path, job: Job, seeds: Sequence[int]) -> Path | None:
    """Merge the cell's files when together they hold all ``seeds``; parts that were merged are removed.

    Parts beside the cell's own file are added to it, whatever seeds they are. A seed that stopped is held:
    there is no more to wait for.
    """
    whole, files = folder / f"{job.stem}.json", finished(folder, job)
    complete = set(seeds) <= set().union(*held(folder, job))
    if not complete and whole not in {path for path, _ in files}:
        return None
    if [path for path, _ in files] != [whole]:
        write_json(whole, merged([content for _, content in files]))
        for path, _ in files:
            if path != whole:
                path.unlink(missing_ok=True)
    return whole if complete else None


def merged(parts: Sequence[Result]) -> Result:
    """Runs of the same cell as one: replicates side by side in the order of their seeds, seconds summed."""
    if len(parts) == 1:
        return parts[0]
    rows = {row["seed"]: row for part in reversed(parts) for row in part["replicates"]}
    content = dict(parts[0])
    for name in ("device", "commit", "command"):
        content[name] = " + ".join(dict.fromkeys(str(part[name]) for part in parts))
    for name in _SECONDS:
        content[name] = round(sum(part[name] for part in parts), 3)
    content["parts"] = [piece for part in parts for piece in part.get("parts") or [_origin(part)]]
    content["history"] = _average_history(parts)
    # One that stopped and was run again with success has its row.
    gone = {s: why for part in parts for s, why in _gone(part).items() if s not in rows}
    nameless = [why for part in parts for why in part["stopped"][len(_gone(part)) :]]
    content["stopped_seeds"], content["stopped"] = list(gone), [*gone.values(), *nameless]
    content["replicates"] = [rows[seed] for seed in sorted(rows)]
    return content


def _origin(part: Result) -> Result:
    names = ("device", "versions", "commit", "command", *_SECONDS)
    return {"seeds": [row["seed"] for row in part["replicates"]], **{name: part[name] for name in names}}


def _average_history(parts: Sequence[Result]) -> list[Result]:
    """Epoch by epoch, the mean over all replicates of all parts; accuracies over the parts that have them."""
    averaged = []
    for entries in zip(*(part["history"] for part in parts)):
        entry: Result = {"epoch": entries[0]["epoch"]}
        for name in dict.fromkeys(name for one in entries for name in one if name != "epoch"):
            pairs = [
                (one[name], len(part["replicates"]))
                for one, part in zip(entries, parts)
                if one.get(name) is not None
            ]
            if sum(weight for _, weight in pairs):
                entry[name] = sum(value * weight for value, weight in pairs) / sum(w for _, w in pairs)
        averaged.append(entry)
    return averaged


def read_results(folder: Path, stems: Sequence[str]) -> dict[str, Result]:
    """The whole cells that are there, by stem; one whose every replicate stopped has nothing to show."""
    found = {stem: _read(folder / f"{stem}.json") for stem in stems}
    return {stem: content for stem, content in found.items() if content and content.get("replicates", True)}
