"""Dropout, deterministic networks and ensembles: what they draw, how they train, what they predict."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparsebnn import Settings, predict, train
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.passes import LocalPass, MedianPass, PosteriorPass, WeightPass, collect_kl
from sparsebnn.random.noise import RandomNoise
from studies.baselines.deterministic import plain_mlp
from studies.baselines.dropout import Dropout
from studies.baselines.ensemble import predict_ensemble

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3
SETTINGS = Settings(epochs=4, batch_size=16, learning_rate=0.01)


def fit(network, replicates=1, **options):
    options = {"settings": SETTINGS, "device": "cpu", "progress": False, **options}
    return train(network, (X, Y), replicates=replicates, **options)


# -- dropout ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_dropout_keeps_the_mean_and_the_share(rate):
    """Share of zeros and mean of the output, each within 4 standard errors."""
    n = 20000
    with LocalPass(RandomNoise(torch.Generator().manual_seed(1))):
        y = Dropout(rate)(torch.ones(n, 1))
    zeros = float((y == 0).double().mean())
    assert abs(zeros - rate) < 4.0 * np.sqrt(rate * (1.0 - rate) / n)
    assert abs(float(y.mean()) - 1.0) < 4.0 * np.sqrt(rate / (1.0 - rate) / n)


def test_dropout_by_pass():
    layer, ones = Dropout(0.5), torch.ones(64, 32)
    for kind in (PosteriorPass, LocalPass):
        with kind(RandomNoise(torch.Generator().manual_seed(1))):
            each = layer(ones)
        assert not torch.equal(each[0], each[1])
    with WeightPass(RandomNoise(torch.Generator().manual_seed(1))):
        shared = layer(ones)
    assert torch.equal(shared, shared[:1].expand_as(shared))
    assert 0 < int((shared[0] == 0).sum()) < 32
    with MedianPass(RandomNoise()):
        assert torch.equal(layer(ones), ones)


# -- training through the engine ----------------------------------------------------------------------


def test_a_deterministic_network_trains_as_torch_trains_it():
    """The same start, the same order of full batches, torch's own Adam."""
    settings = Settings(epochs=5, batch_size=40, learning_rate=0.01, schedule="constant", shuffle=False)
    run = fit(plain_mlp([3, 8, 3]), 3, settings=settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        plain = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))
    adam = torch.optim.Adam(plain.parameters(), lr=0.01)
    for _ in range(5):
        adam.zero_grad()
        F.cross_entropy(plain(X), Y, reduction="sum").backward()
        adam.step()
    probs = predict(run.networks[2], X, Categorical(3), n_draws=1).probs
    torch.testing.assert_close(probs, torch.softmax(plain(X), -1).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [lambda: plain_mlp([3, 8, 3]), lambda: plain_mlp([3, 8, 3], dropout=0.5)])
def test_a_replicate_is_the_same_alone_and_among_others(make):
    together = [p for p in fit(make(), 3).networks[1].parameters()]
    alone = [p for p in fit(make(), [1]).network.parameters()]
    for a, b in zip(together, alone):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def squares(network):
    return sum(float((p.detach() ** 2).sum()) for p in network.parameters())


def test_prior_std_is_weight_decay():
    network = plain_mlp([3, 8, 3], prior_std=0.5)
    with collect_kl() as opened:
        network(X)
    expected = squares(network) / (2.0 * 0.25)
    assert float(opened.kl().detach()) == pytest.approx(expected, rel=1e-5)
    with collect_kl() as opened:
        plain_mlp([3, 8, 3])(X)
    assert float(opened.kl()) == 0.0
    strong = fit(plain_mlp([3, 8, 3], prior_std=0.1)).network
    free = fit(plain_mlp([3, 8, 3])).network
    assert squares(strong) < squares(free)


# -- prediction ---------------------------------------------------------------------------------------


def test_a_deterministic_prediction_has_no_epistemic_part():
    found = predict(plain_mlp([3, 8, 3]), X, Categorical(3), n_draws=4)
    assert float(found.mutual_information.max()) < 1e-6
    network = plain_mlp([3, 8, 3])
    outputs = network.eval()(X)
    found = predict(network, X, Categorical(3), n_draws=2, batch_size=7)
    torch.testing.assert_close(found.outputs, outputs.detach())
    torch.testing.assert_close(found.max_output, outputs.detach().max(-1).values)


def test_dropout_predictions_average_thinned_networks():
    """One hidden unit: the average of the two networks there are, within 4 standard errors."""
    network = plain_mlp([3, 1, 3], dropout=0.5)
    first, _, _, last = network.weights.module
    with torch.no_grad():
        first.bias.fill_(5.0)
        on = torch.softmax(last(2.0 * torch.relu(first(X))), -1)
        off = torch.softmax(last(torch.zeros(1, 1)), -1)
    n = 4000
    found = predict(network, X, Categorical(3), n_draws=n).probs
    error = (on - off).abs() * 0.5 / n**0.5
    assert bool(((found - 0.5 * (on + off)).abs() < 4.0 * error + 1e-5).all())


def test_dropout_rows_have_masks_of_their_own_and_the_seed_decides():
    network = plain_mlp([3, 50, 3], dropout=0.5)
    same = X[:1].expand(6, 3)
    close = same + 1e-6 * torch.arange(6)[:, None]
    found = predict(network, close, Categorical(3), n_draws=3, batch_size=2).probs
    assert float((found[1:] - found[:1]).abs().max(1).values.min()) > 1e-4
    again = predict(network, close, Categorical(3), n_draws=3, batch_size=4).probs
    torch.testing.assert_close(found, again)
    whole = predict(network, same, Categorical(3), n_draws=3, draws="weights", batch_size=2).probs
    torch.testing.assert_close(whole, whole[:1].expand_as(whole))


def test_an_ensemble_is_the_mixture_of_its_members():
    members = fit(plain_mlp([3, 8, 3]), 4).networks
    found = predict_ensemble(members, X, Categorical(3))
    each = torch.stack([torch.softmax(m(X), -1).detach() for m in members])
    torch.testing.assert_close(found.probs, each.mean(0))
    entropies = torch.special.entr(each).sum(-1)
    torch.testing.assert_close(found.expected_entropy, entropies.mean(0))
    torch.testing.assert_close(found.outputs, torch.stack([m(X).detach() for m in members]).mean(0))
    assert found.n_draws == 4
    assert float(found.mutual_information.mean()) > 0.0
