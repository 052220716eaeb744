"""From a step to something fast: recorded once, compiled, and on CUDA captured as one graph."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from sparsebnn.kernels.ahead import compile_ahead
from sparsebnn.kernels.dispatch import capturing, tracing

if TYPE_CHECKING:
    from sparsebnn.training.engine import Engine

_log = logging.getLogger("sparsebnn")

# A gradient is used three times by Adam (both moments and the step). By default the compiler writes it
# to memory for that; on CUDA these limits let it stay in registers and join the one pass over the
# parameter and its moments. (Not for code with long chains of shared subexpressions, which would be
# expanded again and again.)
_FUSE: dict[str, str | int | bool] = {
    "realize_opcount_threshold": 300,
    "realize_reads_threshold": 32,
    # The flows' steps are many small independent kernels; together they fill the device.
    "combo_kernels": True,
}
# Kernels that were joined keep their own block sizes. Fully connected flows gain by it; LeNets lose (ten of
# them, LBBNN-LRT: 1.55 ms a step without it, 1.8 with it), because the kernel that adds up the parts of a
# convolution's gradient gets blocks too narrow for its strides.
_OWN_BLOCKS = "combo_kernel_per_subkernel_blocks"
# The compiler times variants of a kernel and takes the fastest, which differs from time to time. Sums must
# not depend on it, or the same run would end with other bits after another compilation: a sum has one
# variant, and kernels that are joined, whose variants are timed together, must not be sums.
_SAME_BITS = {"deterministic": True, "combo_kernels_pointwise_only": True}


def fusing(convolutions: bool) -> dict[str, str | int | bool]:
    """The compiler's options for a whole training step on CUDA."""
    from torch._inductor import config

    options = {**_FUSE, _OWN_BLOCKS: not convolutions, **_SAME_BITS}
    if not hasattr(config, "combo_kernels_pointwise_only"):  # not every PyTorch has it
        options["combo_kernels"] = False
    return {name: value for name, value in options.items() if hasattr(config, name)}


class Silent:
    """Suppresses torch's warnings while compiling: they are about kernels that no user has written.

    Treated as errors they would stop the compiler. Warning filters belong to the process, so threads share
    one entry, and only that entry is removed.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._entry: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                warnings.filterwarnings("ignore", module=r"torch\b")
                self._entry = warnings.filters[0]

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._entry in warnings.filters:
                warnings.filters.remove(self._entry)  # type: ignore[attr-defined]


SILENT = Silent()


def compiled(
    step: Callable[..., Any],
    *arguments: Any,
    options: dict[str, str | int | bool] | None = None,
    ready: Callable[[], None] | None = None,
) -> Callable[..., Any]:
    """``step`` as compiled code for arguments like these, which it may change in place.

    The step is first recorded as one flat graph of tensor operations: transformations (``vmap``,
    ``grad``) and custom batching rules are resolved there, and the compiler sees none of them. The first
    call compiles. ``ready`` is called when that is done and nothing has run yet: what runs then times
    variants of its kernels, so whoever shares a device wants it quiet from here on.
    """
    with tracing():
        # The recorder counts a method's own 'self' as an argument, so it gets a function.
        graph = make_fx(lambda *given: step(*given), tracing_mode="fake")(*arguments)

    def backend(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        from torch._inductor.compile_fx import compile_fx

        made = compile_fx(module, inputs, config_patches=options)
        if ready is not None:
            ready()
        return made

    # The arguments are the same tensors in every step, and looking them all over takes 0.4 ms each time on
    # a CPU. (A captured graph does not come here again.)
    guards: dict[str, Any] = {"guard_filter_fn": lambda guards: [False for _ in guards]}
    return torch.compile(graph, fullgraph=True, dynamic=False, backend=backend, options=guards)


def captured(step: Callable[[], Any], rehearsals: int = 3) -> Callable[[], None]:
    """``step`` as one CUDA graph. It runs ``rehearsals`` times first; what they change is the caller's."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(rehearsals):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def fast_step(
    prelude: Callable[..., Any],
    step: Callable[..., Any],
    state: dict[str, dict[str, Tensor]],
    per_epoch: int,
    ready: Callable[[], None],
) -> Callable[[], Any]:
    """A whole training step, compiled, and captured as one graph on CUDA.

    Prelude and step are compiled separately: joined, the prelude would be computed again wherever it is used.
    """
    cuda = state["loop"]["step"].is_cuda
    options = fusing(any(t.dim() > 3 for t in state["trained"].values())) if cuda else None
    first = compiled(prelude, state)
    second = compiled(step, state, *first(state), options=options, ready=ready)

    def whole() -> None:
        second(state, *first(state))

    if cuda:
        return captured(whole, rehearsals=min(3, per_epoch))
    whole()
    return whole


def _indexes_by_no_values(engine: Engine) -> bool:
    """Whether a step may run on tensors that hold anything: modules of others might index by them."""
    modules = engine.replicates.objective.modules()
    return all(type(module).__module__.split(".")[0] in ("torch", "sparsebnn") for module in modules)


def prepare(engine: Engine, ready: Callable[[], None] | None = None) -> None:
    """Compile or capture an engine's step; on failure say so in one line and stay eager.

    ``ready`` is called between compiling and the first time the step runs; it may wait for the device.
    """
    verb = "Compiling" if engine.mode == "compiled" else "Capturing"
    started, waited = time.perf_counter(), 0.0

    def waiting() -> None:
        nonlocal waited
        began = time.perf_counter()
        if ready is not None:
            ready()
        waited = time.perf_counter() - began

    # Rehearsals change no parameters, since no replicate is alive; what else they change is restored.
    kinds = "loop", "average", "varied", "shared"
    changed = [t for kind in kinds for t in engine.state[kind].values()]
    kept = [tensor.clone() for tensor in changed]

    def restore() -> None:
        for tensor, before in zip(changed, kept):
            tensor.copy_(before)

    engine["alive"].fill_(False)
    try:
        if engine.mode == "captured":
            waiting()
            with capturing():
                engine._noise(engine.state)  # finds out whether its kernel works
                if _indexes_by_no_values(engine):
                    compile_ahead(engine._captured_step)
                    restore()
                    engine["alive"].fill_(False)
                engine._advance = captured(engine._captured_step, min(3, engine.batches.per_epoch))
        else:
            with SILENT:
                steps = engine._noise_and_rates, engine._step
                engine._advance = fast_step(*steps, engine.state, engine.batches.per_epoch, waiting)
    except Exception as error:  # compiling and capturing can fail in too many ways to name
        if engine.device.type == "cuda":
            with contextlib.suppress(Exception):
                torch.cuda.synchronize(engine.device)  # streams beside may still write
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        telling = [line for line in lines if not line.endswith("raised:")] or [""]
        reason = f"{type(error).__name__}: {telling[0]}"[:200]
        _log.warning("%s the training step failed (%s); running it eagerly.", verb, reason)
        engine.mode, engine._advance = "eager", engine._eager_step
        engine._dense = engine._dense_gradients(False)
    restore()
    engine.compile_seconds += time.perf_counter() - started - waited
