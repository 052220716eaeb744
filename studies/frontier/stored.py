"""The frontier's stored results: ``results/frontier/rows.jsonl``, and older files of one cell each."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsebnn.app.provenance import rounded
from sparsebnn.checks import InvalidInput
from studies.frontier.plan import Candidate, most_density
from studies.runner import read_rows
from studies.tables.cells import Result, read_cells

__all__ = ["choose", "chosen", "held_out_rows", "plain", "read", "rows_of", "stem"]

_HELD_OUT = {"digits": 300}
_IMAGES_HELD_OUT = 10_000
_PLACE = ("stage", "dataset", "architecture", "method")


def held_out_rows(dataset: str) -> int:
    """How many of the last training rows are validation rows."""
    return _HELD_OUT.get(dataset, _IMAGES_HELD_OUT)


def stem(stage: str, dataset: str, architecture: str, method: str) -> str:
    """The name of a cell's stage."""
    return "-".join([*([] if stage == "final" else [stage]), dataset, architecture, method])


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as a result file holds them."""
    return rounded(json.loads(json.dumps(settings)))


def rows_of(folder: Path, *place: str) -> list[dict[str, Any]]:
    """The rows of one stage, data set, architecture and method."""
    rows = read_rows(folder / "rows.jsonl")
    return [row for row in rows if tuple(row.get(name) for name in _PLACE) == place]


def read(results: Path, stage: str, dataset: str, architecture: str, method: str) -> Result | None:
    """What is stored of a stage; None where there is nothing.

    A final cell has ``replicates``; a choice has ``rows``, one per candidate, and the one ``chosen``; a curve
    has ``rows`` with a ``target`` and its ``replicates``. Where rows have several settings, the latest count.
    """
    folder, place = results / "frontier", (stage, dataset, architecture, method)
    if stage == "final":
        return read_cells(folder, [stem(*place)]).get(stem(*place))
    rows = rows_of(folder, *place)
    rows = [row for row in rows if row["settings"] == rows[-1]["settings"]]
    if rows and stage == "choose":
        return {"settings": rows[0]["settings"], "rows": rows, "chosen": _winner(rows, dataset, architecture)}
    if rows:
        targets = sorted({row["target"] for row in rows})
        blocks = [{"target": t, "replicates": [row for row in rows if row["target"] == t]} for t in targets]
        return {"settings": rows[0]["settings"], "chosen_by": rows[0]["chosen_by"], "rows": blocks}
    path = folder / f"{stem(*place)}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def choose(rows: Sequence[dict[str, Any]], most: float, held_out: int) -> int:
    """The index of the candidate that the rule selects (see :mod:`~studies.frontier.choose`).

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


def _winner(rows: Sequence[dict[str, Any]], dataset: str, architecture: str) -> dict[str, Any]:
    row = rows[choose(rows, most_density(architecture, dataset), held_out_rows(dataset))]
    return {field.name: row.get(field.name, field.default) for field in dataclasses.fields(Candidate)}


def chosen(
    out: Path, dataset: str, architecture: str, method: str, chosen_on: str = "kmnist"
) -> tuple[Candidate, str]:
    """What was chosen for a cell, and the name of that choice.

    The cell's own choice comes first, then those of ``chosen_on`` with the same method, then with LRT.
    """
    methods = ("pruned",) if method == "pruned" else (method, "lrt")
    for own in methods:
        for where in (dataset, chosen_on):
            for folder in (out, Path(".")):
                found = read(folder / "results", "choose", where, architecture, own)
                if found is not None:
                    return Candidate(**found["chosen"]), stem("choose", where, architecture, own)
    raise InvalidInput(
        f"No settings have been chosen for {dataset}-{architecture}-{method}. Run it with --stage choose "
        "first, or name a data set with a choice by --chosen-on."
    )
