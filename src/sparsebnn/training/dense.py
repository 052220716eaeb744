r"""The gradients of many replicates of a dense network at once, in closed form: without autograd and vmap.

For a chain of dense layers, or an input-skip network, of rectified units with independent weights, the local
reparametrization is a few products of matrices. With M and V the moments of the weights, z the inputs of a
layer and d the gradient of its outputs :math:`h = M z + b + \sqrt{v}\,\varepsilon`,

.. math::
    \nabla M = d\,z^\top, \qquad \nabla V = \frac{d\,\varepsilon}{2\sqrt v}\,(z^2)^\top, \qquad
    \nabla z = M^\top d + 2 z \odot V^\top \frac{d\,\varepsilon}{2\sqrt v},

and the chain rule through the moments :math:`M = \tilde\alpha\tilde\mu`,
:math:`V = \tilde\alpha(\tilde\sigma^2 + (1 - \tilde\alpha)\tilde\mu^2)` and the KL is elementwise: PyTorch
(:class:`Eager`) or compiled loops (:mod:`sparsebnn.kernels.training`) do it. A likelihood without a gradient
in closed form is differentiated automatically.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.kernels import training as kernels
from sparsebnn.kernels.training import Compiled, Weights
from sparsebnn.nn.layers import Linear
from sparsebnn.nn.networks import InputSkip, chain, hooked
from sparsebnn.posteriors.flow import MNF, FlowFamily
from sparsebnn.posteriors.learned_priors import EmpiricalPrior
from sparsebnn.posteriors.mean_field import Gaussian, SpikeSlab
from sparsebnn.posteriors.priors import GaussianPrior, SpikeSlabPrior
from sparsebnn.training.batches import Batch
from sparsebnn.training.objective import Objective, Parts, nll_terms, owner_of

__all__ = ["DenseGradients", "Eager"]

State = Mapping[str, Mapping[str, Tensor]]
_KINDS = ("trained", "frozen", "varied")  # of tensors that have an axis of replicates
_CLOSE = 1e-4


class _Saved(NamedTuple):
    """What the backward pass needs of a layer: weights and their moments, inputs, outputs and noise."""

    weights: Weights
    biases: Weights
    mean: Tensor
    var: Tensor
    known: tuple[Any, Any]
    z: Tensor
    square: Tensor
    std: Tensor
    outputs: Tensor
    noise_at: int


class DenseGradients:
    """The gradients of an objective, as ``Replicates.gradients`` gives them; ``fused`` by compiled loops.

    :meth:`of` gives None for networks of other kinds.
    """

    flows = False  # whether weights may be scaled by a flow's z

    def __init__(self, objective: Objective, layers: list[Linear], skip: bool, fused: bool) -> None:
        names: dict[nn.Module, str] = {module: name for name, module in objective.named_modules()}
        self.objective, self.skip, self.fused = objective, skip, fused
        self.ops: type[Eager] | type[Compiled] = Compiled if fused else Eager
        self.layers = [PlacedLayer(layer, names[layer]) for layer in layers]
        self.learned = [name for name, _ in objective.likelihood.named_parameters()]
        self.buffers = [name for name, _ in objective.likelihood.named_buffers()]
        # A copy of the likelihood takes the tensors of the replicates, which are no parameters.
        self.likelihood = copy.deepcopy(objective.likelihood)
        self.places = {name: owner_of(self.likelihood, name) for name in (*self.learned, *self.buffers)}
        for place in self.places.values():
            delattr(*place)

    @classmethod
    def fitting(cls, objective: Objective, state: State, batch: Batch, fused: bool) -> DenseGradients | None:
        """The gradients for these tensors, if network, likelihood, device and precision allow it."""
        if not isinstance(batch.x, Tensor) or not isinstance(batch.y, Tensor) or batch.x.dim() != 3:
            return None
        kind = cls
        if batch.x.is_cuda:
            from sparsebnn.training.captured import CapturedDense

            kind = CapturedDense
        known = batch.x.device.type in ("cpu", "cuda") and not objective.autocast
        found = kind.of(objective, fused) if known else None
        return found if found is not None and found.fits(state, batch) else None

    @classmethod
    def of(cls, objective: Objective, fused: bool = False) -> DenseGradients | None:
        modules = chain(objective.network)
        skip = len(modules) == 1 and isinstance(modules[0], InputSkip)
        layers, between = modules[::2], modules[1::2]
        if isinstance(modules[0], InputSkip):
            layers, between = list(modules[0].layers), [modules[0].activation]
        known = [layer for layer in layers if isinstance(layer, Linear) and _is_known(layer, cls.flows)]
        if hooked(objective.network) is not None or hooked(objective.likelihood) is not None:
            return None
        usual = len(known) == len(layers) and all(type(module) is nn.ReLU for module in between)
        if not usual or (len(modules) % 2 == 0) or any(not p.requires_grad for p in objective.parameters()):
            return None
        return None if fused and not kernels.available() else cls(objective, known, skip, fused)

    def fits(self, state: State, batch: Batch) -> bool:
        """Whether the loops take the weights, and the likelihood takes all replicates at once."""
        if self.fused:
            parts = [layer.part(state, part) for layer in self.layers for part in ("weights", "biases")]
            if batch.x.dtype != torch.float32 or not all(map(Compiled.takes, parts)):
                return False
        shape = *batch.x.shape[:2], self.layers[-1].layer.out_features
        outputs = torch.linspace(-1.0, 1.0, math.prod(shape)).to(batch.x).reshape(shape)
        with torch.enable_grad():  # as in a step: without, some likelihoods take a shorter way
            try:
                together = self._nll(self._of_likelihood(state), outputs, batch.y, batch.weight)
            except (RuntimeError, IndexError, ValueError):
                return False
            for k in range(len(outputs)):
                own = self._of_likelihood(state, k)
                alone = self._nll(own, outputs[k], batch.y[k], batch.weight[k])
                if together[k].shape != alone.shape or not torch.allclose(together[k], alone, rtol=_CLOSE):
                    return False
        return True

    @torch.no_grad()
    def __call__(
        self, state: State, batch: Batch, beta: Tensor, noise: tuple[Tensor, Tensor]
    ) -> tuple[dict[str, Tensor], Parts]:
        """Gradients and parts of the loss, per replicate; the batch is ``(K, size, …)``."""
        ops, x, normal = self.ops, batch.x.contiguous(), noise[0].contiguous()
        least = torch.finfo(x.dtype).tiny ** 0.75  # the least variance
        saved: list[_Saved] = []
        z, square, at = x, x * x, 0
        for layer in self.layers:
            if saved:
                z, square = ops.inputs(saved[-1].outputs, x if self.skip else None)
            weights, biases = layer.parts(state)
            mean, var, known = ops.moments(weights)
            bias, bias_var, bias_known = ops.moments(biases)
            outputs = torch.baddbmm(bias.unsqueeze(1), z, mean.mT)
            std = torch.baddbmm(bias_var.unsqueeze(1), square, var.mT)
            ops.outputs(outputs, std, normal, at, least)
            both = known, bias_known
            saved.append(_Saved(weights, biases, mean, var, both, z, square, std, outputs, at))
            at += outputs[0].numel()
        slope, nll, gradients = self._likelihood(state, batch, saved[-1].outputs)
        share = (batch.rows / self.objective.n_data * beta).contiguous()
        slope, by_var = slope.contiguous(), None
        divergences: list[Tensor] = []
        for layer, kept in zip(reversed(self.layers), reversed(saved)):
            noisy = ops.slopes(slope, by_var, kept.outputs, kept.std, normal, kept.noise_at, least**0.5)
            of_weights = torch.bmm(slope.mT, kept.z), torch.bmm(noisy.mT, kept.square)
            found, kl = ops.gradients(kept.weights, kept.known[0], share, *of_weights)
            of_biases, bias_kl = ops.gradients(kept.biases, kept.known[1], share, slope.sum(1), noisy.sum(1))
            gradients |= layer.named("weights", found) | layer.named("biases", of_biases)
            divergences.append(kl + bias_kl)
            if kept is not saved[0]:
                width = kept.z.shape[-1] - (x.shape[-1] if self.skip else 0)
                slope = torch.bmm(slope, kept.mean[..., :width])
                by_var = torch.bmm(noisy, kept.var[..., :width])
        by_layer = torch.stack(divergences[::-1], dim=1)
        kl = by_layer.sum(1)
        named = {name: gradients[name] for name in state["trained"]}
        return named, Parts(nll + share * kl, nll, kl, by_layer)

    def _of_likelihood(self, state: State, k: int | None = None) -> dict[str, Tensor]:
        """Parameters and buffers of the likelihood: of replicate k, or of all with an axis for the rows."""
        found = {}
        for name in (*self.learned, *self.buffers):
            full = f"likelihood.{name}"
            kinds = [kind for kind in _KINDS if full in state[kind]]
            value = state[kinds[0]][full] if kinds else state["shared"][full]
            if kinds:
                value = value.unsqueeze(1) if k is None else value[k]
            found[name] = value
        return found

    def _set(self, own: Mapping[str, Tensor]) -> None:
        for name, value in own.items():
            setattr(*self.places[name], value)

    def _nll(self, own: Mapping[str, Tensor], outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        self._set(own)
        return nll_terms(self.likelihood, outputs, y, weight)

    def _likelihood(
        self, state: State, batch: Batch, outputs: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Gradient by the outputs, NLL of every replicate, gradients by the likelihood's parameters."""
        own = self._of_likelihood(state)
        if not self.learned:
            self._set(own)
            if (known := self.likelihood.weighted_slope(outputs, batch.y, batch.weight)) is not None:
                return known[1], known[0].sum(1), {}
        leaves = {name: own[name].detach().requires_grad_() for name in self.learned}
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            nll = self._nll({**own, **leaves}, leaf, batch.y, batch.weight).sum(1)
            wanted = [leaf, *leaves.values()]
            slope, *rest = torch.autograd.grad(nll.sum(), wanted, materialize_grads=True)
        gradients = {f"likelihood.{name}": each.squeeze(1) for name, each in zip(leaves, rest)}
        return slope, nll.detach(), gradients


class Eager:
    """The elementwise parts of a step in PyTorch; the compiled twin is ``sparsebnn.kernels.training``."""

    @staticmethod
    def moments(w: Weights) -> tuple[Tensor, Tensor, Any]:
        """Mean and variance of the weights, and what :meth:`gradients` wants to know again."""
        std = F.softplus(w.raw_std)
        if w.logit is None:
            return w.mean, std * std, (std, None)
        inclusion, exclusion = torch.sigmoid(w.logit), torch.sigmoid(-w.logit)
        first = inclusion * w.mean
        return first, inclusion * (std * std) + exclusion * (first * w.mean), (std, inclusion)

    @staticmethod
    def gradients(
        w: Weights, known: Any, share: Tensor, by_mean: Tensor, by_var: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """Gradients by mean, raw_std and logit from those by the moments, which are overwritten; and the KL.

        ``share`` is what the KL counts.
        """
        (std, inclusion), mean = known, w.mean
        share = share.view(-1, *[1] * (mean.dim() - 1))
        error, square = mean - w.prior_mean, std * std
        prior_std, prior_logit = Eager._prior(w, inclusion, square + error * error)
        var = prior_std**2
        slab = torch.log(prior_std) - torch.log(std.clamp_min(torch.finfo(std.dtype).tiny)) - 0.5
        slab = slab + (square + error * error) / (2.0 * var)
        by_std = (2.0 * std * by_var + share * (std / var - 1.0 / std)) * torch.sigmoid(w.raw_std)
        if w.logit is None:
            return [by_mean + share * error / var, by_std], slab.flatten(1).sum(1)
        exclusion, cost = torch.sigmoid(-w.logit), slab + w.logit - prior_logit
        by_inclusion = by_mean * mean + by_var * (square + (exclusion - inclusion) * (mean * mean))
        kl = inclusion * cost + F.softplus(prior_logit) - F.softplus(w.logit)
        found = [
            inclusion * (by_mean + 2.0 * exclusion * mean * by_var + share * error / var),
            inclusion * by_std,
            (by_inclusion + share * cost) * inclusion * exclusion,
        ]
        return found, kl.flatten(1).sum(1)

    @staticmethod
    def _prior(w: Weights, inclusion: Tensor | None, squares: Tensor) -> tuple[Tensor, Tensor]:
        """The prior's std and inclusion logit; what it learns, it learns here."""
        std, prob = w.prior_std, w.prior_inclusion
        if inclusion is None or prob is None:
            return std, std
        strength, kept, most = w.strengths
        axes = tuple(range(1, inclusion.dim()))
        if strength is not None:
            total = strength * std**2 + (inclusion * squares).sum(axes, keepdim=True)
            std = torch.sqrt(total / (strength + inclusion.sum(axes, keepdim=True)))
        if kept is not None:
            prob = ((kept * prob + inclusion.mean(axes, keepdim=True)) / (1.0 + kept)).clamp_max(most)
        return std, torch.logit(prob)

    @staticmethod
    def outputs(mean: Tensor, var: Tensor, noise: Tensor, start: int, least: float) -> None:
        """mean ← mean + √var · noise and var ← √var; a replicate's noise begins at ``start`` in its row."""
        var.clamp_(min=least).sqrt_()
        mean.addcmul_(var, Eager._noise(noise, start, mean))

    @staticmethod
    def _noise(noise: Tensor, start: int, like: Tensor) -> Tensor:
        return noise[:, start : start + like[0].numel()].reshape(like.shape)

    @staticmethod
    def inputs(outputs: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        """The inputs of the next layer, rectified outputs and then x, and their squares."""
        z = outputs.relu() if x is None else torch.cat([outputs.relu(), x], -1)
        return z, z * z

    @staticmethod
    def slopes(
        by_mean: Tensor,
        by_var: Tensor | None,
        outputs: Tensor,
        std: Tensor,
        noise: Tensor,
        start: int,
        least: float,
    ) -> Tensor:
        """The gradient by the outputs, in the place of ``by_mean``; the result is that · noise / (2 std).

        Below the last layer it is (by_mean + 2 · output · by_var) where the output is above 0.
        """
        if by_var is not None:
            by_mean.addcmul_(outputs, by_var, value=2.0).mul_(outputs > 0.0)
        noisy = by_mean * Eager._noise(noise, start, by_mean) / (2.0 * std)
        return torch.where(std > least, noisy, 0.0)


class PlacedLayer:
    """Where the tensors of a layer are in the state."""

    def __init__(self, layer: Linear, name: str) -> None:
        self.layer, self.name = layer, name
        flow = isinstance(layer.weights, FlowFamily)
        self.independent: Any = layer.weights.conditional if flow else layer.weights
        self._path = {"weights": "weights.conditional" if flow else "weights", "biases": "biases"}
        self._found: tuple[State, tuple[Weights, Weights]] | None = None

    def _tensor(self, state: State, name: str, dim: int) -> Tensor:
        """A stacked parameter, or a buffer in a shape that multiplies parameters of ``dim`` axes."""
        full = f"{self.name}.{name}"
        if full in state["trained"]:
            return state["trained"][full]
        if full in state["varied"]:
            own = state["varied"][full]
            return own.reshape(len(own), *[1] * (dim - own.dim()), *own.shape[1:])
        return state["shared"][full]

    def part(self, state: State, part: str) -> Weights:
        """The weights or the biases, and their prior."""
        sparse = part == "weights" and type(self.independent) is SpikeSlab
        dim = 3 if part == "weights" else 2
        names = ["mean", "raw_std", "inclusion_logit", "prior.mean", "prior.std", "prior.inclusion_prob"]
        path = self._path[part]
        kept = [None if "inclusion" in name and not sparse else f"{path}.{name}" for name in names]
        tensors: Any = [name and self._tensor(state, name, dim) for name in kept]
        strengths: tuple[float | None, float | None, float] = (None, None, 1.0)
        learned = self.independent.prior
        if sparse and isinstance(learned, EmpiricalPrior):
            strengths = (
                learned.strength if learned.learn_std else None,
                learned.inclusion_strength if learned.learn_inclusion else None,
                learned.max_inclusion,
            )
        return Weights(**dict(zip(Weights._fields, tensors)), strengths=strengths)

    def parts(self, state: State) -> tuple[Weights, Weights]:
        """Weights and biases; steps change the tensors of a state in place, so they are found once."""
        if self._found is None or self._found[0] is not state:
            self._found = state, (self.part(state, "weights"), self.part(state, "biases"))
        return self._found[1]

    def named(self, part: str, found: list[Tensor]) -> dict[str, Tensor]:
        """Gradients by the names of the parameters."""
        names = ("mean", "raw_std", "inclusion_logit")
        return {f"{self.name}.{self._path[part]}.{name}": each for name, each in zip(names, found)}


def _is_known(layer: Linear, flows: bool) -> bool:
    """A dense layer with one inclusion per weight, or none, and biases with a Gaussian prior."""
    weights, biases = layer.weights, layer.biases
    if flows and type(weights) in (FlowFamily, MNF) and weights.folded and not weights.reused:
        weights = weights.conditional  # type: ignore[assignment]
    if type(layer) is not Linear or layer.sampling != "local" or type(biases) is not Gaussian:
        return False
    if weights.reused or biases.reused or type(biases.prior) is not GaussianPrior:
        return False
    if type(weights) is Gaussian:
        return type(weights.prior) is GaussianPrior
    if type(weights) is not SpikeSlab or weights.group_by != "weight":
        return False
    prior = weights.prior
    return type(prior) is SpikeSlabPrior or (type(prior) is EmpiricalPrior and prior.per == "layer")
