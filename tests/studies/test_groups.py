"""Shared inclusions as smaller networks: the small study, its sizes by hand, its page against its file."""

from __future__ import annotations

import json

import pytest
import torch

from sparsebnn.nn.compaction import compact, median_weights
from sparsebnn.nn.layers import BayesianLayer
from sparsebnn.nn.networks import bayesian_layers
from studies.frontier import groups, plan


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("groups")
    groups.main(["--quick", "--epochs", "6", "--device", "cpu", "--out", str(folder)])
    return json.loads((folder / "results" / "groups" / "digits-fc.json").read_text())


def test_every_kind_of_sharing_is_compacted_and_computes_the_same(content):
    assert [block["share"] for block in content["blocks"]] == ["weight", "input", "output"]
    for block in content["blocks"]:
        for row in block["rows"]:
            assert row["largest_difference"] < 1e-5 * row["largest_output"]
            assert row["largest_difference_in_double"] < 1e-10
            assert row["numbers_before"] == 64 * 50 + 50 * 50 + 50 * 10
            before, after = row["inputs_after"], 0
            for units in row["units_after"]:
                after, before = after + before * units, units
            assert row["numbers_after"] == after
            # Floats of four bytes: the weights, and one bias per unit.
            assert row["bytes_after"] == 4 * (after + sum(row["units_after"]))
            assert row["bytes_before"] == 4 * (row["numbers_before"] + 110)
            assert row["units_after"][-1] == 10


def test_groups_leave_less_than_single_weights(content):
    single, inputs, outputs = ([row["numbers_after"] for row in b["rows"]] for b in content["blocks"])
    assert max(inputs) < min(single)
    assert max(outputs) < min(single)


def test_the_distance_is_one_between_outputs():
    """Against a forward pass written out with the median model's weights; and it sees a difference."""
    made = plan.cell_of("fc", "lrt", "digits", quick=True)
    network = groups.network_of(made, "weight")
    with torch.no_grad():
        for _, layer in bayesian_layers(network):
            layer.weights.inclusion_logit.normal_()
    small, x = compact(network), torch.randn(7, 64)
    h = x
    for module in network:
        h = module.op(h, *median_weights(module)) if isinstance(module, BayesianLayer) else module(h)
    with torch.no_grad():
        found = groups.distance(network, small, x)
        assert found[0] == pytest.approx(float((small.network(x) - h).abs().max()), abs=1e-5)
        assert found[1] == pytest.approx(float(h.abs().max()), rel=1e-5)
        assert groups.distance_in_double(network, x) < 1e-12
        small.network[-1].bias[3] += 0.5
    assert groups.distance(network, small, x)[0] == pytest.approx(0.5, abs=1e-4)
