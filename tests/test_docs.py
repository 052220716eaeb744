"""The documentation site: it builds without a warning, loads nothing, and names only what exists.

(Its python blocks are run by ``test_readme.py``.)
"""

from __future__ import annotations

import importlib.util
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sparsebnn
from sparsebnn.app import cli
from studies import STUDIES

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed (pip install 'sparsebnn[docs]')")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_built(site):
    assert {path.stem for path in PAGES} <= {path.stem for path in site.glob("*.html")}
    assert list((site / "results").rglob("*.json"))  # what pages link to came along


def test_the_site_loads_nothing_from_elsewhere(site):
    loads = re.compile(r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=[\"']?(https?:)?//", re.IGNORECASE)
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not [m[0] for m in loads.finditer(text) if 'rel="canonical"' not in m[0]], page.name


def test_formulas_are_drawn(site):
    for name, least in (("equations.html", 12), ("api.html", 5)):
        text = (site / name).read_text(encoding="utf-8")
        assert text.count("<math") >= least
        assert "$$" not in text
        assert ".. math::" not in text
        assert ":math:" not in text


def _places():
    for page in PAGES:
        for name in sorted(set(re.findall(r"`(sparsebnn(?:\.\w+)+)`", page.read_text(encoding="utf-8")))):
            yield pytest.param(name, id=f"{page.stem}-{name}")


@pytest.mark.parametrize("name", list(_places()))
def test_every_place_in_the_code_exists(name):
    pkgutil.resolve_name(name)


def test_the_equations_name_their_places():
    text = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    assert len(set(re.findall(r"`sparsebnn(?:\.\w+)+`", text))) >= 20


@pytest.mark.parametrize("name", sparsebnn.__all__)
def test_the_reference_has_every_public_name(name, site):
    assert f'id="sparsebnn.{name}"' in (site / "api.html").read_text(encoding="utf-8")


def _shell_lines():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]:
        for block in _SHELL.findall(page.read_text(encoding="utf-8")):
            for line in block.splitlines():
                command = line.split("#")[0].strip()
                if command:
                    yield pytest.param(command, id=f"{page.stem}: {command}"[:60])


@pytest.fixture(scope="module")
def commands():
    return {each.name or each.callback.__name__ for each in cli._app().registered_commands}


@pytest.mark.parametrize("command", list(_shell_lines()))
def test_shell_lines_name_what_exists(command, commands):
    """Studies take hours, so a line is not run: its command, study, module or target must exist."""
    words = command.split()
    if words[0] in ("sparsebnn", ".venv/bin/sparsebnn"):
        assert words[1] in commands
        if words[1] == "reproduce" and len(words) > 2:
            assert words[2] in STUDIES
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]) is not None
    elif words[0] == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert words[1] in targets
    else:
        assert words[0] in ("pip", "git", ".venv/bin/pip", ".venv/bin/python")
