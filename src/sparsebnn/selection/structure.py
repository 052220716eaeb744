r"""Sampling which inputs are included: several tempered chains over structures, in one batched program.

.. math::
    P(\gamma, \tau \mid y) \propto p(y \mid \gamma, \tau)\, p(\gamma)\, p(\tau)

The coefficients are integrated out (:mod:`~sparsebnn.selection.marginal`), so a chain moves among structures.
With :math:`t_j` the ratio of the target after and before input j is flipped, one iteration

1. moves one included input: remove a random one and draw its place from all p candidates in proportion to the
   target (a Gibbs step; for generalized linear models, from estimates, with a Metropolis–Hastings
   correction);
2. adds or deletes an input, chosen in proportion to :math:`t_j/(1+t_j)` (Zanella's locally balanced
   proposals, with Barker's function), accepted with the ratio of the normalizing constants;
3. at times moves the slab variance to a neighbor on its grid, and exchanges the states of neighboring
   temperatures; a chain at inverse temperature b targets :math:`p(y \mid \gamma, \tau)^b p(\gamma) p(\tau)`.

Inclusion probabilities are averages of conditional probabilities (Rao–Blackwell) where these are exact. So
are those of credible sets, by drawing the place of the moved input again, 16 times per iteration.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from sparsebnn.selection.convergence import effective_sample_size, split_rhat
from sparsebnn.selection.marginal import Coefficients
from sparsebnn.selection.structure_samples import StructureSamples, draw_places

_BLOCK = 25  # iterations whose conditional probabilities are summed together
_SLAB_EVERY = 2  # iterations
_SMALL, _FLIPS = 200, 3  # with so few inputs a flip is cheap, and an iteration makes several
_NEVER = 0.01  # inputs with less inclusion are not judged for convergence
_MOST_JUDGED = 500  # inputs
_CHECK = 250  # iterations between looks at convergence
_STOP_RHAT = 1.02  # stricter than what counts as converged: the draws that stop a run are also its result


class Evidence(Protocol):
    """What the sampler asks of a model: marginal likelihoods and what flipping each input changes."""

    exact: bool
    p: int
    slab_vars: np.ndarray

    def visit(self, gamma: np.ndarray, slab: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...

    def scan(self, gamma: np.ndarray, slab: np.ndarray) -> np.ndarray: ...

    def draw(self, gamma: np.ndarray, slab: np.ndarray, rng: np.random.Generator) -> Coefficients: ...


def size_log_prior(p: int, inclusion_prob: float | tuple[float, float]) -> np.ndarray:
    r"""log p(γ) of one structure by its size 0 … p: :math:`\alpha^k(1-\alpha)^{p-k}`, or with α ~ Beta(a, b)
    integrated out :math:`B(a + k, b + p - k)/B(a, b)`.

    >>> np.exp(size_log_prior(2, (1.0, 1.0))).round(4).tolist()
    [0.3333, 0.1667, 0.3333]
    """
    sizes = np.arange(p + 1)
    if isinstance(inclusion_prob, tuple):
        a, b = inclusion_prob
        whole = math.lgamma(a + b + p) + math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
        return np.array([math.lgamma(a + k) + math.lgamma(b + p - k) - whole for k in sizes])
    return sizes * math.log(inclusion_prob) + (p - sizes) * math.log1p(-inclusion_prob)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def _pick(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A column of each row, in proportion to the weights."""
    total = np.cumsum(weights, axis=1)
    at = (total < rng.random(len(weights))[:, None] * total[:, -1:]).sum(1)
    return np.minimum(at, weights.shape[1] - 1)


class _Chains:
    """The states of all chains, and their moves."""

    def __init__(
        self,
        evidence: Evidence,
        log_prior: np.ndarray,
        beta: np.ndarray,
        gamma: np.ndarray,
        rng: np.random.Generator,
    ) -> None:
        self.evidence, self.log_prior, self.beta, self.rng = evidence, log_prior, beta, rng
        # What one more or one less costs, by size; flips beyond the ends do not exist.
        steps = np.diff(log_prior)
        self.more, self.less = np.append(steps, -np.inf), np.append(-np.inf, -steps)
        self.gamma = gamma
        # Of stacked data sets each has its own range of slabs, and as many chains as the others.
        self.grid = getattr(evidence, "grid", len(evidence.slab_vars))
        sets = len(evidence.slab_vars) // self.grid
        self.slab = rng.integers(self.grid, size=len(gamma))
        self.slab += self.grid * np.repeat(np.arange(sets), len(gamma) // sets)
        self.moved = np.full(len(gamma), -1)  # the input whose place was drawn last
        self.log_evidence, self.gains = evidence.visit(gamma, self.slab)
        self.rows = np.arange(len(gamma))
        self.flips = self._flips(self.gamma, self.gains, beta)

    def _flips(self, gamma: np.ndarray, gains: np.ndarray, beta: np.ndarray) -> np.ndarray:
        """t/(1 + t) of every flip: the conditional probability that it would be the other way."""
        size = gamma.sum(1)
        prior = np.where(gamma, self.less[size][:, None], self.more[size][:, None])
        return _sigmoid(beta[:, None] * gains + prior)

    def _store(self, at: np.ndarray, gamma: np.ndarray, log_evidence: np.ndarray, gains: np.ndarray) -> None:
        self.gamma[at], self.log_evidence[at], self.gains[at] = gamma, log_evidence, gains

    def flip(self) -> None:
        """Add or delete one input."""
        flips, rng = self.flips, self.rng
        total = flips.sum(1)
        j = _pick(flips, rng)
        gamma = self.gamma.copy()
        gamma[self.rows, j] ^= True
        log_evidence, gains = self.evidence.visit(gamma, self.slab)
        back = self._flips(gamma, gains, self.beta)
        there, here = flips[self.rows, j], back[self.rows, j]
        with np.errstate(divide="ignore", invalid="ignore"):
            log_ratio = np.log(here) - np.log(back.sum(1)) - np.log(there) + np.log(total)
        log_ratio += self.beta * (log_evidence - self.log_evidence)
        log_ratio += self.log_prior[gamma.sum(1)] - self.log_prior[self.gamma.sum(1)]
        at = np.nonzero(np.log(rng.random(len(gamma))) < log_ratio)[0]
        self._store(at, gamma[at], log_evidence[at], gains[at])
        self.flips[at] = back[at]

    def move(self) -> np.ndarray:
        """Draw the place of one included input; returns the conditional inclusions of all inputs."""
        rng = self.rng
        conditional = self.gamma.astype(np.float64)
        self.moved[:] = -1
        size = self.gamma.sum(1)
        at = np.nonzero((size > 0) & (size < self.evidence.p))[0]
        if not len(at):
            return conditional
        gamma, beta, slab = self.gamma[at], self.beta[at], self.slab[at]
        rows = np.arange(len(at))
        i = _pick(gamma.astype(np.float64), rng)
        gamma[rows, i] = False
        self.moved[at] = i
        gains = self.evidence.scan(gamma, slab)
        height = np.where(gamma, -np.inf, beta[:, None] * gains)
        place = np.exp(height - height.max(1, keepdims=True))
        place /= place.sum(1, keepdims=True)
        conditional[at] = np.where(gamma, 1.0, place)
        j = _pick(place, rng)
        gamma[rows, j] = True
        changed = np.nonzero(i != j)[0]
        if not len(changed):
            return conditional
        log_evidence, fresh = self.evidence.visit(gamma[changed], slab[changed])
        keep = changed
        if not self.evidence.exact:
            before = self.log_evidence[at[changed]] - gains[changed, i[changed]]
            log_ratio = beta[changed] * (log_evidence - gains[changed, j[changed]] - before)
            accepted = np.log(rng.random(len(changed))) < log_ratio
            keep, log_evidence, fresh = changed[accepted], log_evidence[accepted], fresh[accepted]
        self._store(at[keep], gamma[keep], log_evidence, fresh)
        self.flips[at[keep]] = self._flips(gamma[keep], fresh, beta[keep])
        return conditional

    def change_slab(self) -> None:
        """Propose the next larger or smaller slab variance."""
        slab = self.slab + np.where(self.rng.random(len(self.slab)) < 0.5, -1, 1)
        at = np.nonzero(slab // self.grid == self.slab // self.grid)[0]
        if not len(at):
            return
        log_evidence, gains = self.evidence.visit(self.gamma[at], slab[at])
        log_ratio = self.beta[at] * (log_evidence - self.log_evidence[at])
        accepted = np.log(self.rng.random(len(at))) < log_ratio
        keep = at[accepted]
        self.slab[keep] = slab[keep]
        self.log_evidence[keep], self.gains[keep] = log_evidence[accepted], gains[accepted]
        self.flips[keep] = self._flips(self.gamma[keep], self.gains[keep], self.beta[keep])

    def exchange(self, temperatures: int, first: int) -> None:
        """Exchange the states of neighboring temperatures, starting with pair ``first``."""
        cold = self.rows.reshape(-1, temperatures)[:, first:-1:2].ravel()
        if not len(cold):
            return
        hot = cold + 1
        gap = (self.beta[cold] - self.beta[hot]) * (self.log_evidence[hot] - self.log_evidence[cold])
        swap = np.log(self.rng.random(len(cold))) < gap
        cold, hot = cold[swap], hot[swap]
        both, other = np.concatenate([cold, hot]), np.concatenate([hot, cold])
        for state in (self.gamma, self.slab, self.log_evidence, self.gains):
            state[both] = state[other]
        self.flips[both] = self._flips(self.gamma[both], self.gains[both], self.beta[both])


def _starts(
    evidence: Evidence, chains: int, start: np.ndarray | None, rng: np.random.Generator
) -> np.ndarray:
    """Dispersed first structures: drawn from given inclusions, or a few inputs by their marginal evidence."""
    p = evidence.p
    if start is not None:
        given = np.atleast_2d(np.asarray(start, dtype=np.float64))
        return rng.random((chains, p)) < given[np.arange(chains) % len(given)]
    empty = np.zeros((1, p), dtype=bool)
    gains = evidence.scan(empty, np.full(1, len(evidence.slab_vars) // 2))
    noisy = 0.5 * gains + rng.gumbel(size=(chains, p))
    place = np.argsort(np.argsort(-noisy, axis=1), axis=1)
    return place < rng.integers(0, min(5, p) + 1, size=(chains, 1))


def sample_structures(
    evidence: Evidence,
    log_prior: np.ndarray,
    *,
    n_iter: int = 3000,
    burn_in: int = 500,
    n_chains: int = 4,
    temperatures: Sequence[float] = (1.0, 0.6, 0.3),
    target_ess: float | None = None,
    start: np.ndarray | None = None,
    seed: int = 0,
    max_seconds: float | None = None,
    verbose: bool = False,
) -> StructureSamples:
    """Sample structures from the posterior.

    ``log_prior`` is that of one structure by its size (:func:`size_log_prior`). ``n_chains`` independent
    ladders of inverse ``temperatures``, the first of which must be 1, run side by side for ``burn_in`` and
    ``n_iter`` iterations. They end before that when every judged input has an effective sample size of
    ``target_ess`` and R̂ is at most 1.02 (checked every 250 iterations, from 500 on), or when
    ``max_seconds`` have passed or the keyboard interrupts; what was sampled by then is returned, less its
    first half at most. ``start`` are inclusion probabilities, one row or several, from which the first
    structures are drawn (those of variational replicates, for example).
    """
    began = time.monotonic()
    rng = np.random.default_rng(seed)
    levels = len(temperatures)
    beta = np.tile(np.asarray(temperatures, dtype=np.float64), n_chains)
    state = _Chains(evidence, log_prior, beta, _starts(evidence, n_chains * levels, start, rng), rng)
    cold = np.arange(0, n_chains * levels, levels)
    packed, slabs, sums = [], [], []
    places = []  # of an input of the structure with which the iteration before ended, and that input
    more = np.random.default_rng([seed, 1])
    gamma = state.gamma[cold]
    total, interrupted, reached = burn_in + n_iter, False, False
    try:
        for step in range(total):
            placed = state.move()[cold]
            if evidence.exact:
                moved = state.moved[cold]
                places.append(np.column_stack([moved, draw_places(placed, gamma, moved, more)]))
            for _ in range(_FLIPS if evidence.p <= _SMALL else 1):
                state.flip()
            if step % _SLAB_EVERY == 0 and state.grid > 1:
                state.change_slab()
            state.exchange(levels, step % 2)
            if step % _BLOCK == 0:
                sums.append(np.zeros((n_chains, evidence.p)))
            gamma = state.gamma[cold]
            if evidence.exact:
                flips = state.flips[cold]
                sums[-1] += 0.5 * (placed + np.where(gamma, 1.0 - flips, flips))
            else:
                sums[-1] += gamma
            packed.append(np.packbits(gamma, axis=1))
            slabs.append(state.slab[cold].copy())
            seconds = time.monotonic() - began
            if verbose and (step + 1) % max(1, total // 10) == 0:
                print(
                    f"iteration {step + 1} of {total}, {seconds:.1f} s, mean size {gamma.sum(1).mean():.1f}"
                )
            if max_seconds is not None and seconds > max_seconds:
                break
            kept = step + 1 - burn_in
            if target_ess is not None and kept >= 2 * _CHECK and kept % _CHECK == 0:
                found = _diagnose(_gather(evidence.p, sums, packed, slabs, burn_in)[0])
                if found["max_rhat"] <= _STOP_RHAT and found["min_ess"] >= target_ess:
                    reached = True
                    break
    except KeyboardInterrupt:
        interrupted = True
        if not slabs:
            raise
    samples, each = _gather(evidence.p, sums, packed, slabs, burn_in)
    samples.by_chain = each
    if evidence.exact:
        first = len(slabs) - len(samples.slab)
        drawn = np.stack([*places[first + 1 : len(slabs) + 1], np.full_like(places[0], -1)])
        samples.moved, samples.places = drawn[: len(samples.slab), :, 0], drawn[: len(samples.slab), :, 1:]
    samples.diagnostics = _diagnose(samples) | {
        "distinct_models": len(np.unique(samples.packed.reshape(-1, samples.packed.shape[-1]), axis=0)),
        "chain_spread": float(np.abs(each - each.mean(0)).max()),
        "iterations": len(slabs),
        "kept": len(samples.slab),
        "chains": n_chains,
        "seconds": time.monotonic() - began,
        "interrupted": interrupted,
        "stopped_early": len(slabs) < total and not reached,
    }
    return samples


def _gather(
    p: int, sums: list[np.ndarray], packed: list[np.ndarray], slabs: list[np.ndarray], burn_in: int
) -> tuple[StructureSamples, np.ndarray]:
    """What was sampled after the burn-in, and the inclusions of each chain."""
    done = len(slabs)
    first = min(burn_in, done // 2) // _BLOCK * _BLOCK
    each = np.sum(sums[first // _BLOCK :], axis=0) / (done - first)
    return StructureSamples(p, each.mean(0), np.stack(packed[first:done]), np.stack(slabs[first:done])), each


def _diagnose(samples: StructureSamples) -> dict[str, Any]:
    """R̂ and effective sample sizes of the inputs that are included at times."""
    judged = np.nonzero(samples.inclusion >= _NEVER)[0]
    judged = judged[np.argsort(-samples.inclusion[judged], kind="stable")][:_MOST_JUDGED]
    traces = samples.gammas(judged).reshape(*samples.slab.shape, len(judged))
    rhat, ess = np.ones(samples.p), np.full(samples.p, float(samples.slab.size))
    if len(judged) and len(traces) >= 4:
        rhat[judged], ess[judged] = split_rhat(traces), effective_sample_size(traces)
    elif len(traces) < 4:
        rhat[:], ess[:] = np.inf, 0.0
    return {
        "rhat": rhat,
        "ess": ess,
        "max_rhat": float(rhat.max()),
        "min_ess": float(ess.min()),
    }
