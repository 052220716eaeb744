"""The step, and how it is run: eagerly, compiled, or captured as one CUDA graph.

A step gathers its batch, makes its noise, and goes forward, backward and through the optimiser, all
on the device. Rates, KL weight, position and step number are tensors there, so nothing is compiled or
captured twice.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from sparsebnn.checks import check_choice, invalid
from sparsebnn.training.adam import Adam
from sparsebnn.training.batches import Batches
from sparsebnn.training.objective import Batch, Parts
from sparsebnn.training.replicas import Replicas
from sparsebnn.training.settings import Settings

__all__ = ["Engine", "matmul_precision"]

_log = logging.getLogger("sparsebnn")
# Compiling takes tens of seconds on a CPU and saves about a third of a step: below this many
# weight-updates a run does not repay it.
_WORTH_COMPILING_ON_CPU = 2e10


@contextlib.contextmanager
def matmul_precision(tf32: bool) -> Iterator[None]:
    """TF32 for matrix products and convolutions inside the scope only."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn


class Engine:
    """Training state on the device and the step that advances it.

    ``mode`` is ``"eager"``, ``"compiled"`` or ``"auto"``: compiled and captured on CUDA, compiled on a
    CPU when the run is long enough to repay it.
    """

    def __init__(
        self,
        replicas: Replicas,
        batches: Batches,
        settings: Settings,
        vary: Mapping[str, Sequence[float] | Tensor] | None = None,
        mode: str = "auto",
    ) -> None:
        self.replicas, self.batches, self.settings = replicas, batches, settings
        self.groups = sorted({settings.group_of(name) for name in replicas.trained})
        self.adam = Adam(
            replicas.trained, {n: self.groups.index(settings.group_of(n)) for n in replicas.trained}
        )
        device, dtype = batches.x.device, next(iter(replicas.parameters.values())).dtype
        k, layers = len(replicas), len(replicas.objective.layer_names)
        self.device, self.dtype = device, dtype
        self.masks = batches.masks(dtype)
        self.offsets = torch.arange(batches.size, device=device)
        self.order = torch.zeros(k, batches.per_epoch * batches.size, dtype=torch.int64, device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.rates = torch.zeros(len(self.groups), k, dtype=dtype, device=device)
        self.beta = torch.zeros(k, dtype=dtype, device=device)
        self.alive = torch.ones(k, dtype=torch.bool, device=device)
        self.stopped_at = torch.full((k,), -1, dtype=torch.int64, device=device)
        self.totals = torch.zeros(k, 3, dtype=torch.float64, device=device)
        self.kl_by_layer = torch.zeros(k, layers, dtype=dtype, device=device)
        self.compile_seconds = 0.0
        self._vary = {name: torch.as_tensor(v, dtype=torch.float64) for name, v in (vary or {}).items()}
        self._check_vary()
        replicas.measure(batches.gather(self.offsets % batches.rows, self.masks[0]).x)
        check_choice(mode, ("auto", "eager", "compiled"), "mode", "train")
        self.mode = self._choose(mode)
        self._advance: Callable[[], None] = self._eager_step

    def _check_vary(self) -> None:
        known = ["temperature", "learning_rate", *(f"learning_rates.{g}" for g in self.groups if g)]
        for name, values in self._vary.items():
            if name not in known:
                raise invalid("vary", "train", "one of " + ", ".join(map(repr, known)), repr(name))
            if values.shape != (len(self.replicas),):
                expected = f"one value per replicate ({len(self.replicas)})"
                raise invalid(f"vary[{name}]", "train", expected, f"shape {tuple(values.shape)}")

    def _choose(self, mode: str) -> str:
        if mode != "auto":
            return mode
        if self.device.type == "cuda":
            return "compiled"
        weights = sum(p.numel() for p in self.replicas.trained.values())
        updates = weights * self.settings.epochs * self.batches.per_epoch
        return "compiled" if updates > _WORTH_COMPILING_ON_CPU else "eager"

    # -- the step -----------------------------------------------------------------------------------

    def _batch(self) -> Batch:
        """The current batch of every replicate, ``(K, size, …)``."""
        index = self.order.index_select(1, self.position * self.batches.size + self.offsets)
        # Indexing by a number on the device would send it to the host; selecting does not.
        mask = self.masks.index_select(0, self.position.unsqueeze(0)).squeeze(0)
        return self.batches.gather(index, mask)

    def _whole_step(self, normal: Tensor, logistic: Tensor) -> None:
        """Everything after the noise, in operations that neither branch on data nor leave the device."""
        gradients, parts = self.replicas.gradients(self._batch(), self.beta, (normal, logistic))
        self._judge(parts)
        self.adam.update(self.replicas.trained, gradients, self.rates, self.step + 1, self.alive)
        self._account(parts)

    def _judge(self, parts: Parts) -> None:
        """A replicate whose loss is not finite stops here; the others do not notice."""
        finite = torch.isfinite(parts.loss)
        self.stopped_at.copy_(torch.where(self.alive & ~finite, self.step, self.stopped_at))
        self.alive.logical_and_(finite)

    def _account(self, parts: Parts) -> None:
        sums = torch.stack([parts.loss, parts.nll, parts.kl], dim=1).to(self.totals.dtype)
        self.totals.add_(torch.where(self.alive.unsqueeze(1), sums, torch.zeros_like(sums)))
        self.kl_by_layer.copy_(parts.kl_by_layer)
        self.position.add_(1)
        self.step.add_(1)

    def _eager_step(self) -> None:
        noise = self.replicas.noise(self.step)
        count = int(self.step) + 1
        single = len(self.replicas) == 1
        gradients_of = self.replicas.gradients_single if single else self.replicas.gradients
        gradients, parts = gradients_of(self._batch(), self.beta, noise)
        with torch.no_grad():
            self._judge(parts)
            alive = self.alive.tolist()
            self.adam.update_fused(self.replicas.trained, gradients, self.rates, count, alive)
            self._account(parts)

    # -- compiling and capturing ----------------------------------------------------------------------

    def prepare(self) -> None:
        """Compile and capture, if that is the mode; on failure say so in one line and stay eager."""
        if self.mode == "eager":
            return
        started = time.perf_counter()
        kept = self._snapshot()
        try:
            self._advance = self._compile()
        except Exception as error:  # the compiler can fail in too many ways to name
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            _log.warning("Compiling the training step failed (%s); running it eagerly.", reason)
            self.mode, self._advance = "eager", self._eager_step
        self._restore(kept)
        self.compile_seconds += time.perf_counter() - started

    def _compile(self) -> Callable[[], None]:
        noise = torch.compile(self.replicas.noise, fullgraph=True, dynamic=False)
        whole = torch.compile(self._whole_step, fullgraph=True, dynamic=False)

        def step() -> None:
            with torch.no_grad():
                whole(*noise(self.step))

        # Rehearsals change nothing that matters: dead replicates keep their values.
        self.alive.fill_(False)
        if self.device.type != "cuda":
            step()
            return step
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.position.zero_()
                step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.position.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        self._graph = graph
        return graph.replay

    def _counters(self) -> list[Tensor]:
        return [self.position, self.step, self.alive, self.stopped_at, self.totals, self.kl_by_layer]

    def _snapshot(self) -> list[Tensor]:
        return [t.clone() for t in self._counters()]

    def _restore(self, kept: list[Tensor]) -> None:
        for tensor, value in zip(self._counters(), kept):
            tensor.copy_(value)

    # -- epochs ---------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int, position: int = 0) -> None:
        """Order, rates and KL weight of an epoch; ``position`` is where a resumed epoch goes on."""
        order = self.batches.order(self.replicas.seed_tensor, epoch, self.settings.shuffle)
        self.order.copy_(order)
        k = len(self.replicas)
        one = torch.ones(k, dtype=torch.float64)
        rates = []
        for group in self.groups:
            rate = self.settings.rate(group, epoch) * one
            key = f"learning_rates.{group}" if group else "learning_rate"
            if key in self._vary:
                base = self.settings.learning_rates.get(group, self.settings.learning_rate)
                rate = rate / base * self._vary[key]
            rates.append(rate)
        self.rates.copy_(torch.stack(rates))
        beta = self.settings.beta(epoch) * one
        if "temperature" in self._vary:
            beta = beta / self.settings.temperature * self._vary["temperature"]
        self.beta.copy_(beta)
        self.position.fill_(position)
        if position == 0:
            self.totals.zero_()

    def run(self, steps: int) -> None:
        """Advance by that many steps of the epoch."""
        for _ in range(steps):
            self._advance()
