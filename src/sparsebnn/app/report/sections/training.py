"""The course of training: a panel per quantity, with a thin line per replicate and a bold one for their
median.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from sparsebnn.app.report.charts import Plot, plot
from sparsebnn.app.report.parts import Panels, Section
from sparsebnn.app.report.record import Record
from sparsebnn.app.report.words import number, percent

_CURVES = {
    "loss": "Loss: what training minimizes",
    "nll": "Misfit to the training rows (NLL, nats)",
    "kl": "Cost of complexity (KL, nats)",
    "density": "Share of connections kept",
}
_NOTE = (
    "Thin lines are replicates, the bold line is their median. The loss may rise at first, while the KL "
    "term is phased in."
)


def section(record: Record) -> Section | None:
    panels = []
    for key in _CURVES:
        found = [
            (point["epoch"][0], point[key]) for point in record.curves if key in point and "epoch" in point
        ]
        points = sorted((each for each in found if each[0] is not None), key=lambda each: each[0])
        finite = [(epoch, [v for v in values if v is not None]) for epoch, values in points]
        middle = [(epoch, median(values)) for epoch, values in finite if values]
        if len(middle) > 1:
            panels.append(_panel(key, points, middle, [v for _, values in finite for v in values]))
    return Section("training", "How training went", [Panels(panels)], _NOTE) if panels else None


def _panel(key: str, points: Any, middle: Sequence[tuple[float, float]], every: Sequence[float]) -> Plot:
    low, high = min(every), max(every)
    log, show = low > 0 and high / low > 30, number
    if key == "density":
        low, log, show = 0.0, False, percent  # type: ignore[assignment]
    width = max(len(values) for _, values in points)
    lines = [
        [(e, v) for e, vs in points if k < len(vs) and (v := vs[k]) is not None]
        for k in range(width if width > 1 else 0)
    ]
    first, last = show(middle[0][1]), show(middle[-1][1])
    return plot(
        _CURVES[key],
        (middle[0][0], middle[-1][0]),
        (low, high),
        x_label="epoch",
        remark="(logarithmic)" if log else "",
        description=f"From {first} to {last} at epoch {number(middle[-1][0])} (median of the replicates).",
        lines=[*(("thin", line) for line in lines if line), ("bold", middle)],
        log=log,
        show_y=show,
    )
