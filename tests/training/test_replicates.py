"""objective.py: replicate k alone is replicate k among five; hyperparameters along the replicate axis."""

import functools

import pytest
import torch

import sparsebnn
from sparsebnn.likelihoods import Gaussian
from sparsebnn.posteriors.priors import SpikeSlabPrior
from sparsebnn.training.objective import cudnn_left_out
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

SEEDS = [3, 1, 4, 15, 9]


@functools.cache
def five(kind, family, dtype):
    """Five replicates together, eagerly."""
    return fit(make_network(kind, family, dtype), make_data(kind), replicates=SEEDS)


SINGLE = [("mlp", "gaussian"), ("mlp", "concrete"), ("conv", "spike_slab"), ("converted", "concrete")]
CASES = [
    *((kind, family, torch.float64) for kind in EXAMPLES for family in FAMILIES),
    *(
        pytest.param(
            kind, family, torch.float32, marks=[] if (kind, family) in SINGLE else [pytest.mark.slow]
        )
        for kind in EXAMPLES
        for family in FAMILIES
    ),
]


@pytest.mark.parametrize(("kind", "family", "dtype"), CASES)
def test_alone_as_among_five(kind, family, dtype):
    """Parameters and history after 15 steps."""
    together = five(kind, family, dtype)
    alone = fit(make_network(kind, family, dtype), make_data(kind), replicates=[SEEDS[2]])
    assert distance(parameters(together, 2), parameters(alone, 0)) <= TOLERANCE[dtype]
    for ours, other in zip(together.history, alone.history):
        assert ours.loss[2] == pytest.approx(other.loss[0], rel=10 * TOLERANCE[dtype])
        assert ours.density[2] == other.density[0]


class _Last(torch.nn.Module):
    """A module that reads rows of a sequence, then a Bayesian head that reads the last of them."""

    def __init__(self, reader):
        super().__init__()
        self.reader, self.head = reader, sparsebnn.Linear(8, 3)

    def forward(self, x):
        rows = x.reshape(len(x), 2, 2).repeat(1, 1, 4)
        attends = isinstance(self.reader, torch.nn.MultiheadAttention)
        read = self.reader(rows, rows, rows, need_weights=False) if attends else self.reader(rows)
        return self.head((read[0] if isinstance(read, tuple) else read)[:, -1])


class _Own(torch.nn.Linear):
    def forward(self, x):
        return torch.tanh(super().forward(x))


READERS = {
    "LSTM": lambda: torch.nn.LSTM(8, 8, batch_first=True),
    "GRU": lambda: torch.nn.GRU(8, 8, 2, batch_first=True),
    # The keys' bias has a gradient of zero but for rounding, which Adam makes a step of.
    "attention": lambda: torch.nn.MultiheadAttention(8, 2, bias=False, batch_first=True),
    "a subclass": lambda: _Own(8, 8),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("reader", READERS)
def test_modules_that_have_no_bayesian_form_are_replicated(reader):
    """They start anew for every seed, and replicate k alone is replicate k among others."""
    network = _Last(READERS[reader]()).double()
    together = fit(network, make_data("mlp"), settings=SHORT, replicates=SEEDS[:3])
    alone = fit(network, make_data("mlp"), settings=SHORT, replicates=[SEEDS[2]])
    ours, first = parameters(together, 2), parameters(together, 0)
    assert distance(ours, parameters(alone, 0)) <= TOLERANCE[torch.float64]
    for name, tensor in ours.items():
        # A standard deviation per number would do: starts of different seeds share nothing.
        assert float((tensor - first[name]).abs().max()) > (1e-4 if "bias" in name else 1e-2), name


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:RNN module weights")
@pytest.mark.parametrize("replicates", [1, 2])
@pytest.mark.parametrize("reader", READERS)
def test_modules_that_have_no_bayesian_form_are_replicated_on_a_gpu(reader, replicates):
    network, data = _Last(READERS[reader]()), make_data("mlp")
    options = {"settings": SHORT, "replicates": replicates, "progress": False, "mode": "eager"}
    there = sparsebnn.train(network, data, device="cuda", tf32=False, **options)
    assert distance(parameters(there), parameters(fit(network, data, **options))) <= 1e-4


def test_neighbours_and_places_do_not_matter():
    """The same seed in another place among others; replicates=3, seed=5 are the seeds 5, 6, 7.

    What needs no gradient stays.
    """
    network, data = make_network(), make_data()
    network[2].weights.mean.requires_grad_(False)
    counted = fit(network, data, SHORT, replicates=3, seed=5)
    assert counted.seeds == [5, 6, 7]
    other = fit(network, data, SHORT, replicates=[20, 7, 21, 22])
    assert distance(parameters(counted, 2), parameters(other, 1)) <= 1e-12
    alone = fit(network, data, SHORT, replicates=[7])
    assert distance(parameters(counted, 2), parameters(alone, 0)) <= 1e-10
    assert torch.equal(counted.networks[0][2].weights.mean, network[2].weights.mean)


# --- hyperparameters along the replicate axis ---------------------------------------------------------


def test_vary_a_prior():
    data, values = make_data(), [0.05, 0.3, 0.8]
    together = fit(make_network(), data, replicates=3, per_replicate={"prior.inclusion_prob": values})
    for k, value in enumerate(values):
        network = make_network(prior=SpikeSlabPrior(value))
        alone = fit(network, data, replicates=[k])
        # The prior is written down in float32 before the network becomes double.
        assert distance(parameters(together, k), parameters(alone, 0)) <= 1e-5
        varied = fit(make_network(), data, replicates=[k], per_replicate={"prior.inclusion_prob": [value]})
        assert distance(parameters(together, k), parameters(varied, 0)) <= 1e-10
    assert distance(parameters(together, 0), parameters(together, 2)) > 1e-2


def test_vary_a_buffer_of_one_layer_with_a_value_per_weight():
    prior = SpikeSlabPrior(torch.full((6, 4), 0.2))
    network = sparsebnn.mlp([4, 6, 3], dtype=torch.float64)
    network[0] = sparsebnn.Linear(4, 6, dtype=torch.float64, prior=prior)
    values = torch.rand(2, 6, 4, dtype=torch.float64).clamp(0.05, 0.95)
    name = "0.weights.prior.inclusion_prob"
    together = fit(network, make_data(), SHORT, replicates=2, per_replicate={name: values})
    alone = fit(network, make_data(), SHORT, replicates=[1], per_replicate={name: values[1:]})
    assert distance(parameters(together, 1), parameters(alone, 0)) <= 1e-10
    assert torch.equal(together.networks[1][0].weights.prior.inclusion_prob, values[1])
    assert together.networks[1][2].weights.prior.inclusion_prob.item() == pytest.approx(0.1)


LOGIT = "inclusion_logit"


# What the settings say for all, what varies, and the settings of replicate 1 alone.
VARIED = {
    "temperature": ({}, {"temperature": [0.1, 3.0]}, {"temperature": 3.0}),
    "rates": (
        {"learning_rates": {LOGIT: 0.2}},
        {"learning_rate": [1e-3, 5e-2], f"learning_rates.{LOGIT}": [0.1, 0.3]},
        {"learning_rate": 5e-2, "learning_rates": {LOGIT: 0.3}},
    ),
    # A group with a schedule alone has the general learning rate, so it varies with it.
    "a schedule": (
        {"schedules": {LOGIT: "constant"}},
        {"learning_rate": [1e-3, 5e-2]},
        {"learning_rate": 5e-2, "schedules": {LOGIT: "constant"}},
    ),
    # A base of 0 is no obstacle.
    "from zero": (
        {"learning_rate": 0.0, "temperature": 0.0},
        {"learning_rate": [1e-3, 1e-2], "temperature": [0.5, 1.0]},
        {},
    ),
}


@pytest.mark.parametrize("what", VARIED)
def test_vary_settings(what):
    base, per_replicate, own = VARIED[what]
    common = {"epochs": 6, "batch_size": 8, "learning_rate": 1e-2}
    data, network = make_data(), make_network()
    together = fit(network, data, Settings(**{**common, **base}), replicates=2, per_replicate=per_replicate)
    alone = fit(network, data, Settings(**{**common, **own}), replicates=[1])
    assert distance(parameters(together, 1), parameters(alone, 0)) <= 1e-10
    assert distance(parameters(together, 0), parameters(together, 1)) > 1e-2


# --- what comes back, and what stays as it was --------------------------------------------------------


@pytest.mark.parametrize("replicates", [1, 3])
def test_the_template_and_the_generator_stay_as_they_were(replicates):
    network = make_network("converted", "flow")
    before, state = {n: t.clone() for n, t in network.state_dict().items()}, torch.get_rng_state()
    network.eval()
    fit(network, make_data("converted"), SHORT, replicates=replicates)
    assert same(dict(network.state_dict()), before)
    assert all(p.grad is None for p in network.parameters())
    assert not network.training
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("replicates", [1, 3])
def test_same_seed_same_result(replicates):
    """Whatever torch's generator and the template's values are."""
    data = make_data()
    first = fit(make_network(family="flow"), data, SHORT, replicates=replicates)
    torch.rand(7)
    again = fit(make_network(family="flow"), data, SHORT, replicates=replicates)
    assert same(parameters(first), parameters(again))
    assert [e.loss for e in first.history] == [e.loss for e in again.history]
    other = fit(make_network(family="flow"), data, SHORT, replicates=replicates, seed=77)
    assert not same(parameters(first), parameters(other))


def test_unstacked_networks_are_ordinary_and_separate():
    run = fit(make_network(), make_data(), SHORT, replicates=3)
    networks = run.networks
    for k, network in enumerate(networks):
        assert not network.training
        stacked = run.replicates.parameters["network.0.weights.mean"][k]
        assert torch.equal(network[0].weights.mean, stacked)
        assert network[0].weights.mean.data_ptr() != stacked.data_ptr()
    assert torch.equal(run.network[0].weights.mean, networks[0][0].weights.mean)
    with torch.no_grad():
        networks[0][0].weights.mean.zero_()
    assert run.replicates.parameters["network.0.weights.mean"][0].abs().max().item() > 0.0


def test_the_learned_noise_is_a_parameter_of_each_replicate():
    x, _ = make_data()
    y = 2.0 * x[:, 0]
    network = sparsebnn.mlp([4, 1], family="gaussian", dtype=torch.float64)
    run = fit(network, (x, y), FIFTEEN, replicates=2, likelihood="gaussian")
    noise = run.replicates.parameters["likelihood.raw_std"]
    assert noise.shape == (2, 1)
    assert float((noise[0] - noise[1]).abs()) > 0.0
    assert isinstance(run.likelihood, Gaussian)
    assert torch.equal(run.likelihood.raw_std, noise[0])


def test_stacked_recurrent_layers_leave_cudnn_out_on_cuda():
    """cuDNN reads addresses of weights, which a stack under vmap does not have; elsewhere nothing changes."""
    before = torch.backends.cudnn.enabled
    for recurrent, cuda in ((True, True), (True, False), (False, True)):
        with cudnn_left_out(recurrent, cuda):
            assert torch.backends.cudnn.enabled == (before and not (recurrent and cuda))
        assert torch.backends.cudnn.enabled == before
