"""conversion.py: what is converted is the same network, and what cannot be is named in full."""

import copy
import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import sparsebnn
from contracts.members import NESTED_EXAMPLE, PASSES, Nested
from sparsebnn.checks import InvalidInput
from sparsebnn.nn.conversion import convert
from sparsebnn.nn.convolutions import Conv1d, Conv2d
from sparsebnn.nn.layers import BayesianLayer, Linear
from sparsebnn.nn.networks import bayesian_layers
from sparsebnn.nn.passes import noise_size


@torch.no_grad()
def make_certain(network):
    """Inclusion → 1 and std → 0: the posterior is a point at its means."""
    for name, parameter in network.named_parameters():
        kind = name.rsplit(".", 1)[-1]
        if kind == "inclusion_logit":
            parameter.fill_(40.0)
        elif kind == "raw_std":
            parameter.fill_(-40.0)


@pytest.mark.parametrize("kind", PASSES)
@pytest.mark.parametrize("family", ["gaussian", "spike_slab", "concrete"])
@torch.no_grad()
def test_certain_posterior_is_the_original(family, kind):
    """With inclusion 1 and std 0 every pass gives the deterministic original's outputs, to 1e-5.

    Strided, grouped, dilated and one-dimensional convolutions, normalisation, a layer used twice.
    """
    module = Nested()
    x = torch.randn(4, *NESTED_EXAMPLE)
    network = convert(module, pretrained=True, family=family)
    expected = module(x)
    make_certain(network)
    noise_size(network, x, PASSES[kind])  # finds the layer that is used twice
    with PASSES[kind]():
        assert float((network(x) - expected).abs().max()) < 1e-5
    assert float(expected.std()) > 0.05


@pytest.mark.parametrize("training", [True, False])
def test_every_layer_becomes_bayesian_with_its_arguments(training):
    """Kinds, shapes, mode, dtype and the arguments of convolutions; the rest stays what it was."""
    module = Nested().double().train(training)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    network = convert(module)
    found = dict(bayesian_layers(network))
    assert list(found) == ["stem.0", "body.grouped", "body.sequence", "residual.shared", "head"]
    assert [type(layer) for layer in found.values()] == [Conv2d, Conv2d, Conv1d, Linear, Linear]
    grouped = found["body.grouped"]
    assert (grouped.groups, grouped.dilation, grouped.kernel_size) == (2, (1, 2), (3, 2))
    assert grouped.biases is None
    assert found["stem.0"].stride == (2, 2)
    assert found["body.sequence"].padding == "same"
    assert type(network.residual.norm) is nn.LayerNorm
    assert {m.training for m in network.modules()} == {training}
    assert {p.dtype for p in network.parameters()} == {torch.float64}
    # The original is untouched: training one does not move the other.
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(7.0)
    assert type(module.head) is nn.Linear
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_without_pretrained_the_means_are_drawn():
    """pretrained=False starts anew; pretrained=True starts at the module's weights."""
    module = nn.Linear(3, 2)
    assert not torch.equal(convert(module).weights.mean, module.weight)
    assert torch.equal(convert(module, pretrained=True).weights.mean, module.weight)
    assert torch.equal(convert(module, pretrained=True).biases.mean, module.bias)


# --- obstacles --------------------------------------------------------------------------------------


class Own(nn.Linear):
    def forward(self, x):
        return super().forward(x).square()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(5, 3)
        self.decoder = nn.Linear(3, 5)
        self.decoder.weight = self.encoder.weight


def old_weight_norm():
    with pytest.warns(FutureWarning):
        return nn.utils.weight_norm(nn.Linear(3, 3))


def hooked():
    module = nn.Linear(3, 3)
    module.register_forward_hook(lambda *given: None)
    return module


PARAMETRIZED = "has a parametrization"
NORMED = "has a weight or spectral norm hook"
READS = "reads its projections' weights without calling their forward"
KIND = "is of a kind that has no Bayesian form here"
LOST = "is a subclass whose own forward would be lost"
OBSTACLES = {
    "tied": (Tied, "decoder.weight is tied to encoder.weight"),
    "weight_norm": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3))),
        f"0 (ParametrizedLinear) {PARAMETRIZED}",
    ),
    "spectral_norm": (
        lambda: nn.Sequential(nn.Linear(3, 3), parametrizations.spectral_norm(nn.Conv1d(3, 3, 1))),
        f"1 (ParametrizedConv1d) {PARAMETRIZED}",
    ),
    "old_weight_norm": (lambda: nn.Sequential(old_weight_norm()), f"0 (Linear) {NORMED}"),
    "old_spectral_norm": (
        lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 3))),
        f"0 (Linear) {NORMED}",
    ),
    "instance_norm": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True)),
        "1 (InstanceNorm2d) updates running statistics",
    ),
    "attention": (
        lambda: nn.ModuleDict({"attend": nn.MultiheadAttention(4, 2), "out": nn.Linear(4, 1)}),
        f"attend (MultiheadAttention) {READS}",
    ),
    "transformer": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8)),
        f"0 (TransformerEncoderLayer) {READS}",
    ),
    "lstm": (lambda: nn.ModuleDict({"rnn": nn.LSTM(3, 4), "out": nn.Linear(4, 1)}), f"rnn (LSTM) {KIND}"),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(1, 1, 2)), f"0 (Conv3d) {KIND}"),
    "hooks": (lambda: nn.Sequential(hooked()), "0 (Linear) has hooks, which would be lost"),
    "itself": (lambda: Own(3, 3), f"the module itself (Own) {LOST}"),
    "several": (
        lambda: nn.Sequential(nn.Linear(3, 3), Own(3, 3), nn.LSTM(3, 3)),
        f"1 (Own) {LOST}; 2 (LSTM) {KIND}",
    ),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_obstacles(name):
    """Each thing that cannot be converted, named with its reason; kept, it is no obstacle."""
    build, reason = OBSTACLES[name]
    module = build()
    with pytest.raises(InvalidInput, match=re.escape(reason)) as error:
        convert(module)
    assert str(error.value).startswith("The 'module' of convert must be made of convertible parts.")
    if isinstance(module, nn.ModuleDict):
        kept = next(iter(module))
        assert [n for n, _ in bayesian_layers(convert(module, keep=[kept]))] == ["out"]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: convert(Nested(), keep=["hed", "stem"]), "'keep' of convert"),
        (lambda: convert(Nested(), keep=["xyz"]), "'keep' of convert"),
        (lambda: convert(Nested(), keep="head"), "'keep' of convert"),
        (lambda: convert(Nested), "'module' of convert"),
        (lambda: convert([4, 2]), "'module' of convert"),
        (lambda: convert(nn.Sequential(nn.ReLU(), nn.LayerNorm(3))), "'module' of convert"),
        (lambda: convert(nn.Sequential(nn.Linear(3, 3)), keep=["0"]), "'module' of convert"),
        (lambda: convert(Nested(), family="gausian"), "'family' of Conv2d"),
    ],
)
def test_messages(call, named):
    """The other refusals name what is wrong."""
    with pytest.raises(InvalidInput, match=re.escape(f"The {named} must ")):
        call()


# -- kept modules, shared modules, threads ------------------------------------------------------------


def _few() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(20, 4, generator=random), torch.arange(20) % 3


@pytest.mark.parametrize("replicates", [1, 2])
@pytest.mark.parametrize("mode", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
def test_a_module_under_two_names_is_one_module(replicates, mode):
    """Its replicates are those of the same network with the layer called twice under one name."""

    class Twice(nn.Module):
        def __init__(self, names):
            super().__init__()
            shared = nn.Linear(4, 4)
            self.first = shared
            if names == 2:
                self.second = shared
            self.last = nn.Linear(4, 3)

        def forward(self, x):
            again = getattr(self, "second", self.first)
            return self.last(torch.tanh(again(torch.tanh(self.first(x)))))

    settings = sparsebnn.Settings(epochs=2, batch_size=5, learning_rate=0.05)
    found = []
    for names in (1, 2):
        torch.manual_seed(3)
        run = sparsebnn.train(
            convert(Twice(names)), _few(), settings=settings, replicates=replicates, mode=mode, progress=False
        )
        found.append([[p.detach() for p in network.parameters()] for network in run.networks])
    assert len(found[0]) == replicates
    for one, two in zip(*found):
        assert len(one) == len(two)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one, two))


def test_kept_modules_go_on_from_their_weights():
    backbone = nn.Sequential(nn.Linear(4, 6), nn.Tanh()).requires_grad_(False)
    model = nn.Sequential(OrderedDict(backbone=backbone, middle=nn.Linear(6, 6), head=nn.Linear(6, 3)))
    network = convert(model, keep=["backbone", "middle"])
    settings = sparsebnn.Settings(epochs=1, batch_size=5, learning_rate=1e-4)
    run = sparsebnn.train(network, _few(), settings=settings, replicates=2, progress=False)
    for trained in run.networks:
        assert torch.equal(trained.backbone[0].weight, model.backbone[0].weight)
        moved = (trained.middle.weight - model.middle.weight).detach().abs().max()
        assert 0.0 < float(moved) < 1e-3
    assert not torch.equal(run.networks[0].middle.weight, run.networks[1].middle.weight)


def test_ties_with_what_is_kept_are_seen():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    model[1].weight = model[0].weight
    with pytest.raises(InvalidInput, match=r"1\.weight is tied to 0\.weight"):
        convert(model, keep=["0"])
    both = convert(model, keep=["0", "1"])
    with pytest.raises(InvalidInput, match=r"1\.weight is tied to 0\.weight"):
        sparsebnn.train(both, _few(), progress=False)


def test_networks_of_several_threads_are_those_of_their_seeds():
    template = sparsebnn.mlp([30, 40, 3])

    def start(seed: int) -> torch.Tensor:
        network = copy.deepcopy(template)
        sparsebnn.nn.initialize(network, seed)
        return torch.cat([p.detach().flatten() for p in network.parameters()])

    alone = [start(seed) for seed in range(20)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(start, list(range(20)) * 5))
    assert all(torch.equal(alone[i % 20], found) for i, found in enumerate(together))


@pytest.mark.parametrize("name", ["fc", "head"])
def test_a_module_with_two_names_is_kept_under_both(name):
    module = nn.Sequential(OrderedDict(stem=nn.Linear(4, 4), fc=nn.Linear(4, 4)))
    module.head = module.fc
    made = convert(module, keep=[name])
    assert made.fc is made.head
    assert type(made.fc) is nn.Linear
    assert isinstance(made.stem, BayesianLayer)


def test_batch_norm_that_does_not_update_is_converted():
    """In eval() mode nothing is written in forward; without running statistics rows are mixed in training."""
    frozen = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    assert isinstance(convert(frozen)[0], BayesianLayer)
    without = convert(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)))
    assert isinstance(without[0], BayesianLayer)
    with pytest.raises(InvalidInput, match="mixes the rows of a batch"):
        sparsebnn.train(without, _few(), progress=False)
