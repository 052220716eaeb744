"""passes.py: which pass answers a layer, how passes nest, and whose KL is whose."""

import threading

import pytest
import torch
from torch import nn

from sparsebnn.nn.layers import Linear
from sparsebnn.nn.networks import mlp
from sparsebnn.nn.passes import (
    LocalPass,
    MedianPass,
    PosteriorPass,
    WeightPass,
    active_pass,
    collect_kl,
    forward_with_kl,
    noise_size,
)
from sparsebnn.random.noise import NoiseBuffer, NoiseCounter

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def test_passes_nest_and_close():
    """The innermost pass answers; when it closes, even by an error, the outer one does again."""
    assert active_pass() is None
    with PosteriorPass() as outer:
        with LocalPass() as inner:
            assert active_pass() is inner
        assert active_pass() is outer
        with pytest.raises(KeyError), WeightPass():
            raise KeyError
        assert active_pass() is outer
    assert active_pass() is None


def test_passes_are_private_to_their_thread():
    """A pass opened here is not seen by another thread."""
    seen = []
    with PosteriorPass():
        thread = threading.Thread(target=lambda: seen.append(active_pass()))
        thread.start()
        thread.join()
    assert seen == [None]


@pytest.mark.parametrize(("training", "kind"), [(True, PosteriorPass), (False, LocalPass)])
def test_without_a_pass_the_mode_decides(training, kind):
    """Outside any pass a layer draws as training does; in eval() through the local reparametrization."""
    layer = Linear(4, 2, family="concrete").train(training)
    size = noise_size(layer, X, kind)
    numbers = torch.randn(size.normal), torch.randn(size.logistic)
    with kind(NoiseBuffer(*numbers)):
        inside = layer(X)
    assert torch.equal(layer(X, NoiseBuffer(*numbers)), inside)
    meter = NoiseCounter()
    layer(X, meter)
    assert meter.size == size


def test_layer_forward_with_kl_ignores_the_open_pass():
    """forward_with_kl is a pass of its own: the outer pass neither pays nor draws for it."""
    layer, other = Linear(4, 2), Linear(4, 2)
    with collect_kl() as outer:
        other(X)
        layer.forward_with_kl(X)
    assert [met for met, _ in outer.kl_by_layer()] == [other]


def test_kl_of_a_network_is_the_sum_over_its_layers():
    """Each layer once, in the order met; the total is their sum."""
    network = mlp([4, 5, 3])
    with collect_kl() as opened:
        network(X)
    terms = opened.kl_by_layer()
    assert [layer for layer, _ in terms] == [network[0], network[2]]
    total = sum(
        float(layer.forward_with_kl(torch.zeros(1, layer.in_features))[1].detach()) for layer, _ in terms
    )
    assert float(opened.kl().detach()) == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("kind", [WeightPass, MedianPass])
@torch.no_grad()
def test_weight_passes_give_all_examples_the_same_weights(kind):
    """With drawn weights the output is affine in x: equal examples have equal outputs."""
    layer = Linear(4, 2, family="flow", family_options={"hidden": (5,)})
    with kind():
        a, b, mid = layer(torch.stack([X[0], X[2], (X[0] + X[2]) / 2]))
    assert torch.allclose((a + b) / 2, mid, atol=1e-6)
    with LocalPass():
        a, b = layer(torch.stack([X[0], X[0]]))
    assert not torch.equal(a, b)


@torch.no_grad()
def test_median_pass_uses_only_the_kept_weights():
    """An input all of whose weights are excluded does not change the output."""
    layer = Linear(4, 2)
    layer.weights.inclusion_logit[:, 1] = -1.0
    numbers = torch.randn(noise_size(layer, X, MedianPass).normal)
    moved = X.clone()
    moved[:, 1] += 5.0
    outputs = []
    for x in (X, moved):
        with MedianPass(NoiseBuffer(numbers, torch.zeros(0))):
            outputs.append(layer(x))
    assert torch.equal(*outputs)


def test_what_a_pass_refuses():
    """Two sources of noise; a network without any Bayesian layer, whose KL is not 0 but missing."""
    with pytest.raises(TypeError, match="the pass supplies the noise"), PosteriorPass():
        Linear(4, 2)(X, NoiseBuffer(torch.zeros(6), torch.zeros(0)))
    with pytest.raises(RuntimeError, match="No Bayesian layer was called"):
        forward_with_kl(nn.Linear(4, 2), X)
