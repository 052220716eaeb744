"""loop.py: resumed runs go on exactly where they stopped; what cannot be trained is refused."""

import dataclasses
import json
import os

import numpy as np
import pytest
import safetensors
import torch
import torch.utils.checkpoint
from torch import nn

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.likelihoods import Categorical
from sparsebnn.posteriors import EmpiricalPrior, SpikeSlabPrior
from sparsebnn.training import Callback, CheckpointError
from sparsebnn.training.checkpoint import _digest
from training.runs import (
    DATA,
    FILE,
    LOCK,
    NETWORK,
    OPTIONS,
    SHORT,
    Halt,
    Stop,
    fit,
    history,
    make_data,
    make_network,
    parameters,
    same,
    stopped_and_resumed,
)

# --- resume -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoints", [1, 3, 5])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, whole, checkpoints):
    """Stopped after the n-th checkpoint; with 3 steps an epoch the third is at its end."""
    options = {**OPTIONS, "folder": tmp_path, "checkpoint_seconds": 0.0, "resume": True}
    with pytest.raises(Halt):
        fit(NETWORK, DATA, SHORT, callbacks=[Stop(checkpoints)], **options)
    with safetensors.safe_open(str(tmp_path / FILE), framework="pt") as file:
        header = json.loads(file.metadata()["json"])
    assert (header["epoch"], header["position"]) == divmod(checkpoints, 3)
    (tmp_path / f".{FILE}.0123abcd").touch()  # as a kill while writing leaves it
    run = fit(NETWORK, DATA, SHORT, **options)
    assert same(parameters(run), parameters(whole))
    assert history(run) == history(whole)
    assert sorted(os.listdir(tmp_path)) == [LOCK, FILE]


@pytest.mark.parametrize("family", ["gaussian", "spike_slab", "concrete"])
def test_a_single_replicate_resumes_exactly(tmp_path, family):
    network = make_network(family=family, dtype=torch.float32)
    straight = fit(network, DATA, SHORT)
    run = stopped_and_resumed(network, DATA, SHORT, tmp_path, 4)
    assert same(parameters(run), parameters(straight))
    assert history(run) == history(straight)
    assert same(dict(run.network.state_dict()), dict(straight.network.state_dict()))


def test_moved_images_are_moved_alike_after_resuming(tmp_path):
    network, data = make_network("conv"), make_data("conv")
    moved = dataclasses.replace(SHORT, shift=1)
    run = stopped_and_resumed(network, data, moved, tmp_path, 4)
    assert same(parameters(run), parameters(fit(network, data, moved)))


def test_a_finished_run_resumes_to_itself(tmp_path, whole):
    fit(NETWORK, DATA, SHORT, folder=tmp_path, **OPTIONS)
    run = fit(NETWORK, DATA, SHORT, folder=tmp_path, resume=True, **OPTIONS)
    assert same(parameters(run), parameters(whole))
    assert history(run) == history(whole)


def test_without_resume_a_run_begins_anew(tmp_path, whole):
    fit(NETWORK, DATA, SHORT, folder=tmp_path, seed=50, **OPTIONS)
    (earlier,) = tmp_path.glob("*.safetensors")
    content = earlier.read_bytes()
    run = fit(NETWORK, DATA, SHORT, folder=tmp_path, **OPTIONS)
    assert same(parameters(run), parameters(whole))
    assert (tmp_path / f"replaced.{earlier.name}").read_bytes() == content
    second = earlier.read_bytes()
    fit(NETWORK, DATA, SHORT, folder=tmp_path, seed=51, **OPTIONS)
    assert (tmp_path / f"replaced.{earlier.name}").read_bytes() == content
    assert (tmp_path / f"replaced2.{earlier.name}").read_bytes() == second


def test_a_folder_that_cannot_be_is_told_before_the_first_step(tmp_path):
    (tmp_path / "file").touch()
    begun = []

    class Watch(Callback):
        def on_train_start(self, run):
            begun.append(run)

    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CheckpointError, match=r"cannot be written into .* Choose another folder\."):
            fit(NETWORK, DATA, SHORT, folder=folder, callbacks=[Watch()], **OPTIONS)
    assert begun == []


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_gradients_are_there_whatever_the_caller_has_switched_off(off, whole):
    with off():
        run = fit(NETWORK, DATA, SHORT, **OPTIONS)
        single = fit(NETWORK, DATA, SHORT)
    assert same(parameters(run), parameters(whole))
    assert same(parameters(single), parameters(fit(NETWORK, DATA, SHORT)))


class _Recomputing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = sparsebnn.Linear(4, 6), sparsebnn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=False))


def test_layers_are_not_drawn_anew_for_a_gradient():
    """Activation checkpointing would give gradients of another draw."""
    with pytest.raises(InvalidInput, match=r"Leave out activation checkpointing"):
        fit(_Recomputing(), DATA, SHORT)


class _Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(300, 4), sparsebnn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.words(x).mean(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_embedding_reads_whole_numbers(dtype):
    """In any precision: 256 and 257 are two words, in training and in prediction."""
    x = torch.tensor([[256, 0], [257, 0]] * 12)
    network = _Words().to(dtype)
    run = fit(network, (x, torch.tensor([0, 1] * 12)), SHORT, replicates=2)
    moved = (run.networks[0].words.weight - network.words.weight).abs().amax(1)
    assert bool((moved[[0, 256, 257]] > 0).all())
    assert bool((moved[1:256] == 0).all())
    probs = sparsebnn.predict(run.networks[0], x[:2], run.likelihood, n_draws=3, draws="weights").probs
    assert not torch.equal(probs[0], probs[1])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.full((23, 4), 1e300, dtype=torch.float64), "small enough for float32"),
        (torch.ones(23, 4, dtype=torch.complex64), "real numbers"),
    ],
)
def test_numbers_that_the_network_cannot_hold(x, message):
    network = sparsebnn.mlp([4, 3])
    with pytest.raises(InvalidInput, match=f"'x' of train must be .*{message}"):
        fit(network, (x, DATA[1]), SHORT)
    with pytest.raises(InvalidInput, match=f"'x' of predict must be .*{message}"):
        sparsebnn.predict(network, x, Categorical(3))


@pytest.mark.parametrize("asked", [{"refit": 0.5}, {"target_density": 0.3}])
def test_a_frozen_structure_stays(asked):
    network = sparsebnn.mlp([4, 6, 3])
    network[0].requires_grad_(False)
    with pytest.raises(
        InvalidInput, match=r"Got '0\.weights\.inclusion_logit', which needs no gradient, instead"
    ):
        fit(network, DATA, dataclasses.replace(SHORT, **asked))
    run = fit(network, DATA, SHORT)
    assert torch.equal(run.network[0].weights.inclusion_logit, network[0].weights.inclusion_logit)


def test_the_dead_stay_dead(tmp_path):
    """A replicate that stopped before the interruption is not told of twice."""
    options = {"replicates": 3, "per_replicate": {"learning_rate": [1e-2, 1e300, 1e-2]}}
    straight = fit(NETWORK, DATA, SHORT, **options)
    run = stopped_and_resumed(NETWORK, DATA, SHORT, tmp_path, 6, **options)
    assert run.stopped == straight.stopped
    assert len(run.stopped) == 1
    assert all(same(parameters(run, k), parameters(straight, k)) for k in (0, 2))
    # What was good before it stopped is kept beside.
    assert sorted(os.listdir(tmp_path)) == [LOCK, "checkpoint-before-step-1.safetensors", FILE]


# --- a checkpoint that must not be used -----------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run stopped in its second epoch. Nothing that refuses it may change it."""
    path = tmp_path_factory.mktemp("stopped")
    with pytest.raises(Halt):
        fit(NETWORK, DATA, SHORT, folder=path, checkpoint_seconds=0.0, callbacks=[Stop(4)], **OPTIONS)
    return path


def _bent_otherwise():
    network = make_network(family="flow")
    network[1] = nn.Tanh()
    return network


X, Y = DATA
VARIED = OPTIONS["per_replicate"]
OTHERS = {
    "settings differ": {"settings": dataclasses.replace(SHORT, learning_rate=2e-2)},
    "rows differ": {"data": (X[:20], Y[:20])},
    "targets differ": {"data": (X, (Y + 1) % 3)},
    "seeds differ": {"replicates": [5, 6]},
    "architecture differ": {
        "network": sparsebnn.mlp([4, 7, 3], family="flow", family_options={"hidden": (5, 4)}).double()
    },
    "x": {"data": (X + 1.0, Y)},
    "weight": {"data": (X, Y, torch.full((23,), 2.0))},
    "varied rates": {"per_replicate": {**VARIED, "temperature": [1.0, 0.1]}},
    "varied buffers": {"per_replicate": {**VARIED, "prior.inclusion_prob": [0.1, 0.9]}},
    "prior": {"network": make_network(family="flow", prior=SpikeSlabPrior(0.5, std=3.0))},
    "kind of prior": {"network": make_network(family="flow", prior=EmpiricalPrior())},
    "family's options": {
        "network": make_network(family="flow", family_options={"hidden": (5, 4), "auxiliary": "drawn"})
    },
    "activation": {"network": _bent_otherwise()},
    "precision": {"network": make_network(family="flow", dtype=torch.float32)},
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_checkpoint_of_another_run(folder, what):
    """All that the result depends on must agree, or 'exactly where it stopped' would not be true."""
    before = (folder / FILE).read_bytes()
    change = {"network": NETWORK, "data": DATA, "settings": SHORT, **OPTIONS, **OTHERS[what]}
    named = f"its {what}" if what.endswith(" differ") else ""
    with pytest.raises(CheckpointError, match=f"belongs to another (run|network): .*{named}"):
        fit(**change, folder=folder, resume=True)
    assert (folder / FILE).read_bytes() == before


# --- bad input --------------------------------------------------------------------------------------


NAN = X.clone()
NAN[3, 1] = float("nan")


class Noisy(nn.Module):
    """Adds noise of its own to what it is given."""

    def forward(self, x):
        return x + torch.randn_like(x)


def test_seeds_and_callbacks_of_many_kinds():
    """Arrays, tensors, negative seeds, an iterator that can be run through once."""
    ends = []

    class Count(Callback):
        def on_epoch_end(self, *_):
            ends.append(1)

    for seeds in (np.array([-1, 2]), [torch.tensor(-1), np.int64(2)], iter([-1, 2])):
        run = fit(make_network(), DATA, SHORT, replicates=seeds, callbacks=(one() for one in [Count]))
        assert run.seeds == [-1, 2]
    assert fit(make_network(), DATA, SHORT, replicates=torch.tensor(2), seed=np.array(3)).seeds == [3, 4]
    assert len(ends) == 3 * SHORT.epochs


def test_norms_in_eval_mode_are_shared():
    """Their running statistics no longer change, so replicates can share them."""
    network = nn.Sequential(sparsebnn.Linear(4, 6), nn.BatchNorm1d(6), sparsebnn.Linear(6, 3))
    network[1].eval()
    before = network[1].running_mean.clone()
    run = fit(network, DATA, SHORT, replicates=2)
    assert torch.equal(run.networks[0][1].running_mean, before)


def test_targets_keep_their_precision():
    y = X[:, 0] + 1e8
    network = sparsebnn.mlp([4, 5, 1], dtype=torch.float64)
    run = fit(network, (X, y), SHORT, likelihood="gaussian")
    assert torch.equal(run.batches.y, y.unsqueeze(1))


class Idle(nn.Module):
    """Holds a layer that it does not use."""

    def __init__(self):
        super().__init__()
        self.network = make_network()
        self.extra = nn.Linear(4, 3, dtype=torch.float64)

    def forward(self, x):
        return self.network(x)


@pytest.mark.parametrize("replicates", [1, 2])
def test_a_parameter_that_is_not_used(replicates):
    """It stays where it started, alone and among others."""
    start = Idle()
    run = fit(start, DATA, SHORT, replicates=replicates)
    assert not run.stopped
    assert torch.equal(run.networks[0].extra.weight, start.extra.weight)


def test_half_precision_is_saved(tmp_path):
    network = sparsebnn.mlp([4, 5, 3], dtype=torch.bfloat16)
    fit(network, DATA, SHORT, folder=tmp_path)
    assert fit(network, DATA, SHORT, folder=tmp_path, resume=True).epoch == SHORT.epochs


def test_values_of_any_layout_have_a_fingerprint():
    """One number spread over an axis, none at all, one alone, half precision; by value, not by layout."""
    one = torch.tensor([1.5])
    for tensor in (one.expand(1), one.as_strided((1,), (0,)), one.expand(3), one[:0], one[0], one.bfloat16()):
        assert _digest({"x": tensor}) == _digest({"x": tensor.clone(memory_format=torch.contiguous_format)})
    assert _digest({"x": one}) != _digest({"x": one + 1})


def _behind(first, width=6):
    """That module before a Bayesian layer."""
    return {"network": nn.Sequential(first, sparsebnn.Linear(width, 3))}


REFUSED = [
    ({"data": (X, Y[:-1])}, "y", "as long as 'x' (23 rows). Got 22"),
    ({"data": (X, Y, torch.ones(5))}, "weight", "as long as 'x' (23 rows). Got 5"),
    ({"data": (X, Y, torch.ones(23, 1))}, "weight", ""),
    ({"data": (X, Y, torch.full((23,), float("inf")))}, "weight", "finite"),
    ({"data": (X, Y, torch.linspace(-0.5, 1.0, 23))}, "weight", "at least 0"),
    ({"data": (X[:0], Y[:0])}, "x", "at least one row"),
    ({"data": (NAN, Y)}, "x", "the first at (3, 1)"),
    ({"data": (X[:, 0], Y)}, "x", "(rows, …)"),
    ({"data": ({}, Y)}, "x", "Got a dict"),
    ({"data": (X,)}, "data", "Got 1 arrays"),
    ({"data": {"x": X, "y": Y}}, "data", "Got a dict"),
    ({"likelihood": Categorical(2)}, "y", "labels from 0 to 1"),
    ({"data": (X, Y - 1)}, "y", "Got labels from -1"),
    ({"data": (X, Y.double())}, "y", "integer labels"),
    # Three outputs; the targets need five, one or two.
    ({"data": (X, Y + 2)}, "", "outputs"),
    ({"data": (X, (Y > 0).long()), "likelihood": "bernoulli"}, "", "outputs"),
    ({"data": (X, X[:, :2]), "likelihood": "gaussian"}, "", "outputs"),
    ({"network": nn.Sequential(nn.Linear(4, 3))}, "network", "Bayesian layers"),
    (_behind(nn.Sequential(sparsebnn.Linear(4, 6), nn.Dropout(0.2))), "network", "dropout at ['0.1']"),
    (_behind(nn.LSTM(4, 6, 2, dropout=0.1)), "network", "dropout at ['0']"),
    (_behind(nn.MultiheadAttention(4, 2, dropout=0.1), 4), "network", "dropout at ['0']"),
    (_behind(nn.InstanceNorm1d(4, track_running_stats=True), 4), "network", "0 (InstanceNorm1d)"),
    (_behind(nn.LazyLinear(6)), "network", "'0.weight'"),
    *(
        ({**_behind(noisy, 4), "replicates": replicates}, "network", f"Got a call of {op}")
        for noisy, op in ((nn.RReLU(), "rrelu_with_noise"), (Noisy(), "randn_like"))
        for replicates in (1, 2)
    ),
    ({"network": sparsebnn.mlp([4, 6, 3], dtype=torch.float16)}, "network", "Got float16"),
    *(({"replicates": bad}, "replicates", "") for bad in (0, [3, 4, 3], "3", [0, 1.5], [])),
    ({"seed": "a"}, "seed", "whole number"),
    ({"likelihood": 5}, "likelihood", "or a Likelihood"),
    ({"likelihood": "gausian"}, "likelihood", "Did you mean 'gaussian'?"),
    ({"callbacks": [5]}, "callbacks", "Got 5"),
    ({"callbacks": Callback()}, "callbacks", "a list"),
    ({"settings": {"epochs": 3}}, "settings", "a Settings"),
    ({"checkpoint_seconds": "x"}, "checkpoint_seconds", "at least 0"),
    ({"mode": "eagre"}, "mode", "Did you mean 'eager'?"),
    ({"device": "gpu"}, "device", "'auto', 'cpu' or 'cuda'"),
    ({"device": torch.device("cuda:99")}, "device", "'cuda:99'"),
    ({"resume": True}, "resume", "folder"),
    ({"per_replicate": [0.1]}, "per_replicate", "a dict"),
    ({"per_replicate": {"prior.inclusion": [0.1]}}, "per_replicate", "prior.inclusion_prob"),
    ({"per_replicate": {"learning_rates.mean": [0.1]}}, "per_replicate", "'learning_rate'"),
    *(
        ({"per_replicate": {name: value}}, f"per_replicate[{name}]", "")
        for name in ("temperature", "prior.inclusion_prob")
        for value in (["a"], [0.1, 0.2])
    ),
    *(({"per_replicate": {"prior.inclusion_prob": [p]}}, "inclusion_prob", "") for p in (0.0, 1.5, np.nan)),
]


@pytest.mark.parametrize(("change", "parameter", "words"), REFUSED)
def test_bad_input_is_named(change, parameter, words):
    arguments = {"network": make_network(), "data": DATA, "settings": SHORT, "device": "cpu", **change}
    with pytest.raises(InvalidInput) as error:
        sparsebnn.train(**{"mode": "eager", "progress": False, **arguments})
    message = str(error.value)
    assert message.startswith("The '")
    assert parameter in message.split(" must be ")[0]
    assert words in message


def test_another_start_is_another_run(tmp_path):
    """Same shapes, same options: but weights that were converted from others."""
    made = [nn.Sequential(sparsebnn.convert(nn.Linear(4, 3), pretrained=True)).double() for _ in range(2)]
    fit(made[0], DATA, SHORT, folder=tmp_path)
    with pytest.raises(CheckpointError, match="its starting values differ"):
        fit(made[1], DATA, SHORT, folder=tmp_path, resume=True)
