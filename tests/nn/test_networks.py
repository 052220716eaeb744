"""networks.py: shapes and counts of the paper's networks, density, and starts that depend on a seed alone."""

import re
from datetime import timedelta

import pytest
import torch
from torch import nn

from contracts.members import FAMILIES, Nested
from sparsebnn.checks import InvalidInput
from sparsebnn.nn.conversion import convert
from sparsebnn.nn.convolutions import Conv2d
from sparsebnn.nn.description import density, prior_values
from sparsebnn.nn.image_networks import lenet
from sparsebnn.nn.layers import Linear
from sparsebnn.nn.networks import bayesian_layers, initialize, mlp
from sparsebnn.posteriors.learned_priors import EmpiricalPrior, GammaPrecisionPrior, HierarchicalPrior
from sparsebnn.posteriors.priors import SpikeSlabPrior

SMALL_FLOW = {"hidden": (5,)}


def test_lenet_is_the_papers():
    """Conv 1→32 k5, pool, conv 32→48 k5, pool, dense 768-256-84-10: 258,152 weights and 430 biases."""
    network = lenet()
    layers = [layer for _, layer in bayesian_layers(network)]
    assert [layer.weights.shape for layer in layers] == [
        (32, 1, 5, 5),
        (48, 32, 5, 5),
        (256, 768),
        (84, 256),
        (10, 84),
    ]
    assert [layer.weights.mean.numel() for layer in layers] == [800, 38_400, 196_608, 21_504, 840]
    assert sum(layer.weights.mean.numel() for layer in layers) == 258_152
    assert sum(layer.biases.mean.numel() for layer in layers) == 430
    # A spike-and-slab weight has a mean, a std and an inclusion; a bias a mean and a std.
    assert sum(p.numel() for p in network.parameters()) == 3 * 258_152 + 2 * 430
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    pools = [m for m in network if isinstance(m, nn.AvgPool2d)]
    assert [pool.kernel_size for pool in pools] == [2, 2]


def test_lenet_dense_layers_may_differ():
    """``dense`` overrides the options of the dense layers only; classes as asked."""
    network = lenet(7, family="gaussian", dense={"family": "spike_slab"})
    kinds = [(type(layer), layer.family) for _, layer in bayesian_layers(network)]
    assert kinds == [(Conv2d, "gaussian")] * 2 + [(Linear, "spike_slab")] * 3
    assert network(torch.zeros(1, 1, 28, 28)).shape == (1, 7)


@torch.no_grad()
def test_density_counts():
    """Share of weights with inclusion above one half, by layer and overall; biases do not count."""
    network = mlp([2, 3, 4])
    network[0].weights.inclusion_logit.copy_(torch.tensor([[1.0, -1.0], [0.0, 2.0], [-3.0, -0.1]]))
    network[2].weights.inclusion_logit.fill_(-1.0)
    network[2].weights.inclusion_logit[0, 0] = 0.5
    found = density(network)
    assert dict(found) == {"0": 2 / 6, "2": 1 / 12}
    assert found.overall == 3 / 18
    for family, options in (("gaussian", None), ("mnf", SMALL_FLOW)):
        assert density(mlp([2, 3], family=family, family_options=options)).overall == 1.0


@torch.no_grad()
def test_density_of_a_shared_and_of_a_single_layer():
    """A layer under two names counts once; a layer alone goes by its kind."""
    layer = Linear(3, 3)
    layer.weights.inclusion_logit.fill_(-1.0)
    layer.weights.inclusion_logit[0] = 1.0
    assert dict(density(layer)) == {"Linear": 1 / 3}
    assert density(nn.Sequential(layer, nn.ReLU(), layer)).overall == 1 / 3
    assert dict(density(nn.Sequential(layer, nn.ReLU(), layer))) == {"0": 1 / 3}


def build(name):
    member = FAMILIES[name]
    prior = {"gaussian_gamma": GammaPrecisionPrior, "concrete_hierarchical": HierarchicalPrior}.get(name)
    return mlp([3, 4, 2], family=member.family, prior=prior and prior(), family_options={**member.options})


@pytest.mark.parametrize("name", FAMILIES)
def test_initialise_depends_on_the_seed_alone(name):
    """Two networks with different pasts are equal after initialize(seed), in every parameter."""
    torch.manual_seed(1)
    first = build(name)
    torch.manual_seed(2)
    second = build(name)
    torch.rand(7)
    before = torch.get_rng_state()
    initialize(first, 5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.fill_(3.0)
    initialize(second, 5)
    ours, others = first.state_dict(), second.state_dict()
    assert ours.keys() == others.keys()
    for key, value in ours.items():
        assert torch.equal(value, others[key]), key
    initialize(second, 6)
    # These start at the same values for every seed: means of biases, hyperparameters, an auxiliary model.
    constant = ("biases.mean", ".prior.", ".auxiliary_weight", ".auxiliary_mean", ".auxiliary_raw_std")
    constant = constant if name == "dependent" else constant[:2]
    drawn = [key for key, _ in first.named_parameters() if not any(part in key for part in constant)]
    assert all(not torch.equal(ours[key], second.state_dict()[key]) for key in drawn)


@torch.no_grad()
def test_initialise_keeps_what_was_pretrained():
    """The seed moves neither pretrained means nor modules left as they were, frozen or not."""
    module = Nested()
    for parameter in module.parameters():
        parameter.add_(0.1)
    module.head.requires_grad_(False)
    network = convert(module, pretrained=True, keep=["head"])
    before = network.stem[0].weights.inclusion_logit.clone()
    initialize(network, 3)
    assert torch.equal(network.stem[0].weights.mean, module.stem[0].weight)
    assert torch.equal(network.residual.shared.biases.mean, module.residual.shared.bias)
    assert torch.equal(network.head.weight, module.head.weight)
    assert torch.equal(network.residual.norm.weight, module.residual.norm.weight)
    assert not torch.equal(network.stem[0].weights.inclusion_logit, before)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: mlp([4]), "'sizes' of mlp"),
        (lambda: mlp(4), "'sizes' of mlp"),
        (lambda: mlp([4, 2], initial=0.1), "'initial' of Linear"),
        (lambda: mlp([4, 2], family="flow", family_options=50), "'family_options' of Linear"),
        (lambda: mlp([4, 0, 2]), "'sizes' of mlp"),
        (lambda: mlp([4, 2], activation="rely"), "'activation' of mlp"),
        (lambda: density(nn.ReLU()), "'network' of density"),
    ],
)
def test_messages(call, named):
    with pytest.raises(InvalidInput, match=re.escape(f"The {named} must be ")):
        call()


# -- priors as they stand -----------------------------------------------------------------------------


def test_a_learned_scale_is_reported_layer_by_layer():
    """By hand: the root of the inclusion-weighted mean of σ̃² + μ̃², one pseudo-weight of 1 among them."""
    network = mlp([5, 4, 3], prior=EmpiricalPrior(0.2), dtype=torch.float64)
    for (name, layer), said in zip(network.named_children(), prior_values(network)[:1]):
        family = layer.weights
        alpha = torch.sigmoid(family.inclusion_logit)
        square = torch.nn.functional.softplus(family.raw_std) ** 2 + family.mean**2
        wanted = ((1.0 + (alpha * square).sum()) / (1.0 + alpha.sum())).sqrt()
        assert (said.layer, said.learned) == (name, True)
        assert said.slab_std == pytest.approx(float(wanted.detach()), rel=1e-10)
        assert said.inclusion_prob == pytest.approx(0.2)


def test_priors_of_every_kind_are_reported():
    fixed = prior_values(mlp([3, 2], prior=SpikeSlabPrior(0.3, std=0.5)))[0]
    assert str(fixed) == "layer 0: slab std 0.5, inclusion 0.3 (given)"
    hierarchical = HierarchicalPrior(shape=2.0, rate=8.0, included=1.0, excluded=3.0)
    learned = prior_values(mlp([3, 2], family="concrete", prior=hierarchical))[0]
    assert str(learned) == "layer 0: slab std 2, inclusion 0.25 (learned)"
    flow = mlp([3, 2], family="flow", family_options={"hidden": (4, 4)}, prior=EmpiricalPrior())
    family = flow[0].weights
    z = family.q_flow(family.z0_mean)[0].detach()
    with torch.no_grad():
        square = family.conditional.std**2 + (family.conditional.mean * z) ** 2
        alpha = family.inclusion_prob()
        wanted = ((1.0 + (alpha * square).sum()) / (1.0 + alpha.sum())).sqrt()
    assert prior_values(flow)[0].slab_std == pytest.approx(float(wanted), rel=1e-5)
    assert prior_values(mlp([3, 2], family="gaussian")) == []


def sharded_density(rank, world, path):
    """In a process of its own: the density of a network before and after it is sharded."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    try:
        network = mlp([5, 7, 3], family="spike_slab")
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        whole = density(network)
        for layer in (network[0], network[2], network):
            fully_shard(layer, mesh=init_device_mesh("cpu", (world,)))
        sharded = density(network)
        assert hasattr(network[0].weights.inclusion_logit, "full_tensor")
        assert dict(sharded) == dict(whole)
        assert sharded.overall == whole.overall
    finally:
        torch.distributed.destroy_process_group()


def test_density_of_a_sharded_network(tmp_path):
    sharded_density(0, 1, tmp_path / "store")


@pytest.mark.slow
def test_density_of_a_network_in_two_processes(tmp_path):
    torch.multiprocessing.spawn(sharded_density, (2, tmp_path / "store"), nprocs=2)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("relu", nn.ReLU),
        ("leaky_relu", nn.LeakyReLU),
        ("gelu", nn.GELU),
        ("silu", nn.SiLU),
        ("tanh", nn.Tanh),
    ],
)
def test_mlp(name, module):
    """Dense layers with an activation between, none after the last; options reach every layer."""
    network = mlp([2, 3, 4], activation=name, family="flow", bias=False, family_options=SMALL_FLOW)
    assert [type(m) for m in network] == [Linear, module, Linear]
    assert [layer.weights.shape for _, layer in bayesian_layers(network)] == [(3, 2), (4, 3)]
    for _, layer in bayesian_layers(network):
        assert layer.family == "flow"
        assert layer.biases is None
