"""The sparse network as a drawing."""

from __future__ import annotations

from sparsebnn.app.report import drawing
from sparsebnn.app.report.parts import Drawing, Legend, Section, Text
from sparsebnn.app.report.record import Record

_HINT = (
    "Point at an input, or tab to it and use the arrow keys, to see its paths; click or press Enter to keep "
    "them."
)
_CONSTANT = (
    "No path of kept connections leads from an input to an output: the sparse model predicts the same for "
    "every row."
)


def section(record: Record) -> Section | None:
    if record.network is None:
        return None
    found = drawing.draw(record)
    if found is None:
        return Section("the-network", "The sparse network", [Text(_CONSTANT, soft=False)])
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
