"""Which variables and weights matter: rules with error rates, and active paths through a network."""

from sparsebnn.selection.paths import Reach, median_reach, path_probability
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

__all__ = [
    "Agreement",
    "Reach",
    "Selection",
    "agreement",
    "bayesian_fdr_threshold",
    "expected_fdr",
    "input_inclusion",
    "median_inputs",
    "median_reach",
    "path_probability",
    "select",
    "wilson",
]
