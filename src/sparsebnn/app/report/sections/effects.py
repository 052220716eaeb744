"""How predictions move with each column: curves with bands for numbers, a row per level for categories."""

from __future__ import annotations

from typing import Any

from sparsebnn.app.report.charts import Plot, plot, span
from sparsebnn.app.report.parts import Cell, Heading, Panels, Row, Section, Table, Text, legend, line_of
from sparsebnn.app.report.record import Figure, Record
from sparsebnn.app.report.words import number, percent, short

_NOTE = (
    "Each curve is the average prediction for held-out rows if the column had the value below and the "
    "others stayed as they are, with its 95% band over draws of the network. Curves describe the model; "
    "they do not show causes."
)


def section(record: Record) -> Section | None:
    parts: list[Any] = []
    plots = [_curve(record, each) for each in record.effects if _numeric(each)]
    if plots:
        parts += [Panels(plots), *legend(record.effects[0].outputs)]
    for each in record.effects:
        if not _numeric(each):
            parts += [Text(each.name, heading=True), _levels(record, each)]
    return Section("effects", "How predictions move with each column", parts, _NOTE) if parts else None


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
