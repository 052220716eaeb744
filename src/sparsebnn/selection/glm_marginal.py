r"""Marginal likelihoods of logistic and Poisson spike-and-slab models, by Laplace and importance sampling.

.. math::
    p(y \mid \gamma) = \int p(y \mid b + X_\gamma w)\, \mathcal N(w; 0, \tau I)\, p(b)\, db\, dw
    \approx \frac1S \sum_{s=1}^S \frac{p(y, b_s, w_s \mid \gamma)}{g(b_s, w_s)}, \qquad (b_s, w_s) \sim g

g is a Student t at the mode of the integrand, with its curvature, so the weights are bounded and the mean is
unbiased; draws come in pairs mirrored at the mode, and the normal density there, whose integral is known,
is a control variate. Each model is integrated once and its estimate kept, so a chain targets :math:`\hat
p(y \mid \gamma)`, whose relative error :attr:`GLMEvidence.errors` records. With S = 0 the Laplace
approximation is the target.

How much an input that is left out would add is estimated from the score and the curvature at the mode,

.. math::
    \log\frac{p(y \mid \gamma \cup j)}{p(y \mid \gamma)}
    \approx \frac{r_j^2}{2 v_j} - \tfrac12 \log(\tau v_j),
    \quad r_j = x_j^\top (y - \mu), \quad
    v_j = x_j^\top W x_j + \tfrac1\tau - x_j^\top W D A^{-1} D^\top W x_j

with D the included inputs and the constant. These estimates guide proposals; acceptance corrects for them.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np

from sparsebnn.selection.marginal import Coefficients, members

_DF = 8.0  # degrees of freedom of the proposal
_KEPT = 2_000_000  # numbers of gains to remember
_CHUNK = 4_000_000  # numbers in one temporary array
_FACTORS = 1000  # between 1 and 2, whose product is a finite number
_LARGEST = 50.0  # of a linear predictor of log counts, against overflow


class GLMEvidence:
    """Marginal likelihoods for ``kind`` "bernoulli" (0 and 1) or "poisson" (counts), and a grid of slabs."""

    exact = False  # the gains are estimates

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        slab_vars: np.ndarray,
        kind: str,
        intercept_var: float = math.inf,
        importance_draws: int = 64,
        seed: int = 0,
    ) -> None:
        self.x, self.y, self.kind, self.p = x, y, kind, x.shape[1]
        self.slab_vars, self.intercept_precision = slab_vars, 1.0 / intercept_var
        self.pairs = (importance_draws + 1) // 2
        self.squares = x**2
        self.rng = np.random.default_rng(seed)
        self.modes: dict[bytes, np.ndarray] = {}  # the included inputs in order, then the intercept
        self.models: dict[bytes, tuple[float, float]] = {}  # log evidence and its error
        self.gains: OrderedDict[bytes, np.ndarray] = OrderedDict()
        share = np.clip(y.mean(), 1e-3, None)
        self.start = math.log(share) if kind == "poisson" else math.log(share / max(1e-3, 1.0 - share))
        self.constant = float(sum(math.lgamma(v + 1.0) for v in y)) if kind == "poisson" else 0.0

    @property
    def errors(self) -> np.ndarray:
        """Relative standard error of each estimated marginal likelihood."""
        return np.array([error for _, error in self.models.values()])

    # -- the likelihood ------------------------------------------------------------------------------

    def _log_likelihood(self, f: np.ndarray) -> np.ndarray:
        if self.kind == "bernoulli":
            # Σ log(1 + eᶻ) = Σ max(z, 0) + log Π (1 + e^−|z|), with one logarithm for many rows.
            z = (1.0 - 2.0 * self.y) * f
            terms = np.exp(-np.abs(z))
            terms += 1.0
            logs = [np.log(terms[..., at : at + _FACTORS].prod(-1)) for at in range(0, f.shape[-1], _FACTORS)]
            return -np.maximum(z, 0.0, out=z).sum(-1) - np.sum(logs, axis=0)
        return (self.y * f - np.exp(np.minimum(f, _LARGEST))).sum(-1) - self.constant

    def _residual_and_weight(self, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.kind == "bernoulli":
            prob = 0.5 + 0.5 * np.tanh(0.5 * f)
            return self.y - prob, prob * (1.0 - prob)
        mean = np.exp(np.minimum(f, _LARGEST))
        return self.y - mean, mean

    # -- one model -----------------------------------------------------------------------------------

    def _design(self, gamma: np.ndarray, slab: np.ndarray) -> tuple[np.ndarray, ...]:
        """Included inputs and the constant (c, m + 1, n), 0 where padded; mask; prior precisions."""
        index, mask = members(gamma)
        one = np.ones((len(gamma), 1), dtype=bool)
        design = np.concatenate(
            [self.x.T[index] * mask[:, :, None], np.ones((len(gamma), 1, len(self.y)))], 1
        )
        precision = np.where(mask, 1.0 / self.slab_vars[slab][:, None], 1.0)
        precision = np.concatenate([precision, np.full(one.shape, self.intercept_precision)], axis=1)
        return index, np.concatenate([mask, one], axis=1), design, precision

    def _curvature(self, design: np.ndarray, precision: np.ndarray, weight: np.ndarray) -> np.ndarray:
        inner = (design * weight[:, None, :]) @ design.transpose(0, 2, 1)
        at = np.arange(design.shape[1])
        inner[:, at, at] += precision
        # A flat intercept with a vanishing likelihood would leave nothing to invert.
        inner[:, -1, -1] += 1e-10
        return inner

    def _modes(self, design: np.ndarray, precision: np.ndarray) -> np.ndarray:
        """Newton's method for all models together, halving steps that do not climb."""
        mode = np.zeros(precision.shape)
        mode[:, -1] = self.start

        def height(c: np.ndarray) -> np.ndarray:
            return self._log_likelihood((c[:, None, :] @ design)[:, 0]) - 0.5 * (c**2 * precision).sum(1)

        now = height(mode)
        for _ in range(50):
            residual, weight = self._residual_and_weight((mode[:, None, :] @ design)[:, 0])
            slope = np.einsum("cin,cn->ci", design, residual) - precision * mode
            step = np.linalg.solve(self._curvature(design, precision, weight), slope[..., None])[..., 0]
            size = np.ones((len(mode), 1))
            for _ in range(30):
                trial = height(mode + size * step)
                low = ~(trial >= now - 1e-10 * np.abs(now))
                if not low.any():
                    break
                size[low] *= 0.5
            mode, now = mode + size * step, trial
            if np.abs(step).max() < 1e-6:
                break
        return mode

    def _mode(
        self, keys: list[bytes], mask: np.ndarray, design: np.ndarray, precision: np.ndarray
    ) -> np.ndarray:
        """The modes of models, found once for each."""
        fresh = [i for i, key in enumerate(keys) if key not in self.modes]
        if fresh:
            for i, mode in zip(fresh, self._modes(design[fresh], precision[fresh])):
                self.modes[keys[i]] = np.append(mode[:-1][mask[i, :-1]], mode[-1])
        found = np.zeros(mask.shape)
        for i, key in enumerate(keys):
            own = self.modes[key]
            found[i, : len(own) - 1], found[i, -1] = own[:-1], own[-1]
        return found

    def _fit(self, keys: list[bytes], gamma: np.ndarray, slab: np.ndarray) -> None:
        """Integrate the models of ``gamma`` and keep the results."""
        _, mask, design, precision = self._design(gamma, slab)
        mode = self._mode(keys, mask, design, precision)
        log_weight, _, log_normal = self._weights(mode, mask, design, precision, self.rng)
        top = log_weight.max(0)
        # A pair is one observation: its two draws are mirrored.
        ratio = np.exp(log_weight - top).reshape(2, -1, len(gamma)).mean(0)
        mean, pairs = ratio.mean(0), len(ratio)
        error = np.zeros(len(mean))
        if pairs > 1:
            # The normal density at the mode over g has mean 1: what its average misses tells of this one's.
            known = np.exp(log_normal[:pairs])
            off = known - known.mean(0)
            slope = ((ratio - mean) * off).sum(0) / np.maximum((off**2).sum(0), 1e-300)
            better = mean - slope * (known.mean(0) - 1.0)
            ratio = np.where(better > 0.5 * mean, ratio - slope * off, ratio)
            mean = np.where(better > 0.5 * mean, better, mean)
            error = ratio.std(0, ddof=1) / mean / math.sqrt(pairs)
        for key, value, off in zip(keys, top + np.log(mean), error):
            self.models[key] = float(value), float(off)

    def _weights(
        self,
        mode: np.ndarray,
        mask: np.ndarray,
        design: np.ndarray,
        precision: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """log target − log g of draws (s, c), the draws (s, c, m + 1), and log normal − log g.

        Without importance sampling, the Laplace approximation and the mode.
        """
        _, weight = self._residual_and_weight((mode[:, None, :] @ design)[:, 0])
        inverse = np.linalg.inv(np.linalg.cholesky(self._curvature(design, precision, weight)))
        log_det = -2.0 * (np.log(np.einsum("cii->ci", inverse)) * mask).sum(1)
        size = mask.sum(1)
        log_prior = np.where(mask & (precision > 0.0), np.log(np.maximum(precision, 1e-300)), 0.0).sum(1)
        # A flat intercept has density 1; every other coefficient a normal one.
        log_prior = 0.5 * log_prior - 0.5 * math.log(2.0 * math.pi) * (mask & (precision > 0.0)).sum(1)
        if self.pairs == 0:
            drawn = np.repeat(mode[None], 2, axis=0)
            log_density = np.repeat(0.5 * (log_det - size * math.log(2.0 * math.pi))[None], 2, axis=0)
            log_normal = np.zeros_like(log_density)
        else:
            white = rng.standard_normal((self.pairs, *mode.shape)) * mask
            white /= np.sqrt(rng.chisquare(_DF, size=(self.pairs, len(mode), 1)) / _DF)
            away = np.einsum("cij,sci->scj", inverse, white)
            drawn = np.concatenate([mode + away, mode - away])
            lead = np.array([math.lgamma(0.5 * (_DF + d)) for d in size]) - math.lgamma(0.5 * _DF)
            lead += 0.5 * log_det - 0.5 * size * math.log(_DF * math.pi)
            squares = (white**2).sum(2)
            half = lead - 0.5 * (_DF + size) * np.log1p(squares / _DF)
            log_density = np.concatenate([half, half])
            normal = 0.5 * (log_det - size * math.log(2.0 * math.pi) - squares) - half
            log_normal = np.concatenate([normal, normal])
        target = np.empty(drawn.shape[:2])
        step = max(1, _CHUNK // (len(drawn) * len(self.y)))
        for at in range(0, len(mode), step):
            part = slice(at, at + step)
            f = np.moveaxis(np.moveaxis(drawn[:, part], 0, 1) @ design[part], 0, 1)
            target[:, part] = self._log_likelihood(f)
        target += log_prior - 0.5 * (drawn**2 * precision * mask).sum(2)
        return target - log_density, drawn, log_normal

    # -- what the sampler asks for -------------------------------------------------------------------

    def _keys(self, gamma: np.ndarray, slab: np.ndarray) -> list[bytes]:
        packed = np.packbits(gamma, axis=1)
        return [row.tobytes() + int(s).to_bytes(2, "little") for row, s in zip(packed, slab)]

    def log_evidence(self, gamma: np.ndarray, slab: np.ndarray) -> np.ndarray:
        """log p(y | γ) of each row of ``gamma``."""
        keys = self._keys(gamma, slab)
        fresh = {key: i for i, key in enumerate(keys) if key not in self.models}
        if fresh:
            chosen = list(fresh.values())
            self._fit(list(fresh), gamma[chosen], slab[chosen])
        return np.array([self.models[key][0] for key in keys])

    def visit(self, gamma: np.ndarray, slab: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log p(y | γ) of each row of ``gamma`` (c, p), and estimates of its change by one flip (c, p)."""
        return self.log_evidence(gamma, slab), self.scan(gamma, slab)

    def scan(self, gamma: np.ndarray, slab: np.ndarray) -> np.ndarray:
        """Estimated changes of log p(y | γ) by each flip (c, p); needs no integral."""
        keys = self._keys(gamma, slab)
        fresh = {key: i for i, key in enumerate(keys) if key not in self.gains}
        if fresh:
            chosen = list(fresh.values())
            for key, gains in zip(fresh, self._gains(list(fresh), gamma[chosen], slab[chosen])):
                self.gains[key] = gains
        found = []
        for key in keys:
            self.gains.move_to_end(key)
            found.append(self.gains[key])
        while len(self.gains) > max(len(gamma), _KEPT // self.p):
            self.gains.popitem(last=False)
        return np.array(found)

    def _gains(self, keys: list[bytes], gamma: np.ndarray, slab: np.ndarray) -> np.ndarray:
        index, mask, design, precision = self._design(gamma, slab)
        mode = self._mode(keys, mask, design, precision)
        residual, weight = self._residual_and_weight((mode[:, None, :] @ design)[:, 0])
        inverse = np.linalg.inv(np.linalg.cholesky(self._curvature(design, precision, weight)))
        c, m, n = design.shape
        cross = inverse @ ((design * weight[:, None, :]).reshape(c * m, n) @ self.x).reshape(c, m, self.p)
        var = self.slab_vars[slab][:, None]
        v = weight @ self.squares + 1.0 / var - np.einsum("cij,cij->cj", cross, cross)
        v = np.maximum(v, 1.0 / var)
        gains = 0.5 * (residual @ self.x) ** 2 / v - 0.5 * np.log(v * var)
        spread = (inverse**2).sum(1)[:, :-1]
        lost = -0.5 * mode[:, :-1] ** 2 / spread - 0.5 * np.log(spread / var)
        chain, place = np.nonzero(mask[:, :-1])
        gains[chain, index[chain, place]] = lost[chain, place]
        return gains

    def draw(self, gamma: np.ndarray, slab: np.ndarray, rng: np.random.Generator) -> Coefficients:
        """One draw of coefficients and intercept for each row of ``gamma``, resampled by weight."""
        index, mask, design, precision = self._design(gamma, slab)
        mode = self._modes(design, precision)
        kept, self.pairs = self.pairs, max(32, self.pairs)
        log_weight, drawn, _ = self._weights(mode, mask, design, precision, rng)
        self.pairs = kept
        # The largest log weight plus Gumbel noise is a draw in proportion to the weights.
        chosen = (log_weight + rng.gumbel(size=log_weight.shape)).argmax(0)
        values = drawn[chosen, np.arange(len(gamma))] * mask
        share = np.exp(log_weight - log_weight.max(0))
        mean = np.einsum("sc,scm->cm", share / share.sum(0), drawn) * mask
        halves = values[:, :-1], values[:, -1], mean[:, :-1], mean[:, -1]
        return Coefficients(index, *halves, np.ones(len(gamma)))
