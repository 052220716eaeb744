"""The columns of the table: inclusion, use, direction, effect, stability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsebnn.app.report import words
from sparsebnn.app.report.parts import Cell, Details, Heading, Row, Section, Table
from sparsebnn.app.report.record import Figure, Record

_FIRST = 25


def section(record: Record) -> Section | None:
    inputs = words.ranked(record.inputs)
    if not inputs:
        return None
    effect = "how much the input contributes to the scores of the classes"
    if record.task == "survival":
        effect = "how far the log hazard moves for each standard deviation of the input"
    elif record.task == "regression":
        effect = "how far the prediction moves for each standard deviation of the input"
    elif len(record.classes) == 2:
        effect = (
            f"how far the log odds of “{record.classes[1]}” move for each standard deviation of the input"
        )
    terms = [
        ("Inclusion", "the probability that the model needs the input"),
        ("Effect", f"{effect}, with its 95% interval"),
        ("Stability", f"the share of {record.replicates or 'the'} replicates that keep it"),
    ]
    parts: list[Any] = [_table(inputs[:_FIRST], "Inputs, by inclusion")]
    if len(inputs) > _FIRST:
        rest = _table(inputs[_FIRST:], "The other inputs")
        parts.append(Details(f"The other {len(inputs) - _FIRST} inputs", [rest]))
    return Section("which-inputs", "Which inputs matter", parts, terms=terms)


def _table(inputs: Sequence[Any], label: str) -> Table:
    titles = ("Input", "Inclusion", "Used", "Direction", "Effect", "Stability")
    return Table(label, [Heading(title) for title in titles], [_row(each) for each in inputs])


def _row(each: Any) -> Row:
    symbol, direction = words.DIRECTIONS.get(each.direction, ("", "–"))
    around = words.interval(Figure(0.0, each.effect_low, each.effect_high), False)
    cells = [
        Cell(words.percent(each.inclusion), share=each.inclusion),
        Cell("yes" if each.selected else "no"),
        Cell(direction, symbol=symbol),
        Cell(words.number(each.effect), below=around),
        Cell(words.percent(each.stability), share=each.stability),
    ]
    return Row(each.name, cells, "" if each.selected else "left")
