"""``flow``: multiplicative normalizing flows over a mean-field family (LBBNN-FLOW and MNF)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import check_choice, check_seed, invalid
from sparsebnn.init import Initial, fill
from sparsebnn.posteriors.base import Family, Moments, Sample, contract, spread
from sparsebnn.posteriors.flows import AutoregressiveStep, flow
from sparsebnn.posteriors.masked import FoldedLinear, MaskedLinear
from sparsebnn.posteriors.mean_field import Gaussian, SpikeSlab
from sparsebnn.posteriors.priors import GaussianPrior, Prior, SpikeSlabPrior, gaussian_log_prob
from sparsebnn.random.noise import Noise

_MOST_LOG_VAR = 50.0
_SQUASH: dict[str, Callable[[Tensor], Tensor]] = {
    "hardtanh": F.hardtanh,
    "tanh": torch.tanh,
    "identity": lambda s: s,
}


def _contract_each(vectors: Tensor, weight: Tensor, axis: int) -> Tensor:
    """:func:`contract` for each row of ``vectors``."""
    return vectors @ weight.movedim(axis, 0).flatten(1)


class FlowFamily(Family):
    r"""Spike-and-slab weights that share a multiplicative latent vector z.

    .. math::
        q(W, \Gamma \mid z): \tilde\mu_{ij} \to z_i \tilde\mu_{ij}, \qquad
        z = f_K \circ\cdots\circ f_1(z_0), \quad z_0 \sim \mathcal N(m_0, e^{v_0})

    The KL is replaced by its upper bound with an auxiliary distribution r,

    .. math::
        \mathrm{KL}[q(W,\Gamma)\|p(W,\Gamma)] \le \mathbb E\big[
        \mathrm{KL}[q(W,\Gamma|z)\|p(W,\Gamma)] + \log q(z) - \log r(z \mid W, \Gamma)\big]

    .. math::
        \log r(z|W,\Gamma) = \sum_i \log\mathcal N(z_{B,i};\, \nu_i, \tau_i^2)
        + \log\left|\det\frac{\partial z_B}{\partial z}\right|, \quad
        \nu = d_1 \bar s, \quad \log\tau^2 = d_2 \bar s, \quad
        \bar s = \operatorname{mean}\,\sigma(e^\top (W\odot\Gamma))

    and what is returned is a **one-draw estimate of that bound**, from the z that also made the
    moments.

    ``z_axis`` is the axis of the weights that z multiplies: the inputs of a dense layer (1), the
    filters of a convolution (0). ``auxiliary="moments"`` draws s from a Gaussian with the moments of
    :math:`e^\top (W\odot\Gamma)`, the paper's practice, which only approximates the bound;
    ``"drawn"`` draws :math:`W\odot\Gamma` and gives a true bound. ``z_per="example"`` draws one z for
    each example instead of one for the batch.
    """

    name = "flow"
    priors: tuple[type[Prior], ...] = (SpikeSlabPrior,)
    conditional_family: type[Gaussian] | type[SpikeSlab] = SpikeSlab

    def __init__(
        self,
        shape: Sequence[int],
        prior: Prior | None = None,
        initial: Initial = Initial(),
        *,
        z_axis: int = 1,
        auxiliary: str = "moments",
        squash: str = "hardtanh",
        z_per: str = "batch",
        length: int = 2,
        hidden: Sequence[int] = (250, 250),
        kind: str = "autoregressive",
        ordering: str | Sequence[Sequence[int]] | None = None,
        flow_seed: int = 0,
        group_by: str = "weight",
    ) -> None:
        super().__init__(shape, initial)
        owner = f"the {self.name!r} family"
        self.z_axis = z_axis
        self.auxiliary = check_choice(auxiliary, ("moments", "drawn"), "auxiliary", owner)
        self.squash = check_choice(squash, _SQUASH, "squash", owner)
        self.z_per = check_choice(z_per, ("batch", "example"), "z_per", owner)
        if z_per == "example" and auxiliary == "drawn":
            advice = "Drawing all weights for every example is not offered; choose one of the two."
            raise invalid("auxiliary", owner, "'moments' when z_per='example'", repr(auxiliary), advice)
        check_seed(flow_seed, "flow_seed", owner, least=0, most=2**32 - 1 - length)
        self.dim = self.shape[z_axis]
        check_choice(group_by, ("weight", "input"), "group_by", owner)
        own = {} if group_by == "weight" else {"group_by": group_by}
        if own and self.conditional_family is not SpikeSlab:
            advice = "This family includes every weight."
            raise invalid("group_by", owner, "'weight'", repr(group_by), advice)
        self.conditional = self.conditional_family(self.shape, self._own(prior), initial, **own)  # type: ignore[arg-type]
        self.z0_mean = nn.Parameter(torch.empty(self.dim))
        self.z0_log_var = nn.Parameter(torch.empty(self.dim))
        self.auxiliary_direction = nn.Parameter(torch.empty(self.dim))
        self.auxiliary_mean = nn.Parameter(torch.empty(self.dim))
        self.auxiliary_log_var = nn.Parameter(torch.empty(self.dim))
        # Orders are computed, which the meta device cannot do.
        meta = torch.get_default_device().type == "meta"
        with torch.device("cpu") if meta else contextlib.nullcontext():
            self.q_flow = flow(self.dim, length, hidden, kind, ordering, flow_seed)
            self.r_flow = flow(self.dim, length, hidden, kind, ordering, flow_seed)
        self.reset_parameters()

    @property
    def per_example(self) -> bool:
        return self.z_per == "example"

    @property
    def folded(self) -> bool:
        """Whether the kernels of captured steps know it: the paper's form, with folded networks."""
        usual = (self.auxiliary, self.squash, self.z_per, self.z_axis) == ("moments", "hardtanh", "batch", 1)
        steps = [*self.q_flow.steps, *self.r_flow.steps]
        layers = [layer for step in steps for layer in getattr(step, "layers", [None])]
        known = all(type(step) is AutoregressiveStep for step in steps)
        return usual and known and bool(steps) and all(type(layer) is FoldedLinear for layer in layers)

    def reset_parameters(self) -> None:
        self.conditional.reset_parameters()
        fill(self.z0_mean, self.initial.z0_mean)
        fill(self.z0_log_var, self.initial.z0_log_var)
        for parameter in (self.auxiliary_direction, self.auxiliary_mean, self.auxiliary_log_var):
            fill(parameter, self.initial.auxiliary)
        for chain in (self.q_flow, self.r_flow):
            for module in chain.modules():
                if isinstance(module, MaskedLinear | FoldedLinear | nn.Linear):
                    module.reset_parameters()

    def inclusion_prob(self) -> Tensor:
        return self.conditional.inclusion_prob()

    def group_prob(self) -> Tensor:
        return self.conditional.group_prob()

    def posterior_mean(self) -> Tensor:
        return self.conditional.posterior_mean()

    def prior_values(self) -> tuple[Tensor, Tensor]:
        """As of the conditional family, at the z that the mean of z₀ is mapped to."""
        assert isinstance(self.conditional, SpikeSlab)
        return self.conditional.prior_values(self.scale(self.q_flow(self.z0_mean)[0]))

    def draw_z(self, noise: Noise, batch: int | None = None) -> tuple[Tensor, Tensor]:
        """A draw of z (``batch`` rows if given) and log q(z)."""
        shape = (self.dim,) if batch is None else (batch, self.dim)
        eps = noise.normal(shape, self.z0_mean)
        z0 = self.z0_mean + torch.exp(0.5 * self.z0_log_var) * eps
        log_q0 = gaussian_log_prob(z0, self.z0_mean, self.z0_log_var).sum(-1)
        z, log_det = self.q_flow(z0)
        return z, log_q0 - log_det

    def scale(self, z: Tensor) -> Tensor:
        """One z, shaped to multiply the weights."""
        return spread(z, self.shape, self.z_axis)

    def log_auxiliary(self, z: Tensor, s: Tensor) -> Tensor:
        """log r(z | W, Γ) given s, the contraction of e with the weights, before squashing."""
        activation = _SQUASH[self.squash](s).mean(-1, keepdim=True)
        z_b, log_det = self.r_flow(z)
        # Without squashing (convolutions) nothing else bounds the variance.
        log_var = (self.auxiliary_log_var * activation).clamp(-_MOST_LOG_VAR, _MOST_LOG_VAR)
        mean = self.auxiliary_mean * activation
        return gaussian_log_prob(z_b, mean, log_var).sum(-1) + log_det

    def _auxiliary_sum(self, moments: Moments, z: Tensor, noise: Noise) -> Tensor:
        """s: a draw with the moments of eᵀ(W⊙Γ), or eᵀ(W⊙Γ) of drawn weights."""
        e, axis = self.auxiliary_direction, self.z_axis
        if self.auxiliary == "drawn":
            return contract(e, self.conditional.draw_for_gradient(noise, self.scale(z)), axis)
        if moments.scale is None:
            mean = contract(e, moments.mean, axis)
            var = contract(e**2, moments.var, axis)
        else:
            mean, var = _contract_each(z * e, moments.mean, axis), _contract_each(e**2, moments.var, axis)
            if moments.scaled_var is not None:
                var = var + _contract_each((z * e) ** 2, moments.scaled_var, axis)
        tiny = torch.finfo(var.dtype).tiny ** 0.75
        return mean + torch.sqrt(var.clamp_min(tiny)) * noise.normal(mean.shape, mean)

    def sample(self, noise: Noise, batch: int = 1) -> Sample:
        if self.z_per == "example":
            z, log_q = self.draw_z(noise, batch)
            moments = self.conditional.scaled_moments(z)
            first, second = self.scale(z.mean(0)), self.scale((z**2).mean(0))
            kl = self.conditional.closed_form_kl(first, second)
        else:
            z, log_q = self.draw_z(noise)
            moments, kl = self.conditional.moments_and_kl(self.scale(z))
        log_r = self.log_auxiliary(z, self._auxiliary_sum(moments, z, noise))
        return Sample(moments, None, kl + (log_q - log_r).mean())

    def sample_weights(self, noise: Noise) -> Sample:
        """As :meth:`sample`; the draw of the weights is given the same z."""
        self._check_shared_z()
        z, log_q = self.draw_z(noise)
        scale = self.scale(z)
        moments, kl = self.conditional.moments_and_kl(scale)
        log_r = self.log_auxiliary(z, self._auxiliary_sum(moments, z, noise))
        return Sample(None, self.conditional.draw_matched(noise, scale), kl + log_q - log_r)

    def _check_shared_z(self) -> None:
        if self.per_example:
            owner, advice = f"the {self.name!r} family", "Weights that several calls share have one z."
            expected = "'batch' in a layer that draws its weights or is called more than once"
            raise invalid("z_per", owner, expected, repr(self.z_per), advice)

    def kl(self, noise: Noise) -> Tensor:
        """One-draw estimate of the bound on the KL (with ``"moments"``: of its approximation)."""
        return self.sample(noise).kl

    def local(self, noise: Noise, batch: int = 1) -> Moments:
        """Moments given a fresh z, which stays apart: many draws then share one set of weights."""
        z, _ = self.draw_z(noise, batch if self.z_per == "example" else 1)
        return self.conditional.scaled_moments(z)

    def log_density(self, weight: Tensor) -> Tensor:
        """log q(W | z) at the z that the mean of z₀ is mapped to; log q(W) itself has no closed form."""
        return self.conditional.log_density(weight, self.scale(self.q_flow(self.z0_mean)[0]))

    def draw(self, noise: Noise) -> Tensor:
        return self.conditional.draw(noise, self.scale(self.draw_z(noise)[0]))

    def median_draw(self, noise: Noise) -> Tensor:
        return self.conditional.median_draw(noise, self.scale(self.draw_z(noise)[0]))


class MNF(FlowFamily):
    """Multiplicative normalizing flows: the flow family with every weight there."""

    name = "mnf"
    priors: tuple[type[Prior], ...] = (GaussianPrior,)
    conditional_family = Gaussian
