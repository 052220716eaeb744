"""Models and checkpoints as files: what comes back is what went in, or a message says why not."""

import dataclasses
import os
import re
import stat

import pytest
import torch
from torch import nn

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.io import saving, storage
from sparsebnn.io.saving import ModelError, load, save
from sparsebnn.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from sparsebnn.selection.rules import select
from sparsebnn.training import CheckpointError, checkpoint

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def network(**options):
    return sparsebnn.mlp([4, 6, 3], family="flow", family_options={"hidden": (5, 5)}, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("family", ["gaussian", "spike_slab", "concrete", "flow", "mnf"])
def test_a_network_comes_back_with_its_predictions(family, path):
    prior = sparsebnn.posteriors.SpikeSlabPrior(0.3) if family == "spike_slab" else None
    ours, other = (sparsebnn.mlp([4, 6, 3], family=family, prior=p) for p in (prior, None))
    expected = sparsebnn.predict(ours, X, Categorical(3), n_draws=7).probs
    assert not torch.equal(sparsebnn.predict(other, X, Categorical(3), n_draws=7).probs, expected)
    metadata = {"sizes": [4, 6, 3], "note": "ä", "nested": {"a": [1.5, None]}}
    save(ours, path, **metadata)
    assert load(path, other).metadata == metadata
    assert torch.equal(sparsebnn.predict(other, X, Categorical(3), n_draws=7).probs, expected)
    assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), other.buffers()))


def test_a_network_with_another_activation_is_refused(path):
    sparsebnn.save(sparsebnn.mlp([4, 5, 3]), path)
    with pytest.raises(ModelError, match="module '1' is ReLU; in the network given it is Tanh"):
        sparsebnn.load(path, sparsebnn.mlp([4, 5, 3], activation="tanh"))


def test_the_same_network_is_the_same_file(path):
    """Nothing in it is left to chance, and others read it: the library's own check, and its tensors."""
    ours = network()
    contents = set()
    for _ in range(5):
        save(ours, path, note="ä")
        contents.add(path.read_bytes())
    assert len(contents) == 1
    safetensors = pytest.importorskip("safetensors")
    with safetensors.safe_open(path, "pt") as file:
        assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0
        assert set(file.keys()) >= set(ours.state_dict())
        for name, value in ours.state_dict().items():
            assert torch.equal(file.get_tensor(name), value)


def test_what_the_inclusions_are_is_part_of_the_file(path):
    """A tempered network from a file is refused where probabilities are needed; the next state is its own."""
    x = torch.randn(40, 4)
    data, made, loaded = (x, x[:, 0]), sparsebnn.mlp([4, 1]), sparsebnn.mlp([4, 1])
    for temperature in (0.1, 1.0):
        settings = sparsebnn.Settings(epochs=1, temperature=temperature)
        run = sparsebnn.train(made, data, settings=settings, likelihood="gaussian", progress=False)
        made = run.network
        save(made, path, sizes=[4, 1])
        assert load(path, loaded).metadata == {"sizes": [4, 1]}
        for network in (made, loaded):
            if temperature < 1.0:
                with pytest.raises(InvalidInput, match=r"trained at temperature 0\.1"):
                    select(network, rule="fdr")
            else:
                assert select(network, rule="fdr", X=x).inclusion.shape == (4,)


@pytest.mark.parametrize(
    ("metadata", "match"), [({"when": object()}, "JSON"), ({"n": {1: "a", "1": "b"}}, "'1' occurs twice")]
)
def test_metadata_that_json_cannot_hold(path, metadata, match):
    with pytest.raises(InvalidInput, match=f"'metadata' of save .*{match}"):
        save(network(), path, **metadata)
    assert not path.exists()


def test_a_layer_used_twice_is_saved_once_and_loaded_into_both(path):
    def twice():
        layer = nn.Linear(4, 4)
        return sparsebnn.convert(nn.Sequential(layer, nn.ReLU(), layer))

    ours, other = twice(), twice()
    save(ours, path)
    load(path, other)
    assert other[0] is other[2]
    assert torch.equal(other[2].weights.mean, ours[0].weights.mean)


@pytest.mark.parametrize(
    ("saved", "match"),
    [
        ([4, 7, 3], r"'0\.weights\.mean' is \(7, 4\) torch.float32 there and \(6, 4\) torch.float32 here"),
        ([4, 6], r"it has no '2\.weights"),
        ([4, 6, 3, 3], r"'4\..*' does not exist here"),
    ],
)
def test_a_network_of_another_make_is_refused_and_left_alone(path, saved, match):
    save(sparsebnn.mlp(saved), path)
    other = sparsebnn.mlp([4, 6, 3])
    before = [p.clone() for p in other.parameters()]
    with pytest.raises(ModelError, match=f"belongs to another network: {match}"):
        load(path, other)
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters()))


IMPOSSIBLE = {
    "0.weights.conditional.mean": float("nan"),
    "2.biases.mean": float("-inf"),
    "0.weights.conditional.prior.std": -1.0,
    "0.biases.prior.std": 0.0,
    "2.weights.conditional.prior.inclusion_prob": 1.0,
}


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = sparsebnn.Linear(4, 3)
        self.register_buffer("mask", torch.full((3,), float("-inf")))


def test_a_buffer_may_be_infinite_where_the_network_has_it_so(path):
    save(Masked(), path)
    load(path, Masked())
    other = Masked()
    other.mask[0] = 0.0
    with pytest.raises(ModelError, match="'mask' has 1 NaN or infinite values"):
        load(path, other)


@pytest.mark.parametrize(
    ("fails", "error", "raised"),
    [
        ("fsync", OSError(28, "No space left on device"), ModelError),
        ("replace", KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_when_writing_fails_the_old_file_stays_and_nothing_else(path, monkeypatch, fails, error, raised):
    save(network(), path)
    before = path.read_bytes()

    def fail(*_):
        raise error

    monkeypatch.setattr(os, fails, fail)
    with pytest.raises(raised):
        save(network(), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(ModelError, match="could not be written"):
        save(network(), path / "model.safetensors")  # below a file


def test_files_have_ordinary_permissions(path):
    umask = os.umask(0o022)
    try:
        save(network(), path)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_flow_of_another_ordering_is_refused_and_left_alone(path):
    """The same shapes, but the weights mean something else."""
    made = [
        sparsebnn.mlp([64, 4], family="flow", family_options={"ordering": ordering})
        for ordering in ("alternate", "shared")
    ]
    save(made[0], path)
    before = {name: tensor.clone() for name, tensor in made[1].state_dict().items()}
    with pytest.raises(ModelError, match=r"belongs to another network: .* those of another ordering"):
        load(path, made[1])
    assert all(torch.equal(tensor, before[name]) for name, tensor in made[1].state_dict().items())
    load(path, sparsebnn.mlp([64, 4], family="flow", family_options={"ordering": "alternate"}))


# --- the likelihood -------------------------------------------------------------------------------------

FORMS = {
    "fixed": lambda: Gaussian(2, "fixed", std=0.3),
    "learned": lambda: Gaussian(2, "learned", std=0.3),
    "heteroscedastic": lambda: Gaussian(2, "heteroscedastic", std=0.3),
    "categorical": lambda: Categorical(3),
    "bernoulli": Bernoulli,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FORMS)
def test_a_likelihood_comes_back_with_its_network(name, dtype, path):
    """Predictions of the loaded pair are those of the saved one, to the bit."""
    form = FORMS[name]().to(dtype)
    with torch.no_grad():
        for value in form.state_dict().values():
            value.sub_(0.7)  # as training would have moved it
    outputs = form.n_outputs(torch.zeros(3, 2))
    ours, other = (sparsebnn.mlp([4, 6, outputs]).to(dtype) for _ in range(2))
    save(ours, path, form, sizes=[4, 6, outputs])
    loaded = load(path, other)
    assert loaded.network is other
    assert loaded.metadata == {"sizes": [4, 6, outputs]}
    assert type(loaded.likelihood) is type(form)
    assert [n for n, _ in loaded.likelihood.named_parameters()] == [n for n, _ in form.named_parameters()]
    x = X.to(dtype)
    expected, found = (
        sparsebnn.predict(net, x, one, n_draws=9)
        for net, one in ((ours, form), (loaded.network, loaded.likelihood))
    )
    for field in dataclasses.fields(expected):
        ours_too, theirs = getattr(expected, field.name), getattr(found, field.name)
        assert torch.equal(ours_too, theirs) if isinstance(theirs, torch.Tensor) else ours_too == theirs


def test_a_run_is_saved_with_the_noise_it_learned(path):
    """A noise of a tenth is learned from 1; without it the loaded network would say 1 again."""
    x = torch.linspace(-1, 1, 80).unsqueeze(1)
    y = 2.0 * x[:, 0] + 0.1 * torch.randn(80, generator=torch.Generator().manual_seed(0))
    options = {"settings": sparsebnn.Settings(epochs=60, learning_rate=0.05), "likelihood": "gaussian"}
    run = sparsebnn.train(sparsebnn.mlp([1, 1]), (x, y), replicates=2, progress=False, **options)
    for what in (run, {"weights": x}):
        with pytest.raises(InvalidInput, match=r"of save must be a (network or a )?run"):
            save(what, path)
    assert not path.exists()
    run = sparsebnn.train(sparsebnn.mlp([1, 1]), (x, y), progress=False, **options)
    save(run, path)
    loaded = load(path, sparsebnn.mlp([1, 1]))
    expected = sparsebnn.predict(run.network, x, run.likelihood)
    found = sparsebnn.predict(loaded.network, x, loaded.likelihood)
    assert torch.equal(found.std, expected.std)
    assert float(found.std.max()) < 0.5


def test_without_a_likelihood_there_is_none(path):
    save(sparsebnn.mlp([4, 3]), path)
    assert load(path, sparsebnn.mlp([4, 3])).likelihood is None
    with pytest.raises(ModelError, match="holds no likelihood"):
        load(path, sparsebnn.mlp([4, 3]), Categorical(3))
    with pytest.raises(InvalidInput, match=r"'likelihood' of save must be a Likelihood\. Got str"):
        save(sparsebnn.mlp([4, 3]), path, "gaussian")


class Own(Likelihood):
    def __init__(self, start=0.0):
        super().__init__()
        self.rate = nn.Parameter(torch.full((2,), start))


def test_a_likelihood_of_another_class_is_given_to_load(path):
    """Nothing is imported by name: the class must be there, in the hands of who loads, with its options."""
    save(sparsebnn.mlp([4, 3]), path, Own(3.0))
    with pytest.raises(ModelError, match=r"a likelihood of the class 'Own'"):
        load(path, sparsebnn.mlp([4, 3]))
    given = Own()
    assert load(path, sparsebnn.mlp([4, 3]), given).likelihood is given
    assert given.rate.tolist() == [3.0, 3.0]
    with pytest.raises(ModelError, match=r"holds the likelihood Own\(\)"):
        load(path, sparsebnn.mlp([4, 3]), Categorical(3))
    save(sparsebnn.mlp([4, 1]), path, Gaussian(std=0.2))
    given, same = Gaussian(noise="fixed"), Gaussian()
    with pytest.raises(ModelError, match=r"noise='learned'\), and Gaussian\(.*noise='fixed'\) was given"):
        load(path, sparsebnn.mlp([4, 1]), given)
    assert torch.equal(given.raw_std, Gaussian(noise="fixed").raw_std)
    load(path, sparsebnn.mlp([4, 1]), same)
    assert not torch.equal(same.raw_std, Gaussian().raw_std)


def _option(**options):
    return lambda tensors, header: header["likelihood"]["options"].update(options)


BAD_FORMS = {
    "nan": (
        lambda t, h: t["likelihood/raw_std"].fill_(float("nan")),
        "'raw_std' has 1 NaN or infinite values",
    ),
    "class": (lambda t, h: h["likelihood"].update(name="system"), "damaged (likelihood 'system'"),
    "option": (_option(command="ls"), "damaged (likelihood 'Gaussian'"),
    "value": (_option(noise="loud"), "damaged (likelihood 'Gaussian'"),
    "size": (_option(n_targets=10**12), "it has more targets than values"),
    "no options": (
        lambda t, h: h["likelihood"].update(options={}),
        "damaged (likelihood 'Gaussian': options",
    ),
    "other tensors": (lambda t, h: t.update({"likelihood/x": torch.ones(1)}), "'x' does not exist here"),
    "no tensors": (lambda t, h: t.pop("likelihood/raw_std"), "more targets than values"),
    "no likelihood": (lambda t, h: h.update(likelihood=None), "'raw_std' does not exist here"),
    "text": (lambda t, h: h.update(likelihood="Gaussian"), "its header is not complete"),
    "no metadata": (lambda t, h: h.update(metadata=None), "its header is not complete"),
    "no entry": (lambda t, h: h.pop("likelihood"), "its header is not complete"),
    "mark": (lambda t, h: h.update(inclusions_are_no_posterior=3), "its header is not complete"),
}


@pytest.mark.parametrize("name", BAD_FORMS)
def test_what_cannot_be_said_of_a_likelihood_is_refused_and_nothing_is_copied(path, name):
    change, message = BAD_FORMS[name]
    save(sparsebnn.mlp([4, 1]), path, Gaussian(std=0.3), note="a")
    tensors, header = storage.read(saving._KIND, path)
    change(tensors, header)
    storage.write(saving._KIND, path, tensors, header)
    other = sparsebnn.mlp([4, 1])
    before = {n: tensor.clone() for n, tensor in other.state_dict().items()}
    with pytest.raises(ModelError, match=re.escape(message)):
        load(path, other)
    assert all(torch.equal(tensor, before[n]) for n, tensor in other.state_dict().items())


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_values_that_no_network_can_have_are_refused(path, name):
    """They are not saved; from a file nothing is copied."""
    save(network(), path)
    tensors, header = storage.read(saving._KIND, path)
    tensors[name].fill_(IMPOSSIBLE[name])
    storage.write(saving._KIND, path, tensors, header)
    other = network()
    other.inclusions_are_no_posterior = "as it was"
    before = {key: tensor.clone() for key, tensor in other.state_dict().items()}
    with pytest.raises(ModelError, match=f"'{re.escape(name)}' (has .* infinite values|must be)"):
        load(path, other)
    assert all(torch.equal(tensor, before[key]) for key, tensor in other.state_dict().items())
    assert other.inclusions_are_no_posterior == "as it was"
    made, unsaved = network(), path.with_name("unsaved")
    made.state_dict()[name].fill_(IMPOSSIBLE[name])
    with pytest.raises(InvalidInput, match=f"'{re.escape(name)}'"):
        save(made, unsaved)
    assert not unsaved.exists()


def test_files_that_are_no_model_of_this_version(path, monkeypatch):
    """There is none, it is cut short, it is a checkpoint, or it was written by another release."""
    with pytest.raises(ModelError, match="There is no model at"):
        load(path, network())
    save(network(), path)
    with pytest.raises(CheckpointError, match="not a sparsebnn checkpoint"):
        checkpoint.read(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ModelError, match="is damaged or truncated"):
        load(path, network())
    checkpoint.write(path, {"a": torch.zeros(1)}, {})
    with pytest.raises(ModelError, match="not a sparsebnn model"):
        load(path, network())
    with monkeypatch.context() as patch:
        patch.setattr(saving, "_KIND", dataclasses.replace(saving._KIND, version=1))
        save(network(), path)
    with pytest.raises(ModelError, match="has model version 1; this release reads 2"):
        load(path, network())
