"""The most and the least certain held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsebnn.app.report import words
from sparsebnn.app.report.parts import Cell, Heading, Row, Section, Table, Text
from sparsebnn.app.report.record import Record

_VALUE_COLUMNS = 6


def section(record: Record) -> Section | None:
    parts: list[Any] = []
    for title, rows in (("Most certain", record.certain), ("Least certain", record.uncertain)):
        if rows:
            parts += [Text(title, heading=True), _table(record, rows, f"{title} rows")]
    return Section("which-rows", "The most and least certain rows", parts) if parts else None


def _table(record: Record, rows: Sequence[Any], label: str) -> Table:
    columns = _value_columns(record, rows)
    classes = record.task == "classification"
    titles = ("Row", "Truth", "Prediction", "Probability" if classes else "± (one std)")
    header = [
        *(Heading(title) for title in titles),
        *(Heading(words.short(column, 28)) for column in columns),
    ]
    return Table(label, header, [Row(None, _cells(each, classes, columns)) for each in rows])


def _cells(each: Any, classes: bool, columns: Sequence[str]) -> list[Cell]:
    wrong = classes and each.truth != each.prediction
    below = "" if each.entropy is None else f"entropy {each.entropy:.3f}"
    sure = words.percent(each.probability) if classes else words.number(each.std)
    return [
        Cell(each.row),
        Cell(each.truth, number=False),
        Cell(each.prediction, tag="wrong" if wrong else "", number=False),
        Cell(sure, below=below),
        *(Cell(words.short(each.values.get(column, "–"), 60), number=False) for column in columns),
    ]


def _value_columns(record: Record, rows: Sequence[Any]) -> list[str]:
    """Columns to show next to a prediction: those of the highest-ranked inputs, then the first ones."""
    names = list(dict.fromkeys(key for row in rows for key in row.values))
    ranked = words.ranked(record.inputs)

    def rank(column: str) -> int:
        # Inputs made from a column begin with its name: "city = Oslo".
        return next((k for k, each in enumerate(ranked) if each.name.startswith(column)), len(ranked))

    return sorted(names, key=lambda column: (rank(column), names.index(column)))[:_VALUE_COLUMNS]
