"""The step, and how it is run: eagerly, fused, compiled, or captured as one CUDA graph.

A step makes its noise, gathers its batch, and goes forward, backward and through the optimizer, all on
the device. Rates, KL weight, position and step number are tensors there, so nothing is compiled or
captured twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparsebnn.checks import check_tensor, invalid
from sparsebnn.kernels.dispatch import keep_freed_memory
from sparsebnn.training.arguments import check_mode, check_per_replicate, chosen_mode, resumed_mode
from sparsebnn.training.batches import Batch, Batches, first_of, gather
from sparsebnn.training.compile import prepare
from sparsebnn.training.dense import DenseGradients
from sparsebnn.training.density import check_free, density_targets, steer
from sparsebnn.training.objective import Parts, Replicates
from sparsebnn.training.optimizers import (
    adam,
    adam_eager,
    all_finite,
    average,
    clipped,
    corrected,
    count_step,
    decay,
    mark_stopped,
    sgd,
)
from sparsebnn.training.settings import Settings

if TYPE_CHECKING:
    from sparsebnn.training.augmentation import Augmentation
    from sparsebnn.training.parallel import Part, Shard
    from sparsebnn.training.streams import Stream

# Tensors by kind and name: Replicates.tensors, the optimizer's (first, second, average), data, loop.
State = dict[str, dict[str, Tensor]]
Tensors = Mapping[str, Tensor]


class Engine:
    """Training state on the device and the step that advances it.

    ``mode`` is ``"eager"``, ``"fused"`` (compiled loops on a CPU, for dense networks), ``"captured"`` (one
    CUDA graph, without the compiler), ``"compiled"`` (on CUDA one graph, too) or ``"auto"`` (``chosen_mode``
    decides). ``per_replicate`` gives ``temperature``, ``target_density`` or rates one value per replicate.
    ``shard`` is the part of this process in a run of several.
    """

    def __init__(
        self,
        replicates: Replicates,
        batches: Batches | Stream,
        settings: Settings,
        per_replicate: Mapping[str, Sequence[float] | Tensor] | None = None,
        mode: str = "auto",
        shard: Shard | None = None,
        augment: Any = (),
    ) -> None:
        self.replicates, self.batches, self.settings = replicates, batches, settings
        self.shard = shard
        self.augment: Sequence[Augmentation] = ()
        if callable(augment) or len(augment):
            from sparsebnn.training.augmentation import checked

            whole = shard is None and settings.accumulate == 1
            self.augment = checked(augment, whole, mode in ("auto", "eager"))
        settings.check_endings(replicates.trained)
        batches.check_shift(settings.shift)
        if settings.channels_last and len(replicates) > 1:
            advice = "Stacked replicates have one axis too many for this layout."
            raise invalid("channels_last", "Settings", "False with several replicates", True, advice)
        self.groups = sorted({settings.group_of(name) for name in replicates.trained})
        self.group_of = {n: self.groups.index(settings.group_of(n)) for n in replicates.trained}
        self.device = batches.device
        self.varied = {
            name: check_tensor(v, f"per_replicate[{name}]", "train", torch.float64)
            for name, v in (per_replicate or {}).items()
        }
        check_per_replicate(self.varied, settings, len(replicates))
        self.targets: Tensor | None = None
        if settings.targets or "target_density" in self.varied:
            self.targets = density_targets(replicates, settings.targets, self.varied.get("target_density"))
        if self.targets is not None or settings.refit:
            check_free(replicates)
        if self.targets is not None:
            replicates.make_per_replicate("prior.inclusion_prob")
        given = self.varied.get("temperature")
        each = [settings.temperature] * len(replicates) if given is None else given.tolist()
        replicates.note_training(self.targets is not None or settings.refit > 0, each)
        twice_moved = {} if settings.optimizer == "sgd" else replicates.trained  # Adam has two moments
        self.state: State = {
            **replicates.tensors(),
            "first": {n: torch.zeros_like(p) for n, p in replicates.trained.items()},
            "second": {n: torch.zeros_like(p) for n, p in twice_moved.items()},
            "average": {n: p.clone() for n, p in replicates.trained.items()} if settings.average else {},
            "data": self._data_tensors(),
            "loop": self._loop_tensors(),
        }
        keep_freed_memory(self.device.type)
        self.compile_seconds = 0.0
        self.culprits: dict[int, str] = {}
        rows = first_of(self._batch(self.state).x)
        replicates.measure(rows)
        if shard is not None:
            replicates.noise_parts = shard.noise_parts(replicates.objective.network, rows)
        self.pieces = self._pieces()
        drawing = any(getattr(change, "draws", False) for change in self.augment)
        self._in_parts = shard is not None or bool(self.pieces) or drawing
        self._advance: Callable[[], Any] = self._eager_step
        self._epoch, self._position, self._every_step = 0, 0, settings.every_step
        fast = None if drawing or mode in ("eager", "compiled") else self._dense_gradients(True)
        self.requested = check_mode(mode, self.device, self._in_parts, fast is not None)
        steps = settings.epochs * batches.per_epoch
        self.mode = chosen_mode(mode, replicates, self.device, steps, fast is not None, self._in_parts)
        self._dense = fast if self.mode in ("fused", "captured") else self._dense_gradients(False)

    def _dense_gradients(self, fast: bool) -> DenseGradients | None:
        """Closed-form gradients, or None. ``fast``: for fused and captured steps; otherwise of replicates."""
        cuda = self.device.type == "cuda"
        if (cuda and self._in_parts) or (not fast and (cuda or len(self.replicates) == 1)):
            return None
        given = self.replicates.objective, self.state, self._batch(self.state)
        return DenseGradients.fitting(*given, fast and not cuda)

    def _pieces(self) -> list[Part]:
        """The parts in which a batch is computed, with their noise; none: in one go."""
        if self.settings.accumulate == 1:
            return []
        from sparsebnn.training.parallel import pieces

        batch, rows = self._batch(self.state), self._own_rows()
        return pieces(self.replicates.objective, batch, rows, self.batches.size, self.settings.accumulate)

    def _data_tensors(self) -> dict[str, Tensor]:
        """All rows, or room for the current batch of a stream."""
        if isinstance(self.batches, Batches):
            return self.batches.tensors()
        first, end = self._own_rows()
        return self.batches.buffers(len(self.replicates), end - first)

    def _loop_tensors(self) -> dict[str, Tensor]:
        k, layers = len(self.replicates), len(self.replicates.objective.layer_names)
        dtype, device, batches = self.replicates.dtype, self.device, self.batches

        def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        in_memory = isinstance(batches, Batches)
        each = k, batches.per_epoch * batches.size if in_memory else 0
        moves = {"shifts": zeros(*each, 2, dtype=torch.int64)} if self.settings.shift else {}
        return {
            **moves,
            "order": zeros(*each, dtype=torch.int64),
            "masks": batches.masks(dtype) if isinstance(batches, Batches) else zeros(0),
            "offsets": torch.arange(*self._own_rows(), device=device),
            "position": zeros(dtype=torch.int64),
            "step": zeros(dtype=torch.int64),
            "rates": zeros(len(self.groups), k),
            "beta": zeros(k),
            "alive": torch.ones(k, dtype=torch.bool, device=device),
            "stopped_at": torch.full((k,), -1, dtype=torch.int64, device=device),
            "totals": zeros(k, 3, dtype=torch.float64),
            "kl_by_layer": zeros(k, layers),
        }

    def _own_rows(self) -> tuple[int, int]:
        """The rows of every batch that this process computes."""
        return (0, self.batches.size) if self.shard is None else (self.shard.first, self.shard.end)

    def __getstate__(self) -> dict[str, Any]:
        """What is compiled or captured stays in its process; a copy or a pickle steps eagerly."""
        dense = None if self.mode == "captured" else self._dense
        return {**self.__dict__, "_advance": self._eager_step, "_dense": dense}

    def __getitem__(self, name: str) -> Tensor:
        """A tensor of the loop: ``engine["step"]``, ``engine["alive"]``, …"""
        return self.state["loop"][name]

    # -- the step -------------------------------------------------------------------------------------

    def _batch(self, state: State) -> Batch:
        """The current batch of every replicate, ``(K, size, …)``."""
        batch = self._gathered(state)
        if not self.augment:
            return batch
        from sparsebnn.training.augmentation import augmented

        place = state["random"]["seeds"], state["loop"]["step"], self._own_rows()
        return augmented(batch, self.augment, *place)

    def _gathered(self, state: State) -> Batch:
        loop = state["loop"]
        if not isinstance(self.batches, Batches):
            return self.batches.current(state["data"])
        places = loop["position"] * self.batches.size + loop["offsets"]
        index = loop["order"].index_select(1, places)
        shifts = loop["shifts"].index_select(1, places) if "shifts" in loop else None
        # Indexing by a number on the device would send it to the host; selecting does not.
        mask = loop["masks"].index_select(0, loop["position"].unsqueeze(0)).squeeze(0)
        if self.shard is None:
            return gather(state["data"], index, mask, shifts)
        own = gather(state["data"], index, mask[self.shard.first : self.shard.end], shifts)
        return own._replace(rows=mask.sum() * self.shard.share)

    def _noise(self, state: State) -> tuple[Tensor, Tensor]:
        return self.replicates.noise(state["random"]["seeds"], state["loop"]["step"], self.mode == "fused")

    def _noise_and_rates(self, state: State) -> tuple[Tensor, ...]:
        """What a step needs that does not depend on weights: its noise, and Adam's corrected rates."""
        return *self._noise(state), *corrected(state["loop"]["rates"], state["loop"]["step"] + 1)

    def _step(self, state: State, normal: Tensor, logistic: Tensor, rates: Tensor, root: Tensor) -> None:
        """The step that is compiled: it does not branch on data and does not leave the device."""
        noise = normal, logistic
        gradients = self.replicates.gradients(state, self._batch(state), state["loop"]["beta"], noise)
        self._update(state, *gradients, self._plain_adam(state, rates, root))

    @torch.no_grad()
    def _update(
        self,
        state: State,
        gradients: dict[str, Tensor],
        parts: Parts,
        adam_step: Callable[[dict[str, Tensor]], None],
        finite: Tensor | None = None,
    ) -> None:
        """The second half of every step: from gradients to parameters, with the optimizer of the settings.

        A replicate whose loss is not finite (nor its gradients, where ``finite`` tells) stops; the others
        are not affected.
        """
        settings, loop = self.settings, state["loop"]
        good = torch.isfinite(parts.loss) if finite is None else torch.isfinite(parts.loss) & finite
        if finite is None or not bool(good.all()):  # a step that is compiled or captured cannot look
            mark_stopped(loop, good)
        rates = loop["rates"], self.group_of
        if settings.clip_norm is not None:
            gradients = clipped(gradients, settings.clip_norm)
        if settings.weight_decay:
            decay(state["trained"], self.replicates.ordinary, *rates, settings.weight_decay, loop["alive"])
        if settings.optimizer == "sgd":
            moved = state["trained"], gradients, state["first"]
            sgd(*moved, *rates, settings.momentum, loop["alive"])
        else:
            adam_step(gradients)
        if settings.average is not None:
            average(state["average"], state["trained"], settings.average, loop["step"])
        count_step(loop, parts)

    def _plain_adam(self, state: State, rates: Tensor, root: Tensor) -> Callable[[dict[str, Tensor]], None]:
        """Adam in plain operations, for steps that are compiled or captured."""
        moments, alive = (state["first"], state["second"]), state["loop"]["alive"]

        def step(gradients: dict[str, Tensor]) -> None:
            moved = {name: state["trained"][name] for name in gradients}
            adam(moved, gradients, *moments, rates, self.group_of, root, alive)

        return step

    def _captured_step(self) -> None:
        """The step that is captured without the compiler: as the eager one, but it never asks the device."""
        if self._joined():
            from sparsebnn.training.captured import joined_step

            return joined_step(self, self._dense)  # type: ignore[arg-type]
        normal, logistic, *corrected_rates = self._noise_and_rates(self.state)
        adam_step = self._plain_adam(self.state, *corrected_rates)
        self._update(self.state, *self._gradients(normal, logistic), adam_step)

    def _joined(self) -> bool:
        """Whether one pass makes the gradients of a captured step and takes Adam's step with them."""
        settings = self.settings
        plain = settings.optimizer != "sgd" and settings.clip_norm is None and not settings.weight_decay
        return plain and self._dense is not None

    def _gradients(self, normal: Tensor, logistic: Tensor) -> tuple[dict[str, Tensor], Parts]:
        found = self._gradients_of(self._batch(self.state), (normal, logistic))
        return found if self.shard is None else self.shard.reduced(*found)

    def _gradients_of(self, batch: Batch, noise: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], Parts]:
        """In closed form, of a single replicate as an ordinary module, or of several mapped."""
        if self._dense is not None:
            return self._dense(self.state, batch, self["beta"], noise)
        if len(self.replicates) == 1:
            return self.replicates.gradients_single(batch, self["beta"], noise)
        return self.replicates.gradients(self.state, batch, self["beta"], noise)

    def _accumulated(self) -> tuple[dict[str, Tensor], Parts]:
        """The gradients of a batch that is computed in pieces."""
        from sparsebnn.training.parallel import accumulated

        def of_piece(piece: Part, batch: Batch) -> tuple[dict[str, Tensor], Parts]:
            self.replicates.noise_parts = piece.noise
            return self._gradients_of(batch, self._noise(self.state))

        found = accumulated(self.pieces, self._batch(self.state), self._own_rows(), of_piece)
        return found if self.shard is None else self.shard.reduced(*found)

    def _eager_step(self) -> None:
        state, loop, fused = self.state, self.state["loop"], self.mode == "fused"
        gradients, parts = self._accumulated() if self.pieces else self._gradients(*self._noise(state))

        def adam_step(gradients: dict[str, Tensor]) -> None:
            tensors = state["trained"], gradients, state["first"], state["second"]
            together = not any(name.startswith("learning_rate") for name in self.varied)
            rates, count = (loop["rates"], self.group_of), int(loop["step"]) + 1
            adam_eager(*tensors, *rates, count, loop["alive"], together, fused)

        with torch.no_grad():
            finite = all_finite(gradients.values(), fused)
            self._remember_culprits(finite, list(gradients))
        self._update(state, gradients, parts, adam_step, finite.all(0))

    def _remember_culprits(self, finite: Tensor, names: list[str]) -> None:
        """Which parameter's gradient was the first that was not finite, for each replicate."""
        if not bool(finite.all()):
            for k in range(len(self.replicates)):
                bad = [name for name, good in zip(names, finite[:, k].tolist()) if not good]
                if bad:
                    self.culprits.setdefault(k, bad[0])

    def resume_mode(self, before: str | None) -> None:
        """With ``"auto"``, continue in the mode in which a checkpoint was written, if the device has it."""
        if self.requested == "auto" and before is not None:
            fast = self._dense_gradients(True)
            self.mode = resumed_mode(before, self.mode, self.device, self._in_parts, fast is not None)
            self._dense = fast if self.mode in ("fused", "captured") else self._dense_gradients(False)

    def prepare(self, ready: Callable[[], None] | None = None) -> None:
        """Compile or capture, if that is the mode; ``ready`` is called before the step runs first."""
        if self.mode in ("captured", "compiled"):
            prepare(self, ready)

    # -- epochs ---------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int, position: int = 0) -> None:
        """Order, rates and KL weight of an epoch; ``position`` is where a resumed epoch continues."""
        steered = self.targets is not None or self.settings.refit > 0
        if position == 0 and steered and steer(self.replicates, self.settings, self.targets, epoch):
            for name, tensor in self.state["average"].items():  # what was averaged had another structure
                tensor.copy_(self.replicates.trained[name])
        seeds = self.replicates.seed_tensor
        if isinstance(self.batches, Batches):
            distinct = bool(self.replicates.statistics)
            self["order"].copy_(self.batches.order(seeds, epoch, self.settings.shuffle, distinct))
            if self.settings.shift:
                self["shifts"].copy_(self.batches.shifts(seeds, epoch, self.settings.shift))
        else:
            self.batches.begin(seeds, epoch, self.settings.shuffle, position, self._own_rows())
        self._epoch, self._position = epoch, position
        self._set_rates(epoch)
        one = torch.ones(len(self.replicates), dtype=torch.float64)
        temperature = self.varied.get("temperature", self.settings.temperature * one)
        self["beta"].copy_(self.settings.warmup_factor(epoch) * temperature)
        for name, buffer in self.replicates.shared.items():
            if name.startswith("likelihood.") and name.endswith(".noise_switch"):
                buffer.fill_(float(epoch >= self.settings.noise_from))
        self["position"].fill_(position)
        if position == 0:
            self["totals"].zero_()

    def _set_rates(self, epoch: float) -> None:
        """The rates of a moment, counted in epochs."""
        one = torch.ones(len(self.replicates), dtype=torch.float64)
        rates = []
        for group in self.groups:
            own = self.settings.rate_of(group)
            base = self.varied.get("learning_rate" if own is None else f"learning_rates.{own}")
            if base is None:
                base = self.settings.base_rate(group) * one
            rates.append(self.settings.rate_factor(group, epoch) * base)
        self["rates"].copy_(torch.stack(rates))

    @torch.no_grad()
    def check(self) -> None:
        """Stop replicates in which a gradient that was not finite has left its mark on Adam's moments."""
        broken = self["alive"] & ~all_finite(self.state["first"].values()).all(0)
        self["stopped_at"].copy_(torch.where(broken, self["step"] - 1, self["stopped_at"]))
        self["alive"].logical_and_(~broken)

    def run(self, steps: int) -> None:
        """Advance by that many steps of the epoch."""
        for _ in range(steps):
            if not isinstance(self.batches, Batches):
                share = 1.0 if self.shard is None else self.shard.share
                self.batches.advance(self.state["data"], share)
            if self._every_step:
                self._set_rates(self._epoch + self._position / self.batches.per_epoch)
            self._advance()
            self._position += 1
