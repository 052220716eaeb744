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
_NEEDS = re.compile(
    r"<!-- needs: (?P<what>[\w. ]+) -->\n(?:<!-- slow -->\n)?```python\n.*?^```", re.DOTALL | re.MULTILINE
)


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


def there(what):
    """Whether 'a.module' or 'sparsebnn command' is part of this release."""
    if " " not in what:
        return importlib.util.find_spec(what) is not None
    words = [sys.executable, "-m", *what.split(), "--help"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def without_lacking(text):
    """The text without the blocks whose needs are not there, at the same lines, and what those needs are."""
    lacking = [
        what for what in dict.fromkeys(match["what"] for match in _NEEDS.finditer(text)) if not there(what)
    ]

    def left_out(match):
        return "\n" * match[0].count("\n") if match["what"] in lacking else match[0]

    return _NEEDS.sub(left_out, text), lacking


def run(page, with_slow):
    """The blocks of a page in one namespace; errors point at the page's own lines."""
    namespace = {"__name__": "__main__"}
    text, namespace["__lacking__"] = without_lacking(page.read_text(encoding="utf-8"))
    for slow, code, line in blocks(text):
        if with_slow or not slow:
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
    return namespace


@pytest.mark.parametrize(("page", "with_slow"), list(_cases()))
def test_blocks_run(page, with_slow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lacking = run(page, with_slow)["__lacking__"]
    if lacking:
        pytest.skip(f"ran all but the blocks that need {', '.join(lacking)}: not part of this release")


def test_a_block_runs_only_where_what_it_needs_is():
    page = "{}\n```python\nx = 1\n```\n```python\ny = 2\n```\n"
    for what, found in (("sparsebnn.app.report", 2), ("sparsebnn.reporting", 1), ("sparsebnn reporting", 1)):
        text, lacking = without_lacking(page.format(f"<!-- needs: {what} -->"))
        assert len(blocks(text)) == found
        assert lacking == ([] if found == 2 else [what])
        assert blocks(text)[-1] == (False, "y = 2\n", 5)


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
