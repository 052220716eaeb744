"""compaction.py: the small network computes what the large one does."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparsebnn
from contracts.members import generator
from sparsebnn.checks import InvalidInput
from sparsebnn.nn.compaction import Take, compact, median_weights
from sparsebnn.nn.networks import bayesian_layers

FAMILIES = {"spike_slab": {}, "flow": {"hidden": (5, 4)}, "gaussian": {}}


def sparse(network, share, seed=0):
    """A random part of the weights is left, and biases of both signs."""
    g = generator(seed)
    with torch.no_grad():
        for _, layer in bayesian_layers(network):
            for name, p in layer.named_parameters():
                if name.endswith("inclusion_logit"):
                    p.copy_(torch.where(torch.rand(p.shape, generator=g) < share, 5.0, -5.0).to(p))
                elif name.endswith(".mean"):
                    p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64).to(p))
    return network.eval()


@torch.no_grad()
def reference(network, x):
    """The median model at its means, layer by layer, nothing left out."""
    for module in network:
        if isinstance(module, sparsebnn.nn.layers.BayesianLayer):
            x = module.op(x, *median_weights(module))
        else:
            x = module(x)
    return x


def images(channels=2, padding=0, activation=nn.ReLU, **layer):
    layer = {"dtype": torch.float64, **layer}
    return nn.Sequential(
        sparsebnn.nn.Conv2d(channels, 6, 3, padding=padding, **layer),
        activation(),
        nn.AvgPool2d(2),
        sparsebnn.nn.Conv2d(6, 5, 2, padding=padding, **layer),
        activation(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        sparsebnn.Linear(5 * (1 if padding == 0 else 4), 7, **layer),
        activation(),
        sparsebnn.Linear(7, 3, **layer),
    )


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_dense_networks(family, activation, share):
    layer = {"family": family, "family_options": FAMILIES[family], "dtype": torch.float64}
    for seed in range(3):
        network = sparse(sparsebnn.mlp([9, 12, 8, 3], activation=activation, **layer), share, seed)
        x = torch.randn(20, 9, generator=generator(seed), dtype=torch.float64)
        small = compact(network)
        assert float((small.network(x) - reference(network, x)).detach().abs().max()) < 1e-10
        assert small.weights[0] == 9 * 12 + 12 * 8 + 8 * 3
        assert small.weights[1] <= small.weights[0]


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("share", [0.03, 0.15, 0.5])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_convolutions(share, padding, activation):
    """Constant channels fold into biases, except where zeros come in at the border."""
    for seed in range(4):
        network = sparse(images(padding=padding, activation=activation), share, seed)
        size = 8
        x = torch.randn(5, 2, size, size, generator=generator(seed), dtype=torch.float64)
        small = compact(network)
        assert float((small.network(x) - reference(network, x)).detach().abs().max()) < 1e-10


def test_lenet_in_single_precision():
    """The acceptance figure: 1e-5, and the sizes are told."""
    network = sparse(sparsebnn.lenet(), 0.004)
    x = torch.rand(8, 1, 28, 28, generator=generator(0))
    small = compact(network)
    there = reference(network, x)
    assert float((small.network(x) - there).detach().abs().max()) < 1e-5 * float(there.abs().max())
    assert small.units[0][0] == 32
    assert small.weights[1] < 0.5 * small.weights[0]
    assert small.nonzero <= small.weights[1]


def test_chains_inside_a_chain():
    network = sparse(sparsebnn.mlp([6, 9, 7, 2], dtype=torch.float64), 0.3)
    nested = nn.Sequential(nn.Flatten(), nn.Sequential(network[0], nn.Sequential(*network[1:])))
    x = torch.randn(4, 2, 3, generator=generator(1), dtype=torch.float64)
    small = compact(nested)
    assert small.units == compact(network).units
    torch.testing.assert_close(small.network(x), reference(network, x.flatten(1)), rtol=0, atol=1e-12)


def test_nothing_left_is_a_constant():
    network = sparse(sparsebnn.mlp([4, 6, 3], dtype=torch.float64), 0.0)
    small = compact(network)
    assert small.units == ((6, 1), (3, 3))
    outputs = small.network(torch.randn(5, 4, dtype=torch.float64))
    assert torch.equal(outputs, median_weights(network[2])[1].expand(5, 3))


def test_a_constant_unit_goes_into_the_next_bias():
    """By hand: one unit that nothing reaches, one that reaches nothing, one that works."""
    network = sparsebnn.mlp([2, 3, 1], dtype=torch.float64)
    weights = [[[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]], [[4.0, 0.0, 5.0]]]
    with torch.no_grad():
        for (_, layer), values in zip(bayesian_layers(network), weights):
            values = torch.tensor(values, dtype=torch.float64)
            layer.weights.mean.copy_(values)
            layer.weights.inclusion_logit.copy_(torch.where(values != 0, 9.0, -9.0))
        network[0].biases.mean.copy_(torch.tensor([0.5, 1.0, -1.0]))
        network[2].biases.mean.fill_(7.0)
    small = compact(network)
    take, first, _, last = small.network
    assert isinstance(take, Take)
    assert small.inputs == (0,)
    assert first.weight.tolist() == [[2.0]]
    assert first.bias.tolist() == [-1.0]
    assert last.weight.tolist() == [[5.0]]
    assert last.bias.tolist() == [7.0 + 4.0 * 0.5]
    assert small.units == ((3, 1), (1, 1))
    assert small.weights == (9, 2)
    x = torch.tensor([[3.0, 100.0]], dtype=torch.float64)
    assert small.network(x).item() == 9.0 + 5.0 * F.relu(torch.tensor(2.0 * 3.0 - 1.0)).item()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sparsebnn.Linear(2, 3), "a Sequential"),
        (lambda: nn.Sequential(nn.ReLU()), "a module with Bayesian layers"),
        (lambda: nn.Sequential(sparsebnn.Linear(2, 3), nn.Softmax(-1)), "Got Softmax instead"),
        # A channel that is constant is not constant at such a pool's border.
        (lambda: pooled(32, padding=1), "average pools that count their padding"),
        (lambda: pooled(8, divisor_override=3), "divisor_override"),
        (
            lambda: nn.Sequential(sparsebnn.Linear(4, 8), nn.Flatten(), sparsebnn.Linear(40, 3)),
            "Dense layers on inputs of several axes cannot be compacted",
        ),
    ],
)
def test_what_would_come_out_wrong_is_refused(build, message):
    with pytest.raises(InvalidInput, match=message):
        compact(build())
    compact(pooled(32, padding=1, count_include_pad=False))


def test_dense_layers_on_several_axes():
    """Without a Flatten every place of the input goes through the same layers."""
    torch.manual_seed(0)
    network = sparsebnn.mlp(
        [6, 9, 3], initial=sparsebnn.init.Initial(inclusion_logit=sparsebnn.init.Normal(-1.0, 1.0))
    ).eval()
    small = compact(network)
    assert len(small.inputs) < 6
    x = torch.randn(2, 5, 6)
    torch.testing.assert_close(small.network(x), small.network(x.flatten(0, 1)).unflatten(0, (2, 5)))


def pooled(outputs, **options):
    pool = nn.AvgPool2d(2, **options)
    return nn.Sequential(sparsebnn.nn.Conv2d(1, 2, 3), pool, nn.Flatten(), sparsebnn.Linear(outputs, 2))
