"""Reweighted draws against the sum over all structures."""

import math

import numpy as np
import pytest
import torch

import sparsebnn
from sparsebnn import likelihoods
from sparsebnn.checks import InvalidInput
from sparsebnn.inference import mixture, reweighted
from sparsebnn.inference.reweighting import _prior
from sparsebnn.posteriors import GaussianPrior, SpikeSlabPrior
from sparsebnn.selection import input_inclusion, sample_inputs, select
from studies.bounds.exact_regression import Regression, exact_posterior


@pytest.fixture(scope="module")
def near_copies():
    """Four inputs, three of them correlated by 0.95; replicates of a linear layer with known noise."""
    rng = np.random.default_rng(5)
    alike = np.sqrt(0.95) * rng.standard_normal((80, 1)) + np.sqrt(0.05) * rng.standard_normal((80, 3))
    x = np.hstack([alike, rng.standard_normal((80, 1))])
    y = x[:, 0] + 0.3 * x[:, 3] + rng.standard_normal(80)
    data = torch.from_numpy(x), torch.from_numpy(y)
    network = sparsebnn.mlp([4, 1], prior=SpikeSlabPrior(0.25), bias_prior=GaussianPrior()).double()
    form = likelihoods.Gaussian(noise="fixed", std=1.0)
    settings = sparsebnn.Settings(epochs=400, batch_size=80, learning_rate=0.03)
    run = sparsebnn.train(network, data, likelihood=form, settings=settings, replicates=12, progress=False)
    truth = exact_posterior(Regression(*data, 1.0, 0.25, 1.0, 1.0))
    return mixture(run, data), data, truth


def test_inclusions_and_evidence_are_those_of_enumeration(near_copies):
    posterior, data, truth = near_copies
    found = reweighted(posterior, data, n_draws=2000)
    assert found.effective_size > 1000
    error = (input_inclusion(found) - truth.inclusion).abs()
    assert error.max() < 4 * 0.5 / math.sqrt(found.effective_size) + 0.005
    assert error.mean() < 0.3 * (input_inclusion(posterior) - truth.inclusion).abs().mean()
    assert found.log_evidence == pytest.approx(float(truth.log_evidence), abs=0.1)
    # The bound of the mixture stays below it.
    assert posterior.bound < found.log_evidence
    chosen = select(found, rule="fdr", level=0.2)
    assert torch.equal(chosen.inclusion, input_inclusion(found))
    drawn = sample_inputs(found, 4000)
    assert np.abs(drawn.mean(0) - chosen.inclusion.numpy()).max() < 1e-3
    sets = select(found, rule="credible_sets", X=data[0]).sets
    assert all(one.coverage >= 0.95 for one in sets)


def test_the_prior_component_has_the_density_of_the_prior():
    network = sparsebnn.mlp([3, 1], prior=SpikeSlabPrior(0.2, std=2.0), bias_prior=GaussianPrior(std=3.0))
    made = _prior(network.double()).requires_grad_(False)
    weight = torch.tensor([[0.5, 0.0, -1.0]], dtype=torch.float64)
    slab = torch.distributions.Normal(0.0, 2.0).log_prob(torch.tensor([0.5, -1.0]).double()).sum()
    expected = slab + 2 * math.log(0.2) + math.log(0.8)
    assert float(made[0].weights.log_density(weight)) == pytest.approx(float(expected), abs=1e-6)
    bias = torch.tensor([1.5], dtype=torch.float64)
    expected = torch.distributions.Normal(0.0, 3.0).log_prob(bias)
    assert float(made[0].biases.log_density(bias)) == pytest.approx(float(expected), abs=1e-6)


def test_networks_with_hidden_layers_and_few_effective_draws():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    data = x, torch.relu(x[:, 0])
    for skip in (False, True):
        network = sparsebnn.mlp([3, 4, 1], input_skip=skip, prior=SpikeSlabPrior(0.3))
        settings = sparsebnn.Settings(epochs=30, batch_size=60, learning_rate=0.05)
        run = sparsebnn.train(
            network, data, likelihood="gaussian", settings=settings, replicates=3, progress=False
        )
        found = reweighted(mixture(run, data, n_draws=50), data, n_draws=20)
        assert float(found.weights.sum()) == pytest.approx(1.0)
        assert input_inclusion(found).shape == (3,)
        assert found.effective_size < 100
        with pytest.raises(InvalidInput, match="effective draws"):
            select(found, rule="fdr")


@pytest.mark.parametrize(
    ("change", "named"),
    [({"widths": []}, "widths"), ({"widths": [0.5]}, "widths"), ({"n_draws": 0}, "n_draws")],
)
def test_bad_input(near_copies, change, named):
    posterior, data, _ = near_copies
    with pytest.raises(InvalidInput, match=f"'{named}'"):
        reweighted(posterior, data, **change)


def test_what_has_no_density_is_refused(near_copies):
    _, data, _ = near_copies
    with pytest.raises(InvalidInput, match="a mixture"):
        reweighted([sparsebnn.mlp([4, 1])], data)
    run = sparsebnn.train(
        sparsebnn.mlp([4, 1], family="flow"), data, likelihood="gaussian", replicates=2,
        settings=sparsebnn.Settings(epochs=1), progress=False,
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="fixed priors"):
        reweighted(mixture(run, data, n_draws=5), data)
