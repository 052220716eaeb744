"""Optimizers, schedules, clipping, accumulation, averages, bfloat16 and batch normalization."""

import math

import pytest
import torch
from torch import nn

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.nn.layers import BayesianLayer
from sparsebnn.training import OneCycle, Settings, Warmup
from sparsebnn.training.optimizers import Constant, Cosine
from training.runs import (
    ROWS,
    distance,
    fit,
    make_data,
    make_network,
    parameters,
    same,
    stopped_and_resumed,
)

X, Y = make_data()


class Mixed(nn.Module):
    """An ordinary layer before a Bayesian one."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Linear(4, 6).double()
        self.layer = sparsebnn.Linear(6, 3, dtype=torch.float64)

    def forward(self, x):
        return self.layer(torch.tanh(self.plain(x)))


def reference(optimizer, settings, k, rate, steps):
    """The same steps through ``torch.optim``, one replicate, on the gradients of the library's objective."""
    torch.manual_seed(0)
    run = fit(Mixed(), (X, Y), Settings(1, 8, 0.0), replicates=[k])
    engine = run._engine
    named = list(run.replicates.objective.named_parameters())
    plain = [p for n, p in named if ".plain." in n]
    rest = [p for n, p in named if ".plain." not in n]
    opt = optimizer(plain, rest, rate)
    engine.begin_epoch(0)
    engine["step"].zero_()
    for step in range(steps):
        if step and step % 3 == 0:
            engine.begin_epoch(step // 3)
        gradients, _ = engine._gradients(*engine._noise(engine.state))
        for name, p in named:
            p.grad = gradients[name][0].clone()
        if settings.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_([p for _, p in named], settings.clip_norm, error_if_nonfinite=True)
        opt.step()
        engine["step"].add_(1)
        engine["position"].add_(1)
    return {n: p.detach().clone() for n, p in named}


@pytest.mark.parametrize(
    ("options", "optimizer"),
    [
        ({"optimizer": "sgd"}, lambda a, b, r: torch.optim.SGD([*a, *b], r, momentum=0.9)),
        (
            {"optimizer": "sgd", "momentum": 0.5, "clip_norm": 3.0},
            lambda a, b, r: torch.optim.SGD([*a, *b], r, momentum=0.5),
        ),
        (
            {"optimizer": "adamw", "weight_decay": 0.3, "clip_norm": 3.0},
            lambda a, b, r: torch.optim.AdamW(
                [{"params": a, "weight_decay": 0.3}, {"params": b}], r, weight_decay=0.0
            ),
        ),
    ],
)
def test_steps_are_those_of_torch(options, optimizer):
    """Two replicates with their own rates, each against an optimizer of PyTorch; only plain layers decay."""
    rates = [1e-3, 3e-3]
    settings = Settings(3, 8, schedule="constant", **options)
    torch.manual_seed(0)
    varied = {"replicates": [4, 5], "per_replicate": {"learning_rate": rates}}
    run = fit(Mixed(), (X, Y), settings, **varied)
    for i, rate in enumerate(rates):
        expected = reference(optimizer, settings, 4 + i, rate, 9)
        assert distance(parameters(run, i), expected) < 1e-10


@pytest.mark.parametrize("family", ["spike_slab", "flow", "concrete"])
@pytest.mark.parametrize("replicates", [1, 2])
def test_accumulation_gives_the_result_of_whole_batches(family, replicates):
    settings = Settings(3, 8, 1e-2, clip_norm=2.0)
    whole = fit(make_network(family=family), (X, Y), settings, replicates=replicates)
    parts = Settings(3, 8, 1e-2, clip_norm=2.0, accumulate=3)
    found = fit(make_network(family=family), (X, Y), parts, replicates=replicates)
    assert distance(parameters(found), parameters(whole)) < 1e-10
    for ours, other in zip(found.history, whole.history):
        assert ours.loss == pytest.approx(other.loss, rel=1e-10)
        assert ours.kl == pytest.approx(other.kl, rel=1e-10)


def test_schedules_of_every_step():
    """Rates of the first steps, seen as the difference of one step of gradient descent without momentum."""
    assert Warmup(0.5, Cosine(0.0)).factor(1.0, 4) == 0.5
    assert Warmup(0.5, Cosine(0.0)).factor(3.0, 4) == pytest.approx(0.5)
    assert OneCycle(0.25, 0.1, 0.2).factor(1.0, 4) == 1.0
    assert OneCycle(0.25, 0.1, 0.2).factor(4.0, 4) == pytest.approx(0.2)
    rates = []
    settings = Settings(2, 8, 0.1, schedule=Warmup(1.0, Constant()))
    run = fit(make_network(), (X, Y), Settings(1, 8))
    engine = sparsebnn.training.engine.Engine(run.replicates, run.batches, settings, {}, "eager")
    for epoch in range(2):
        engine.begin_epoch(epoch)
        for _ in range(3):
            engine.run(1)
            rates.append(float(engine["rates"][0, 0]))
    assert rates == pytest.approx([0.1 * step / 6 for step in range(6)])


def test_averages_are_those_of_the_formula(tmp_path):
    """The results are averages; the run goes on from the parameters, also when it is resumed."""
    seen = []

    class Keep(sparsebnn.training.Callback):
        def on_epoch_end(self, run, epoch):
            seen.append(parameters(run))

    settings = Settings(6, ROWS, 1e-2, average=0.4)
    plain = fit(make_network(), (X, Y), Settings(6, ROWS, 1e-2), replicates=2)
    run = fit(make_network(), (X, Y), settings, replicates=2, callbacks=[Keep()])
    assert same(parameters(run), parameters(plain))
    start = fit(make_network(), (X, Y), Settings(1, ROWS, 0.0), replicates=2)
    average = parameters(start)
    for step, now in enumerate(seen):
        keep = min(0.4, (1 + step) / (10 + step))
        average = {n: keep * a + (1 - keep) * now[n] for n, a in average.items()}
    for k, network in enumerate(run.networks):
        for name, value in network.named_parameters():
            torch.testing.assert_close(value.detach(), average[f"network.{name}"][k])
    resumed = stopped_and_resumed(make_network(), (X, Y), settings, tmp_path, 4, replicates=2)
    assert all(
        torch.equal(a, b)
        for ours, other in zip(resumed.networks, run.networks)
        for a, b in zip(ours.state_dict().values(), other.state_dict().values())
    )


def test_rehearsals_change_no_averages_and_no_statistics(monkeypatch):
    """A step is rehearsed before it is captured; without CUDA the rehearsals alone."""

    def rehearsed(step, rehearsals):
        for _ in range(rehearsals):
            step()
        return step

    monkeypatch.setattr("sparsebnn.training.compile.captured", rehearsed)
    settings = Settings(1, 8, 1e-2, average=0.4)
    run = fit(normed(), make_data("conv"), settings, replicates=2)
    engine = sparsebnn.training.engine.Engine(run.replicates, run.batches, settings, {}, "eager")
    engine.begin_epoch(0)
    before = {kind: {n: t.clone() for n, t in tensors.items()} for kind, tensors in engine.state.items()}
    assert before["average"]
    assert any(name.endswith("running_var") for name in before["varied"])
    engine.mode = "captured"
    engine.prepare()
    assert engine.mode == "captured"
    for kind, tensors in engine.state.items():
        assert all(torch.equal(t, before[kind][name]) for name, t in tensors.items()), kind


# --- bfloat16 -------------------------------------------------------------------------------------------


class Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """Which operations saw or gave bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in torch.utils._pytree.tree_leaves((args, result)) if isinstance(t, torch.Tensor)]
        if any(t.dtype == torch.bfloat16 for t in tensors):
            self.names.add(str(func).split(".")[1])
        return result


@pytest.mark.parametrize("family", ["gaussian", "spike_slab", "concrete", "flow"])
def test_bfloat16_reaches_means_alone(family):
    """Only products, their gradients and casts; the KL is that of full precision to the last bit."""
    network = make_network("conv", family, torch.float32)
    x, y = make_data("conv", rows=8)
    objective = sparsebnn.training.Objective(network, sparsebnn.likelihoods.Categorical(3), 8)
    batch = sparsebnn.training.Batch(x.float(), y, torch.ones(8), torch.tensor(8.0))
    noise = sparsebnn.nn.passes.noise_size(network, batch.x)
    numbers = torch.randn(noise.normal), torch.randn(noise.logistic)

    def parts():
        return objective(batch, torch.tensor(1.0), sparsebnn.random.noise.NoiseBuffer(*numbers))

    exact = parts()
    objective.autocast = torch.bfloat16
    with Seen() as seen:
        rounded = parts()
        rounded.loss.backward()
    products = {"addmm", "mm", "convolution", "convolution_backward"}
    linear = {"_to_copy", "t", "view", "_unsafe_view", "detach", "add", "mul", "sum", "expand"}
    # Between layers, where a layer gives bfloat16: one that draws its weights, like an ordinary one.
    between = {"relu", "threshold_backward", "avg_pool2d", "avg_pool2d_backward"}
    assert "convolution" in seen.names
    assert seen.names <= products | linear | (between if family == "concrete" else set())
    assert rounded.loss.dtype == rounded.kl.dtype == torch.float32
    assert torch.equal(rounded.kl, exact.kl)
    assert not torch.equal(rounded.nll, exact.nll)
    torch.testing.assert_close(rounded.nll, exact.nll, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("kind", ["mlp", "skip", "conv"])
@pytest.mark.parametrize("family", ["gaussian", "spike_slab", "by output", "flow"])
def test_variances_are_those_of_full_precision(monkeypatch, family, kind):
    """Given the inputs that each layer gets; those of the first are rounded."""
    options = {"family_options": {"group_by": "output"}} if family == "by output" else {}
    network = make_network(kind, "spike_slab" if options else family, torch.float32, **options)
    asked, whole = [], BayesianLayer.output_moments

    def watched(layer, x, moments, *biases):
        found = whole(layer, x, moments, *biases)
        asked.append((layer, x, moments, biases, found[1]))
        return found

    monkeypatch.setattr(BayesianLayer, "output_moments", watched)
    x, _ = make_data(kind, rows=8)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        sparsebnn.forward_with_kl(network, x.bfloat16())
    monkeypatch.undo()
    assert len(asked) >= 2
    for layer, given, moments, biases, variance in asked:
        _, expected = layer.output_moments(given.float(), moments, *biases)
        assert variance.dtype == torch.float32
        torch.testing.assert_close(variance, expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("options", [{}, {"family_options": {"group_by": "output"}}], ids=["plain", "gated"])
def test_networks_in_bfloat16_run_under_autocast(options):
    network = sparsebnn.mlp([4, 6, 3], dtype=torch.bfloat16, **options)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, kl = sparsebnn.forward_with_kl(network, make_data()[0].bfloat16())
    assert outputs.isfinite().all()
    assert kl.isfinite()


@pytest.mark.parametrize("replicates", [1, 2])
def test_training_in_bfloat16_follows_full_precision(replicates):
    x, y = make_data(rows=200)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0)
    network = make_network(dtype=torch.float32)
    runs = [
        fit(network, (x.float(), y), Settings(15, 20, 2e-2, autocast=autocast), replicates=replicates)
        for autocast in (None, "bfloat16")
    ]
    exact, rounded = (run.history[-1].nll[0] for run in runs)
    assert exact != rounded
    assert rounded == pytest.approx(exact, rel=0.1)
    assert all(p.dtype == torch.float32 for p in runs[1].network.parameters())


# --- batch normalization --------------------------------------------------------------------------------


def normed(dtype=torch.float64):
    return nn.Sequential(
        sparsebnn.nn.Conv2d(1, 3, 3, bias=False, dtype=dtype),
        nn.BatchNorm2d(3, dtype=dtype),
        nn.ReLU(),
        nn.Flatten(),
        sparsebnn.Linear(48, 3, dtype=dtype),
    )


def test_batch_normalization_has_statistics_per_replicate():
    """Each replicate keeps separate statistics: the moving averages over its batches."""
    x, y = make_data("conv", rows=20)
    settings = Settings(3, 8, 1e-2)
    both = fit(normed(), (x, y), settings, replicates=[3, 4])
    for k, seed in enumerate((3, 4)):
        alone = fit(normed(), (x, y), settings, replicates=[seed])
        for name, value in alone.network.state_dict().items():
            torch.testing.assert_close(both.networks[k].state_dict()[name], value, rtol=1e-9, atol=1e-10)
        assert int(alone.network[1].num_batches_tracked) == 9
    first, second = (network[1].running_mean for network in both.networks)
    assert not torch.allclose(first, second)
    assert not both.network[1].training


def test_moving_averages_of_batches():
    """One step with a rate of 0: 0.9 · 0 + 0.1 · the mean of what the first layer gives."""
    x, y = make_data("conv", rows=8)
    run = fit(normed(), (x, y), Settings(1, 8, 0.0))
    engine = run._engine
    engine["step"].zero_()
    normal, logistic = engine._noise(engine.state)
    order = engine["order"][0]
    with torch.no_grad(), sparsebnn.nn.collect_kl(sparsebnn.random.noise.NoiseBuffer(normal[0], logistic[0])):
        outputs = run.network[0](x[order])
    torch.testing.assert_close(run.network[1].running_mean, 0.1 * outputs.mean((0, 2, 3)))


def test_statistics_are_resumed_and_cannot_be_computed_in_parts(tmp_path):
    x, y = make_data("conv", rows=20)
    settings = Settings(2, 8, 1e-2)
    whole = fit(normed(), (x, y), settings, replicates=2)
    resumed = stopped_and_resumed(normed(), (x, y), settings, tmp_path, 4, replicates=2)
    for ours, other in zip(resumed.networks, whole.networks):
        assert all(map(torch.equal, ours.state_dict().values(), other.state_dict().values()))
    with pytest.raises(InvalidInput, match="network"):
        fit(normed(), (x, y), Settings(2, 8, 1e-2, accumulate=2))


def test_channels_last_is_another_layout_of_the_same_numbers():
    x, y = make_data("conv", rows=20)
    plain, last = (
        fit(make_network("conv"), (x, y), Settings(2, 8, 1e-2, channels_last=flag)) for flag in (False, True)
    )
    assert distance(parameters(last), parameters(plain)) < 1e-10
    with pytest.raises(InvalidInput, match="channels_last"):
        fit(make_network("conv"), (x, y), Settings(2, 8, channels_last=True), replicates=2)


def test_gradients_in_another_layout_move_the_right_weights():
    """Several channels: gradients of channels_last convolutions have other strides than their parameters."""
    made = torch.Generator().manual_seed(0)
    x, y = torch.rand(16, 3, 8, 8, generator=made), torch.arange(16) % 4
    plain, last = (
        fit(sparsebnn.nn.resnet(8, 4), (x, y), Settings(1, 8, 1e-2, channels_last=flag), mode="eager")
        for flag in (False, True)
    )
    assert distance(parameters(last), parameters(plain)) < 1e-3


@pytest.mark.parametrize(
    "bad",
    [
        {"optimizer": "lion"},
        {"weight_decay": 0.1},
        {"momentum": 1.0},
        {"clip_norm": 0.0},
        {"accumulate": 200},
        {"average": 1.0},
        {"autocast": "float16"},
        {"channels_last": 1},
        {"schedule": "two_cycles"},
    ],
)
def test_settings_name_what_is_wrong(bad):
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        Settings(**bad)


def test_records_of_earlier_versions_have_no_new_fields():
    assert "optimizer" not in Settings().named()
    assert Settings(optimizer="sgd").named()["optimizer"] == "sgd"
    assert math.isclose(Settings(schedule="one_cycle").rate("", 30), 1e-3)
