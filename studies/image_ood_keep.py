"""What a results file of the study of foreign images already has: rows, each with where it comes from.

A row is known by the data set trained on and the method. A new row replaces the old one of the same name and
no other. ``provenance`` of the file is that of the last run; rows of runs before it are named in ``earlier``,
each in one entry: all ``methods`` of an entry on all its ``train_on``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studies.cells import check_same

__all__ = ["Kept", "key"]

Row = dict[str, Any]
_Key = tuple[str, str]
# What a later run may add to; all else must be the same.
_MAY_DIFFER = ("methods", "train_on")


def key(row: Mapping[str, Any]) -> _Key:
    """What a row is known by."""
    return row["train_on"], row["method"]


@dataclass(frozen=True)
class Kept:
    """Rows of a file, and the provenance of each."""

    rows: list[Row] = field(default_factory=list)
    origins: dict[_Key, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, asked: Mapping[str, Any], force: bool = False) -> Kept:
        """What the file has, if it is of the study asked for; another study's is an error, or forced away."""
        if not path.exists():
            return cls()
        there = json.loads(path.read_text(encoding="utf-8"))
        specs = [{n: v for n, v in spec.items() if n not in _MAY_DIFFER} for spec in (there["spec"], asked)]
        if force and specs[0] != json.loads(json.dumps(specs[1])):
            return cls()
        check_same(path, *specs)
        origins = {key(row): there["provenance"] for row in there["rows"]}
        for entry in there.get("earlier", []):
            homes = entry.get("train_on", there["spec"]["train_on"])
            named = {(home, method) for home in homes for method in entry["methods"]}
            origins |= {one: entry["provenance"] for one in named & set(origins)}
        return cls(there["rows"], origins)

    def with_new(self, rows: Sequence[Row]) -> tuple[list[Row], list[dict[str, Any]]]:
        """Old rows that no new one replaces, then the new ones; and ``earlier``, of the old ones."""
        new = {key(row) for row in rows}
        old = [row for row in self.rows if key(row) not in new]
        return [*old, *rows], self._earlier(map(key, old))

    def _earlier(self, keys: Iterable[_Key]) -> list[dict[str, Any]]:
        by_run: dict[str, dict[str, list[str]]] = {}  # provenance: method: data sets
        for home, method in keys:
            homes_of = by_run.setdefault(json.dumps(self.origins[home, method]), {})
            homes_of.setdefault(method, []).append(home)
        entries = []
        for run, homes_of in by_run.items():
            for homes in dict.fromkeys(tuple(homes) for homes in homes_of.values()):
                methods = sorted(method for method, own in homes_of.items() if tuple(own) == homes)
                entries.append({"methods": methods, "train_on": list(homes), "provenance": json.loads(run)})
        return entries
