"""data/clusters.py: valid covariances, what NumPy's legacy sampler draws from, true probabilities."""

import numpy as np
import pytest
import torch
from scipy import stats

from studies.data.clusters import five_clusters

PUBLISHED = {
    1: [[0.0, 3.0], [3.0, 0.0]],
    2: [[-3.0, 4.0], [-5.0, 1.0]],
    3: [[0.0, 5.0], [4.0, 2.0]],
    4: [[0.0, 9.0], [9.0, 0.0]],
}


def test_covariances_are_covariances():
    found = five_clusters().covariances
    np.testing.assert_allclose(found[0], [[6.0, -1.0], [-1.0, 3.5]])
    np.testing.assert_allclose(found[1], 3.0 * np.eye(2), atol=1e-12)
    np.testing.assert_allclose(found[2], [[5.53, -1.84], [-1.84, 3.69]], atol=0.005)
    np.testing.assert_allclose(found[4], 9.0 * np.eye(2), atol=1e-12)
    for matrix in found:
        np.testing.assert_allclose(matrix, matrix.mT, atol=1e-12)
        assert float(torch.linalg.eigvalsh(matrix).min()) > 0.0


@pytest.mark.parametrize("k", PUBLISHED)
def test_they_are_what_the_legacy_sampler_draws_from(k):
    """Every entry of the sample covariance within 4 standard errors."""
    rng = np.random.RandomState(k)
    drawn = rng.multivariate_normal([0.0, 0.0], PUBLISHED[k], 20000, check_valid="ignore")
    products = drawn[:, :, None] * drawn[:, None, :]
    error = products.std(0) / np.sqrt(len(drawn))
    expected = five_clusters().covariances[k].numpy()
    assert (np.abs(products.mean(0) - expected) < 4.0 * error).all()


def test_density_and_probabilities():
    clusters = five_clusters()
    x = 12.0 * torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    means, covariances = clusters.means.numpy(), clusters.covariances.numpy()
    densities = [stats.multivariate_normal(m, c).pdf(x.numpy()) for m, c in zip(means, covariances)]
    expected = np.stack(densities, axis=-1)
    np.testing.assert_allclose(clusters.log_density(x).exp(), expected, rtol=1e-10)
    np.testing.assert_allclose(clusters.probs(x), expected / expected.sum(-1, keepdims=True), rtol=1e-10)


def test_samples_have_the_moments_and_the_seed_decides():
    clusters = five_clusters()
    x, y = clusters.sample(20000, 1)
    for k in range(5):
        rows = x[y == k]
        apart = rows - clusters.means[k]
        assert bool((apart.mean(0).abs() < 4.0 * rows.std(0) / 20000**0.5).all())
        products = apart.unsqueeze(2) * apart.unsqueeze(1)
        error = products.std(0) / 20000**0.5
        assert bool(((products.mean(0) - clusters.covariances[k]).abs() < 4.0 * error).all())
    assert torch.equal(clusters.sample(3, 7)[0], clusters.sample(3, 7)[0])
    assert not torch.equal(clusters.sample(3, 7)[0], clusters.sample(3, 8)[0])
