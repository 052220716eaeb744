"""The pinned versions, for every Python that is promised; nothing is installed here."""

import importlib
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LINES = [Requirement(line) for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()]


def pins(python):
    """Package to version, as pip would read the file there."""
    found = {}
    for line in LINES:
        if line.marker is None or line.marker.evaluate({"python_version": python}):
            name = canonicalize_name(line.name)
            assert name not in found, f"{name} is pinned twice for Python {python}"
            (pin,) = line.specifier
            assert pin.operator == "=="
            found[name] = pin.version
    return found


def requirements():
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    return [r for r in map(Requirement, listed) if r.name != project["name"]]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_what_the_project_asks_for_is_pinned_within_its_range(python):
    pinned = pins(python)
    for requirement in requirements():
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not pinned for Python {python}"
        assert requirement.specifier.contains(version), f"{requirement} does not allow {version}"
