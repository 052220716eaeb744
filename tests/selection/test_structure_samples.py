"""Structures redrawn from exact conditional probabilities: right, consistent, and less noisy."""

import math

import numpy as np
import pytest

from sparsebnn.estimators import SpikeSlabRegression
from sparsebnn.selection import credible_sets
from sparsebnn.selection.glm_marginal import GLMEvidence
from sparsebnn.selection.marginal import LinearEvidence
from sparsebnn.selection.structure import sample_structures, size_log_prior
from sparsebnn.selection.structure_samples import StructureSamples, draw_places
from studies.selection.exact import enumerate_structures

PRIOR = size_log_prior(8, 0.25)


def one_effect_in_a_block(rows=80):
    """Columns 0–4 are alike and one of them has an effect, as column 5 has."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 8))
    x[:, :5] = math.sqrt(0.9) * x[:, :1] + math.sqrt(0.1) * rng.standard_normal((rows, 5))
    return x, 0.4 * x[:, 1] + 0.3 * x[:, 5] + rng.standard_normal(rows)


@pytest.fixture(scope="module")
def evidence():
    return LinearEvidence(*one_effect_in_a_block(), np.array([0.1]))


def exact_share(evidence, columns):
    """P(one of the columns is included), summed over all structures."""
    structures = enumerate_structures(8).astype(bool)
    value = evidence.visit(structures, np.zeros(len(structures), dtype=int))[0]
    weights = np.exp(value - value.max() + PRIOR[structures.sum(1)])
    return weights @ structures[:, columns].any(1) / weights.sum()


def test_shares_of_redrawn_structures_have_less_error(evidence):
    runs = [sample_structures(evidence, PRIOR, n_iter=100, burn_in=50, seed=seed) for seed in range(40)]
    for columns in ([1], [1, 2], [0, 1, 5]):
        truth = exact_share(evidence, columns)
        raw, redrawn = (
            np.array([made[:, columns].any(1).mean() for made in found])
            for found in ([run.gammas() for run in runs], [run.redrawn() for run in runs])
        )
        assert abs(redrawn.mean() - truth) < 4 * redrawn.std() / math.sqrt(40)
        assert np.sqrt(((redrawn - truth) ** 2).mean()) < 0.9 * np.sqrt(((raw - truth) ** 2).mean())


def test_redrawn_structures_differ_by_one_place(evidence):
    found = sample_structures(evidence, PRIOR, n_iter=60, burn_in=20)
    once, redrawn = found.gammas(), found.redrawn()
    assert redrawn.shape == (16 * len(once), 8)
    before = np.repeat(once, 16, axis=0)
    assert (redrawn.sum(1) == before.sum(1)).all()
    gone = before & ~redrawn
    assert gone.sum(1).max() == 1
    assert (gone.argmax(1) == np.repeat(found.moved.ravel(), 16))[gone.any(1)].all()
    assert np.array_equal(redrawn[-16 * found.slab.shape[1] :], before[-16 * found.slab.shape[1] :])
    columns = np.array([5, 0, 3])
    assert np.array_equal(found.redrawn(columns), redrawn[:, columns])
    assert np.array_equal(found.redrawn(most=4 * len(once)), redrawn[::4])
    assert np.array_equal(found.redrawn(most=5), once)


def test_places_follow_their_probabilities():
    """The second of two included inputs is moved; every fourth draw alone is spread evenly, too."""
    rng = np.random.default_rng(0)
    conditional = np.tile([1.0, 0.5, 0.3, 0.2], (4000, 1))
    gamma = np.tile([True, True, False, False], (4000, 1))
    places = draw_places(conditional, gamma, np.ones(4000, dtype=int), rng)
    for step in (1, 4, 16):
        shares = np.bincount(places[:, ::step].ravel(), minlength=4) / places[:, ::step].size
        np.testing.assert_allclose(shares, [0.0, 0.5, 0.3, 0.2], atol=0.03)
        drawn = (places[:, ::step] == 1).sum(1)
        assert np.abs(drawn - 0.5 * 16 / step).max() < 1


def test_conditional_probabilities_that_are_estimates_are_not_used():
    x, f = one_effect_in_a_block()
    evidence = GLMEvidence(x, (f > 0).astype(float), np.ones(1), "bernoulli")
    found = sample_structures(evidence, PRIOR, n_iter=20, burn_in=5)
    assert np.array_equal(found.redrawn(), found.gammas())
    bare = StructureSamples(8, found.inclusion, found.packed, found.slab)
    assert np.array_equal(bare.redrawn(), found.gammas())


def test_empty_and_full_structures_are_kept(evidence):
    start = np.zeros(8)
    found = sample_structures(evidence, size_log_prior(8, 1e-12), n_iter=5, burn_in=0, start=start)
    assert found.gammas().sum() == 0
    assert found.redrawn().sum() == 0
    full = sample_structures(evidence, size_log_prior(8, 1.0 - 1e-12), n_iter=5, burn_in=0, start=np.ones(8))
    assert full.redrawn().all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_credible_sets_of_an_estimator_are_of_redrawn_structures():
    x, y = one_effect_in_a_block(200)
    how = {"n_iter": 150, "burn_in": 50, "n_chains": 2, "temperatures": (1.0,)}
    probability = []
    for seed in range(12):
        model = SpikeSlabRegression(**how, random_state=seed).fit(x, y)
        redrawn = model.sample_inclusions(redrawn=True)
        assert len(redrawn) == 16 * len(model.sample_inclusions())
        sets = credible_sets(redrawn, x)
        assert [one.members for one in sets] == [one.members for one in model.credible_sets_]
        columns = list(sets[0].members)
        assert sets[0].inclusion == pytest.approx(redrawn[:, columns].mean(0))
        probability.append((redrawn[:, 1].mean(), model.sample_inclusions()[:, 1].mean()))
    redrawn_spread, spread = np.std(probability, axis=0)
    assert redrawn_spread < 0.8 * spread
