"""Batches of data that do not fit into memory: a thread reads the next ones while the device computes.

Sources with random access (:mod:`sparsebnn.training.sources`) keep all guarantees of data in memory: each
replicate has its own order, a function of (seed, epoch), and a resumed run continues with the same rows. A
loader or an iterable has no random access: all replicates see the batches that it gives.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sparsebnn.checks import invalid
from sparsebnn.likelihoods import Likelihood
from sparsebnn.nn.networks import as_input
from sparsebnn.random import noise as counter
from sparsebnn.training.batches import ORDER, Batch
from sparsebnn.training.sources import Arrays, Items, Sequential

_log = logging.getLogger("sparsebnn")
_AHEAD = 3  # batches that are read before they are needed
_WHOLE_ORDER = 1 << 22  # rows up to which an epoch's order is a sorted list, as for data in memory


class Item(NamedTuple):
    """A batch before it is copied to the device. ``rows`` counts all but padded rows, whose weight is 0."""

    x: Any
    y: Tensor
    weight: Tensor
    rows: int


class Stream:
    """The batches of a source, with the interface of :class:`~sparsebnn.training.batches.Batches`."""

    def __init__(
        self,
        source: Arrays | Items | Sequential,
        likelihood: Likelihood,
        size: int,
        device: torch.device,
        dtype: torch.dtype,
        network: nn.Module,
    ) -> None:
        self.source, self.likelihood, self.dtype, self.device = source, likelihood, dtype, device
        self.network = network
        self.rows = source.rows
        self.size = min(size, self.rows)
        self._queue: queue.Queue[Item | BaseException] = queue.Queue(_AHEAD)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if isinstance(source, Sequential):
            parts = source.next()
            source.restart()
        else:
            parts = source.fetch(np.zeros(1, np.int64))
        self.first = self._item(parts, 1)

    @property
    def per_epoch(self) -> int:
        """How many batches make an epoch."""
        return -(-self.rows // self.size)

    @property
    def x(self) -> Any:
        """One row."""
        return tree_map(lambda t: t[:1].to(self.device), self.first.x)

    @property
    def y(self) -> Tensor:
        """The targets of one row."""
        return self.first.y[:1].to(self.device)

    def check_shift(self, most: int) -> None:
        if most:
            advice = "Move the images of a stream with augment=Shift(...)."
            raise invalid("shift", "Settings", "0 for data that are read in batches", most, advice)

    def check_guarantees(self, replicates: int, folder: bool, sharded: bool) -> None:
        """Sources without random access cannot be shared by processes; what else they cannot do is logged."""
        if self.source.random_access:
            return
        if sharded:
            advice = "Pass the data set itself (loader.dataset), or train with parallel='replicates'."
            raise invalid("data", "train", "of random access in a process group", "a loader", advice)
        lacking = ["all replicates see the same batches"] if replicates > 1 else []
        lacking += ["a resumed run continues with the batches that it gives then"] if folder else []
        if lacking:
            _log.warning("The data have no random access: %s.", "; ".join(lacking))

    def signature(self) -> dict[str, str]:
        """What a resumed run compares."""
        return {"targets": str(self.rows), "inputs or weights": self.source.describe()}

    def _item(self, parts: tuple[Any, ...], size: int) -> Item:
        """Checked rows of a batch, filled up to ``size`` rows by some of weight 0."""
        y = self.likelihood.prepare(parts[1])
        y = y.to(self.dtype) if y.is_floating_point() else y
        weight = torch.ones(len(y), dtype=self.dtype) if len(parts) == 2 else parts[2].to(self.dtype)
        rows = len(y)
        if rows > size > 1:
            raise invalid("data", "train", f"batches of up to {size} rows", f"one of {rows}")
        for one in tree_leaves(parts[0]):
            if one.is_floating_point() and not bool(torch.isfinite(one).all()):
                raise invalid("x", "train", "finite", "NaN or infinity in a batch")
        x = tree_map(lambda one: as_input(one, self.network, self.dtype, "train"), parts[0])
        if rows < size:

            def filled(t: Tensor) -> Tensor:
                return t[torch.arange(size) % rows]

            x, y = tree_map(filled, x), filled(y)
            weight = torch.cat([weight, weight.new_zeros(size - rows)])
        return Item(x, y, weight, rows)

    # -- the thread -----------------------------------------------------------------------------------

    def buffers(self, replicates: int, own: int) -> dict[str, Any]:
        """Tensors on the device for the current batch: ``(K, own rows, …)``."""

        def room(t: Tensor) -> Tensor:
            return t[:1].to(self.device).expand(replicates, own, *t.shape[1:]).contiguous()

        one = self.first
        real = torch.ones(replicates, own, dtype=self.dtype, device=self.device)
        rows = torch.ones((), dtype=self.dtype, device=self.device)
        return {**named_inputs(tree_map(room, one.x)), "y": room(one.y), "weight": real, "rows": rows}

    def begin(self, seeds: Tensor, epoch: int, shuffle: bool, position: int, own: tuple[int, int]) -> None:
        """Read an epoch's batches from a position on, in the background."""
        self.close()
        self._stop, self._queue = threading.Event(), queue.Queue(_AHEAD)
        made = (
            self._ordered(seeds.cpu(), epoch, shuffle, position, own)
            if self.source.random_access
            else self._given(len(seeds), position)
        )
        given = made, self._queue, self._stop
        self._thread = threading.Thread(target=_produce, args=given, daemon=True)
        self._thread.start()

    def _ordered(
        self, seeds: Tensor, epoch: int, shuffle: bool, position: int, own: tuple[int, int]
    ) -> Iterator[Item]:
        """Each replicate's rows in its own order."""
        assert not isinstance(self.source, Sequential)
        rows, size, replicates = self.rows, self.size, len(seeds)
        whole = counter.permutations(seeds, ORDER, epoch, rows) if shuffle and rows <= _WHOLE_ORDER else None
        for at in range(position, self.per_epoch):
            places = torch.arange(at * size + own[0], at * size + own[1])
            real = places < rows
            places = places % rows
            if not shuffle:
                index = places.expand(replicates, -1)
            elif whole is not None:
                index = whole[:, places]
            else:
                index = counter.permuted(seeds, ORDER, epoch, places.expand(replicates, -1), rows)
            item = self._item(self.source.fetch(index.reshape(-1).numpy()), index.numel())
            x, y, weight = tree_map(lambda t: t.reshape(replicates, -1, *t.shape[1:]), tuple(item[:3]))
            count = min(size, rows - at * size)
            yield self._pinned(Item(x, y, weight * real.to(self.dtype), count))

    def _given(self, replicates: int, position: int) -> Iterator[Item]:
        """The same batches for all replicates, as they come; a resumed epoch skips those it has seen."""
        assert isinstance(self.source, Sequential)
        for at in range(self.per_epoch):
            parts = self.source.next()
            if at >= position:
                item = self._item(parts, self.size)
                x, y, weight = tree_map(lambda t: t.expand(replicates, *t.shape), tuple(item[:3]))
                yield self._pinned(Item(x, y, weight, item.rows))

    def _pinned(self, item: Item) -> Item:
        if self.device.type != "cuda":
            return item
        x, y, weight = tree_map(lambda t: t.contiguous().pin_memory(), tuple(item[:3]))
        return Item(x, y, weight, item.rows)

    def advance(self, buffers: dict[str, Tensor], share: float = 1.0) -> None:
        """Copy the next batch to the device."""
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        for name, tensor in {**named_inputs(item.x), "y": item.y, "weight": item.weight}.items():
            buffers[name].copy_(tensor, non_blocking=True)
        buffers["rows"].fill_(item.rows * share)

    @staticmethod
    def current(buffers: dict[str, Tensor]) -> Batch:
        """The batch in the buffers; pixels become floats."""
        weight = buffers["weight"]
        x = tree_map(lambda t: t.to(weight.dtype) / 255.0 if t.dtype == torch.uint8 else t, tree_of(buffers))
        return Batch(x, buffers["y"], weight, buffers["rows"])

    def close(self) -> None:
        """End the thread that reads ahead."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_thread": None, "_queue": None, "_stop": None}


def _produce(made: Iterator[Item], ready: queue.Queue[Item | BaseException], stop: threading.Event) -> None:
    """Put batches into the queue until they end or ``stop`` is set; an error is put there, too."""

    def put(one: Item | BaseException) -> None:
        while not stop.is_set():
            try:
                return ready.put(one, timeout=0.1)
            except queue.Full:
                continue

    try:
        for item in made:
            if stop.is_set():
                return
            put(item)
    except BaseException as error:
        put(error)


def named_inputs(x: Any) -> dict[str, Tensor]:
    """Inputs as a flat dict: ``x``, or ``x/0``, ``x/1``, … for several, or ``x/name`` for keywords."""
    if isinstance(x, dict):
        return {f"x/{name}": one for name, one in x.items()}
    return {f"x/{i}": one for i, one in enumerate(x)} if isinstance(x, tuple | list) else {"x": x}


def tree_of(tensors: dict[str, Tensor]) -> Any:
    """The inputs that :func:`named_inputs` made flat."""
    if "x" in tensors:
        return tensors["x"]
    named = {name[2:]: one for name, one in tensors.items() if name.startswith("x/")}
    return tuple(named.values()) if all(name.isdecimal() for name in named) else named
