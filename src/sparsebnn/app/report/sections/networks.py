"""The networks behind the predictions: a drawing, the course of training, data and settings."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from sparsebnn.app.report import drawing
from sparsebnn.app.report.charts import Plot, plot
from sparsebnn.app.report.parts import (
    Cell,
    Details,
    Drawing,
    Heading,
    Legend,
    Panels,
    Row,
    Section,
    Table,
    Text,
)
from sparsebnn.app.report.record import Record
from sparsebnn.app.report.words import number, percent

_HINT = (
    "Point at an input, or tab to it and use the arrow keys, to see its paths; click or press Enter to keep "
    "them."
)
_NO_PATH = (
    "No path of kept connections leads from an input to an output: the sparse model predicts the same for "
    "every row."
)


def the_network(record: Record) -> Section | None:
    """The sparse network as a drawing."""
    if record.network is None:
        return None
    found = drawing.draw(record)
    if found is None:
        return Section("the-network", "The sparse network", [Text(_NO_PATH, soft=False)])
    some = found.inputs_shown < found.inputs_active
    note = (
        "The connections of one replicate that lie on a path from an input to an output: "
        f"{found.edges_shown:,} of "
        f"{found.edges:,}{f', for the {found.inputs_shown} strongest inputs' if some else ''}. "
        f"{found.inputs_active} of {found.inputs} inputs are connected."
    )
    if found.edges_first < found.edges_shown:
        note += f" At first the {found.edges_first} strongest are visible."
    if found.absent:
        note += " Columns in use without lines are kept by other replicates."
    legend = Legend(
        [("", "positive weight"), ("minus", "negative weight"), (None, "width: size of the weight")]
    )
    return Section("the-network", "The sparse network", [Drawing(found), legend], note, _HINT)


_CURVES = {
    "loss": "Loss: what training minimizes",
    "nll": "Misfit to the training rows (NLL, nats)",
    "kl": "Cost of complexity (KL, nats)",
    "density": "Share of connections kept",
}
_TRAINING = (
    "Thin lines are replicates, the bold line is their median. The loss may rise at first, while the KL "
    "term is phased in."
)


def training(record: Record) -> Section | None:
    """The course of training: a panel per quantity; thin lines are replicates, the bold one their median."""
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
    return Section("training", "How training went", [Panels(panels)], _TRAINING) if panels else None


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


def made_from(record: Record) -> Section | None:
    """The data, the settings, and how to repeat the run."""
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
