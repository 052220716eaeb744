"""What the columns of the table do: inclusion and gain, stand-ins, effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsebnn.app.report import words
from sparsebnn.app.report.charts import Plot, plot, span
from sparsebnn.app.report.parts import (
    Cell,
    Details,
    Heading,
    Panels,
    Row,
    Section,
    Table,
    Text,
    legend,
    line_of,
)
from sparsebnn.app.report.record import Figure, Record
from sparsebnn.app.report.words import number, percent, short

_FIRST_COLUMNS = 25


def which_inputs(record: Record) -> Section | None:
    """The columns of the table: inclusion, use, direction, effect, stability."""
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
    parts: list[Any] = [_table_of_columns(inputs[:_FIRST_COLUMNS], "Columns, by gain", record.posterior)]
    if len(inputs) > _FIRST_COLUMNS:
        rest = _table_of_columns(inputs[_FIRST_COLUMNS:], "The other columns", record.posterior)
        parts.append(Details(f"The other {len(inputs) - _FIRST_COLUMNS} columns", [rest]))
    return Section("which-inputs", "Which columns it uses", parts, terms=terms)


def _table_of_columns(inputs: Sequence[Any], label: str, posterior: bool) -> Table:
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


_FIRST_SETS = 6
_STAND_INS = (
    "Correlated columns can take each other's place, and replicates of the network choose different ones. "
    "No single column of such a set needs a high probability, but at least one of them matters with the "
    "probability of the last line, which is 95% or more."
)
_SET_TERMS = (
    ("Inclusion", "the probability, given the data, that the column reaches a prediction"),
    ("Purity", "the smallest correlation, without its sign, between two columns of the set"),
)


def stand_ins(record: Record) -> Section | None:
    """Nothing if no set has several columns: the table of columns then says it all."""
    sets = [each for each in record.credible_sets if len(each.names) > 1]
    if not sets:
        return None
    parts = [part for each in sets[:_FIRST_SETS] for part in _credible_set(each)]
    if len(sets) > _FIRST_SETS:
        rest = [part for each in sets[_FIRST_SETS:] for part in _credible_set(each)]
        parts.append(Details(f"The other {len(sets) - _FIRST_SETS} sets", rest))
    alone = [f"“{words.short(each.names[0], 40)}”" for each in record.credible_sets if len(each.names) == 1]
    if alone:
        matter = "matters" if len(alone) == 1 else "matter"
        parts.append(Text(f"With the same certainty, {words.in_a_row(alone)} {matter} without a stand-in."))
    return Section(
        "stand-ins", "Columns that can stand in for each other", parts, _STAND_INS, terms=_SET_TERMS
    )


def _credible_set(each: Any) -> list[Any]:
    rows = [
        Row(name, [Cell(words.percent(share), share=share)])
        for name, share in zip(each.names, each.inclusion)
    ]
    sure = Cell(words.percent(each.coverage), f"purity {words.fixed(each.purity, 2)}", share=each.coverage)
    rows.append(Row("at least one of them", [sure], "ours"))
    title = f"At least one of these {len(each.names)} columns matters"
    label = f"{title}: {words.in_a_row(each.names)}"
    return [Text(title, heading=True), Table(label, [Heading("Column"), Heading("Inclusion")], rows)]


_EFFECTS = (
    "Each curve is the average prediction for held-out rows if the column had the value below and the "
    "others stayed as they are, with its 95% band over draws of the network. Curves describe the model; "
    "they do not show causes."
)


def effects(record: Record) -> Section | None:
    """How predictions move with each column: curves for numbers, a row per level for categories."""
    parts: list[Any] = []
    plots = [_curve(record, each) for each in record.effects if _numeric(each)]
    if plots:
        parts += [Panels(plots), *legend(record.effects[0].outputs)]
    for each in record.effects:
        if not _numeric(each):
            parts += [Text(each.name, heading=True), _levels(record, each)]
    return Section("effects", "How predictions move with each column", parts, _EFFECTS) if parts else None


def _numeric(each: Any) -> bool:
    return each.kind == "number" and all(isinstance(value, float) for value in each.grid)


def _show(record: Record) -> Any:
    return percent if record.task == "classification" else number


def _curve(record: Record, each: Any) -> Plot:
    single = len(each.mean) == 1
    ends = [value for part in (each.low, each.high) for line in part for value in line]
    classes = record.task == "classification"
    low, high = (0.0, 1.0) if classes else (min(ends), max(ends))
    what = f"probability of “{each.outputs[0]}”" if classes and single else "probabilities of the classes"
    lines = [(line_of(k, single), list(zip(each.grid, line))) for k, line in enumerate(each.mean)]
    show = _show(record)
    named = "; ".join(
        f"{name}: from {show(line[0])} to {show(line[-1])}" for name, line in zip(each.outputs, each.mean)
    )
    return plot(
        each.name,
        (each.grid[0], each.grid[-1]),
        (low, high) if high > low else (low - 1.0, low + 1.0),
        x_label=each.name,
        remark=what if classes else f"prediction of “{short(record.target, 24)}”",
        description=f"{named}.",
        bands=[
            ("" if single else line_of(k, single), list(zip(each.grid, a)), list(zip(each.grid, b)))
            for k, (a, b) in enumerate(zip(each.low, each.high))
        ],
        lines=lines,
        show_y=show,
    )


def _levels(record: Record, each: Any) -> Table:
    show = _show(record)
    figures = [[Figure(*ends) for ends in zip(*lines)] for lines in zip(each.mean, each.low, each.high)]
    header = [Heading("Level"), *(Heading(short(name, 28)) for name in each.outputs)]
    if len(each.outputs) == 1:
        header[1] = Heading(
            f"Probability of {short(each.outputs[0], 20)}"
            if record.task == "classification"
            else "Prediction"
        )
    rows = [
        Row(
            str(level) if isinstance(level, str) else number(level),
            [
                Cell(show(column[i].value), below=f"{show(column[i].low)} to {show(column[i].high)}",
                     span=span(column[i], column))
                for column in figures
            ],
        )
        for i, level in enumerate(each.grid)
    ]  # fmt: skip
    return Table(f"Predictions by level of {each.name}", header, rows)
