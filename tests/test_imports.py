"""What importing the library loads, what it offers, and that the rooms are written down."""

import functools
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sparsebnn

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("sklearn", "scipy", "matplotlib", "typer", "rich", "safetensors", "pandas", "triton", "zuko")


@functools.cache
def loaded_by(statement):
    """Which of the heavy packages a fresh interpreter has loaded after ``statement``."""
    code = f"{statement}\nimport sys\nprint([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_the_library_loads_nothing_heavy():
    # What torch itself loads is torch's business.
    ours = "import sparsebnn, sparsebnn.training, sparsebnn.app.cli, sparsebnn.app.report"
    assert loaded_by(ours) == loaded_by("import torch")
    assert not set(re.findall(r"\w+", loaded_by("import torch"))) & set(HEAVY[:7])


def test_the_probe_sees_a_heavy_import():
    assert "safetensors" in loaded_by("import safetensors")


def test_reachability_imports_no_computer_algebra():
    """PyTorch imports sympy for a gradient with weights, which costs a first fit a quarter of a second."""
    code = (
        "import sys, sparsebnn\n"
        "from sparsebnn.selection.paths import median_reach\n"
        "median_reach(sparsebnn.mlp([3, 4, 1], family='gaussian'))\n"
        "assert 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_about_fifteen_public_names():
    assert 10 <= len(sparsebnn.__all__) <= 17
    assert len(set(sparsebnn.__all__)) == len(sparsebnn.__all__)
    # The estimators are imported when they are asked for.
    assert "SparseBNNRegressor" in dir(sparsebnn)
    with pytest.raises(AttributeError, match="no attribute 'SparseBNNClassifer'"):
        sparsebnn.SparseBNNClassifer  # noqa: B018


PATHS = (
    "nn.Conv2d",
    "posteriors.SpikeSlabPrior",
    "training.BeforeRefit",
    "inference.predict_all",
    "selection.expected_fdr",
    "likelihoods.Gaussian",
    "init.Initial",
    "metrics.accuracy",
    "data.load",
)
# Forks one process after ``import sparsebnn`` for each path: none profits from what another has imported.
PROBE = """
import os, sys, operator, sparsebnn
for path in sys.argv[1:]:
    if os.fork() == 0:
        try:
            operator.attrgetter(path)(sparsebnn)
            os._exit(0)
        except BaseException:
            os._exit(1)
    if os.wait()[1]:
        print(path)
"""


def unreachable(paths):
    """Those of the attributes that a process cannot reach after ``import sparsebnn`` alone."""
    command = [sys.executable, "-c", PROBE, *paths]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_rest_is_reached_through_attributes():
    """One ``import sparsebnn`` is enough."""
    assert unreachable([*PATHS, "nn.Conv9d"]) == ["nn.Conv9d"]


@pytest.mark.parametrize("name", sparsebnn.__all__)
def test_public_names_are_documented(name):
    thing = getattr(sparsebnn, name)
    own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert own, f"{name} has no docstring of its own"
    assert not own.startswith(f"{name}("), f"{name} has only what dataclass generates"


def _rooms():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.search(r"^layers = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)[1]
    return re.findall(r"\w+", layers)


@pytest.mark.parametrize("room", _rooms())
def test_every_room_is_in_the_architecture(room):
    assert re.search(rf"\b{room}\b", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))


def _places():
    """The rows of ARCHITECTURE.md's table: file and names."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.split("## Find it in 30 seconds")[1].split("\n## ")[0]
    rows = re.findall(r"^\| .* \| `([\w/]+\.py)` \| (.*) \|$", table, flags=re.MULTILINE)
    return [(file, name) for file, names in rows for name in re.findall(r"`([\w.]+)`", names)]


def test_the_table_of_places_is_read():
    assert len(_places()) > 30


@pytest.mark.parametrize(("file", "name"), _places())
def test_what_the_architecture_names_exists(file, name):
    module = importlib.import_module("sparsebnn." + file.removesuffix(".py").replace("/", "."))
    thing = module
    for part in name.split("."):
        thing = getattr(thing, part)
    assert inspect.getsourcefile(inspect.unwrap(thing)) == module.__file__
