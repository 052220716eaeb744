"""Weights that a flow's z multiplies, in captured steps: z, the auxiliary and their gradients by kernels.

As :class:`~sparsebnn.posteriors.flow.FlowFamily` has it in its usual form: one z for the batch, and s from
moments. What log r adds to the loss depends on no data, so its gradients are made in the forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsebnn.kernels import masked
from sparsebnn.kernels.dispatch import kernel
from sparsebnn.posteriors.flow import FlowFamily
from sparsebnn.posteriors.flows import _SLOPE
from sparsebnn.training.captured import Begun, Beside, Goal, MeanField, Saved
from sparsebnn.training.dense import PlacedLayer, State

__all__ = ["Flow"]

_VECTORS = ("z0_mean", "z0_log_var", "auxiliary_direction", "auxiliary_mean", "auxiliary_log_var")


class _Step(NamedTuple):
    """A step of a flow: z before it, the inputs and outputs of its masked layers."""

    z: Tensor
    inputs: list[Tensor]
    outputs: list[Tensor]


class _Layer(NamedTuple):
    """A masked layer: the names of its weight and bias, how it is folded, and the slope after it."""

    names: tuple[str, str]
    fold: tuple[Tensor, ...]
    slope: float


class _Auxiliary(NamedTuple):
    """Gradients from log r: by moments of rows · e, by d₁ and d₂, by z in two parts, by rows of layers."""

    by_row: Tensor
    to_d: tuple[Tensor, Tensor]
    direct: Tensor
    in_parts: Tensor
    steps: list[_Step]
    rows: list[list[Tensor]]


class Flow(MeanField):
    """Weights scaled by z, which a flow makes; r's flow and q's gradients run beside the rest."""

    def __init__(self, placed: PlacedLayer) -> None:
        super().__init__(placed)
        family = placed.layer.weights
        assert isinstance(family, FlowFamily)
        self.dim, self.rows = family.dim, family.shape[0]
        self.family, self.prefix = family, f"{placed.name}.weights"
        self.flows: dict[str, list[list[_Layer]]] = {}
        self.beside: list[Beside] = []  # for Adam's steps of r and of q

    @property
    def noise(self) -> int:
        return self.dim + self.rows

    def _layers(self, flow: str) -> list[list[_Layer]]:
        """The masked layers of each step; their folds are on the device once the network is."""
        if flow not in self.flows:
            found = []
            for i, step in enumerate(getattr(self.family, flow).steps):
                last = len(step.layers) - 1
                places = [f"{self.prefix}.{flow}.steps.{i}.layers.{j}" for j in range(last + 1)]
                found.append(
                    [
                        _Layer((f"{place}.weight", f"{place}.bias"), layer.fold, 1.0 if j == last else _SLOPE)
                        for j, (place, layer) in enumerate(zip(places, step.layers))
                    ]
                )
            self.flows[flow] = found
        return self.flows[flow]

    def _vectors(self, state: State) -> dict[str, Tensor]:
        return {name: state["trained"][f"{self.prefix}.{name}"] for name in _VECTORS}

    def _through(
        self, flow: str, state: State, z: Tensor, nats: Tensor
    ) -> tuple[Tensor, Tensor, list[_Step]]:
        """The steps of a flow: z, ``nats`` less its log-determinant, and what the way back needs."""
        from sparsebnn.kernels import triton_flow as kernels

        steps = []
        for layers in self._layers(flow):
            h, inputs, outputs = z, [], []
            for layer in layers:
                weight, bias = (state["trained"][name] for name in layer.names)
                h, folded = kernel(masked._forward)(h, weight, bias, *layer.fold, layer.slope)
                inputs.append(folded)
                outputs.append(h)
            steps.append(_Step(z, inputs, outputs))
            z, nats = kernels.gate(h, z, nats)
        return z, nats, steps

    def _back(
        self,
        flow: str,
        state: State,
        steps: Sequence[_Step],
        direct: Tensor,
        parts: Sequence[Tensor | None],
        share: Tensor,
    ) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
        """Gradients by what went into a flow, in two parts, and by the rows of its layers."""
        from sparsebnn.kernels import triton_flow as kernels

        one, other = parts
        found: list[list[Tensor]] = []
        for layers, step in zip(reversed(self._layers(flow)), reversed(steps)):
            direct, grad = kernels.gate_back(direct, one, other, step.outputs[-1], step.z, share)
            grad, rows = grad.unsqueeze(1), []
            sizes = [self.dim, *(y.shape[1] for y in step.outputs[:-1])]
            for layer, y, size in zip(reversed(layers), reversed(step.outputs), reversed(sizes)):
                weight = state["trained"][layer.names[0]]
                given = grad, y, weight, *layer.fold, layer.slope, size
                grad, by_row = kernel(masked._backward)(*given)
                rows.append(by_row)
            found.append(rows[::-1])
            one, other = grad, None
        assert one is not None
        return direct, one, found[::-1]

    def moments(self, state: State, noise: Tensor, at: int) -> tuple[Any, ...]:
        from sparsebnn.kernels import triton_flow, triton_scaled

        vectors, (w, _) = self._vectors(state), self.placed.parts(state)
        z, nats = triton_flow.begin(vectors["z0_mean"], vectors["z0_log_var"], noise, at)
        z, nats, steps = self._through("q_flow", state, z, nats)
        given = w.mean, w.raw_std, w.logit, w.prior_mean, z, vectors["auxiliary_direction"]
        return *triton_scaled.moments(*given), z, nats, steps

    def divergence(
        self, state: State, begun: Begun, layer: int, share: Tensor, by_layer: Tensor
    ) -> tuple[Tensor, Any]:
        from sparsebnn.kernels import triton_scaled as kernels

        prior, _ = super().divergence(state, begun, layer, share, by_layer)
        *_, by_row, z, nats, _ = begun.made[layer][0]
        z_b, nats, steps = self._through("r_flow", state, z, nats)
        vectors = self._vectors(state)
        given = z_b, vectors["auxiliary_mean"], vectors["auxiliary_log_var"], share, nats, by_layer, layer
        least = torch.finfo(z.dtype).tiny ** 0.75
        place = begun.at[layer] + self.dim
        to_row, direct, *to_d = kernels.auxiliary(by_row, begun.noise[0], place, *given, least)
        back = self._back("r_flow", state, steps, direct, (None, None), share)
        return prior, _Auxiliary(to_row, (to_d[0], to_d[1]), *back[:2], steps, back[2])

    def move(
        self, goal: Goal, saved: Saved, by_moments: tuple[Tensor, Tensor], share: Tensor, noise: Tensor
    ) -> list[Any]:
        from sparsebnn.kernels import triton_flow, triton_scaled

        state, known, vectors = goal.state, saved.known, self._vectors(goal.state)
        self.beside = self.beside or [Beside(share.is_cuda), Beside(share.is_cuda)]
        of_r, of_q = self.beside
        of_r.run(self._fold, "r_flow", goal, known.steps, known.rows)
        held, names = self.held("weights", state)
        of_weights = saved.made[4], vectors["auxiliary_direction"], known.by_row, saved.prior, share
        to = goal.of(names, held)
        to_z, to_e = triton_scaled.parameters(*by_moments, held, *of_weights, *to, goal.constants)
        began = saved.made[-1]
        in_parts = known.in_parts, to_z
        direct, from_flow, rows = self._back("q_flow", state, began, known.direct, in_parts, share)
        of_q.run(self._fold, "q_flow", goal, began, rows)
        to = goal.of([f"{self.prefix}.{name}" for name in _VECTORS], list(vectors.values()))
        place = saved.noise_at - self.noise
        given = direct, from_flow, to_e, known.to_d, noise, place, share, list(vectors.values())
        triton_flow.vectors(*given, *to, goal.constants)
        of_r.join()
        of_q.join()
        return [to_z, to_e, direct, from_flow, rows, began]

    def _fold(self, flow: str, goal: Goal, steps: Sequence[_Step], rows: Sequence[Sequence[Tensor]]) -> None:
        """Adam's step of a flow's masked layers."""
        from sparsebnn.kernels import triton_flow as kernels

        for layers, step, of_step in zip(self._layers(flow), steps, rows):
            for layer, inputs, by_row in zip(layers, step.inputs, of_step):
                held = [goal.state["trained"][name] for name in layer.names]
                to = goal.of(layer.names, held)
                kernels.folded(by_row, inputs, held, layer.fold, *to, goal.constants)
