"""Every python block of the README and of docs/ runs as printed, and so does every sh block of a tutorial."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIALS = ROOT / "docs" / "tutorials"
_BLOCK = re.compile(
    r"(?P<slow><!-- slow -->\s*\n)?```(?P<kind>python|sh)\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE
)


class Block(NamedTuple):
    kind: str
    slow: bool
    code: str
    line: int


def blocks(text):
    """The python and sh blocks of a page in reading order; ``line`` is where the code begins."""
    return [
        Block(
            match["kind"], match["slow"] is not None, match["code"], text[: match.start("code")].count("\n")
        )
        for match in _BLOCK.finditer(text)
    ]


def runnable(page):
    """The blocks that run: python everywhere, sh in tutorials (elsewhere it may train for hours)."""
    found = blocks(page.read_text(encoding="utf-8"))
    return [block for block in found if block.kind == "python" or page.parent == TUTORIALS]


def run_shell(code, folder):
    """Run shell lines in ``folder``; this environment's programs come first, as in an activated one."""
    programs = Path(sys.executable).parent  # not resolved: a virtual environment's python is a link
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "COLUMNS": "100",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
    return done.stdout


def run(page, with_slow=False, folder="."):
    """Run a page's blocks in order, python in one namespace; tracebacks point at the page's lines."""
    namespace = {"__name__": "__main__"}
    for block in runnable(page):
        if block.slow and not with_slow:
            continue
        if block.kind == "sh":
            run_shell(block.code, folder)
        else:
            exec(compile("\n" * block.line + block.code, str(page), "exec"), namespace)
    return namespace


def _cases():
    for page in PAGES:
        found, name = runnable(page), str(page.relative_to(ROOT))
        if any(not block.slow for block in found):
            yield pytest.param(page, False, id=name)
        if any(block.slow for block in found):
            yield pytest.param(page, True, id=f"{name}-slow", marks=pytest.mark.slow)


@pytest.mark.parametrize(("page", "with_slow"), list(_cases()))
def test_blocks_run(page, with_slow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(page, with_slow)


def test_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    for block in blocks(text):
        assert len([line for line in block.code.splitlines() if line]) <= 12


def test_a_broken_python_block_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError):
        run(page)


@pytest.mark.parametrize("code", ["false\ntrue", "false | cat", "echo $UNSET_VARIABLE_OF_THIS_TEST"])
def test_a_broken_shell_line_is_noticed(code, tmp_path):
    with pytest.raises(AssertionError):
        run_shell(code, tmp_path)


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_to_files(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    local = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    missing = [target for target in local if not (page.parent / target.split("#")[0]).exists()]
    assert not missing


def test_pictures_are_small():
    for picture in (ROOT / "docs" / "images").glob("*.png"):
        assert picture.stat().st_size < 400_000, picture.name
