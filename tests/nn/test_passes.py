"""passes.py: which pass answers a layer, how passes nest, and whose KL is whose."""

import threading

import pytest
import torch
from torch import nn

from sparsebnn.nn.layers import Linear
from sparsebnn.nn.passes import (
    LocalPass,
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


def test_what_a_pass_refuses():
    """Two sources of noise; a network without any Bayesian layer, whose KL is not 0 but missing."""
    with pytest.raises(TypeError, match="the pass supplies the noise"), PosteriorPass():
        Linear(4, 2)(X, NoiseBuffer(torch.zeros(6), torch.zeros(0)))
    with pytest.raises(RuntimeError, match="No Bayesian layer was called"):
        forward_with_kl(nn.Linear(4, 2), X)
