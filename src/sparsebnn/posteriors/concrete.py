"""``concrete``: the spike-and-slab family, drawn through a relaxation (the LBBNN baseline)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsebnn.checks import check_positive, check_tensor, invalid
from sparsebnn.init import Initial
from sparsebnn.posteriors.base import Sample
from sparsebnn.posteriors.learned_priors import HierarchicalPrior
from sparsebnn.posteriors.mean_field import SpikeSlab, gaussian_entropy
from sparsebnn.posteriors.priors import Prior, SpikeSlabPrior, bernoulli_kl
from sparsebnn.random.noise import Noise

RELAXATION = 0.1


class Concrete(SpikeSlab):
    r"""Weights and inclusions are drawn in training; the inclusions through a relaxed Bernoulli.

    .. math::
        \hat\gamma = \operatorname{sigmoid}\big((\tilde\lambda + \ell)/\tau\big),
        \quad \ell \sim \operatorname{Logistic}(0, 1), \qquad
        w = \hat\gamma\,(\tilde\mu + \tilde\sigma\varepsilon)

    The posterior is that of ``spike_slab``; predictions draw exact inclusions. With a
    :class:`SpikeSlabPrior` the KL is the closed form. With a :class:`HierarchicalPrior` it is a
    one-draw estimate: the entropy of q is exact, the prior's log density is taken at the relaxed draw
    (unbiased as :math:`\tau \to 0`).

    ``relaxation`` is :math:`\tau`. Small values are closer to exact inclusions, but leave most inclusion
    logits without a gradient: at 0.001, the paper's value, inclusion probabilities of uncorrelated inputs are
    off by about 0.3, at 0.1 by about 0.02 (docs/studies/selection_truth.md).
    """

    name = "concrete"
    draws_weights = True
    priors: tuple[type[Prior], ...] = (SpikeSlabPrior, HierarchicalPrior)
    relaxation: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        prior: Prior | None = None,
        initial: Initial = Initial(),
        *,
        relaxation: float = RELAXATION,
        group_by: str = "weight",
    ) -> None:
        super().__init__(shape, prior, initial, group_by=group_by)
        if group_by != "weight" and not isinstance(self.prior, SpikeSlabPrior):
            advice = "The hierarchical prior counts single weights."
            raise invalid(
                "group_by", "the 'concrete' family", "'weight' with this prior", repr(group_by), advice
            )
        owner = "the 'concrete' family"
        with torch.device("cpu"):
            value = check_tensor(relaxation, "relaxation", owner, torch.float64)
        if value.ndim:
            raise invalid("relaxation", owner, "one number", f"shape {tuple(value.shape)}")
        self.register_buffer("relaxation", check_positive(value, "relaxation", owner))

    def _check_dtype(self, dtype: torch.dtype) -> None:
        super()._check_dtype(dtype)
        check_positive(self.relaxation, "relaxation", "the 'concrete' family", dtype=dtype)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if isinstance(self.prior, HierarchicalPrior):
            self.prior.reset_parameters()

    def kl(self, noise: Noise) -> Tensor:
        """The divergence, or its one-draw estimate under a hierarchical prior."""
        if isinstance(self.prior, SpikeSlabPrior):
            return self.closed_form_kl()
        return self.sample(noise).kl

    def sample(self, noise: Noise, batch: int = 1) -> Sample:
        noisy = self.inclusion_logit + noise.logistic(self.group_shape, self.mean)
        relaxed = torch.sigmoid(noisy / self.relaxation)
        inclusion, std = torch.sigmoid(self.inclusion_logit), self.std
        weight = self.mean + std * noise.normal(self.shape, self.mean)
        if isinstance(self.prior, SpikeSlabPrior):
            error = (self.mean - self.prior.mean) ** 2
            return Sample(None, relaxed * weight, self._kl(inclusion, std, error))
        assert isinstance(self.prior, HierarchicalPrior)
        half = torch.zeros_like(self.inclusion_logit[..., :1])
        # KL from a fair coin is log 2 - entropy.
        structure_entropy = 0.6931471805599453 - bernoulli_kl(self.inclusion_logit, inclusion, half)
        entropy = (structure_entropy + inclusion * gaussian_entropy(std)).sum()
        return Sample(None, relaxed * weight, -entropy - self.prior.log_prob(weight, relaxed))

    def sample_weights(self, noise: Noise) -> Sample:
        return self.sample(noise)
