"""``train``: check what is given, stack the replicates, run. What a step is, the engine knows."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn import likelihoods
from sparsebnn.checks import InvalidInput, check_count, check_number, invalid
from sparsebnn.conversion import obstacles
from sparsebnn.networks import bayesian_layers, kept
from sparsebnn.noise import Meter
from sparsebnn.passes import collect_kl
from sparsebnn.training.batches import Batches, gather, targets_of
from sparsebnn.training.callbacks import Callback
from sparsebnn.training.engine import Engine
from sparsebnn.training.objective import Objective
from sparsebnn.training.own_noise import outputs_without_noise
from sparsebnn.training.precision import matmul_precision
from sparsebnn.training.replicas import Replicas
from sparsebnn.training.run import Run
from sparsebnn.training.session import Session
from sparsebnn.training.settings import RECOMMENDED, Settings

__all__ = ["train"]


def _device(device: str | torch.device) -> torch.device:
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        expected = "'auto', 'cpu', 'cuda' or 'cuda:1' and the like"
        raise invalid("device", "train", expected, repr(device)) from error
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        advice = "PyTorch finds no such GPU here: use device='auto' or device='cpu'."
        raise invalid("device", "train", "one that is there", repr(str(device)), advice)
    return found


def _drops(module: nn.Module) -> bool:
    """Whether it drops units at random; recurrent and attention modules do so by themselves."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0.0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0.0 and module.num_layers > 1
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0.0


def _check_network(network: nn.Module) -> None:
    if next(bayesian_layers(network), None) is None:
        advice = "Build it with mlp, lenet or convert."
        raise invalid("network", "train", "a module with Bayesian layers", type(network).__name__, advice)
    active = [name for name, module in network.named_modules() if _drops(module)]
    if active:
        expected = "free of dropout, whose noise no replicate's seed would govern"
        raise invalid("network", "train", expected, f"dropout at {active}", "Set it to 0 or remove it.")
    lazy = [name for name, p in network.named_parameters() if isinstance(p, nn.UninitializedParameter)]
    if lazy:
        advice = "Call it on some rows first."
        raise invalid(
            "network", "train", "a module whose parameters have a shape", f"{lazy[0]!r} without", advice
        )
    found = obstacles(network, kept(network), replicated=True)
    if found:
        raise InvalidInput(
            "The 'network' of train must be replicable. Got a network instead, in which "
            + "; ".join(found)
            + "."
        )


def _check_options(settings: Any, callbacks: Any, vary: Any, every: Any) -> list[Callback]:
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
    if vary is not None and not isinstance(vary, Mapping):
        advice = "For example {'temperature': [0.1, 1.0]}."
        raise invalid("vary", "train", "a dict of names and their values", repr(vary), advice)
    check_number(every, "checkpoint_seconds", "train", "at least 0", lambda value: value >= 0.0)
    return listed


def _form(likelihood: Any, data: Any) -> likelihoods.Likelihood:
    if isinstance(likelihood, str):
        return likelihoods.likelihood(likelihood, targets_of(data))
    if not hasattr(likelihood, "nll"):
        expected = "'categorical', 'bernoulli', 'gaussian' or a Likelihood"
        raise invalid("likelihood", "train", expected, repr(likelihood))
    form: likelihoods.Likelihood = likelihood
    return form


def _seed(value: Any, what: str) -> int:
    number = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if isinstance(number, bool) or not isinstance(number, numbers.Integral):
        raise invalid(
            what, "train", "whole numbers" if what == "replicates" else "a whole number", repr(value)
        )
    return int(number)


def _seeds(replicates: Any, seed: Any) -> list[int]:
    first = _seed(seed, "seed")
    if hasattr(replicates, "tolist"):
        replicates = replicates.tolist()  # of an array or a tensor
    if isinstance(replicates, numbers.Integral):
        return list(range(first, first + check_count(replicates, "replicates", "train")))
    if isinstance(replicates, str) or not isinstance(replicates, Iterable):
        raise invalid("replicates", "train", "a number or distinct seeds", repr(replicates))
    seeds = [_seed(one, "replicates") for one in replicates]
    if not seeds or len(set(seeds)) != len(seeds):
        raise invalid("replicates", "train", "a number or distinct seeds", seeds)
    return seeds


def train(
    network: nn.Module,
    data: tuple[Tensor, ...],
    *,
    likelihood: str | likelihoods.Likelihood = "categorical",
    settings: Settings = RECOMMENDED,
    replicates: int | Sequence[int] = 1,
    seed: int = 0,
    vary: Mapping[str, Sequence[float] | Tensor] | None = None,
    device: str | torch.device = "auto",
    mode: str = "auto",
    tf32: bool = True,
    folder: str | Path | None = None,
    resume: bool = False,
    checkpoint_seconds: float = 60.0,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Run:
    """Train ``replicates`` copies of a network as one program.

    Rows of uint8 are pixels and divided by 255; all other numbers are taken as they are. Every replicate
    starts from its own seed (``seed``, ``seed + 1``, … or the seeds given); the network
    passed in is a template and stays as it is. Without ``settings`` it is trained as recommended: 100 epochs,
    a temperature of 0.03 (a tempered posterior; ``Settings(temperature=1)`` is the Bayes posterior's) with
    warm-up, and a larger rate for inclusion logits. ``vary`` gives a hyperparameter one value per replicate:
    ``temperature``, ``target_density``, ``learning_rate``, ``learning_rates.<group>``, or the end of a
    buffer's name such as ``prior.inclusion_prob``. With ``folder`` the state is saved there every
    ``checkpoint_seconds`` and on interruption, and ``resume=True`` goes on exactly where it stopped;
    without it a checkpoint that is there is set aside.

    >>> import sparsebnn
    >>> x, y = torch.randn(64, 5), torch.randint(0, 3, (64,))
    >>> run = train(sparsebnn.mlp([5, 8, 3]), (x, y), settings=Settings(epochs=2), replicates=3)
    >>> len(run.networks), len(run.history)
    (3, 2)
    """
    _check_network(network)
    seeds = _seeds(replicates, seed)
    where = _device(device)
    dtype = next(network.parameters()).dtype
    if dtype == torch.float16:
        advice = "Use float32, float64 or bfloat16: network.float()."
        raise invalid("network", "train", "of a precision that gradients fit into", "float16", advice)
    listed = _check_options(settings, callbacks, vary, checkpoint_seconds)
    form = _form(likelihood, data)
    batches = Batches.of(data, form, settings.batch_size, where, dtype, network)
    objective = Objective(network, form, batches.rows)
    of_settings = ("temperature", "target_density")
    of_rates = {n: v for n, v in (vary or {}).items() if n in of_settings or n.startswith("learning_rate")}
    of_buffers = {n: v for n, v in (vary or {}).items() if n not in of_rates}
    with (
        torch.inference_mode(False),  # whatever the caller has switched off
        torch.enable_grad(),
        _memory_advice(len(seeds), settings.batch_size),
        matmul_precision(tf32),
    ):
        replicas = Replicas(objective, seeds, where, of_buffers)
        _check_outputs(replicas, batches, form)
        engine = Engine(replicas, batches, settings, of_rates, mode)
        run = Run(engine)
        session = Session(run, engine, folder, checkpoint_seconds, listed, progress)
        if resume:
            session.load()
        else:
            session.set_aside()
        session.go()
    return run


def _check_outputs(replicas: Replicas, batches: Batches, form: likelihoods.Likelihood) -> None:
    """The network must give as many outputs as the likelihood reads, and draw nothing by itself."""
    index = torch.zeros(1, dtype=torch.int64, device=batches.x.device)
    x = gather(batches.tensors(), index, torch.ones(1, dtype=replicas.dtype, device=index.device)).x
    with torch.no_grad(), collect_kl(Meter()):
        outputs = outputs_without_noise(replicas.objective.network, x)
    wanted = form.n_outputs(batches.y)
    if outputs.dim() != 2 or outputs.shape[1] != wanted:
        expected = f"a network of {wanted} outputs, which the {type(form).__name__} likelihood reads"
        advice = "Change the size of the last layer, or the likelihood."
        raise invalid("network", "train", expected, f"outputs of shape {tuple(outputs.shape)}", advice)


@contextlib.contextmanager
def _memory_advice(replicates: int, batch_size: int) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"The device ran out of memory with {replicates} replicates of batch size {batch_size}. "
            "Train fewer replicates at a time (replicates=[...] takes seeds), or reduce batch_size."
        ) from error
