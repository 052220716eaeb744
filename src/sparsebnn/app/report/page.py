"""A record to one self-contained HTML page.

Everything that comes from the data is escaped. In addition, the page's content security policy allows only
its own style and script, by their hashes, so markup in a name is shown and never run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sparsebnn
from sparsebnn.app.report import words
from sparsebnn.app.report.record import Record, parse, read
from sparsebnn.app.report.sections import sections
from sparsebnn.checks import invalid
from sparsebnn.io.files import atomic_write

__all__ = ["render", "write"]

_TEMPLATES = Path(__file__).parent / "templates"


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
    environment.filters.update(fitted=words.fitted)
    return environment


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _context(record: Record) -> dict[str, Any]:
    from markupsafe import Markup  # jinja2 depends on it

    style = (_TEMPLATES / "report.css").read_text(encoding="utf-8")
    script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
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
        "sections": sections(record),
        "fresh_id": _fresh_ids(),
    }


def _fresh_ids() -> Callable[[], str]:
    """Names for elements that refer to each other, a new one at each call."""
    count = itertools.count(1)
    return lambda: f"plot-{next(count)}"


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
