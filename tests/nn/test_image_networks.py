"""Residual networks: their sizes, and that they train as replicates."""

import pytest
import torch

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.nn.image_networks import PlainResNet
from sparsebnn.training import Settings, train


def weights(network):
    return sum(p.numel() for name, p in network.named_parameters() if p.dim() > 1)


def test_sizes_are_the_published_ones():
    """11.17 million weights with 10 classes, and 0.27 million; shortcuts by projection."""
    assert weights(PlainResNet(18)) == 11_164_352
    assert weights(PlainResNet(20)) == 270_896
    assert PlainResNet(20)(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    for depth in (7, 19, 2):
        with pytest.raises(InvalidInput, match="depth"):
            sparsebnn.nn.resnet(depth)


def test_two_replicates_train_and_differ():
    """Two replicates are what each is alone; only first batches, since rounding grows through the norms."""
    x, y = torch.rand(8, 3, 8, 8), torch.arange(8) % 3
    network = sparsebnn.nn.resnet(8, 3, family="spike_slab").double()
    settings = Settings(1, 8, 1e-3, target_density=0.5, optimizer="sgd")
    options = {"settings": settings, "mode": "eager", "progress": False, "device": "cpu"}
    both = train(network, (x, y), replicates=[0, 1], **options)
    alone = train(network, (x, y), replicates=[1], **options)
    for name, value in alone.network.state_dict().items():
        torch.testing.assert_close(both.networks[1].state_dict()[name], value, rtol=1e-8, atol=1e-9)
    first, second = (net.norm.running_var for net in both.networks)
    assert not torch.allclose(first, second)
