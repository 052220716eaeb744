"""Parts of a page that a command writes: all between ``<!-- name:begin -->`` and ``<!-- name:end -->``."""

from __future__ import annotations

from pathlib import Path

from sparsebnn.checks import invalid
from sparsebnn.io.files import atomic_write

__all__ = ["filled", "renew"]


def filled(text: str, body: str, name: str = "tables", owner: str = "the page") -> str:
    """A page whose part of that name is ``body``.

    >>> print(filled("above <!-- tables:begin --> old <!-- tables:end --> below", "new"))
    above <!-- tables:begin -->
    <BLANKLINE>
    new
    <BLANKLINE>
    <!-- tables:end --> below
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise invalid("page", "this command", f"one with one {begin} and, after it, one {end}", owner)
    before, rest = text.split(begin)
    body = body.strip("\n")
    return f"{before}{begin}\n\n{body}\n\n{end}{rest.split(end)[1]}"


def renew(page: Path, body: str, name: str = "tables") -> None:
    """Write the part of that name anew, all of it or nothing."""
    new = filled(page.read_text(encoding="utf-8"), body, name, str(page))
    with atomic_write(page) as partial:
        partial.write_text(new, encoding="utf-8")
