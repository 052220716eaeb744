"""Sampled inclusion probabilities against all 2^p structures, summed independently."""

import math
import signal
import threading

import numpy as np
import pytest
import torch

from sparsebnn.selection.convergence import effective_sample_size, split_rhat
from sparsebnn.selection.glm_marginal import GLMEvidence
from sparsebnn.selection.marginal import LinearEvidence
from sparsebnn.selection.structure import _Chains, sample_structures, size_log_prior
from studies.bounds.exact_regression import Regression, exact_posterior
from studies.selection import error_rates
from studies.selection.exact import SpikeSlabProblem, enumerate_structures, exact_inclusion

ONE = np.ones(1)


def correlated(p, rho, rows, seed=0, effects=(1.0, 0.7, 0.4)):
    rng = np.random.default_rng([seed, p, round(100 * rho)])
    shared = math.sqrt(rho) * rng.standard_normal((rows, 1))
    x = shared + math.sqrt(1.0 - rho) * rng.standard_normal((rows, p))
    return x, 0.3 + x[:, : len(effects)] @ np.array(effects), rng


def normalized(log_weights, structures):
    weights = np.exp(log_weights - log_weights.max())
    return weights @ structures / weights.sum()


def unknown_noise(x, y, structures, slab_var):
    """log p(y | γ) with p(σ²) ∝ 1/σ² and a flat intercept, from n × n covariances instead of p × p ones."""
    rows = len(y)
    contrasts = np.linalg.svd(np.ones((1, rows)))[2][1:]  # an orthonormal basis without the constant
    y, x = contrasts @ y, contrasts @ x
    found = []
    for gamma in structures:
        cov = np.eye(rows - 1) + slab_var * (x * gamma) @ x.T
        rest = y @ np.linalg.solve(cov, y)
        found.append(-0.5 * np.linalg.slogdet(cov)[1] - 0.5 * (rows - 1) * math.log(rest))
    return np.array(found)


@pytest.mark.parametrize("p", [8, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rho", [0.0, 0.9, 0.99])
def test_known_noise_matches_enumeration(p, rho):
    x, f, rng = correlated(p, rho, 100)
    y = f + rng.standard_normal(100)
    exact = exact_posterior(Regression(torch.tensor(x), torch.tensor(y), 1.0, 0.25, 1.0, 1.0))
    evidence = LinearEvidence(x, y, ONE, noise_var=1.0, intercept_var=1.0)
    found = sample_structures(evidence, size_log_prior(p, 0.25), n_iter=1500, burn_in=100)
    assert np.abs(found.inclusion - exact.inclusion.numpy()).mean() < 0.01
    assert np.abs(found.gammas().mean(0) - exact.inclusion.numpy()).mean() < 0.02
    assert found.converged


@pytest.mark.parametrize("p", [8, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rho", [0.0, 0.9, 0.99])
def test_unknown_noise_and_learned_priors_match_enumeration(p, rho):
    """The slab variance and the inclusion rate are learned: two more sums in the oracle."""
    x, f, rng = correlated(p, rho, 60)
    y = f + 0.8 * rng.standard_normal(60)
    structures, slabs = enumerate_structures(p), np.array([0.1, 1.0, 10.0])
    sizes = structures.sum(1)
    beta = [math.lgamma(1 + k) + math.lgamma(3 + p - k) for k in sizes]
    each = [unknown_noise(x, y, structures, slab) for slab in slabs]
    log_weights = np.logaddexp.reduce(each, axis=0) + np.array(beta)
    exact = normalized(log_weights, structures)
    evidence = LinearEvidence(x, y, slabs)
    found = sample_structures(evidence, size_log_prior(p, (1.0, 3.0)), n_iter=3000, burn_in=100)
    assert np.abs(found.inclusion - exact).mean() < 0.01
    at = [np.exp(one + beta - log_weights.max()).sum() for one in each]
    shares = np.bincount(found.slab.ravel(), minlength=3) / found.slab.size
    assert np.abs(shares - np.array(at) / sum(at)).max() < 0.04


@pytest.mark.parametrize("p", [8, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rho", [0.0, 0.9, 0.99])
def test_logistic_matches_enumeration(p, rho):
    x, f, rng = correlated(p, rho, 120)
    y = (f + rng.logistic(size=120) > 0).astype(float)
    exact = exact_inclusion(SpikeSlabProblem(x, y), n_draws=300)
    evidence = GLMEvidence(x, y, ONE, "bernoulli", intercept_var=1.0)
    found = sample_structures(evidence, size_log_prior(p, 0.25), n_iter=2000, burn_in=100)
    assert exact.inclusion_se.max() < 0.005
    assert np.abs(found.inclusion - exact.inclusion).mean() < 0.01
    assert np.median(evidence.errors) < 0.03


def test_poisson_marginal_likelihoods_by_summing_over_a_grid():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((25, 2))
    y = rng.poisson(np.exp(0.2 + 0.6 * x[:, 0])).astype(float)
    evidence = GLMEvidence(x, y, np.array([0.7]), "poisson", intercept_var=1.5, importance_draws=4000)
    structures = enumerate_structures(2).astype(bool)
    found = evidence.log_evidence(structures, np.zeros(4, dtype=int))
    nodes = np.linspace(-6.0, 6.0, 81)
    mass = np.exp(-0.5 * nodes**2) / math.sqrt(2 * math.pi) * (nodes[1] - nodes[0])
    b, w = math.sqrt(1.5) * nodes, math.sqrt(0.7) * nodes
    logs = np.array([math.lgamma(v + 1) for v in y]).sum()
    for gamma, value, error in zip(structures, found, evidence.errors):
        f = b[:, None, None, None] + gamma[0] * w[:, None, None] * x[:, 0] + (gamma[1] * w[:, None] * x[:, 1])
        likelihood = np.exp((y * f - np.exp(f)).sum(-1) - logs)
        exact = np.einsum("ijk,i,j,k->", np.broadcast_to(likelihood, (81, 81, 81)), mass, mass, mass)
        assert error < 0.01
        assert abs(value - math.log(exact)) < 5 * error + 1e-6


def test_laplace_alone_is_close_and_importance_sampling_closer():
    x, f, rng = correlated(4, 0.5, 40)
    y = (f + rng.logistic(size=40) > 0).astype(float)
    structures = enumerate_structures(4).astype(bool)
    slab = np.zeros(16, dtype=int)
    truth = GLMEvidence(x, y, ONE, "bernoulli", 1.0, 20_000).log_evidence(structures, slab)
    laplace = GLMEvidence(x, y, ONE, "bernoulli", 1.0, 0).log_evidence(structures, slab)
    corrected = GLMEvidence(x, y, ONE, "bernoulli", 1.0, 256, seed=1).log_evidence(structures, slab)
    assert 0.005 < np.abs(laplace - truth).max() < 0.3
    assert np.abs(corrected - truth).max() < 0.5 * np.abs(laplace - truth).max()


@pytest.mark.parametrize("noise_var", [None, 0.5])
@pytest.mark.parametrize("intercept_var", [math.inf, 2.0])
def test_gains_are_differences_of_marginal_likelihoods(noise_var, intercept_var):
    x, f, rng = correlated(6, 0.7, 30)
    evidence = LinearEvidence(x, f + rng.standard_normal(30), np.array([0.3, 2.0]), noise_var, intercept_var)
    structures = enumerate_structures(6).astype(bool)
    slab = np.arange(64) % 2
    value, gains = evidence.visit(structures, slab)
    for j in range(6):
        other = structures.copy()
        other[:, j] ^= True
        np.testing.assert_allclose(gains[:, j], evidence.visit(other, slab)[0] - value, atol=1e-9)


def test_rows_of_the_gram_on_demand_are_those_of_the_whole(monkeypatch):
    x, f, rng = correlated(90, 0.3, 40)
    y = f + rng.standard_normal(40)
    gamma = rng.random((5, 90)) < np.array([0.0, 0.05, 0.2, 0.5, 1.0])[:, None]
    slab = np.zeros(5, dtype=int)
    whole = LinearEvidence(x, y, ONE).visit(gamma, slab)
    monkeypatch.setattr("sparsebnn.selection.marginal._WHOLE_GRAM", 10)
    lazy = LinearEvidence(x, y, ONE)
    np.testing.assert_allclose(lazy.visit(gamma[:2], slab[:2])[0], whole[0][:2], atol=1e-8)
    for mine, theirs in zip(lazy.visit(gamma, slab), whole):
        np.testing.assert_allclose(mine, theirs, atol=1e-8)


def test_coefficients_follow_the_conjugate_posterior():
    x, f, rng = correlated(3, 0.5, 50, effects=(1.0, -0.5, 0.0))
    y = f + rng.standard_normal(50)
    evidence = LinearEvidence(x, y, np.array([2.0]), noise_var=1.0, intercept_var=4.0)
    gamma = np.tile([True, True, False], (40_000, 1))
    drawn = evidence.draw(gamma, np.zeros(len(gamma), dtype=int), rng)
    design = np.column_stack([x[:, :2], np.ones(50)])
    cov = np.linalg.inv(design.T @ design + np.diag([0.5, 0.5, 0.25]))
    mean = cov @ design.T @ y
    draws = np.column_stack([drawn.values, drawn.intercept])
    error = np.sqrt(np.diag(cov) / len(gamma))
    assert (np.abs(draws.mean(0) - mean) < 5 * error).all()
    np.testing.assert_allclose(np.append(drawn.mean[0], drawn.intercept_mean[0]), mean, atol=1e-10)
    np.testing.assert_allclose(np.cov(draws.T), cov, atol=0.05 * np.abs(cov).max())


def test_every_temperature_keeps_its_own_target():
    """Exact draws from each tempered posterior stay so after all moves."""
    x, f, rng = correlated(4, 0.9, 20, effects=(0.6,))
    evidence = LinearEvidence(x, f + rng.standard_normal(20), ONE, noise_var=1.0)
    log_prior = size_log_prior(4, 0.3)
    structures = enumerate_structures(4).astype(bool)
    value = evidence.visit(structures, np.zeros(16, dtype=int))[0]
    chains, levels = 20_000, (1.0, 0.4)
    targets = []
    for beta in levels:
        weights = np.exp(beta * value + log_prior[structures.sum(1)])
        targets.append(weights / weights.sum())
    first = np.stack([rng.choice(16, chains, p=target) for target in targets], axis=1).ravel()
    state = _Chains(evidence, log_prior, np.tile(levels, chains), structures[first], rng)
    for step in range(3):
        state.move()
        state.flip()
        state.exchange(2, step % 2)
    codes = (state.gamma @ (2 ** np.arange(4))).reshape(chains, 2)
    assert (codes.ravel() != first).mean() > 0.3
    for level, target in enumerate(targets):
        seen = np.bincount(codes[:, level], minlength=16) / chains
        assert (np.abs(seen - target) < 5 * np.sqrt(target * (1 - target) / chains) + 1e-9).all()


def test_same_seed_same_samples():
    x, f, rng = correlated(10, 0.5, 30)
    evidence = LinearEvidence(x, f + rng.standard_normal(30), ONE)
    runs = [
        sample_structures(evidence, size_log_prior(10, 0.2), n_iter=50, burn_in=10, seed=s) for s in (3, 3, 4)
    ]
    np.testing.assert_array_equal(runs[0].packed, runs[1].packed)
    assert (runs[0].packed != runs[2].packed).any()


def test_starts_are_drawn_from_the_given_inclusions():
    x, f, rng = correlated(10, 0.0, 30)
    evidence = LinearEvidence(x, f + rng.standard_normal(30), ONE)
    start = np.eye(10)[:2]
    once = sample_structures(evidence, size_log_prior(10, 0.2), n_iter=1, burn_in=0, start=start, n_chains=8)
    # One iteration moves one input and flips three.
    assert once.gammas().sum(1).max() <= 4


def test_time_and_interrupts_end_the_sampling():
    x, f, rng = correlated(10, 0.0, 30)
    evidence = LinearEvidence(x, f + rng.standard_normal(30), ONE)
    short = sample_structures(evidence, size_log_prior(10, 0.2), n_iter=10**6, max_seconds=0.5)
    assert short.diagnostics["stopped_early"]
    assert short.diagnostics["seconds"] < 10.0
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background process
    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    try:
        caught = sample_structures(evidence, size_log_prior(10, 0.2), n_iter=10**6, max_seconds=60.0)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught.diagnostics["interrupted"]
    assert len(caught.gammas()) == 4 * caught.diagnostics["kept"] > 0


def test_diagnostics_of_independent_sticky_and_stuck_chains():
    rng = np.random.default_rng(0)
    free = rng.random((1000, 4, 1)) < 0.4
    sticky = np.repeat(free[:50], 20, axis=0)
    stuck = np.broadcast_to(np.array([0, 1, 0, 1])[None, :, None], (1000, 4, 1))
    assert split_rhat(free)[0] < 1.01
    assert 3000 < effective_sample_size(free)[0] <= 4000
    assert 120 < effective_sample_size(sticky)[0] < 330  # 4 × 50 runs
    assert split_rhat(stuck)[0] > 2
    trend = np.linspace(0, 1, 1000)[:, None, None] > rng.random((1000, 4, 1))
    assert split_rhat(trend)[0] > 1.1


def test_a_target_ends_the_sampling_once_it_is_reached():
    x, f, rng = correlated(8, 0.9, 100)
    evidence = LinearEvidence(x, f + rng.standard_normal(100), ONE, noise_var=1.0)
    prior = size_log_prior(8, 0.25)
    found = sample_structures(evidence, prior, n_iter=2000, burn_in=100, target_ess=500.0)
    whole = sample_structures(evidence, prior, n_iter=2000, burn_in=100)
    assert found.diagnostics["min_ess"] >= 500.0
    assert found.diagnostics["max_rhat"] <= 1.02
    assert found.diagnostics["kept"] < 2000 == whole.diagnostics["kept"]
    assert not found.diagnostics["stopped_early"]
    # Stopping keeps the draws of the longer run.
    assert np.array_equal(found.packed, whole.packed[: len(found.packed)])


def test_stacked_data_sets_are_sampled_as_each_alone():
    grid = np.array([0.3, 1.0, 3.0])
    data = []
    for seed in range(3):
        x, f, rng = correlated(6, 0.8, 60, seed)
        data.append((x, f + rng.standard_normal(60)))
    stacked = error_rates.StackedEvidence(data, grid)
    gamma = np.random.default_rng(0).random((9, 6)) < 0.4
    slab = np.arange(9)
    values, gains = stacked.visit(gamma, slab)
    for d, (x, y) in enumerate(data):
        own = slice(3 * d, 3 * d + 3)
        alone = LinearEvidence(x, y, grid).visit(gamma[own], np.arange(3))
        assert np.allclose(values[own], alone[0])
        assert np.allclose(gains[own], alone[1])
    prior = size_log_prior(6, 0.25)
    how = {"n_iter": 1500, "burn_in": 100, "temperatures": (1.0,), "start": np.full(6, 0.3)}
    found = sample_structures(stacked, prior, n_chains=6, **how)
    assert (found.slab // 3 == np.repeat([0, 1, 2], 2)).all()
    structures = enumerate_structures(6)
    for d, (x, y) in enumerate(data):
        logs = np.stack([unknown_noise(x, y, structures, var) for var in grid])
        joint = np.logaddexp.reduce(logs, axis=0) + prior[structures.sum(1).astype(int)]
        exact = normalized(joint, structures)
        assert np.abs(found.by_chain[2 * d : 2 * d + 2].mean(0) - exact).mean() < 0.015
