"""The choice of LBBNN's schedule: candidates as one program, the rule, and the published one as written."""

from __future__ import annotations

import pytest
import torch

from sparsebnn.init import Uniform
from sparsebnn.io.data import load
from studies.tables import lbbnn_schedule, paper
from studies.tables.cells import quick_cell
from studies.tables.paper import Logits


def test_the_held_out_rows_are_the_last_training_rows():
    data = load("digits")
    (x, y), (x_val, y_val) = lbbnn_schedule.split(data, 300)
    assert torch.equal(torch.cat([x, x_val]), data.x_train)
    assert torch.equal(torch.cat([y, y_val]), data.y_train)
    assert len(y_val) == 300


def test_candidates_start_and_move_as_they_say():
    """Four candidates in one program: the share of logits above 0 after one epoch follows from each start."""
    candidates = (
        Logits(Uniform(-15.0, 10.0), 0.0),
        Logits(Uniform(-5.0, 15.0), 0.0),
        Logits(Uniform(0.0, 1.0), 0.0),
        Logits(Uniform(0.0, 1.0), 1.0),
    )
    spec = lbbnn_schedule.Spec("fc", "digits", candidates, 1, 1, held_out=300, draws=2)
    rows, run = lbbnn_schedule.run(spec, load("digits"), quick_cell("fc", "lbbnn"), "cpu", "eager")
    weights = 64 * 50 + 50 * 50 + 50 * 10
    for row, share in zip(rows, (0.4, 0.75, 1.0)):
        assert row["density"] == pytest.approx(share, abs=4 * (share * (1 - share) / weights) ** 0.5 + 1e-9)
    assert rows[3]["density"] < 0.9
    assert [row["seeds"] for row in rows] == [[0], [1], [2], [3]]
    first = run.replicates.parameters["network.0.weights.inclusion_logit"]
    for k, candidate in enumerate(candidates[:3]):
        low, high = candidate.start.low, candidate.start.high
        width = (high - low) / 100.0  # of 3200 draws the extremes lie within a hundredth of the ends
        assert low <= float(first[k].min()) < low + width
        assert high - width < float(first[k].max()) <= high


def test_the_rule():
    def rows(*pairs):
        return [{"density": density, "accuracy_median": accuracy} for density, accuracy in pairs]

    assert lbbnn_schedule.choose(rows((0.30, 0.95), (0.10, 0.90), (0.14, 0.92)), 0.14) == 2
    assert lbbnn_schedule.choose(rows((0.30, 0.95), (0.20, 0.90)), 0.14) == 1


def test_the_published_schedule_is_as_written():
    settings = paper.published_lbbnn("fc", "hierarchical").settings
    rates = [settings.rate("inclusion_logit", epoch) for epoch in (0, 19, 20, 249)]
    assert rates == pytest.approx([0.1, 0.1, 1e-4, 1e-4])
    assert [settings.rate("", epoch) for epoch in (0, 249)] == [1e-4, 1e-4]
    hyper = {"raw_shape": 1e-5, "raw_rate": 1e-5, "raw_included": 1e-3, "raw_excluded": 1e-3}
    for name, rate in hyper.items():
        assert [settings.rate(name, epoch) for epoch in (19, 20)] == [rate, 0.0]
    network = paper.published_lbbnn("lenet", "hierarchical").network()
    logits = network[0].weights.inclusion_logit.detach()
    assert 0.0 <= float(logits.min()) <= float(logits.max()) <= 1.0
    groups = {settings.group_of(name) for name, _ in network.named_parameters()}
    assert groups == {"", "inclusion_logit", "raw_shape", "raw_rate", "raw_included", "raw_excluded"}


def test_a_steady_cell_moves_all_but_the_logits_at_one_rate():
    for architecture in paper.ARCHITECTURES:
        usual, steady = paper.cell(architecture, "lbbnn"), paper.steady(paper.cell(architecture, "lbbnn"))
        for epoch in (0, 100, 130, 249):
            assert steady.settings.rate("", epoch) == 1e-4
            logits = [one.settings.rate("inclusion_logit", epoch) for one in (usual, steady)]
            assert logits[0] == logits[1]
