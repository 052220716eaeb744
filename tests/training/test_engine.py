"""engine.py: recorded and compiled steps equal the eager one; a replicate that breaks stops alone."""

import logging
import math
import re
import threading
import time
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from sparsebnn.checks import InvalidInput
from sparsebnn.posteriors.learned_priors import HierarchicalPrior
from sparsebnn.training import Callback
from sparsebnn.training.compile import Silent
from sparsebnn.training.devices import matmul_precision
from sparsebnn.training.optimizers import all_finite
from training.runs import (
    EXAMPLES,
    FAMILIES,
    FIFTEEN,
    SHORT,
    TOLERANCE,
    Settings,
    distance,
    fit,
    make_data,
    make_network,
    parameters,
    same,
)


@pytest.fixture
def recorded(monkeypatch):
    """Steps run as the graph that was recorded for the compiler."""
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)


def said(caplog):
    """What the library logged; the recorder of graphs logs too."""
    return [record.getMessage() for record in caplog.records if record.name == "sparsebnn"]


def check_fast_step(kind, family, dtype, replicates, settings=FIFTEEN):
    network, data = make_network(kind, family, dtype), make_data(kind)
    eager = fit(network, data, settings, replicates=replicates)
    fast = fit(network, data, settings, replicates=replicates, mode="compiled")
    assert eager.mode == "eager"
    assert fast.mode == "compiled"
    assert fast.compile_seconds > 0.0
    assert distance(parameters(fast), parameters(eager)) <= TOLERANCE[dtype]
    for ours, other in zip(fast.history, eager.history):
        assert ours.loss == pytest.approx(other.loss, rel=10 * TOLERANCE[dtype])
        assert ours.kl == pytest.approx(other.kl, rel=10 * TOLERANCE[dtype])


SLOW = pytest.mark.slow
STEPS = [
    *(("mlp", family, torch.float64, 3) for family in FAMILIES),
    ("mlp", "spike_slab", torch.float32, 3),
    ("mlp", "spike_slab", torch.float64, 1),
    ("conv", "spike_slab", torch.float64, 2),
    pytest.param("converted", "concrete", torch.float64, 2, marks=SLOW),
    *(pytest.param(kind, family, torch.float32, 3, marks=SLOW) for kind in EXAMPLES for family in FAMILIES),
]


@pytest.mark.parametrize(("kind", "family", "dtype", "replicates"), STEPS)
@pytest.mark.usefixtures("recorded")
def test_the_recorded_step_is_the_eager_one(kind, family, dtype, replicates):
    check_fast_step(kind, family, dtype, replicates)


@pytest.mark.usefixtures("recorded")
def test_the_recorded_step_of_folded_flows(monkeypatch):
    """Flows large enough are stored folded; here small ones are."""
    monkeypatch.setattr("sparsebnn.posteriors.flows._WORTH_FOLDING", 0)
    check_fast_step("mlp", "flow", torch.float64, 2, replace(SHORT, epochs=1))


MOVED = replace(SHORT, shift=2)


@pytest.mark.usefixtures("recorded")
def test_the_recorded_step_moves_images_as_the_eager_one():
    network, data = make_network("conv"), make_data("conv")
    eager, fast = (fit(network, data, MOVED, replicates=2, mode=mode) for mode in ("eager", "compiled"))
    assert fast.mode == "compiled"
    assert distance(parameters(fast), parameters(eager)) <= 1e-10
    alone = fit(network, data, MOVED, replicates=[1])
    assert distance(parameters(eager, 1), parameters(alone, 0)) <= 1e-10


def test_an_epoch_of_moved_images_is_one_of_images_moved_beforehand():
    """Rows in their order, moved by the shifts of that epoch; without ``shift`` they are seen as they are."""
    network, (x, y) = make_network("conv"), make_data("conv")
    once = replace(MOVED, epochs=1, shuffle=False)
    ours = fit(network, (x, y), once, replicates=[4])
    shifts = ours.batches.shifts(ours.replicates.seed_tensor, 0, 2)[0, : len(x)]
    framed = nn.functional.pad(x, (2, 2, 2, 2))
    moved = [one[:, 2 - d : 8 - d, 2 - r : 8 - r] for one, (d, r) in zip(framed, shifts.tolist())]
    other = fit(network, (torch.stack(moved), y), replace(once, shift=0), replicates=[4])
    assert same(parameters(ours), parameters(other))
    unmoved = fit(network, (x, y), replace(once, shift=0), replicates=[4])
    assert not same(parameters(ours), parameters(unmoved))


@pytest.mark.usefixtures("recorded")
def test_the_recorded_step_with_weights_bytes_and_rates_of_its_own():
    """Nothing of the data, rates or schedules is frozen into the recording."""
    g = torch.Generator().manual_seed(1)
    x = torch.randint(256, (23, 4), generator=g, dtype=torch.uint8)
    weight = torch.rand(23, generator=g)
    data = (x, make_data()[1], weight)
    settings = Settings(6, 8, 1e-2, {"inclusion_logit": 0.1}, warmup=0.5)
    options = {
        "replicates": 2,
        "per_replicate": {"learning_rate": [1e-2, 3e-2], "prior.inclusion_prob": [0.1, 0.6]},
    }
    eager = fit(make_network(), data, settings, **options)
    fast = fit(make_network(), data, settings, mode="compiled", **options)
    assert fast.mode == "compiled"
    assert distance(parameters(fast), parameters(eager)) <= 1e-10


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor uses what torch itself deprecates
def test_there_is_a_moment_between_compiling_and_the_first_step(monkeypatch):
    """A callback can wait in it for the device; the waiting is not compiling."""
    ran, seen = [], []

    def lazy(graph, *, backend, **_):
        made = []

        def run(*arguments):
            made.extend([] if made else [backend(graph, arguments)])
            ran.append(graph)
            return made[0](*arguments)

        return run

    class Wait(Callback):
        def on_compiled(self, run):
            seen.append(("compiled", len(ran)))
            time.sleep(0.5)

        def on_train_start(self, run):
            seen.append(("start", len(ran)))

    monkeypatch.setattr(torch, "compile", lazy)
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda module, inputs, **_: module)
    began = time.perf_counter()
    run = fit(make_network(), make_data(), SHORT, mode="compiled", callbacks=[Wait()])
    spent = time.perf_counter() - began
    # The prelude (noise, rates) has run twice by then: the step is recorded for what it returned.
    assert seen == [("compiled", 2), ("start", 3)]
    assert spent - run.compile_seconds >= 0.5


@pytest.mark.slow
def test_a_real_backend_takes_the_recorded_step(monkeypatch):
    """Dynamo and AOT autograd accept the graph; code generation is left out."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda graph, **_: real(graph, backend="aot_eager", fullgraph=True))
    check_fast_step("mlp", "spike_slab", torch.float64, replicates=2)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("kind", "family"),
    [*(("mlp", family) for family in FAMILIES), ("conv", "spike_slab"), ("converted", "concrete")],
)
def test_the_compiled_step_is_the_eager_one(kind, family, dtype):
    check_fast_step(kind, family, dtype, replicates=3)


def test_what_the_compiler_remarks_is_not_for_users(monkeypatch):
    """As errors, remarks would stop it; those of others are heard, and afterwards all are."""

    def remarking(graph, **_):
        for module in ("torch._inductor.lowering", "torch.jit._script"):
            warnings.warn_explicit("about a kernel", UserWarning, f"{module}.py", 1, module=module)
        return graph

    monkeypatch.setattr(torch, "compile", remarking)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit(make_network(), make_data(), SHORT, mode="compiled").mode == "compiled"
        with pytest.raises(UserWarning, match="about a kernel"):
            remarking(None)
    # Threads that compile share one filter: the first to come makes it, the last to go removes it.
    silence, before = Silent(), list(warnings.filters)
    with silence:
        with silence:
            assert len(warnings.filters) == len(before) + 1
        assert len(warnings.filters) == len(before) + 1
        with warnings.catch_warnings():
            warnings.simplefilter("always")
    assert list(warnings.filters) == before


@pytest.mark.parametrize("when", ["compiled", "rehearsed"])
def test_when_compiling_fails_training_goes_on_eagerly(when, monkeypatch, caplog):
    """At once, or in the rehearsal when noise already worked: one line says so, nothing is changed."""
    made = []

    def broken(graph, **_):
        made.append(graph)

        def run(*arguments):
            result = graph(*arguments)
            if len(made) > 1 and made[-1] is graph:
                raise RuntimeError("no compiler\nsecond line")
            return result

        if when == "compiled":
            raise RuntimeError("no compiler\nsecond line")
        return run

    monkeypatch.setattr(torch, "compile", broken)
    with caplog.at_level(logging.WARNING, logger="sparsebnn"):
        run = fit(make_network(), make_data(), SHORT, replicates=2, mode="compiled")
    (line,) = said(caplog)
    assert "failed (RuntimeError: no compiler)" in line
    assert run.mode == "eager"
    assert same(parameters(run), parameters(fit(make_network(), make_data(), SHORT, replicates=2)))


# --- a replicate that breaks ------------------------------------------------------------------------


class Break(Callback):
    """Puts a NaN into one parameter of one replicate after an epoch."""

    def __init__(self, replicate, name="network.2.weights.mean", after=0):
        self.replicate, self.name, self.after = replicate, name, after
        self.told = []

    def on_epoch_end(self, run, epoch):
        if epoch.epoch == self.after:
            run.replicates.parameters[self.name][self.replicate].view(-1)[1] = math.nan

    def on_replicate_stopped(self, run, stopped):
        self.told.append(stopped)


@pytest.mark.parametrize(
    ("mode", "dtype"), [("eager", torch.float32), ("eager", torch.float64), ("compiled", torch.float32)]
)
@pytest.mark.usefixtures("recorded")
def test_a_broken_replicate_stops_alone(mode, dtype, caplog):
    """The other nine are, bit for bit, those of the same ten without the injection."""
    network, data = make_network(dtype=dtype), make_data()
    broken = Break(6)
    whole = fit(network, data, SHORT, replicates=10, mode=mode)
    with caplog.at_level(logging.WARNING, logger="sparsebnn"):
        run = fit(network, data, SHORT, replicates=10, mode=mode, callbacks=[broken])
    assert [(s.replicate, s.seed, s.step) for s in run.stopped] == [(6, 6, 3)]
    assert broken.told == run.stopped
    assert run.stopped[0].where == "the value of 2.weights.mean was not finite"
    assert said(caplog) == [f"{run.stopped[0]} The other replicates continue."]
    for k in range(10):
        if k != 6:
            assert same(parameters(run, k), parameters(whole, k)), k
            assert [e.loss[k] for e in run.history] == [e.loss[k] for e in whole.history]


def test_learning_rates_that_break():
    """One rate of ten is absurd and the other nine do not notice; when all are, training stops."""
    network, data = make_network(dtype=torch.float32), make_data()
    rates = [1e-2] * 10
    whole, run = (
        fit(network, data, SHORT, replicates=10, per_replicate={"learning_rate": [*rates[:9], rate]})
        for rate in (2e-2, 1e30)
    )
    assert [(s.replicate, s.step) for s in run.stopped] == [(9, 1)]
    assert re.search(r"of (layer )?[02](\.| )", run.stopped[0].where), run.stopped[0].where
    assert all(same(parameters(run, k), parameters(whole, k)) for k in range(9))
    with pytest.raises(FloatingPointError, match="Every replicate stopped") as error:
        fit(network, data, SHORT, replicates=[4, 9], per_replicate={"learning_rate": [1e30, 1e30]})
    for words in ("Replicate 0 (seed 4) stopped at step 1", "Replicate 1 (seed 9) stopped at step 1"):
        assert words in str(error.value)
    assert "Lower its learning rate" in str(error.value)
    assert [s.replicate for s in error.value.run.stopped] == [0, 1]
    assert len(error.value.run.networks) == 2


class BadGradient(torch.autograd.Function):
    """The identity, with a gradient that is not a number."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output): ...

    @staticmethod
    def backward(ctx, grad):
        return grad * math.nan


class Poisoned(torch.nn.Module):
    """A network whose outputs are fine and whose gradients are not."""

    def __init__(self):
        super().__init__()
        self.inner = make_network()

    def forward(self, x):
        return BadGradient.apply(self.inner(x))


@pytest.mark.parametrize("replicates", [1, 2])
def test_a_gradient_that_is_not_finite_stops_before_it_is_applied(replicates):
    """The loss is finite, its gradient is not: the parameters stay as they were."""
    seen = []

    class Look(Callback):
        def on_replicate_stopped(self, run, stopped):
            seen.append(stopped)
            for name, parameter in run.replicates.parameters.items():
                assert torch.isfinite(parameter[stopped.replicate]).all(), name

    with pytest.raises(FloatingPointError, match=r"stopped at step 0: the gradient of "):
        fit(Poisoned(), make_data(), SHORT, replicates=replicates, callbacks=[Look()])
    assert len(seen) == replicates


@pytest.mark.parametrize(
    ("settings", "per_replicate", "name"),
    [
        ({"learning_rates": {"inclusion_logits": 0.1}}, {}, "learning_rates"),
        ({"schedules": {"means": "constant"}}, {}, "schedules"),
        ({}, {"temperature": [-1.0]}, "per_replicate[temperature]"),
        ({}, {"learning_rate": [math.nan]}, "per_replicate[learning_rate]"),
        # 1 in float32, the network's precision
        ({}, {"prior.inclusion_prob": [1 - 1e-12]}, "per_replicate[prior.inclusion_prob]"),
    ],
)
def test_slips_in_rates_are_named(settings, per_replicate, name):
    network = make_network(dtype=torch.float32)
    per_replicate = {key: torch.tensor(value, dtype=torch.float64) for key, value in per_replicate.items()}
    with pytest.raises(InvalidInput, match=re.escape(f"The '{name}' of ")):
        fit(network, make_data(), Settings(epochs=1, **settings), per_replicate=per_replicate)
    # Logits may be named where there are none.
    named = Settings(epochs=1, learning_rates={"inclusion_logit": 0.1})
    assert fit(make_network(family="gaussian"), make_data(), named, mode="auto").mode == "eager"


def test_precision_is_one_setting_for_all_threads():
    """It is restored by the last to leave; who wants another one waits."""
    before, seen = torch.get_float32_matmul_precision(), []
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with matmul_precision(True):
            inside.set()
            leave.wait(10.0)

    def other():
        with matmul_precision(False):
            seen.append(torch.get_float32_matmul_precision())

    first, second = threading.Thread(target=hold), threading.Thread(target=other)
    first.start()
    assert inside.wait(10.0)
    with matmul_precision(True):  # the same: no need to wait
        assert torch.get_float32_matmul_precision() == "high"
        with matmul_precision(True):
            pass
    assert torch.get_float32_matmul_precision() == "high"  # the first is still inside
    second.start()
    second.join(0.2)
    assert second.is_alive()
    assert not seen
    leave.set()
    first.join(10.0)
    second.join(10.0)
    assert seen == ["highest"]
    assert torch.get_float32_matmul_precision() == before
    with matmul_precision(True), matmul_precision(False):  # one thread may change its mind
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == before


def test_whether_numbers_are_finite():
    """Sums that overflow are no reason to stop; a NaN, or infinities that cancel, are."""
    large = torch.full((4, 3), 3e38)
    broken = torch.zeros(4, 2, 2)
    broken[1, 0, 1], broken[2, 0], broken[3, 1, 1] = math.nan, math.inf, -math.inf
    broken[2, 1] = -math.inf
    assert all_finite([large]).tolist() == [[True] * 4]
    assert all_finite([large, broken]).tolist() == [[True] * 4, [True, False, False, False]]
    assert all_finite([torch.ones(4, 5)]).tolist() == [[True] * 4]


class Scaled(nn.Module):
    """A network and one number more."""

    def __init__(self):
        super().__init__()
        self.inner = make_network()
        self.scale = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

    def forward(self, x):
        return self.inner(x) * self.scale


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("replicates", [1, 2])
@pytest.mark.parametrize("kind", ["hierarchical prior", "module"])
def test_parameters_of_one_number_are_trained(kind, replicates, mode, monkeypatch):
    """The hierarchical prior's hyperparameters are such."""
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    network = Scaled()
    if kind == "hierarchical prior":
        network = make_network(family="concrete", prior=HierarchicalPrior())
    assert any(p.dim() == 0 for p in network.parameters())
    run = fit(network, make_data(), settings=SHORT, replicates=replicates, mode=mode)
    assert not run.stopped
    for name, stacked in run.replicates.parameters.items():
        if stacked.dim() == 1 and stacked.shape == (replicates,):
            assert bool(torch.isfinite(stacked).all()), name


@pytest.mark.parametrize("replicates", [1, 2])
def test_a_prior_that_breaks_the_kl_is_named(replicates):
    """And not the learning rate, which has done nothing before the first step."""
    network = make_network(dtype=torch.float32)
    network[2].weights.prior.inclusion_prob.fill_(1.0)
    with pytest.raises(FloatingPointError) as error:
        fit(network, make_data(), SHORT, replicates=replicates)
    message = str(error.value)
    assert (
        "stopped at step 0: the KL of layer 2 was not finite, under SpikeSlabPrior(inclusion_prob=1,"
        in message
    )
    assert "learning rate" not in message
