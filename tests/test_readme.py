"""Every python block of the README and of docs/ runs as it stands."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sparsebnn

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"(?P<slow><!-- slow -->\s*\n)?```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
_NEEDS = re.compile(r"<!-- needs: (?P<what>[\w. ]+) -->")


def blocks(text):
    """(is slow, code, line of the code) of each python block, in reading order."""
    return [
        (match["slow"] is not None, match["code"], text[: match.start("code")].count("\n"))
        for match in _BLOCK.finditer(text)
    ]


def _cases():
    for page in PAGES:
        found = blocks(page.read_text(encoding="utf-8"))
        if any(not slow for slow, _, _ in found):
            yield pytest.param(page, False, id=page.name)
        if any(slow for slow, _, _ in found):
            yield pytest.param(page, True, id=f"{page.name}-slow", marks=pytest.mark.slow)


def missing(text):
    """What a page's blocks need ('a.module' or 'sparsebnn command') and is not there."""
    for what in _NEEDS.findall(text):
        if " " in what:
            words = [sys.executable, "-m", *what.split(), "--help"]
            found = subprocess.run(words, capture_output=True, check=False).returncode == 0
        else:
            found = importlib.util.find_spec(what) is not None
        if not found:
            return what
    return None


def run(page, with_slow):
    """The blocks of a page in one namespace; errors point at the page's own lines."""
    namespace = {"__name__": "__main__"}
    for slow, code, line in blocks(page.read_text(encoding="utf-8")):
        if with_slow or not slow:
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
    return namespace


@pytest.mark.parametrize(("page", "with_slow"), list(_cases()))
def test_blocks_run(page, with_slow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lacking = missing(page.read_text(encoding="utf-8"))
    if lacking:
        pytest.skip(f"{page.name} needs '{lacking}', which is not part of this release")
    run(page, with_slow)


def test_what_a_page_needs_is_looked_for():
    assert missing("<!-- needs: sparsebnn.report -->\n<!-- needs: sparsebnn report -->") is None
    assert missing("<!-- needs: sparsebnn.reporting -->") == "sparsebnn.reporting"
    assert missing("<!-- needs: sparsebnn reporting -->") == "sparsebnn reporting"


def test_first_block_does_what_the_readme_says(tmp_path, monkeypatch):
    """Ten lines at most; accuracy about 0.98 and density about 0.14, as the text after it claims."""
    code = blocks((ROOT / "README.md").read_text(encoding="utf-8"))[0][1]
    assert len([line for line in code.splitlines() if line]) <= 10
    page = tmp_path / "first.md"
    page.write_text(f"```python\n{code}```\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    left = run(page, with_slow=False)
    accuracy = sparsebnn.metrics.accuracy(left["prediction"].probs, left["digits"].y_test)
    assert accuracy == pytest.approx(0.98, abs=0.015)
    assert sparsebnn.density(left["run"].network).overall == pytest.approx(0.14, abs=0.03)


def test_the_finder_sees_tags_and_line_numbers():
    text = "a\n```python\nx = 1\n```\n<!-- slow -->\n```python\ny = 2\n```\n```sh\nz\n```\n"
    assert blocks(text) == [(False, "x = 1\n", 2), (True, "y = 2\n", 6)]


def test_a_broken_block_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError):
        run(page, with_slow=False)


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / n for n in ("ARCHITECTURE.md", "CONTRIBUTING.md"))])
def test_links_lead_to_files(page):
    text = page.read_text(encoding="utf-8")
    local = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    missing = [target for target in local if not (page.parent / target.split("#")[0]).exists()]
    assert not missing


def test_pictures_are_small():
    for picture in (ROOT / "docs" / "images").glob("demo*.png"):
        assert picture.stat().st_size < 200_000, picture.name
