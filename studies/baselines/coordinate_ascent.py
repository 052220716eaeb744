r"""Coordinate ascent for spike-and-slab regression: all starts of a problem climb together.

Linear and logistic regression have one form. Given the working weights u and the working response t,

.. math::
    \log p(y \mid \beta, b) \ge c + \sum_i \big(t_i f_i - \tfrac12 u_i f_i^2\big), \qquad f = b + X\beta

with :math:`u_i = 1/\sigma^2,\ t_i = y_i/\sigma^2` for Gaussian noise (an equality), and with
:math:`u_i = (\operatorname{sigmoid}(\eta_i) - \tfrac12)/\eta_i,\ t_i = y_i - \tfrac12` for classes
(Jaakkola and Jordan's bound, :math:`\eta_i > 0` free). The intercept's prior is
:math:`\mathcal N(0, 1/\kappa)`, flat for :math:`\kappa = 0`; integrating it out leaves a quadratic form

.. math::
    \beta^\top X^\top \hat t - \tfrac12 \beta^\top X^\top \hat U X \beta, \qquad
    \hat U = \operatorname{diag}(u) - u u^\top / S, \quad \hat t = t - u\, (1^\top t) / S, \quad
    S = 1^\top u + \kappa

The posterior of each coefficient is spike and slab, :math:`(\alpha_j, \mu_j, s_j^2)`. The optimum of one
coefficient given the others, with :math:`m_j = \alpha_j\mu_j` and v the slab's variance, is

.. math::
    s_j^{-2} = (X^\top \hat U X)_{jj} + v^{-1}, \quad
    \mu_j = s_j^2\,\Big(x_j^\top \hat t - \sum_{k \ne j} (X^\top \hat U X)_{jk} m_k\Big), \quad
    \operatorname{logit}\alpha_j = \operatorname{logit}\pi + \tfrac12\log\frac{s_j^2}{v}
    + \frac{\mu_j^2}{2 s_j^2}

Every update raises the bound. No matrix of inputs × inputs is formed: :math:`u \circ X m` is kept up to
date instead, so that an update costs two passes over the rows. Leading axis everywhere: the starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Ascent", "Problem"]

_LOG_2PI = float(np.log(2.0 * np.pi))


@dataclass(frozen=True)
class Problem:
    """What is fitted. ``kind`` is "gaussian" or "bernoulli"; a flat intercept has ``intercept_precision`` 0.

    ``fit_slab`` and ``fit_noise`` maximise the bound over the slab's and the noise's variance; the
    given values are then where they start.
    """

    x: np.ndarray
    y: np.ndarray
    kind: str
    slab_var: float
    noise_var: float
    intercept_precision: float
    fit_slab: bool = False
    fit_noise: bool = False


def log_sigmoid(a: np.ndarray) -> np.ndarray:
    return -np.logaddexp(0.0, -a)


class Ascent:
    """The state of R starts and the updates that climb. ``logit`` is each start's prior log-odds, (R,)."""

    def __init__(self, problem: Problem, logit: np.ndarray, alpha: np.ndarray, mu: np.ndarray) -> None:
        self.problem = problem
        self.x = np.asfortranarray(problem.x)
        self.square = self.x**2
        self.logit, self.alpha, self.mu = logit, alpha.copy(), mu.copy()
        starts, rows = len(logit), len(problem.y)
        self.slab_var: np.ndarray = np.full(starts, problem.slab_var)
        self.noise_var = np.full(starts, problem.noise_var)
        self.eta = np.ones((starts, rows))
        self.linear = (alpha * mu) @ self.x.T
        self._weigh()
        self.var = 1.0 / (self.curvature + 1.0 / self.slab_var[:, None])

    def keep(self, which: np.ndarray) -> None:
        """Go on with these starts only."""
        for name, value in vars(self).items():
            if name not in ("problem", "x", "square"):
                setattr(self, name, value[which])

    # -- the quadratic form -------------------------------------------------------------------------

    def _weigh(self) -> None:
        """Everything that depends on the working weights alone."""
        if self.problem.kind == "gaussian":
            self.u = np.repeat(1.0 / self.noise_var[:, None], self.x.shape[0], axis=1)
            self.t = self.problem.y / self.noise_var[:, None]
        else:
            # (sigmoid(η) − ½)/η = tanh(η/2)/(2η), whose limit at 0 is ¼.
            eta = np.maximum(self.eta, 1e-8)
            self.u = np.tanh(0.5 * eta) / (2.0 * eta)
            self.t = np.broadcast_to(self.problem.y - 0.5, self.u.shape)
        self.total = self.u.sum(1) + self.problem.intercept_precision
        self.weighted_sum = self.u @ self.x
        self.curvature = self.u @ self.square - self.weighted_sum**2 / self.total[:, None]
        self.curvature = np.maximum(self.curvature, 0.0)
        self.offset = self.t.sum(1) / self.total
        self.score = self.t @ self.x - self.weighted_sum * self.offset[:, None]

    def sweep(self, order: np.ndarray) -> None:
        """Update every coefficient once, in this order."""
        self.var = 1.0 / (self.curvature + 1.0 / self.slab_var[:, None])
        gain = self.logit[:, None] + 0.5 * np.log(self.var / self.slab_var[:, None])
        pull = self.u * self.linear
        summed = pull.sum(1)
        mean = self.alpha * self.mu
        scaled_sum = self.weighted_sum / self.total[:, None]
        for j in order:
            column = self.x[:, j]
            old, var = mean[:, j].copy(), self.var[:, j]
            others = pull @ column - scaled_sum[:, j] * summed - self.curvature[:, j] * old
            mu = var * (self.score[:, j] - others)
            log_odds = gain[:, j] + 0.5 * mu * mu / var
            alpha = 0.5 + 0.5 * np.tanh(0.5 * log_odds)
            step = alpha * mu - old
            self.mu[:, j], self.alpha[:, j], mean[:, j] = mu, alpha, old + step
            pull += step[:, None] * (self.u * column)
            summed += step * self.weighted_sum[:, j]
        # Afresh, so that rounding does not pile up over sweeps.
        self.linear = mean @ self.x.T

    # -- leaps along slow directions ----------------------------------------------------------------

    def snapshot(self) -> dict[str, np.ndarray]:
        """Everything that moves."""
        fixed = ("problem", "x", "square", "logit")
        return {name: value.copy() for name, value in vars(self).items() if name not in fixed}

    def leap(self, earlier: dict[str, np.ndarray], factor: np.ndarray) -> None:
        """Go on along the last sweep's direction, ``factor`` times its length.

        Where the slab or η creep, sweeps shrink by a constant ratio r, and r/(1 − r) steps at once lead to
        the limit. Variances and η move on the logarithmic scale, by at most a factor of e.
        """
        self.mu = self.mu + factor[:, None] * (self.mu - earlier["mu"])
        for name in ("slab_var", "noise_var", "eta"):
            now = getattr(self, name)
            far = factor if now.ndim == 1 else factor[:, None]
            change = np.clip(far * np.log(now / earlier[name]), -1.0, 1.0)
            setattr(self, name, now * np.exp(change))
        self.linear = (self.alpha * self.mu) @ self.x.T
        self._weigh()

    def restore(self, kept: dict[str, np.ndarray], which: np.ndarray) -> None:
        """Take these starts back to where they were."""
        for name, old in kept.items():
            now = getattr(self, name)
            setattr(self, name, np.where(which.reshape(-1, *[1] * (now.ndim - 1)), old, now))

    # -- what else the bound depends on -------------------------------------------------------------

    def coefficient_var(self) -> np.ndarray:
        return self.alpha * (self.var + (1.0 - self.alpha) * self.mu**2)

    def fitted(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of f at every row, the intercept following the coefficients."""
        centre = self.weighted_sum / self.total[:, None]
        mean = (self.offset - (self.u * self.linear).sum(1) / self.total)[:, None] + self.linear
        var = self.coefficient_var()
        spread = var @ self.square.T - 2.0 * (var * centre) @ self.x.T + (var * centre**2).sum(1)[:, None]
        return mean, np.maximum(spread, 0.0) + 1.0 / self.total[:, None]

    def refit(self) -> None:
        """The best η, noise and slab variance for the present coefficients."""
        problem = self.problem
        if problem.kind == "bernoulli":
            mean, var = self.fitted()
            self.eta = np.sqrt(mean**2 + var)
        elif problem.fit_noise:
            mean, var = self.fitted()
            self.noise_var = ((problem.y - mean) ** 2 + var).mean(1)
        if problem.fit_slab:
            mass = self.alpha.sum(1)
            fresh = (self.alpha * (self.var + self.mu**2)).sum(1) / np.maximum(mass, 1e-300)
            # With hardly anything included the data say nothing about the slab.
            self.slab_var = np.where(mass > 1e-6, fresh, self.slab_var)
        if problem.kind == "bernoulli" or problem.fit_noise:
            self._weigh()

    def bound(self) -> np.ndarray:
        """The bound on log p(y) of each start; with a flat intercept up to its density of 1."""
        m, var = self.alpha * self.mu, self.coefficient_var()
        pulled = (self.u * self.linear).sum(1)
        quadratic = (self.u * self.linear**2).sum(1) - pulled**2 / self.total
        spread = (self.curvature * var).sum(1)
        expected = (self.score * m).sum(1) - 0.5 * (quadratic + spread)
        return self._constant() + expected - self._divergence()

    def _constant(self) -> np.ndarray:
        problem, rows = self.problem, len(self.problem.y)
        if problem.kind == "gaussian":
            each = -0.5 * rows * (_LOG_2PI + np.log(self.noise_var))
            each = each - 0.5 * (problem.y**2).sum() / self.noise_var
        else:
            eta = self.eta
            each = (log_sigmoid(eta) - 0.5 * eta + 0.5 * self.u * eta**2).sum(1)
        precision = problem.intercept_precision
        prior = _LOG_2PI if precision == 0.0 else np.log(precision)
        return each + 0.5 * (prior - np.log(self.total)) + 0.5 * self.total * self.offset**2

    def _divergence(self) -> np.ndarray:
        """KL of the coefficients from their spike-and-slab prior."""
        slab_var = self.slab_var[:, None]
        slab = 0.5 * (np.log(slab_var / self.var) - 1.0 + (self.var + self.mu**2) / slab_var)
        alpha, log_in = self.alpha, log_sigmoid(self.logit)[:, None]
        log_out = log_sigmoid(-self.logit)[:, None]
        inside = alpha * (slab + np.log(np.maximum(alpha, 1e-300)) - log_in)
        outside = (1.0 - alpha) * (np.log(np.maximum(1.0 - alpha, 1e-300)) - log_out)
        return (inside + outside).sum(1)
