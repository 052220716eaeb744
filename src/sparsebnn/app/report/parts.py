"""What a section of the report is made of: tables, plots, paragraphs and folded parts. No markup here.

A section is one function of ``sections/`` that takes the record and returns a
:class:`Section`, or None if the record has nothing to show. ``sections/__init__.py`` lists them in the
order of the page. A part is drawn by the macro of ``templates/pieces.html.j2`` that its ``macro`` names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sparsebnn.app.report.charts import Plot
from sparsebnn.app.report.record import Figure

__all__ = [
    "Cell",
    "Details",
    "Drawing",
    "Heading",
    "Legend",
    "Panels",
    "Plot",
    "Row",
    "Section",
    "Table",
    "Text",
    "legend",
    "line_of",
]


@dataclass(frozen=True)
class Section:
    """A heading, a short note on how to read the section, and its parts.

    ``id`` is the anchor of the section: lower case, unique in the page. ``hint`` follows the note on a
    screen, not on paper. ``terms`` are words with their meaning.
    """

    id: str
    title: str
    parts: Sequence[Any]
    note: str = ""
    hint: str = ""
    terms: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Cell:
    """A cell of a table: text, a smaller second line, a tag, and a bar or an interval drawn in it.

    ``share`` draws a bar from 0 to 1, ``span`` a figure with its interval as positions between 0 and 120
    (:func:`sparsebnn.app.report.charts.span`), ``shade`` a background from 0 to 1. ``number`` keeps the
    text on one line, ``code`` sets it in a fixed width, and ``symbol`` is a decoration that screen readers
    skip.
    """

    text: str
    below: str = ""
    tag: str = ""
    share: float | None = None
    span: Figure | None = None
    shade: float | None = None
    bold: bool = False
    number: bool = True
    code: bool = False
    symbol: str = ""


@dataclass(frozen=True)
class Heading:
    """The heading of a column; ``means`` explains it, ``symbol`` is a decoration."""

    text: str
    means: str = ""
    symbol: str = ""


@dataclass(frozen=True)
class Row:
    """A row of a table: its heading (None for a table without row headings), its cells, and how it is set
    off.
    """

    head: str | None
    cells: Sequence[Cell]
    kind: str = ""  # "ours", "other" or "left" (out)


@dataclass(frozen=True)
class Table:
    """A table that scrolls sideways on a phone. ``label`` names it for screen readers."""

    label: str
    header: Sequence[Heading]
    rows: Sequence[Row]
    macro: ClassVar[str] = "table_part"


@dataclass(frozen=True)
class Text:
    """A paragraph: a remark if ``soft``, a heading within the section if ``heading``."""

    text: str
    soft: bool = True
    heading: bool = False
    macro: ClassVar[str] = "text_part"


@dataclass(frozen=True)
class Legend:
    """Short explanations of marks: ``(css class of a line, or None for none, text)``."""

    entries: Sequence[tuple[str | None, str]]
    macro: ClassVar[str] = "legend_part"


@dataclass(frozen=True)
class Panels:
    """Parts next to each other if the page is wide enough."""

    parts: Sequence[Any]
    macro: ClassVar[str] = "panels_part"


@dataclass(frozen=True)
class Details:
    """Parts that are folded until they are opened, and unfolded on paper."""

    summary: str
    parts: Sequence[Any]
    macro: ClassVar[str] = "details_part"


@dataclass(frozen=True)
class Drawing:
    """The network (:mod:`sparsebnn.app.report.drawing`)."""

    drawing: Any
    macro: ClassVar[str] = "drawing_part"


def line_of(place: int, single: bool) -> str:
    """The style of the line of an output: bold alone, otherwise one color for each."""
    return "bold" if single else f"class class-{min(place, 5) + 1}"


def legend(names: Sequence[str]) -> list[Legend]:
    """The colors of several outputs; nothing for one."""
    entries = [(f"class-{min(place, 5) + 1}", name) for place, name in enumerate(names)]
    return [Legend(entries)] if len(names) > 1 else []
