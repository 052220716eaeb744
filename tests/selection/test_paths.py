"""Active paths against enumeration of every structure of small networks."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.selection.paths import median_reach, path_probability


def uncertain(sizes, seed=0, low=-1.5, high=1.0, **options):
    """A network with inclusion probabilities all over the place."""
    torch.manual_seed(seed)
    network = sparsebnn.mlp(sizes, **options).double()
    with torch.no_grad():
        for module in network:
            if hasattr(module, "weights"):
                module.weights.inclusion_logit.uniform_(low, high)
    return network


def enumerated(network):
    """Every structure of groups (or single weights) with its probability, spread over the weights."""
    layers = [m.weights for m in network if hasattr(m, "weights")]
    groups = [torch.sigmoid(weights.inclusion_logit).detach() for weights in layers]
    flat = torch.cat([group.flatten() for group in groups])
    total = torch.zeros(layers[0].shape[1], dtype=torch.float64)
    for bits in itertools.product((0.0, 1.0), repeat=len(flat)):
        structure = torch.tensor(bits, dtype=torch.float64)
        mass = torch.where(structure > 0, flat, 1 - flat).prod()
        split = structure.split([group.numel() for group in groups])
        parts = [s.reshape(g.shape).expand(w.shape) for s, g, w in zip(split, groups, layers)]
        reach = torch.ones(layers[-1].shape[0], dtype=torch.bool)
        for part in reversed(parts):
            reach = ((part > 0) & reach.unsqueeze(1)).any(0)
        total += mass * reach
    return total


SINGLE = [[3, 1], [3, 2], [2, 3, 1], [2, 2, 2], [2, 2, 2, 1], [2, 1, 2, 2, 1]]
SHARED = [[3, 1], [1, 3], [3, 4, 1], [2, 3, 3], [3, 2, 4, 1], [1, 2, 1, 2]]


@pytest.mark.parametrize(
    ("group_by", "sizes"),
    [("weight", sizes) for sizes in SINGLE] + [(by, sizes) for by in ("input", "output") for sizes in SHARED],
)
def test_probabilities_are_those_of_enumeration(group_by, sizes):
    network = uncertain(sizes, family_options={"group_by": group_by})
    reach = path_probability(network)
    torch.testing.assert_close(reach.prob, enumerated(network), rtol=0, atol=1e-12)
    assert (reach.error == 0).all()


@pytest.mark.parametrize("share", ["input", "output"])
def test_wide_layers_of_shared_inclusions(share):
    """P(an input is there) · P(a hidden unit is there): the second is all but certain of 40."""
    initial = sparsebnn.init.Initial(inclusion_logit=sparsebnn.init.Normal(-2.2, 0.0))
    network = sparsebnn.mlp([3, 40, 1], family_options={"group_by": share}, initial=initial)
    p = float(torch.sigmoid(torch.tensor(-2.2)))
    exact = p * (1 - (1 - p) ** 40)
    reach = path_probability(network, n_draws=4000)
    assert ((reach.prob - exact).abs() < 4 * reach.error + 1e-9).all()
    assert (reach.error < 0.01).all()


def test_filters_that_share_are_there_as_a_whole():
    network = torch.nn.Sequential(
        sparsebnn.nn.Conv2d(1, 1, 2, stride=2, family_options={"group_by": "output"}), torch.nn.Flatten()
    ).double()
    with torch.no_grad():
        network[0].weights.inclusion_logit.fill_(0.3)
    reach = path_probability(network, n_draws=2000, shape=(1, 4, 4))
    assert torch.equal(reach.prob, reach.prob.flatten()[0].expand(1, 4, 4))
    assert abs(float(reach.prob[0, 0, 0]) - float(torch.sigmoid(torch.tensor(0.3)))) < 0.05
    assert bool(median_reach(network, (1, 4, 4)).all())


def test_wide_layers_are_drawn_and_agree_with_the_exact_sum(monkeypatch):
    network = uncertain([4, 5, 3, 4, 2], seed=3)
    exact = path_probability(network).prob
    monkeypatch.setattr("sparsebnn.selection.paths._EXACT_UNITS", 1)
    drawn = path_probability(network, n_draws=4000, seed=1)
    assert (drawn.error > 0).all()
    assert (drawn.error < 0.01).all()
    assert ((drawn.prob - exact).abs() < 4 * drawn.error).all()
    again = path_probability(network, n_draws=4000, seed=1)
    assert torch.equal(drawn.prob, again.prob)


def test_median_reach_is_the_reach_of_the_thresholded_structure():
    for seed in range(8):
        network = uncertain([4, 3, 3, 2], seed=seed, high=1.2)
        kept = [(m.weights.inclusion_prob() > 0.5) for m in network if hasattr(m, "weights")]
        reach = kept[-1].any(0)
        for part in reversed(kept[:-1]):
            reach = (part & reach.unsqueeze(1)).any(0)
        assert median_reach(network).bool().tolist() == reach.tolist()


def test_flow_families_count_like_mean_field():
    torch.manual_seed(0)
    network = sparsebnn.mlp([3, 4, 2], family="flow", family_options={"hidden": (4,)})
    plain = sparsebnn.mlp([3, 4, 2])
    with torch.no_grad():
        for i in (0, 2):
            plain[i].weights.inclusion_logit.copy_(network[i].weights.conditional.inclusion_logit)
    torch.testing.assert_close(path_probability(network).prob, path_probability(plain).prob)


def small_convolution():
    torch.manual_seed(1)
    network = nn.Sequential(
        sparsebnn.nn.Conv2d(1, 1, 2, stride=2),
        nn.ReLU(),
        nn.MaxPool2d((1, 2)),
        nn.Flatten(),
        sparsebnn.Linear(1, 1),
    ).double()
    with torch.no_grad():
        network[0].weights.inclusion_logit.uniform_(-1, 1)
        network[4].weights.inclusion_logit.fill_(0.5)
    return network


def test_convolutions_by_drawn_structures():
    """A 2×4 image, kernel 2×2 at stride 2: pixel (r, c) has the path of weight (r, c mod 2) and the last."""
    network = small_convolution()
    kernel = network[0].weights.inclusion_prob()[0, 0].detach()
    exact = torch.cat([kernel, kernel], dim=1) * torch.sigmoid(torch.tensor(0.5, dtype=torch.float64))
    reach = path_probability(network, n_draws=2000, shape=(1, 2, 4))
    assert ((reach.prob[0] - exact).abs() < 4 * reach.error[0] + 1e-9).all()
    kept = (kernel > 0.5).double()
    assert torch.equal(median_reach(network, (1, 2, 4))[0], torch.cat([kept, kept], dim=1))


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation"), [(None, 0, 1), (3, 1, 1), (4, 1, 2), ((3, 2), 0, 2)]
)
def test_a_pixel_reaches_if_a_pool_can_choose_it(stride, padding, dilation, ceil_mode):
    """The oracle: an image with nothing but that pixel, pooled."""
    pool = nn.MaxPool2d((2, 3), stride, padding, dilation, ceil_mode=ceil_mode)
    alone = torch.eye(7 * 8).reshape(-1, 1, 7, 8)
    seen = pool(alone).flatten(1)
    network = nn.Sequential(pool, nn.Flatten(), sparsebnn.Linear(seen.shape[1], 1, family="gaussian"))
    exact = (seen > 0).any(1).double().reshape(1, 7, 8)
    assert torch.equal(median_reach(network, (1, 7, 8)), exact)
    assert torch.equal(path_probability(network, n_draws=2, shape=(1, 7, 8)).prob, exact)


@pytest.mark.parametrize("shape", [(2, 4), (5, 1, 2, 4), (1, 9, 9), (3, 2, 4), 8, (1, 2, 0), None])
def test_shapes_that_are_not_an_inputs(shape):
    for call in (
        lambda: median_reach(small_convolution(), shape),
        lambda: path_probability(small_convolution(), shape=shape),
    ):
        with pytest.raises(InvalidInput, match="'shape' of "):
            call()


def test_flattened_images_are_exact_too():
    """A Flatten, then a dense network: its probabilities, in the shape of an image if that is given."""
    dense = uncertain([6, 4, 1])
    network = nn.Sequential(nn.Flatten(), nn.Sequential(*dense))
    exact = path_probability(dense)
    for shape, wanted in ((None, (6,)), ((1, 2, 3), (1, 2, 3))):
        found = path_probability(network, shape=shape)
        assert torch.equal(found.prob, exact.prob.reshape(wanted))
        assert float(found.error.max()) == 0.0
        assert torch.equal(median_reach(network, shape), median_reach(dense).reshape(wanted))
    with pytest.raises(InvalidInput, match=r"Got \(1, 2, 2\), of which \(4,\) comes to a Linear, instead"):
        path_probability(network, shape=(1, 2, 2))


def test_pools_of_one_dimension():
    for pools in ((nn.MaxPool1d(2), nn.AvgPool1d(2)), (nn.MaxPool1d(4, return_indices=True),)):
        network = nn.Sequential(*pools, nn.Flatten(), sparsebnn.Linear(1, 1, family="gaussian"))
        assert median_reach(network, (1, 5)).tolist() == [[1.0, 1.0, 1.0, 1.0, 0.0]]


@pytest.mark.parametrize("sizes", [[3, 1], [3, 4, 1], [3, 12, 12, 2]])
def test_a_network_on_another_device(sizes, monkeypatch):
    """One whose tensors cannot meet those of the CPU: they are brought there first, and nothing else is."""
    network = uncertain(sizes)
    held = {
        m.weights.inclusion_prob().shape: m.weights.inclusion_prob() for m in network if hasattr(m, "weights")
    }
    expected = path_probability(network, n_draws=20).prob, median_reach(network)
    plain = torch.Tensor.cpu
    monkeypatch.setattr(
        torch.Tensor, "cpu", lambda self: held[self.shape].detach() if self.is_meta else plain(self)
    )
    away = network.to("meta")
    found = path_probability(away, n_draws=20).prob, median_reach(away)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.gpu
def test_a_network_on_a_gpu():
    network = uncertain([3, 12, 12, 2])
    expected = path_probability(network, n_draws=20).prob
    torch.testing.assert_close(path_probability(network.cuda(), n_draws=20).prob, expected)


def test_what_cannot_be_traced_is_refused():
    """Inclusions of weights used twice are one, so paths through both uses are not independent."""
    layer = sparsebnn.Linear(2, 2)
    for modules in ([layer, nn.LayerNorm(2)], [nn.Linear(2, 2)], [layer, nn.ReLU(), layer]):
        with pytest.raises(InvalidInput, match="'network' of") as caught:
            path_probability(nn.Sequential(*modules))
        told = str(caught.value)
        assert "\n" not in told
        assert "traceback" not in told


def test_edges():
    """Ordinary layers are all there; one draw knows no error; deep chains do not underflow."""
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), sparsebnn.Linear(2, 1)).double()
    with torch.no_grad():
        network[2].weights.inclusion_logit.fill_(0.0)
    assert path_probability(network).prob.tolist() == pytest.approx([0.75] * 3)
    assert path_probability(uncertain([3, 12, 12, 2]), n_draws=1).error.tolist() == [math.inf] * 3
    assert median_reach(uncertain([2] + [60] * 12 + [1], low=5.0, high=6.0)).tolist() == [1.0, 1.0]
    for family in ("gaussian", "mnf"):
        assert path_probability(sparsebnn.mlp([3, 4, 2], family=family)).prob.tolist() == [1.0, 1.0, 1.0]
