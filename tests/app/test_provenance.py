"""Which commit a result is attributed to."""

from __future__ import annotations

import subprocess
from functools import partial

import pytest

from sparsebnn.app import provenance
from sparsebnn.app.provenance import commit, rounded


def test_numbers_are_rounded_to_significant_digits():
    assert rounded([123456.789, 1e-9, float("inf"), "text", 7]) == [123457.0, 1e-9, None, "text", 7]


def repository(folder, package, name):
    """A git repository with one commit that holds a package; returns the commit."""
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    run = partial(subprocess.run, cwd=folder, check=True, capture_output=True, text=True)
    run(["git", "init", "-q"])
    run(["git", "add", "."])
    run(["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-q", "-m", "First"])
    return run(["git", "rev-parse", "HEAD"]).stdout.strip()


@pytest.mark.parametrize(
    ("place", "name", "ours"),
    [
        ("src/sparsebnn", "sparsebnn", True),
        ("src/sparsebnn", "theirs", False),
        ("lib/site-packages/sparsebnn", "theirs", False),
        ("lib/site-packages/sparsebnn", "sparsebnn", False),
    ],
)
def test_only_a_checkout_of_this_project_has_a_commit(place, name, ours, tmp_path, monkeypatch):
    """Installed into another project's repository, the package is not at that project's commit."""
    package = tmp_path / place
    head = repository(tmp_path, package, name)
    monkeypatch.setattr(provenance.sparsebnn, "__file__", str(package / "__init__.py"))
    monkeypatch.delenv("SPARSEBNN_COMMIT", raising=False)
    assert commit() == (head if ours else None)
    (package / "__init__.py").write_text("changed = True")
    assert commit() == (f"{head}+changes" if ours else None)
    monkeypatch.setenv("SPARSEBNN_COMMIT", "told")
    assert provenance.commit_and_source()[1] == ("git" if ours else "SPARSEBNN_COMMIT")
