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
    ours = sparsebnn.mlp([4, 6, 3], family=family)
    other = sparsebnn.mlp([4, 6, 3], family=family)
    expected = sparsebnn.predict(ours, X, Categorical(3), n_draws=7).probs
    assert not torch.equal(sparsebnn.predict(other, X, Categorical(3), n_draws=7).probs, expected)
    save(ours, path)
    load(path, other)
    assert torch.equal(sparsebnn.predict(other, X, Categorical(3), n_draws=7).probs, expected)


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


def test_priors_are_part_of_the_state(path):
    save(network(prior=sparsebnn.posteriors.SpikeSlabPrior(inclusion_prob=0.3)), path)
    loaded = network()
    load(path, loaded)
    assert loaded[0].weights.conditional.prior.inclusion_prob == pytest.approx(0.3)


def test_metadata_comes_back(path):
    save(network(), path, sizes=[4, 6, 3], note="ä", nested={"a": [1.5, None]})
    assert load(path, network()).metadata == {"sizes": [4, 6, 3], "note": "ä", "nested": {"a": [1.5, None]}}


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
                assert select(network, rule="fdr").inclusion.shape == (4,)


def test_metadata_that_json_cannot_hold(path):
    with pytest.raises(InvalidInput) as error:
        save(network(), path, when=object())
    assert str(error.value) == (
        "The 'metadata' of save must be what JSON can hold. "
        "Got Object of type object is not JSON serializable instead."
    )
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


def test_a_network_of_another_make_is_refused_and_left_alone(path):
    save(network(), path)
    other = sparsebnn.mlp([4, 7, 3], family="flow", family_options={"hidden": (5, 5)})
    before = [p.clone() for p in other.parameters()]
    with pytest.raises(ModelError) as error:
        load(path, other)
    assert str(error.value) == (
        f"{path} belongs to another network: '0.weights.conditional.mean' is (6, 4) torch.float32 there "
        "and (7, 4) torch.float32 here."
    )
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters()))


def test_parts_that_are_missing_or_too_many(path):
    small, large = sparsebnn.mlp([4, 3]), sparsebnn.mlp([4, 3, 3])
    save(small, path)
    with pytest.raises(ModelError, match=r"belongs to another network: it has no '2\.weights"):
        load(path, large)
    save(large, path)
    with pytest.raises(ModelError, match=r"belongs to another network: '2\..*' does not exist here\.$"):
        load(path, small)


def bad_mean(state):
    state["0.weights.conditional.mean"][0, 1] = float("nan")


def infinite_bias(state):
    state["2.biases.mean"][0] = float("-inf")


def negative_std(state):
    state["0.weights.conditional.prior.std"].fill_(-1.0)


def no_std(state):
    state["0.biases.prior.std"].fill_(0.0)


def certain(state):
    state["2.weights.conditional.prior.inclusion_prob"].fill_(1.0)


IMPOSSIBLE = {
    bad_mean: "'0.weights.conditional.mean' has 1 NaN or infinite values",
    infinite_bias: "'2.biases.mean' has 1 NaN or infinite values",
    negative_std: "'0.weights.conditional.prior.std' must be positive and finite and is -1",
    no_std: "'0.biases.prior.std' must be positive and finite and is 0",
    certain: "'2.weights.conditional.prior.inclusion_prob' must be strictly between 0 and 1 and is 1",
}


@pytest.mark.parametrize("change", IMPOSSIBLE, ids=lambda change: change.__name__)
def test_values_that_no_network_can_have_are_refused_and_nothing_is_copied(path, change):
    save(network(), path)
    tensors, header = storage.read(saving._KIND, path)
    change(tensors)
    storage.write(saving._KIND, path, tensors, header)
    other = network()
    other.inclusions_are_no_posterior = "as it was"
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(ModelError) as error:
        load(path, other)
    assert str(error.value) == f"{path} must not be used: {IMPOSSIBLE[change]}. Save the network again."
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())
    assert other.inclusions_are_no_posterior == "as it was"


@pytest.mark.parametrize("change", IMPOSSIBLE, ids=lambda change: change.__name__)
def test_a_network_with_such_values_is_not_saved(path, change):
    made = network()
    change(made.state_dict())
    with pytest.raises(InvalidInput, match=r"one where '.*(infinite values|must be)"):
        save(made, path)
    assert not path.exists()


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


def test_metadata_with_a_key_twice(path):
    with pytest.raises(InvalidInput, match="the key '1' occurs twice"):
        save(network(), path, numbers={1: "a", "1": "b"})


def test_there_is_no_file(path):
    with pytest.raises(ModelError) as error:
        load(path, network())
    expected = f"There is no model at {path}. Check the path, or save a network there first."
    assert str(error.value) == expected


def test_a_truncated_file(path):
    save(network(), path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ModelError, match=r"is damaged or truncated \(.*\)\. Save the network again\.$"):
        load(path, network())


def test_a_checkpoint_is_not_a_model_nor_the_reverse(path):
    checkpoint.write(path, {"a": torch.zeros(1)}, {})
    with pytest.raises(ModelError) as error:
        load(path, network())
    assert str(error.value) == f"{path} is not a sparsebnn model (format 'sparsebnn-checkpoint')."
    save(network(), path)
    with pytest.raises(CheckpointError) as error:
        checkpoint.read(path)
    assert str(error.value) == f"{path} is not a sparsebnn checkpoint (format 'sparsebnn-model')."


def test_a_file_of_another_version(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(saving, "_KIND", dataclasses.replace(saving._KIND, version=1))
        save(network(), path)
    with pytest.raises(ModelError) as error:
        load(path, network())
    expected = f"{path} has model version 1; this release reads 2. Load it with the release that wrote it."
    assert str(error.value) == expected


def test_when_writing_fails_the_old_file_stays_and_nothing_else(path, monkeypatch):
    save(network(), path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError) as error:
        save(network(), path)
    assert str(error.value) == (
        f"The model {path} could not be written (No space left on device); the previous model is intact. "
        "Free space or choose another folder, then save again."
    )
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_an_interrupt_while_writing_leaves_nothing_behind(path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(network(), path)
    assert list(path.parent.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "model.safetensors"
    with pytest.raises(ModelError, match=r"could not be written \((File exists|Not a directory)\)\. Free"):
        save(network(), target)


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
    settings = sparsebnn.Settings(epochs=60, learning_rate=0.05)
    run = sparsebnn.train(
        sparsebnn.mlp([1, 1]), (x, y), settings=settings, likelihood="gaussian", progress=False
    )
    save(run, path)
    loaded = load(path, sparsebnn.mlp([1, 1]))
    expected = sparsebnn.predict(run.network, x, run.likelihood)
    found = sparsebnn.predict(loaded.network, x, loaded.likelihood)
    assert torch.equal(found.std, expected.std)
    assert float(found.std.max()) < 0.5


def test_a_run_of_several_replicates_is_not_saved_as_one(path):
    x = torch.randn(20, 4)
    settings = sparsebnn.Settings(epochs=1)
    run = sparsebnn.train(
        sparsebnn.mlp([4, 1]),
        (x, x[:, 0]),
        settings=settings,
        likelihood="gaussian",
        replicates=2,
        progress=False,
    )
    with pytest.raises(
        InvalidInput, match=r"must be a run of one replicate\. Got one of 2 instead\. Save each"
    ):
        save(run, path)
    with pytest.raises(InvalidInput, match="a network or a run"):
        save({"weights": x}, path)
    assert not path.exists()


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
    """Nothing is imported by name: the class must be there, in the hands of who loads."""
    save(sparsebnn.mlp([4, 3]), path, Own(3.0))
    with pytest.raises(
        ModelError, match=r"a likelihood of the class 'Own'\. It is not the library's: pass one"
    ):
        load(path, sparsebnn.mlp([4, 3]))
    given = Own()
    assert load(path, sparsebnn.mlp([4, 3]), given).likelihood is given
    assert given.rate.tolist() == [3.0, 3.0]
    with pytest.raises(
        ModelError, match=r"holds the likelihood Own\(\), and Categorical\(n_classes=3\) was given"
    ):
        load(path, sparsebnn.mlp([4, 3]), Categorical(3))


def test_a_given_likelihood_must_have_the_same_options(path):
    save(sparsebnn.mlp([4, 1]), path, Gaussian(std=0.2))
    given = Gaussian(noise="fixed")
    before = given.raw_std.clone()
    with pytest.raises(ModelError, match=r"noise='learned'\), and Gaussian\(.*noise='fixed'\) was given"):
        load(path, sparsebnn.mlp([4, 1]), given)
    assert torch.equal(given.raw_std, before)
    same = Gaussian()
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
