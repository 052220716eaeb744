"""Hooks, autocast, the default precision and buffers: what surrounds a training does not change it unseen."""

import pytest
import torch
from torch import nn

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.nn import Linear, SparseNetwork, compact, mlp

SETTINGS = sparsebnn.Settings(epochs=3, learning_rate=0.01)
G = torch.Generator().manual_seed(0)
X = torch.randn(90, 4, generator=G)
Y = torch.randint(0, 2, (90,), generator=G)


def losses(network, mode="auto", replicates=1, data=(X, Y)):
    run = sparsebnn.train(network, data, settings=SETTINGS, mode=mode, replicates=replicates, progress=False)
    return run.history[-1].nll[0], run.history[-1].kl[0]


def scaled(module, given, found):
    return 5.0 * found


def with_hook():
    network = mlp([4, 8, 2])
    network.register_forward_hook(scaled)
    return network


def with_hook_inside():
    network = mlp([4, 8, 2])
    network[1].register_forward_pre_hook(lambda module, given: (2.0 * given[0],))
    return network


def with_own_forward():
    network = mlp([4, 8, 2])
    network[1].forward = torch.tanh
    return network


def exported(network):
    return sparsebnn.export(network, "never.onnx", likelihood=sparsebnn.likelihoods.Categorical(2))


@pytest.mark.parametrize("make", [with_hook, with_hook_inside, with_own_forward])
def test_hooks_and_forwards_of_single_modules_are_obeyed_in_every_mode(make):
    alone = losses(make(), "eager")
    assert losses(make()) == pytest.approx(alone, rel=1e-5)
    assert losses(make(), replicates=2) == pytest.approx(alone, rel=1e-5)
    assert losses(mlp([4, 8, 2]))[0] != pytest.approx(alone[0], rel=1e-3)


@pytest.mark.parametrize("make", [with_hook, with_hook_inside, with_own_forward])
@pytest.mark.parametrize("leave_out", [compact, SparseNetwork, exported])
def test_what_would_leave_them_out_refuses(make, leave_out):
    with pytest.raises(InvalidInput, match="hooks"):
        leave_out(make())


def test_the_callers_autocast_is_left_out():
    expected = losses(mlp([4, 8, 2]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert losses(mlp([4, 8, 2])) == expected
        assert losses(mlp([4, 8, 2]), "eager") == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sizes", [[4, 2], [4, 8, 2]])
def test_the_default_precision_does_not_matter_to_a_network_that_has_one(sizes, dtype):
    network = mlp(sizes)
    expected = losses(network)
    torch.set_default_dtype(dtype)
    try:
        found = losses(network)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == pytest.approx(expected, rel=1e-5)


class Centre(nn.Module):
    """Subtracts a running mean."""

    def __init__(self):
        super().__init__()
        self.layer = Linear(4, 2)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
            self.steps.add_(1)
        return self.layer(x - self.mean)


def test_buffers_that_forward_changes_belong_to_one_replicate_without_a_folder(tmp_path):
    run = sparsebnn.train(Centre(), (X, Y), settings=SETTINGS, progress=False)
    assert int(run.network.steps) == 3 * run.batches.per_epoch
    for more in ({"replicates": 2}, {"folder": tmp_path}):
        with pytest.raises(InvalidInput, match=r"'network' of train.*'mean'"):
            sparsebnn.train(Centre(), (X, Y), settings=SETTINGS, progress=False, **more)


class Rows(torch.utils.data.IterableDataset):
    def __iter__(self):
        return ((X[i], Y[i]) for i in range(20))


def test_another_number_of_rows_than_was_said_causes_a_warning():
    settings = sparsebnn.Settings(epochs=3, batch_size=4)
    form = sparsebnn.likelihoods.Categorical(2)
    options = {"settings": settings, "likelihood": form, "progress": False}
    sparsebnn.train(mlp([4, 2]), Rows(), n_data=20, **options)
    with pytest.warns(UserWarning, match="ended after 20 rows, and n_data is 12"):
        sparsebnn.train(mlp([4, 2]), Rows(), n_data=12, **options)


def test_predict_says_what_it_needs():
    network = mlp([4, 8, 2])
    with pytest.raises(InvalidInput, match="'likelihood' of predict must be a Likelihood"):
        sparsebnn.predict(network, X, "categorical")
    with pytest.raises(InvalidInput, match="'x' of predict must be the tensor of a network's only input"):
        sparsebnn.predict(network, (X, X), sparsebnn.likelihoods.Categorical(2))


def test_weights_that_are_all_zero_are_refused():
    with pytest.raises(InvalidInput, match="'weight' of train must be above 0 for some rows"):
        sparsebnn.train(mlp([4, 2]), (X, Y, torch.zeros(90)), settings=SETTINGS)
