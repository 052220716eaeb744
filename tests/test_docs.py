"""The documentation site builds without a warning, loads nothing, and names only what exists.

``test_readme.py`` runs its code blocks.
"""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import sparsebnn
from sparsebnn.app import cli
from studies import STUDIES

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ROOMS = ["sparsebnn", *(f"sparsebnn.{name}" for name in (
    "app.report", "deploy", "estimators", "inference", "inference.calibration", "inference.metrics", "init",
    "io.data", "likelihoods", "nn", "posteriors", "posteriors.flows", "posteriors.learned_priors",
    "posteriors.priors", "selection", "training",
))]  # fmt: skip
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed (pip install 'sparsebnn[docs]')")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def reference(site):
    return "".join(path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html"))


def test_every_page_is_built(site):
    wanted = {path.relative_to(DOCS).with_suffix(".html") for path in PAGES}
    assert wanted <= {path.relative_to(site) for path in site.rglob("*.html")}
    assert list((site / "results").rglob("*.json"))  # result files that pages link to


def test_the_site_loads_nothing_from_elsewhere(site):
    loads = re.compile(r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=[\"']?(https?:)?//", re.IGNORECASE)
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not [m[0] for m in loads.finditer(text) if 'rel="canonical"' not in m[0]], page.name


def test_formulas_are_rendered(site, reference):
    equations = (site / "equations.html").read_text(encoding="utf-8")
    for text, least in ((equations, 12), (reference, 5)):
        assert text.count("<math") >= least
        assert not re.search(r"\$\$|\.\. math::|:math:", text)


def test_the_hooks_do_what_their_examples_say(site):
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    done = doctest.testmod(hooks)
    assert done.attempted
    assert not done.failed


def _public_names():
    """Every public name, under the path that the reference gives it: the shortest."""
    for room in ROOMS:
        module = importlib.import_module(room)
        package = importlib.import_module(room.rpartition(".")[0] or room)
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, ModuleType):
                continue
            if module is not package is not sparsebnn and name in getattr(package, "__all__", ()):
                assert getattr(package, name) is value
                continue  # among the package's names
            own = getattr(value, "__module__", "")
            lazy = next((r for r in ("sparsebnn.estimators", "sparsebnn.deploy") if own.startswith(r)), None)
            at_top = lazy is None and name in sparsebnn.__all__ and getattr(sparsebnn, name) is value
            yield f"{lazy or ('sparsebnn' if at_top else room)}.{name}"


@pytest.mark.parametrize("name", sorted(set(_public_names())))
def test_the_reference_has_every_public_name(name, reference):
    assert f'id="{name}"' in reference


def _places():
    for page in PAGES:
        for name in sorted(set(re.findall(r"`(sparsebnn(?:\.\w+)+)`", page.read_text(encoding="utf-8")))):
            yield pytest.param(name, id=f"{page.stem}-{name}")


@pytest.mark.parametrize("name", list(_places()))
def test_every_place_in_the_code_exists(name):
    pkgutil.resolve_name(name)


@pytest.fixture(scope="module")
def commands():
    import typer

    group = typer.main.get_command(cli._app())
    return {
        name: {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        for name, command in group.commands.items()
    }


def test_the_command_line_page_has_every_option(commands):
    text = (DOCS / "command_line.md").read_text(encoding="utf-8")
    for command, options in commands.items():
        assert f"`sparsebnn {command} " in text
        assert not [option for option in options if option not in text], command


def _shell_lines():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]:
        for block in _SHELL.findall(page.read_text(encoding="utf-8")):
            for line in block.splitlines():
                command = line.split("#")[0].strip()
                if command and page.parent != DOCS / "tutorials":  # those are run
                    yield pytest.param(command, id=f"{page.stem}: {command}"[:60])


@pytest.mark.parametrize("command", list(_shell_lines()))
def test_shell_lines_name_what_exists(command, commands):
    """Studies take hours, so these lines do not run: check that command, options, study or target exist."""
    words = command.split()
    if words[0] == "sparsebnn":
        assert words[1] in commands
        assert {word for word in words if word.startswith("--")} <= commands[words[1]]
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]) is not None
        assert words[2] != "studies" or set(words[3:4]) <= set(STUDIES)
    elif words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert words[1] in targets
        studies = [word.removeprefix("STUDY=") for word in words if word.startswith("STUDY=")]
        assert set(studies) <= set(STUDIES)
    else:
        assert words[0] in ("pip", "git", ".venv/bin/pip", ".venv/bin/python")
