"""Inclusions that a group of weights shares: laws by enumeration of all structures, and smaller networks."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Bernoulli, Normal, kl_divergence

import sparsebnn
from contracts.members import generator, over_tapes, randomise, uniform
from contracts.oracles import SIGMAS
from sparsebnn.checks import InvalidInput
from sparsebnn.nn.compaction import compact
from sparsebnn.nn.networks import bayesian_layers
from sparsebnn.posteriors.learned_priors import HierarchicalPrior
from sparsebnn.posteriors.priors import SpikeSlabPrior

CASES = {
    "dense input": (lambda **kw: sparsebnn.Linear(4, 3, **kw), "input", (1, 4), (4,)),
    "dense output": (lambda **kw: sparsebnn.Linear(4, 3, **kw), "output", (3, 1), (4,)),
    "filter": (lambda **kw: sparsebnn.nn.Conv2d(2, 3, 2, padding=1, **kw), "output", (3, 1, 1, 1), (2, 4, 3)),
    "filter 1d": (lambda **kw: sparsebnn.nn.Conv1d(2, 3, 2, **kw), "output", (3, 1, 1), (2, 5)),
}


def make(case, seed=0, family="spike_slab", **options):
    build, share, groups, _ = CASES[case]
    g = generator(seed)
    shape = build(family="gaussian").weights.shape
    prior = SpikeSlabPrior(
        uniform(groups, 0.1, 0.9, g), mean=uniform(shape, -1, 1, g), std=uniform(shape, 0.5, 2, g)
    )
    options = {"group_by": share, **options}
    return randomise(build(family=family, prior=prior, family_options=options, dtype=torch.float64), seed)


def structures(family):
    """Every way groups can be there or not, in the weights' shape, with its probability."""
    alpha = torch.sigmoid(family.inclusion_logit).flatten()
    for present in itertools.product((0.0, 1.0), repeat=len(alpha)):
        gamma = torch.tensor(present, dtype=torch.float64)
        mass = torch.where(gamma > 0, alpha, 1 - alpha).prod()
        yield gamma.reshape(family.group_shape).expand(family.shape), gamma, float(mass)


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_kl_is_the_sum_over_structures(case):
    """E[log q(γ) − log p(γ)] plus the slabs of the groups that are there; each group counts once."""
    for seed in range(5):
        family = make(case, seed).weights
        prior, std = family.prior, F.softplus(family.raw_std)
        slab = kl_divergence(Normal(family.mean, std), Normal(prior.mean, prior.std).expand(family.shape))
        q = Bernoulli(torch.sigmoid(family.inclusion_logit).flatten())
        p = Bernoulli(prior.inclusion_prob.expand(family.group_shape).flatten())
        expected = sum(
            mass * float((gamma * slab).sum() + (q.log_prob(present) - p.log_prob(present)).sum())
            for gamma, present, mass in structures(family)
        )
        assert abs(float(family.closed_form_kl()) - expected) < 1e-10 * abs(expected)


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_output_moments_are_those_of_all_structures(case):
    """The mean of conditional variances plus the variance of conditional means, for every output."""
    for seed in range(5):
        layer = make(case, seed)
        family, biases = layer.weights, layer.biases
        x = torch.randn(3, *CASES[case][3], generator=generator(seed), dtype=torch.float64)
        var = F.softplus(family.raw_std) ** 2
        means, variances, masses = [], [], []
        for gamma, _, mass in structures(family):
            means.append(layer.op(x, gamma * family.mean, None))
            variances.append(layer.op(x**2, gamma * var, None))
            masses.append(mass)
        weight = torch.tensor(masses, dtype=torch.float64).reshape(-1, *[1] * means[0].dim())
        first = (weight * torch.stack(means)).sum(0)
        second = (weight * (torch.stack(variances) + (torch.stack(means) - first) ** 2)).sum(0)
        bias = biases.moments()
        mean, variance = layer.output_moments(x, family.moments(), bias.mean, bias.var)
        shape = (-1,) if isinstance(layer, sparsebnn.Linear) else (-1, *[1] * (x.dim() - 2))
        assert float((mean - first - bias.mean.reshape(shape)).abs().max()) < 1e-10
        assert float((variance - second - bias.var.reshape(shape)).abs().max()) < 1e-10


@pytest.mark.parametrize("family", ["spike_slab", "concrete"])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_drawn_groups_are_there_or_not_together(case, family):
    """And as often as their probability says; drawn outputs have the moments."""
    options = {"relaxation": 1e-9} if family == "concrete" else {}
    layer = make(case, 1, family, **options)
    draws, size = 4000, layer.weights.shape
    sizes = (layer.weights.mean.numel(), layer.weights.inclusion_logit.numel())
    there = over_tapes(layer.weights.draw, sizes, draws, 5) != 0
    axis = 1 if CASES[case][1] == "output" else 2
    together = there.movedim(axis, 1).flatten(2)
    assert bool((together.all(-1) | ~together.any(-1)).all())
    share = together.any(-1).double().mean(0)
    alpha = torch.sigmoid(layer.weights.inclusion_logit).flatten()
    assert float(((share - alpha).abs() / (alpha * (1 - alpha) / draws).sqrt()).max()) < SIGMAS
    assert there.shape[1:] == size


def test_a_flow_over_shared_inputs():
    """KL at a fixed z is that of the means times z; the network trains as replicates."""
    layer = sparsebnn.Linear(
        4, 3, family="flow", family_options={"hidden": (5,), "group_by": "input"}, dtype=torch.float64
    )
    randomise(layer, 3)
    family = layer.weights
    assert family.conditional.inclusion_logit.shape == (1, 4)
    z = torch.linspace(0.5, 2.0, 4, dtype=torch.float64)
    plain = sparsebnn.Linear(4, 3, family_options={"group_by": "input"}, dtype=torch.float64).weights
    with torch.no_grad():
        plain.mean.copy_(family.conditional.mean * z)
        plain.raw_std.copy_(family.conditional.raw_std)
        plain.inclusion_logit.copy_(family.conditional.inclusion_logit)
    ours = family.conditional.closed_form_kl(family.scale(z))
    assert abs(float((ours - plain.closed_form_kl()).detach())) < 1e-10
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.randint(3, (20,))
    run = sparsebnn.train(
        layer, (x, y), settings=sparsebnn.Settings(epochs=2, batch_size=10), replicates=2, progress=False
    )
    assert all(loss == loss for loss in run.history[-1].loss)


@pytest.mark.parametrize("mode", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
def test_neurons_go_for_real(mode):
    """A target density over neurons, and the compacted network has just those that are left."""
    torch.manual_seed(0)
    x = torch.randn(60, 5)
    y = (x[:, 0] > 0).long()
    options = {"family_options": {"group_by": "output"}}
    network = torch.nn.Sequential(
        sparsebnn.Linear(5, 16, **options), torch.nn.ReLU(), sparsebnn.Linear(16, 2, family="gaussian")
    )
    settings = sparsebnn.Settings(
        epochs=20,
        batch_size=20,
        learning_rate=1e-2,
        learning_rates={"inclusion_logit": 0.1},
        target_density=0.25,
        refit=0.3,
    )
    run = sparsebnn.train(network, (x, y), settings=settings, replicates=2, mode=mode, progress=False)
    for trained in run.networks:
        first, _ = (layer for _, layer in bayesian_layers(trained))
        kept = int((first.weights.inclusion_logit > 0).sum())
        assert kept == 4
        small = compact(trained)
        assert small.units[0] == (16, 4)
        assert small.weights == (5 * 16 + 16 * 2, 5 * 4 + 4 * 2)
    # The history has the whole network's density; the second layer's weights are always there.
    whole = (5 * 4 + 16 * 2) / (5 * 16 + 16 * 2)
    assert run.history[-1].density == pytest.approx([whole, whole])
    assert sparsebnn.density(run.network).overall == pytest.approx(whole)


def test_layers_of_different_groups_count_by_their_weights():
    """Density is a share of weights, whatever an inclusion stands for."""
    network = torch.nn.Sequential(
        sparsebnn.Linear(5, 8, family_options={"group_by": "output"}),
        torch.nn.ReLU(),
        sparsebnn.Linear(8, 3),
    )
    x, y = torch.randn(20, 5), torch.randint(3, (20,))
    settings = sparsebnn.Settings(epochs=10, batch_size=10, target_density=0.5, refit=0.2)
    run = sparsebnn.train(network, (x, y), settings=settings, progress=False)
    told = sparsebnn.density(run.network).overall
    assert run.history[-1].density[0] == pytest.approx(told)
    assert abs(told - 0.5) <= 0.5 * 5 / (5 * 8 + 8 * 3)


def test_messages():
    for kind, size, options, named in (
        (sparsebnn.nn.Conv2d, (1, 2, 3), {}, "'group_by' of the 'spike_slab' family"),
        (sparsebnn.Linear, (2, 3), {"prior": SpikeSlabPrior([[0.1]] * 3)}, "'inclusion_prob' of SpikeSlab"),
        (sparsebnn.Linear, (2, 3), {"family": "concrete", "prior": HierarchicalPrior()}, "'group_by' of the"),
    ):
        with pytest.raises(InvalidInput, match=f"The {named}"):
            kind(*size, family_options={"group_by": "input"}, **options)
