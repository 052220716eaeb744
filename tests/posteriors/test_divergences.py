"""priors.py: the closed forms of divergences where naive formulas break; contracts have their values."""

import pytest
import torch

from sparsebnn.posteriors.priors import bernoulli_kl, gaussian_kl


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
