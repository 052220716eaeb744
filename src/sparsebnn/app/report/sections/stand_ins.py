"""Columns that can stand in for each other: credible sets, "one of these three columns matters"."""

from __future__ import annotations

from typing import Any

from sparsebnn.app.report import words
from sparsebnn.app.report.parts import Cell, Details, Heading, Row, Section, Table, Text
from sparsebnn.app.report.record import Record

_FIRST = 6
_NOTE = (
    "Correlated columns can take each other's place, and replicates of the network choose different ones. "
    "No single column of such a set needs a high probability, but at least one of them matters with the "
    "probability of the last line, which is 95% or more."
)
_TERMS = (
    ("Inclusion", "the probability, given the data, that the column reaches a prediction"),
    ("Purity", "the smallest correlation, without its sign, between two columns of the set"),
)


def section(record: Record) -> Section | None:
    """Nothing if no set has several columns: the table of columns then says it all."""
    sets = [each for each in record.credible_sets if len(each.names) > 1]
    if not sets:
        return None
    parts = [part for each in sets[:_FIRST] for part in _parts(each)]
    if len(sets) > _FIRST:
        rest = [part for each in sets[_FIRST:] for part in _parts(each)]
        parts.append(Details(f"The other {len(sets) - _FIRST} sets", rest))
    alone = [f"“{words.short(each.names[0], 40)}”" for each in record.credible_sets if len(each.names) == 1]
    if alone:
        matter = "matters" if len(alone) == 1 else "matter"
        parts.append(Text(f"With the same certainty, {words.in_a_row(alone)} {matter} without a stand-in."))
    return Section("stand-ins", "Columns that can stand in for each other", parts, _NOTE, terms=_TERMS)


def _parts(each: Any) -> list[Any]:
    rows = [
        Row(name, [Cell(words.percent(share), share=share)])
        for name, share in zip(each.names, each.inclusion)
    ]
    sure = Cell(words.percent(each.coverage), f"purity {words.fixed(each.purity, 2)}", share=each.coverage)
    rows.append(Row("at least one of them", [sure], "ours"))
    title = f"At least one of these {len(each.names)} columns matters"
    label = f"{title}: {words.in_a_row(each.names)}"
    return [Text(title, heading=True), Table(label, [Heading("Column"), Heading("Inclusion")], rows)]
