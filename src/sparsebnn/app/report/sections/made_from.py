"""The data, the settings, and how to repeat the run."""

from __future__ import annotations

from typing import Any

from sparsebnn.app.report.parts import Cell, Details, Heading, Row, Section, Table, Text
from sparsebnn.app.report.record import Record


def section(record: Record) -> Section | None:
    data = record.data
    parts: list[Any] = []
    if data.rows is not None:
        split = ""
        if data.train_rows is not None and data.test_rows is not None:
            split = f": {data.train_rows:,} for training, {data.test_rows:,} held out"
        parts.append(Text(f"{data.rows:,} rows{split}."))
    parts += [Text(note) for note in record.notes]
    if data.columns:
        header = [Heading(text) for text in ("Column", "Read as", "Note")]
        rows = [
            Row(column.name, [Cell(column.kind), Cell(column.note, number=False)]) for column in data.columns
        ]
        parts.append(Details(f"{len(data.columns)} columns", [Table("Columns", header, rows)]))
    for title, facts in (("How it was made", record.facts), ("Settings", record.settings)):
        if facts:
            rows = [Row(key, [Cell(value, number=False, code=True)]) for key, value in facts.items()]
            parts.append(Details(title, [Table(title, [], rows)]))
    return Section("made-from", "Data and settings", parts)
