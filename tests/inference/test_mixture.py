"""A mixture of replicates: its bound and weights against enumeration, its predictions against its parts."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

import sparsebnn
from sparsebnn import likelihoods, selection
from sparsebnn.checks import InvalidInput
from sparsebnn.inference import mixture, predict
from sparsebnn.inference.mixture import Probe, _estimates, mixture_weights, prepared
from sparsebnn.init import Initial, Normal, Uniform

ONE = likelihoods.Gaussian(noise="fixed", std=1.0)
WIDE = Initial(mean=Normal(0.0, 0.7), raw_std=Uniform(-2.0, 0.0), inclusion_logit=Uniform(-2.0, 2.0))


def layers(count, inputs=2, **options):
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        made.append(sparsebnn.Linear(inputs, 1, initial=WIDE, dtype=torch.float64, **options))
    return made


def rows(n=12, inputs=2):
    torch.manual_seed(99)
    x = torch.randn(n, inputs, dtype=torch.float64)
    return x, x[:, 0] + 0.5 * torch.randn(n, dtype=torch.float64)


@torch.no_grad()
@pytest.mark.parametrize("group_by", ["weight", "input"])
def test_densities_of_weights_and_structures(group_by):
    layer = sparsebnn.Linear(3, 2, family_options={"group_by": group_by}, dtype=torch.float64)
    family = layer.weights
    weight = torch.tensor([[0.3, 0.0, -0.2], [0.1, 0.0, 0.4]], dtype=torch.float64)
    inclusion = torch.sigmoid(family.inclusion_logit)
    there = weight[: len(inclusion)].ne(0).double()
    structure = torch.distributions.Bernoulli(inclusion).log_prob(there).sum()
    slab = torch.distributions.Normal(family.mean, family.std).log_prob(weight)[weight != 0].sum()
    assert torch.allclose(family.log_density(weight), structure + slab)


@torch.no_grad()
def test_bound_against_the_sum_over_structures():
    # Two inputs, no bias: E_q over four structures of each component, by many draws within each.
    networks, (x, y) = layers(2, bias=False), rows()
    probes = [Probe(network, ONE) for network in networks]
    data = prepared((x, y), probes[0])
    log_lik, kl, log_density = _estimates(probes, *data, 8000, 0)
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    prior = networks[0].weights.prior
    generator = torch.Generator().manual_seed(5)
    expected = 0.0
    for k, gamma in itertools.product(range(2), itertools.product((0.0, 1.0), repeat=2)):
        family, mask = networks[k].weights, torch.tensor(gamma, dtype=torch.float64)
        white = torch.randn(8000, 2, generator=generator, dtype=torch.float64)
        w = (family.mean + family.std * white) * mask
        joint = torch.distributions.Normal(w @ x.T, 1.0).log_prob(y).sum(-1)
        inside = torch.distributions.Normal(0.0, prior.std.double()).log_prob(w) + prior.inclusion_prob.log()
        joint += (mask * inside + (1 - mask) * (1 - prior.inclusion_prob).log()).sum(-1)
        q = torch.stack([torch.vmap(n.weights.log_density)(w.unsqueeze(1)) for n in networks])
        log_q = torch.logsumexp(q + weights.log().unsqueeze(1), 0)
        prob = torch.where(mask > 0, family.inclusion_prob(), 1 - family.inclusion_prob()).prod()
        expected += weights[k] * prob * (joint.mean() - log_q.mean())
    ratios = log_density - torch.diagonal(log_density, dim1=0, dim2=2).T.unsqueeze(-1)
    each = (log_lik - kl) - torch.logsumexp(weights.log() + ratios, -1)
    error = float((each.std(1) / math.sqrt(8000)).max())
    assert float((weights * each.mean(1)).sum()) == pytest.approx(float(expected), abs=6 * error + 0.02)


def test_weights_of_a_grid_search():
    networks, (x, y) = layers(2), rows()
    probes = [Probe(network, ONE) for network in networks]
    log_lik, kl, log_density = _estimates(probes, *prepared((x, y), probes[0]), 400, 0)
    bounds = (log_lik - kl).mean(1)
    bounds[1] = bounds[0] + 0.3  # close enough for both to matter
    found, value = mixture_weights(bounds, log_density)
    ratios = log_density - torch.diagonal(log_density, dim1=0, dim2=2).T.unsqueeze(-1)
    best = -math.inf
    for first in torch.linspace(0.001, 0.999, 999, dtype=torch.float64).tolist():
        w = torch.tensor([first, 1 - first], dtype=torch.float64)
        best = max(best, float((w * (bounds - torch.logsumexp(w.log() + ratios, -1).mean(1))).sum()))
    assert value == pytest.approx(best, abs=1e-3)
    assert 0.05 < float(found[0]) < 0.95


def test_copies_share_the_weight_of_one():
    networks, data = layers(2), rows()
    alone = mixture(networks, data, ONE, n_draws=2000)
    again = mixture([networks[0], networks[1], networks[1]], data, ONE, n_draws=2000)
    assert float(again.weights[0]) == pytest.approx(float(alone.weights[0]), abs=0.1)
    assert again.bound == pytest.approx(alone.bound, abs=0.3)
    assert alone.bound >= float(alone.bounds.max()) - 1e-9
    assert 1.0 <= alone.effective_modes <= 2.0


def test_predictions_are_those_of_the_components_weighted():
    networks, data = layers(3), rows()
    found = mixture(networks, data, ONE, n_draws=50)
    flat = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    whole = replace(found, weights=flat)
    got = whole.predict(data[0], 200)
    parts = [predict(network, data[0], ONE, 200) for network in networks]
    mean = sum(float(w) * p.mean for w, p in zip(flat, parts))
    second = sum(float(w) * (p.std**2 + p.mean**2) for w, p in zip(flat, parts))
    assert torch.allclose(got.mean, mean)
    assert torch.allclose(got.std, (second - mean**2).sqrt())
    assert torch.allclose(got.samples.mean(0), mean, atol=0.5)
    assert "effective number of modes" in found.table()


@pytest.mark.parametrize("family", ["flow", "lbbnn", "gaussian"])
def test_any_family_and_any_depth(family):
    x, y = torch.randn(30, 4), torch.randint(0, 3, (30,))
    options = {"hidden": (8, 8)} if family == "flow" else {}
    network = sparsebnn.mlp([4, 5, 3], family=family, family_options=options)
    settings = sparsebnn.Settings(epochs=2, temperature=1.0)
    run = sparsebnn.train(network, (x, y), replicates=3, settings=settings, progress=False)
    found = mixture(run, (x, y), n_draws=10)
    assert float(found.weights.sum()) == pytest.approx(1.0)
    assert found.predict(x).probs.sum(-1).allclose(torch.ones(30))
    each = torch.stack([selection.input_inclusion(one) for one in run.networks])
    assert selection.input_inclusion(found).allclose(found.weights @ each)


def test_bad_input_is_named():
    networks, data = layers(2), rows()
    with pytest.raises(InvalidInput, match="replicates"):
        mixture(networks[:1], data, ONE)
    with pytest.raises(InvalidInput, match="likelihood"):
        mixture(networks, data)
    with pytest.raises(InvalidInput, match="data"):
        mixture(networks, data[0], ONE)
