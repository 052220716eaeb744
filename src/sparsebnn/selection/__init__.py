"""Which inputs and weights matter: rules with error rates, structure sampling, credible sets, paths."""

from sparsebnn.selection.credible_sets import CredibleSet, credible_sets, group_inclusion
from sparsebnn.selection.paths import ActivePaths, Reach, active_paths, median_reach, path_probability
from sparsebnn.selection.rules import (
    Agreement,
    Selection,
    agreement,
    bayesian_fdr_threshold,
    expected_fdr,
    input_inclusion,
    median_inputs,
    select,
    wilson,
)
from sparsebnn.selection.structure import StructureSamples, sample_structures

__all__ = [
    "ActivePaths",
    "Agreement",
    "CredibleSet",
    "Reach",
    "Selection",
    "StructureSamples",
    "active_paths",
    "agreement",
    "bayesian_fdr_threshold",
    "credible_sets",
    "expected_fdr",
    "group_inclusion",
    "input_inclusion",
    "median_inputs",
    "median_reach",
    "path_probability",
    "sample_structures",
    "select",
    "wilson",
]
