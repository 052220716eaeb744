"""Where streamed training data come from: memory-mapped arrays, a ``Dataset``, a ``DataLoader``."""

from __future__ import annotations

import hashlib
import mmap
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from sparsebnn.checks import check_count, check_rows, invalid

_FORGET_BYTES = 1 << 26  # of a memory-mapped array that are read before its pages are given back
_SAMPLED = 100_000  # rows that stand for all targets, to size a likelihood


class Arrays:
    """Arrays of any size, read row by row; x may be a tuple or a dict of arrays."""

    random_access = True

    def __init__(self, data: Sequence[Any]) -> None:
        if len(data) not in (2, 3):
            raise invalid("data", "train", "(x, y) or (x, y, weight)", f"{len(data)} arrays")
        self.x, self.y = _map(_array, data[0]), _array(data[1])
        self.weight = _array(data[2]) if len(data) == 3 else None
        if not _leaves(self.x) or any(one.dtype == object or one.ndim == 0 for one in _leaves(self.x)):
            raise invalid(
                "x", "train", "an array, or several in a tuple or dict", f"a {type(data[0]).__name__}"
            )
        named = [("x", one) for one in _leaves(self.x)] + [("y", self.y)]
        named += [] if self.weight is None else [("weight", self.weight)]
        self.rows = check_rows([(name, len(one)) for name, one in named], "train")
        self._maps = [one for _, array in named if (one := _mapping(array)) is not None]
        self._read = 0
        for one in self._maps:
            _advise(one, "MADV_RANDOM")

    def fetch(self, index: np.ndarray) -> tuple[Any, ...]:
        """These rows, as tensors."""
        found = _map(lambda array: _tensor(array[index]), self.x), _tensor(self.y[index])  # one copy each
        self._read += 4096 * len(index)  # a row is on a page or more
        if self._read > _FORGET_BYTES:
            self.forget()
        return found if self.weight is None else (*found, _tensor(self.weight[index]))

    def forget(self) -> None:
        """Give back the memory of pages that were read; the file is the copy."""
        self._read = 0
        for one in self._maps:
            _advise(one, "MADV_DONTNEED")

    def targets(self) -> Tensor | None:
        """Targets that stand for all: the largest label, or the first rows."""
        if np.issubdtype(self.y.dtype, np.integer) and self.y.ndim == 1:
            largest = max(int(self.y[i : i + 10_000_000].max()) for i in range(0, self.rows, 10_000_000))
            self.forget()
            return torch.arange(largest + 1)
        return _tensor(self.y[:_SAMPLED])

    def describe(self) -> str:
        """A fingerprint of shapes and of rows from all over the data."""
        places = np.unique(np.linspace(0, self.rows - 1, 1024).astype(np.int64))
        sha = hashlib.sha256(str(self.rows).encode())
        for part in tree_leaves(self.fetch(places)):
            sha.update(f"{tuple(part.shape)}{part.dtype}".encode())
            sha.update(part.contiguous().numpy().tobytes())
        self.forget()
        return sha.hexdigest()[:16]


class Items:
    """A ``Dataset`` whose items are (x, y) or (x, y, weight), read by number."""

    random_access = True

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.rows = check_rows([("data", len(dataset))], "train")

    def fetch(self, index: np.ndarray) -> tuple[Any, ...]:
        numbers = index.tolist()
        many = getattr(self.dataset, "__getitems__", None)
        items = [self.dataset[i] for i in numbers] if many is None else many(numbers)
        return _checked(default_collate(items))

    def targets(self) -> Tensor | None:
        return None

    def describe(self) -> str:
        """The length alone: items may be random, or slow to read."""
        return str(self.rows)


class Sequential:
    """Batches in the order in which a ``DataLoader`` gives them; it starts again when it ends."""

    random_access = False

    def __init__(self, loader: Any, size: int, n_data: int | None) -> None:
        self.loader = loader
        known = None if isinstance(loader.dataset, IterableDataset) else len(loader.dataset)
        if known is None and n_data is None:
            advice = "The KL counts |B|/N in a batch B, so training needs to know N."
            raise invalid("n_data", "train", "given with an iterable data set", None, advice)
        if known is not None and n_data is not None and known != n_data:
            raise invalid("n_data", "train", f"the number of rows, {known}, or left out", n_data)
        if loader.batch_size != size:
            advice = f"Settings is the record of how to train: Settings(batch_size={loader.batch_size})."
            expected = f"that of the DataLoader, {loader.batch_size}"
            raise invalid("batch_size", "train", expected, size, advice)
        self.rows = check_count(n_data, "n_data", "train") if known is None else known
        self._iterator: Iterator[Any] | None = None
        self._counted, self._seen = known is None, 0  # whether to count the rows of a pass, and how many came

    def next(self) -> tuple[Any, ...]:
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self.loader)
            try:
                batch = _checked(next(self._iterator))
                self._seen += len(batch[1])
                return batch
            except StopIteration:
                self._check_rows()
                self._iterator = None
        raise invalid("data", "train", "a source of at least one batch", "an empty one")

    def _check_rows(self) -> None:
        """Warn, once, if a pass had another number of rows than was said."""
        if self._counted and 0 < self._seen != self.rows:
            self._counted = False
            warnings.warn(
                f"The data of train ended after {self._seen} rows, and n_data is {self.rows}. The KL "
                "divergence counts |B|/n_data in a batch B, so it has the wrong weight.",
                UserWarning,
                stacklevel=2,
            )
        self._seen = 0

    def restart(self) -> None:
        """Begin again at the first batch."""
        self._iterator, self._seen = None, 0

    def targets(self) -> Tensor | None:
        return None

    def describe(self) -> str:
        return str(self.rows)


def source_of(data: Any, size: int, n_data: int | None) -> Arrays | Items | Sequential | None:
    """Where streamed data come from; None for arrays that are in memory."""
    if isinstance(data, DataLoader):
        return Sequential(data, size, n_data)
    if isinstance(data, IterableDataset):
        return Sequential(DataLoader(data, batch_size=size), size, n_data)
    if n_data is not None:
        advice = "It is for data of unknown length: an IterableDataset, or a DataLoader of one."
        raise invalid("n_data", "train", "left out", n_data, advice)
    if isinstance(data, Dataset):
        return Items(data)
    if not isinstance(data, tuple | list) or not data:
        return None
    several = isinstance(data[0], dict) or (
        isinstance(data[0], tuple) and all(hasattr(one, "shape") for one in data[0])
    )
    if several or any(_mapping(one) is not None for one in data):
        return Arrays(data)
    return None


def _leaves(x: Any) -> list[Any]:
    if isinstance(x, dict):
        return [leaf for one in x.values() for leaf in _leaves(one)]
    return [leaf for one in x for leaf in _leaves(one)] if isinstance(x, tuple | list) else [x]


def _map(act: Callable[[Any], Any], x: Any) -> Any:
    if isinstance(x, dict):
        return {name: act(one) for name, one in x.items()}
    return tuple(act(one) for one in x) if isinstance(x, tuple | list) else act(x)


def _array(values: Any) -> np.ndarray:
    """As NumPy has it, without a copy."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asanyarray(values)


def _tensor(rows: np.ndarray) -> Tensor:
    """A copy in memory: what is read from a memory map must not be a view of it."""
    return torch.from_numpy(np.array(rows))


def _checked(parts: Any) -> tuple[Any, ...]:
    if not isinstance(parts, tuple | list) or len(parts) not in (2, 3):
        got = f"a {type(parts).__name__}" + (f" of {len(parts)}" if hasattr(parts, "__len__") else "")
        advice = "Several inputs go into x, as a tuple or a dict."
        raise invalid("data", "train", "items of (x, y) or (x, y, weight)", got, advice)
    x = tuple(parts[0]) if isinstance(parts[0], list) else parts[0]
    return (x, *parts[1:])


def _mapping(array: Any) -> Any:
    """The memory map behind an array, or None."""
    while array is not None and not isinstance(array, mmap.mmap):
        array = getattr(array, "_mmap" if isinstance(array, np.memmap) else "base", None)
    return array


def _advise(mapping: Any, name: str) -> None:
    """Tell the system how a file is read; not every system has it."""
    if hasattr(mmap, name):
        mapping.madvise(getattr(mmap, name))
