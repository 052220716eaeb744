"""A record to one HTML page that needs nothing else: no network, no other file, no script but its own.

Whatever comes from the data is escaped, and the page's own policy allows exactly the style and the script
it was written with, by their hashes: a name that holds markup is shown, never run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sparsebnn
from sparsebnn.app.report import charts, drawing, words
from sparsebnn.app.report.record import Figure, Model, Record, Row, parse, read
from sparsebnn.checks import invalid
from sparsebnn.io.files import atomic_write

__all__ = ["render", "write"]

_TEMPLATES = Path(__file__).parent / "templates"
_FIRST_INPUTS = 25
_VALUE_COLUMNS = 6


def write(folder: str | Path, out: str | Path | None = None) -> Path:
    """Read ``folder/record.json``, write ``folder/report.html`` (or ``out``) whole or not at all."""
    page = render(read(folder))
    target = Path(folder) / "report.html" if out is None else Path(out)
    if target.is_dir():
        raise invalid("out", "report", "a file", f"the folder {str(target)!r}", "Name a file: report.html")
    with atomic_write(target) as partial:
        partial.write_text(page, encoding="utf-8")
    return target


def render(record: Record | Mapping[str, Any]) -> str:
    """The page as text, from a record or from what ``record.json`` holds.

    >>> page = render({"format_version": 1, "task": "regression", "target": "<b>price</b>"})
    >>> "<b>price</b>" in page, "&lt;b&gt;price&lt;/b&gt;" in page
    (False, True)
    """
    given = record if isinstance(record, Record) else parse(record)
    template = _environment().get_template("report.html.j2")
    return template.render(**_context(given))


@functools.cache
def _environment() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise ImportError("Reports need 'jinja2': pip install 'sparsebnn[report]'") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=words.percent, number=words.number, short=_short)
    return environment


def _short(text: str, most: int) -> str:
    """
    >>> _short("a long name", 7), _short("short", 7)
    ('a long…', 'short')
    """
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _context(record: Record) -> dict[str, Any]:
    from markupsafe import Markup  # jinja2 brings it

    style = (_TEMPLATES / "report.css").read_text(encoding="utf-8")
    script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    headline = words.headline(record)
    models = [*record.models, *record.baselines]
    return {
        "record": record,
        "version": sparsebnn.__version__,
        # Our own files, not data: they must stay as they are for their hashes to hold.
        "style": Markup(style),
        "script": Markup(script),
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "sentences": words.sentences(record),
        "cards": _cards(record, headline),
        "measures": charts.measures(models),
        "models": _model_rows(record),
        "calibration": charts.calibration(record),
        "size": (charts.WIDTH, charts.HEIGHT),
        "inputs": words.ranked(record.inputs),
        "first_inputs": _FIRST_INPUTS,
        "directions": words.DIRECTIONS,
        "interval": words.interval,
        "row_groups": [
            ("Most certain", record.certain, _value_columns(record, record.certain)),
            ("Least certain", record.uncertain, _value_columns(record, record.uncertain)),
        ],
        "drawing": drawing.draw(record),
        "curves": charts.curves(record),
    }


def _cards(record: Record, headline: words.Metric) -> list[tuple[str, str, str]]:
    """(figure, what it is, its interval or context): the four numbers at the top."""
    cards = []
    own = record.models[0].metrics.get(headline.key) if record.models else None
    if own is not None and own.value is not None:
        show = words.percent if headline.as_percent else words.number
        between = words.interval(own, headline.as_percent)
        cards.append((show(own.value), headline.label, f"95% interval {between}" if between else ""))
    if record.inputs:
        kept = sum(each.selected for each in record.inputs)
        cards.append((f"{kept} of {len(record.inputs)}", "inputs used", ""))
    if record.density is not None:
        seeds = "" if not record.replicates else f"{record.replicates} replicates"
        seeds = "1 replicate" if record.replicates == 1 else seeds
        cards.append((words.percent(record.density), "of connections kept", seeds))
    if record.train_rows is not None and record.test_rows is not None:
        cards.append(
            (words.number(float(record.test_rows)), "unseen rows", f"learned from {record.train_rows:,}")
        )
    return cards


def _model_rows(record: Record) -> list[tuple[str, bool, list[dict[str, Any]]]]:
    """Per model: its name, whether it is ours, and a cell per measure."""
    models = [*record.models, *record.baselines]
    columns = [_cells(measure, models) for measure in charts.measures(models)]
    return [
        (model.name, place < len(record.models), [cells[place] for cells in columns])
        for place, model in enumerate(models)
    ]


def _cells(measure: words.Metric, models: Sequence[Model]) -> list[dict[str, Any]]:
    """One measure of every model. The best is marked where it can be told from the second as shown."""
    figures = [model.metrics.get(measure.key, Figure(None)) for model in models]
    shown = [
        words.percent(f.value, fine=True) if measure.as_percent else words.measured(f.value) for f in figures
    ]
    best = _best(figures, measure)
    winners = [
        text for figure, text in zip(figures, shown) if figure.value is not None and figure.value == best
    ]
    alone = len(winners) == 1 and shown.count(winners[0]) == 1
    return [
        {
            "value": text,
            "interval": words.interval(figure, measure.as_percent, fine=True),
            "span": charts.span(figure, figures),
            "best": alone and figure.value is not None and figure.value == best,
        }
        for figure, text in zip(figures, shown)
    ]


def _best(figures: Sequence[Figure], measure: words.Metric) -> float | None:
    values = [each.value for each in figures if each.value is not None]
    if not values:
        return None
    return max(values) if measure.higher_is_better else min(values)


def _value_columns(record: Record, rows: Sequence[Row]) -> list[str]:
    """The columns worth showing beside a prediction: those of the surest inputs, then the first ones."""
    there = list(dict.fromkeys(key for row in rows for key in row.values))
    ranked = words.ranked(record.inputs)

    def rank(column: str) -> int:
        # An input made from a column is named after it: "city = Oslo".
        matches = (k for k, each in enumerate(ranked) if each.name == column or each.name.startswith(column))
        return next(matches, len(ranked))

    return sorted(there, key=lambda column: (rank(column), there.index(column)))[:_VALUE_COLUMNS]
