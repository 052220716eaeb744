"""Where training starts: seeds draw Bayesian layers only; nothing that was given is lost."""

import logging

import pytest
import torch
from torch import nn

import sparsebnn
from sparsebnn import Linear, Settings, mlp, train
from sparsebnn.checks import InvalidInput

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3
STILL = Settings(epochs=1, batch_size=40, learning_rate=0.0)


def states_equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values()))


class Standardized(nn.Module):
    """A trained backbone behind fixed statistics, and a Bayesian head."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, affine=False).eval()
        self.norm.running_mean.copy_(torch.arange(4.0))
        self.norm.running_var.fill_(4.0)
        self.backbone = nn.Linear(4, 8)
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.head = Linear(8, 3)

    def reset_parameters(self):
        nn.init.zeros_(self.scale)

    def forward(self, x):
        return self.head(torch.relu(self.scale * self.backbone(self.norm(x))))


@pytest.mark.parametrize("start", ["seed", "given"])
@pytest.mark.parametrize("replicates", [1, 2])
def test_ordinary_modules_start_from_the_values_they_have(start, replicates):
    """Weights of a backbone, statistics of a norm, bare parameters and buffers are those of the template."""
    network = Standardized()
    run = train(network, (X, Y), settings=STILL, replicates=replicates, start=start, progress=False)
    for trained in run.networks:
        assert torch.equal(trained.backbone.weight, network.backbone.weight)
        assert torch.equal(trained.scale, network.scale)
        assert torch.equal(trained.norm.running_mean, torch.arange(4.0))
        assert torch.equal(trained.norm.running_var, torch.full((4,), 4.0))
        same = torch.equal(trained.head.weights.mean, network.head.weights.mean)
        assert same == (start == "given")


def test_a_given_start_continues():
    """Zero learning rate from given values: the same networks; from the seed: another."""
    run = train(mlp([4, 6, 3]), (X, Y), settings=Settings(epochs=2), replicates=2, seed=5, progress=False)
    again = train(run.network, (X, Y), settings=STILL, replicates=2, start=run.networks, progress=False)
    for one, other in zip(run.networks, again.networks):
        assert states_equal(one, other)
    given, anew = (
        train(run.network, (X, Y), settings=STILL, start=start, progress=False).network
        for start in ("given", "seed")
    )
    assert states_equal(run.network, given)
    assert not torch.equal(anew[0].weights.mean, run.network[0].weights.mean)


def test_values_that_a_seed_replaces_are_announced(caplog):
    """Trained, loaded or set by hand: whoever would lose them is told; a fresh network is silent."""
    network = mlp([4, 6, 3])
    with caplog.at_level(logging.WARNING, logger="sparsebnn"):
        train(network, (X, Y), settings=STILL, progress=False)
        train(network.double().float(), (X, Y), settings=STILL, progress=False)
    assert not caplog.records
    with torch.no_grad():
        network[2].weights.inclusion_logit[0, 0] = 7.0
    with caplog.at_level(logging.WARNING, logger="sparsebnn"):
        train(network, (X, Y), settings=STILL, progress=False)
    assert "start='given'" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="sparsebnn"):
        train(network, (X, Y), settings=STILL, start="given", progress=False)
    assert not caplog.records


def test_frozen_parameters_of_a_bayesian_layer_keep_their_values():
    network = mlp([4, 6, 3])
    network[0].weights.inclusion_logit.requires_grad_(False).fill_(1.25)
    run = train(network, (X, Y), settings=Settings(epochs=1), replicates=2, progress=False)
    for trained in run.networks:
        assert bool((trained[0].weights.inclusion_logit == 1.25).all())
        assert not torch.equal(trained[0].weights.mean, network[0].weights.mean)


@pytest.mark.parametrize("start", ["warm", 3, [mlp([4, 6, 3])], [mlp([4, 6, 3]), mlp([4, 5, 3])], ["a", "b"]])
def test_a_start_that_cannot_be(start):
    with pytest.raises(InvalidInput, match="'start' of train"):
        train(mlp([4, 6, 3]), (X, Y), settings=STILL, replicates=2, start=start)


def test_the_network_of_a_run_is_one_object():
    """Edits and .to() stay; while training runs, what callbacks see are copies of the moment."""
    seen = []

    class Watch(sparsebnn.training.Callback):
        def on_epoch_end(self, run, epoch):
            seen.append(run.network)

    run = train(
        mlp([4, 6, 3]), (X, Y), settings=Settings(epochs=2), replicates=2, callbacks=[Watch()], progress=False
    )
    assert run.network is run.network is run.networks[0]
    assert run.networks[1] is run.networks[1]
    assert run.likelihood is run.likelihoods[0]
    run.network.to(torch.float64)
    assert run.network[0].weights.mean.dtype == torch.float64
    assert seen[0] is not seen[1]
    assert not torch.equal(seen[0][0].weights.mean, seen[1][0].weights.mean)


# --- layers and distributions that are shared --------------------------------------------------------


def tied():
    network = nn.Sequential(Linear(4, 4), nn.Tanh(), Linear(4, 4), nn.Tanh(), Linear(4, 3)).double()
    network[2].weights = network[0].weights
    return network


@pytest.mark.parametrize("replicates", [1, 2])
def test_a_tied_distribution_has_one_kl(replicates):
    """The KL of the run is that of three tensors of weights less the one counted once."""
    network = tied()
    _, kl = sparsebnn.forward_with_kl(network, X.double())
    each = [network[i].forward_with_kl(X.double())[1] for i in (0, 2, 4)]
    shared = network[0].weights.closed_form_kl()
    assert float(kl.detach()) == pytest.approx(float((sum(each) - shared).detach()), rel=1e-12)
    run = train(
        network, (X.double(), Y), settings=STILL, replicates=replicates, start="given", progress=False
    )
    assert run.history[0].kl[0] == pytest.approx(float(kl.detach()), rel=1e-10)
    assert run.network[2].weights is run.network[0].weights


def test_density_counts_a_tied_distribution_once():
    network = tied()
    with torch.no_grad():
        network[0].weights.inclusion_logit.fill_(-1.0)
        network[4].weights.inclusion_logit.fill_(1.0)
    assert sparsebnn.density(network).overall == pytest.approx(12 / 28)
    run = train(network, (X.double(), Y), settings=STILL, start="given", progress=False)
    assert run.history[0].density[0] == pytest.approx(12 / 28)


class Square(nn.Module):
    """W(Wx), with W of one entry."""

    def __init__(self, family, sampling="local"):
        super().__init__()
        self.layer = Linear(1, 1, bias=False, family=family, sampling=sampling, dtype=torch.float64)

    def forward(self, x):
        return self.layer(self.layer(x))


@pytest.mark.parametrize("family", ["gaussian", "spike_slab"])
def test_a_layer_used_twice_keeps_its_weights_in_training(family):
    """E W(Wx) is E W² for x = 1, and not (E W)²: 1 for a standard normal weight."""
    network = Square(family)
    family = network.layer.weights
    with torch.no_grad():
        family.mean.fill_(0.0 if family.name == "gaussian" else 2.0)
        family.raw_std.fill_(0.5413248546129181)  # std 1
        if family.name != "gaussian":
            family.inclusion_logit.fill_(0.0)
    second = 1.0 if family.name == "gaussian" else 0.5 * (1.0 + 4.0)
    x = torch.ones(1, 1, dtype=torch.float64)
    with torch.no_grad():
        drawn = torch.stack([sparsebnn.forward_with_kl(network, x)[0] for _ in range(4000)])
    error = float(drawn.std()) / 4000**0.5
    assert abs(float(drawn.mean()) - second) < 4 * error
    ours = sparsebnn.predict(network, x, sparsebnn.likelihoods.Gaussian().double(), 8000)
    assert float(ours.mean) == pytest.approx(second, abs=5 * error)


@pytest.mark.parametrize(("sampling", "wanted"), [("local", 0.1), ("weights", 1.0)])
def test_positions_share_weights_if_asked(sampling, wanted):
    """The mean over 100 positions of a weight N(0, 1): the documented difference between the two."""

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Linear(1, 1, bias=False, family="gaussian", sampling=sampling, dtype=torch.float64)
            with torch.no_grad():
                self.layer.weights.mean.zero_()
                self.layer.weights.raw_std.fill_(0.5413248546129181)

        def forward(self, x):
            return self.layer(x).mean(1)

    network, x = Mean(), torch.ones(1, 100, 1, dtype=torch.float64)
    with torch.no_grad():
        drawn = torch.stack([sparsebnn.forward_with_kl(network, x)[0] for _ in range(1500)])
    assert float(drawn.std()) == pytest.approx(wanted, rel=0.08)
    ours = sparsebnn.predict(network, x, sparsebnn.likelihoods.Gaussian().double(), 4000)
    assert float(ours.epistemic_std) == pytest.approx(wanted, rel=0.05)
    whole = sparsebnn.predict(network, x, sparsebnn.likelihoods.Gaussian().double(), 4000, draws="weights")
    assert float(whole.epistemic_std) == pytest.approx(1.0, rel=0.05)


def test_a_pass_that_cannot_know_refuses():
    """collect_kl cannot run the module again; it says what does."""
    network = Square("spike_slab")
    with pytest.raises(RuntimeError, match="forward_with_kl"), sparsebnn.nn.collect_kl():
        network(torch.ones(1, 1, dtype=torch.float64))
    Square("spike_slab", sampling="weights")(torch.ones(1, 1, dtype=torch.float64))


@pytest.mark.parametrize("mode", ["auto", "eager"])
def test_training_leaves_torchs_generator_as_it_was(mode):
    network, before = mlp([4, 5, 3]), torch.get_rng_state()
    run = train(network, (X, Y), settings=STILL, replicates=2, mode=mode, progress=False)
    sparsebnn.predict(run.network, X, run.likelihood, n_draws=2)
    assert torch.equal(torch.get_rng_state(), before)
