"""A name to arrays: data sets as tensors, already split, always the same rows."""

from __future__ import annotations

from collections.abc import Callable

from sparsebnn.checks import check_choice
from sparsebnn.data.digits import digits
from sparsebnn.data.logistic import load_logistic, simulate_logistic
from sparsebnn.data.record import Dataset

__all__ = ["Dataset", "load", "load_logistic", "simulate_logistic"]

_LOADERS: dict[str, Callable[[], Dataset]] = {"digits": digits}


def load(name: str) -> Dataset:
    """The data set of that name: ``"digits"``.

    >>> data = load("digits")
    >>> data.x_train.shape, data.x_test.shape
    (torch.Size([1347, 64]), torch.Size([450, 64]))
    """
    return _LOADERS[check_choice(name, _LOADERS, "name", "data.load")]()
