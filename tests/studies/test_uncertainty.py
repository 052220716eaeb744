"""The uncertainty study: the quick version end to end, its data, its measures."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

import sparsebnn
from sparsebnn.inference.metrics import entropy
from sparsebnn.inference.prediction import ClassPrediction
from studies.data.clusters import five_clusters
from studies.uncertainty import command as uncertainty
from studies.uncertainty import figures as uncertainty_figures
from studies.uncertainty import starts as uncertainty_starts
from studies.uncertainty.command import Spec, problems
from studies.uncertainty.measures import (
    Problem,
    interval,
    judge,
    lattice,
    paired,
    t_quantile,
)
from studies.uncertainty.methods import METHODS, Method, OwnRows, fit

PROBLEM = Problem.draw(five_clusters(), 50, 400, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The quick study, without figures."""
    out = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uncertainty_figures, "draw_all", lambda *_: [])
        uncertainty.main(["--quick", "--out", str(out), "--workers", "1"])
    return out


def test_the_record(folder):
    record = json.loads((folder / "results/uncertainty/uncertainty.json").read_text())
    cells = record["summary"]["cells"]
    assert list(cells) == ["10", "20"]
    assert set(cells["10"]) == {method.key for method in METHODS}
    assert set(cells["20"]) == {method.key for method in METHODS if not method.smallest}
    assert len(record["rows"]) == 2 * (9 + 6)
    for row in record["rows"]:
        assert 0.9 < row["bayes_accuracy"] <= 1.0
        assert row["detection"]["max_output"]["flagged_inside"] <= 1.0
    first = [row["nll"] for row in record["rows"] if row["method"] == "lrt" and row["per_class"] == 10]
    assert cells["10"]["lrt"]["nll"]["mean"] == pytest.approx(np.mean(first), rel=1e-3)
    assert record["provenance"]["seeds"] == [0, 1]
    assert any("falls from 10 to 20" in each["claim"] for each in record["summary"]["statements"])


def test_all_methods_see_the_same_data_and_replicates_see_different_data():
    first, second = problems(Spec.quick(), 10)
    again, _ = problems(Spec.quick(), 10)
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, second.x)
    for problem in (first, second):
        assert problem.x.min(0).values.tolist() == [0.0, 0.0]
        assert problem.x.max(0).values.tolist() == [1.0, 1.0]


def test_replicates_train_on_rows_of_their_own():
    """The second of two data sets, trained beside the first, is what it is alone."""
    spec = Spec.quick()
    data = problems(spec, 10)
    inputs = torch.stack([problem.x for problem in data])
    method = Method("plain", "", "point", 0.01, 10)
    both, _ = fit(method, inputs, data[0].y, 8, 50, 0, None)
    alone, _ = fit(method, inputs[1:], data[0].y, 8, 50, 1, None)
    for a, b in zip(both[1][0].parameters(), alone[0][0].parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    network = OwnRows(torch.nn.Identity(), inputs[0])
    assert torch.equal(network(torch.tensor([[3.0], [0.0]])), inputs[0][[3, 0]])


def oracle(x: torch.Tensor) -> ClassPrediction:
    """The generating model as if it were a method."""
    probs = PROBLEM.true_probs(x)
    return ClassPrediction(probs, entropy(probs), 1, PROBLEM.clusters.log_density(PROBLEM.scaling.invert(x)))


def test_the_generating_model_has_no_error():
    numbers, arrays = judge(oracle, oracle, PROBLEM, 11, 13, 0)
    assert numbers["entropy_error"] < 1e-12
    assert numbers["accuracy"] == numbers["bayes_accuracy"]
    assert numbers["grid_epistemic"] == 0.0
    assert numbers["ece_low"] == 0.0
    assert numbers["rejection_area"] > numbers["accuracy"]
    # Its outputs are log densities: outside they are low, so an alarm for high ones hardly ever goes off.
    found = numbers["detection"]["max_output"]
    assert found["auroc"] < 0.1
    assert found["flagged_outside"] < 0.02 < found["flagged_inside"] < 0.09
    assert arrays["block_accuracy"].mean() == pytest.approx(numbers["accuracy"], abs=1e-6)
    assert arrays["cumulative_accuracy"][-1] == pytest.approx(numbers["accuracy"], abs=1e-6)
    assert arrays["reliability"][0].sum() == 2000


def test_away_and_outside():
    def sure(x):
        probs = torch.zeros(len(x), 5, dtype=torch.float64)
        probs[:, 0] = 1.0
        return ClassPrediction(probs, entropy(probs), 1, probs)

    numbers, _ = judge(sure, sure, PROBLEM, 11, 13, 0)
    assert numbers["away_max_prob"] == 1.0
    assert numbers["outside_entropy"] == 0.0
    assert numbers["entropy_error"] == pytest.approx(numbers["grid_true_entropy"])
    grid = lattice(0.0, 1.0, 11).numpy()
    gaps = np.sqrt(((grid[:, None] - PROBLEM.x.numpy()) ** 2).sum(-1)).min(1)
    assert numbers["away_share"] == pytest.approx((gaps > 0.15).mean())


def test_intervals():
    for freedom in (1, 2, 9, 30):
        assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-3)
    values = [1.0, 2.0, 4.0, 4.5]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    found = interval(values)
    assert (found["low"], found["high"]) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))
    assert paired(values, [0.0, 1.0, 3.0, 3.5]) == pytest.approx({"mean": 1.0, "low": 1.0, "high": 1.0})
    assert math.isnan(interval([1.0])["low"])


def test_the_bound_of_a_network_at_its_prior_is_the_likelihood():
    """Nothing to pay: with q = p the KL is 0, and the bound is the mean log likelihood of draws."""
    network = sparsebnn.mlp([2, 4, 5], family="gaussian")
    with torch.no_grad():
        for layer in (network[0], network[2]):
            for family in (layer.weights, layer.biases):
                family.mean.zero_()
                family.raw_std.fill_(math.log(math.expm1(1.0)))
    x, y = torch.zeros(6, 2), torch.arange(6) % 5
    elbo, error = uncertainty_starts._bound(network, x, y, 400, 0)
    random = torch.Generator().manual_seed(1)
    hidden = torch.randn(4000, 6, 4, generator=random).relu()
    std = (1.0 + (hidden**2).sum(-1, keepdim=True)).sqrt()
    outputs = std * torch.randn(4000, 6, 5, generator=random)
    each = outputs.log_softmax(-1)[:, torch.arange(6), y].sum(-1)
    assert abs(elbo - float(each.mean())) < 4.0 * math.hypot(error, float(each.std()) / 4000**0.5)
