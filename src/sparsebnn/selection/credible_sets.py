r"""Credible sets: small sets of inputs that contain an included one with high probability.

.. math::
    P\Big(\sum_{j \in C} \gamma_j \ge 1 \,\Big|\, y\Big) \ge \text{coverage}, \qquad
    \min_{i, j \in C} |\operatorname{corr}(x_i, x_j)| \ge \text{min\_purity}

One set per effect. A set starts with the most probable input left and takes, one at a time, the input that
is most often included when no member of the set is. Inputs that replace each other are rarely included
together, so they end in one set. An input that is included at least as often with the members as without
them has a separate effect; it never joins them and starts another set. Members that the coverage does not
need are dropped. Sets are disjoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsebnn.checks import check_number, check_table_of_numbers, invalid

RARE = 1e-4  # inputs that are included less often are never members
_COPY = 1e-6  # correlations above one minus this are those of copies, in single precision


@dataclass(frozen=True)
class CredibleSet:
    """Inputs of which at least one is included with probability ``coverage``.

    ``members`` are column indices, most probable first, with their ``inclusion``; ``purity`` is the smallest
    absolute correlation between two of them, 1 for a single one.
    """

    members: tuple[int, ...]
    names: tuple[str, ...]
    inclusion: tuple[float, ...]
    coverage: float
    purity: float

    def moved(self, columns: np.ndarray) -> CredibleSet:
        """The same set in a table where column ``i`` has the number ``columns[i]``."""
        return replace(self, members=tuple(int(columns[i]) for i in self.members))

    def __len__(self) -> int:
        return len(self.members)

    def __str__(self) -> str:
        listed = ", ".join(self.names)
        what = listed if len(self) == 1 else f"one of {len(self)} ({listed})"
        return f"{what}: probability {self.coverage:.3f}, purity {self.purity:.2f}"


def _samples(samples: Any, owner: str) -> np.ndarray:
    found = np.asarray(samples)
    if found.ndim != 2 or found.size == 0:
        raise invalid("samples", owner, "a (samples, inputs) array", f"shape {found.shape}")
    if found.dtype != bool and not np.isin(found, (0, 1)).all():
        advice = "Pass sampled inclusions, not probabilities."
        raise invalid("samples", owner, "0 or 1 everywhere", "other values", advice)
    return found.astype(bool)


def _listed(names: Any, width: int, owner: str) -> tuple[str, ...]:
    if names is None:
        return tuple(f"x{i + 1}" for i in range(width))
    listed = tuple(str(name) for name in names)
    if len(listed) != width:
        raise invalid("names", owner, f"one name per input ({width})", f"{len(listed)} names")
    return listed


def absolute_correlations(x: np.ndarray) -> np.ndarray:
    """Absolute correlations of the columns; those of a constant column are 0."""
    centered = x - x.mean(0)
    length = np.sqrt((centered**2).sum(0))
    scaled = centered / np.where(length > 1e-12 * np.maximum(1.0, np.abs(x).max(0)), length, np.inf)
    return np.minimum(np.abs(scaled.T @ scaled), 1.0)


_LEAST_ROWS = 3  # two rows correlate perfectly


def _matrix(X: Any, correlations: Any, width: int, owner: str) -> np.ndarray:
    """The inputs, or the correlations between them."""
    if (X is None) == (correlations is None):
        given = "neither" if X is None else "both"
        raise invalid("X", owner, "given, or correlations in its place", given)
    if correlations is None:
        check_table_of_numbers(X, owner, "Fill gaps first, or pass correlations.")
        x = np.asarray(X, dtype=np.float64)
        if x.ndim != 2 or x.shape[1] != width or len(x) < _LEAST_ROWS:
            expected = f"a table with {width} columns and at least {_LEAST_ROWS} rows"
            raise invalid("X", owner, expected, f"shape {x.shape}", "Pass the rows of training.")
        if not np.isfinite(x).all():
            raise invalid(
                "X", owner, "finite numbers", "NaN or inf", "Fill gaps first, or pass correlations."
            )
        return x
    found = np.asarray(correlations, dtype=np.float64)
    if found.shape != (width, width):
        raise invalid("correlations", owner, f"of shape ({width}, {width})", f"shape {found.shape}")
    return found


def credible_sets(
    samples: Any,
    X: Any = None,
    *,
    correlations: Any = None,
    coverage: float = 0.95,
    min_purity: float = 0.5,
    min_probability: float | None = None,
    max_false_members: float | None = 2.0,
    names: Sequence[str] | None = None,
) -> list[CredibleSet]:
    """The credible sets of sampled inclusions ``samples`` (samples, inputs), in order of discovery.

    ``X`` are the inputs, for their correlations; or pass ``correlations`` (inputs, inputs). No set is
    returned for an effect that is too uncertain, or spread over inputs that are not correlated by at least
    ``min_purity``. With a ``min_probability`` below the coverage, effects that are less certain have sets,
    too: such a set contains an included input in a share ``coverage`` of the samples in which any input like
    its first member is included, and with at least this probability P. SuSiE's sets are of this kind: they
    cover an effect given that it exists. With R the probability that any such input is included,
    ``max_false_members`` then limits size · (1 − R) / R, the expected number of members that are listed
    although there is no effect, per expected effect: the larger a set, the more probable its effect must be.
    The limit does not apply from R = ``coverage`` on; None is no limit.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.standard_normal((50, 2))
    >>> first = rng.random(400) < 0.6  # the first column, or its copy; the last one always
    >>> samples = np.column_stack([first, ~first, np.ones(400)])
    >>> [found.members for found in credible_sets(samples, z[:, [0, 0, 1]])]
    [(2,), (0, 1)]
    """
    owner = "credible_sets"
    gamma = _samples(samples, owner)
    coverage = check_number(coverage, "coverage", owner, "strictly between 0 and 1", lambda v: 0.0 < v < 1.0)
    min_purity = check_number(min_purity, "min_purity", owner, "from 0 to 1", lambda v: 0.0 <= v <= 1.0)
    least = coverage
    if min_probability is not None:
        said = "above 0 and at most the coverage"
        least = check_number(min_probability, "min_probability", owner, said, lambda v: 0.0 < v <= coverage)
    limit = np.inf
    if min_probability is not None and max_false_members is not None:
        limit = check_number(max_false_members, "max_false_members", owner, "positive", lambda v: v > 0.0)
    matrix = _matrix(X, correlations, gamma.shape[1], owner)
    listed = _listed(names, gamma.shape[1], owner)
    inclusion = gamma.mean(0)
    active = np.nonzero(inclusion >= RARE)[0]
    active = active[np.argsort(-inclusion[active], kind="stable")]
    if correlations is None:
        alike = absolute_correlations(matrix[:, active])
    else:
        alike = np.abs(matrix[np.ix_(active, active)])
    # Order by inclusion, so position is rank; samples × active inputs from here on.
    inside = np.ascontiguousarray(gamma[:, active].T)
    counts = inside.sum(1)
    free = np.ones(len(active), dtype=bool)
    found = []
    for lead in range(len(active)):
        if not free[lead]:
            continue
        grown = _grow(lead, inside, counts, alike, free, coverage, least, min_purity)
        if grown is None:
            continue
        members, effect = grown
        free[members] = False
        if effect < coverage and len(members) * (1.0 - effect) > limit * effect:
            continue
        pairs = alike[np.ix_(members, members)]
        columns = active[members]
        found.append(
            CredibleSet(
                tuple(columns.tolist()),
                tuple(listed[i] for i in columns),
                tuple(inclusion[columns].tolist()),
                float(inside[members].any(0).mean()),
                float(pairs.min()) if len(members) > 1 else 1.0,
            )
        )
    return found


def _grow(
    lead: int,
    inside: np.ndarray,
    counts: np.ndarray,
    alike: np.ndarray,
    free: np.ndarray,
    coverage: float,
    least: float,
    purity: float,
) -> tuple[list[int], float] | None:
    """The members of the set that starts with ``lead`` and the probability that it has an effect.

    None where that probability is out of reach.
    """
    draws = inside.shape[1]
    allowed = free & (alike[lead] >= purity)
    allowed[lead] = False
    if counts[lead] + counts[allowed].sum() < least * draws:
        return None
    members, covered = [lead], inside[lead].copy()
    while True:
        candidates = np.nonzero(allowed)[0]
        left = inside[candidates][:, ~covered]
        # A stand-in is included more often without the members than with them.
        without, whole = left.sum(1), counts[candidates]
        stands_in = without * covered.sum() > (whole - without) * (~covered).sum()
        candidates, left = candidates[stands_in], left[stands_in]
        reach = left.any(0).sum() + covered.sum()
        target = max(least * draws, coverage * reach)
        if reach < target:
            return None
        if covered.sum() >= target:
            break
        best = int(candidates[left.sum(1).argmax()])
        members.append(best)
        covered |= inside[best]
        allowed &= alike[best] >= purity
        allowed[best] = False
    for rarest in sorted(members, key=lambda i: (counts[i], -i)):
        rest = [i for i in members if i != rarest]
        if rest and inside[rest].any(0).sum() >= target:
            members = rest
    return sorted(members), float(reach) / draws


def with_copies(
    sets: Sequence[CredibleSet], samples: Any, alike: np.ndarray, names: Any
) -> list[CredibleSet]:
    """The sets with the exact copies of their members, which replicates may all have passed over.

    The posterior is the same if an input and its copy change places, so a copy of a member is one, too.
    """
    gamma = _samples(samples, "credible_sets")
    listed = _listed(names, gamma.shape[1], "credible_sets")
    taken = {i for one in sets for i in one.members}
    found = []
    for one in sets:
        same = np.nonzero((alike[list(one.members)] > 1.0 - _COPY).any(0))[0]
        more = [int(i) for i in same if int(i) not in taken]
        taken.update(more)
        columns = [*one.members, *more]
        purity = float(alike[np.ix_(columns, columns)].min()) if more else one.purity
        found.append(
            replace(
                one,
                members=tuple(columns),
                names=tuple(listed[i] for i in columns),
                inclusion=tuple(gamma[:, columns].mean(0).tolist()),
                coverage=float(gamma[:, columns].any(1).mean()),
                purity=purity,
            )
        )
    return found


def group_inclusion(
    samples: Any, groups: Mapping[str, Sequence[Any]], names: Sequence[str] | None = None
) -> dict[str, float]:
    """The probability that at least one member of each named group is included.

    Members are column indices, or names if ``names`` are given.

    >>> group_inclusion([[1, 0, 0], [0, 1, 0], [0, 0, 0], [1, 1, 0]], {"first two": [0, 1], "last": [2]})
    {'first two': 0.75, 'last': 0.0}
    """
    owner = "group_inclusion"
    gamma = _samples(samples, owner)
    width = gamma.shape[1]
    place = {name: i for i, name in enumerate(_listed(names, width, owner))}
    found = {}
    for group, listed in groups.items():
        columns = [place.get(member, -1) if isinstance(member, str) else int(member) for member in listed]
        if not columns or min(columns) < 0 or max(columns) >= width:
            expected = f"columns of the table (0 to {width - 1}, or names)"
            raise invalid("groups", owner, expected, f"{group!r}: {listed}")
        found[str(group)] = float(gamma[:, columns].any(1).mean())
    return found
