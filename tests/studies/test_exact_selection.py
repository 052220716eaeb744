"""The reference posteriors: importance sampling against quadrature and closed forms, MCMC against both."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import torch

from studies.bounds.exact_regression import Regression, exact_posterior
from studies.selection.exact import (
    SpikeSlabProblem,
    _moved,
    enumerate_structures,
    exact_inclusion,
    mcmc,
    propose,
)

SIGMAS = 4.0


def problem(p, rows=40, kind="bernoulli", rho=0.8, seed=0, **beliefs):
    rng = np.random.default_rng(seed)
    x = math.sqrt(rho) * rng.standard_normal((rows, 1)) + math.sqrt(1 - rho) * rng.standard_normal((rows, p))
    f = 0.3 + 1.2 * x[:, 0]
    y = (f + rng.logistic(size=rows) > 0) * 1.0 if kind == "bernoulli" else f + rng.standard_normal(rows)
    return SpikeSlabProblem(
        x, y, kind, **{"slab_std": 1.3, "bias_std": 0.8, "inclusion_prob": 0.3, **beliefs}
    )


def test_logistic_evidence_of_one_input_by_adaptive_quadrature():
    data = problem(1)

    def density(value, std):
        return math.exp(-0.5 * (value / std) ** 2) / (std * math.sqrt(2 * math.pi))

    def likelihood(w, b):
        return math.exp(float(data.log_likelihood(b + w * data.x[:, 0])) + 20.0)

    without, _ = scipy.integrate.quad(lambda b: likelihood(0.0, b) * density(b, 0.8), -6, 6, epsrel=1e-10)
    included, _ = scipy.integrate.dblquad(
        lambda w, b: likelihood(w, b) * density(b, 0.8) * density(w, 1.3), -4, 4, -6, 6, epsabs=0, epsrel=1e-6
    )
    evidence = 0.7 * without + 0.3 * included
    found = exact_inclusion(data, n_draws=40_000)
    assert found.log_evidence_se < 0.003
    assert abs(found.log_evidence - (math.log(evidence) - 20.0)) < SIGMAS * found.log_evidence_se
    assert abs(found.inclusion[0] - 0.3 * included / evidence) < SIGMAS * found.inclusion_se[0]


def test_logistic_inclusions_of_two_inputs_by_summing_over_a_grid():
    """The trapezoid rule on a fine grid is exact to many digits for an integrand that dies away."""
    data = problem(2, rows=30)
    nodes = np.linspace(-6.5, 6.5, 71)
    mass = np.exp(-0.5 * nodes**2) / math.sqrt(2 * math.pi) * (nodes[1] - nodes[0])
    b, w1, w2 = 0.8 * nodes[:, None, None], 1.3 * nodes[None, :, None], 1.3 * nodes[None, None, :]
    evidence, inclusion = 0.0, np.zeros(2)
    for gamma in enumerate_structures(2):
        f = (
            b
            + gamma[0] * w1 * data.x[:, 0, None, None, None]
            + gamma[1] * w2 * data.x[:, 1, None, None, None]
        )
        given = np.exp(data.log_likelihood(np.moveaxis(f, 0, -1)))
        prior = np.prod(np.where(gamma > 0, 0.3, 0.7))
        term = prior * np.einsum("ijk,i,j,k->", np.broadcast_to(given, (71, 71, 71)), mass, mass, mass)
        evidence, inclusion = evidence + term, inclusion + term * gamma
    found = exact_inclusion(data, n_draws=40_000)
    assert (found.inclusion_se < 0.002).all()
    assert (np.abs(found.inclusion - inclusion / evidence) < SIGMAS * found.inclusion_se).all()
    assert abs(found.log_evidence - math.log(evidence)) < SIGMAS * found.log_evidence_se


def test_gaussian_inclusions_are_the_closed_form():
    data = problem(6, kind="gaussian", rho=0.9)
    problem_ = Regression(torch.tensor(data.x), torch.tensor(data.y), 1.0, 0.3, 1.3, 0.8)
    truth = exact_posterior(problem_)
    found = exact_inclusion(data, n_draws=4000)
    assert (found.inclusion_se < 0.01).all()
    assert (np.abs(found.inclusion - truth.inclusion.numpy()) < SIGMAS * found.inclusion_se).all()
    assert abs(found.log_evidence - truth.log_evidence) < SIGMAS * found.log_evidence_se


def test_stated_errors_are_the_spread_over_seeds():
    data = problem(4)
    many = [exact_inclusion(data, n_draws=200, seed=k) for k in range(60)]
    spread = np.std([each.inclusion for each in many], axis=0, ddof=1)
    stated = np.mean([each.inclusion_se for each in many], axis=0)
    # The relative error of a standard deviation from 60 values is about 9%.
    np.testing.assert_allclose(stated, spread, rtol=0.4)


def test_modes_have_no_slope():
    data = problem(4)
    structures = enumerate_structures(4)
    found = propose(data, structures)
    f = found.mode @ data.design.T
    slope = (data.y - 1.0 / (1.0 + np.exp(-f))) @ data.design - found.mode / data.prior_std**2
    assert np.abs(slope * found.there).max() < 1e-8
    assert (found.mode[found.there == 0] == 0).all()


@pytest.mark.parametrize("kind", ["bernoulli", "gaussian"])
def test_chains_visit_inputs_as_often_as_the_posterior_says(kind):
    data = problem(5, kind=kind, rho=0.9)
    exact = exact_inclusion(data, n_draws=4000)
    chain = mcmc(data, steps=1500, chains=60)
    assert 0.1 < chain.acceptance < 0.95
    assert (chain.inclusion_se < 0.01).all()
    error = np.hypot(chain.inclusion_se, exact.inclusion_se)
    assert (np.abs(chain.inclusion - exact.inclusion) < SIGMAS * error).all()
    again = mcmc(data, steps=50, chains=4, seed=3)
    np.testing.assert_array_equal(again.inclusion, mcmc(data, steps=50, chains=4, seed=3).inclusion)


def test_moves_are_symmetric():
    """The proposal's transition matrix, estimated: as many moves from a to b as from b to a."""
    rng = np.random.default_rng(0)
    structures = enumerate_structures(3)
    weights = 2 ** np.arange(3)
    draws = 20_000
    counts = np.zeros((8, 8))
    for index, structure in enumerate(structures):
        moved = _moved(np.tile(structure, (draws, 1)), rng)
        counts[index] = np.bincount((moved @ weights).astype(int), minlength=8)
    error = np.sqrt(counts + counts.T) + 1e-9
    assert (np.abs(counts - counts.T) < SIGMAS * error + 1e-6).all()
    assert counts[0, 1] > 0
    assert counts[1, 2] > 0
