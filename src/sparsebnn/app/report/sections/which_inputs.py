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
    used = "the column improves predictions of unseen rows, by more than chance or than its weights cost"
    sure = (
        "not a posterior probability here (a tempered posterior, a target density or a short training), and "
        "near 100% for most columns; judge columns by their gain"
    )
    if record.posterior:
        used = "the column is selected by its inclusion probability, at a false discovery rate of 10%"
        sure = "the probability, given the data, that the column reaches a prediction"
    count = record.replicates or "the"
    terms = [
        (
            "Gain",
            "how much worse the log-loss becomes if the column is shuffled, in thousandths of a nat per row",
        ),
        ("Used", used),
        ("Effect", f"{effect}, with its 95% interval"),
        ("Stability", f"the share of {count} replicates whose sparse network keeps the column"),
        ("Inclusion", sure),
    ]
    if record.posterior:
        terms.insert(0, terms.pop())
    parts: list[Any] = [_table(inputs[:_FIRST], "Columns, by gain", record.posterior)]
    if len(inputs) > _FIRST:
        rest = _table(inputs[_FIRST:], "The other columns", record.posterior)
        parts.append(Details(f"The other {len(inputs) - _FIRST} columns", [rest]))
    return Section("which-inputs", "Which columns it uses", parts, terms=terms)


def _table(inputs: Sequence[Any], label: str, posterior: bool) -> Table:
    titles = ["Column", "Gain", "Used", "Direction", "Effect", "Stability", "Inclusion"]
    if posterior:
        titles.insert(1, titles.pop())
    most = max((each.gain or 0.0 for each in inputs), default=0.0)
    places = words.column_decimals([max((abs(each.effect or 0.0) for each in inputs), default=0.0)])
    rows = [_row(each, most, posterior, places) for each in inputs]
    return Table(label, [Heading(title) for title in titles], rows)


def _row(each: Any, most: float, posterior: bool, places: int) -> Row:
    symbol, direction = words.DIRECTIONS.get(each.direction, ("", "–"))
    around = words.interval(Figure(0.0, each.effect_low, each.effect_high), False, places=places)
    share = None if each.gain is None or most <= 0.0 else max(0.0, each.gain) / most
    cells = [
        Cell("–" if each.gain is None else words.thousandths(each.gain), share=share),
        Cell("yes" if each.selected else "no"),
        Cell(direction, symbol=symbol),
        Cell(words.fixed(each.effect, places), below=around),
        Cell(words.percent(each.stability), share=each.stability),
        Cell(words.percent(each.inclusion), share=each.inclusion),
    ]
    if posterior:
        cells.insert(0, cells.pop())
    return Row(each.name, cells, "" if each.selected else "left")
