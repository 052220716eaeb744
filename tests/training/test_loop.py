"""loop.py: resumed runs go on exactly where they stopped; what cannot be trained is refused."""

import dataclasses
import json
import os
import random

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
import torch.utils.checkpoint
from torch import nn

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.likelihoods import Categorical
from sparsebnn.posteriors import EmpiricalPrior, SpikeSlabPrior
from sparsebnn.training import Callback, CheckpointError
from sparsebnn.training.trainer import _digest
from training.runs import SHORT, fit, make_data, make_network, parameters, same

NETWORK, DATA = make_network(family="flow"), make_data()
OPTIONS = {"replicates": 2, "per_replicate": {"temperature": [1.0, 0.5], "prior.inclusion_prob": [0.1, 0.4]}}
FILE, LOCK = "checkpoint.safetensors", ".checkpoint.lock"


def history(run):
    """All that was reported, without the clock."""
    return [dataclasses.replace(epoch, seconds=0.0) for epoch in run.history]


class Stop(Callback):
    """Raises when told so for the n-th time: on an epoch's end, or when a checkpoint was written."""

    def __init__(self, hook, at):
        self.left = at
        setattr(self, hook, self.count)

    def count(self, *_):
        self.left -= 1
        if self.left == 0:
            raise Halt


class Halt(Exception):
    pass


@pytest.fixture(scope="module")
def whole():
    return fit(NETWORK, DATA, SHORT, **OPTIONS)


# --- resume -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoints", [1, 2, 3, 5, 7])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, whole, checkpoints):
    """Stopped after the n-th checkpoint; with 3 steps an epoch the third is at its end."""
    options = {**OPTIONS, "folder": tmp_path, "checkpoint_seconds": 0.0}
    with pytest.raises(Halt):
        fit(NETWORK, DATA, SHORT, callbacks=[Stop("on_checkpoint", checkpoints)], **options)
    _, header = read(tmp_path)
    assert (header["epoch"], header["position"]) == divmod(checkpoints, 3)
    run = fit(NETWORK, DATA, SHORT, resume=True, **options)
    assert same(parameters(run), parameters(whole))
    assert history(run) == history(whole)


@pytest.mark.parametrize("family", ["gaussian", "spike_slab", "concrete"])
def test_a_single_replicate_resumes_exactly(tmp_path, family):
    network = make_network(family=family, dtype=torch.float32)
    straight = fit(network, DATA, SHORT)
    stop = Stop("on_checkpoint", 4)
    with pytest.raises(Halt):
        fit(network, DATA, SHORT, folder=tmp_path, checkpoint_seconds=0.0, callbacks=[stop])
    run = fit(network, DATA, SHORT, folder=tmp_path, resume=True)
    assert same(parameters(run), parameters(straight))
    assert history(run) == history(straight)
    assert same(dict(run.network.state_dict()), dict(straight.network.state_dict()))


def test_moved_images_are_moved_alike_after_resuming(tmp_path):
    network, data = make_network("conv"), make_data("conv")
    moved, stop = dataclasses.replace(SHORT, shift=1), Stop("on_checkpoint", 4)
    straight = fit(network, data, moved)
    with pytest.raises(Halt):
        fit(network, data, moved, folder=tmp_path, checkpoint_seconds=0.0, callbacks=[stop])
    with pytest.raises(CheckpointError, match="settings differ"):
        fit(network, data, SHORT, folder=tmp_path, resume=True)
    run = fit(network, data, moved, folder=tmp_path, resume=True)
    assert same(parameters(run), parameters(straight))


def test_a_finished_run_resumes_to_itself(tmp_path, whole):
    fit(NETWORK, DATA, SHORT, folder=tmp_path, **OPTIONS)
    run = fit(NETWORK, DATA, SHORT, folder=tmp_path, resume=True, **OPTIONS)
    assert same(parameters(run), parameters(whole))
    assert history(run) == history(whole)


def test_resume_from_nothing_begins(tmp_path, whole):
    run = fit(NETWORK, DATA, SHORT, folder=tmp_path / "new", resume=True, **OPTIONS)
    assert same(parameters(run), parameters(whole))


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
        (
            torch.full((23, 4), 1e300, dtype=torch.float64),
            "small enough for float32. Got up to 1e+300 instead.",
        ),
        (torch.ones(23, 4, dtype=torch.complex64), "must be real numbers. Got torch.complex64 instead."),
    ],
)
def test_numbers_that_the_network_cannot_hold(x, message):
    for owner, call in (
        ("train", lambda: fit(sparsebnn.mlp([4, 3]), (x, DATA[1]), SHORT)),
        (
            "predict",
            lambda: sparsebnn.predict(sparsebnn.mlp([4, 3]), x, sparsebnn.likelihoods.Categorical(3)),
        ),
    ):
        with pytest.raises(InvalidInput) as raised:
            call()
        assert message in str(raised.value)
        assert f"The 'x' of {owner} must be" in str(raised.value)


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
    options["folder"] = tmp_path
    with pytest.raises(Halt):
        fit(NETWORK, DATA, SHORT, callbacks=[Stop("on_epoch_end", 2)], checkpoint_seconds=0.0, **options)
    run = fit(NETWORK, DATA, SHORT, resume=True, **options)
    assert run.stopped == straight.stopped
    assert len(run.stopped) == 1
    assert all(same(parameters(run, k), parameters(straight, k)) for k in (0, 2))
    # What was good before it stopped is kept beside.
    assert sorted(os.listdir(tmp_path)) == [LOCK, "checkpoint-before-step-1.safetensors", FILE]


def test_what_a_killed_run_left_behind_is_cleared(folder, whole):
    """A kill while writing leaves a temporary file, which nobody else would remove."""
    (folder / f".{FILE}.0123abcd").write_bytes(b"half a check")
    run = fit(NETWORK, DATA, SHORT, folder=folder, resume=True, **OPTIONS)
    assert same(parameters(run), parameters(whole))
    assert sorted(os.listdir(folder)) == [LOCK, FILE]


# --- a checkpoint that must not be used -----------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A run stopped in its second epoch."""
    stop = Stop("on_checkpoint", 4)
    with pytest.raises(Halt):
        fit(NETWORK, DATA, SHORT, folder=tmp_path, checkpoint_seconds=0.0, callbacks=[stop], **OPTIONS)
    return tmp_path


def read(folder):
    with safetensors.safe_open(str(folder / FILE), framework="pt") as file:
        meta = file.metadata()
        return meta, json.loads(meta["json"])


def refusal(folder, network=NETWORK, data=DATA, settings=SHORT, **options):
    before = (folder / FILE).read_bytes()
    with pytest.raises(CheckpointError) as error:
        fit(network, data, settings, folder=folder, resume=True, **{**OPTIONS, **options})
    assert (folder / FILE).read_bytes() == before
    return str(error.value)


X, Y = DATA
OTHERS = {
    "settings": {"settings": dataclasses.replace(SHORT, learning_rate=2e-2)},
    "rows": {"data": (X[:20], Y[:20])},
    "targets": {"data": (X, (Y + 1) % 3)},
    "seeds": {"replicates": [5, 6]},
    "architecture": {
        "network": sparsebnn.mlp([4, 7, 3], family="flow", family_options={"hidden": (5, 4)}).double()
    },
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_checkpoint_of_another_run(folder, what):
    assert refusal(folder, **OTHERS[what]) == (
        f"{folder / FILE} belongs to another run: its {what} differ. "
        "Resume with the same network, data, seeds and settings, or choose another folder."
    )


def _bent_otherwise():
    network = make_network(family="flow")
    network[1] = nn.Tanh()
    return network


SILENT = {
    "x": {"data": (X + 1.0, Y)},
    "weight": {"data": (X, Y, torch.full((23,), 2.0))},
    "varied rates": {"per_replicate": {**OPTIONS["per_replicate"], "temperature": [1.0, 0.1]}},
    "varied buffers": {"per_replicate": {**OPTIONS["per_replicate"], "prior.inclusion_prob": [0.1, 0.9]}},
    "prior": {"network": make_network(family="flow", prior=SpikeSlabPrior(0.5, std=3.0))},
    "kind of prior": {"network": make_network(family="flow", prior=EmpiricalPrior())},
    "family's options": {
        "network": make_network(family="flow", family_options={"hidden": (5, 4), "auxiliary": "drawn"})
    },
    "activation": {"network": _bent_otherwise()},
}


@pytest.mark.parametrize("what", SILENT)
def test_a_checkpoint_of_a_run_that_differs_elsewhere(folder, what):
    """All that the result depends on must agree, or 'exactly where it stopped' would not be true."""
    assert " belongs to another run: " in refusal(folder, **SILENT[what])


def test_a_checkpoint_in_another_precision(folder):
    network = make_network(family="flow", dtype=torch.float32)
    message = refusal(folder, network=network)
    assert message.startswith(f"{folder / FILE} belongs to another ")


def test_a_checkpoint_that_is_cut_short(folder):
    path = folder / FILE
    path.write_bytes(path.read_bytes()[:-100])
    message = refusal(folder)
    assert message.startswith(f"{path} is damaged or truncated (")
    assert message.endswith("). Use an earlier checkpoint.")


def test_a_checkpoint_of_another_version(folder):
    meta, _ = read(folder)
    tensors = safetensors.torch.load_file(folder / FILE)
    safetensors.torch.save_file(tensors, folder / FILE, metadata={**meta, "version": "0"})
    assert refusal(folder) == (
        f"{folder / FILE} has checkpoint version 0; this release reads 1. "
        "Resume it with the release that wrote it."
    )


def test_a_file_that_is_no_checkpoint(folder):
    path = folder / FILE
    safetensors.torch.save_file({"a": torch.zeros(1)}, path)
    assert refusal(folder) == f"{path} is not a sparsebnn checkpoint (format None)."
    torch.save({"a": torch.zeros(1)}, path)
    assert refusal(folder).startswith(f"{path} is damaged or truncated (")
    path.write_bytes(random.Random(1).randbytes(5000))
    assert refusal(folder).startswith(f"{path} is damaged or truncated (")


# --- bad input --------------------------------------------------------------------------------------


NAN = X.clone()
NAN[3, 1] = float("nan")


class Noisy(nn.Module):
    """Adds noise of its own to what it is given."""

    def forward(self, x):
        return x + torch.randn_like(x)


PLAIN = nn.Sequential(nn.Linear(4, 3))
DROPOUT = nn.Sequential(sparsebnn.Linear(4, 6), nn.Dropout(0.2), sparsebnn.Linear(6, 3))
NORMED = nn.Sequential(sparsebnn.Linear(4, 6), nn.BatchNorm1d(6), sparsebnn.Linear(6, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"data": (X, Y[:-1])},
            "The 'y' of train must be as long as 'x' (23 rows). Got 22 rows instead. "
            "Every array needs one row per example.",
        ),
        (
            {"data": (X, Y, torch.ones(5))},
            "The 'weight' of train must be as long as 'x' (23 rows). Got 5 rows instead. "
            "Every array needs one row per example.",
        ),
        (
            {"data": (X[:0], Y[:0])},
            "The 'x' of train must be of at least one row. Got an empty batch instead. "
            "Check the filter before.",
        ),
        (
            {"data": (NAN, Y)},
            "The 'x' of train must be finite. Got 1 NaN or infinite values, the first at (3, 1), instead. "
            "Impute or drop those rows first.",
        ),
        (
            {"data": (X, Y), "likelihood": Categorical(2)},
            "The 'y' of Categorical must be labels from 0 to 1. Got labels from 0 to 2 instead. "
            "Encode classes as 0, 1, 2 …, or raise n_classes.",
        ),
        (
            {"data": (X, Y - 1)},
            "The 'y' of Categorical must be labels from 0 to 1. Got labels from -1 to 1 instead. "
            "Encode classes as 0, 1, 2 …, or raise n_classes.",
        ),
        (
            {"data": (X, Y.double())},
            "The 'y' of Categorical must be a vector of integer labels. "
            "Got torch.float64 of shape (23,) instead. Encode classes as 0, 1, 2 ….",
        ),
        (
            {"data": (X, Y, torch.linspace(-0.5, 1.0, 23))},
            "The 'weight' of train must be at least 0 everywhere. Got -0.5 instead.",
        ),
        ({"data": (X,)}, "The 'data' of train must be (x, y) or (x, y, weight). Got 1 arrays instead."),
        (
            {"data": (X[:, 0], Y)},
            "The 'x' of train must be of shape (rows, …). Got shape (23,) instead.",
        ),
        (
            {"network": PLAIN},
            "The 'network' of train must be a module with Bayesian layers. Got Sequential instead. "
            "Build it with mlp, lenet or convert.",
        ),
        (
            {"network": DROPOUT},
            "The 'network' of train must be free of dropout, whose noise no replicate's seed would govern. "
            "Got dropout at ['1'] instead. Set it to 0 or remove it.",
        ),
        (
            {"network": nn.Sequential(nn.LSTM(4, 6, 2, dropout=0.1), sparsebnn.Linear(6, 3))},
            "The 'network' of train must be free of dropout, whose noise no replicate's seed would govern. "
            "Got dropout at ['0'] instead. Set it to 0 or remove it.",
        ),
        (
            {"network": nn.Sequential(nn.MultiheadAttention(4, 2, dropout=0.1), sparsebnn.Linear(4, 3))},
            "The 'network' of train must be free of dropout, whose noise no replicate's seed would govern. "
            "Got dropout at ['0'] instead. Set it to 0 or remove it.",
        ),
        *(
            (
                {"network": nn.Sequential(sparsebnn.Linear(4, 3), noisy), "replicates": replicates},
                "The 'network' of train must be free of random draws, which a replicate's seed would not "
                f"control. Got a call of {op} instead. "
                "Leave out what draws them (dropout, added noise).",
            )
            for noisy, op in ((nn.RReLU(), "rrelu_with_noise"), (Noisy(), "randn_like"))
            for replicates in (1, 2)
        ),
        (
            {"network": nn.Sequential(nn.LazyLinear(6), sparsebnn.Linear(6, 3))},
            "The 'network' of train must be a module whose parameters have a shape. "
            "Got '0.weight' without instead. Call it on some rows first.",
        ),
        (
            {"network": sparsebnn.mlp([4, 6, 3], dtype=torch.float16)},
            "The 'network' of train must be of a precision that gradients fit into. Got float16 instead. "
            "Use float32, float64 or bfloat16: network.float().",
        ),
        (
            {"network": NORMED},
            "The 'network' of train must be replicable. Got a network instead, in which "
            "1 (BatchNorm1d) updates running statistics, which replicates cannot share; "
            "call .eval() on it, or use GroupNorm or LayerNorm.",
        ),
        (
            {"replicates": 0},
            "The 'replicates' of train must be a whole number of at least 1. Got 0 instead.",
        ),
        (
            {"replicates": [3, 4, 3]},
            "The 'replicates' of train must be a number or distinct seeds. Got [3, 4, 3] instead.",
        ),
        (
            {"replicates": "3"},
            "The 'replicates' of train must be a number or distinct seeds. Got '3' instead.",
        ),
        (
            {"replicates": [0, 1.5]},
            "The 'replicates' of train must be a whole number. Got 1.5 instead.",
        ),
        ({"seed": "a"}, "The 'seed' of train must be a whole number. Got 'a' instead."),
        (
            {"likelihood": 5},
            "The 'likelihood' of train must be 'categorical', 'bernoulli', 'gaussian' or a Likelihood. "
            "Got 5 instead.",
        ),
        (
            {"callbacks": [5]},
            "The 'callbacks' of train must be a list of callbacks. Got 5 among them instead.",
        ),
        (
            {"checkpoint_seconds": "x"},
            "The 'checkpoint_seconds' of train must be at least 0. Got 'x' instead.",
        ),
        (
            {"per_replicate": [0.1]},
            "The 'per_replicate' of train must be a dict of names and their values. Got [0.1] instead. "
            "For example {'temperature': [0.1, 1.0]}.",
        ),
        *(
            (
                {"per_replicate": {name: ["a"]}},
                f"The 'per_replicate[{name}]' of train must be a tensor or an array of numbers. "
                "Got a list instead. Of a table pass its numbers (frame.to_numpy(float)).",
            )
            for name in ("temperature", "prior.inclusion_prob")
        ),
        (
            {"replicates": []},
            "The 'replicates' of train must be a number or distinct seeds. Got [] instead.",
        ),
        (
            {"mode": "eagre"},
            "The 'mode' of train must be one of 'auto', 'eager', 'compiled'. Got 'eagre' instead. "
            "Did you mean 'eager'?",
        ),
        (
            {"per_replicate": {"prior.inclusion": [0.1]}},
            "The 'per_replicate' of train must be the name of a buffer, such as prior.inclusion_prob, "
            "prior.mean, prior.std. Got 'prior.inclusion' instead.",
        ),
        (
            {"per_replicate": {"learning_rates.mean": [0.1]}},
            "The 'per_replicate' of train must be one of 'temperature', 'learning_rate', 'target_density'. "
            "Got 'learning_rates.mean' instead.",
        ),
        (
            {"per_replicate": {"temperature": [0.1, 0.2]}},
            "The 'per_replicate[temperature]' of train must be one value per replicate (1). "
            "Got shape (2,) instead.",
        ),
        (
            {"per_replicate": {"prior.inclusion_prob": [0.1, 0.2]}},
            "The 'per_replicate[prior.inclusion_prob]' of train must be one value per replicate (1). "
            "Got shape (2,) instead.",
        ),
        (
            {"resume": True},
            "The 'resume' of train must be used with folder=.... Got no folder instead.",
        ),
        (
            {"likelihood": "gausian"},
            "The 'likelihood' of train must be one of 'categorical', 'bernoulli', 'gaussian'. "
            "Got 'gausian' instead. Did you mean 'gaussian'?",
        ),
    ],
)
def test_messages(change, message):
    arguments = {"network": make_network(), "data": DATA, "settings": SHORT, **change}
    with pytest.raises(InvalidInput) as error:
        fit(**arguments)
    assert str(error.value) == message


def test_a_device_that_there_is_not():
    with pytest.raises(
        InvalidInput, match=r"'device' of train must be 'auto', 'cpu' or 'cuda'\. Got 'gpu' instead\."
    ):
        sparsebnn.train(make_network(), DATA, device="gpu")
    with pytest.raises(InvalidInput, match=r"'device' of train .*Got 'cuda:99' instead"):
        sparsebnn.train(make_network(), DATA, device=torch.device("cuda:99"))


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


@pytest.mark.parametrize(
    "change",
    [
        {"data": (X, Y + 2)},
        {"data": (X, (Y > 0).long()), "likelihood": "bernoulli"},
        {"data": (X, X[:, :2]), "likelihood": "gaussian"},
    ],
    ids=["more classes than outputs", "bernoulli", "gaussian"],
)
def test_a_network_with_another_number_of_outputs(change):
    """Three outputs; the targets need five, one or two."""
    with pytest.raises(InvalidInput, match="outputs"):
        fit(**{"network": make_network(), "settings": SHORT, **change})


@pytest.mark.parametrize("weight", [torch.ones(23, 1), torch.full((23,), float("inf"))])
def test_weights_that_make_no_sense(weight):
    with pytest.raises(InvalidInput, match="'weight'"):
        fit(make_network(), (X, Y, weight), SHORT)


@pytest.mark.parametrize("value", [0.0, 1.5, float("nan")])
def test_a_varied_prior_must_be_one(value):
    """As the prior's own constructor says."""
    with pytest.raises(InvalidInput):
        fit(make_network(), DATA, SHORT, per_replicate={"prior.inclusion_prob": [value]})


def test_norms_in_eval_mode_are_shared():
    """Their running statistics no longer change, so replicates can share them."""
    network = nn.Sequential(sparsebnn.Linear(4, 6), nn.BatchNorm1d(6), sparsebnn.Linear(6, 3))
    network[1].eval()
    before = network[1].running_mean.clone()
    run = fit(network, DATA, SHORT, replicates=2)
    assert len(run.history) == 3
    assert torch.equal(run.networks[0][1].running_mean, before)


def test_another_start_is_another_run(tmp_path):
    """Same shapes, same options: but weights that were converted from others."""
    torch.manual_seed(0)
    made = [nn.Sequential(sparsebnn.convert(nn.Linear(4, 3), pretrained=True)).double() for _ in range(2)]
    fit(made[0], DATA, SHORT, folder=tmp_path)
    with pytest.raises(CheckpointError, match="its starting values differ"):
        fit(made[1], DATA, SHORT, folder=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": torch.utils.data.DataLoader([1])}, "must be (x, y) or (x, y, weight). Got a DataLoader"),
        ({"data": {"x": X, "y": Y}}, "must be (x, y) or (x, y, weight). Got a dict"),
        ({"data": ({}, Y)}, "The 'x' of train must be a tensor or an array of numbers. Got a dict"),
        ({"settings": {"epochs": 3}}, "The 'settings' of train must be a Settings. Got a dict instead."),
        ({"callbacks": Callback()}, "The 'callbacks' of train must be a list. Got one Callback instead."),
    ],
)
def test_other_things_are_refused_in_words(change, message):
    given = {"data": DATA, "settings": SHORT, **change}
    with pytest.raises(InvalidInput) as refused:
        sparsebnn.train(NETWORK, **given)
    assert message in str(refused.value)


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
