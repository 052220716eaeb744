"""conversion.py: what is converted is the same network, and what cannot be is named in full."""

import copy
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import sparsebnn
from contracts.members import NESTED_EXAMPLE, PASSES, Nested
from sparsebnn.checks import InvalidInput
from sparsebnn.nn.conversion import convert, obstacles
from sparsebnn.nn.convolutions import Conv1d, Conv2d
from sparsebnn.nn.layers import BayesianLayer, Linear
from sparsebnn.nn.networks import bayesian_layers
from sparsebnn.nn.passes import forward_with_kl, noise_size


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


def test_every_layer_becomes_bayesian_with_its_arguments():
    """Kinds, shapes and the arguments of convolutions are carried over; the rest stays what it was."""
    network = convert(Nested())
    found = dict(bayesian_layers(network))
    assert list(found) == ["stem.0", "body.grouped", "body.sequence", "residual.shared", "head"]
    assert [type(layer) for layer in found.values()] == [Conv2d, Conv2d, Conv1d, Linear, Linear]
    grouped = found["body.grouped"]
    assert (grouped.groups, grouped.dilation, grouped.kernel_size) == (2, (1, 2), (3, 2))
    assert grouped.biases is None
    assert found["stem.0"].stride == (2, 2)
    assert found["body.sequence"].padding == "same"
    assert type(network.residual.norm) is nn.LayerNorm


def test_original_is_untouched():
    """convert returns a copy: training one does not move the other."""
    module = Nested()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    network = convert(module, pretrained=True)
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


def test_keep_leaves_modules_alone():
    """A kept module stays deterministic, with everything inside it."""
    network = convert(Nested(), keep=["residual", "head"])
    assert [name for name, _ in bayesian_layers(network)] == ["stem.0", "body.grouped", "body.sequence"]
    assert type(network.residual.shared) is nn.Linear


def test_shared_module_stays_shared():
    """A module under two names is one Bayesian layer under two names, paid once."""
    layer = nn.Linear(3, 3)
    network = convert(nn.Sequential(layer, nn.Tanh(), layer))
    assert network[0] is network[2]
    _, kl = forward_with_kl(network, torch.randn(2, 3))
    _, once = network[0].forward_with_kl(torch.randn(2, 3))
    assert float(kl.detach()) == pytest.approx(float(once.detach()), rel=1e-6)


def test_dtype_is_carried_over():
    """A double-precision module becomes a double-precision Bayesian one."""
    network = convert(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).double())
    assert {p.dtype for p in network.parameters()} == {torch.float64}


@pytest.mark.parametrize("training", [True, False])
def test_mode_is_carried_over(training):
    """A module in eval() mode is converted to one in eval() mode, layers included."""
    network = convert(Nested().train(training))
    assert {m.training for m in network.modules()} == {training}


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


class ReadsWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return nn.functional.linear(x, self.inner.weight)


def old_weight_norm():
    with pytest.warns(FutureWarning):
        return nn.utils.weight_norm(nn.Linear(3, 3))


OBSTACLES = {
    "tied": (Tied, "Tied", "decoder.weight is tied to encoder.weight"),
    "weight_norm": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3))),
        "Sequential",
        "0 (ParametrizedLinear) has a parametrization; remove it first with remove_parametrizations",
    ),
    "spectral_norm": (
        lambda: nn.Sequential(nn.Linear(3, 3), parametrizations.spectral_norm(nn.Conv1d(3, 3, 1))),
        "Sequential",
        "1 (ParametrizedConv1d) has a parametrization; remove it first with remove_parametrizations",
    ),
    "old_weight_norm": (
        lambda: nn.Sequential(old_weight_norm()),
        "Sequential",
        "0 (Linear) has a weight or spectral norm hook; remove it first",
    ),
    "old_spectral_norm": (
        lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 3))),
        "Sequential",
        "0 (Linear) has a weight or spectral norm hook; remove it first",
    ),
    "batch_norm": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)),
        "Sequential",
        "1 (BatchNorm2d) updates running statistics, which replicates cannot share; "
        "call .eval() on it, or use GroupNorm or LayerNorm",
    ),
    "attention": (
        lambda: nn.ModuleDict({"attend": nn.MultiheadAttention(4, 2), "out": nn.Linear(4, 1)}),
        "ModuleDict",
        "attend (MultiheadAttention) reads its projections' weights without calling their forward",
    ),
    "transformer": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8)),
        "Sequential",
        "0 (TransformerEncoderLayer) reads its projections' weights without calling their forward",
    ),
    "lstm": (
        lambda: nn.ModuleDict({"rnn": nn.LSTM(3, 4), "out": nn.Linear(4, 1)}),
        "ModuleDict",
        "rnn (LSTM) is of a kind that has no Bayesian form here",
    ),
    "conv3d": (
        lambda: nn.Sequential(nn.Conv3d(1, 1, 2)),
        "Sequential",
        "0 (Conv3d) is of a kind that has no Bayesian form here",
    ),
    "subclass": (
        lambda: nn.Sequential(Own(3, 3)),
        "Sequential",
        "0 (Own) is a subclass whose own forward would be lost",
    ),
    "itself": (
        lambda: Own(3, 3),
        "Own",
        "the module itself (Own) is a subclass whose own forward would be lost",
    ),
    "several": (
        lambda: nn.Sequential(nn.Linear(3, 3), Own(3, 3), nn.LSTM(3, 3)),
        "Sequential",
        "1 (Own) is a subclass whose own forward would be lost; "
        "2 (LSTM) is of a kind that has no Bayesian form here",
    ),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_obstacles(name):
    """Each thing that cannot be converted, named with its reason, in one message."""
    build, kind, reason = OBSTACLES[name]
    with pytest.raises(InvalidInput) as error:
        convert(build())
    assert str(error.value) == (
        f"The 'module' of convert must be made of convertible parts. Got {kind} instead, in which {reason}. "
        "Change these, or name them in keep=[...]."
    )


@pytest.mark.parametrize("name", ["attention", "lstm"])
def test_an_obstacle_may_be_kept(name):
    """What is named in keep is no obstacle, nor is anything inside it."""
    module = OBSTACLES[name][0]()
    kept = next(iter(module))
    network = convert(module, keep=[kept])
    assert [n for n, _ in bayesian_layers(network)] == ["out"]
    assert obstacles(module, keep=[kept]) == []


def test_batch_norm_is_fine_when_it_does_not_update():
    """In eval() mode, or without running statistics, nothing is written in forward."""
    frozen = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    assert isinstance(convert(frozen)[0], BayesianLayer)
    without = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False))
    assert isinstance(convert(without)[0], BayesianLayer)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: convert(Nested(), keep=["hed", "stem"]),
            "The 'keep' of convert must be names of submodules. Got ['hed'] instead. Did you mean 'head'?",
        ),
        (
            lambda: convert(Nested(), keep=["xyz"]),
            "The 'keep' of convert must be names of submodules. Got ['xyz'] instead. "
            "module.named_modules() lists them.",
        ),
        (
            lambda: convert(Nested(), keep="head"),
            "The 'keep' of convert must be a list of names. Got 'head' instead. Write keep=['head'].",
        ),
        (
            lambda: convert(Nested),
            "The 'module' of convert must be an nn.Module. Got the class Nested instead. Make one first.",
        ),
        (lambda: convert([4, 2]), "The 'module' of convert must be an nn.Module. Got list instead."),
        (
            lambda: convert(nn.Sequential(nn.ReLU(), nn.LayerNorm(3))),
            "The 'module' of convert must hold at least one Linear, Conv1d or Conv2d layer. "
            "Got Sequential without any instead.",
        ),
        (
            lambda: convert(nn.Sequential(nn.Linear(3, 3)), keep=["0"]),
            "The 'module' of convert must hold at least one Linear, Conv1d or Conv2d layer. "
            "Got Sequential without any instead.",
        ),
        (
            lambda: convert(Nested(), family="gausian"),
            "The 'family' of Conv2d must be one of 'gaussian', 'spike_slab', 'concrete', 'flow', 'mnf'. "
            "Got 'gausian' instead. Did you mean 'gaussian'?",
        ),
    ],
)
def test_messages(call, message):
    """The other refusals, in full."""
    with pytest.raises(InvalidInput) as error:
        call()
    assert str(error.value) == message


def test_a_module_that_reads_the_weight_is_told():
    """What convert cannot see beforehand is refused when it happens."""
    network = convert(ReadsWeight())
    with pytest.raises(TypeError) as error:
        network(torch.zeros(2, 3))
    assert str(error.value) == (
        "A Bayesian Linear has a distribution instead of a 'weight'. "
        "The surrounding module reads its projection's weight directly; "
        "leave that layer out of convert() with keep=[...], or call the layer itself."
    )


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


def test_what_cannot_be_converted_can_be_kept_and_trained():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.out(self.attend(x[:, None], x[:, None], x[:, None])[0][:, 0])

    network = convert(Attends(), keep=["attend"])
    settings = sparsebnn.Settings(epochs=1, batch_size=5)
    run = sparsebnn.train(network, _few(), settings=settings, replicates=2, mode="eager", progress=False)
    assert len(run.networks) == 2


def test_ties_with_what_is_kept_are_seen():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    model[1].weight = model[0].weight
    with pytest.raises(InvalidInput, match=r"1\.weight is tied to 0\.weight"):
        convert(model, keep=["0"])
    both = convert(model, keep=["0", "1"])
    with pytest.raises(InvalidInput, match=r"1\.weight is tied to 0\.weight"):
        sparsebnn.train(both, _few(), progress=False)


def test_hooks_are_not_lost_silently():
    model = nn.Sequential(nn.Linear(4, 3))
    model[0].register_forward_hook(lambda *given: None)
    with pytest.raises(InvalidInput, match="0 \\(Linear\\) has hooks, which would be lost"):
        convert(model)


def test_batch_norm_without_statistics_is_not_trained():
    network = convert(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)))
    with pytest.raises(InvalidInput, match="mixes the rows of a batch"):
        sparsebnn.train(network, _few(), progress=False)


def test_networks_of_several_threads_are_those_of_their_seeds():
    template = sparsebnn.mlp([30, 40, 3])

    def start(seed: int) -> torch.Tensor:
        network = copy.deepcopy(template)
        sparsebnn.nn.initialize(network, seed)
        return torch.cat([p.detach().flatten() for p in network.parameters()])

    alone = [start(seed) for seed in range(40)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(start, list(range(40)) * 5))
    assert all(torch.equal(alone[i % 40], found) for i, found in enumerate(together))


@pytest.mark.parametrize("name", ["fc", "head"])
def test_a_module_with_two_names_is_kept_under_both(name):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Linear(4, 4)
            self.fc = nn.Linear(4, 4)
            self.head = self.fc

        def forward(self, x):
            return self.head(self.fc(self.stem(x)))

    made = convert(Shared(), keep=[name])
    assert made.fc is made.head
    assert type(made.fc) is nn.Linear
    assert isinstance(made.stem, BayesianLayer)
