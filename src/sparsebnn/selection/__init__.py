"""Which inputs and weights matter: rules with error rates, structure sampling, credible sets, paths."""

from sparsebnn.selection.agreement import Agreement, agreement, wilson
from sparsebnn.selection.credible_sets import CredibleSet, credible_sets, group_inclusion
from sparsebnn.selection.paths import (
    ActivePaths,
    Reach,
    active_paths,
    draw_reach,
    median_reach,
    path_probability,
)
from sparsebnn.selection.plots import plot_sets
from sparsebnn.selection.randomization import adjusted_p_values, randomization_p_values
from sparsebnn.selection.rules import (
    Selection,
    bayesian_fdr_threshold,
    expected_fdr,
    input_inclusion,
    median_inputs,
    promised_by_one,
    select,
)
from sparsebnn.selection.sources import sample_inputs
from sparsebnn.selection.stability import Stability, stability_selection
from sparsebnn.selection.structure import sample_structures
from sparsebnn.selection.structure_samples import StructureSamples

__all__ = [
    "ActivePaths",
    "Agreement",
    "CredibleSet",
    "Reach",
    "Selection",
    "Stability",
    "StructureSamples",
    "active_paths",
    "adjusted_p_values",
    "agreement",
    "bayesian_fdr_threshold",
    "credible_sets",
    "draw_reach",
    "expected_fdr",
    "group_inclusion",
    "input_inclusion",
    "median_inputs",
    "median_reach",
    "path_probability",
    "plot_sets",
    "promised_by_one",
    "randomization_p_values",
    "sample_inputs",
    "sample_structures",
    "select",
    "stability_selection",
    "wilson",
]
