"""Input-skip networks: the formula, the median model in every small form, and files."""

import pytest
import torch
from torch import nn

import sparsebnn
from contracts.members import generator
from sparsebnn.checks import InvalidInput
from sparsebnn.io.sparse_files import load_sparse, save_sparse
from sparsebnn.kernels.compiler import kernel
from sparsebnn.nn import InputSkip, SparseNetwork, compact, convert, lenet, mlp, quantize
from sparsebnn.nn.compaction import Take, median_weights
from sparsebnn.nn.compiled import compiled_call
from sparsebnn.nn.lowering import lower
from sparsebnn.nn.networks import bayesian_layers
from sparsebnn.nn.passes import WeightPass, forward_with_kl, noise_size
from sparsebnn.random.noise import NoiseBuffer, RandomNoise

FAMILIES = {"spike_slab": {}, "flow": {"hidden": (5, 4)}, "gaussian": {}, "concrete": {}, "mnf": {}}


def sparse(network, share, seed=0):
    """A random part of the weights is left, and biases of both signs."""
    g = generator(seed)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if name.endswith("inclusion_logit"):
                p.copy_(torch.where(torch.rand(p.shape, generator=g) < share, 5.0, -5.0).to(p))
            elif name.endswith(".mean"):
                p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64).to(p))
    return network.eval()


def by_formula(weights, x, activation):
    """h¹ = a(W¹x), hˡ = a(Wˡ[hˡ⁻¹; x]), f = Wᴸ[hᴸ⁻¹; x], as sums of two products."""
    h = None
    for place, (weight, bias) in enumerate(weights):
        units = 0 if h is None else h.shape[1]
        out = x @ weight[:, units:].T + bias + (0 if h is None else h @ weight[:, :units].T)
        h = out if place == len(weights) - 1 else activation(out)
    return h


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sizes", [[4, 2], [5, 6, 3], [3, 6, 4, 5, 2]])
def test_formula(family, sizes):
    network = mlp(sizes, input_skip=True, activation="tanh", family=family, family_options=FAMILIES[family])
    network.double()
    x = torch.randn(7, sizes[0], dtype=torch.float64)
    with torch.no_grad(), WeightPass(RandomNoise()) as opened:
        y = network(x)
    weights = [opened.drawn(layer) for layer in network.layers]
    assert float((y - by_formula(weights, x, torch.tanh)).abs().max()) < 1e-12
    assert len(weights) == len(sizes) - 1


@pytest.mark.parametrize("group_by", ["weight", "output"])
@pytest.mark.parametrize("family", ["spike_slab", "flow", "concrete"])
def test_two_products_are_one_of_both(family, group_by, monkeypatch):
    """Outputs, KL and gradients of a training pass, with the same noise."""
    if family == "flow" and group_by == "output":
        pytest.skip("a flow has no such groups")
    options = {**FAMILIES[family], "group_by": group_by}
    network = mlp([5, 6, 3], input_skip=True, family=family, family_options=options).double()
    x = torch.randn(7, 5, generator=generator(0), dtype=torch.float64)
    size = noise_size(network, x)
    found = []
    for limit in (1, 1000):
        monkeypatch.setattr("sparsebnn.nn.networks._JOINED", limit)
        normal, logistic = (torch.randn(n, generator=generator(1), dtype=torch.float64) for n in size)
        y, kl = forward_with_kl(network, x, noise=NoiseBuffer(normal, logistic))
        found.append([y, kl, *torch.autograd.grad(y.square().sum() + kl, list(network.parameters()))])
    for joined, copied in zip(*found):
        torch.testing.assert_close(joined, copied, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.2, 1.0])
@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_compaction(activation, share):
    """Constant units, unread inputs and layers that nothing passes through are left out exactly."""
    for seed in range(5):
        network = mlp([9, 12, 8, 3], input_skip=True, activation=activation, dtype=torch.float64)
        sparse(network, share, seed)
        x = torch.randn(20, 9, generator=generator(seed), dtype=torch.float64)
        small = compact(network)
        weights = [median_weights(layer) for layer in network.layers]
        y = by_formula(weights, x, getattr(torch, activation))
        assert float((small.network(x) - y).detach().abs().max()) < 1e-10
        left = sum(int((weight != 0).sum()) for weight, _ in weights)
        assert small.nonzero <= left
        assert small.weights[0] == 9 * 12 + 21 * 8 + 17 * 3
        if share == 0.05:
            assert isinstance(small.network[0], Take)
            assert small.weights[1] < small.weights[0] / 2


def test_compacted_images():
    """The dense layers of a LeNet see the flattened feature maps."""
    network = sparse(lenet(input_skip=True, dtype=torch.float64), 0.02)
    skip = network[-1]
    assert [layer.in_features for layer in skip.layers] == [768, 256 + 768, 84 + 768]
    assert [p.shape for _, p in lenet().named_parameters()] == [
        p.shape for _, p in lenet(input_skip=False).named_parameters()
    ]
    x = torch.rand(3, 1, 28, 28, generator=generator(0), dtype=torch.float64)
    maps = x
    with torch.no_grad():
        for module in network[:-1]:
            weighted = isinstance(module, sparsebnn.nn.BayesianLayer)
            maps = module.op(maps, *median_weights(module)) if weighted else module(maps)
        y = by_formula([median_weights(layer) for layer in skip.layers], maps, torch.relu)
    small = compact(network)
    assert float((small.network(x) - y).detach().abs().max()) < 1e-9
    assert small.units[0][1] < 32
    assert isinstance(small.network[-1], InputSkip)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "gelu"])
def test_small_forms(activation, tmp_path):
    """SparseNetwork, the C kernel and the small file compute what the compacted network does."""
    network = sparse(mlp([9, 12, 8, 3], input_skip=True, activation=activation), 0.2)
    dense = compact(network).network
    x = torch.randn(37, 9, generator=generator(1))
    y = dense(x).detach()
    for rows in (1, 37):
        torch.testing.assert_close(SparseNetwork(network)(x[:rows]), y[:rows], rtol=1e-5, atol=1e-5)
        if kernel().run is not None:
            found = compiled_call(lower(dense, [9]), kernel())(x[:rows])
            torch.testing.assert_close(found, y[:rows], rtol=1e-5, atol=1e-5)
    loaded = load_sparse(save_sparse(network, tmp_path / "small.safetensors", "float32"))
    assert torch.equal(loaded(x), dense(x))
    off = (quantize(network, x)(x) - y).abs()
    assert 0.0 < float(off.max()) < 0.05 * float(y.max() - y.min())


def test_files_and_conversion(tmp_path):
    network = sparse(mlp([4, 6, 3], input_skip=True), 0.4)
    path = sparsebnn.save(network, tmp_path / "model.safetensors")
    loaded = sparsebnn.load(path, mlp([4, 6, 3], input_skip=True)).network
    x = torch.randn(5, 4)
    assert torch.equal(compact(loaded).network(x), compact(network).network(x))
    plain = InputSkip([nn.Linear(4, 6), nn.Linear(10, 3)], nn.ReLU())
    bayesian = convert(plain, pretrained=True, family="gaussian")
    assert [name for name, _ in bayesian_layers(bayesian)] == ["layers.0", "layers.1"]
    torch.testing.assert_close(compact(bayesian).network(x), plain(x))


@pytest.mark.parametrize(
    "layers", [[], [nn.ReLU()], [nn.Linear(3, 4), nn.Linear(4, 2)]], ids=["none", "not linear", "sizes"]
)
def test_bad_layers(layers):
    with pytest.raises(InvalidInput, match="layers"):
        InputSkip(layers, nn.ReLU())
