"""Families of posterior distributions for one weight tensor, by name, and their priors."""

from __future__ import annotations

from collections.abc import Sequence

from sparsebnn.checks import check_choice
from sparsebnn.posteriors.base import Family, Moments, Sample
from sparsebnn.posteriors.concrete import Concrete
from sparsebnn.posteriors.dependent import Dependent
from sparsebnn.posteriors.flow import MNF, FlowFamily
from sparsebnn.posteriors.learned_priors import EmpiricalPrior
from sparsebnn.posteriors.mean_field import Gaussian, SpikeSlab
from sparsebnn.posteriors.priors import GaussianPrior, SpikeSlabPrior

__all__ = [
    "FAMILIES",
    "Concrete",
    "Dependent",
    "EmpiricalPrior",
    "Family",
    "FlowFamily",
    "Gaussian",
    "GaussianPrior",
    "MNF",
    "Moments",
    "Sample",
    "SpikeSlab",
    "SpikeSlabPrior",
    "family_name",
]

FAMILIES: dict[str, type[Family]] = {
    family.name: family for family in (Gaussian, SpikeSlab, Concrete, Dependent, FlowFamily, MNF)
}


# Other accepted names: the paper's, and "dense".
ALIASES = {"lbbnn": "concrete", "lrt": "spike_slab", "dense": "gaussian"}


def family_name(name: str, owner: str = "a layer", among: Sequence[str] | None = None) -> str:
    """A family's name, also for one of the paper's names; it must be one of ``among``.

    >>> family_name("lrt"), family_name("flow")
    ('spike_slab', 'flow')
    """
    known = list(FAMILIES if among is None else among)
    aliases = [alias for alias, family in ALIASES.items() if family in known]
    if isinstance(name, str) and name in aliases:
        return ALIASES[name]
    return check_choice(name, known, "family", owner)
