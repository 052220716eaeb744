"""Choosing inputs: thresholds against brute force, rules, agreement, tables, plots, bad input."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import SparseBNNClassifier
from sparsebnn.selection.rules import (
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


def test_no_larger_set_of_any_kind_meets_the_level():
    """Not only among thresholds: of all subsets, the chosen one is the largest (without ties)."""
    p = np.array([0.97, 0.91, 0.8, 0.62, 0.33, 0.08])
    for level in (0.05, 0.1, 0.2, 0.4):
        size = int((p >= bayesian_fdr_threshold(p, level)).sum())
        subsets = itertools.chain.from_iterable(itertools.combinations(p, r) for r in range(1, 7))
        largest = max((len(s) for s in subsets if np.mean(1 - np.array(s)) <= level), default=0)
        assert size == largest


def test_nothing_may_be_chosen():
    assert bayesian_fdr_threshold([0.5, 0.6], 0.1) == math.inf
    chosen = select([0.5, 0.6], rule="fdr", level=0.1)
    assert chosen.variables == ()
    assert chosen.expected_fdr == 0.0
    assert "0 of 2 inputs" in chosen.table()


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
    rng = np.random.default_rng(2)
    frame = pandas.DataFrame({"age": rng.standard_normal(200), "dose": rng.standard_normal(200)})
    y = (3 * frame["dose"] + rng.logistic(size=200) > 0).to_numpy().astype(float)
    fitted = CarbonettoStephens().fit(frame, y)
    assert fitted.names_ == ("age", "dose")
    assert select(fitted).variables == ("dose",)
    assert select(fitted.inclusion_, names=frame).variables == ("dose",)
    estimator = SparseBNNClassifier(epochs=5, replicates=1, hidden=(4,)).fit(frame, y)
    assert select(estimator).names == ("age", "dose")
    assert select(estimator.fit(frame.to_numpy(), y)).names == estimator.names_ == ("x0", "x1")
    with pytest.raises(InvalidInput, match="of the 2 columns of the fit"):
        fitted.predict(frame[["dose", "age"]])


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


def test_networks_agree_with_themselves():
    networks = [sparsebnn.mlp([3, 1], family="gaussian") for _ in range(3)]
    found = agreement(networks)
    assert found.frequency.tolist() == [1.0, 1.0, 1.0]
    assert (found.jaccard_low, found.jaccard_high) == (1.0, 1.0)


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
    with pytest.raises(InvalidInput, match="must be given for a network of images"):
        agreement([every, none])
    assert agreement([every, none], shape=(1, 2, 3)).frequency.tolist() == [0.5] * 6


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
        select(first, rule="fdr")
    else:
        with pytest.raises(InvalidInput, match=refused):
            select(first, rule="fdr")
    if per_replicate:
        select(second, rule="fdr")


def test_a_series_has_names():
    pandas = pytest.importorskip("pandas")
    assert select(pandas.Series({"age": 0.9, "b": 0.1})).variables == ("age",)


def test_plots_are_written(tmp_path):
    pytest.importorskip("matplotlib")
    chosen = select([0.9, 0.2, 0.6], names=["a", "b", "c"])
    axis = chosen.plot(tmp_path / "one.png")
    assert [patch.get_height() for patch in axis.patches] == pytest.approx([0.9, 0.2, 0.6])
    colours = [patch.get_facecolor() for patch in axis.patches]
    assert colours[0] == colours[2] != colours[1]
    agreement([chosen, select([0.9, 0.9, 0.1], names=["a", "b", "c"])]).plot(tmp_path / "two.png")
    assert (tmp_path / "one.png").stat().st_size > 2000
    assert (tmp_path / "two.png").stat().st_size > 2000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: select([0.2], rule="fdr", level="0.1"), "strictly between 0 and 1. Got '0.1' instead."),
        (lambda: select([0.2], rule="threshold", threshold="a"), "must be from 0 to 1. Got 'a' instead."),
        (lambda: select([0.2], names="a"), "one name per input (1). Got 'a' instead. Put them"),
        (lambda: select([0.2], seed=0.5), "must be a whole number. Got 0.5 instead."),
        (lambda: select([0.2, 1.5]), "'inclusion' of select must be from 0 to 1 everywhere. Got 1.5"),
        (lambda: select([0.2, math.nan]), "must be from 0 to 1 everywhere. Got nan instead."),
        (lambda: select([[0.2]]), "must be a vector, one probability per input. Got shape (1, 1) instead."),
        (lambda: select([0.2], rule="fdr", level=5), "'level' of select must be strictly"),
        (lambda: select([0.2], rule="mediann"), "Did you mean 'median'?"),
        (lambda: select([0.2], threshold=0.3), "given for rule='threshold' and for no other"),
        (lambda: select([0.2], rule="threshold"), "given for rule='threshold' and for no other"),
        (lambda: select([0.2], names=["a", "b"]), "one name per input (1). Got 2 names instead."),
        (lambda: agreement([[True, False]]), "at least two selections among the same inputs"),
        (lambda: agreement([[0.2, 0.9], [1.0, 0.0]]), "must be true or false. Got other values instead."),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InvalidInput) as error:
        call()
    assert message in str(error.value)


def test_a_tempered_fit_gives_no_error_rate():
    """Its inclusions are pushed towards 0 and 1; the columns in use have a rule of their own."""
    x = np.random.RandomState(0).randn(60, 3)
    model = SparseBNNClassifier(epochs=2, replicates=1).fit(x, x[:, 0] > 0)
    assert model.plan_.settings.temperature < 1.0
    with pytest.raises(InvalidInput, match="for an estimator fitted at temperature"):
        select(model, rule="fdr", level=0.1)
    assert select(model).names == ("x0", "x1", "x2")
    bayes = SparseBNNClassifier(epochs=2, replicates=1, temperature=1.0).fit(x, x[:, 0] > 0)
    select(bayes, rule="fdr", level=0.1)
