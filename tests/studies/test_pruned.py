"""Magnitude pruning: masks by hand, what training leaves alone, replicates of different densities."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebnn import Settings, density, predict, train
from sparsebnn.likelihoods import Categorical
from studies.baselines.deterministic import Deterministic, plain_mlp
from studies.baselines.pruned import magnitude_masks, prune, refit_pruned

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3
SETTINGS = Settings(epochs=3, batch_size=16, learning_rate=0.01)


def small():
    """Two layers whose six weights are 1 to 6 by magnitude, and biases larger than all of them."""
    first, second = nn.Linear(2, 2), nn.Linear(2, 1)
    first.weight.data = torch.tensor([[1.0, -5.0], [3.0, 2.0]])
    second.weight.data = torch.tensor([[-6.0, 4.0]])
    first.bias.data, second.bias.data = torch.tensor([10.0, -20.0]), torch.tensor([30.0])
    return Deterministic(nn.Sequential(first, nn.ReLU(), second))


def test_the_largest_of_all_layers_stay():
    masks = magnitude_masks(small(), 0.5)
    assert masks["weights.module.0.mask"].tolist() == [[0.0, 1.0], [0.0, 0.0]]
    assert masks["weights.module.2.mask"].tolist() == [[1.0, 1.0]]


def test_the_pruned_network_computes_with_what_is_left():
    """By hand: h = relu((−5·b + 10, −20)) and y = −6·h₁ + 4·h₂ + 30."""
    cut = prune(small(), 0.5)
    x = torch.tensor([[7.0, 1.0], [-3.0, 4.0]])
    assert cut(x).flatten().tolist() == [-6.0 * 5.0 + 30.0, 30.0]
    assert density(cut).overall == 0.5


def test_at_least_one_weight_stays_and_at_density_one_all():
    assert sum(float(m.sum()) for m in magnitude_masks(small(), 1e-6).values()) == 1.0
    plain = small()
    x = torch.randn(5, 2)
    assert torch.equal(prune(plain, 1.0)(x), plain(x))


@pytest.fixture(scope="module")
def dense():
    return train(
        plain_mlp([3, 10, 3]), (X, Y), settings=SETTINGS, replicates=2, device="cpu", progress=False
    ).networks


def test_a_refit_changes_what_is_left_and_nothing_else(dense):
    run = refit_pruned(dense, [0.6, 0.8], (X, Y), settings=SETTINGS, device="cpu", progress=False)
    for network, start, share in zip(run.networks, dense, (0.6, 0.8)):
        assert density(network).overall == share
        cut = prune(start, share)
        for name, mask in network.named_buffers():
            assert torch.equal(mask, dict(cut.named_buffers())[name])
            weight = dict(network.named_parameters())[f"{name.removesuffix('mask')}layer.weight"]
            before = dict(cut.named_parameters())[f"{name.removesuffix('mask')}layer.weight"]
            assert torch.equal(weight[mask == 0], before[mask == 0])
            assert not torch.equal(weight[mask == 1], before[mask == 1])


def test_a_refit_is_adam_on_the_masked_weights(dense):
    """Against an ordinary loop with torch's Adam on whole batches."""
    settings = Settings(epochs=5, batch_size=40, learning_rate=0.01, schedule="constant", shuffle=False)
    run = refit_pruned([dense[0]], [0.4], (X, Y), settings=settings, device="cpu", progress=False)
    plain = prune(dense[0], 0.4)
    optimiser = torch.optim.Adam(plain.parameters(), lr=0.01)
    for _ in range(5):
        optimiser.zero_grad()
        nn.functional.cross_entropy(plain(X), Y, reduction="sum").backward()
        optimiser.step()
    for (name, ours), (_, theirs) in zip(run.network.named_parameters(), plain.named_parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, msg=name)


def test_a_replicate_is_the_same_alone(dense):
    options = {"settings": SETTINGS, "device": "cpu", "progress": False}
    both = refit_pruned(dense, [0.2, 0.5], (X, Y), **options).networks[0]
    alone = refit_pruned(dense[:1], [0.2], (X, Y), **options).network
    torch.testing.assert_close(both(X), alone(X), rtol=1e-5, atol=1e-5)
    probs = predict(both, X, Categorical(3), n_draws=1).probs
    torch.testing.assert_close(probs, torch.softmax(both(X), -1))
