r"""Carbonetto and Stephens' variational inference for spike-and-slab regression (CS), reimplemented.

.. math::
    \beta_j \sim \pi\,\mathcal N(0, v) + (1 - \pi)\,\delta_0, \qquad
    q(\beta) = \prod_j \big[\alpha_j\,\mathcal N(\mu_j, s_j^2) + (1 - \alpha_j)\,\delta_0\big]

P. Carbonetto and M. Stephens, *Scalable variational inference for Bayesian variable selection in
regression, and its accuracy in genetic association studies*, Bayesian Analysis 7 (2012). The updates
are in :mod:`~studies.baselines.coordinate_ascent`.

With a grid of prior inclusion probabilities the fits are averaged with importance weights,
:math:`w_g \propto \exp(\text{bound}_g)`, a flat prior over the grid. Start k of seed s has its
own generator, seeded s + k: :math:`\alpha` uniform and scaled to sum to 1, :math:`\mu` standard
normal.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sparsebnn.checks import check_choice, check_count, check_rows, invalid
from sparsebnn.inference.metrics import entropy
from sparsebnn.inference.prediction import ClassPrediction, RealPrediction, class_probs
from sparsebnn.likelihoods import Bernoulli
from studies.baselines.coordinate_ascent import Ascent, Problem
from studies.data.columns import Columns, columns, duplicated, refuse_constant

__all__ = ["CarbonettoStephens"]

_OWNER = "CarbonettoStephens"
_CREEPING = 1e-4
# What a finished start leaves behind.
_STATE = ("alpha", "mu", "var", "slab_var", "noise_var", "offset", "total", "weighted_sum", "linear")


def _positive(value: float, what: str) -> float:
    if not (value > 0.0 and np.isfinite(value)):
        raise invalid(what, _OWNER, "positive and finite", value)
    return float(value)


class CarbonettoStephens:
    """Spike-and-slab linear (``likelihood="gaussian"``) or logistic (``"bernoulli"``) regression.

    ``inclusion_prob`` is one prior probability, or a grid that is averaged over by importance weights.
    ``slab_std`` and ``noise_std`` stay as given unless ``fit_slab`` or ``fit_noise`` says to fit them.
    The intercept is integrated out under a flat prior, or N(0, ``intercept_std``²). Of ``restarts``
    random starts the one with the best bound is kept, at each point of the grid. A start is finished
    when no inclusion probability moves by more than ``tolerance`` in a sweep. Once a start only creeps, every
    tenth sweep begins with a leap along the last direction, which is taken back where the bound falls.

    Fitted: ``inclusion_`` (one probability per input), ``names_``, ``coefficients_`` (posterior means),
    ``intercept_``, ``bound_``, ``slab_std_``, ``noise_std_``; ``weights_`` of the grid; and of every
    start, by grid point and start, ``inclusion_starts_`` (G, R, inputs), ``bound_starts_`` (G, R),
    ``sweeps_``, ``converged_``, and ``history_``, the bound after each sweep.

    Inputs are taken as they are: standardise them yourself where that is wanted. Constant columns,
    missing values, text and a single class are refused. Duplicated columns are fitted with a warning:
    the factorised posterior gives their common effect to one of them, by chance. Separated classes are
    no trouble, since the slab keeps the coefficients finite, nor are more inputs than rows.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((200, 3))
    >>> y = (2.0 * x[:, 1] + rng.logistic(size=200) > 0).astype(float)
    >>> CarbonettoStephens(inclusion_prob=0.25).fit(x, y).inclusion_.round(2).tolist()
    [0.06, 1.0, 0.05]
    """

    def __init__(
        self,
        *,
        likelihood: str = "bernoulli",
        inclusion_prob: float | Sequence[float] = 0.25,
        slab_std: float = 1.0,
        fit_slab: bool = False,
        noise_std: float = 1.0,
        fit_noise: bool = False,
        intercept_std: float | None = None,
        restarts: int = 1,
        seed: int = 0,
        tolerance: float = 1e-6,
        max_sweeps: int = 10_000,
    ) -> None:
        self.likelihood, self.inclusion_prob = likelihood, inclusion_prob
        self.slab_std, self.fit_slab = slab_std, fit_slab
        self.noise_std, self.fit_noise = noise_std, fit_noise
        self.intercept_std, self.restarts, self.seed = intercept_std, restarts, seed
        self.tolerance, self.max_sweeps = tolerance, max_sweeps

    # -- fit ------------------------------------------------------------------------------------------

    def fit(self, x: Any, y: Any, names: Sequence[str] | None = None) -> CarbonettoStephens:
        """Climb from every start at every point of the grid, all of them together."""
        table = columns(x, _OWNER, names)
        targets = self._targets(y)
        check_rows([("x", len(table.values)), ("y", len(targets))], _OWNER)
        refuse_constant(table, _OWNER)
        self.duplicates_ = _warn_of(duplicated(table))
        grid, problem = self._grid(), self._problem(table, targets)
        restarts = check_count(self.restarts, "restarts", _OWNER)
        alpha, mu = _starts(restarts, table.values.shape[1], self.seed)
        logit = np.repeat(np.log(grid) - np.log1p(-grid), restarts)
        ascent = Ascent(problem, logit, np.tile(alpha, (len(grid), 1)), np.tile(mu, (len(grid), 1)))
        found = self._climb(ascent)
        self._keep(found, table, grid, restarts)
        return self

    def _climb(self, ascent: Ascent) -> dict[str, Any]:
        """Sweep until every start is finished; finished ones leave."""
        starts, inputs = ascent.alpha.shape
        forth = np.arange(inputs)
        active = np.arange(starts)
        history: list[list[float]] = [[] for _ in active]
        done: dict[str, Any] = {name: np.empty((starts, *getattr(ascent, name).shape[1:])) for name in _STATE}
        done |= {"bound": np.empty(starts), "converged": np.zeros(starts, dtype=bool)}
        leaps = _Leaps()
        for sweep in range(check_count(self.max_sweeps, "max_sweeps", _OWNER)):
            before = ascent.alpha.copy()
            leapt = leaps.prepare(ascent, sweep)
            ascent.sweep(forth if sweep % 2 == 0 else forth[::-1])
            ascent.refit()
            bound = leaps.judge(ascent, ascent.bound()) if leapt else ascent.bound()
            for start, value in zip(active, bound):
                history[start].append(float(value))
            # After a leap, a start that was taken back has not moved and yet is not finished.
            moved = np.abs(ascent.alpha - before).max(1)
            settled = (moved < self.tolerance) & (not leapt)
            last = sweep + 1 == self.max_sweeps
            leaving = settled | last
            if leaving.any():
                out = active[leaving]
                for name in _STATE:
                    done[name][out] = getattr(ascent, name)[leaving]
                done["bound"][out], done["converged"][out] = bound[leaving], settled[leaving]
                active = active[~leaving]
                if len(active) == 0:
                    break
                ascent.keep(~leaving)
                leaps.keep(~leaving)
        return done | {"history": history}

    def _keep(self, found: dict[str, Any], table: Columns, grid: np.ndarray, restarts: int) -> None:
        shape = (len(grid), restarts)
        self.names_ = table.names
        self.inclusion_starts_ = found["alpha"].reshape(*shape, -1)
        self.bound_starts_ = found["bound"].reshape(shape)
        self.converged_ = found["converged"].reshape(shape)
        self.history_ = found["history"]
        self.sweeps_ = np.array([len(each) for each in self.history_]).reshape(shape)
        best = self.bound_starts_.argmax(1) + restarts * np.arange(len(grid))
        self._fits = {name: found[name][best] for name in _STATE}
        bounds = found["bound"][best]
        weights = np.exp(bounds - bounds.max())
        self.grid_, self.weights_ = grid, weights / weights.sum()
        w = self.weights_
        mean = self._fits["alpha"] * self._fits["mu"]
        self.inclusion_, self.coefficients_ = w @ self._fits["alpha"], w @ mean
        self.intercept_ = float(w @ self._intercept(mean, np.arange(len(grid))))
        # The evidence of the whole grid under its flat prior.
        self.bound_ = float(bounds.max() + np.log(np.exp(bounds - bounds.max()).mean()))
        self.slab_std_ = float(np.sqrt(w @ self._fits["slab_var"]))
        self.noise_std_ = float(np.sqrt(w @ self._fits["noise_var"]))

    def _intercept(self, coefficients: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Mean of the intercept given the coefficients, in fits ``which``."""
        pulled = (self._fits["weighted_sum"][which] * coefficients).sum(1)
        return self._fits["offset"][which] - pulled / self._fits["total"][which]

    # -- what is given --------------------------------------------------------------------------------

    def _grid(self) -> np.ndarray:
        grid = np.atleast_1d(np.asarray(self.inclusion_prob, dtype=np.float64))
        if grid.ndim != 1 or len(grid) == 0 or not ((grid > 0.0) & (grid < 1.0)).all():
            got = self.inclusion_prob
            raise invalid("inclusion_prob", _OWNER, "strictly between 0 and 1, one number or a grid", got)
        return grid

    def _problem(self, table: Columns, targets: np.ndarray) -> Problem:
        precision = 0.0
        if self.intercept_std is not None:
            precision = _positive(self.intercept_std, "intercept_std") ** -2
        slab, noise = _positive(self.slab_std, "slab_std"), _positive(self.noise_std, "noise_std")
        _positive(self.tolerance, "tolerance")
        if self.likelihood == "gaussian" and self.fit_noise and np.ptp(targets) == 0.0:
            advice = "Targets that do not vary leave no noise to fit; set fit_noise=False."
            raise invalid("y", _OWNER, "different from row to row", f"{targets[0]} everywhere", advice)
        kinds = (self.fit_slab, self.fit_noise)
        return Problem(table.values, targets, self.likelihood, slab**2, noise**2, precision, *kinds)

    def _targets(self, y: Any) -> np.ndarray:
        check_choice(self.likelihood, ("gaussian", "bernoulli"), "likelihood", _OWNER)
        raw = y.detach().cpu().numpy() if isinstance(y, torch.Tensor) else np.asarray(y)
        if raw.ndim != 1 or raw.dtype.kind not in "biuf":
            got = f"{raw.dtype} of shape {raw.shape}"
            raise invalid("y", _OWNER, "a vector of numbers", got, "Encode classes as 0 and 1.")
        targets = raw.astype(np.float64)
        if not np.isfinite(targets).all():
            got = f"{int((~np.isfinite(targets)).sum())} missing or infinite values"
            raise invalid("y", _OWNER, "finite", got, "Drop those rows first.")
        if self.likelihood == "bernoulli":
            seen = np.unique(targets)
            if not np.isin(seen, (0.0, 1.0)).all():
                raise invalid("y", _OWNER, "0 or 1", f"values such as {seen[:5].tolist()}")
            if len(seen) < 2:
                advice = "Check the labels."
                raise invalid("y", _OWNER, "of both classes", f"only {seen[0]:g}", advice)
        return targets

    # -- predict --------------------------------------------------------------------------------------

    def draw(self, n_draws: int, *, model: str = "average", seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Draws of the coefficients (draws, inputs) and of the intercept (draws,).

        ``model="median"`` keeps the inputs whose inclusion probability exceeds one half.
        """
        check_count(n_draws, "n_draws", _OWNER)
        check_choice(model, ("average", "median"), "model", _OWNER)
        rng = np.random.default_rng(seed)
        which = rng.choice(len(self.grid_), size=n_draws, p=self.weights_)
        mu, std = self._fits["mu"][which], np.sqrt(self._fits["var"][which])
        slab = mu + std * rng.standard_normal(mu.shape)
        there = rng.random(mu.shape) < self._fits["alpha"][which]
        drawn = slab * (there if model == "average" else self.inclusion_ > 0.5)
        spread = rng.standard_normal(n_draws) / np.sqrt(self._fits["total"][which])
        return drawn, self._intercept(drawn, which) + spread

    def predict(
        self, x: Any, n_draws: int = 100, *, model: str = "average", seed: int = 0
    ) -> ClassPrediction | RealPrediction:
        """The predictive distribution of each row, as :func:`sparsebnn.predict` returns it."""
        if not hasattr(self, "inclusion_"):
            raise invalid("fit", _OWNER, "called before predict", "no fit")
        table = columns(x, _OWNER)
        wanted = self.names_ if hasattr(x, "columns") else table.names
        if table.values.shape[1] != len(self.names_) or table.names != wanted:
            advice = "Pass the columns that were fitted, in their order."
            got = f"{len(table.names)} columns from {table.names[0]!r} to {table.names[-1]!r}"
            raise invalid("x", _OWNER, f"of the {len(self.names_)} columns of the fit", got, advice)
        coefficients, intercept = self.draw(n_draws, model=model, seed=seed)
        f = torch.from_numpy(coefficients @ table.values.T + intercept[:, None]).unsqueeze(-1)
        if self.likelihood == "bernoulli":
            each = class_probs(f, Bernoulli())
            return ClassPrediction(each.mean(0), entropy(each).mean(0), n_draws, f.mean(0))
        between, noise = f.var(0, correction=0), self.noise_std_
        generator = np.random.default_rng([seed, 1])
        samples = f + noise * torch.from_numpy(generator.standard_normal(f.shape))
        return RealPrediction(f.mean(0), (between + noise**2).sqrt(), between.sqrt(), samples)


class _Leaps:
    """Every tenth sweep begins with a leap; starts whose bound is then lower are taken back."""

    every = 10

    def __init__(self) -> None:
        self.states: list[dict[str, np.ndarray]] = []
        self.bound = np.empty(0)

    def prepare(self, ascent: Ascent, sweep: int) -> bool:
        """Remember the last sweeps; leap when it is time and say so."""
        phase = sweep % self.every
        if phase in (self.every - 2, self.every - 1):
            self.states.append(ascent.snapshot())
            return False
        if phase != 0 or len(self.states) < 2:
            self.states = []
            return False
        earlier, last = self.states
        self.states, self.bound = [ascent.snapshot()], ascent.bound()
        first = np.linalg.norm(last["linear"] - earlier["linear"], axis=1)
        second = np.linalg.norm(ascent.linear - last["linear"], axis=1)
        ratio = np.clip(second / np.maximum(first, 1e-300), 0.0, 0.995)
        # Which mode a start climbs is left to plain ascent; leaps only shorten the creeping afterwards.
        ratio[np.abs(ascent.alpha - last["alpha"]).max(1) > _CREEPING] = 0.0
        ascent.leap(last, ratio / (1.0 - ratio))
        return True

    def judge(self, ascent: Ascent, bound: np.ndarray) -> np.ndarray:
        """The bounds after a leap and its sweep, or before it where that was better."""
        worse = ~(bound >= self.bound)
        if worse.any():
            ascent.restore(self.states[0], worse)
        self.states = []
        return np.where(worse, self.bound, bound)

    def keep(self, which: np.ndarray) -> None:
        self.states = [{name: value[which] for name, value in state.items()} for state in self.states]


def _starts(restarts: int, inputs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each start begins; start k is the same whatever the number of starts."""
    alpha, mu = np.empty((restarts, inputs)), np.empty((restarts, inputs))
    for k in range(restarts):
        rng = np.random.default_rng(seed + k)
        alpha[k] = rng.random(inputs)
        alpha[k] /= alpha[k].sum()
        mu[k] = rng.standard_normal(inputs)
    return alpha, mu


def _warn_of(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    if pairs:
        shown = ", ".join(f"{a!r} = {b!r}" for a, b in pairs[:5])
        warnings.warn(
            f"{len(pairs)} columns hold the same numbers as an earlier one ({shown}). Their common effect "
            "goes to one of them, by chance; read their inclusion probabilities together.",
            stacklevel=3,
        )
    return pairs
