r"""Bayesian linear regression with spike-and-slab weights, solved without approximation.

.. math::
    y = b + \sum_i \gamma_i w_i x_i + \sigma\varepsilon, \qquad
    b \sim \mathcal N(0, \sigma_b^2), \quad w_i \sim \mathcal N(0, \sigma_w^2), \quad
    \gamma_i \sim \operatorname{Bernoulli}(\alpha)

With a handful of inputs every structure can be visited, and given the structure everything is Gaussian:

.. math::
    p(y \mid \gamma) = \mathcal N\big(0,\; \sigma^2 I + \sigma_b^2 11^\top
    + \sigma_w^2 X_\gamma X_\gamma^\top\big), \qquad
    p(y) = \sum_\gamma p(\gamma)\, p(y \mid \gamma)

Next to the truth stand the best approximations of a kind, found without noise, so that a trained bound
can be distinguished from its family's limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Regression",
    "Posterior",
    "Best",
    "exact_posterior",
    "gaussian_optimum",
    "independent_inclusions_optimum",
    "spike_slab_optimum",
]


@dataclass(frozen=True)
class Regression:
    """Data ``x`` (rows, inputs) and ``y`` (rows), and what is believed before seeing them."""

    x: Tensor
    y: Tensor
    noise_std: float
    inclusion_prob: float
    slab_std: float
    bias_std: float


class Posterior(NamedTuple):
    """Every structure with its posterior probability.

    ``log_evidence`` is that of the spike-and-slab prior, ``log_evidence_dense`` that of the Gaussian
    prior that includes every input.
    """

    log_evidence: float
    log_evidence_dense: float
    structures: Tensor
    probs: Tensor

    @property
    def inclusion(self) -> Tensor:
        """Posterior probability of each input being there."""
        return self.probs @ self.structures

    @property
    def exactly_one(self) -> float:
        """Posterior probability that exactly one input is included."""
        return float(self.probs[self.structures.sum(1) == 1].sum())


class Best(NamedTuple):
    """A bound on the log evidence and the inclusion probabilities that attain it."""

    bound: float
    inclusion: Tensor


def all_structures(p: int) -> Tensor:
    """The 2^p rows of zeros and ones.

    >>> all_structures(2).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    """
    bits = torch.arange(2**p).unsqueeze(1) >> torch.arange(p)
    return (bits & 1).to(torch.float64)


def log_marginals(problem: Regression, structures: Tensor) -> Tensor:
    r"""log p(y | γ) of each structure, from matrices of inputs × inputs.

    With D the inputs and a constant, each column scaled by its prior std over σ and 0 where γ is,

    .. math::
        -\tfrac12 \log\det(I + D^\top D) - \tfrac1{2\sigma^2}\big(\|y\|^2
        - y^\top D (I + D^\top D)^{-1} D^\top y\big) - \tfrac n2 \log 2\pi\sigma^2
    """
    rows, dtype = len(problem.y), problem.x.dtype
    design = torch.cat([problem.x, torch.ones(rows, 1, dtype=dtype)], dim=1)
    scales = torch.full((design.shape[1],), problem.slab_std / problem.noise_std, dtype=dtype)
    scales[-1] = problem.bias_std / problem.noise_std
    there = torch.cat([structures, torch.ones(len(structures), 1, dtype=dtype)], dim=1) * scales
    gram = there.unsqueeze(2) * (design.T @ design) * there.unsqueeze(1)
    factor = torch.linalg.cholesky(gram + torch.eye(design.shape[1], dtype=dtype))
    score = (there * (design.T @ problem.y)).unsqueeze(-1)
    white = torch.linalg.solve_triangular(factor, score, upper=False)
    log_det = torch.log(factor.diagonal(dim1=1, dim2=2)).sum(1)
    left = ((problem.y**2).sum() - (white**2).sum((1, 2))) / problem.noise_std**2
    return -0.5 * left - log_det - 0.5 * rows * math.log(2.0 * math.pi * problem.noise_std**2)


def exact_posterior(problem: Regression) -> Posterior:
    """Evidence and posterior over structures, by visiting all of them."""
    structures = all_structures(problem.x.shape[1])
    alpha = problem.inclusion_prob
    log_prior = (structures * math.log(alpha) + (1.0 - structures) * math.log1p(-alpha)).sum(1)
    marginals = log_marginals(problem, structures)
    evidence = torch.logsumexp(marginals + log_prior, 0)
    probs = torch.exp(marginals + log_prior - evidence)
    return Posterior(float(evidence), float(marginals[-1]), structures, probs)


def gaussian_optimum(problem: Regression) -> Best:
    r"""The best bound of independent Gaussians under the Gaussian prior.

    The posterior is :math:`\mathcal N(m, \Lambda^{-1})`; its best independent approximation has the same
    mean and variances :math:`1/\Lambda_{ii}`, and misses the evidence by
    :math:`\tfrac12(\sum_i \log\Lambda_{ii} - \log\det\Lambda)`.
    """
    rows, p = problem.x.shape
    design = torch.cat([problem.x, torch.ones(rows, 1, dtype=problem.x.dtype)], dim=1)
    prior_std = torch.tensor([problem.slab_std] * p + [problem.bias_std], dtype=design.dtype)
    precision = design.T @ design / problem.noise_std**2 + torch.diag(prior_std**-2)
    missing = 0.5 * (torch.log(precision.diagonal()).sum() - torch.logdet(precision))
    evidence = log_marginals(problem, torch.ones(1, p, dtype=design.dtype))[0]
    return Best(float(evidence - missing), torch.ones(p, dtype=design.dtype))


def spike_slab_optimum(problem: Regression, sweeps: int = 2000, tolerance: float = 1e-10) -> Best:
    r"""The best bound of independent spike-and-slab weights, by coordinate ascent from every structure.

    Given the others, with :math:`r_i` the residual without input i, the optimum of input i is

    .. math::
        s_i^{-2} = \frac{\|x_i\|^2}{\sigma^2} + \frac1{\sigma_w^2}, \quad
        \mu_i = \frac{s_i^2}{\sigma^2} x_i^\top r_i, \quad
        \operatorname{logit}\tilde\alpha_i = \operatorname{logit}\alpha + \log\frac{s_i}{\sigma_w}
        + \frac{\mu_i^2}{2 s_i^2}

    Each sweep raises the bound. A start for each of the 2^p structures leaves few modes unseen.
    """
    x, y, noise_var = problem.x, problem.y, problem.noise_std**2
    rows, p = x.shape
    inclusion = 0.02 + 0.96 * all_structures(p)
    std = (((x**2).sum(0) / noise_var) + problem.slab_std**-2).rsqrt()
    bias_var = 1.0 / (rows / noise_var + problem.bias_std**-2)
    offset = math.log(problem.inclusion_prob) - math.log1p(-problem.inclusion_prob)
    mean = _ridge(problem, all_structures(p))
    bias = y.mean().expand(len(mean))
    for _ in range(sweeps):
        before = inclusion.clone()
        for i in range(p):
            without = inclusion * mean
            without[:, i] = 0.0
            residual = y - bias.unsqueeze(1) - without @ x.T
            mean[:, i] = std[i] ** 2 / noise_var * (residual @ x[:, i])
            gain = torch.log(std[i] / problem.slab_std) + mean[:, i] ** 2 / (2.0 * std[i] ** 2)
            inclusion[:, i] = torch.sigmoid(offset + gain)
        bias = bias_var / noise_var * (y - (inclusion * mean) @ x.T).sum(1)
        if float((inclusion - before).abs().max()) < tolerance:
            break
    bounds = _spike_slab_bounds(problem, inclusion, mean, std, bias, bias_var)
    best = int(bounds.argmax())
    return Best(float(bounds[best]), inclusion[best])


def independent_inclusions_optimum(truth: Posterior, sweeps: int = 2000, tolerance: float = 1e-10) -> Best:
    r"""The best bound of any family whose inclusions are independent, whatever its weights do.

    Given the structure the weights follow their exact posterior, so that all that is lost is

    .. math::
        \mathrm{KL}\Big[\prod_i \operatorname{Bernoulli}(\tilde\alpha_i) \,\Big\|\, p(\Gamma \mid y)\Big],
        \qquad \operatorname{logit}\tilde\alpha_i = \mathbb E_{\gamma_{-i}}
        \left[\log\frac{p(\gamma_i = 1, \gamma_{-i} \mid y)}{p(\gamma_i = 0, \gamma_{-i} \mid y)}\right]

    minimised by coordinate ascent from every structure. No flow over the weights can do better.
    """
    structures, log_probs = truth.structures, torch.log(truth.probs)
    inclusion = 0.02 + 0.96 * structures
    for _ in range(sweeps):
        before = inclusion.clone()
        for i in range(structures.shape[1]):
            others = _product_mass(inclusion, structures, leave_out=i)
            sign = 2.0 * structures[:, i] - 1.0
            inclusion[:, i] = torch.sigmoid(others @ (sign * log_probs))
        if float((inclusion - before).abs().max()) < tolerance:
            break
    mass = _product_mass(inclusion, structures)
    lost = (torch.xlogy(mass, mass) - mass * log_probs).sum(1)
    best = int(lost.argmin())
    return Best(truth.log_evidence - float(lost[best]), inclusion[best])


def _product_mass(inclusion: Tensor, structures: Tensor, leave_out: int | None = None) -> Tensor:
    """Probability of every structure (columns) under rows of independent inclusions."""
    there = structures.to(torch.bool)
    each = torch.where(there, inclusion.unsqueeze(1), 1.0 - inclusion.unsqueeze(1))
    if leave_out is not None:
        each[..., leave_out] = 1.0
    return each.prod(-1)


def _ridge(problem: Regression, structures: Tensor) -> Tensor:
    """Posterior means of each structure's weights for centred targets, 0 where an input is not there."""
    x, noise_var = problem.x, problem.noise_std**2
    there = structures.unsqueeze(2) * structures.unsqueeze(1)
    precision = there * (x.T @ x / noise_var) + torch.eye(x.shape[1], dtype=x.dtype) / problem.slab_std**2
    score = structures * (x.T @ (problem.y - problem.y.mean()) / noise_var)
    return torch.linalg.solve(precision, score.unsqueeze(-1)).squeeze(-1)


def _spike_slab_bounds(
    problem: Regression, inclusion: Tensor, mean: Tensor, std: Tensor, bias: Tensor, bias_var: float
) -> Tensor:
    """The bound of each row of parameters, in closed form: the likelihood sees two moments only."""
    x, y, noise_var = problem.x, problem.y, problem.noise_std**2
    fitted = (inclusion * mean) @ x.T + bias.unsqueeze(1)
    spread = (inclusion * (std**2 + (1.0 - inclusion) * mean**2)) @ (x**2).T + bias_var
    log_lik = -0.5 * (((y - fitted) ** 2 + spread) / noise_var + math.log(2.0 * math.pi * noise_var)).sum(1)
    slab, bias_std = problem.slab_std, problem.bias_std
    slab_kl = torch.log(slab / std) - 0.5 + (std**2 + mean**2) / (2.0 * slab**2)
    bias_kl = 0.5 * math.log(bias_std**2 / bias_var) - 0.5 + (bias_var + bias**2) / (2.0 * bias_std**2)
    alpha = problem.inclusion_prob
    structure_kl = torch.xlogy(inclusion, inclusion / alpha)
    structure_kl = structure_kl + torch.xlogy(1.0 - inclusion, (1.0 - inclusion) / (1.0 - alpha))
    return log_lik - bias_kl - (inclusion * slab_kl + structure_kl).sum(1)
