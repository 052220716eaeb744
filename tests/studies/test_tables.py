"""The rendered tables: figures from result files, the paper's beside them, the README's section."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from studies.tables import report as tables
from studies.tables.published import printed

ROOT = Path(__file__).resolve().parents[2]


def store(folder, study, stem, median, average, density, epochs=250):
    """A result file with these accuracies (fractions) and densities."""
    rows = [
        {"seed": k, "accuracy_median": m, "accuracy_average": a, "density": d}
        for k, (m, a, d) in enumerate(zip(median, average, density))
    ]
    settings = {"settings": {"epochs": epochs}}
    content = {"replicates": rows, "device": "a device", "train_seconds": 90.0, "settings": settings}
    path = folder / study / f"{stem}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def line(text, start):
    """The fields of the first row that starts so, in Markdown tables."""
    found, *_ = [one for one in text.splitlines() if one.startswith(f"| {start}")]
    return [field.strip() for field in found.strip("|").split("|")]


def test_a_row_holds_ours_the_papers_and_the_difference(tmp_path):
    store(tmp_path, "table1", "kmnist-flow", [0.91] * 5 + [0.912] * 4 + [0.90], [0.9135] * 10, [0.1] * 10)
    got = line(tables.markdown(tmp_path), "KMNIST LBBNN-FLOW")
    assert got == [
        "KMNIST LBBNN-FLOW",
        "90.00 / 91.00 / 91.20",
        "90.64 / 91.12 / 91.46",
        "−0.12",
        "0.100",
        "0.096",
        "+0.004",
        "91.35 / 91.35 / 91.35",
        "91.16 / 91.30 / 91.61",
        "+0.05",
    ]
    assert "1 of 9 cells, 10 replicates each, 1.5 minutes of training on a device." in tables.text(tmp_path)


def test_what_falls_short_is_marked(tmp_path):
    paper = printed("fc", "mnist", "lrt")
    for gap, denser, marks in ((0.40, 0.03, 0), (0.41, 0.03, 1), (0.40, 0.031, 1), (0.5, 0.1, 2)):
        accuracy = [(paper.median[1] - gap) / 100] * 10
        store(tmp_path, "table1", "mnist-lrt", accuracy, [0.99] * 10, [paper.density + denser] * 10)
        assert sum("†" in field for field in line(tables.markdown(tmp_path), "MNIST LBBNN-LRT")) == marks


def test_pairs_of_flow_and_lrt(tmp_path):
    flow = np.array([0.90, 0.91, 0.92, 0.93, 0.94])
    store(tmp_path, "table2", "kmnist-flow", flow, flow, [0.3] * 5)
    store(tmp_path, "table2", "kmnist-lrt", flow - 0.005, flow - 0.02, [0.3] * 5)
    got = line(tables.markdown(tmp_path), "KMNIST LeNet-5")
    assert (got[1], got[4]) == ("+0.50", "+2.00")
    assert (got[3], got[6]) == ("+1.05", "+0.76")
    assert "to" in got[2]
    assert line(tables.markdown(tmp_path), "MNIST LeNet-5")[1] == "–"


def test_the_bootstrap_interval_is_the_exact_one_on_three_values():
    """The median of 3 draws from {a<b<c} is a, b, c with probabilities 7/27, 13/27, 7/27; ends follow."""
    first, second = np.array([0.0, 1.0, 2.0]), np.array([0.0, 10.0, 20.0])
    p = np.array([7.0, 13.0, 7.0]) / 27.0
    values = (first[:, None] - second[None, :]).ravel()
    weights = (p[:, None] * p[None, :]).ravel()
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    exact = [values[order][np.searchsorted(cumulative, level)] for level in (0.025, 0.975)]
    assert list(tables.bootstrap_interval(first, second)) == exact


def test_writing_a_page(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- tables:begin -->\nold\n<!-- tables:end -->\nbelow\n")
    words = ["--results", str(tmp_path), "--write", str(page)]
    tables.main(words)
    once = page.read_text()
    tables.main(words)
    assert page.read_text() == once
    assert "old" not in once
    assert once.startswith("above\n")
    assert once.endswith("\nbelow\n")
    assert "0 of 9 cells so far." in once
