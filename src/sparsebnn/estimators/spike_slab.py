"""``SpikeSlabRegression`` and ``SpikeSlabClassifier``: linear models with sampled inclusion probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import validate_data

from sparsebnn.checks import check_choice, check_number, invalid
from sparsebnn.estimators.spike_slab_base import SpikeSlab
from sparsebnn.selection.marginal import LinearEvidence
from sparsebnn.selection.structure import Evidence


class SpikeSlabRegression(RegressorMixin, SpikeSlab):  # type: ignore[misc]
    """Linear or Poisson regression with spike-and-slab coefficients, by sampling structures.

    Parameters
    ----------
    likelihood : "gaussian", or "poisson" for counts, with a log link.
    noise_std : "learned", or the standard deviation of Gaussian noise if it is known. Slab (and intercept)
        variances are in units of the noise variance if it is learned, in units of the target if it is
        known.
    inclusion_prob : "learned", with a Beta(1, p) prior, integrated out; two numbers, another Beta prior; or a
        fixed probability.
    slab_var : "learned", on a grid from 0.001 to 100; several values, another grid, equally probable a
        priori; or a fixed variance. Of standardized columns if ``standardize``.
    standardize : Center and scale the columns. ``coef_`` is in their own units.
    intercept_std : Prior standard deviation of the intercept, where the columns are 0 (their means if
        ``standardize``). None is a flat prior.
    n_iter, burn_in, n_chains, temperatures : Iterations kept (at most) and discarded, independent chains, and
        the inverse temperatures of the helper chains that run with each of them.
    target_ess : Stop before ``n_iter`` when every input has this effective sample size and R̂ is at most 1.02.
        None always samples ``n_iter`` iterations.
    n_draws : Posterior draws of the coefficients to keep for predictions.
    start : Inclusion probabilities to start from (rows, columns), such as those of variational replicates.
    coverage, min_purity, min_probability, max_false_members : Of the credible sets
        (:func:`sparsebnn.selection.credible_sets`).
    importance_draws : Draws per model with which Laplace's approximation is corrected (Poisson); 0 for none.
    max_seconds : Stop sampling after this time. An interrupt from the keyboard also ends the sampling, not
        the fit.

    Attributes: ``inclusion_``, ``coef_`` and ``intercept_`` (posterior means), ``noise_std_``, ``slab_var_``,
    ``credible_sets_``, ``diagnostics_`` (R̂, effective sample sizes, models visited). Chains that have not
    converged raise a ``ConvergenceWarning``. Constant columns are left out, with inclusion 0.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((60, 5))
    >>> y = X[:, 1] + 0.5 * np.random.default_rng(1).standard_normal(60)
    >>> model = SpikeSlabRegression(n_iter=500, burn_in=100, random_state=0).fit(X, y)
    >>> model.get_support().tolist()
    [False, True, False, False, False]
    >>> print(model.credible_sets_[0])
    x2: probability 1.000, purity 1.00
    """

    def __init__(
        self,
        *,
        likelihood: str = "gaussian",
        noise_std: Any = "learned",
        inclusion_prob: Any = "learned",
        slab_var: Any = "learned",
        standardize: bool = True,
        intercept_std: float | None = None,
        n_iter: int = 3000,
        burn_in: int = 500,
        n_chains: int = 4,
        temperatures: Sequence[float] = (1.0, 0.6, 0.3),
        target_ess: float | None = 1000.0,
        n_draws: int = 1000,
        start: Any = None,
        coverage: float = 0.95,
        min_purity: float = 0.5,
        min_probability: float | None = None,
        max_false_members: float | None = 2.0,
        importance_draws: int = 64,
        max_seconds: float | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.likelihood = likelihood
        self.noise_std = noise_std
        super().__init__(
            inclusion_prob=inclusion_prob,
            slab_var=slab_var,
            standardize=standardize,
            intercept_std=intercept_std,
            n_iter=n_iter,
            burn_in=burn_in,
            n_chains=n_chains,
            temperatures=temperatures,
            target_ess=target_ess,
            n_draws=n_draws,
            start=start,
            coverage=coverage,
            min_purity=min_purity,
            min_probability=min_probability,
            max_false_members=max_false_members,
            importance_draws=importance_draws,
            max_seconds=max_seconds,
            random_state=random_state,
            verbose=verbose,
        )

    def _evidence(
        self, x: np.ndarray, y: np.ndarray, slab_vars: np.ndarray, var: float, seed: int
    ) -> Evidence:
        if self._kind == "poisson":
            return super()._evidence(x, y, slab_vars, var, seed)
        noise_var = None
        if isinstance(self.noise_std, str):
            check_choice(self.noise_std, ("learned",), "noise_std", "SpikeSlabRegression")
        else:
            fits = check_number(
                self.noise_std, "noise_std", "SpikeSlabRegression", "positive", lambda v: v > 0.0
            )
            noise_var = fits**2
        return LinearEvidence(x, y, slab_vars, noise_var, var)

    def fit(self, X: Any, y: Any) -> SpikeSlabRegression:
        """Sample the posterior given rows ``X`` and targets ``y``."""
        check_choice(self.likelihood, ("gaussian", "poisson"), "likelihood", "SpikeSlabRegression")
        self._check_numbers(X, y)
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        y = np.asarray(y, dtype=np.float64)
        self._kind = self.likelihood
        if self._kind == "poisson" and ((y < 0.0).any() or (y != np.round(y)).any()):
            raise invalid("y", "SpikeSlabRegression", "counts (0, 1, 2, …) for likelihood='poisson'", y.min())
        self._sample(X, y)
        if self._kind == "gaussian":
            self.noise_std_ = float(np.sqrt(self._noise_vars.mean()))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The predictive mean of each row; with ``return_std`` also its standard deviation."""
        X = self._checked(X)
        if self._kind == "gaussian" and not return_std:
            return X @ self.coef_ + self.intercept_
        f = self._predictors(X)
        if self._kind == "poisson":
            rate = np.exp(f)
            mean = rate.mean(1)
            return (mean, np.sqrt(mean + rate.var(1))) if return_std else mean
        return X @ self.coef_ + self.intercept_, np.sqrt(f.var(1) + self._noise_vars.mean())


class SpikeSlabClassifier(ClassifierMixin, SpikeSlab):  # type: ignore[misc]
    """Logistic regression of two classes with spike-and-slab coefficients, by sampling structures.

    Parameters and attributes as for :class:`SpikeSlabRegression`, less ``likelihood`` and ``noise_std``, and
    ``classes_``. ``target_ess`` is larger, since draws are counted instead of averaging conditional
    probabilities. Marginal likelihoods are integrated by importance sampling around Laplace's approximation;
    ``diagnostics_["importance_error"]`` is their median relative error. Perfectly separated classes are
    fitted: the slab keeps the coefficients finite.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((200, 4))
    >>> y = np.where(2 * X[:, 2] + np.random.default_rng(1).logistic(size=200) > 0, "yes", "no")
    >>> model = SpikeSlabClassifier(n_iter=300, burn_in=100, random_state=0).fit(X, y)
    >>> model.get_support().tolist(), model.predict([[0, 0, 3, 0]]).tolist()
    ([False, False, True, False], ['yes'])
    """

    _kind = "bernoulli"

    def fit(self, X: Any, y: Any) -> SpikeSlabClassifier:
        """Sample the posterior given rows ``X`` and their classes ``y``."""
        self._check_numbers(X, y)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        if type_of_target(y) != "binary" or len(np.unique(y)) != 2:
            kinds = len(np.unique(y))
            # scikit-learn's checks look for these words.
            raise ValueError(
                f"Only binary classification is supported. SpikeSlabClassifier needs 2 classes, got {kinds} "
                f"{'class' if kinds == 1 else 'classes'}. The type of the target is {type_of_target(y)}."
            )
        self.classes_, codes = np.unique(y, return_inverse=True)
        return self._sample(X, codes.astype(np.float64))

    def decision_function(self, X: Any) -> np.ndarray:
        """The log odds of the second class, from its averaged probability."""
        prob = np.clip(self.predict_proba(X)[:, 1], 1e-300, 1.0 - 1e-16)
        return np.log(prob) - np.log1p(-prob)

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities of both classes, averaged over the posterior."""
        X = self._checked(X)
        second = (0.5 + 0.5 * np.tanh(0.5 * self._predictors(X))).mean(1)
        return np.column_stack([1.0 - second, second])

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class of each row."""
        second = self.predict_proba(X)[:, 1] > 0.5
        return self.classes_[second.astype(int)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
