"""What ``train`` is given, checked before any work starts."""

from __future__ import annotations

import copy
import logging
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparsebnn import checks, likelihoods
from sparsebnn.checks import (
    InvalidInput,
    check_choice,
    check_count,
    check_number,
    check_seed,
    check_tensor,
    invalid,
)
from sparsebnn.kernels import training as kernels
from sparsebnn.nn.networks import bayesian_layers, kept, obstacles
from sparsebnn.nn.passes import call
from sparsebnn.training.batches import targets_of
from sparsebnn.training.callbacks import Callback
from sparsebnn.training.settings import Settings

if TYPE_CHECKING:
    from sparsebnn.training.objective import Replicates

_log = logging.getLogger("sparsebnn")
MODES = ("auto", "eager", "fused", "captured", "compiled")
# Compiling takes tens of seconds on a CPU and halves a step: below this many weight-updates a run
# does not repay it.
_WORTH_COMPILING_ON_CPU = 2e10
# On CUDA, fitted to an H200 (docs/studies/performance.md), by family: seconds of compiling a layer, and the
# microseconds that a step saves by it for a layer and for a million parameters.
_COSTS = {"concrete": (16.0, 180.0, 5.0), "flow": (55.0, 660.0, 27.5), "mnf": (55.0, 660.0, 27.5)}
_USUAL = 17.6, 101.5, 5.0
_NOISE_MICROSECONDS = 70.0  # for a million numbers: as many as the local reparametrization has outputs
_CONVOLUTIONS = 1.4  # the compiler's work, relative to dense layers


def _drops(module: nn.Module) -> bool:
    """Whether it drops units at random; recurrent and attention modules do so by themselves."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0.0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0.0 and module.num_layers > 1
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0.0


def check_network(network: nn.Module) -> None:
    """A network of which replicates can be trained."""
    if next(bayesian_layers(network), None) is None:
        advice = "Build it with mlp, lenet or convert."
        raise invalid("network", "train", "a module with Bayesian layers", type(network).__name__, advice)
    active = [name for name, module in network.named_modules() if _drops(module)]
    if active:
        expected = "free of dropout: a replicate's seed would not control its masks"
        raise invalid("network", "train", expected, f"dropout at {active}", "Set it to 0 or remove it.")
    if any(hasattr(p, "full_tensor") for p in network.parameters()):
        advice = "Train it in your own loop, with forward_with_kl (docs/training.md)."
        expected = "a network that is not sharded, because replicates are stacked"
        raise invalid("network", "train", expected, "one sharded by fully_shard (FSDP2)", advice)
    lazy = [name for name, p in network.named_parameters() if isinstance(p, nn.UninitializedParameter)]
    if lazy:
        advice = "Call it on some rows first."
        raise invalid(
            "network", "train", "a module whose parameters have a shape", f"{lazy[0]!r} without", advice
        )
    found = obstacles(network, kept(network))
    if found:
        raise InvalidInput(
            "The 'network' of train must be replicable. Got a network instead, in which "
            + "; ".join(found)
            + "."
        )


def check_start(start: Any, network: nn.Module, replicates: int) -> None:
    """Where training starts; values that a start from the seed does not use are worth a warning."""
    if start == "seed":
        changed = [name or type(layer).__name__ for name, layer in bayesian_layers(network) if layer.changed]
        if changed:
            _log.warning(
                "The Bayesian layers of 'network' (%s) hold values that were trained, loaded or set, and "
                "train(start='seed') draws new ones. Pass start='given' to train from these values.",
                ", ".join(changed[:3]) + (", …" if len(changed) > 3 else ""),
            )
        return
    if start == "given":
        return
    expected = f"'seed', 'given' or a network for each of the {replicates} replicates"
    if isinstance(start, str) or not isinstance(start, Sequence):
        raise invalid("start", "train", expected, repr(start))
    if len(start) != replicates or not all(isinstance(one, nn.Module) for one in start):
        raise invalid("start", "train", expected, f"a list of {len(start)}")
    shapes = {name: tuple(t.shape) for name, t in network.state_dict().items()}
    for k, one in enumerate(start):
        if {name: tuple(t.shape) for name, t in one.state_dict().items()} != shapes:
            same = "networks with the same parameters as 'network'"
            raise invalid("start", "train", same, f"another at {k}")


def check_options(settings: Any, callbacks: Any, per_replicate: Any, every: Any) -> list[Callback]:
    """The callbacks as a list; the others are as they should be."""
    if not isinstance(settings, Settings):
        advice = "For example Settings(epochs=50)."
        raise invalid("settings", "train", "a Settings", f"a {type(settings).__name__}", advice)
    if isinstance(callbacks, Callback):
        raise invalid("callbacks", "train", "a list", f"one {type(callbacks).__name__}", "Put it into [ ].")
    if not isinstance(callbacks, Iterable):
        raise invalid("callbacks", "train", "a list of callbacks", repr(callbacks))
    listed = list(callbacks)
    for one in listed:
        if not isinstance(one, Callback):
            raise invalid("callbacks", "train", "a list of callbacks", f"{one!r} among them")
    if per_replicate is not None and not isinstance(per_replicate, Mapping):
        advice = "For example {'temperature': [0.1, 1.0]}."
        raise invalid(
            "per_replicate", "train", "a dict of names and their values", repr(per_replicate), advice
        )
    check_number(every, "checkpoint_seconds", "train", "at least 0", lambda value: value >= 0.0)
    return listed


def processes(parallel: Any) -> str:
    """How the processes of a group share the work: "none", "rows" or "replicates"."""
    check_choice(parallel, ("auto", "rows", "replicates", "none"), "parallel", "train")
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    if parallel in ("rows", "replicates") and not grouped:
        advice = "Start with torchrun and call torch.distributed.init_process_group() first."
        raise invalid("parallel", "train", "used inside a process group", repr(parallel), advice)
    if parallel == "none" or not grouped or torch.distributed.get_world_size() == 1:
        return "none"
    return "rows" if parallel == "auto" else str(parallel)


def likelihood_of(likelihood: Any, data: Any) -> likelihoods.Likelihood:
    """The likelihood itself, or that of a name, sized by the targets."""
    if isinstance(likelihood, str):
        if data is None and likelihood == "categorical":
            advice = "For example likelihood=sparsebnn.likelihoods.Categorical(10)."
            raise invalid("likelihood", "train", "an object that knows the classes", repr(likelihood), advice)
        y = torch.zeros(2) if data is None else data if isinstance(data, Tensor) else targets_of(data)
        return likelihoods.NAMED[check_choice(likelihood, likelihoods.NAMED, "likelihood", "train")](y)
    if not isinstance(likelihood, likelihoods.Likelihood):
        expected = "a name, such as 'gaussian', or a Likelihood"
        raise invalid("likelihood", "train", expected, repr(likelihood))
    return likelihood


def seeds_of(replicates: Any, seed: Any) -> list[int]:
    """One seed per replicate: from a count and the first of them, or as given."""
    first = check_seed(seed, "seed", "train")
    if hasattr(replicates, "tolist"):
        replicates = replicates.tolist()  # of an array or a tensor
    if isinstance(replicates, numbers.Integral):
        end = first + check_count(replicates, "replicates", "train")
        check_seed(end - 1, "seed", "the last replicate")
        return list(range(first, end))
    if isinstance(replicates, str) or not isinstance(replicates, Iterable):
        raise invalid("replicates", "train", "a number or distinct seeds", repr(replicates))
    seeds = [check_seed(one, "replicates", "train") for one in replicates]
    if not seeds or len(set(seeds)) != len(seeds):
        raise invalid("replicates", "train", "a number or distinct seeds", seeds)
    return seeds


class _Generators:
    """Torch's global generators, and whether they have moved since."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = self._now()

    def _now(self) -> list[Tensor]:
        cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        return [torch.get_rng_state(), *cuda]

    def have_moved(self) -> bool:
        return not all(map(torch.equal, self.before, self._now()))


class _Watch(TorchDispatchMode):
    """Remembers the first operation that draws. It does not see what other threads draw meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.name = ""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        draws = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        if draws and not self.name and (kwargs or {}).get("generator") is None:
            self.name = str(getattr(func, "__name__", func)).partition(".")[0].strip("_")
        return func(*args, **(kwargs or {}))


def outputs_without_noise(network: nn.Module, x: Any) -> tuple[Any, list[str]]:
    """What a network makes of ``x``, and the buffers it changes; one that draws random numbers is rejected.

    It runs copies of the network, so that training can repeat whatever the network does once. If a generator
    moved, a second, watched run tells whether the network moved it or another thread did.

    >>> outputs_without_noise(nn.Dropout(0.5), torch.ones(1, 3))
    Traceback (most recent call last):
    sparsebnn.checks.InvalidInput: The 'network' of train must be free of ... Got a call of bernoulli ...
    """
    generators = _Generators(tree_leaves(x)[0].device)
    run = copy.deepcopy(network)
    outputs = call(run, x)
    if generators.have_moved():
        _refuse_what_draws(network, x)
    pairs = zip(network.named_buffers(), run.buffers())
    return outputs, [name for (name, before), after in pairs if not _same(before, after)]


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _refuse_what_draws(network: nn.Module, x: Any) -> None:
    got, watch = "", _Watch()
    try:
        with watch:
            call(copy.deepcopy(network), x)
    except Exception:  # not every operation can be watched
        got = "random draws in its forward"
    if watch.name:
        got = f"a call of {watch.name}"
    if got:
        expected = "free of random draws, which a replicate's seed would not control"
        advice = "Leave out what draws them (dropout, added noise)."
        raise invalid("network", "train", expected, got, advice)


def check_per_replicate(varied: Mapping[str, Tensor], settings: Settings, replicates: int) -> None:
    """Rates and temperatures: names that exist, one value for each replicate."""
    own = [f"learning_rates.{ending}" for ending in settings.learning_rates]
    known = ["temperature", "learning_rate", "target_density", *own]
    for name, values in varied.items():
        if name not in known:
            raise invalid("per_replicate", "train", "one of " + ", ".join(map(repr, known)), repr(name))
        if values.shape != (replicates,):
            expected = f"one value per replicate ({replicates})"
            raise invalid(f"per_replicate[{name}]", "train", expected, f"shape {tuple(values.shape)}")
        # Shares of weights are checked where they are used.
        good = (values >= 0.0) & values.isfinite()
        if name != "target_density" and not bool(good.all()):
            raise invalid(f"per_replicate[{name}]", "train", "finite and at least 0", float(values[~good][0]))


def named_so(buffers: Mapping[str, Tensor], ending: str) -> list[str]:
    """The buffers whose names end like this, such as ``prior.inclusion_prob``."""
    return [name for name in buffers if name == ending or name.endswith(f".{ending}")]


def stacked_buffers(
    buffers: Mapping[str, Tensor], per_replicate: Mapping[str, Sequence[float] | Tensor], replicates: int
) -> dict[str, Tensor]:
    """The buffers that differ between replicates, ``(K, …)``, from values by the end of their name."""
    stacked: dict[str, Tensor] = {}
    for ending, values in per_replicate.items():
        names = named_so(buffers, ending)
        if not names:
            known = sorted({".".join(name.split(".")[-2:]) for name in buffers})
            expected = "the name of a buffer, such as " + ", ".join(known[:6])
            raise invalid("per_replicate", "train", expected, repr(ending))
        what, dtype = f"per_replicate[{ending}]", buffers[names[0]].dtype
        column = check_tensor(values, what, "train")
        if ending.endswith("inclusion_prob"):
            checks.check_probability(column, what, "train", dtype)
        elif ending.endswith("relaxation"):
            checks.check_positive(column, what, "train", dtype=dtype)
        elif ending.endswith("std"):
            checks.check_scale(column, what, "train", dtype)
        elif ending.endswith("mean"):
            checks.check_finite(column, what, "train", "")
        if column.shape[:1] != (replicates,):
            expected = f"one value per replicate ({replicates})"
            raise invalid(what, "train", expected, f"shape {tuple(column.shape)}")
        for name in names:
            like = buffers[name]
            entry = column.reshape(*column.shape, *[1] * (like.dim() + 1 - column.dim()))
            entry = entry.to(device=like.device, dtype=like.dtype)
            stacked[name] = entry.expand(replicates, *like.shape).contiguous()
    return stacked


# -- how the step runs --------------------------------------------------------------------------------
#
# A captured step starts in seconds, a compiled one in minutes, and then each of its steps is shorter.
# Compiling pays when the run has more steps than the seconds it takes, divided by the seconds it saves per
# step. Both are estimated from the network rather than measured, so that the same run chooses the same mode.


def check_mode(mode: str, device: torch.device, in_parts: bool = False, closed_form: bool = False) -> str:
    """The mode, if device and network support it; fused steps need gradients in ``closed_form``."""
    check_choice(mode, MODES, "mode", "train")
    if in_parts and mode not in ("auto", "eager", "fused"):
        advice = "Use mode='auto'. With accumulate=1 or parallel='replicates' a step can be compiled."
        expected = "'auto', 'eager' or 'fused' where a batch is computed in parts"
        raise invalid("mode", "train", expected, repr(mode), advice)
    if mode == "captured" and device.type != "cuda":
        advice = "A CUDA graph needs a GPU: use mode='auto', which captures where that is possible."
        raise invalid("mode", "train", "'auto', 'eager', 'fused' or 'compiled' on a CPU", repr(mode), advice)
    if mode == "fused" and (device.type == "cuda" or not closed_form):
        expected = "'fused' only for dense networks with ReLU in single precision, on a CPU with a C compiler"
        got = (
            "a GPU"
            if device.type == "cuda"
            else "no C compiler"
            if not kernels.available()
            else "another network"
        )
        raise invalid("mode", "train", expected, f"{mode!r} with {got}", "Use mode='auto'.")
    return mode


def resumed_mode(before: str, now: str, device: torch.device, in_parts: bool, closed_form: bool) -> str:
    """The mode ``before`` an interruption; where it is not possible, ``now``, with a warning."""
    try:
        return check_mode(before, device, in_parts, closed_form)
    except InvalidInput:
        if before != now:
            _log.warning(
                "The run was interrupted in mode=%r, which is not possible here. It goes on in mode=%r, "
                "and its numbers will differ by rounding.",
                before,
                now,
            )
        return now


def break_even(replicates: Replicates) -> float:
    """The steps after which compiling on CUDA has repaid itself, as estimated."""
    layers = [layer for _, layer in bayesian_layers(replicates.objective)]
    compiling, launches, memory = zip(*(_COSTS.get(layer.family, _USUAL) for layer in layers))
    parameters = sum(p.numel() for p in replicates.trained.values())
    noise = len(replicates) * (replicates.size.normal + replicates.size.logistic)
    # Layers share kernels, so twice as many do not take twice the time.
    seconds = sum(compiling) * len(layers) ** -0.3
    if any(len(layer.weights.shape) > 2 for layer in layers):
        seconds *= _CONVOLUTIONS
    saved = sum(launches) + 1e-6 * (max(memory) * parameters + _NOISE_MICROSECONDS * noise)
    return 1e6 * seconds / saved


def chosen_mode(
    mode: str,
    replicates: Replicates,
    device: torch.device,
    steps: int,
    closed_form: bool = False,
    in_parts: bool = False,
) -> str:
    """The mode itself, or for ``"auto"`` the one with the least time from start to result, as estimated.

    Gradients in ``closed_form`` need no compiler: a step is fused or captured. Steps that compute a batch
    ``in_parts`` are neither compiled nor captured.
    """
    if mode != "auto":
        return mode
    if closed_form:
        return "captured" if device.type == "cuda" else "fused"
    if in_parts:
        return "eager"
    if device.type == "cuda":
        return "compiled" if steps > break_even(replicates) else "captured"
    weights = sum(p.numel() for p in replicates.trained.values())
    return "compiled" if weights * steps > _WORTH_COMPILING_ON_CPU else "eager"
