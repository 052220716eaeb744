"""What the site's builder is told beyond mkdocs.yml: the menu, the result files, and formulas as MathML."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, TypeGuard

import griffe

ROOT = Path(__file__).resolve().parents[1]
START = {
    "Home": "index.md",
    "Getting started": "getting_started.md",
    "Reading inclusion probabilities": "inclusion.md",
    "Choosing a family": "families.md",
    "Reading a report": "report.md",
    "Which variables": "selection.md",
}
DEPTH = {
    "Equations and their code": "equations.md",
    "Reproducing the paper": "reproducing.md",
    "Departures from the paper": "deviations.md",
    "What it costs": "performance.md",
    "API reference": "api.md",
}
# The order of the reference: from what one uses first to what one looks up.
SECTIONS = [
    "networks", "layers", "training", "prediction", "metrics", "selection", "priors", "initial", "conversion",
    "passes", "data", "saving",
]  # fmt: skip
_OUTSIDE = re.compile(r"\[(?P<text>[^\]]*)\]\(\.\./(?P<target>[^)\s]+)\)")
_BESIDE = re.compile(r"\]\(\.\./((?:results/)[^)#\s]+)\)")


def on_config(config: Any) -> Any:
    """The menu: the pages above, then every other page of docs/ as a study, in the order of their names."""
    named = {*START.values(), *DEPTH.values()}
    studies = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name not in named)
    config.nav = [
        *({title: page} for title, page in START.items()),
        {"In depth": [{title: page} for title, page in DEPTH.items()]},
        {"Studies": studies},
    ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Result files that pages link to come along."""
    from mkdocs.structure.files import File

    for page in list(files.documentation_pages()):
        for name in _BESIDE.findall(page.content_string):
            if (ROOT / name).is_file() and files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links out of docs/ lead to copies or become text; $$ … $$ and $ … $ MathML where a page says so."""
    markdown = _OUTSIDE.sub(_inside, markdown)
    markdown = markdown.replace("<!-- public names -->", public_names())
    return formulas(markdown) if page.meta.get("formulas") else markdown


def _inside(link: re.Match[str]) -> str:
    """A result file has a copy on the site; a folder or a file of the source tree has not."""
    copied = link["target"].startswith("results/") and (ROOT / link["target"]).is_file()
    return f"[{link['text']}]({link['target']})" if copied else link["text"]


def public_names() -> str:
    """A directive for each name of the package's ``__all__``, under the module that it comes from.

    Read from the source, not imported, and never written by hand: so the list cannot fall behind.
    """
    package = ROOT / "src" / "sparsebnn"
    tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    origin = {
        alias.name: node.module.partition(".")[2]
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sparsebnn")
        for alias in node.names
    }
    (listed,) = (ast.literal_eval(node.value) for node in tree.body if _assigns(node, "__all__"))
    groups: dict[str, list[str]] = {}
    if (package / "estimators").is_dir():
        groups["estimators"] = ["estimators.SparseBNNClassifier", "estimators.SparseBNNRegressor"]
    for name in sorted(listed, key=lambda each: _place(origin.get(each) or each)):
        groups.setdefault(origin.get(name) or name, []).append(name)
    return "\n\n".join(
        f"## {module.capitalize()}\n\n" + "\n\n".join(f"::: sparsebnn.{name}" for name in names)
        for module, names in groups.items()
    )


def _place(module: str) -> int:
    return SECTIONS.index(module) if module in SECTIONS else len(SECTIONS)


def _assigns(node: ast.stmt, name: str) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and any(getattr(each, "id", "") == name for each in node.targets)


def mathml(latex: str, display: str) -> str:
    """One formula, which browsers draw themselves."""
    from latex2mathml.converter import convert

    drawn = convert(" ".join(latex.split()), display=display)
    # Markdown takes a line that begins with <math> for a block, one that begins with <span> not.
    return f'<div class="formula">{drawn}</div>' if display == "block" else f"<span>{drawn}</span>"


def formulas(text: str) -> str:
    """Dollar-delimited formulas as MathML: a block is a paragraph, the inline form hugs its dollars."""
    text = re.sub(r"\$\$(.+?)\$\$", lambda m: mathml(m[1], "block"), text, flags=re.DOTALL)
    return re.sub(r"\$(?! )([^$\n]+?)(?<! )\$", lambda m: mathml(m[1], "inline"), text)


def plain(text: str) -> str:
    """Docstrings in Markdown: their maths as MathML, their references and examples as code."""
    text = re.sub(r"^\.\. math:: (.+)$", lambda m: f"\n{mathml(m[1], 'block')}\n", text, flags=re.MULTILINE)
    indented = r"^( *)\.\. math::\n((?:\1    .*\n?|\s*\n)+)"
    text = re.sub(indented, lambda m: f"\n{mathml(m[2], 'block')}\n\n", text, flags=re.MULTILINE)
    text = re.sub(r":math:`([^`]+)`", lambda m: mathml(m[1], "inline"), text)
    text = re.sub(r":(?:class|func|meth|mod|attr):`~?([^`]+)`", r"`\1`", text)
    text = text.replace("``", "`")
    return re.sub(r"^>>> .*(?:\n(?!\s*\n).*)*", r"```pycon\n\g<0>\n```", text, flags=re.MULTILINE)


class Formulas(griffe.Extension):
    """Docstrings pass through :func:`plain` before they are shown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and not obj.is_alias:
            obj.docstring.value = plain(obj.docstring.value)
