r"""Exact inclusion probabilities where no closed form helps: evidence by importance sampling, and MCMC.

.. math::
    p(y \mid \gamma) = \int p(y \mid b, \beta)\, \mathcal N(b; 0, \sigma_b^2)
    \prod_{j \in \gamma} \mathcal N(\beta_j; 0, \sigma_w^2)\, db\, d\beta, \qquad
    P(\gamma \mid y) \propto p(y \mid \gamma) \prod_j \alpha^{\gamma_j} (1-\alpha)^{1-\gamma_j}

For each structure :math:`\gamma` the mode and curvature of the integrand are found by Newton's method;
a Student t there is the proposal g, whose tails are heavier than any posterior's under a Gaussian prior,
so that the weights are bounded and

.. math:: p(y \mid \gamma) = \mathbb E_g\big[p(y, b, \beta \mid \gamma) / g(b, \beta)\big]

has an error that can be computed. Logistic and Gaussian likelihoods; for the latter the answer is also
known in closed form (:mod:`~studies.bounds.exact_regression`).

The Markov chain is a check that shares no integral with this: Metropolis–Hastings over structure and
coefficients together, proposing to flip one input or to swap two and drawing all coefficients of the
proposed structure from its t.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

__all__ = ["Chain", "Exact", "SpikeSlabProblem", "enumerate_structures", "exact_inclusion", "mcmc"]

_DF = 8.0  # degrees of freedom of the proposal


@dataclass(frozen=True)
class SpikeSlabProblem:
    """Data and prior beliefs; ``kind`` is "bernoulli" or "gaussian" (with ``noise_std``)."""

    x: np.ndarray
    y: np.ndarray
    kind: str = "bernoulli"
    noise_std: float = 1.0
    inclusion_prob: float = 0.25
    slab_std: float = 1.0
    bias_std: float = 1.0

    @functools.cached_property
    def design(self) -> np.ndarray:
        """Inputs and, last, the constant."""
        return np.column_stack([self.x, np.ones(len(self.y))])

    @functools.cached_property
    def outer(self) -> np.ndarray:
        """The outer product of each row of the design, flattened: XᵀWX is then weights times this."""
        return (self.design[:, :, None] * self.design[:, None, :]).reshape(len(self.y), -1)

    @property
    def prior_std(self) -> np.ndarray:
        return np.append(np.full(self.x.shape[1], self.slab_std), self.bias_std)

    def log_likelihood(self, f: np.ndarray) -> np.ndarray:
        """Σ log p(y | f) over the last axis."""
        if self.kind == "bernoulli":
            return -np.logaddexp(0.0, (1.0 - 2.0 * self.y) * f).sum(-1)
        constant = len(self.y) * math.log(self.noise_std * math.sqrt(2.0 * math.pi))
        return -0.5 * (((self.y - f) / self.noise_std) ** 2).sum(-1) - constant

    def log_prior(self, structures: np.ndarray) -> np.ndarray:
        inside, outside = math.log(self.inclusion_prob), math.log1p(-self.inclusion_prob)
        return structures @ np.full(structures.shape[1], inside - outside) + structures.shape[1] * outside


def enumerate_structures(p: int) -> np.ndarray:
    """The 2^p rows of zeros and ones.

    >>> enumerate_structures(2).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    """
    return ((np.arange(2**p)[:, None] >> np.arange(p)) & 1).astype(np.float64)


class Proposal(NamedTuple):
    """The t of each structure: mode, inverse factor of the precision, log determinant, dimension.

    An input that is not there keeps its prior's precision and no link to the others; it counts in nothing.
    """

    mode: np.ndarray
    spread: np.ndarray
    log_det: np.ndarray
    there: np.ndarray

    def of(self, index: np.ndarray) -> Proposal:
        return Proposal(*(each[index] for each in self))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients (…, structures, p + 1), 0 where not there, and their log density."""
        white = rng.standard_normal((*shape, *self.mode.shape))
        scale = np.sqrt(rng.chisquare(_DF, size=(*shape, len(self.mode), 1)) / _DF)
        white = white / scale * self.there
        drawn = self.mode + np.einsum("sij,...sj->...si", self.spread, white)
        return drawn * self.there, self._log_density((white**2).sum(-1))

    def _log_density(self, squares: np.ndarray) -> np.ndarray:
        size = self.there.sum(-1)
        constant = (
            _log_gamma(0.5 * (_DF + size)) - math.lgamma(0.5 * _DF) - 0.5 * size * math.log(_DF * math.pi)
        )
        return constant + 0.5 * self.log_det - 0.5 * (_DF + size) * np.log1p(squares / _DF)


def _log_gamma(values: np.ndarray) -> np.ndarray:
    return np.vectorize(math.lgamma)(values)


def propose(problem: SpikeSlabProblem, structures: np.ndarray, tolerance: float = 1e-9) -> Proposal:
    """Newton's method for all structures at once, halving a step that does not climb.

    A loose ``tolerance`` makes a worse proposal, not a wrong answer.
    """
    design, precision = problem.design, problem.prior_std**-2
    there = np.column_stack([structures, np.ones(len(structures))])
    coefficients = np.zeros_like(there)

    def height(c: np.ndarray) -> np.ndarray:
        return problem.log_likelihood(c @ design.T) - 0.5 * (c**2 @ precision)

    now = height(coefficients)
    for _ in range(50):
        slope, curvature = _derivatives(problem, design, precision, coefficients, there)
        step = np.linalg.solve(curvature, slope[..., None])[..., 0]
        size = np.ones((len(there), 1))
        for _ in range(30):
            trial = height(coefficients + size * step)
            low = trial < now - 1e-12 * np.abs(now)
            if not low.any():
                break
            size[low] *= 0.5
        coefficients, now = coefficients + size * step, trial
        if np.abs(step).max() < tolerance:
            break
    _, curvature = _derivatives(problem, design, precision, coefficients, there)
    factor = np.linalg.cholesky(curvature)
    log_det = 2.0 * (np.log(np.diagonal(factor, axis1=1, axis2=2)) * there).sum(1)
    # curvature = L Lᵀ, so L⁻ᵀ times white noise has the curvature as its precision.
    spread = np.linalg.inv(factor).transpose(0, 2, 1)
    return Proposal(coefficients, spread, log_det, there)


def _derivatives(
    problem: SpikeSlabProblem,
    design: np.ndarray,
    precision: np.ndarray,
    coefficients: np.ndarray,
    there: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and negative Hessian of the log integrand, for each structure."""
    f = coefficients @ design.T
    if problem.kind == "bernoulli":
        prob = 0.5 + 0.5 * np.tanh(0.5 * f)
        residual, weight = problem.y - prob, prob * (1.0 - prob)
    else:
        residual = (problem.y - f) / problem.noise_std**2
        weight = np.full_like(f, problem.noise_std**-2)
    slope = there * (residual @ design) - precision * coefficients
    size = design.shape[1]
    gram = (weight @ problem.outer).reshape(-1, size, size)
    curvature = gram * there[:, :, None] * there[:, None, :] + np.diag(precision)
    return slope, curvature


def _log_target(problem: SpikeSlabProblem, drawn: np.ndarray, there: np.ndarray) -> np.ndarray:
    """log p(y, b, β | γ), over the included coefficients only."""
    std = problem.prior_std
    prior = -0.5 * (drawn / std) ** 2 - np.log(std) - 0.5 * math.log(2.0 * math.pi)
    return problem.log_likelihood(drawn @ problem.design.T) + (prior * there).sum(-1)


class Exact(NamedTuple):
    """Inclusion probabilities, the log evidence, and their Monte Carlo standard errors."""

    inclusion: np.ndarray
    inclusion_se: np.ndarray
    log_evidence: float
    log_evidence_se: float
    probs: np.ndarray


def exact_inclusion(problem: SpikeSlabProblem, n_draws: int = 1000, seed: int = 0) -> Exact:
    """All 2^p structures, each integrated by importance sampling; errors by the delta method."""
    structures = enumerate_structures(problem.x.shape[1])
    proposal = propose(problem, structures)
    rng = np.random.default_rng(seed)
    logs, variances = np.empty(len(structures)), np.empty(len(structures))
    chunk = max(1, int(4e6 // (n_draws * len(problem.y))))
    for start in range(0, len(structures), chunk):
        part = proposal.of(np.arange(start, min(start + chunk, len(structures))))
        drawn, log_density = part.draw(rng, (n_draws,))
        log_weight = _log_target(problem, drawn, part.there) - log_density
        top = log_weight.max(0)
        weight = np.exp(log_weight - top)
        mean = weight.mean(0)
        logs[start : start + chunk] = top + np.log(mean)
        variances[start : start + chunk] = weight.var(0, ddof=1) / n_draws / mean**2
    joint = logs + problem.log_prior(structures)
    evidence = float(joint.max() + np.log(np.exp(joint - joint.max()).sum()))
    probs = np.exp(joint - evidence)
    inclusion = probs @ structures
    # d inclusion_i / d log p_γ = p_γ (γ_i − inclusion_i); the structures' errors are independent.
    slopes = probs[:, None] * (structures - inclusion)
    errors = np.sqrt((slopes**2 * variances[:, None]).sum(0))
    evidence_se = math.sqrt(float((probs**2 * variances).sum()))
    return Exact(inclusion, errors, evidence, evidence_se, probs)


# --- the Markov chain --------------------------------------------------------------------------------


class Chain(NamedTuple):
    """Inclusion frequencies over all chains, their standard error between chains, and acceptance."""

    inclusion: np.ndarray
    inclusion_se: np.ndarray
    acceptance: float
    structures_seen: int


class _Book:
    """The proposals of the structures met so far."""

    def __init__(self, problem: SpikeSlabProblem) -> None:
        self.problem = problem
        self.place: dict[bytes, int] = {}
        self.all: Proposal | None = None

    def look_up(self, structures: np.ndarray) -> Proposal:
        keys = [row.tobytes() for row in structures.astype(np.int8)]
        fresh = {key: i for i, key in enumerate(keys) if key not in self.place}
        if fresh:
            made = propose(self.problem, structures[list(fresh.values())], tolerance=1e-2)
            for key in fresh:
                self.place[key] = len(self.place)
            old = self.all
            self.all = made if old is None else Proposal(*(np.concatenate(pair) for pair in zip(old, made)))
        assert self.all is not None
        return self.all.of(np.array([self.place[key] for key in keys]))


def mcmc(
    problem: SpikeSlabProblem, steps: int = 4000, chains: int = 50, warmup: float = 0.2, seed: int = 0
) -> Chain:
    """Run chains side by side, each from a structure drawn from the prior."""
    rng = np.random.default_rng(seed)
    p, book = problem.x.shape[1], _Book(problem)
    state = (rng.random((chains, p)) < problem.inclusion_prob).astype(np.float64)
    log_weight = _log_weight(problem, book, state, rng)
    counts, kept, accepted = np.zeros((chains, p)), 0, 0
    first = int(warmup * steps)
    for step in range(steps):
        proposed = _moved(state, rng)
        fresh = _log_weight(problem, book, proposed, rng)
        # Flips and swaps are symmetric; what is left is the ratio of two importance weights.
        better = np.log(rng.random(chains)) < fresh - log_weight
        state = np.where(better[:, None], proposed, state)
        log_weight = np.where(better, fresh, log_weight)
        if step >= first:
            counts, kept, accepted = counts + state, kept + 1, accepted + int(better.sum())
    each = counts / kept
    error = each.std(0, ddof=1) / math.sqrt(chains)
    return Chain(each.mean(0), error, accepted / (kept * chains), len(book.place))


def _log_weight(
    problem: SpikeSlabProblem, book: _Book, structures: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Target over proposal of a draw of coefficients for each structure; the draw itself is not needed."""
    proposal = book.look_up(structures)
    drawn, log_density = proposal.draw(rng, ())
    target = _log_target(problem, drawn, proposal.there) + problem.log_prior(structures)
    return target - log_density


def _moved(state: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Flip one input, or exchange an included one for an excluded one; half of the time each.

    Where nothing can be exchanged the structure stays: flipping instead would favour moves out of there.
    """
    chains, p = state.shape
    moved = state.copy()
    rows = np.arange(chains)
    flip: np.ndarray = rng.integers(p, size=(chains,))
    noise = rng.random((2, chains, p))
    leaving: np.ndarray = np.where(state > 0, noise[0], -1.0).argmax(axis=1)
    entering: np.ndarray = np.where(state > 0, -1.0, noise[1]).argmax(axis=1)
    wanted = rng.random(chains) < 0.5
    swap = wanted & (state.sum(1) > 0) & (state.sum(1) < p)
    moved[rows[~wanted], flip[~wanted]] = 1.0 - moved[rows[~wanted], flip[~wanted]]
    moved[rows[swap], leaving[swap]] = 0.0
    moved[rows[swap], entering[swap]] = 1.0
    return moved
