"""``gaussian``: independent Gaussian weights, all of them there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsebnn.init import Initial, Start, fill
from sparsebnn.posteriors.base import Family, Moments, Sample, softplus_std, squared_error
from sparsebnn.posteriors.priors import GammaPrecisionPrior, GaussianPrior, Prior
from sparsebnn.random.noise import Noise

__all__ = ["Gaussian"]


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
        """Every weight is there, so the median model is the model."""
        return self.draw(noise, scale)

    def closed_form_kl(self, scale: Tensor | None = None, scale_square: Tensor | None = None) -> Tensor:
        """Divergence from a :class:`GaussianPrior`, exact; averaged over scales if given their moments."""
        assert isinstance(self.prior, GaussianPrior)
        error = squared_error(self.mean, self.prior.mean, scale, scale_square)
        return self.prior.slab_kl(self.std, error).sum()

    def moments_and_kl(self, scale: Tensor | None = None) -> tuple[Moments, Tensor]:
        """:meth:`moments` and :meth:`closed_form_kl`, with what they share made once."""
        assert isinstance(self.prior, GaussianPrior)
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


def gaussian_entropy(std: Tensor) -> Tensor:
    """Entropy of a Gaussian, elementwise."""
    return torch.log(std.clamp_min(torch.finfo(std.dtype).tiny)) + 1.4189385332046727
