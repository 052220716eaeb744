"""What a trained regression is worth: its bound, what z adds to it, and the bound without r.

Everything is an average over fresh draws and comes with its standard error.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import vmap

import sparsebnn
from sparsebnn.nn.passes import PosteriorPass, WeightPass, noise_size
from sparsebnn.posteriors import FlowFamily
from sparsebnn.posteriors.priors import gaussian_log_prob
from sparsebnn.random.noise import NoiseBuffer, NoiseSize, RandomNoise
from sparsebnn.training import Objective
from studies.bounds.exact_regression import Regression

__all__ = ["elbo", "information", "layer_of", "marginal_bounds", "noise_blocks"]

_DTYPE = torch.float64


def noise_blocks(
    size: NoiseSize, shape: tuple[int, ...], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """RandomNoise normal and logistic numbers for ``shape`` passes."""
    fresh, like = RandomNoise(generator), torch.zeros((), dtype=_DTYPE)
    return fresh.normal((*shape, size.normal), like), fresh.logistic((*shape, size.logistic), like)


def _mean_and_error(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std()) / math.sqrt(len(values))


@torch.no_grad()
def elbo(objective: Objective, n_draws: int, seed: int) -> tuple[float, float]:
    """The bound and its standard error, from fresh draws of the posterior itself.

    Families that draw their weights relax their inclusions in training; their posterior does not, so
    here whole weights are drawn exactly and the divergence is the closed form.
    """
    layer, likelihood = layer_of(objective), objective.likelihood
    drawn = layer.weights.draws_weights
    kind = WeightPass if drawn else PosteriorPass
    assert layer.biases is not None
    fixed = (
        layer.weights.kl(RandomNoise()) + layer.biases.kl(RandomNoise())
        if drawn
        else torch.zeros((), dtype=_DTYPE)
    )
    nothing = torch.zeros_like(objective.get_buffer("network.targets"))
    size = noise_size(objective.network, nothing, kind)

    def one(normal: Tensor, logistic: Tensor) -> Tensor:
        with kind(NoiseBuffer(normal, logistic)) as opened:
            residuals = objective.network(nothing)
        kl = fixed if drawn else opened.kl()
        return -likelihood.nll(residuals, nothing).sum() - kl

    generator = torch.Generator().manual_seed(seed)
    return _mean_and_error(vmap(one)(*noise_blocks(size, (n_draws,), generator)))


def layer_of(objective: Objective) -> sparsebnn.Linear:
    layer = objective.network.layer
    assert isinstance(layer, sparsebnn.Linear)
    return layer


@torch.no_grad()
def information(weights: FlowFamily, n_draws: int, seed: int) -> tuple[float, float]:
    """E[log r(z | W, Γ) − log q(z)] and its standard error: all that z can add to a mean-field bound."""
    p = weights.dim
    size = NoiseSize(2 * p, p if _inclusions(weights) else 0)

    def one(normal: Tensor, logistic: Tensor) -> Tensor:
        # The same block of noise twice gives the same z twice.
        z, _ = weights.draw_z(NoiseBuffer(normal, logistic))
        whole = weights.sample(NoiseBuffer(normal, logistic)).kl
        return weights.conditional.closed_form_kl(weights.scale(z)) - whole

    generator = torch.Generator().manual_seed(seed)
    return _mean_and_error(vmap(one)(*noise_blocks(size, (n_draws,), generator)))


def _inclusions(weights: FlowFamily) -> bool:
    return hasattr(weights.conditional, "inclusion_logit")


@torch.no_grad()
def marginal_bounds(
    objective: Objective, problem: Regression, n_draws: int, seed: int
) -> tuple[float, float, float]:
    r"""The flow's bound without the auxiliary r: a lower and an upper estimate, and a standard error.

    .. math::
        \mathbb E_q[\log p(y, W, \Gamma) - \log q(W, \Gamma)], \qquad
        q(W, \Gamma) = \mathbb E_{q(z)}\,q(W, \Gamma \mid z)

    The inner average runs over the z of all draws. With a draw's own z among them the density is
    estimated too high, without it too low (in expectation of the logarithm), which brackets the truth.
    """
    layer = layer_of(objective)
    weights = layer.weights
    assert isinstance(weights, FlowFamily)
    generator = torch.Generator().manual_seed(seed)
    z = _draw_z(weights, n_draws, generator)
    centre, std = z * weights.posterior_mean()[0], weights.conditional.std[0]
    slab = centre + std * torch.randn(centre.shape, generator=generator, dtype=_DTYPE)
    inclusion = weights.inclusion_prob()[0]
    there = (torch.rand(slab.shape, generator=generator, dtype=_DTYPE) < inclusion).to(_DTYPE)
    common = _log_joint(layer, problem, slab, there)
    if _inclusions(weights):
        common = common - _log_structure_ratio(there, inclusion, problem.inclusion_prob)
    # log N(w_j; z_k μ, σ²), summed over the included weights, for every two draws j and k.
    log_var = 2.0 * torch.log(std)
    each = torch.stack([(t * gaussian_log_prob(w, centre, log_var)).sum(1) for w, t in zip(slab, there)])
    with_own = torch.logsumexp(each, 1) - math.log(n_draws)
    others = each.masked_fill(torch.eye(n_draws, dtype=torch.bool), -math.inf)
    without_own = torch.logsumexp(others, 1) - math.log(n_draws - 1)
    low, error = _mean_and_error(common - with_own)
    return low, float((common - without_own).mean()), error


def _draw_z(weights: FlowFamily, n_draws: int, generator: torch.Generator) -> Tensor:
    noise = torch.randn(n_draws, weights.dim, generator=generator, dtype=_DTYPE)
    return vmap(lambda eps: weights.draw_z(NoiseBuffer(eps, eps[:0]))[0])(noise)


def _log_joint(layer: sparsebnn.Linear, problem: Regression, slab: Tensor, there: Tensor) -> Tensor:
    """E_b[log p(y | W, Γ, b)] − KL(b) + log p(W | Γ) of each draw; the bias needs no drawing."""
    biases, noise_var = layer.biases, problem.noise_std**2
    assert biases is not None
    fitted = (there * slab) @ problem.x.T + biases.mean
    squares = ((problem.y - fitted) ** 2 + biases.std**2) / noise_var
    log_lik = -0.5 * (squares + math.log(2.0 * math.pi * noise_var)).sum(1)
    slab_log_var = torch.tensor(2.0 * math.log(problem.slab_std), dtype=_DTYPE)
    log_prior = (there * gaussian_log_prob(slab, torch.zeros_like(slab_log_var), slab_log_var)).sum(1)
    return log_lik + log_prior - biases.closed_form_kl()


def _log_structure_ratio(there: Tensor, inclusion: Tensor, prior: float) -> Tensor:
    """log q(Γ) − log p(Γ) of each draw."""
    present = torch.xlogy(there, inclusion / prior)
    return (present + torch.xlogy(1.0 - there, (1.0 - inclusion) / (1.0 - prior))).sum(1)
