"""``gaussian`` and ``spike_slab``: independent weights, with or without inclusions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import check_choice, invalid
from sparsebnn.init import Initial, Start, fill
from sparsebnn.kernels import spike_slab as fused
from sparsebnn.kernels.dispatch import for_capture
from sparsebnn.posteriors.base import Family, Moments, Sample
from sparsebnn.posteriors.learned_priors import GammaPrecisionPrior
from sparsebnn.posteriors.priors import GaussianPrior, Prior, SpikeSlabPrior, gaussian_log_prob
from sparsebnn.random.noise import Noise


def softplus_std(raw: Tensor) -> Tensor:
    """The positive scale behind a raw parameter."""
    return F.softplus(raw)


def squared_error(
    mean: Tensor, prior_mean: Tensor, scale: Tensor | None, scale_square: Tensor | None
) -> Tensor:
    """(mean·scale − prior_mean)², or its average over scales given their first two moments."""
    if scale is None:
        return (mean - prior_mean) ** 2
    if scale_square is None:
        return (mean * scale - prior_mean) ** 2
    return mean**2 * scale_square - 2.0 * mean * prior_mean * scale + prior_mean**2


def gaussian_entropy(std: Tensor) -> Tensor:
    """Entropy of a Gaussian, elementwise."""
    return torch.log(std.clamp_min(torch.finfo(std.dtype).tiny)) + 1.4189385332046727


class Gaussian(Family):
    r"""Dense mean field.

    .. math:: q(W) = \prod_{ij} \mathcal N(\tilde\mu_{ij}, \tilde\sigma_{ij}^2)

    ``scale`` (where a verb takes it) multiplies the means, as the flow family's z does.
    """

    name = "gaussian"
    priors = (GaussianPrior, GammaPrecisionPrior)

    def __init__(
        self,
        shape: Sequence[int],
        prior: Prior | None = None,
        initial: Initial = Initial(),
        *,
        mean_start: Start | None = None,
        raw_std_start: Start | None = None,
    ) -> None:
        super().__init__(shape, initial)
        self.prior = self._own(prior)
        self._starts = (mean_start or initial.mean, raw_std_start or initial.raw_std)
        self.mean = nn.Parameter(torch.empty(self.shape))
        self.raw_std = nn.Parameter(torch.empty(self.shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        fill(self.mean, self._starts[0])
        fill(self.raw_std, self._starts[1])
        if isinstance(self.prior, GammaPrecisionPrior):
            self.prior.reset_parameters()

    @property
    def std(self) -> Tensor:
        return softplus_std(self.raw_std)

    def inclusion_prob(self) -> Tensor:
        return torch.ones_like(self.mean)

    def posterior_mean(self) -> Tensor:
        return self.mean

    def moments(self, scale: Tensor | None = None) -> Moments:
        """Mean and variance of the weights."""
        mean = self.mean if scale is None else self.mean * scale
        return Moments(mean, self.std**2)

    def scaled_moments(self, scale: Tensor) -> Moments:
        """Moments that keep ``scale`` apart: a row for every example, or one for all."""
        return Moments(self.mean, self.std**2, scale)

    def local(self, noise: Noise, batch: int = 1) -> Moments:
        return self.moments()

    def draw(self, noise: Noise, scale: Tensor | None = None) -> Tensor:
        mean = self.mean if scale is None else self.mean * scale
        return mean + self.std * noise.normal(self.shape, self.mean)

    def draw_matched(self, noise: Noise, scale: Tensor | None = None) -> Tensor:
        """A draw with the moments of the weights; here the same as :meth:`draw`."""
        return self.draw(noise, scale)

    def draw_for_gradient(self, noise: Noise, scale: Tensor | None = None) -> Tensor:
        """A draw through which gradients reach every parameter; here the same as :meth:`draw`."""
        return self.draw(noise, scale)

    def median_draw(self, noise: Noise, scale: Tensor | None = None) -> Tensor:
        """Every weight is included, so the median model is the model."""
        return self.draw(noise, scale)

    def log_density(self, weight: Tensor, scale: Tensor | None = None) -> Tensor:
        mean = self.mean if scale is None else self.mean * scale
        return gaussian_log_prob(weight, mean, 2.0 * self.std.log()).sum()

    def closed_form_kl(self, scale: Tensor | None = None, scale_square: Tensor | None = None) -> Tensor:
        """Divergence from a :class:`GaussianPrior`, exact; averaged over scales if given their moments."""
        assert isinstance(self.prior, GaussianPrior)
        error = squared_error(self.mean, self.prior.mean, scale, scale_square)
        return self.prior.slab_kl(self.std, error).sum()

    def moments_and_kl(self, scale: Tensor | None = None) -> tuple[Moments, Tensor]:
        """:meth:`moments` and :meth:`closed_form_kl`, with what they share made once."""
        assert isinstance(self.prior, GaussianPrior)
        if (
            scale is None
            and self.mean.is_cuda
            and for_capture()
            and fused.applies(self.mean, self.prior.mean, self.prior.std)
        ):
            mean, var, kl = fused.moments_and_kl(
                self.mean, self.raw_std, None, (self.prior.mean, self.prior.std)
            )
            return Moments(mean, var), kl
        std, mean = self.std, self.mean if scale is None else self.mean * scale
        return Moments(mean, std**2), self.prior.slab_kl(std, (mean - self.prior.mean) ** 2).sum()

    def kl(self, noise: Noise) -> Tensor:
        """The divergence; with a Gamma precision prior an unbiased one-draw estimate of it."""
        if isinstance(self.prior, GaussianPrior):
            return self.closed_form_kl()
        return self.sample_weights(noise).kl

    def sample(self, noise: Noise, batch: int = 1) -> Sample:
        if not isinstance(self.prior, GaussianPrior):
            return self.sample_weights(noise)
        moments, kl = self.moments_and_kl()
        return Sample(moments, None, kl)

    def sample_weights(self, noise: Noise) -> Sample:
        weight = self.draw(noise)
        if isinstance(self.prior, GaussianPrior):
            return Sample(None, weight, self.closed_form_kl())
        assert isinstance(self.prior, GammaPrecisionPrior)
        return Sample(None, weight, -gaussian_entropy(self.std).sum() - self.prior.log_prob(weight))


class SpikeSlab(Family):
    r"""A weight is included with probability :math:`\tilde\alpha`, and then Gaussian.

    .. math::
        q(w_{ij} \mid \gamma_{ij}) = \gamma_{ij}\,\mathcal N(\tilde\mu_{ij}, \tilde\sigma_{ij}^2)
        + (1-\gamma_{ij})\,\delta_0, \qquad
        q(\gamma_{ij}) = \operatorname{Bernoulli}(\tilde\alpha_{ij})

    Its moments are

    .. math::
        \mathbb E\,w = \tilde\alpha\tilde\mu, \qquad
        \operatorname{Var} w = \tilde\alpha\,(\tilde\sigma^2 + (1-\tilde\alpha)\,\tilde\mu^2)

    ``scale`` (where a verb takes it) multiplies :math:`\tilde\mu`, as the flow family's z does.

    ``group_by`` says which weights share one inclusion variable: each ``"weight"`` has its own, or all
    weights of an ``"input"`` of a dense layer or of an ``"output"`` (a neuron, a filter) share one, which
    counts once in the KL. With one :math:`\gamma_j` per output the output itself is gated, and with
    m and v the mean and variance of its sum over the weights,

    .. math::
        \mathbb E\,h_j = \tilde\alpha_j m_j, \qquad
        \operatorname{Var} h_j = \tilde\alpha_j v_j + \tilde\alpha_j(1-\tilde\alpha_j)\,m_j^2 .
    """

    name = "spike_slab"
    priors: tuple[type[Prior], ...] = (SpikeSlabPrior,)

    def __init__(
        self,
        shape: Sequence[int],
        prior: Prior | None = None,
        initial: Initial = Initial(),
        *,
        group_by: str = "weight",
    ) -> None:
        super().__init__(shape, initial)
        owner = f"the {self.name!r} family"
        self.group_by = check_choice(group_by, ("weight", "input", "output"), "group_by", owner)
        if group_by == "input" and len(self.shape) > 2:
            advice = "The weights of a filter can share, the taps of an input channel cannot."
            raise invalid("group_by", owner, "'weight' or 'output' in a convolution", repr(group_by), advice)
        self.prior = self._own(prior)
        if isinstance(self.prior, SpikeSlabPrior):
            self.prior.check_groups(self.group_shape)
        self.mean = nn.Parameter(torch.empty(self.shape))
        self.raw_std = nn.Parameter(torch.empty(self.shape))
        self.inclusion_logit = nn.Parameter(torch.empty(self.group_shape))
        self.reset_parameters()

    @property
    def group_shape(self) -> tuple[int, ...]:
        """The shape of the inclusions; it broadcasts to the weights."""
        if self.group_by == "weight":
            return self.shape
        kept = 0 if self.group_by == "output" else 1
        return tuple(n if axis == kept else 1 for axis, n in enumerate(self.shape))

    def reset_parameters(self) -> None:
        fill(self.mean, self.initial.mean)
        fill(self.raw_std, self.initial.raw_std)
        fill(self.inclusion_logit, self.initial.inclusion_logit)

    @property
    def std(self) -> Tensor:
        return softplus_std(self.raw_std)

    def inclusion_prob(self) -> Tensor:
        return self.group_prob().expand(self.shape)

    def group_prob(self) -> Tensor:
        return torch.sigmoid(self.inclusion_logit)

    def posterior_mean(self) -> Tensor:
        return self.mean

    def moments(self, scale: Tensor | None = None) -> Moments:
        """Mean and variance of the weights, inclusions averaged over.

        With ``group_by="output"`` those of included weights, and the inclusion of each output as ``gate``.
        """
        mean = self.mean if scale is None else self.mean * scale
        return self._moments(torch.sigmoid(self.inclusion_logit), self.std, mean)

    def _moments(self, inclusion: Tensor, std: Tensor, mean: Tensor) -> Moments:
        if self.group_by == "output":
            return Moments(mean, std**2, gate=inclusion.flatten())
        # sigmoid(-logit) is 1 - inclusion without the cancellation near 1.
        exclusion = torch.sigmoid(-self.inclusion_logit)
        return Moments(inclusion * mean, inclusion * (std**2 + exclusion * mean**2))

    def scaled_moments(self, scale: Tensor) -> Moments:
        """Moments that keep ``scale`` apart: a row for every example, or one for all."""
        inclusion, exclusion = self.inclusion_prob(), torch.sigmoid(-self.inclusion_logit)
        between = inclusion * exclusion * self.mean**2
        return Moments(inclusion * self.mean, inclusion * self.std**2, scale, between)

    def local(self, noise: Noise, batch: int = 1) -> Moments:
        return self.moments()

    def _slab(self, noise: Noise, scale: Tensor | None) -> Tensor:
        mean = self.mean if scale is None else self.mean * scale
        return mean + self.std * noise.normal(self.shape, self.mean)

    def draw(self, noise: Noise, scale: Tensor | None = None) -> Tensor:
        included = self.inclusion_logit + noise.logistic(self.group_shape, self.mean) > 0
        return self._slab(noise, scale) * included

    def draw_for_gradient(self, noise: Noise, scale: Tensor | None = None) -> Tensor:
        """A draw whose value is exact and whose gradient passes straight through the inclusions.

        The inclusions are 0 or 1; backwards they behave like their relaxation at 1/2,
        which is a biased gradient of an unbiased value.
        """
        noisy = self.inclusion_logit + noise.logistic(self.group_shape, self.mean)
        relaxed = torch.sigmoid(2.0 * noisy)
        hard = (noisy > 0).to(relaxed.dtype)
        return self._slab(noise, scale) * (hard + (relaxed - relaxed.detach()))

    def draw_matched(self, noise: Noise, scale: Tensor | None = None) -> Tensor:
        r"""A Gaussian draw with the mean and variance of the weights, inclusions averaged over.

        .. math::
            w_{ij} = \tilde\alpha\tilde\mu + \sqrt{\tilde\alpha}\,\tilde\sigma\,\varepsilon_{ij}
            + \sqrt{\tilde\alpha(1-\tilde\alpha)}\,\tilde\mu\,\xi_g

        with one :math:`\xi_g` for every group that shares an inclusion. A sum over the weights then has the
        distribution that the local reparametrization assumes, and gradients reach the inclusions.
        """
        inclusion, exclusion = self.group_prob(), torch.sigmoid(-self.inclusion_logit)
        mean = self.mean if scale is None else self.mean * scale
        tiny = torch.finfo(mean.dtype).tiny ** 0.75
        within = inclusion.clamp_min(tiny).sqrt() * self.std * noise.normal(self.shape, mean)
        between = (inclusion * exclusion).clamp_min(tiny).sqrt() * mean
        return inclusion * mean + within + between * noise.normal(self.group_shape, mean)

    def median_draw(self, noise: Noise, scale: Tensor | None = None) -> Tensor:
        return self._slab(noise, scale) * (self.inclusion_prob() > 0.5)

    def log_density(self, weight: Tensor, scale: Tensor | None = None) -> Tensor:
        """log q of weights and inclusions: a weight is included unless it is exactly 0."""
        there = weight != 0
        axes = [i for i, n in enumerate(self.group_shape) if n < self.shape[i]]
        included = there.any(axes, keepdim=True) if axes else there
        structure = torch.where(
            included, F.logsigmoid(self.inclusion_logit), F.logsigmoid(-self.inclusion_logit)
        )
        mean = self.mean if scale is None else self.mean * scale
        slab = gaussian_log_prob(weight, mean, 2.0 * self.std.log())
        return structure.sum() + torch.where(included, slab, 0.0).sum()

    def closed_form_kl(self, scale: Tensor | None = None, scale_square: Tensor | None = None) -> Tensor:
        """Divergence from a :class:`SpikeSlabPrior`, exact; averaged over scales if given their moments."""
        assert isinstance(self.prior, SpikeSlabPrior)
        error = squared_error(self.mean, self.prior.mean, scale, scale_square)
        return self._kl(torch.sigmoid(self.inclusion_logit), self.std, error)

    def prior_values(self, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The prior's slab std and inclusion probability as they stand, learned where the prior learns."""
        centered = isinstance(self.prior, SpikeSlabPrior)
        centre = self.prior.mean if centered else torch.zeros_like(self.mean[:1])
        error = squared_error(self.mean, centre, scale, None)  # type: ignore[arg-type]
        inclusion = torch.sigmoid(self.inclusion_logit)
        return self.prior.values(inclusion, self.std, error)  # type: ignore[operator]

    def _kl(self, inclusion: Tensor, std: Tensor, error: Tensor) -> Tensor:
        assert isinstance(self.prior, SpikeSlabPrior)
        return self.prior.kl(self.inclusion_logit, inclusion, std, error)

    def moments_and_kl(self, scale: Tensor | None = None) -> tuple[Moments, Tensor]:
        """:meth:`moments` and :meth:`closed_form_kl`, with what they share made once."""
        assert isinstance(self.prior, SpikeSlabPrior)
        mean = self.mean if scale is None else self.mean * scale
        # Subclasses of the prior may compute another KL.
        usual = self.group_by == "weight" and type(self.prior) is SpikeSlabPrior
        if usual and self.mean.is_cuda and for_capture():
            prior = self.prior.mean, self.prior.std, self.prior.inclusion_prob
            if fused.applies(mean, *prior):
                values = *prior[:2], self.prior.inclusion_logit
                first, second, kl = fused.moments_and_kl(mean, self.raw_std, self.inclusion_logit, values)
                return Moments(first, second), kl
        inclusion, std = torch.sigmoid(self.inclusion_logit), self.std
        kl = self._kl(inclusion, std, (mean - self.prior.mean) ** 2)
        return self._moments(inclusion, std, mean), kl

    def kl(self, noise: Noise) -> Tensor:
        """The divergence from the prior, in closed form; no noise is used."""
        return self.closed_form_kl()

    def sample(self, noise: Noise, batch: int = 1) -> Sample:
        moments, kl = self.moments_and_kl()
        return Sample(moments, None, kl)

    def sample_weights(self, noise: Noise) -> Sample:
        return Sample(None, self.draw_matched(noise), self.closed_form_kl())
