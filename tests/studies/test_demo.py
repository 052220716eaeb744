"""The demo: what it writes, what it says, how it starts; slowly, that it keeps what it promises."""

import json
import statistics

import pytest
import torch

import sparsebnn
from sparsebnn.io import saving
from sparsebnn.io.data import load
from sparsebnn.nn.networks import bayesian_layers
from studies.demo import command as demo
from studies.demo import picture as demo_picture


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A run of a few epochs and one seed."""
    spec = demo.Spec(epochs=2, replicates=1, n_draws=10)
    return demo.run(spec, tmp_path_factory.mktemp("demo") / "out", quiet=True)


def test_files_are_written(quick):
    assert quick.model.exists()
    assert quick.picture.read_bytes().startswith(b"\x89PNG")
    record = json.loads(quick.table.read_text())
    assert record["rows"][1]["accuracy"] == pytest.approx(quick.rows[1].accuracy, rel=1e-5)
    assert record["provenance"]["command"] == "python -m studies demo --seed 0 --epochs 2"
    assert record["provenance"]["seeds"] == [0]
    assert record["settings"]["temperature"] == 0.1


def test_the_saved_model_predicts_what_the_table_says(quick):
    """Loaded into a fresh template, it gives the very figures of the run."""
    network = demo.network()
    metadata = saving.load(quick.model, network).metadata
    data = load("digits")
    for row, model in zip(quick.rows, ("average", "median")):
        predicted = demo._predict(network, data.x_test, quick.spec, model)
        assert [sparsebnn.metrics.nll(predicted.probs, data.y_test)] == row.nll
        assert [sparsebnn.metrics.accuracy(predicted.probs, data.y_test)] == row.accuracy
    assert metadata["sizes"] == list(demo.SIZES)
    assert metadata["seed"] == 0


def test_validation_never_sees_the_test_part():
    data, held = load("digits"), demo._validation(load("digits"))
    known = {tuple(row) for row in data.x_train.tolist()}
    ours = [tuple(row) for row in torch.cat([held.x_train, held.x_test]).tolist()]
    assert sorted(ours) == sorted(tuple(row) for row in data.x_train.tolist())
    assert len(known) == len(ours) == len(data.y_train)
    assert len(held.y_test) == 337


# -- the picture ------------------------------------------------------------------------------------


def test_only_units_on_a_path_are_live():
    """By hand: pixel 0 → unit 0 → class 1; pixel 1 → unit 1 ends there; unit 2 has no pixel."""
    first = torch.tensor([[True, False], [False, True], [False, False]])
    second = torch.tensor([[False, False, True], [True, False, False]])
    layers = [demo_picture.Connections(kept, kept.float()) for kept in (first, second)]
    live = demo_picture.live_units(layers)
    assert [each.tolist() for each in live] == [[True, False], [True, False, False], [False, True]]


def test_connections_are_those_of_the_median_model(quick):
    network = demo.network()
    saving.load(quick.model, network)
    with torch.no_grad():
        logit = network[0].weights.conditional.inclusion_logit
        logit[:, 10:] = -1.0
    found = demo_picture.connections(network)
    assert torch.equal(found[0].kept, network[0].weights.inclusion_prob() > 0.5)
    assert not found[0].kept[:, 10:].any()
    assert (found[0].strength[:, 10:] == 0).all()
    assert [c.kept.shape for c in found] == [c.weights.shape for _, c in bayesian_layers(network)]


# -- what it promises -------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_whole_demo_keeps_its_promise(tmp_path):
    """Both predictors at least 0.96 right at a density of at most 0.35, medians of three seeds."""
    result = demo.run(out=tmp_path, quiet=True)
    averaged, median, _ = result.rows
    assert len(averaged.accuracy) == 3
    assert statistics.median(averaged.accuracy) >= 0.96
    assert statistics.median(median.accuracy) >= 0.96
    assert 0.01 < statistics.median(median.density) <= 0.35
    assert result.seconds < 120
