r"""Marginal likelihoods of linear spike-and-slab models, and how they change with one input more or less.

.. math::
    y = b + X_\gamma w + \varepsilon, \quad \varepsilon \sim \mathcal N(0, \sigma^2 I), \quad
    b \sim \mathcal N(0, s_b^2) \text{ or flat}

With known noise :math:`w \sim \mathcal N(0, \tau I)` (absolute units). With unknown noise
:math:`w \mid \sigma \sim \mathcal N(0, \tau\sigma^2 I)`, :math:`b \mid \sigma \sim \mathcal N(0,
s_b^2\sigma^2)` and :math:`p(\sigma^2) \propto 1/\sigma^2`: the slab is then in units of the noise. Both are
exact. Integrating out :math:`b` replaces :math:`X^\top X` by :math:`G = X^\top M X` and :math:`X^\top y` by
:math:`c = X^\top M y`, with :math:`M = I - k 11^\top` (centering, if b is flat), and with :math:`A =
G_\gamma + I/\tau`, :math:`Q = c_\gamma^\top A^{-1} c_\gamma`

.. math::
    \log p(y \mid \gamma) = -\tfrac12\log\det(\tau A) + h(Q), \qquad
    h(Q) = \tfrac12 Q \;\text{ or }\; -\tfrac\nu2 \log(y^\top M y - Q)

(for known noise G and c are divided by :math:`\sigma^2`; constants are left out). Adding j changes the
determinant by :math:`v_j = G_{jj} + 1/\tau - G_{j\gamma}A^{-1}G_{\gamma j}` and Q by :math:`r_j^2/v_j`,
:math:`r_j = c_j - G_{j\gamma}A^{-1}c_\gamma`; removing j does so by
:math:`1/(A^{-1})_{jj}` and :math:`\mu_j^2/(A^{-1})_{jj}`. All p changes together cost :math:`O(|\gamma|^2
p)`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

_WHOLE_GRAM = 5000  # inputs; with more, rows of XᵀX are computed when first needed
_CHUNK = 4_000_000  # numbers in one temporary array


def members(gamma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The included inputs of each row, padded to the longest: indices and a mask.

    >>> index, mask = members(np.array([[True, False, True], [False, True, False]]))
    >>> index.tolist(), mask.tolist()
    ([[0, 2], [1, 0]], [[True, True], [True, False]])
    """
    sizes = gamma.sum(1)
    mask = np.arange(int(sizes.max(initial=0)))[None, :] < sizes[:, None]
    index = np.zeros(mask.shape, dtype=np.intp)
    index[mask] = np.nonzero(gamma)[1]
    return index, mask


class Coefficients(NamedTuple):
    """A draw from the posterior given each structure, and its mean; (c, m) with 0 where padded."""

    columns: np.ndarray
    values: np.ndarray
    intercept: np.ndarray
    mean: np.ndarray
    intercept_mean: np.ndarray
    noise_var: np.ndarray


class _Gram:
    """Rows of XᵀX: all of them at once, or each when it is first asked for."""

    def __init__(self, x: np.ndarray, whole: bool) -> None:
        self.x = x
        self.table = x.T @ x if whole else np.empty((64, x.shape[1]))
        self.slot = np.arange(x.shape[1]) if whole else np.full(x.shape[1], -1)
        self.used = x.shape[1] if whole else 0

    def rows(self, index: np.ndarray) -> np.ndarray:
        if self.used == len(self.slot):
            return self.table[self.slot[index]]
        fresh = np.unique(index[self.slot[index] < 0])
        if len(fresh):
            end = self.used + len(fresh)
            if end > len(self.table):
                more = np.empty((max(end, 2 * len(self.table)) - len(self.table), self.x.shape[1]))
                self.table = np.concatenate([self.table, more])
            self.table[self.used : end] = self.x[:, fresh].T @ self.x
            self.slot[fresh] = np.arange(self.used, end)
            self.used = end
        return self.table[self.slot[index]]


class LinearEvidence:
    """Marginal likelihoods of a linear model, for a grid of slab variances.

    ``noise_var`` None means unknown noise; ``intercept_var`` infinity means a flat prior.
    """

    exact = True  # the gains are the changes themselves, not estimates of them

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        slab_vars: np.ndarray,
        noise_var: float | None = None,
        intercept_var: float = math.inf,
    ) -> None:
        rows, unit = len(y), 1.0 if noise_var is None else noise_var
        relative = intercept_var / unit
        # M = I − k 11ᵀ = (I − h 11ᵀ)², so that columns can be transformed once.
        k = 1.0 / rows if math.isinf(relative) else relative / (1.0 + rows * relative)
        h = (1.0 - math.sqrt(max(0.0, 1.0 - k * rows))) / rows
        self.x_sum, self.y_sum, self.k = x.sum(0), float(y.sum()), k
        moved = (x - h * self.x_sum) / math.sqrt(unit)
        target = (y - h * self.y_sum) / math.sqrt(unit)
        self.p, self.slab_vars, self.noise_var = x.shape[1], slab_vars, noise_var
        self.gram = _Gram(moved, self.p <= _WHOLE_GRAM)
        self.diagonal = np.einsum("ij,ij->j", moved, moved)
        self.score = moved.T @ target
        self.total = max(float(target @ target), 1e-280)
        self.degrees = rows - (1.0 if math.isinf(relative) else 0.0)
        self.intercept_sd = math.sqrt(k)  # in units of the noise

    def _height(self, q: np.ndarray, total: float | np.ndarray) -> np.ndarray:
        if self.noise_var is not None:
            return 0.5 * q
        return -0.5 * self.degrees * np.log(np.maximum(total - q, 1e-12 * total))

    def _of(self, index: np.ndarray, slab: np.ndarray) -> tuple[np.ndarray, ...]:
        """Rows of G, its diagonal, c, yᵀMy and the slab variance of each structure."""
        many = (len(slab), self.p)
        rest = np.broadcast_to(self.diagonal, many), np.broadcast_to(self.score, many)
        return self.gram.rows(index), *rest, np.full(len(slab), self.total), self.slab_vars[slab]

    def _factor(
        self, index: np.ndarray, mask: np.ndarray, rows: np.ndarray, score: np.ndarray, var: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The inverse Cholesky factor of A, and its product with c."""
        inner = np.take_along_axis(rows, index[:, None, :], axis=2) * (mask[:, :, None] & mask[:, None, :])
        at = np.arange(index.shape[1])
        inner[:, at, at] += np.where(mask, 1.0 / var[:, None], 1.0)
        inverse = np.linalg.inv(np.linalg.cholesky(inner))
        # Zero rows keep padding out of every product below.
        inverse *= mask[:, :, None] & mask[:, None, :]
        white = np.einsum("cij,cj->ci", inverse, np.take_along_axis(score, index, axis=1))
        return inverse, white

    def visit(self, gamma: np.ndarray, slab: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log p(y | γ) of each row of ``gamma`` (c, p), and its change by each flip (c, p)."""
        width = int(gamma.sum(1).max(initial=0))
        step = max(1, _CHUNK // max(1, width * self.p))
        parts = [
            self._visit(gamma[at : at + step], slab[at : at + step]) for at in range(0, len(gamma), step)
        ]
        return np.concatenate([first for first, _ in parts]), np.concatenate([second for _, second in parts])

    def scan(self, gamma: np.ndarray, slab: np.ndarray) -> np.ndarray:
        """The changes of log p(y | γ) by each flip (c, p)."""
        return self.visit(gamma, slab)[1]

    def _visit(self, gamma: np.ndarray, slab: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        index, mask = members(gamma)
        rows, diagonal, score, total, var = self._of(index, slab)
        inverse, white = self._factor(index, mask, rows, score, var)
        cross = inverse @ rows
        q = (white**2).sum(1)
        r = score - (white[:, None, :] @ cross)[:, 0]
        least = 1.0 / var[:, None]
        v = diagonal + least - np.einsum("cij,cij->cj", cross, cross)
        np.maximum(v, least, out=v)
        now = self._height(q, total)
        r *= r
        r /= v
        r += q[:, None]
        gains = self._height(r, total[:, None]) - now[:, None]
        v *= var[:, None]
        gains -= 0.5 * np.log(v)
        spread = np.where(mask, (inverse**2).sum(1), 1.0)
        mean = np.einsum("cij,ci->cj", inverse, white)
        lost = self._height(q[:, None] - mean**2 / spread, total[:, None]) - now[:, None]
        lost -= 0.5 * np.log(spread / var[:, None])
        chain, place = np.nonzero(mask)
        gains[chain, index[chain, place]] = lost[chain, place]
        # log det A = −2 Σ log diag L⁻¹
        factor = np.einsum("cii->ci", inverse)
        log_det = (np.log(np.where(mask, factor**2 / var[:, None], 1.0))).sum(1)
        return now + 0.5 * log_det, gains

    def draw(self, gamma: np.ndarray, slab: np.ndarray, rng: np.random.Generator) -> Coefficients:
        """One draw of coefficients, intercept and noise for each row of ``gamma``."""
        index, mask = members(gamma)
        rows, _, score, _, var = self._of(index, slab)
        inverse, white = self._factor(index, mask, rows, score, var)
        rest = np.maximum(self.total - (white**2).sum(1), 1e-12 * self.total)
        if self.noise_var is None:
            noise_var = rest / rng.chisquare(self.degrees, size=len(gamma))
            unit = noise_var
        else:
            noise_var, unit = np.full(len(gamma), self.noise_var), np.ones(len(gamma))
        noise = rng.standard_normal(white.shape) * np.sqrt(unit)[:, None]
        mean = np.einsum("cij,ci->cj", inverse, white)
        values = mean + np.einsum("cij,ci->cj", inverse, noise)
        center, centers = (self.k * (self.y_sum - (w * self.x_sum[index]).sum(1)) for w in (mean, values))
        intercept = centers + self.intercept_sd * np.sqrt(noise_var) * rng.standard_normal(len(gamma))
        return Coefficients(index, values, intercept, mean, center, noise_var)
