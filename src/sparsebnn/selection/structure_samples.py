"""What sampling structures returns: sampled inclusions, in bits, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

_PLACES = 16  # drawn per iteration for the moved input
_MOST_REDRAWN = 32_000  # structures


@dataclass
class StructureSamples:
    """Sampled structures and what follows from them.

    ``inclusion`` are the probabilities, ``by_chain`` those of each chain, ``slab`` the sampled indices into
    the grid (draws, chains), ``diagnostics`` R̂, effective sample sizes and counts. ``gammas()`` unpacks the
    samples, ``redrawn()`` those of which credible sets are made. In draw d, chain c could have had its input
    ``moved[d, c]`` (-1 for none) in any of ``places[d, c]`` instead, with the same probability.
    """

    p: int
    inclusion: np.ndarray
    packed: np.ndarray
    slab: np.ndarray
    diagnostics: dict[str, Any] = field(default_factory=dict)
    by_chain: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    moved: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int32))
    places: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 0), dtype=np.int32))

    def gammas(self, columns: np.ndarray | None = None) -> np.ndarray:
        """The structures of all chains (draws · chains, inputs), or some columns of them."""
        flat = self.packed.reshape(-1, self.packed.shape[-1])
        if columns is None:
            return np.unpackbits(flat, axis=1, count=self.p).astype(bool)
        return ((flat[:, columns // 8] >> (7 - columns % 8)) & 1).astype(bool)

    def redrawn(self, columns: np.ndarray | None = None, most: int = _MOST_REDRAWN) -> np.ndarray:
        """Each structure of ``gammas`` several times, at most 16, with one included input moved.

        Its places are drawn from their distribution given the other inputs, so these are samples, too, and
        shares of them have less Monte Carlo error. There are ``most`` at most, or as many as ``gammas`` has.
        Where that distribution is not exact, they are ``gammas``.
        """
        flat = self.gammas(columns)
        each = 1
        while 2 * each <= min(self.places.shape[-1], most // len(flat)):
            each *= 2
        if each == 1:
            return flat
        columns = np.arange(self.p) if columns is None else columns
        where = np.full(self.p + 1, -1)  # the last is -1: no input moved
        where[columns] = np.arange(len(columns))
        places = self.places[..., :: self.places.shape[-1] // each].reshape(-1)
        moved = np.repeat(self.moved.reshape(-1), each)
        found = np.repeat(flat, each, axis=0)
        for index, there in ((moved, False), (np.where(moved < 0, -1, places), True)):
            rows = np.nonzero(where[index] >= 0)[0]
            found[rows, where[index[rows]]] = there
        return found

    def spread(self, most: int) -> tuple[np.ndarray, np.ndarray]:
        """At most ``most`` structures, evenly spaced over the draws, and their slabs."""
        flat = self.packed.reshape(-1, self.packed.shape[-1])
        chosen = np.unique(np.linspace(0, len(flat) - 1, min(most, len(flat))).astype(int))
        return np.unpackbits(flat[chosen], axis=1, count=self.p).astype(bool), self.slab.reshape(-1)[chosen]

    @property
    def converged(self) -> bool:
        """Whether R̂ is at most 1.05 and the effective sample size at least 100, for every judged input."""
        return self.diagnostics["max_rhat"] <= 1.05 and self.diagnostics["min_ess"] >= 100.0


def draw_places(
    conditional: np.ndarray, gamma: np.ndarray, moved: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Systematic draws of the place of the moved input (chains, ``_PLACES``), and so is every 2nd, 4th, …"""
    stay = gamma.copy()
    stay[moved >= 0, moved[moved >= 0]] = False
    total = np.cumsum(np.where(stay, 0.0, conditional), axis=1)
    at = (rng.random((len(gamma), 1)) + np.arange(_PLACES) / _PLACES) % 1.0 * total[:, -1:]
    found = [np.searchsorted(whole, each, side="right") for whole, each in zip(total, at)]
    return np.minimum(found, gamma.shape[1] - 1).astype(np.int32)
