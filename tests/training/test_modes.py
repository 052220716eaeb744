"""Which modes a device has, what "auto" chooses, and captured steps against the others."""

import logging

import pytest
import torch

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.posteriors import EmpiricalPrior
from sparsebnn.training import Callback, Settings, arguments
from sparsebnn.training.arguments import break_even, check_mode, chosen_mode
from sparsebnn.training.objective import Objective, Replicates
from training.runs import FAMILIES, SHORT, fit, make_data, make_network

CUDA = torch.device("cuda")
FIFTY = Settings(epochs=17, batch_size=8, learning_rate=1e-2)  # 3 batches an epoch: 51 steps


def stacked(family="spike_slab", kind="fc", replicates=1):
    """Replicates of the paper's networks, or of a small one, that know what a step on 100 rows takes."""
    made = {
        "table": lambda: sparsebnn.mlp([20, 50, 2], family=family),
        "fc": lambda: sparsebnn.mlp([784, 400, 600, 10], family=family),
        "lenet": lambda: sparsebnn.lenet(family=family),
    }[kind]()
    shape = {"table": (20,), "fc": (784,), "lenet": (1, 28, 28)}[kind]
    objective = Objective(made, sparsebnn.likelihoods.Categorical(10), 1000)
    replicates = Replicates(objective, range(replicates), torch.device("cpu"))
    replicates.measure(torch.zeros(100, *shape))
    return replicates


def test_a_cpu_refuses_to_capture():
    with pytest.raises(InvalidInput, match=r"'mode' of train .* on a CPU"):
        fit(make_network(), make_data(), SHORT, mode="captured")


def test_a_mode_that_is_not_known_is_refused():
    with pytest.raises(InvalidInput, match="'mode' of train"):
        check_mode("fast", CUDA)


@pytest.mark.parametrize("mode", ["eager", "captured", "compiled"])
def test_a_mode_that_is_given_is_taken(mode):
    assert chosen_mode(mode, stacked(kind="table"), CUDA, 10**9) == mode


@pytest.mark.parametrize("family", ["spike_slab", "concrete", "flow"])
def test_auto_captures_short_runs_on_cuda_and_compiles_long_ones(family):
    replicates = stacked(family)
    steps = break_even(replicates)
    assert chosen_mode("auto", replicates, CUDA, int(0.9 * steps)) == "captured"
    assert chosen_mode("auto", replicates, CUDA, int(1.1 * steps)) == "compiled"


# Seconds to the first step and milliseconds per step, captured and compiled: one replicate on an H200,
# without gradients in closed form.
MEASURED = {
    ("fc", "concrete"): ((4.8, 0.75), (37.5, 0.10)),
    ("fc", "spike_slab"): ((5.0, 0.50), (46.0, 0.15)),
    ("fc", "flow"): ((15.6, 2.70), (144.0, 0.55)),
    ("lenet", "concrete"): ((12.6, 1.15), (74.5, 0.24)),
    ("lenet", "spike_slab"): ((16.0, 1.03), (80.7, 0.37)),
    ("lenet", "flow"): ((23.9, 4.37), (255.0, 0.87)),
}


@pytest.mark.parametrize("cell", MEASURED, ids="-".join)
def test_auto_loses_at_most_a_tenth_to_the_better_mode_as_measured(cell):
    replicates = stacked(cell[1], cell[0])
    for job in (1.0, 10.0, 60.0, 600.0):
        # A job of so many seconds in the better mode.
        steps = int(max((job - first) / (1e-3 * step) for first, step in MEASURED[cell]))
        if steps <= 0:
            steps = int(job / (1e-3 * MEASURED[cell][0][1]))
        took = dict(
            zip(("captured", "compiled"), (first + 1e-3 * ms * steps for first, ms in MEASURED[cell]))
        )
        assert took[chosen_mode("auto", replicates, CUDA, steps)] <= 1.1 * min(took.values()), (job, took)


def test_a_table_of_a_few_thousand_rows_is_never_compiled_for():
    assert chosen_mode("auto", stacked(kind="table", replicates=5), CUDA, 4000) == "captured"


class Stop(Callback):
    """Interrupts at the end of an epoch."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_epoch_end(self, run, epoch):
        if epoch.epoch == self.epoch:
            raise KeyboardInterrupt


def halves(folder, mode, device="cpu", settings=FIFTY, dtype=torch.float64, then=None):
    """A run that was interrupted after each epoch and resumed, and its modes."""
    given = {
        "device": device,
        "folder": folder,
        "replicates": 2,
        "checkpoint_seconds": 0.0,
        "progress": False,
    }
    network, data = make_network(dtype=dtype), make_data()
    with pytest.raises(KeyboardInterrupt):
        sparsebnn.train(network, data, settings=settings, mode=mode, callbacks=[Stop(8)], **given)
    return sparsebnn.train(network, data, settings=settings, mode=then or mode, resume=True, **given)


def test_auto_resumes_in_the_mode_that_its_checkpoint_names(tmp_path, monkeypatch):
    monkeypatch.setattr(arguments, "_WORTH_COMPILING_ON_CPU", float("inf"))
    assert halves(tmp_path / "a", "auto").mode == "eager"
    given = {"device": "cpu", "folder": tmp_path / "b", "checkpoint_seconds": 0.0, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        sparsebnn.train(
            make_network(), make_data(), settings=SHORT, mode="auto", callbacks=[Stop(1)], **given
        )
    # What would be chosen now is something else.
    monkeypatch.setattr(arguments, "_WORTH_COMPILING_ON_CPU", 0.0)
    run = sparsebnn.train(make_network(), make_data(), settings=SHORT, mode="auto", resume=True, **given)
    assert run.mode == "eager"


# -- on a GPU ---------------------------------------------------------------------------------------------


def parameters(run):
    return run.replicates.parameters


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["mlp", "conv", "converted"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("replicates", [1, 3])
def test_a_captured_run_is_the_eager_one(kind, family, replicates):
    network, data = make_network(kind, family), make_data(kind)
    eager, fast = (
        fit(network, data, FIFTY, replicates=replicates, mode=mode, device="cuda", tf32=False)
        for mode in ("eager", "captured")
    )
    assert (eager.mode, fast.mode) == ("eager", "captured")
    for name, values in parameters(eager).items():
        assert torch.allclose(values, parameters(fast)[name], rtol=0.0, atol=1e-10), name


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["captured", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_resumed_run_has_the_same_bits_on_a_gpu(tmp_path, mode, dtype):
    whole = fit(make_network(dtype=dtype), make_data(), FIFTY, replicates=2, mode=mode, device="cuda")
    resumed = halves(tmp_path, mode, "cuda", dtype=dtype)
    assert whole.mode == resumed.mode == mode
    for name, values in parameters(whole).items():
        assert torch.equal(values, parameters(resumed)[name]), name


@pytest.mark.gpu
def test_auto_on_a_gpu_captures_and_its_checkpoint_says_so(tmp_path):
    run = halves(tmp_path, "auto", "cuda")
    assert run.mode == "captured"
    assert sparsebnn.training.checkpoint.read(tmp_path / "checkpoint.safetensors")[1]["mode"] == "captured"


@pytest.mark.gpu
def test_a_step_that_cannot_be_captured_runs_eagerly(caplog):
    class Asks(torch.nn.Module):
        def forward(self, x):
            return x if float(x.detach().sum()) > -1e9 else -x

    network = torch.nn.Sequential(make_network(), Asks())
    with caplog.at_level(logging.WARNING, "sparsebnn"):
        run = fit(network, make_data(), Settings(2, 8, 1e-2), mode="captured", device="cuda")
    assert run.mode == "eager"
    assert "Capturing the training step failed" in caplog.text


# What changes how gradients and Adam's step are written out for a captured step of a dense network.
WRITTEN_OUT = {
    "chain": ({}, {}),
    "dense": ({"family": "gaussian"}, {}),
    "input-skip": ({"input_skip": True}, {}),
    "learned prior": ({"input_skip": True, "prior": EmpiricalPrior(0.2, learn_inclusion=True)}, {}),
    "clipped": ({}, {"clip_norm": 1.0}),
    "SGD": ({}, {"optimizer": "sgd", "learning_rate": 1e-3}),
    "averaged": ({}, {"average": 0.9}),
}


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["classes", "numbers"])
@pytest.mark.parametrize("replicates", [1, 3])
@pytest.mark.parametrize("case", WRITTEN_OUT)
def test_written_out_captured_steps_are_the_eager_ones(case, replicates, target):
    """In single precision; the limits are those of ``benchmarks.parity``."""
    options, changes = WRITTEN_OUT[case]
    network = sparsebnn.mlp([4, 17, 9, 3 if target == "classes" else 1], **options)
    x, y = make_data()
    y = y if target == "classes" else x[:, :1].sin()
    settings = Settings(**{"epochs": 17, "batch_size": 8, "learning_rate": 1e-2, **changes})
    likelihood = "categorical" if target == "classes" else "gaussian"
    eager, fast = (
        fit(network, (x.float(), y if target == "classes" else y.float()), settings, mode=mode,
            likelihood=likelihood, replicates=replicates, device="cuda", tf32=False)
        for mode in ("eager", "captured")
    )  # fmt: skip
    assert fast.mode == "captured"
    for name, values in parameters(eager).items():
        assert torch.allclose(values, parameters(fast)[name], rtol=0.0, atol=1e-4), name


@pytest.mark.gpu
@pytest.mark.parametrize("replicates", [1, 3])
@pytest.mark.parametrize("changes", [{}, {"clip_norm": 1.0}, {"average": 0.9}], ids=str)
@pytest.mark.parametrize("options", [{"family": "flow"}, {"family": "mnf", "input_skip": True}], ids=str)
def test_written_out_flows_follow_the_eager_ones(options, changes, replicates):
    """By the losses of epochs: networks of flows have kinks, and gradients that are zero up to rounding."""
    network = sparsebnn.mlp([4, 17, 9, 3], **options)
    x, y = make_data()
    settings = Settings(epochs=17, batch_size=8, learning_rate=1e-3, **changes)
    how = {"replicates": replicates, "device": "cuda", "tf32": False}
    eager, fast = (fit(network, (x.float(), y), settings, mode=mode, **how) for mode in ("eager", "captured"))
    assert (eager.mode, fast.mode) == ("eager", "captured")
    for one, other in zip(eager.history, fast.history, strict=True):
        assert torch.allclose(torch.as_tensor(one.loss), torch.as_tensor(other.loss), rtol=1e-5)
        assert torch.allclose(torch.as_tensor(one.kl), torch.as_tensor(other.kl), rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("replicates", [1, 10])
def test_written_out_steps_of_the_papers_network_follow_the_eager_ones(replicates):
    """By the losses of epochs: a ReLU at a kink parts parameters for good."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.rand(1000, 784, generator=g), torch.randint(10, (1000,), generator=g)
    network = sparsebnn.mlp([784, 400, 600, 10])
    settings = Settings(epochs=5, batch_size=100, learning_rate=1e-4)
    options = {"replicates": replicates, "device": "cuda", "tf32": False}
    eager, fast = (fit(network, (x, y), settings, mode=mode, **options) for mode in ("eager", "captured"))
    assert (eager.mode, fast.mode) == ("eager", "captured")
    for one, other in zip(eager.history, fast.history, strict=True):
        assert torch.allclose(torch.as_tensor(one.loss), torch.as_tensor(other.loss), rtol=1e-5)
