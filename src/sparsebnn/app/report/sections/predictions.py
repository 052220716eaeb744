"""How well the model predicts held-out rows, and where it errs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sparsebnn.app.report import charts, words
from sparsebnn.app.report.charts import Dot, Plot, plot
from sparsebnn.app.report.parts import Cell, Heading, Panels, Row, Section, Table, Text, legend, line_of
from sparsebnn.app.report.record import Figure, Record
from sparsebnn.app.report.words import number, percent, short

_HOW_WELL = (
    "Measured on rows held out from training, with 95% intervals; the lines compare the models. The "
    "averaged model averages over all networks, weighted by their probability. The sparse model keeps "
    "only the connections with an inclusion probability above 50%."
)
_PAIRED = (
    "The averaged model minus the baseline, on the same rows, with 95% intervals: rows that are hard for "
    "both models do not count. “better” and “worse” appear only if the interval leaves out 0."
)
# Baselines that predict the same for every row are calibrated without effort.
_UNINFORMED = ("majority", "majority class", "mean", "the mean")


def how_well(record: Record) -> Section | None:
    """How well the model predicts held-out rows, compared with baselines."""
    models = [*record.models, *record.baselines]
    if not models:
        return None
    measures = [words.metric(key) for key in dict.fromkeys(key for model in models for key in model.metrics)]
    columns = [_measured(measure, models) for measure in measures]
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
    return Section("how-well", "How well it predicts", parts, _HOW_WELL)


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


def _measured(measure: words.Metric, models: Sequence[Any]) -> list[Cell]:
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
        if figures[place].value is not None and not (measure.key == "ece" and model.name in _UNINFORMED)
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


_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_BINS = 21
_NUMBERS = (
    "Each dot is a row held out from training. Residuals are truth minus prediction; if they scatter evenly "
    "around 0, the model has missed no pattern."
)
_CLASSES = (
    "Rows held out from training. Above the diagonal of the ROC curve, and above the dashed line of "
    "precision, the model is better than chance."
)


def mistakes(record: Record) -> Section | None:
    """Where the model errs: a confusion matrix with ROC and precision–recall curves, or residuals."""
    parts = _of_numbers(record) if record.task == "regression" else _of_classes(record)
    if not parts:
        return None
    note = _NUMBERS if record.task == "regression" else _CLASSES
    return Section("mistakes", "Where it errs", parts, note)


def _of_classes(record: Record) -> list[Any]:
    parts: list[Any] = []
    count = len(record.classes)
    if len(record.confusion) == count > 1 and all(len(row) == count for row in record.confusion):
        parts.append(_confusion(record))
    if record.ranking:
        parts.append(Panels([_roc(record.ranking), _precision(record.ranking)]))
        parts += legend([each.name for each in record.ranking])
    if len(record.ranking) > 1:
        header = [Heading(text) for text in ("Class", "Rows", "Area under ROC", "Average precision")]
        rows = [
            Row(
                each.name,
                [Cell(percent(each.share)), Cell(_three(each.auc)), Cell(_three(each.precision))],
            )
            for each in record.ranking
        ]
        parts.append(Table("Ranking of each class", header, rows))
    return parts


def _three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _confusion(record: Record) -> Table:
    """Counts; the shade of a cell is its share of the rows of the true class."""
    header = [Heading("Truth"), *(Heading(f"predicted {short(name, 20)}") for name in record.classes)]
    rows = []
    for name, counts in zip(record.classes, record.confusion):
        total = sum(count or 0.0 for count in counts)
        cells = [
            Cell(number(count), below=percent((count or 0.0) / total), shade=(count or 0.0) / total)
            if total
            else Cell(number(count))
            for count in counts
        ]
        rows.append(Row(name, cells))
    return Table("Confusion matrix: rows are true classes, columns are predictions", header, rows)


def _points(found: Sequence[Sequence[float | None]]) -> list[tuple[float, float]]:
    return [(p[0], p[1]) for p in found if len(p) == 2 and p[0] is not None and p[1] is not None]


def _roc(ranking: Sequence[Any]) -> Plot:
    single = len(ranking) == 1
    lines = [(line_of(place, single), _points(each.roc)) for place, each in enumerate(ranking)]
    areas = ", ".join(f"{each.name} {_three(each.auc)}" for each in ranking)
    return plot(
        f"ROC: “{short(ranking[0].name, 20)}” found" if single else "ROC of each class against the others",
        (0.0, 1.0),
        (0.0, 1.0),
        x_label="other rows taken for it",
        remark=f"area {_three(ranking[0].auc)}" if single else "",
        description=f"Area under the curve: {areas}.",
        lines=[("ideal", [(0.0, 0.0), (1.0, 1.0)]), *lines],
        show_x=percent,
        show_y=percent,
        x_values=_SHARES,
        y_values=_SHARES,
    )


def _precision(ranking: Sequence[Any]) -> Plot:
    single = len(ranking) == 1
    lines = [(line_of(place, single), _points(each.recall)) for place, each in enumerate(ranking)]
    chance = [("ideal", [(0.0, share), (1.0, share)]) for share in [ranking[0].share or 0.0] if single]
    named = ", ".join(f"{each.name} {_three(each.precision)}" for each in ranking)
    return plot(
        "Precision by share found",
        (0.0, 1.0),
        (0.0, 1.0),
        x_label="share of the class that is found",
        remark=f"average {_three(ranking[0].precision)}" if single else "of each class",
        description=f"Average precision: {named}.",
        lines=[*chance, *lines],
        show_x=percent,
        show_y=percent,
        x_values=_SHARES,
        y_values=_SHARES,
    )


def _of_numbers(record: Record) -> list[Any]:
    rows = [tuple(row) for row in record.residuals if len(row) == 3 and None not in row]
    if len(rows) < 2:
        return []
    ends = [value for mean, truth, _ in rows for value in (mean, truth)]
    low, high = min(ends), max(ends)
    gaps = [truth - mean for mean, truth, _ in rows]
    means = [mean for mean, _, _ in rows]
    wide = max(map(abs, gaps)) or 1.0
    dots = {"radius": 2.5}
    fit = plot(
        "Truth by prediction",
        (low, high),
        (low, high),
        x_label="prediction",
        description=f"{len(rows)} rows from {number(low)} to {number(high)}.",
        lines=[("ideal", [(low, low), (high, high)])],
        dots=[Dot(mean, truth, **dots) for mean, truth, _ in rows],
    )
    against = plot(
        "Residual by prediction",
        (min(means), max(means)),
        (-wide, wide),
        x_label="prediction",
        description=f"Residuals from {number(min(gaps))} to {number(max(gaps))}.",
        lines=[("ideal", [(min(means), 0.0), (max(means), 0.0)])],
        dots=[Dot(mean, gap, **dots) for mean, gap in zip(means, gaps)],
    )
    return [Panels([fit, against, _histogram(rows)])]


def _histogram(rows: Sequence[tuple[float, ...]]) -> Plot:
    """Residuals in units of their stated standard deviation, with the normal density they should follow."""
    scaled = [(truth - mean) / std for mean, truth, std in rows if std > 0.0]
    width = 8.0 / _BINS
    counts = [0] * _BINS
    for value in scaled:
        counts[min(_BINS - 1, max(0, int((value + 4.0) / width)))] += 1
    heights = [count / (len(scaled) * width) for count in counts]
    curve = [(x / 10.0, math.exp(-x * x / 200.0) / math.sqrt(2.0 * math.pi)) for x in range(-40, 41)]
    return plot(
        "Residuals in stated standard deviations",
        (-4.0, 4.0),
        (0.0, max(0.45, *heights)),
        x_label="beyond ±4: in the outermost bars",
        remark="with the normal density",
        description=f"{sum(abs(v) > 2 for v in scaled) / len(scaled):.0%} lie beyond two.",
        bars=[(-4.0 + k * width, -4.0 + (k + 1) * width, height) for k, height in enumerate(heights)],
        lines=[("ideal", curve)],
    )
