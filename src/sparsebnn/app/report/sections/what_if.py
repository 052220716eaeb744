"""What-if curves: the prediction along the inputs that matter most, the others as they are."""

from __future__ import annotations

from typing import Any

from sparsebnn.app.report.charts import plot
from sparsebnn.app.report.parts import Panels, Section
from sparsebnn.app.report.record import Record
from sparsebnn.app.report.words import number, percent


def section(record: Record) -> Section | None:
    if not record.what_if:
        return None
    what = f"the predicted “{record.target}”"
    if record.task == "classification":
        what = f"the probability of “{record.what_if[0].output}”"
    note = (
        f"How {what} changes with one input while the others stay as they are: the mean over unseen rows, "
        "with a 90% band for the uncertainty of the model. Inputs that change together in the data are "
        "moved alone here, so a curve describes the model, not what an intervention would do."
    )
    return Section(
        "what-if", "What if an input were different?", [Panels(list(map(_curve, record.what_if)))], note
    )


def _curve(curve: Any) -> Any:
    shares = curve.share
    ends = [*curve.low, *curve.high]
    y = (0.0, 1.0) if shares else (min(ends), max(ends))
    show = percent if shares else number
    first, last = (f"{number(curve.values[i])}: {show(curve.mean[i])}" for i in (0, -1))
    lower, upper = (list(zip(curve.values, each)) for each in (curve.low, curve.high))
    return plot(
        curve.name,
        (curve.values[0], curve.values[-1]),
        y,
        x_label=curve.name,
        description=f"The mean prediction at {first}; at {last}.",
        lines=[("bold", list(zip(curve.values, curve.mean)))],
        bands=[(lower, upper)],
        show_y=show,
    )
