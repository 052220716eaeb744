"""What the documentation site adds to mkdocs.yml: public names, result files, and formulas as MathML."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>(?:\.\./)+[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_NAMES = re.compile(r"<!-- names: ([\w.]+) -->")


# --- links to files outside docs/ --------------------------------------------------------------------


def _outside(page: Path, target: str) -> str | None:
    """The path of a link target relative to the repository, or None if it lies in docs/."""
    path = Path(os.path.normpath(page.parent / target))
    return None if path.is_relative_to(DOCS) else path.relative_to(ROOT).as_posix()


def _is_result(name: str) -> bool:
    return name.startswith("results/") and (ROOT / name).is_file()


def on_files(files: Any, config: Any) -> Any:
    """Copy the result files that pages link to."""
    from mkdocs.structure.files import File

    for page in list(files.documentation_pages()):
        for link in _LINK.finditer(page.content_string):
            name = _outside(Path(page.abs_src_path), link["target"])
            if name and _is_result(name) and files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Resolve links out of docs/, list public names, and render formulas where a page asks for it."""
    source = Path(page.file.abs_src_path)

    def resolved(link: re.Match[str]) -> str:
        name = _outside(source, link["target"])
        if name is None:
            return link[0]
        if not _is_result(name):
            return link["text"]  # the site has no copy of the source tree
        return f"[{link['text']}]({os.path.relpath(DOCS / name, source.parent)})"

    markdown = _LINK.sub(resolved, markdown)
    markdown = _NAMES.sub(lambda match: directives(match[1]), markdown)
    return formulas(markdown) if page.meta.get("formulas") else markdown


# --- reference ---------------------------------------------------------------------------------------


def documented_as(module: str, name: str) -> str | None:
    """The path under which the reference documents a name of ``module.__all__``; None for a module.

    Names of ``sparsebnn`` itself are on its page, but for the estimators and ``export``, which it loads on
    demand. Names that a subpackage offers are documented there, not again under its modules.

    >>> documented_as("sparsebnn.training", "train"), documented_as("sparsebnn", "metrics")
    ('sparsebnn.train', None)
    """
    top, room = importlib.import_module("sparsebnn"), importlib.import_module(module)
    value = getattr(room, name)
    if isinstance(value, ModuleType):
        return None
    for lazy in ("sparsebnn.estimators", "sparsebnn.deploy"):
        if getattr(value, "__module__", "").startswith(lazy):
            return f"{lazy}.{name}"
    package = importlib.import_module(module.rpartition(".")[0] or module)
    for place in (top, package):
        if name in getattr(place, "__all__", ()) and getattr(place, name) is value:
            return f"{place.__name__}.{name}"
    return f"{module}.{name}"


def directives(module: str) -> str:
    """mkdocstrings' directives for a module's public names, and links to those on other pages."""
    places = [documented_as(module, name) for name in importlib.import_module(module).__all__]
    blocks, links = [], []
    for place in places:
        if place is None:
            continue
        if place.rpartition(".")[0] == module:
            blocks.append(f"::: {place}")
        elif place.count(".") == 1 or ".estimators." in place:
            page = "estimators" if ".estimators." in place else "index"
            links.append(f"[`{place}`]({page}.md#{place})")
    if links:
        blocks.insert(0, f"Also here: {', '.join(links)}.")
    return "\n\n".join(blocks)


# --- formulas ----------------------------------------------------------------------------------------


def mathml(latex: str, display: str) -> str:
    """One formula as MathML, which browsers render without a script."""
    from latex2mathml.converter import convert

    drawn = convert(" ".join(latex.split()), display=display)
    # Markdown treats a line that begins with <math> as a block, but not one that begins with <span>.
    return f'<div class="formula">{drawn}</div>' if display == "block" else f"<span>{drawn}</span>"


def formulas(text: str) -> str:
    """Replace ``$$ … $$`` (a paragraph) and ``$…$`` (inline, no spaces inside the dollars) by MathML."""
    text = re.sub(r"\$\$(.+?)\$\$", lambda m: mathml(m[1], "block"), text, flags=re.DOTALL)
    return re.sub(r"\$(?! )([^$\n]+?)(?<! )\$", lambda m: mathml(m[1], "inline"), text)


def sections(text: str) -> str:
    """NumPy-style sections as a bold word and a list.

    >>> print(sections("Parameters\\n----------\\na, b : two numbers,\\n    both positive."))
    **Parameters**
    <BLANKLINE>
    - `a, b`: two numbers,
        both positive.
    """

    def listed(section: re.Match[str]) -> str:
        return f"**{section[1]}**\n\n" + re.sub(r"^(\S.*?) : ", r"- `\1`: ", section[2], flags=re.MULTILINE)

    return re.sub(r"^([A-Z]\w+)\n-{3,}\n((?:.+(?:\n|$))+)", listed, text, flags=re.MULTILINE)


def plain(text: str) -> str:
    """A docstring as Markdown: sections as lists, formulas as MathML, roles and doctests as code."""
    text = sections(text)
    text = re.sub(r"^\.\. math:: (.+)$", lambda m: f"\n{mathml(m[1], 'block')}\n", text, flags=re.MULTILINE)
    indented = r"^( *)\.\. math::\n((?:\1    .*\n?|\s*\n)+)"
    text = re.sub(indented, lambda m: f"\n{mathml(m[2], 'block')}\n\n", text, flags=re.MULTILINE)
    text = re.sub(r":math:`([^`]+)`", lambda m: mathml(m[1], "inline"), text)
    text = re.sub(r":(?:class|func|meth|mod|attr):`~?([^`]+)`", r"`\1`", text)
    text = text.replace("``", "`")
    return re.sub(r"^>>> .*(?:\n(?!\s*\n).*)*", r"```pycon\n\g<0>\n```", text, flags=re.MULTILINE)


class Formulas(griffe.Extension):
    """Pass every docstring through :func:`plain` before it is rendered."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and not obj.is_alias:
            obj.docstring.value = plain(obj.docstring.value)
