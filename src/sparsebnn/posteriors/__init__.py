"""Families of posterior distributions for one weight tensor, by name."""

from __future__ import annotations

from sparsebnn.checks import check_choice
from sparsebnn.posteriors.base import Family, Moments, Sample
from sparsebnn.posteriors.concrete import Concrete
from sparsebnn.posteriors.flow import MNF, FlowFamily
from sparsebnn.posteriors.mean_field import Gaussian, SpikeSlab

__all__ = [
    "FAMILIES",
    "Concrete",
    "Family",
    "FlowFamily",
    "Gaussian",
    "MNF",
    "Moments",
    "Sample",
    "SpikeSlab",
    "family_class",
]

FAMILIES: dict[str, type[Family]] = {
    family.name: family for family in (Gaussian, SpikeSlab, Concrete, FlowFamily, MNF)
}


def family_class(name: str, owner: str = "a layer") -> type[Family]:
    """The family of that name.

    >>> family_class("spike_slab").__name__
    'SpikeSlab'
    """
    return FAMILIES[check_choice(name, FAMILIES, "family", owner)]
