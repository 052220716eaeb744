"""A record to one self-contained HTML page.

Everything that comes from the data is escaped. In addition, the page's content security policy allows only
its own style and script, by their hashes, so markup in a name is shown and never run.
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
from sparsebnn.app.report.record import Figure, Record, parse, read
from sparsebnn.checks import invalid
from sparsebnn.io.files import atomic_write

__all__ = ["render", "write"]

_TEMPLATES = Path(__file__).parent / "templates"
_FIRST_INPUTS = 25
_VALUE_COLUMNS = 6


def write(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write ``folder/report.html`` (or ``out``) from ``folder/record.json``."""
    page = _rendered(read(folder))
    target = Path(folder) / "report.html" if out is None else Path(out)
    if target.is_dir():
        raise invalid("out", "report", "a file", f"the folder {str(target)!r}", "Name a file: report.html")
    with atomic_write(target) as partial:
        partial.write_text(page, encoding="utf-8")
    return target


def render(record: Mapping[str, Any]) -> str:
    """The page as text, from the content of ``record.json``.

    >>> page = render({"format_version": 1, "task": "regression", "target": "<b>price</b>"})
    >>> "<b>price</b>" in page, "&lt;b&gt;price&lt;/b&gt;" in page
    (False, True)
    """
    return _rendered(parse(record))


def _rendered(record: Record) -> str:
    return _environment().get_template("report.html.j2").render(**_context(record))


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
    from markupsafe import Markup  # jinja2 depends on it

    style = (_TEMPLATES / "report.css").read_text(encoding="utf-8")
    script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    models = [*record.models, *record.baselines]
    measures = [words.metric(key) for key in dict.fromkeys(key for model in models for key in model.metrics)]
    columns = [_cells(measure, models) for measure in measures]
    return {
        "record": record,
        "version": sparsebnn.__version__,
        # Our own files, not data: escaping would change their hashes.
        "style": Markup(style),
        "script": Markup(script),
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "sentences": words.sentences(record),
        "cards": _cards(record),
        "measures": measures,
        "models": [
            (model.name, place < len(record.models), [cells[place] for cells in columns])
            for place, model in enumerate(models)
        ],
        "calibration": charts.calibration(record),
        "size": (charts.WIDTH, charts.HEIGHT),
        "frame": charts.FRAME,
        "inputs": words.ranked(record.inputs),
        "first_inputs": _FIRST_INPUTS,
        "directions": words.DIRECTIONS,
        "effect_interval": lambda each: words.interval(Figure(0.0, each.effect_low, each.effect_high), False),
        "row_groups": [
            (title, rows, _value_columns(record, rows))
            for title, rows in (("Most certain", record.certain), ("Least certain", record.uncertain))
        ],
        "drawing": drawing.draw(record),
        "curves": charts.curves(record),
    }


def _cards(record: Record) -> list[tuple[str, str, str]]:
    """(figure, what it is, its interval or context): the four numbers at the top."""
    cards = []
    measure, own = words.headline(record)
    if own.value is not None:
        show = words.percent if measure.as_percent else words.number
        between = words.interval(own, measure.as_percent)
        cards.append((show(own.value), measure.label, f"95% interval {between}" if between else ""))
    if record.inputs:
        kept = sum(each.selected for each in record.inputs)
        cards.append((f"{kept} of {len(record.inputs)}", "inputs used", ""))
    if record.density is not None:
        count = record.replicates
        context = f"{count} replicate{'' if count == 1 else 's'}" if count else ""
        cards.append((words.percent(record.density), "of connections kept", context))
    if record.data.train_rows is not None and record.data.test_rows is not None:
        rows = words.number(float(record.data.test_rows))
        cards.append((rows, "unseen rows", f"trained on {record.data.train_rows:,}"))
    return cards


def _cells(measure: words.Metric, models: Sequence[Any]) -> list[dict[str, Any]]:
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
        {
            "value": text,
            "interval": words.interval(figure, measure.as_percent, fine=True),
            "span": charts.span(figure, figures),
            "best": alone and figure.value == best,
        }
        for figure, text in zip(figures, shown)
    ]


def _value_columns(record: Record, rows: Sequence[Any]) -> list[str]:
    """Columns to show next to a prediction: those of the highest-ranked inputs, then the first ones."""
    names = list(dict.fromkeys(key for row in rows for key in row.values))
    ranked = words.ranked(record.inputs)

    def rank(column: str) -> int:
        # Inputs made from a column begin with its name: "city = Oslo".
        return next((k for k, each in enumerate(ranked) if each.name.startswith(column)), len(ranked))

    return sorted(names, key=lambda column: (rank(column), names.index(column)))[:_VALUE_COLUMNS]
