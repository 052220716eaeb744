"""Replicates that leave out rows: the likelihood, the folds, the logit_scale."""

import math

import numpy as np
import pytest
import torch

from estimators.quick import QUICK
from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor
from sparsebnn.estimators.cross_fitting import Folded, _accurate, _drawn_left_out, folds, leaves_out
from sparsebnn.estimators.ensemble import Ensemble, linear_layers
from sparsebnn.likelihoods import Categorical, Gaussian
from sparsebnn.nn import Linear, mlp
from sparsebnn.selection.paths import median_reach

FIVE = {**QUICK, "replicates": 5}


def test_held_rows_do_not_count():
    outputs, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    y = torch.stack([labels.float(), torch.tensor([0.0, 1, 2, 3, 4, 5])], dim=1)
    form = Folded(Categorical(3), replicates=4)
    for held, seen in ((1.0, [1.0, 0, 0, 1, 1, 1]), (3.0, [0.0, 1, 1, 0, 1, 1])):
        form.held.fill_(held)
        expected = Categorical(3).nll(outputs, labels) * torch.tensor(seen)
        assert torch.equal(form.nll(outputs, form.prepare(y)), expected)
        assert [fold for fold in range(6) if not seen[fold]] == sorted(leaves_out(int(held), 4))


def test_several_targets_keep_their_columns():
    form = Folded(Gaussian(2, "fixed"), replicates=5)
    y = torch.randn(4, 2)
    found = form.nll(torch.zeros(4, 2), torch.cat([y, torch.full((4, 1), 9.0)], dim=1))
    assert torch.allclose(found, Gaussian(2, "fixed").nll(torch.zeros(4, 2), y))


def test_every_class_is_spread_over_the_folds():
    y = torch.tensor([0] * 23 + [1] * 7)
    found = folds(y, 5, seed=0, classes=True)
    for label, least in ((0, 4), (1, 1)):
        assert np.bincount(found[y == label].long(), minlength=5).min() >= least
    assert np.bincount(found.long()).tolist() == [6] * 5


def test_a_replicate_is_blind_to_the_targets_of_its_fold():
    """Turning two targets of fold 0 round changes every replicate but the first and the last."""
    x = np.random.RandomState(0).randn(60, 3)
    # Sums of 1 and −1 are exact: standardising does not notice the exchange.
    y = np.where(x[:, 0] > np.median(x[:, 0]), 1.0, -1.0)
    held = folds(torch.from_numpy(y), 10, 0, False).numpy() == 0
    other = y.copy()
    other[np.flatnonzero(held & (y < 0))[0]], other[np.flatnonzero(held & (y > 0))[0]] = 1.0, -1.0
    first = SparseBNNRegressor(**FIVE, calibrate=True).fit(x, y)
    again = SparseBNNRegressor(**FIVE, calibrate=True).fit(x, other)
    pairs = zip(first._all_networks[:10], again._all_networks)
    same = [torch.equal(linear_layers(a)[0].weights.mean, linear_layers(b)[0].weights.mean) for a, b in pairs]
    assert same == 2 * [True, False, False, False, True]


def test_left_out_rows_are_drawn_by_the_networks_that_did_not_see_them():
    networks = [Linear(2, 3) for _ in range(6)]
    ensemble = Ensemble([torch.nn.Sequential(each) for each in networks], [Categorical(3)] * 6)
    x, fold = np.random.RandomState(0).randn(9, 2), torch.tensor([0, 1, 2, 2, 1, 0, 1, 1, 2])
    (_, every), *_ = ensemble.draws(x, 20, "average", 0, "cpu")
    found = _drawn_left_out(ensemble, [[0, 1, 2], [5, 4, 3]], x, fold, 3)
    for row, own in enumerate(fold.tolist()):
        for k in range(3):
            if own in leaves_out(k, 3):
                at = leaves_out(k, 3).index(own)
                expected = torch.stack([every[k, :, row], every[5 - k, :, row]])
                torch.testing.assert_close(found[:, at, :, row], expected, rtol=1e-12, atol=1e-12)
    # With no row of the folds of the first network, the others are drawn as before.
    later = fold == 2
    rest = _drawn_left_out(ensemble, [[0, 1, 2], [5, 4, 3]], x[later.numpy()], fold[later], 4)
    torch.testing.assert_close(rest[:, 0], found[:, 0, :, later], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("skip", [False, True])
def test_columns_of_the_median_model_are_those_of_the_traced_graph(skip):
    for seed in range(30):
        random = np.random.RandomState(seed)
        network = mlp([int(n) for n in random.randint(1, 8, random.randint(2, 5))], input_skip=skip)
        for layer in linear_layers(network):
            torch.nn.init.normal_(layer.weights.inclusion_logit, -1.0, 2.0)
        expected = median_reach(network).numpy() > 0
        found = Ensemble([network], [Categorical(2)]).median_columns(np.arange(len(expected)), len(expected))
        assert found[0].tolist() == expected.tolist()


def test_replicates_count_by_their_bounds():
    """One input, bounds in closed form: those of the three networks are 20 and 60 nats apart."""
    rng = np.random.RandomState(0)
    x = rng.randn(500, 1)
    y, form = torch.from_numpy(x[:, 0]).float(), Gaussian(1, "fixed", std=0.5)
    networks = []
    for slope in (1.0, 0.8, 0.5):
        layer = Linear(1, 1, family="gaussian", bias=False)
        torch.nn.init.constant_(layer.weights.mean, slope)
        torch.nn.init.constant_(layer.weights.raw_std, -7.0)
        networks.append(torch.nn.Sequential(layer))
    std = math.log1p(math.exp(-7.0))
    energy = float((x**2).sum())
    expected = [-((1.0 - m) ** 2 + std**2) * energy / (2 * 0.25) - m**2 / 2 for m in (1.0, 0.8, 0.5)]
    weight = np.ones(500)
    found = Ensemble(networks, [form] * 3).weights(x, y, weight)
    log_odds = (np.array(expected[1:]) - expected[0]) / 20.0
    assert np.log(found[1:] / found[0]) == pytest.approx(log_odds, abs=0.1)
    assert found.sum() == pytest.approx(1.0)
    # A weight of 2 is a row twice; 40,000 rows are estimated from half of them.
    twice = Ensemble(networks, [form] * 3).weights(x, y, 2 * weight)
    assert np.log(twice[1] / twice[0]) == pytest.approx(2 * log_odds[0], abs=0.1)
    many = Ensemble(networks, [form] * 3).weights(np.tile(x, (80, 1)), y.repeat(80), 0.0125 * np.ones(40_000))
    assert np.log(many[1:] / many[0]) == pytest.approx(log_odds, abs=0.3)


def test_overconfident_and_timid_predictions_are_corrected():
    """Noisy labels: the calibrated log-loss on fresh rows is no worse, and s is not 1."""
    rng = np.random.RandomState(0)

    def rows(count):
        x = rng.randn(count, 6)
        return x, (x[:, 0] + 1.5 * rng.logistic(size=count) > 0).astype(int)

    model = SparseBNNClassifier(**{**FIVE, "epochs": 300, "temperature": 0.001, "hidden": (30,)}).fit(
        *rows(120)
    )
    x, y = rows(2000)

    def loss():
        return -np.log(model.predict_proba(x)[np.arange(2000), y]).mean()

    calibrated, s = loss(), model.logit_scale_
    model.logit_scale_ = 1.0
    assert s < 0.9
    assert calibrated < loss() - 0.02


def test_goes_without_where_there_is_little():
    x = np.random.RandomState(0).randn(20, 2)
    assert SparseBNNClassifier(**{**FIVE, "epochs": 2}).fit(x, x[:, 0] > 0).logit_scale_ == 1.0


def test_a_mixture_with_a_clearly_worse_mean_is_not_considered():
    rng = np.random.RandomState(0)
    base = torch.from_numpy(rng.rand(400))

    class Held:
        def __init__(self, errors):
            self.errors = errors

        def squared_errors(self):
            return self.errors

    noise = torch.from_numpy(rng.randn(400))
    alike, worse = base + noise - noise.mean() + 1e-3, base + 0.5 + 0.1 * noise
    found = [((0.0, 0.0), place, Held(errors)) for place, errors in enumerate((alike, base, worse))]
    assert [each[1] for each in _accurate(found, torch.ones(400))] == [0, 1]
    # Rows without weight decide nothing.
    weight, elsewhere = torch.ones(400), base.clone()
    weight[200:], elsewhere[200:] = 0.0, 9.0
    pair = [found[1], ((0.0, 0.0), 3, Held(elsewhere))]
    assert [each[1] for each in _accurate(pair, torch.ones(400))] == [1]
    assert [each[1] for each in _accurate(pair, weight)] == [1, 3]
