"""Models and checkpoints as files: what comes back is what went in, or a message says why not."""

import dataclasses
import os
import stat

import pytest
import torch
from torch import nn

import sparsebnn
from sparsebnn import saving, storage
from sparsebnn.checks import InvalidInput
from sparsebnn.likelihoods import Categorical
from sparsebnn.saving import ModelError, load_state, save
from sparsebnn.selection import select
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
    load_state(path, other)
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
    save(network(prior=sparsebnn.SpikeSlabPrior(inclusion_prob=0.3)), path)
    loaded = network()
    load_state(path, loaded)
    assert loaded[0].weights.conditional.prior.inclusion_prob == pytest.approx(0.3)


def test_metadata_comes_back(path):
    save(network(), path, sizes=[4, 6, 3], note="ä", nested={"a": [1.5, None]})
    assert load_state(path, network()) == {"sizes": [4, 6, 3], "note": "ä", "nested": {"a": [1.5, None]}}


def test_what_the_inclusions_are_is_part_of_the_file(path):
    """A tempered network from a file is refused where probabilities are needed; the next state is its own."""
    x = torch.randn(40, 4)
    data, made, loaded = (x, x[:, 0]), sparsebnn.mlp([4, 1]), sparsebnn.mlp([4, 1])
    for temperature in (0.1, 1.0):
        settings = sparsebnn.Settings(epochs=1, temperature=temperature)
        run = sparsebnn.train(made, data, settings=settings, likelihood="gaussian", progress=False)
        made = run.network
        save(made, path, sizes=[4, 1])
        assert load_state(path, loaded) == {"sizes": [4, 1]}
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
    load_state(path, other)
    assert other[0] is other[2]
    assert torch.equal(other[2].weights.mean, ours[0].weights.mean)


def test_a_network_of_another_make_is_refused_and_left_alone(path):
    save(network(), path)
    other = sparsebnn.mlp([4, 7, 3], family="flow", family_options={"hidden": (5, 5)})
    before = [p.clone() for p in other.parameters()]
    with pytest.raises(ModelError) as error:
        load_state(path, other)
    assert str(error.value) == (
        f"{path} belongs to another network: '0.weights.conditional.mean' is (6, 4) torch.float32 there "
        "and (7, 4) torch.float32 here."
    )
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters()))


def test_parts_that_are_missing_or_too_many(path):
    small, large = sparsebnn.mlp([4, 3]), sparsebnn.mlp([4, 3, 3])
    save(small, path)
    with pytest.raises(ModelError, match=r"belongs to another network: it has no '2\.weights"):
        load_state(path, large)
    save(large, path)
    with pytest.raises(ModelError, match=r"belongs to another network: '2\..*' does not exist here\.$"):
        load_state(path, small)


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
    negative_std: "'0.weights.conditional.prior.std' must be positive and is -1",
    no_std: "'0.biases.prior.std' must be positive and is 0",
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
        load_state(path, other)
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
    load_state(path, Masked())
    other = Masked()
    other.mask[0] = 0.0
    with pytest.raises(ModelError, match="'mask' has 1 NaN or infinite values"):
        load_state(path, other)


def test_metadata_with_a_key_twice(path):
    with pytest.raises(InvalidInput, match="the key '1' occurs twice"):
        save(network(), path, numbers={1: "a", "1": "b"})


def test_there_is_no_file(path):
    with pytest.raises(ModelError) as error:
        load_state(path, network())
    expected = f"There is no model at {path}. Check the path, or save a network there first."
    assert str(error.value) == expected


def test_a_truncated_file(path):
    save(network(), path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ModelError, match=r"is damaged or truncated \(.*\)\. Save the network again\.$"):
        load_state(path, network())


def test_a_checkpoint_is_not_a_model_nor_the_reverse(path):
    checkpoint.write(path, {"a": torch.zeros(1)}, {})
    with pytest.raises(ModelError) as error:
        load_state(path, network())
    assert str(error.value) == f"{path} is not a sparsebnn model (format 'sparsebnn-checkpoint')."
    save(network(), path)
    with pytest.raises(CheckpointError) as error:
        checkpoint.read(path)
    assert str(error.value) == f"{path} is not a sparsebnn checkpoint (format 'sparsebnn-model')."


def test_a_file_of_another_version(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(saving, "_KIND", dataclasses.replace(saving._KIND, version=2))
        save(network(), path)
    with pytest.raises(ModelError) as error:
        load_state(path, network())
    expected = f"{path} has model version 2; this release reads 1. Load it with the release that wrote it."
    assert str(error.value) == expected


def test_when_writing_fails_the_old_file_stays_and_nothing_else(path, monkeypatch):
    save(network(), path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full)
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

    monkeypatch.setattr(storage.os, "replace", interrupted)
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
        load_state(path, made[1])
    assert all(torch.equal(tensor, before[name]) for name, tensor in made[1].state_dict().items())
    load_state(path, sparsebnn.mlp([64, 4], family="flow", family_options={"ordering": "alternate"}))
