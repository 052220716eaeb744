"""replicates.py: replicate k alone is replicate k among five; hyperparameters along the replicate axis."""

import functools

import pytest
import torch

import sparsebnn
from sparsebnn.likelihoods import Gaussian
from sparsebnn.posteriors.priors import SpikeSlabPrior
from training.runs import (
    EXAMPLES,
    FAMILIES,
    FIFTY,
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


CASES = [(kind, family, torch.float64) for kind in EXAMPLES for family in FAMILIES]
CASES += [("mlp", family, torch.float32) for family in FAMILIES if family != "flow"]
CASES += [("conv", "spike_slab", torch.float32), ("converted", "concrete", torch.float32)]


@pytest.mark.parametrize(("kind", "family", "dtype"), CASES)
def test_alone_as_among_five(kind, family, dtype):
    """Parameters and history after 51 steps."""
    together = five(kind, family, dtype)
    alone = fit(make_network(kind, family, dtype), make_data(kind), replicates=[SEEDS[2]])
    assert distance(parameters(together, 2), parameters(alone, 0)) <= TOLERANCE[dtype]
    for ours, other in zip(together.history, alone.history):
        assert ours.loss[2] == pytest.approx(other.loss[0], rel=10 * TOLERANCE[dtype])
        assert ours.density[2] == other.density[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "family"),
    [(kind, family) for kind in EXAMPLES for family in FAMILIES],
)
def test_alone_as_among_five_in_single_precision(kind, family):
    test_alone_as_among_five(kind, family, torch.float32)


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
    """The same seed in another place among others."""
    network, data = make_network(), make_data()
    first = fit(network, data, SHORT, replicates=[3, 1, 4])
    other = fit(network, data, SHORT, replicates=[20, 4, 21, 22])
    assert distance(parameters(first, 2), parameters(other, 1)) <= 1e-12


def test_seeds_by_number():
    """replicates=3, seed=5 are the seeds 5, 6, 7."""
    network, data = make_network(), make_data()
    counted = fit(network, data, SHORT, replicates=3, seed=5)
    assert counted.seeds == [5, 6, 7]
    assert same(parameters(counted), parameters(fit(network, data, SHORT, replicates=[5, 6, 7])))


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


@pytest.mark.parametrize("values", [[0.1, 1.0, 3.0]])
def test_vary_the_temperature(values):
    data, network = make_data(), make_network()
    together = fit(network, data, replicates=3, per_replicate={"temperature": values})
    for k, value in enumerate(values):
        settings = Settings(epochs=17, batch_size=8, learning_rate=1e-2, temperature=value)
        alone = fit(network, data, settings, replicates=[k])
        assert distance(parameters(together, k), parameters(alone, 0)) <= 1e-10


def test_vary_learning_rates():
    data, network = make_data(), make_network()
    per_replicate = {"learning_rate": [1e-3, 1e-2, 5e-2], "learning_rates.inclusion_logit": [0.1, 0.0, 0.3]}
    settings = Settings(17, 8, 1e-2, {"inclusion_logit": 0.2})
    together = fit(network, data, settings, replicates=3, per_replicate=per_replicate)
    for k, (rate, of_logits) in enumerate(zip(*per_replicate.values())):
        own = Settings(17, 8, rate, {"inclusion_logit": of_logits})
        alone = fit(network, data, own, replicates=[k])
        assert distance(parameters(together, k), parameters(alone, 0)) <= 1e-10


def test_vary_the_rate_of_a_group_that_has_only_a_schedule_of_its_own():
    """Such a group has the general learning rate, so it varies with it."""
    data, network = make_data(), make_network()
    settings = Settings(3, 8, 1e-2, schedules={"inclusion_logit": "constant"})
    together = fit(network, data, settings, replicates=2, per_replicate={"learning_rate": [1e-3, 5e-2]})
    own = Settings(3, 8, 5e-2, schedules={"inclusion_logit": "constant"})
    alone = fit(network, data, own, replicates=[1])
    assert distance(parameters(together, 1), parameters(alone, 0)) <= 1e-10


def test_vary_what_the_settings_put_at_zero():
    """A base of 0 is no obstacle."""
    data, network = make_data(), make_network()
    settings = Settings(epochs=3, batch_size=8, learning_rate=0.0, temperature=0.0)
    per_replicate = {"learning_rate": [1e-3, 1e-2], "temperature": [0.5, 1.0]}
    together = fit(network, data, settings, replicates=2, per_replicate=per_replicate)
    alone = fit(network, data, SHORT, replicates=[1])
    assert distance(parameters(together, 1), parameters(alone, 0)) <= 1e-10


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


def test_what_needs_no_gradient_stays():
    network = make_network()
    network[2].weights.mean.requires_grad_(False)
    alone = fit(network, make_data(), SHORT, replicates=[1])
    together = fit(network, make_data(), SHORT, replicates=3)
    name = "network.2.weights.mean"
    assert torch.equal(alone.replicates.parameters[name][0], network[2].weights.mean)
    assert distance(parameters(together, 1), parameters(alone, 0)) <= 1e-10


def test_the_learned_noise_is_a_parameter_of_each_replicate():
    x, _ = make_data()
    y = 2.0 * x[:, 0]
    network = sparsebnn.mlp([4, 1], family="gaussian", dtype=torch.float64)
    run = fit(network, (x, y), FIFTY, replicates=2, likelihood="gaussian")
    noise = run.replicates.parameters["likelihood.raw_std"]
    assert noise.shape == (2, 1)
    assert float((noise[0] - noise[1]).abs()) > 0.0
    assert isinstance(run.likelihood, Gaussian)
    assert torch.equal(run.likelihood.raw_std, noise[0])
