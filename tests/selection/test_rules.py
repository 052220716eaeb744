"""Choosing inputs: thresholds against brute force, rules, agreement, tables, plots, bad input."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.exceptions import NotFittedError

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import SparseBNNClassifier, SpikeSlabRegression
from sparsebnn.selection import (
    agreement,
    bayesian_fdr_threshold,
    expected_fdr,
    input_inclusion,
    median_inputs,
    select,
    wilson,
)
from studies.baselines import CarbonettoStephens


def brute_force(p, level):
    """The largest set by threshold whose mean of 1 − p is at most the level."""
    best = frozenset()
    for t in sorted(set(p)):
        chosen = frozenset(i for i, each in enumerate(p) if each >= t)
        if np.mean([1 - p[i] for i in chosen]) <= level + 1e-12 and len(chosen) > len(best):
            best = chosen
    return best


@pytest.mark.parametrize("level", [0.01, 0.05, 0.1, 0.3, 0.6])
def test_threshold_is_that_of_brute_force(level):
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = np.round(rng.beta(0.5, 0.5, size=rng.integers(1, 9)), 1)  # rounding makes ties
        limit = bayesian_fdr_threshold(p, level)
        assert frozenset(np.flatnonzero(p >= limit)) == brute_force(p.tolist(), level)


def test_realised_rate_with_right_probabilities_is_the_expected_one():
    """Truths drawn from the probabilities themselves: the share of false choices averages to expected_fdr."""
    rng = np.random.default_rng(1)
    shares, expected = [], []
    for _ in range(4000):
        p = rng.beta(0.4, 0.6, size=20)
        chosen = p >= bayesian_fdr_threshold(p, 0.1)
        truth = rng.random(20) < p
        shares.append((chosen & ~truth).sum() / max(1, chosen.sum()))
        expected.append(expected_fdr(p, chosen))
    difference = np.array(shares) - np.array(expected)
    assert abs(difference.mean()) < 4 * difference.std() / math.sqrt(len(difference))
    assert np.mean(expected) <= 0.1


def test_rules_on_a_vector():
    p = [0.99, 0.8, 0.5, 0.1]
    assert select(p).variables == ("x1", "x2")
    assert select(p, rule="threshold", threshold=0.5).variables == ("x1", "x2", "x3")
    fdr = select(p, rule="fdr", level=0.11, names=["a", "b", "c", "d"])
    assert fdr.variables == ("a", "b")
    assert fdr.threshold == pytest.approx(0.8)
    assert fdr.expected_fdr == pytest.approx(0.105)
    assert bayesian_fdr_threshold([0.5, 0.6], 0.1) == math.inf
    none = select([0.5, 0.6], rule="fdr", level=0.1)
    assert none.variables == ()
    assert none.expected_fdr == 0.0
    assert "0 of 2 inputs" in none.table()


def test_a_network_is_chosen_from_by_paths():
    torch.manual_seed(0)
    network = sparsebnn.mlp([3, 2, 1])
    with torch.no_grad():
        network[0].weights.inclusion_logit[:] = torch.tensor([[9.0, -9.0, 9.0], [-9.0, 9.0, -9.0]])
        network[2].weights.inclusion_logit[:] = torch.tensor([[9.0, -9.0]])
    chosen = select(network, names=["a", "b", "c"])
    assert chosen.variables == ("a", "c")
    assert torch.equal(chosen.inclusion, input_inclusion(network))
    assert torch.equal(chosen.chosen, median_inputs(network))
    # Weights of 0.4 each: no single path is likely in the median model, one of many is in the posterior.
    wide = sparsebnn.mlp([1, 100, 1])
    with torch.no_grad():
        for i in (0, 2):
            wide[i].weights.inclusion_logit.fill_(math.log(0.4 / 0.6))
    assert float(input_inclusion(wide)) == pytest.approx(1 - (1 - 0.16) ** 100)
    assert select(wide).variables == ()
    assert select(wide, rule="fdr", level=0.1).variables == ("x1",)


def test_names_of_frames_and_baselines_are_kept():
    pandas = pytest.importorskip("pandas")
    assert select(pandas.Series({"age": 0.9, "b": 0.1})).variables == ("age",)
    rng = np.random.default_rng(2)
    frame = pandas.DataFrame({"age": rng.standard_normal(200), "dose": rng.standard_normal(200)})
    y = (3 * frame["dose"] + rng.logistic(size=200) > 0).to_numpy().astype(float)
    fitted = CarbonettoStephens().fit(frame, y)
    assert fitted.names_ == ("age", "dose")
    assert select(fitted).variables == ("dose",)
    assert select(fitted.inclusion_, names=frame).variables == ("dose",)
    with pytest.raises(InvalidInput, match="of the 2 columns of the fit"):
        fitted.predict(frame[["dose", "age"]])
    estimator = SparseBNNClassifier(epochs=2, replicates=1, hidden=(4,)).fit(frame, y)
    assert select(estimator).names == ("age", "dose")
    with pytest.raises(InvalidInput, match="for an estimator trained for 4 steps"):
        select(estimator, rule="fdr", level=0.1)
    # A tempered fit's inclusions are pushed towards 0 and 1: they give no error rate.
    estimator.set_params(temperature=0.5).fit(frame, y)
    with pytest.raises(InvalidInput, match="for an estimator trained at temperature"):
        select(estimator, rule="fdr", level=0.1)
    estimator.set_params(temperature="auto", epochs=200).fit(frame.to_numpy(), y)
    chosen = select(estimator, rule="fdr", level=0.1, X=frame.to_numpy())
    assert chosen.names == estimator.names_ == ("x0", "x1")


def test_agreement_counts_and_pairs():
    chosen = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]], dtype=bool)
    found = agreement(chosen, names=["a", "b", "c"])
    assert found.frequency.tolist() == [0.75, 0.5, 0.25]

    def jaccard(a, b):
        either = (a | b).sum()
        return 1.0 if either == 0 else (a & b).sum() / either

    pairs = [jaccard(a, b) for a, b in itertools.combinations(chosen, 2)]
    assert found.jaccard == pytest.approx(np.mean(pairs))
    without = []
    for k in range(4):
        rest = np.delete(chosen, k, axis=0)
        without.append(np.mean([jaccard(a, b) for a, b in itertools.combinations(rest, 2)]))
    margin = 1.959964 * math.sqrt(3 / 4 * ((np.array(without) - np.mean(without)) ** 2).sum())
    assert found.jaccard_high == pytest.approx(min(1.0, found.jaccard + margin))
    assert found.jaccard_low == pytest.approx(max(0.0, found.jaccard - margin))
    assert found.table().splitlines()[1].startswith("a       0.750  0.301–0.954")
    same = agreement([select([0.9, 0.1]), select([0.8, 0.2])])
    assert same.jaccard == 1.0
    assert same.names == ("x1", "x2")


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (47, 200)])
def test_wilson_interval_is_scipys(k, n):
    low, high = wilson(k, n)
    expected = scipy.stats.binomtest(k, n).proportion_ci(method="wilson")
    assert float(low) == pytest.approx(expected.low, abs=1e-12)
    assert float(high) == pytest.approx(expected.high, abs=1e-12)


def test_networks_of_images_agree_where_their_shape_is_given():
    """Every pixel of the one, none of the other."""
    every, none = (
        torch.nn.Sequential(sparsebnn.nn.Conv2d(1, 1, 2), torch.nn.Flatten(), sparsebnn.Linear(2, 1))
        for _ in "ab"
    )
    with torch.no_grad():
        for layer in (every[0], every[2], none[0]):
            layer.weights.inclusion_logit.fill_(1.0)
        none[2].weights.inclusion_logit.fill_(-1.0)
    assert agreement([every, none], shape=(1, 2, 3)).frequency.tolist() == [0.5] * 6
    same = agreement([every] * 3, shape=(1, 2, 3))
    assert (same.jaccard_low, same.jaccard_high) == (1.0, 1.0)
    for bad, match in (
        ([every, none], "must be given for a network of images"),
        ([[True, False]], "at least two selections"),
        ([[0.2, 0.9], [1.0, 0.0]], "true or false"),
    ):
        with pytest.raises(InvalidInput, match=match):
            agreement(bad)


@pytest.mark.parametrize(
    ("settings", "per_replicate", "refused"),
    [
        ({"temperature": 0.03}, {}, "a network trained at temperature 0.03"),
        ({}, {"temperature": [5.0, 1.0]}, "a network trained at temperature 5"),
        ({"target_density": 0.5}, {}, "a network brought to a density, or refitted,"),
        ({"refit": 0.5}, {}, "a network brought to a density, or refitted,"),
        ({}, {}, None),
    ],
)
def test_no_rate_follows_from_inclusions_that_are_no_posterior(settings, per_replicate, refused):
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    made = sparsebnn.Settings(epochs=2, batch_size=20, **settings)
    run = sparsebnn.train(
        sparsebnn.mlp([3, 2]),
        (x, y),
        settings=made,
        per_replicate=per_replicate,
        replicates=2,
        progress=False,
    )
    first, second = run.networks
    select(first)
    if refused is None:
        select(first, rule="fdr", X=x)
    else:
        with pytest.raises(InvalidInput, match=refused):
            select(first, rule="fdr")
    if per_replicate:
        select(second, rule="fdr", X=x)


def test_plots_are_written(tmp_path):
    pytest.importorskip("matplotlib")
    chosen = select([0.9, 0.2, 0.6], names=["a", "b", "c"])
    axis = chosen.plot(tmp_path / "one.png")
    assert [patch.get_height() for patch in axis.patches] == pytest.approx([0.9, 0.2, 0.6])
    colours = [patch.get_facecolor() for patch in axis.patches]
    assert colours[0] == colours[2] != colours[1]
    agreement([chosen, select([0.9, 0.9, 0.1], names=["a", "b", "c"])]).plot(tmp_path / "two.png")
    assert all((tmp_path / name).stat().st_size > 2000 for name in ("one.png", "two.png"))


@pytest.mark.parametrize(
    ("inclusion", "options", "named"),
    [
        ([0.2], {"rule": "fdr", "level": "0.1"}, "level"),
        ([0.2], {"rule": "fdr", "level": 5}, "level"),
        ([0.2], {"rule": "threshold", "threshold": "a"}, "threshold"),
        ([0.2], {"threshold": 0.3}, "threshold"),
        ([0.2], {"rule": "threshold"}, "threshold"),
        ([0.2], {"rule": "mediann"}, "rule"),
        ([0.2], {"names": "a"}, "names"),
        ([0.2], {"names": ["a", "b"]}, "names"),
        ([0.2], {"seed": 0.5}, "seed"),
        ([0.2, 1.5], {}, "inclusion"),
        ([0.2, math.nan], {}, "inclusion"),
        ([[0.2]], {}, "inclusion"),
        (object(), {}, "inclusion"),
        ("0.2, 0.9", {}, "inclusion"),
    ],
)
def test_bad_input(inclusion, options, named):
    with pytest.raises(InvalidInput, match=f"^The '{named}' of select must be "):
        select(inclusion, **options)


@pytest.mark.parametrize("kind", [SparseBNNClassifier, SpikeSlabRegression])
@pytest.mark.parametrize("rule", ["median", "fdr", "credible_sets"])
def test_an_estimator_before_its_fit(kind, rule):
    with pytest.raises(NotFittedError, match=kind.__name__):
        select(kind(), rule=rule, X=np.eye(3))
