"""One program for many replicates: vmap equals a loop, capture works, a layer met twice is one layer."""

import copy

import pytest
import torch
from torch import nn

from contracts.members import (
    FAMILIES,
    LAYERS,
    NESTED_EXAMPLE,
    WITH_Z,
    Nested,
    block,
    generator,
    make_input,
    make_layer,
    randomise,
    tape_block,
)
from sparsebnn.checks import InvalidInput
from sparsebnn.nn.conversion import convert
from sparsebnn.nn.passes import LocalPass, PosteriorPass, WeightPass, forward_with_kl, noise_size
from sparsebnn.random.noise import NoiseBuffer

REPLICATES = 3
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


class Objective(nn.Module):
    """Outputs and KL of a network as a function of its noise: what a training step differentiates."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x, normals, logistics):
        return forward_with_kl(self.network, x, noise=NoiseBuffer(normals, logistics))


def loss_of(objective, parameters, buffers, x, normals, logistics):
    y, kl = torch.func.functional_call(objective, (parameters, buffers), (x, normals, logistics))
    return (y**2).sum() + kl, (y, kl)


def make_nested(family, seed, dtype):
    """A converted third-party network with random parameters; priors are the family's defaults."""
    member = FAMILIES[family]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = convert(Nested().to(dtype), family=member.family, family_options=member.options)
    return randomise(network, seed)


def close(ours, other, dtype):
    """Relative to the size of the tensor, so that one tolerance serves losses and gradients."""
    size = max(1.0, float(other.abs().max()))
    assert float((ours - other).abs().max()) <= TOLERANCE[dtype] * size


def check_vmap(networks, x, dtype):
    """Outputs, KL and every gradient of K stacked networks against the K networks one by one."""
    objectives = [Objective(network) for network in networks]
    blocks = block(noise_size(networks[0], x), 9, REPLICATES, dtype)
    parameters, buffers = torch.func.stack_module_state(objectives)
    parameters = {name: value.detach() for name, value in parameters.items()}
    skeleton = copy.deepcopy(objectives[0])
    step = torch.func.grad_and_value(lambda p, b, n, u: loss_of(skeleton, p, b, x, n, u), has_aux=True)
    gradients, (_, (y, kl)) = torch.func.vmap(step)(parameters, buffers, *blocks)
    for k, objective in enumerate(objectives):
        own_y, own_kl = objective(x, blocks[0][k], blocks[1][k])
        names, values = zip(*objective.named_parameters())
        own = torch.autograd.grad((own_y**2).sum() + own_kl, values, allow_unused=True)
        close(y[k], own_y.detach(), dtype)
        close(kl[k], own_kl.detach(), dtype)
        for name, gradient in zip(names, own):
            close(gradients[name][k], torch.zeros(()) if gradient is None else gradient, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_vmap_over_replicates_equals_a_loop(family, layer, dtype):
    """K replicates stacked (parameters, priors, noise) compute what each computes alone; gradients too."""
    networks = [make_layer(layer, family, seed, dtype) for seed in range(REPLICATES)]
    check_vmap(networks, make_input(layer, dtype=dtype), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    "family", [name for name in FAMILIES if not name.endswith(("_gamma", "_hierarchical"))]
)
def test_vmap_over_converted_networks_equals_a_loop(family, dtype):
    """The same for a nested module that is not ours, with a layer used twice."""
    if family.endswith("_example"):
        pytest.skip("a layer used twice has one z")
    x = torch.randn(2, *NESTED_EXAMPLE, generator=generator(0), dtype=torch.float64).to(dtype)
    check_vmap([make_nested(family, seed, dtype) for seed in range(REPLICATES)], x, dtype)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_skeleton_without_storage_will_do(family):
    """stack_module_state carries every tensor a pass reads, so the skeleton may live on 'meta'.

    This is the way of torch's own tutorial on ensembles; it fails when two names share one buffer.
    """
    objectives = [Objective(make_layer("linear", family, seed)) for seed in range(2)]
    x = make_input("linear")
    noise = block(noise_size(objectives[0].network, x), 3, 2)
    parameters, buffers = torch.func.stack_module_state(objectives)
    skeleton = copy.deepcopy(objectives[0]).to("meta")

    def one(p, b, n, u):
        return torch.func.functional_call(skeleton, (p, b), (x, n, u))

    y, _ = torch.func.vmap(one)(parameters, buffers, *noise)
    for k, objective in enumerate(objectives):
        close(y[k], objective(x, noise[0][k], noise[1][k])[0], torch.float64)


def compiled_loss(backend):
    @torch.compile(fullgraph=True, backend=backend, dynamic=False)
    def loss(network, x, normals, logistics):
        y, kl = forward_with_kl(network, x, noise=NoiseBuffer(normals, logistics))
        return (y**2).sum() + kl

    return loss


def check_compiled(network, x, backend, dtype):
    """Loss and gradients of the captured program against eager ones."""
    noise = tape_block(network, x, 4)
    torch.compiler.reset()
    captured = compiled_loss(backend)(network, x, *noise)
    y, kl = forward_with_kl(network, x, noise=NoiseBuffer(*noise))
    eager = (y**2).sum() + kl
    close(captured.detach(), eager.detach(), dtype)
    parameters = list(network.parameters())
    ours = torch.autograd.grad(captured, parameters, allow_unused=True)
    own = torch.autograd.grad(eager, parameters, allow_unused=True)
    for a, b in zip(ours, own):
        assert (a is None) == (b is None)
        if a is not None:
            close(a, b, dtype)


def short_flow(family):
    """Tracing takes seconds for long flows and shows nothing that one small step does not."""
    return {"length": 1, "hidden": (4,)} if family in WITH_Z else {}


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_is_one_graph(family):
    """torch.compile(fullgraph=True) captures output, KL and their gradients without a break."""
    network = make_layer("linear", family, 1, **short_flow(family))
    check_compiled(network, make_input("linear"), "aot_eager", torch.float64)


@pytest.mark.parametrize("layer", ["conv1d", "conv2d"])
@pytest.mark.parametrize("family", ["spike_slab", "concrete", "flow_example"])
def test_convolutions_are_one_graph(family, layer):
    """The same for convolutions; one family for each kind of draw is enough, the op being the same."""
    network = make_layer(layer, family, 1, **short_flow(family))
    check_compiled(network, make_input(layer), "aot_eager", torch.float64)


def test_converted_network_is_one_graph():
    """The same for a third-party module with a layer used twice."""
    x = torch.randn(2, *NESTED_EXAMPLE, generator=generator(0), dtype=torch.float64)
    check_compiled(make_nested("concrete", 1, torch.float64), x, "aot_eager", torch.float64)


# torch's own code generation uses parts of torch that torch deprecates.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "layer"),
    [*((family, "linear") for family in FAMILIES), ("spike_slab", "conv1d"), ("flow_example", "conv2d")],
)
def test_inductor_agrees_with_eager(family, layer):
    """Generated code computes what eager code does, in double precision."""
    network = make_layer(layer, family, 1, **short_flow(family))
    check_compiled(network, make_input(layer), "inductor", torch.float64)


# --- a layer used twice -----------------------------------------------------------------------------


class Twice(nn.Module):
    """y = (layer(x), layer(x)), the same layer under one name and two."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.again = layer

    def forward(self, x):
        return torch.stack([self.layer(x), self.again(x)])


@pytest.mark.parametrize("kind", [PosteriorPass, LocalPass], ids=["posterior", "local"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_layer_used_twice_is_one_draw_and_one_kl(family, layer, kind):
    """In one pass both uses see the same weights, drawn whole, and pay the KL once."""
    single = make_layer(layer, family, 2)
    double, x = Twice(single), make_input(layer)
    if single.weights.per_example and kind is PosteriorPass:
        with pytest.raises(InvalidInput, match="'z_per' of the"):
            noise_size(double, x, kind)
        return
    size = noise_size(double, x, kind)
    assert single.weights.reused or single.weights.draws_weights or family == "gaussian_gamma"
    with kind(NoiseBuffer(*block(size, 5))) as opened:
        first, second = double(x)
        third = double.layer(2.0 * x) - double.layer(x) - double.layer(x) + double.layer(0.0 * x)
    assert torch.equal(first, second)
    assert float(third.abs().max()) < 1e-12  # affine in x: one draw of weights and biases
    if kind is PosteriorPass:
        assert len(opened.kl_by_layer()) == 1


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_weight_pass_draws_a_layer_once(family):
    """Whole-weight draws are kept for the length of a pass and renewed in the next."""
    double, x = Twice(make_layer("linear", family, 2)), make_input("linear")
    with WeightPass():
        first, second = double(x)
    with WeightPass():
        third, _ = double(x)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
