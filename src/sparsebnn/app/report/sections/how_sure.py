"""Calibration: whether stated and observed certainty agree."""

from __future__ import annotations

import math

from sparsebnn.app.report.charts import Dot, plot, wilson
from sparsebnn.app.report.parts import Cell, Heading, Panels, Row, Section, Table
from sparsebnn.app.report.record import Record
from sparsebnn.app.report.words import number, percent

_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


def section(record: Record) -> Section | None:
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
