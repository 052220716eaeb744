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
_PAIRED = (
    "The averaged model minus the baseline, on the same rows, with 95% intervals: rows that are hard for "
    "both models do not count. “better” and “worse” appear only if the interval leaves out 0."
)
# Predict the same for every row: their calibration is no achievement.
_CONSTANT = ("majority", "majority class", "mean", "the mean")


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
    parts = [table, Text("↑ higher is better, ↓ lower is better.")]
    differences = _differences(record)
    if differences is not None:
        parts += [Text("Difference from the baselines", heading=True), Text(_PAIRED), differences]
    return Section("how-well", "How well it predicts", parts, _NOTE)


def _differences(record: Record) -> Table | None:
    """The averaged model minus each baseline, on the same rows."""
    rivals = [each for each in record.baselines if each.difference]
    keys = [key for key in dict.fromkeys(key for each in rivals for key in each.difference)]
    if not rivals:
        return None
    rows = []
    places = {
        key: words.column_decimals([each.metrics.get(key, Figure()).value for each in record.baselines])
        for key in keys
    }
    for each in rivals:
        cells = []
        for key in keys:
            figure, measure = each.difference.get(key, Figure()), words.metric(key)
            verdict = words.verdict(figure, measure.higher_is_better)
            cells.append(
                Cell(
                    words.signed(figure.value, measure.as_percent, places[key]),
                    below=words.signed_interval(figure, measure.as_percent, places[key]),
                    tag=verdict if verdict in ("better", "worse") else "",
                )
            )
        rows.append(Row(f"compared with {each.name}", cells))
    header = [Heading(words.metric(key).label, words.metric(key).means) for key in keys]
    return Table("Differences from the baselines", [Heading("Averaged model"), *header], rows)


def _cells(measure: words.Metric, models: Sequence[Any]) -> list[Cell]:
    """One measure of every model. The best is marked if it has rivals and its shown value differs from
    theirs.
    """
    ours = [place for place, model in enumerate(models) if model.name.startswith("Model, ")]
    figures = [model.metrics.get(measure.key, Figure()) for model in models]
    places = words.column_decimals([figure.value for figure in figures])
    shown = [
        words.percent(f.value, fine=True) if measure.as_percent else words.fixed(f.value, places)
        for f in figures
    ]
    order = max if measure.higher_is_better else min
    judged = [
        place
        for place, model in enumerate(models)
        if figures[place].value is not None and not (measure.key == "ece" and model.name in _CONSTANT)
    ]
    rivals = set(judged) - set(ours) if ours else set(judged)
    best = order((v for place in judged if (v := figures[place].value) is not None), default=None)
    winners = [text for figure, text in zip(figures, shown) if figure.value == best]
    alone = bool(rivals) and best is not None and len(winners) == 1 and shown.count(winners[0]) == 1
    return [
        Cell(
            text,
            below=words.interval(figure, measure.as_percent, fine=True, places=places),
            tag="best" if alone and figure.value == best else "",
            span=charts.span(figure, figures),
            bold=alone and figure.value == best,
        )
        for figure, text in zip(figures, shown)
    ]
