"""New rows next to the columns of training: which are missing, which name the rows, which levels are new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsebnn.checks import check_choice, invalid
from sparsebnn.estimators.columns import Column
from sparsebnn.io.cells import labels

if TYPE_CHECKING:
    import polars

__all__ = ["column_kinds", "identifiers", "matched", "new_levels", "strange_levels"]

_MOST_WORDS = 5  # named in a note
_NEGLIGIBLE = 0.01  # of the total gain: a column with a smaller share may be missing
_PREDICT = "sparsebnn predict"


def column_kinds(
    kinds: Mapping[str, Sequence[str]], target: str, names: Sequence[str]
) -> dict[str, str] | None:
    """The options ``--drop``, ``--id``, ``--numeric`` and ``--categorical`` as a kind per column."""
    options = {"drop": "drop", "id": "id", "number": "numeric", "category": "categorical"}
    found: dict[str, str] = {}
    for kind, columns in kinds.items():
        for name in columns:
            if name == target:
                advice = "Leave it out, or choose another --target."
                raise invalid(
                    options[kind], "sparsebnn fit", "a column besides the target", repr(name), advice
                )
            check_choice(name, names, options[kind], "sparsebnn fit")
            if found.setdefault(name, kind) != kind:
                first = f"--{options[found[name]]} {name}"
                raise invalid(options[kind], "sparsebnn fit", f"another column than {first}", repr(name))
    return found or None


def matched(model: Any, table: polars.DataFrame) -> tuple[polars.DataFrame, list[str]]:
    """The columns of training, in their order, and notes.

    Other columns are ignored. A missing column that training left out, or that is not in use and without
    value for the predictions (``used_``, ``feature_importances_``), is filled with missing values.
    """
    import polars

    columns = model._encoder.columns
    wanted = [str(name) for name in getattr(model, "feature_names_in_", table.columns)]
    lost = [name not in table.columns for name in wanted]
    needs = model.used_ | (model.feature_importances_ > _NEGLIGIBLE)
    needed = [name for name, gone, need in zip(wanted, lost, needs) if gone and need]
    if needed:
        got = f"no column {', '.join(map(repr, needed[:_MOST_WORDS]))}"
        expected = "a table with the columns that predictions need"
        raise invalid("data", _PREDICT, expected, got, "Check the header line.")
    given = [name for name, gone in zip(wanted, lost) if not gone]
    if not given:
        got = f"none of {', '.join(map(repr, wanted[:_MOST_WORDS]))}"
        raise invalid("data", _PREDICT, "a table with columns of training", got, "Check the header line.")
    read = [n for n, gone, c in zip(wanted, lost, columns) if gone and c.kind != "dropped"]
    notes = []
    if read:
        listed = ", ".join(map(repr, read[:_MOST_WORDS])) + (", …" if len(read) > _MOST_WORDS else "")
        notes.append(f"missing columns with little value count as the average: {listed}")
    filled = [polars.lit(None).alias(name) if gone else polars.col(name) for name, gone in zip(wanted, lost)]
    return table.select(filled), notes


def identifiers(model: Any, table: polars.DataFrame, asked: Sequence[str]) -> dict[str, list[Any]]:
    """Columns that name the rows: those asked for, or those that training recognized."""
    for name in asked:
        check_choice(name, table.columns, "id", _PREDICT)
    own = [c.name for c in model._encoder.columns if c.identifier and c.kind == "dropped"]
    names = list(asked) or [name for name in own if name in table.columns]
    return {name: table[name].to_list() for name in names}


def strange_levels(column: Column, values: np.ndarray) -> Counter[str]:
    """Levels that training did not have, with their counts; empty if rare levels were left out.

    >>> from sparsebnn.estimators.columns import learn
    >>> column = learn("w", np.array(["Yes", "No", "No"], dtype=object), np.ones(3))
    >>> strange_levels(column, np.array(["yes", "No", "yes"], dtype=object))
    Counter({'yes': 2})
    """
    if column.kind != "category" or column.merged:
        return Counter()
    known = {*column.levels, column.reference}
    return Counter(level for level in labels(values) if level is not None and level not in known)


def new_levels(columns: Sequence[Column], found: Sequence[Counter[str]], rows: int) -> list[str]:
    """Notes on categories that did not occur in training; point out those that differ only in case."""
    notes = []
    for column, levels in zip(columns, found):
        if levels:
            listed = ", ".join(repr(word) for word, _ in levels.most_common(_MOST_WORDS))
            listed += ", …" if len(levels) > _MOST_WORDS else ""
            known = {level.casefold(): level for level in (*column.levels, column.reference) if level}
            slips = [known[word.casefold()] for word in levels if word.casefold() in known]
            meant = f"; {slips[0]!r} did: check upper and lower case" if slips else ""
            new = f"column {column.name!r} has values that did not occur in training"
            notes.append(f"{new}: {listed} (in {levels.total()} of {rows} rows){meant}")
    return notes
