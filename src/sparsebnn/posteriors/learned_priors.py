"""Priors that learn from the posterior: empirical Bayes, and the hierarchical priors of LBBNN."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import check_choice, check_number, check_positive, invalid
from sparsebnn.posteriors.priors import (
    Prior,
    SpikeSlabPrior,
    Value,
    checked_args,
    gaussian_kl,
    grouped_kl,
    inverse_softplus,
)

__all__ = ["EmpiricalPrior", "GammaPrecisionPrior", "HierarchicalPrior"]


class EmpiricalPrior(SpikeSlabPrior):
    r"""A spike-and-slab prior whose slab scale, and if wanted inclusion rate, the posterior chooses.

    Empirical Bayes: of all priors of this form the one under which the bound is largest, in closed form
    and again at every step. A layer with :math:`N` weights shares

    .. math::
        \hat\sigma^2 = \frac{s\,\sigma_0^2 + \sum_i \tilde\alpha_i\,(\tilde\sigma_i^2 + (\tilde\mu_i-\mu)^2)}
        {s + \sum_i \tilde\alpha_i}, \qquad
        \hat\alpha = \frac{c\,\alpha_0 + \frac1N\sum_i \tilde\alpha_i}{c + 1}

    :math:`\sigma_0` is ``std`` and :math:`\alpha_0` is ``inclusion_prob``. ``strength`` (s) counts as so
    many weights and ``inclusion_strength`` (c) as so many times the layer's weights: with every weight
    excluded, the prior is the one that was given. The inclusion rate is learned only with
    ``learn_inclusion``, and is at most ``max_inclusion``; the slab scale is learned unless ``learn_std`` is
    False.

    ``per`` says what shares a scale: the ``"layer"``, each ``"input"`` or each ``"output"`` (filter).

    >>> prior = EmpiricalPrior(strength=1.0)
    >>> there = torch.ones(3, 3, dtype=torch.float64)
    >>> prior.fitted_std(inclusion=there, std=0.0 * there, squared_error=4.0 * there).item() ** 2
    3.7
    """

    def __init__(
        self,
        inclusion_prob: Value = 0.1,
        mean: Value = 0.0,
        std: Value = 1.0,
        *,
        per: str = "layer",
        strength: float = 1.0,
        learn_inclusion: bool = False,
        inclusion_strength: float = 0.1,
        learn_std: bool = True,
        max_inclusion: float = 1.0,
    ) -> None:
        super().__init__(inclusion_prob, mean, std)
        self.per = check_choice(per, ("layer", "input", "output"), "per", "EmpiricalPrior")
        expected = (
            "finite and greater than 0"  # with none, a layer whose weights all go would have no prior left
        )
        self.strength, self.inclusion_strength = (
            check_number(value, name, "EmpiricalPrior", expected, lambda v: 0.0 < v < math.inf)
            for name, value in (("strength", strength), ("inclusion_strength", inclusion_strength))
        )
        self.learn_inclusion, self.learn_std = bool(learn_inclusion), bool(learn_std)
        self.max_inclusion = check_number(
            max_inclusion, "max_inclusion", "EmpiricalPrior", "from 0 to 1", lambda v: 0.0 < v <= 1.0
        )

    def _sum(self, t: Tensor) -> Tensor:
        """Over the weights that share, kept in a shape that multiplies them."""
        kept = {"layer": None, "output": 0, "input": 1}[self.per]
        axes = [axis for axis in range(t.dim()) if axis != kept]
        return t.sum(axes, keepdim=True)

    def fitted_std(self, inclusion: Tensor, std: Tensor, squared_error: Tensor) -> Tensor:
        """The slab scale that the posterior asks for, or the one given."""
        if not self.learn_std:
            return self.std
        squares = self.strength * self.std**2 + self._sum(inclusion * (std**2 + squared_error))
        return torch.sqrt(squares / (self.strength + self._sum(inclusion.expand_as(std))))

    def fitted_inclusion(self, inclusion: Tensor) -> Tensor:
        """The inclusion rate that the posterior asks for, or the one given."""
        if not self.learn_inclusion:
            return self.inclusion_prob
        mean = self._sum(inclusion) / self._sum(torch.ones_like(inclusion))
        share = self.inclusion_strength
        return ((share * self.inclusion_prob + mean) / (1.0 + share)).clamp_max(self.max_inclusion)

    def values(self, inclusion: Tensor, std: Tensor, squared_error: Tensor) -> tuple[Tensor, Tensor]:
        """What was learned."""
        return self.fitted_std(inclusion, std, squared_error), self.fitted_inclusion(inclusion)

    def kl(self, logit: Tensor, inclusion: Tensor, std: Tensor, squared_error: Tensor) -> Tensor:
        """The divergence from the fitted prior.

        At its optimum the bound does not change with the prior to first order, so no gradient needs to
        pass through the fit (the pseudo-weights move the optimum a little; the gradient is that of the
        divergence at the prior as fitted).
        """
        scale = self.fitted_std(inclusion, std, squared_error).detach()
        rate = self.fitted_inclusion(inclusion).detach()
        return grouped_kl(gaussian_kl(std, squared_error, scale), logit, inclusion, torch.logit(rate))


class _Hyper(Prior):
    """Shared by the priors that learn: positive hyperparameters behind a softplus."""

    drawn = True

    def __init__(self) -> None:
        super().__init__()
        self._drawn: dict[str, bool] = {}

    def _learn(self, name: str, value: Value | None) -> None:
        """Register a hyperparameter: at the value given, or (None) drawn from U(1, 1.1) at every reset."""
        self._drawn[f"raw_{name}"] = value is None
        positive = check_positive(*checked_args(1.0 if value is None else value, name, type(self).__name__))
        if positive.ndim:
            advice = "The hyperparameters are shared by all weights of a layer."
            raise invalid(name, type(self).__name__, "a scalar", f"shape {tuple(positive.shape)}", advice)
        self.register_parameter(f"raw_{name}", nn.Parameter(inverse_softplus(positive)))

    def given(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.named_parameters() if not self._drawn[name]}

    def _value(self, name: str) -> Tensor:
        raw: Tensor = getattr(self, f"raw_{name}")
        return F.softplus(raw)

    def reset_parameters(self) -> None:
        """Start the hyperparameters that were not given at U(1, 1.1), as the paper's baseline does."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if self._drawn[name]:
                    parameter.copy_(inverse_softplus(1.0 + 0.1 * torch.rand_like(parameter)))


def _gamma_precision_log_prob(count: Tensor, sum_squares: Tensor, shape: Tensor, rate: Tensor) -> Tensor:
    """Log of the integral over the shared precision, for ``count`` weights; see the classes below."""
    posterior_shape = shape + 0.5 * count
    return (
        torch.lgamma(posterior_shape)
        - torch.lgamma(shape)
        + shape * torch.log(rate)
        - posterior_shape * torch.log(rate + 0.5 * sum_squares)
        - 0.5 * math.log(2.0 * math.pi) * count
    )


class GammaPrecisionPrior(_Hyper):
    r"""Gaussian weights whose precision, shared by the tensor, is Gamma and integrated out.

    .. math::
        p(w_1,\dots,w_n) = \int \operatorname{Gamma}(\tau; a, b)
        \prod_i \mathcal N(w_i; 0, \tau^{-1})\, d\tau
        = \frac{\Gamma(a + n/2)\, b^a}{\Gamma(a)\, (2\pi)^{n/2}\,
          \left(b + \tfrac12\sum_i w_i^2\right)^{a + n/2}}

    :math:`a` (``shape``) and :math:`b` (``rate``) are learned. Used for the biases of LBBNN.
    """

    def __init__(self, shape: Value | None = None, rate: Value | None = None) -> None:
        super().__init__()
        self._learn("shape", shape)
        self._learn("rate", rate)

    def log_prob(self, weight: Tensor) -> Tensor:
        """Joint log density of all entries of ``weight``."""
        count = torch.full_like(self._value("shape"), float(weight.numel()))
        return _gamma_precision_log_prob(count, (weight**2).sum(), self._value("shape"), self._value("rate"))


class HierarchicalPrior(_Hyper):
    r"""The prior of the LBBNN baseline: a layer shares one unknown precision and one inclusion rate.

    With :math:`N` weights, :math:`n = \sum_i\gamma_i` of them included, and both shared unknowns
    integrated out,

    .. math::
        \tau \sim \operatorname{Gamma}(a, b), \quad
        w_i \mid \gamma_i{=}1 \sim \mathcal N(0, \tau^{-1}), \quad
        \psi \sim \operatorname{Beta}(c, d), \quad \gamma_i \sim \operatorname{Bernoulli}(\psi)

    .. math::
        \log p(w, \gamma) =
        \log\frac{\Gamma(a + n/2)\, b^a}{\Gamma(a) (2\pi)^{n/2}
             (b + \frac12\sum_i\gamma_i w_i^2)^{a + n/2}}
        + \log\frac{B(c + n,\; d + N - n)}{B(c, d)}

    :math:`a` (``shape``), :math:`b` (``rate``), :math:`c` (``included``) and :math:`d`
    (``excluded``) are learned per layer. For a single weight the second term is
    Bernoulli(:math:`c/(c+d)`).
    """

    def __init__(
        self,
        shape: Value | None = None,
        rate: Value | None = None,
        included: Value | None = None,
        excluded: Value | None = None,
    ) -> None:
        super().__init__()
        self._learn("shape", shape)
        self._learn("rate", rate)
        self._learn("included", included)
        self._learn("excluded", excluded)

    @property
    def inclusion_prob(self) -> Tensor:
        """The prior mean of the inclusion rate, :math:`c/(c+d)`."""
        included = self._value("included")
        return included / (included + self._value("excluded"))

    def values(self, inclusion: Tensor, std: Tensor, squared_error: Tensor) -> tuple[Tensor, Tensor]:
        """The slab's std at the prior mean of its precision, :math:`\\sqrt{b/a}`, and :math:`c/(c+d)`."""
        return torch.sqrt(self._value("rate") / self._value("shape")), self.inclusion_prob

    def log_prob(self, weight: Tensor, inclusion: Tensor) -> Tensor:
        """Joint log density of weights and inclusions; inclusions may be relaxed to [0, 1]."""
        count = inclusion.sum()
        total = float(weight.numel())
        included, excluded = self._value("included"), self._value("excluded")
        structure = (
            torch.lgamma(included + count)
            + torch.lgamma(excluded + total - count)
            - torch.lgamma(included + excluded + total)
            - torch.lgamma(included)
            - torch.lgamma(excluded)
            + torch.lgamma(included + excluded)
        )
        slab = _gamma_precision_log_prob(
            count, (inclusion * weight**2).sum(), self._value("shape"), self._value("rate")
        )
        return slab + structure
