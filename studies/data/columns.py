"""Numeric tables with the names of their columns, for the baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_array

from sparsebnn.checks import invalid

__all__ = ["Columns", "columns", "duplicated", "refuse_constant", "standardised"]


class Columns(NamedTuple):
    """``values`` is (rows, inputs) in float64; ``names`` has one name per input."""

    values: np.ndarray
    names: tuple[str, ...]


def columns(x: Any, owner: str, names: Sequence[str] | None = None) -> Columns:
    """Inputs as float64 with names: the given ones, a data frame's, or x1, x2, ….

    scikit-learn refuses text, missing values and other shapes.

    >>> columns([[1.0, 2.0], [3.0, 4.0]], "fit").names
    ('x1', 'x2')
    """
    values = check_array(x, dtype=np.float64, estimator=owner)
    width = values.shape[1]
    given = getattr(x, "columns", [f"x{i + 1}" for i in range(width)]) if names is None else names
    named = tuple(map(str, given))
    if len(named) != width or len(set(named)) != width:
        raise invalid("names", owner, f"{width} different names, one per column", ", ".join(named))
    return Columns(values, named)


def refuse_constant(table: Columns, owner: str) -> None:
    """A constant column says nothing that the intercept does not; it is refused by name."""
    constant = [name for name, spread in zip(table.names, np.ptp(table.values, axis=0)) if spread == 0.0]
    if constant:
        advice = "Drop them: the intercept already stands for a constant."
        raise invalid("x", owner, "free of constant columns", ", ".join(constant), advice)


def duplicated(table: Columns) -> list[tuple[str, str]]:
    """Pairs (earlier, later) of columns that hold the same numbers.

    >>> duplicated(columns([[1.0, 2.0, 1.0], [3.0, 4.0, 3.0]], "fit"))
    [('x1', 'x3')]
    """
    # Adding 0 makes -0 and 0 equal bytes.
    keys = [column.tobytes() for column in table.values.T + 0.0]
    pairs = [(table.names[keys.index(key)], name) for key, name in zip(keys, table.names)]
    return [pair for pair in pairs if pair[0] != pair[1]]


def standardised(values: np.ndarray, which: slice = slice(None)) -> np.ndarray:
    """Columns ``which`` with mean 0 and standard deviation 1 (divisor rows − 1).

    >>> standardised(np.array([[1.0, 5.0], [3.0, 6.0]]), slice(0, 1)).round(3).tolist()
    [[-0.707, 5.0], [0.707, 6.0]]
    """
    scaled = np.array(values, dtype=np.float64)
    part = scaled[:, which]
    scaled[:, which] = (part - part.mean(0)) / part.std(0, ddof=1)
    return scaled
