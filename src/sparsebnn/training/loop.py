"""``train``: check the arguments, stack the replicates, run the trainer (the engine defines a step)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn import likelihoods
from sparsebnn.checks import invalid
from sparsebnn.likelihoods import Likelihood
from sparsebnn.nn.passes import collect_kl
from sparsebnn.random.noise import NoiseCounter
from sparsebnn.training import checkpoint
from sparsebnn.training.arguments import (
    check_network,
    check_options,
    check_start,
    likelihood_of,
    outputs_without_noise,
    processes,
    seeds_of,
)
from sparsebnn.training.batches import Batches, first_of, gather
from sparsebnn.training.callbacks import Callback, Epoch, Stopped
from sparsebnn.training.devices import device_of, matmul_precision
from sparsebnn.training.engine import Engine
from sparsebnn.training.objective import Objective, Replicates
from sparsebnn.training.settings import RECOMMENDED, Settings
from sparsebnn.training.trainer import Trainer

if TYPE_CHECKING:
    from sparsebnn.training.augmentation import Augmentation
    from sparsebnn.training.parallel import Shard
    from sparsebnn.training.streams import Stream


class Run:
    """A training run and, when it is over, its results, one per replicate."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.settings, self.batches = engine.settings, engine.batches
        self.seeds = engine.replicates.seeds
        self.mode = engine.mode
        self.epoch = 0
        self.history: list[Epoch] = []
        self.stopped: list[Stopped] = []
        self.train_seconds = 0.0
        self.finished = False
        self._results: list[Objective] | None = None

    @property
    def compile_seconds(self) -> float:
        return self._engine.compile_seconds

    @property
    def replicates(self) -> Replicates:
        """The stacked state, for work on all replicates at once."""
        return self._engine.replicates

    def _objectives(self) -> list[Objective]:
        """Network and likelihood of every replicate: one object each once training is over."""
        if self._results is not None:
            return self._results
        averages = self._engine.state["average"] or None
        found = [self.replicates.unstack(k, averages) for k in range(len(self.seeds))]
        if self.finished:
            self._results = found
        return found

    @property
    def networks(self) -> list[nn.Module]:
        """The trained networks, ordinary modules in the order of the seeds.

        While training is running, each access gives copies of the networks as they are at that moment.
        """
        return [objective.network for objective in self._objectives()]

    @property
    def network(self) -> nn.Module:
        """The trained network of the first (often only) replicate."""
        return self.networks[0]

    @property
    def likelihoods(self) -> list[Likelihood]:
        """The likelihood of every replicate, for predictions of all their networks."""
        return [objective.likelihood for objective in self._objectives()]

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of the first replicate, with what it learned."""
        return self.likelihoods[0]


def train(
    network: nn.Module,
    data: Any,
    *,
    likelihood: str | likelihoods.Likelihood = "categorical",
    settings: Settings = RECOMMENDED,
    replicates: int | Sequence[int] = 1,
    seed: int = 0,
    per_replicate: Mapping[str, Sequence[float] | Tensor] | None = None,
    start: str | Sequence[nn.Module] = "seed",
    device: str | torch.device = "auto",
    mode: str = "auto",
    tf32: bool = True,
    folder: str | Path | None = None,
    resume: bool = False,
    checkpoint_seconds: float = 60.0,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    parallel: str = "auto",
    n_data: int | None = None,
    augment: Augmentation | Sequence[Augmentation] = (),
) -> Run:
    """Train ``replicates`` copies of a network as one program.

    The network passed in is a template and stays as it is.

    Parameters
    ----------
    network : any module with Bayesian layers.
    data : ``(x, y)`` or ``(x, y, weight)`` as tensors or arrays; x may be a tuple or a dict of them, for a
        network of several inputs. Rows of uint8 are pixels and divided by 255. Memory-mapped arrays and a
        ``Dataset`` are read in the background, row by row, with the same guarantees; a ``DataLoader`` or an
        ``IterableDataset`` gives all replicates the batches it likes.
    likelihood : ``"categorical"``, ``"bernoulli"``, ``"gaussian"``, ``"poisson"``, ``"cox"`` or another
        name in ``sparsebnn.likelihoods.NAMED``, or a likelihood object.
    settings : how to train. The default is 100 epochs at temperature 0.03 (a tempered posterior;
        ``Settings(temperature=1)`` is the Bayes posterior), with warm-up and a larger rate for inclusion
        logits.
    replicates, seed : a number of replicates, with seeds ``seed``, ``seed + 1``, …, or a list of seeds.
    per_replicate : one value per replicate of ``temperature``, ``target_density``, ``learning_rate``,
        ``learning_rates.<group>``, or a buffer by the end of its name, such as ``prior.inclusion_prob``.
    start : ``"seed"`` draws the Bayesian layers of every replicate from its seed; ordinary modules, buffers
        and frozen parameters start from the values they have. ``"given"`` keeps the values of the Bayesian
        layers, too, to train a network further. A list of networks, such as ``run.networks``, starts every
        replicate from its own.
    device : ``"auto"`` takes a GPU if there is one.
    mode : ``"eager"``; ``"fused"`` (dense networks on a CPU), by compiled loops; ``"captured"`` (CUDA only),
        which starts in seconds; ``"compiled"``, whose steps are the shortest on CUDA where a network has no
        kernels for the whole step, after one to four minutes; or ``"auto"``, which takes fused steps where
        it can, on CUDA captures dense networks with ReLU, compiles for long runs of others, and captures
        (CUDA) or runs eagerly (CPU) what is left. A checkpoint records what it chose.
    tf32 : whether matrix products on CUDA may round to TF32.
    folder, resume, checkpoint_seconds : save the state to a folder at this interval and when interrupted,
        and continue exactly where it stopped. Without ``resume`` an existing checkpoint is set aside. One run
        at a time can use a folder. If a checkpoint cannot be written, ``train`` warns and continues.
    callbacks : objects whose hooks are called while training runs.
    progress : show a live line; None shows it on a terminal only.
    parallel : inside a process group of ``torch.distributed``, ``"rows"`` (as ``"auto"``) gives each process
        a part of every batch, with the result of one process up to rounding; ``"replicates"`` gives it some
        of the replicates, and the run holds these alone; ``"none"`` ignores the group. The first process
        writes the checkpoints.
    n_data : the number of rows N of an iterable data set.
    augment : random changes of a batch on the device, such as ``[Crop(4), Flip()]``, with noise that depends
        on the replicate's seed (:mod:`sparsebnn.training.augmentation`).

    Ctrl-C raises :class:`~sparsebnn.training.Interrupted`. Like every exception that ends training early, it
    has the run so far as its attribute ``run``.

    >>> import sparsebnn
    >>> x, y = torch.randn(64, 5), torch.randint(0, 3, (64,))
    >>> run = train(sparsebnn.mlp([5, 8, 3]), (x, y), settings=Settings(epochs=2), replicates=3)
    >>> len(run.networks), len(run.history)
    (3, 2)
    """
    check_network(network)
    seeds = seeds_of(replicates, seed)
    where = device_of(device, "train")
    dtype = next(network.parameters()).dtype
    if dtype == torch.float16:
        advice = "Use float32, float64 or bfloat16: network.float()."
        expected = "of a precision with the range that gradients need"
        raise invalid("network", "train", expected, "float16", advice)
    check_start(start, network, len(seeds))
    sharing = processes(parallel)
    if sharing == "replicates":
        from sparsebnn.training.parallel import own_replicates

        seeds, per_replicate, start, folder = own_replicates(seeds, per_replicate, start, folder)
    listed = check_options(settings, callbacks, per_replicate, checkpoint_seconds)
    source = None
    if type(data) is not tuple or not all(type(one) in (Tensor, np.ndarray) for one in data) or n_data:
        from sparsebnn.training.sources import source_of
        from sparsebnn.training.streams import Stream

        source = source_of(data, settings.batch_size, n_data)
    batches: Batches | Stream
    if source is None:
        form = likelihood_of(likelihood, data)
        batches = Batches.of(data, form, settings.batch_size, where, dtype, network)
    else:
        form = likelihood_of(likelihood, source.targets())
        batches = Stream(source, form, settings.batch_size, where, dtype, network)
        batches.check_guarantees(len(seeds), folder is not None, sharing == "rows")
    objective = Objective(network, form, batches.rows)
    shard: Shard | None = None
    if sharing == "rows":
        from sparsebnn.training.parallel import Shard

        shard = Shard(batches.size, objective)
        folder = folder if shard.rank == 0 else None
    of_settings = ("temperature", "target_density")
    of_steps = {
        n: v for n, v in (per_replicate or {}).items() if n in of_settings or n.startswith("learning_rate")
    }
    of_buffers = {n: v for n, v in (per_replicate or {}).items() if n not in of_steps}
    with (
        contextlib.nullcontext() if folder is None else checkpoint.reserved(folder) as path,
        torch.inference_mode(False),  # whatever the caller has switched off
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast(where.type, enabled=False),
        # Kernels and graphs go to the current device.
        torch.cuda.device(where) if where.type == "cuda" else contextlib.nullcontext(),
        _memory_advice(len(seeds), settings.batch_size),
        matmul_precision(tf32),
    ):
        stacked = Replicates(objective, seeds, where, of_buffers, start)
        stacked.objective.autocast = None if settings.autocast is None else torch.bfloat16
        stacked.objective.channels_last = settings.channels_last
        _check_outputs(stacked, batches, form, folder is not None)
        engine = Engine(stacked, batches, settings, of_steps, mode, shard, augment)
        run = Run(engine)
        trainer = Trainer(run, engine, path, checkpoint_seconds, listed, progress)
        trainer.start(resume)
        try:
            trainer.run()
        finally:
            run.finished = True
            if not isinstance(batches, Batches):
                batches.close()
    return run


def _check_outputs(
    replicates: Replicates, batches: Batches | Stream, form: likelihoods.Likelihood, saved: bool
) -> None:
    """The network must give as many outputs as the likelihood reads, and draw nothing by itself.

    Buffers that its forward changes are neither kept for each replicate nor in checkpoints.
    """
    rows = 2 if replicates.statistics else 1  # a single row has no variance
    if isinstance(batches, Batches):
        index = torch.zeros(rows, dtype=torch.int64, device=batches.x.device)
        x = gather(batches.tensors(), index, torch.ones(1, dtype=replicates.dtype, device=index.device)).x
    else:
        x = first_of(batches.current(batches.buffers(1, rows)).x)
    with torch.no_grad(), collect_kl(NoiseCounter()) as opened:
        opened.reused = []
        outputs, changed = outputs_without_noise(replicates.objective.network, x)
    changed = [name for name in changed if f"network.{name}" not in replicates.statistics]
    if changed and (saved or len(replicates) > 1):
        expected = "free of buffers that its forward changes, but those of BatchNorm"
        advice = "Train one replicate without a folder, or update them in a callback."
        raise invalid("network", "train", expected, repr(changed[0]), advice)
    if not isinstance(outputs, Tensor) or form.any_shape:
        return  # the likelihood's own affair
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
