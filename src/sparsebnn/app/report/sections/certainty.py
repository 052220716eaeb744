"""How far stated certainty can be trusted: calibration, survival curves, the most and least certain rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sparsebnn.app.report import words
from sparsebnn.app.report.charts import Dot, plot, wilson
from sparsebnn.app.report.parts import Cell, Heading, Panels, Row, Section, Table, Text
from sparsebnn.app.report.record import Record
from sparsebnn.app.report.words import number, percent

_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


def how_sure(record: Record) -> Section | None:
    """Points with their Wilson intervals; the area of a bin of confidence shows its rows."""
    if not record.points:
        return None
    classes = record.task == "classification"
    x_label, y_label = (
        ("confidence", "Accuracy") if classes else ("size of the interval", "Share of rows inside")
    )
    most = max(n for _, _, n in record.points)
    dots = []
    for stated, observed, n in record.points:
        share = min(max(observed, 0.0), 1.0)
        radius = round(2.5 + 4.5 * math.sqrt(n / most), 1) if classes else 4.0
        dots.append(Dot(min(max(stated, 0.0), 1.0), share, *wilson(share, n), radius))
    shown = [(percent(s), percent(o), number(float(n))) for s, o, n in record.points]
    figure = plot(
        f"{y_label} by {x_label}",
        (0.0, 1.0),
        (0.0, 1.0),
        x_label=x_label,
        description=" ".join(f"Stated {s}, observed {o}." for s, o, _ in shown),
        lines=[("ideal", [(0.0, 0.0), (1.0, 1.0)])],
        dots=dots,
        show_x=percent,
        show_y=percent,
        x_values=_QUARTERS,
        y_values=_QUARTERS,
    )
    header = [Heading(text) for text in ("Stated", "Observed", "Rows")]
    table = Table(
        "Calibration, as numbers", header, [Row(None, [Cell(text) for text in row]) for row in shown]
    )
    what = (
        "Each dot is a group of unseen rows; larger dots hold more rows."
        if classes
        else "Each dot is a size of interval."
    )
    note = (
        f"{what} On the dashed line, stated and observed certainty agree; below it, the model is "
        "overconfident. The bars are 95% intervals."
    )
    return Section("how-sure", "Can its probabilities be trusted?", [Panels([figure, table])], note)


_SURVIVAL = (
    "Unseen rows in groups of their predicted risk. The bold line is the observed share without the event "
    "(Kaplan–Meier) with its 95% band, the dashed line the mean prediction. The risk is useful if the groups "
    "differ, and calibrated if the dashed lines stay inside the bands. The last plot compares both at three "
    "times."
)


def survival(record: Record) -> Section | None:
    """Observed and predicted survival of rows by their risk, and calibration in time."""
    groups = [group for group in record.survival.groups if group.times]
    if not groups:
        return None
    panels: list[Any] = [_panel(group) for group in groups]
    panels.append(_calibration(groups))
    header = [Heading(t) for t in ("Group", "Rows", "Events", "At", "Observed", "Predicted")]
    rows = [
        Row(group.name, [Cell(text) for text in _at_time(group, place)])
        for group in groups
        for place in _thirds(len(group.times))
    ]
    return Section(
        "survival",
        "Who is at risk, and when",
        [Panels(panels), Table("Survival by risk", header, rows)],
        _SURVIVAL,
    )


def _at_time(group: Any, i: int) -> list[str]:
    low, high = percent(group.low[i]), percent(group.high[i])
    observed = f"{percent(group.observed[i])} ({low} to {high})"
    counts = [number(float(group.rows or 0)), number(float(group.events or 0))]
    return [*counts, number(group.times[i]), observed, percent(group.predicted[i])]


def _thirds(count: int) -> list[int]:
    """Places of an early, a middle and a late time."""
    return sorted({count // 4, count // 2, (3 * count) // 4})


def _panel(group: Any) -> Any:
    start = (0.0, 1.0)
    observed = [start]
    for (_, before), now in zip([start, *zip(group.times, group.observed)], zip(group.times, group.observed)):
        observed += [(now[0], before), now]
    last = group.times[-1]
    return plot(
        f"{group.name[:1].upper()}{group.name[1:]}",
        (0.0, last),
        (0.0, 1.0),
        x_label="time",
        description=f"Observed {percent(group.observed[-1])}, predicted {percent(group.predicted[-1])} "
        f"without the event at {number(last)}.",
        lines=[("bold", observed), ("ideal", [start, *zip(group.times, group.predicted)])],
        bands=[("", list(zip(group.times, group.low)), list(zip(group.times, group.high)))],
        show_y=percent,
    )


def _calibration(groups: list[Any]) -> Any:
    dots = [
        Dot(group.predicted[i], group.observed[i], group.low[i], group.high[i])
        for group in groups
        for i in _thirds(len(group.times))
    ]
    return plot(
        "Observed by predicted survival",
        (0.0, 1.0),
        (0.0, 1.0),
        x_label="predicted",
        description=" ".join(f"Predicted {percent(d.x)}, observed {percent(d.y)}." for d in dots),
        lines=[("ideal", [(0.0, 0.0), (1.0, 1.0)])],
        dots=dots,
        show_x=percent,
        show_y=percent,
    )


_VALUE_COLUMNS = 6


def which_rows(record: Record) -> Section | None:
    """The most and the least certain held-out rows."""
    parts: list[Any] = []
    for title, rows in (("Most certain", record.certain), ("Least certain", record.uncertain)):
        if rows:
            parts += [Text(title, heading=True), _table_of_rows(record, rows, f"{title} rows")]
    return Section("which-rows", "The most and least certain rows", parts) if parts else None


def _table_of_rows(record: Record, rows: Sequence[Any], label: str) -> Table:
    columns = _value_columns(record, rows)
    classes = record.task == "classification"
    titles = ("Row", "Truth", "Prediction", "Probability" if classes else "± (one std)")
    header = [
        *(Heading(title) for title in titles),
        *(Heading(words.short(column, 28)) for column in columns),
    ]
    return Table(label, header, [Row(None, _prediction(each, classes, columns)) for each in rows])


def _prediction(each: Any, classes: bool, columns: Sequence[str]) -> list[Cell]:
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
