"""Observed and predicted survival of rows by their risk, and calibration in time."""

from __future__ import annotations

from typing import Any

from sparsebnn.app.report.charts import Dot, plot
from sparsebnn.app.report.parts import Cell, Heading, Panels, Row, Section, Table
from sparsebnn.app.report.record import Record
from sparsebnn.app.report.words import number, percent

_NOTE = (
    "Unseen rows in groups of their predicted risk. The bold line is the observed share without the event "
    "(Kaplan–Meier) with its 95% band, the dashed line the mean prediction. The risk is useful if the groups "
    "differ, and calibrated if the dashed lines stay inside the bands. The last plot compares both at three "
    "times."
)


def section(record: Record) -> Section | None:
    groups = [group for group in record.survival.groups if group.times]
    if not groups:
        return None
    panels: list[Any] = [_panel(group) for group in groups]
    panels.append(_calibration(groups))
    header = [Heading(t) for t in ("Group", "Rows", "Events", "At", "Observed", "Predicted")]
    rows = [
        Row(group.name, [Cell(text) for text in _at(group, place)])
        for group in groups
        for place in _thirds(len(group.times))
    ]
    return Section(
        "survival",
        "Who is at risk, and when",
        [Panels(panels), Table("Survival by risk", header, rows)],
        _NOTE,
    )


def _at(group: Any, i: int) -> list[str]:
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
