"""A name or a path to arrays: data sets as tensors, already split, always the same rows."""

from __future__ import annotations

import os
from pathlib import Path

from sparsebnn.checks import check_choice, invalid
from sparsebnn.io.data.catalogue import CATALOGUE, digits, verify
from sparsebnn.io.data.download import fetch
from sparsebnn.io.data.files import DataError, Dataset, as_dataset, holds_data, memory_mapped, read

__all__ = ["DataError", "Dataset", "cache_folder", "load", "memory_mapped"]


def cache_folder() -> Path:
    """Where downloads are kept: ``sparsebnn`` in the user's cache folder (``XDG_CACHE_HOME``)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sparsebnn"


def load(name: str | Path, root: str | Path | None = None, *, download: bool = True) -> Dataset:
    """The data set of that name (``mnist``, ``fmnist``, ``kmnist``, ``digits``) or at that path.

    A name is looked for in ``root``, then in the folder that ``SPARSEBNN_DATA`` names, then in the user's
    cache, as ``<name>.npz`` or as a folder ``<name>`` of idx files; what is found is checked against the
    published rows. When it is nowhere it is downloaded into the cache, unless ``download=False``. A path
    is an .npz with x_train, y_train, x_test and y_test, one of the four idx(.gz) files that lie together,
    or a folder of either. ``digits`` comes with scikit-learn.

    >>> data = load("digits")
    >>> data.x_train.shape, data.x_test.shape
    (torch.Size([1347, 64]), torch.Size([450, 64]))
    """
    if name == "digits":
        return digits()
    if str(name) not in CATALOGUE:
        path = Path(name)
        if path.exists():
            return as_dataset(path.name.split(".")[0], read(path))
        if path.suffix or len(path.parts) > 1:
            expected = "a known name or a file or folder that exists"
            raise invalid("name", "data.load", expected, repr(str(name)), "Check the path.")
        check_choice(str(name), [*CATALOGUE, "digits"], "name", "data.load")
    return _by_name(str(name), None if root is None else Path(root), download)


def _by_name(name: str, root: Path | None, download: bool) -> Dataset:
    if root is not None and not root.is_dir():
        raise invalid("root", "data.load", "a folder", root, "Check the path.")
    entry = CATALOGUE[name]
    places = [root] if root is not None else []
    if os.environ.get("SPARSEBNN_DATA"):
        places.append(Path(os.environ["SPARSEBNN_DATA"]))
    places.append(cache_folder())
    for place in places:
        for path in (place / f"{name}.npz", place / name):
            if holds_data(path):
                return _checked(name, path)
    if not download:
        where = ", ".join(map(str, places))
        raise DataError(f"{entry.title} is in none of {where}. Pass root=, or set SPARSEBNN_DATA.")
    fetch(entry, cache_folder() / name)
    return _checked(name, cache_folder() / name)


def _checked(name: str, path: Path) -> Dataset:
    entry = CATALOGUE[name]
    return as_dataset(name, verify(name, read(path, entry.sizes), path), entry.class_names)
