"""The gradients of :mod:`sparsebnn.training.dense` by compiled loops: what ``mode="fused"`` runs on a CPU.

PyTorch multiplies the matrices and differentiates the likelihood; all that is elementwise is done by the
kernels of :mod:`sparsebnn.kernels.training`, in one pass each.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sparsebnn.kernels import training as kernels
from sparsebnn.posteriors.learned_priors import EmpiricalPrior
from sparsebnn.training.dense import DenseGradients, DenseLayer, State
from sparsebnn.training.objective import Batch, Objective, Parts

__all__ = ["FusedGradients"]

_LEAST = torch.finfo(torch.float32).tiny ** 0.75  # the least variance


class _Way(NamedTuple):
    """What the way back needs of a layer."""

    mean: Tensor
    var: Tensor
    sums: Tensor
    bias_sums: Tensor
    z: Tensor
    square: Tensor
    std: Tensor
    outputs: Tensor
    noise_at: int


class FusedGradients(DenseGradients):
    """The same numbers as :class:`DenseGradients`, up to rounding, in single precision."""

    layers: list[_FusedLayer]  # type: ignore[assignment]

    @classmethod
    def of(cls, objective: Objective) -> FusedGradients | None:
        if any(p.dtype != torch.float32 or p.is_cuda for p in objective.parameters()):
            return None
        found = super().of(objective)
        assert found is None or isinstance(found, FusedGradients)
        return found if kernels.available() else None

    def fits(self, state: State, batch: Batch) -> bool:
        """As for the twin; and each prior has one value, or one per replicate."""
        single = all(layer.has_single_priors(state) for layer in self.layers)
        return single and batch.x.dtype == torch.float32 and super().fits(state, batch)

    @torch.no_grad()
    def __call__(
        self, state: State, batch: Batch, beta: Tensor, noise: tuple[Tensor, Tensor]
    ) -> tuple[dict[str, Tensor], Parts]:
        normal, x = noise[0].contiguous(), batch.x.contiguous()
        ways: list[_Way] = []
        z, square, at = x, x * x, 0
        for layer in self.layers:
            if ways:
                z, square = kernels.inputs(ways[-1].outputs, x if self.skip else None)
            way = layer.forward(state, z, square, normal, at)
            at += way.outputs[0].numel()
            ways.append(way)
        slope, nll, gradients = self.likelihood(state, batch, ways[-1].outputs)
        share = (batch.rows / self.objective.n_data * beta).float().contiguous()
        slope, by_var = slope.contiguous(), None
        divergences: list[Tensor] = []
        for layer, way in zip(reversed(self.layers), reversed(ways)):
            noisy = kernels.slopes(slope, by_var, way.outputs, way.std, normal, way.noise_at, _LEAST**0.5)
            divergences.append(layer.backward(state, way, slope, noisy, share, gradients))
            if way is not ways[0]:
                width = way.z.shape[-1] - (x.shape[-1] if self.skip else 0)
                slope = torch.bmm(slope, way.mean[..., :width])
                by_var = torch.bmm(noisy, way.var[..., :width])
        by_layer = torch.stack(divergences[::-1], dim=1).to(nll.dtype)
        kl = by_layer.sum(1)
        named = {name: gradients[name] for name in state["trained"]}
        return named, Parts(nll + share * kl, nll, kl, by_layer)


class _FusedLayer(DenseLayer):
    """A layer, forwards and backwards."""

    def has_single_priors(self, state: State) -> bool:
        count = len(self(state, "weights.mean"))
        names = [f"{part}.prior.{name}" for part in ("weights", "biases") for name in ("mean", "std")]
        names += ["weights.prior.inclusion_prob"] if self.sparse else []
        values = [self(state, name) for name in names]
        return all(v.numel() in (1, count) and v.dtype == torch.float32 for v in values)

    def _of(self, state: State, part: str) -> tuple[Tensor, Tensor, Tensor | None]:
        """Means, raw standard deviations and logits of the weights or biases."""
        logit = self(state, "weights.inclusion_logit") if part == "weights" and self.sparse else None
        return self(state, f"{part}.mean"), self(state, f"{part}.raw_std"), logit

    def forward(self, state: State, z: Tensor, square: Tensor, noise: Tensor, at: int) -> _Way:
        mean, var, sums = kernels.moments(*self._of(state, "weights"), self(state, "weights.prior.mean"))
        bias, bias_var, bias_sums = kernels.moments(
            *self._of(state, "biases"), self(state, "biases.prior.mean")
        )
        outputs = torch.baddbmm(bias.unsqueeze(1), z, mean.mT)
        std = torch.baddbmm(bias_var.unsqueeze(1), square, var.mT)
        kernels.outputs(outputs, std, noise, at, _LEAST)
        return _Way(mean, var, sums, bias_sums, z, square, std, outputs, at)

    def backward(
        self, state: State, way: _Way, slope: Tensor, noisy: Tensor, share: Tensor, found: dict[str, Tensor]
    ) -> Tensor:
        """Put the gradients into ``found``; the result is the layer's KL."""
        of_weights = torch.bmm(slope.mT, way.z), torch.bmm(noisy.mT, way.square)
        of_biases = slope.sum(1), noisy.sum(1)
        kl: list[Tensor] = []
        for part, by, sums in (("weights", of_weights, way.sums), ("biases", of_biases, way.bias_sums)):
            values = self._of(state, part)
            own, divergence = kernels.gradients(*values, self._priors(state, part, sums), share, *by)
            names = ("mean", "raw_std", "inclusion_logit")
            found.update({f"{self.name}.{part}.{name}": each for name, each in zip(names, own)})
            kl.append(divergence)
        return kl[0] + kl[1]

    def _priors(self, state: State, part: str, sums: Tensor) -> Tensor:
        mean, std = self(state, f"{part}.prior.mean"), self(state, f"{part}.prior.std")
        sparse = part == "weights" and self.sparse
        inclusion = self(state, "weights.prior.inclusion_prob") if sparse else None
        count = self(state, f"{part}.mean")[0].numel()
        prior, strengths = self.layer.weights.prior, (-1.0, -1.0, 1.0)
        if sparse and isinstance(prior, EmpiricalPrior):
            strengths = (
                prior.strength if prior.learn_std else -1.0,
                prior.inclusion_strength if prior.learn_inclusion else -1.0,
                prior.max_inclusion,
            )
        return kernels.priors(count, sums, mean, std, inclusion, strengths)


FusedGradients.layer_type = _FusedLayer
