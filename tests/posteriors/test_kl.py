"""kl.py: the closed forms against torch.distributions, and where naive formulas break."""

import pytest
import torch
from torch.distributions import Bernoulli, Normal, kl_divergence

from contracts.members import generator, uniform
from sparsebnn.posteriors.priors import bernoulli_kl, gaussian_kl, gaussian_log_prob, spike_slab_kl

N = 200


def values(low, high, seed):
    return uniform((N,), low, high, generator(seed))


def test_gaussian_log_prob():
    """Log density of a Gaussian given its log variance; oracle: torch.distributions."""
    x, mean, log_var = values(-3, 3, 0), values(-2, 2, 1), values(-4, 3, 2)
    oracle = Normal(mean, torch.exp(0.5 * log_var)).log_prob(x)
    assert float((gaussian_log_prob(x, mean, log_var) - oracle).abs().max()) < 1e-10


def test_gaussian_kl():
    """KL of two Gaussians; oracle: torch.distributions."""
    mean, std, prior_mean, prior_std = (
        values(*a) for a in ((-2, 2, 0), (0.01, 3, 1), (-2, 2, 2), (0.1, 3, 3))
    )
    oracle = kl_divergence(Normal(mean, std), Normal(prior_mean, prior_std))
    assert float((gaussian_kl(std, (mean - prior_mean) ** 2, prior_std) - oracle).abs().max()) < 1e-10


def test_bernoulli_kl():
    """KL of two Bernoullis; oracle: torch.distributions."""
    logit, prior_logit = values(-6, 6, 0), values(-4, 4, 1)
    oracle = kl_divergence(Bernoulli(logits=logit), Bernoulli(logits=prior_logit))
    ours = bernoulli_kl(logit, torch.sigmoid(logit), prior_logit)
    assert float((ours - oracle).abs().max()) < 1e-10


def test_spike_slab_kl():
    """α·KL(slabs) + KL(Bernoullis), each from torch.distributions."""
    logit, prior_logit, mean, std = values(-5, 5, 0), values(-4, 4, 1), values(-2, 2, 2), values(0.1, 2, 3)
    slab = kl_divergence(Normal(mean, std), Normal(0.3, 0.8))
    alpha = torch.sigmoid(logit)
    oracle = alpha * slab + kl_divergence(Bernoulli(logits=logit), Bernoulli(logits=prior_logit))
    ours = spike_slab_kl(gaussian_kl(std, (mean - 0.3) ** 2, torch.tensor(0.8)), logit, alpha, prior_logit)
    # The scalar prior is a float32 tensor: 0.8 itself is rounded there.
    assert float((ours - oracle).abs().max()) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kl_at_the_edges(dtype):
    """Limits: α → 0 gives −log(1−α₀), α → 1 gives −log α₀; zero distance gives 0."""
    prior = torch.tensor(0.1, dtype=dtype)
    logit = torch.tensor([-200.0, 200.0], dtype=dtype)
    ours = bernoulli_kl(logit, torch.sigmoid(logit), torch.logit(prior))
    oracle = torch.stack([-torch.log1p(-prior), -torch.log(prior)])
    assert torch.allclose(ours, oracle, rtol=0, atol=2e-5 if dtype is torch.float32 else 1e-10)
    one = torch.ones((), dtype=dtype)
    assert float(gaussian_kl(0.3 * one, 0.0 * one, 0.3 * one).abs()) < 1e-6
    assert bool(gaussian_kl(0.0 * one, one, one).isfinite())
