"""How well the model predicts held-out rows, compared with baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsebnn.app.report import charts, words
from sparsebnn.app.report.parts import Cell, Heading, Row, Section, Table, Text
from sparsebnn.app.report.record import Figure, Record

_NOTE = (
    "Measured on rows held out from training, with 95% intervals; the lines compare the models. The "
    "averaged model averages over all networks, weighted by their probability. The sparse model keeps "
    "only the connections with an inclusion probability above 50%."
)


def section(record: Record) -> Section | None:
    models = [*record.models, *record.baselines]
    if not models:
        return None
    measures = [words.metric(key) for key in dict.fromkeys(key for model in models for key in model.metrics)]
    columns = [_cells(measure, models) for measure in measures]
    rows = [
        Row(
            model.name, [cells[place] for cells in columns], "ours" if place < len(record.models) else "other"
        )
        for place, model in enumerate(models)
    ]
    header = [Heading(m.label, m.means, "↑" if m.higher_is_better else "↓") for m in measures]
    table = Table("Measures of the model and of baselines", [Heading("Model"), *header], rows)
    legend = Text("↑ higher is better, ↓ lower is better.")
    return Section("how-well", "How well it predicts", [table, legend], _NOTE)


def _cells(measure: words.Metric, models: Sequence[Any]) -> list[Cell]:
    """One measure of every model. The best is marked if its shown value differs from all others."""
    figures = [model.metrics.get(measure.key, Figure()) for model in models]
    shown = [
        words.percent(f.value, fine=True) if measure.as_percent else words.measured(f.value) for f in figures
    ]
    order = max if measure.higher_is_better else min
    best = order((f.value for f in figures if f.value is not None), default=None)
    winners = [text for figure, text in zip(figures, shown) if figure.value == best]
    alone = best is not None and len(winners) == 1 and shown.count(winners[0]) == 1
    return [
        Cell(
            text,
            below=words.interval(figure, measure.as_percent, fine=True),
            tag="best" if alone and figure.value == best else "",
            span=charts.span(figure, figures),
            bold=alone and figure.value == best,
        )
        for figure, text in zip(figures, shown)
    ]
