"""The exact references against independent computations, and the bound against the references."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.func import vmap

from sparsebnn.init import Initial
from sparsebnn.init import Normal as NormalStart
from sparsebnn.nn.passes import WeightPass, noise_size
from sparsebnn.random.noise import NoiseBuffer, RandomNoise
from sparsebnn.training import Objective
from studies.bounds import bound
from studies.bounds.estimates import (
    elbo,
    information,
    layer_of,
    marginal_bounds,
    noise_blocks,
)
from studies.bounds.exact_regression import (
    Regression,
    exact_posterior,
    gaussian_optimum,
    independent_inclusions_optimum,
    log_marginals,
    spike_slab_optimum,
)

SIGMAS = 4.0


def problem(p: int, rows: int = 6, seed: int = 0, inclusion_prob: float = 0.3) -> Regression:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, p, generator=generator, dtype=torch.float64)
    x[:, -1] = 0.9 * x[:, 0] + 0.3 * x[:, -1]
    y = x[:, 0] + 0.5 + torch.randn(rows, generator=generator, dtype=torch.float64)
    return Regression(x, y, noise_std=0.8, inclusion_prob=inclusion_prob, slab_std=1.3, bias_std=0.7)


def untrained(method: bound.Method, data: Regression, seed: int = 0) -> Objective:
    torch.manual_seed(seed)
    network = bound.network(method, data)
    return Objective(network, bound.Gaussian(noise="fixed", std=data.noise_std).double(), len(data.y))


def method(name: str) -> bound.Method:
    return next(m for m in bound.METHODS if m.name == name)


# --- the exact references ----------------------------------------------------------------------------


def density(value: np.ndarray | float, mean: np.ndarray | float, std: float) -> np.ndarray:
    return np.exp(-0.5 * ((value - mean) / std) ** 2) / (std * math.sqrt(2.0 * math.pi))


def test_evidence_of_one_input_by_adaptive_quadrature():
    data = problem(1)
    x, y = data.x.numpy()[:, 0], data.y.numpy()

    def without(b: float) -> float:
        return float(density(y, b, data.noise_std).prod() * density(b, 0.0, data.bias_std))

    def with_input(w: float, b: float) -> float:
        prior = density(b, 0.0, data.bias_std) * density(w, 0.0, data.slab_std)
        return float(density(y, b + w * x, data.noise_std).prod() * prior)

    excluded, _ = scipy.integrate.quad(without, -6, 6, epsabs=0, epsrel=1e-9)
    included, _ = scipy.integrate.dblquad(with_input, -6, 6, -8, 8, epsabs=0, epsrel=1e-6)
    evidence = 0.7 * excluded + 0.3 * included
    truth = exact_posterior(data)
    assert truth.log_evidence == pytest.approx(math.log(evidence), abs=1e-6)
    assert float(truth.inclusion[0]) == pytest.approx(0.3 * included / evidence, abs=1e-6)


def test_dense_evidence_is_a_gaussian_density_and_the_limit_of_certain_inclusion():
    data = problem(5, rows=12)
    x = data.x.numpy()
    covariance = data.noise_std**2 * np.eye(12) + data.bias_std**2 + data.slab_std**2 * x @ x.T
    expected = scipy.stats.multivariate_normal(np.zeros(12), covariance).logpdf(data.y.numpy())
    truth = exact_posterior(problem(5, rows=12, inclusion_prob=1.0 - 1e-12))
    assert truth.log_evidence_dense == pytest.approx(expected, abs=1e-9)
    assert truth.log_evidence == pytest.approx(expected, abs=1e-9)
    assert torch.allclose(truth.inclusion, torch.ones(5, dtype=torch.float64), atol=1e-9)


def test_gaussian_optimum_is_the_evidence_less_the_divergence_from_the_posterior():
    data = problem(4, rows=10)
    design = torch.cat([data.x, torch.ones(10, 1, dtype=torch.float64)], dim=1)
    prior = torch.tensor([1.3] * 4 + [0.7], dtype=torch.float64)
    precision = design.T @ design / 0.8**2 + torch.diag(prior**-2)
    mean = torch.linalg.solve(precision, design.T @ data.y / 0.8**2)
    posterior = MultivariateNormal(mean, precision_matrix=precision)
    independent = MultivariateNormal(mean, torch.diag(1.0 / precision.diagonal()))
    evidence = float(log_marginals(data, torch.ones(1, 4, dtype=torch.float64)))
    expected = evidence - float(kl_divergence(independent, posterior))
    assert gaussian_optimum(data).bound == pytest.approx(expected, abs=1e-9)


def test_limits_are_nested_and_exact_for_one_input():
    data = problem(5, rows=20)
    truth = exact_posterior(data)
    independent = independent_inclusions_optimum(truth)
    mean_field = spike_slab_optimum(data)
    assert mean_field.bound < independent.bound < truth.log_evidence
    alone = exact_posterior(problem(1, rows=20))
    assert independent_inclusions_optimum(alone).bound == pytest.approx(alone.log_evidence, abs=1e-9)
    assert torch.allclose(independent_inclusions_optimum(alone).inclusion, alone.inclusion, atol=1e-9)


def test_spike_slab_optimum_is_where_gradient_ascent_ends():
    """The library's own closed forms, climbed by a general optimiser from the optimum's neighbourhood."""
    data = problem(3, rows=20)
    best = spike_slab_optimum(data)
    objective = untrained(method("spike_slab"), data)
    layer = layer_of(objective)
    with torch.no_grad():
        layer.weights.inclusion_logit.copy_(torch.logit(best.inclusion).unsqueeze(0))
    climber = torch.optim.LBFGS(objective.parameters(), max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        climber.zero_grad()
        value = -closed_form_bound(objective, data)
        value.backward()
        return value

    climber.step(loss)
    assert float(closed_form_bound(objective, data).detach()) == pytest.approx(best.bound, abs=1e-6)
    inclusion = layer.weights.inclusion_prob()[0].detach()
    assert torch.allclose(inclusion, best.inclusion, atol=1e-3)


def closed_form_bound(objective: Objective, data: Regression) -> torch.Tensor:
    """Mean field's bound from the two moments of the output."""
    layer = layer_of(objective)
    bias = layer.biases.moments()
    mean, var = layer.output_moments(data.x, layer.weights.moments(), bias.mean, bias.var)
    squares = (data.y.unsqueeze(1) - mean) ** 2 + var
    log_lik = -0.5 * (squares / data.noise_std**2 + math.log(2.0 * math.pi * data.noise_std**2)).sum()
    return log_lik - layer.weights.closed_form_kl() - layer.biases.closed_form_kl()


# --- the estimates -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gaussian", "spike_slab", "concrete"])
def test_estimated_bound_of_mean_field_is_its_closed_form(name):
    """For ``concrete`` this is the bound of its exact draws, not of its relaxed ones."""
    data = problem(4, rows=10)
    objective = untrained(method(name), data)
    value, error = elbo(objective, 20000, seed=1)
    exact = float(closed_form_bound(objective, data).detach())
    assert abs(value - exact) < SIGMAS * error
    assert error < 0.2


@pytest.mark.parametrize("name", ["spike_slab", "flow", "mnf"])
def test_local_reparametrization_and_drawn_weights_have_the_same_expected_likelihood(name):
    data = problem(4, rows=10)
    objective = untrained(method(name), data).requires_grad_(False)
    with_local, error = elbo(objective, 20000, seed=1)
    network, nothing = objective.network, torch.zeros(10, 1, dtype=torch.float64)
    weights, biases = layer_of(objective).weights, layer_of(objective).biases

    def drawn(normal: torch.Tensor, logistic: torch.Tensor) -> torch.Tensor:
        with WeightPass(NoiseBuffer(normal, logistic)):
            return -objective.likelihood.nll(network(nothing), nothing).sum()

    def kl(normal: torch.Tensor, logistic: torch.Tensor) -> torch.Tensor:
        return weights.kl(NoiseBuffer(normal, logistic)) + biases.kl(RandomNoise())

    generator = torch.Generator().manual_seed(2)
    size = noise_size(network, nothing, WeightPass)
    log_lik = vmap(drawn)(*noise_blocks(size, (20000,), generator))
    divergence = vmap(kl)(*noise_blocks(size, (20000,), generator))
    errors = [float(t.std()) / len(t) ** 0.5 for t in (log_lik, divergence)]
    with_weights = float(log_lik.mean() - divergence.mean())
    assert abs(with_local - with_weights) < SIGMAS * math.hypot(error, *errors)


def test_marginal_bounds_bracket_the_density_of_a_mixture():
    """With one weight, always there, q(w) is a one-dimensional mixture over z: integrate it."""
    data = problem(1, rows=5)
    start = Initial(
        mean=NormalStart(0.7, 0.0), raw_std=NormalStart(-1.5, 0.0), z0_log_var=NormalStart(0.0, 0.0)
    )
    options = {**method("mnf").options, "length": 0}
    objective = untrained(bound.Method("mixture", "mnf", options, start), data).requires_grad_(False)
    layer = layer_of(objective)
    centre, std = float(layer.weights.z0_mean) * 0.7, float(layer.weights.conditional.std)
    marginal = Normal(centre, math.hypot(0.7, std))
    w = torch.linspace(centre - 8, centre + 8, 20001, dtype=torch.float64)
    squares = (data.y.unsqueeze(1) - data.x * w - layer.biases.mean) ** 2 + layer.biases.std**2
    log_lik = -0.5 * (squares / 0.8**2 + math.log(2.0 * math.pi * 0.8**2)).sum(0)
    inside = log_lik + Normal(0.0, 1.3).log_prob(w) - marginal.log_prob(w)
    exact = float(torch.trapezoid(marginal.log_prob(w).exp() * inside, w) - layer.biases.closed_form_kl())
    low, high, error = marginal_bounds(objective, data, 2000, seed=0)
    assert low < high
    assert low - SIGMAS * error < exact < high + SIGMAS * error


def test_information_is_the_part_of_the_divergence_that_z_answers_for():
    data = problem(4, rows=10)
    objective = untrained(method("flow"), data).requires_grad_(False)
    weights = layer_of(objective).weights
    value, error = information(weights, 20000, seed=3)

    def terms(eps: torch.Tensor, normal: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        z, log_q = weights.draw_z(NoiseBuffer(eps, eps[:0]))
        conditional = weights.conditional
        there = (uniform < conditional.inclusion_prob()[0]).double()
        drawn = there * (z * conditional.mean[0] + conditional.std[0] * normal)
        return weights.log_auxiliary(z, (weights.auxiliary_direction * drawn).sum(-1, keepdim=True)) - log_q

    generator = torch.Generator().manual_seed(4)
    eps, normal = torch.randn(2, 20000, 4, generator=generator, dtype=torch.float64)
    uniform = torch.rand(20000, 4, generator=generator, dtype=torch.float64)
    found = vmap(terms)(eps, normal, uniform)
    assert abs(value - float(found.mean())) < SIGMAS * math.hypot(error, float(found.std()) / 20000**0.5)


# --- the study ---------------------------------------------------------------------------------------


def assert_theorems(rows: list[dict], sigmas: float) -> None:
    """What must hold wherever training stopped."""
    limits = {(r["design"], r["data_set"], r["method"]): r for r in rows if r["method"].endswith("optimum")}
    for row in rows:
        for value, error in zip(row["elbo_restarts"], row["elbo_se_restarts"]):
            assert value <= row["log_evidence"] + sigmas * error + 1e-9, row
        where = (row["design"], row["data_set"])
        slack = sigmas * row["elbo_se"] + 1e-9
        if row["prior"] == "spike_slab":
            assert row["elbo"] <= limits[(*where, "independent inclusions, optimum")]["elbo"] + slack, row
        family = row["method"].split(",")[0]
        if family in ("gaussian", "spike_slab", "concrete"):
            best = "gaussian" if family == "gaussian" else "spike_slab"
            assert row["elbo"] <= limits[(*where, f"{best}, optimum")]["elbo"] + slack, row
        if "information" in row:
            best = "spike_slab" if family == "flow" else "gaussian"
            given_z = row["elbo"] - row["information"]
            both = slack + sigmas * row["information_se"]
            assert given_z <= limits[(*where, f"{best}, optimum")]["elbo"] + both, row
            without = row["without_auxiliary"]
            assert row["elbo"] <= without["high"] + slack + sigmas * without["se"], row
            assert without["low"] <= row["log_evidence"] + sigmas * without["se"], row


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bound")
    bound.main(["--quick", "--out", str(folder)])
    return folder


def test_quick_study_holds_every_theorem(quick):
    record = json.loads((quick / "results" / "bound" / "bound.json").read_text())
    assert {row["method"].split(",")[0] for row in record["rows"]} >= {
        "gaussian",
        "spike_slab",
        "concrete",
        "flow",
        "mnf",
    }
    assert sum(row["above_evidence"] for row in record["rows"]) == 0
    assert_theorems(record["rows"], sigmas=3.0)
