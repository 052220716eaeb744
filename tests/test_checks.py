"""checks.py: one grammar for all complaints, and nothing said of good input."""

import numpy as np
import pytest
import torch

from sparsebnn.checks import (
    InvalidInput,
    check_choice,
    check_count,
    check_finite,
    check_positive,
    check_probability,
    check_rows,
    invalid,
)


def test_grammar():
    """What must be what, what came instead, what to do; and it is a ValueError."""
    error = invalid("tol", "Solver", "in (0, 1)", 1.5, "Use a small number.")
    assert isinstance(error, ValueError)
    assert str(error) == "The 'tol' of Solver must be in (0, 1). Got 1.5 instead. Use a small number."
    assert str(invalid("a", "B", "c", "d")) == "The 'a' of B must be c. Got d instead."


def test_good_input_passes_through():
    """Checks return what they were given."""
    ones = torch.ones(2, 2)
    assert check_choice("b", ("a", "b"), "x", "Y") == "b"
    assert check_count(3, "x", "Y") == 3
    assert check_count(0, "x", "Y", least=0) == 0
    assert type(check_count(np.int32(3), "x", "Y")) is int
    assert check_positive(ones, "x", "Y") is ones
    half = torch.full((3,), 0.5)
    assert check_probability(half, "x", "Y") is half
    assert check_finite(ones, "x", "Y") is ones
    whole = torch.arange(3)
    assert check_finite(whole, "x", "Y") is whole
    assert check_rows([("x", 4), ("y", 4)], "Y") == 4


@pytest.mark.parametrize("given", [2.0, np.float64(2.0), True, np.bool_(True), "2", None, -1])
def test_what_is_no_count(given):
    with pytest.raises(InvalidInput, match="a whole number of at least 1"):
        check_count(given, "x", "Y")


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (
            lambda: check_choice("spike-slab", ("gaussian", "spike_slab"), "family", "Linear"),
            "The 'family' of Linear must be one of 'gaussian', 'spike_slab'. Got 'spike-slab' instead. "
            "Did you mean 'spike_slab'?",
        ),
        (
            lambda: check_choice(3, ("gaussian",), "family", "Linear"),
            "The 'family' of Linear must be one of 'gaussian'. Got 3 instead.",
        ),
        (
            lambda: check_count(0, "n", "F"),
            "The 'n' of F must be a whole number of at least 1. Got 0 instead.",
        ),
        (
            lambda: check_count(True, "n", "F"),
            "The 'n' of F must be a whole number of at least 1. Got True instead.",
        ),
        (
            lambda: check_count(2.0, "n", "F"),
            "The 'n' of F must be a whole number of at least 1. Got 2.0 instead.",
        ),
        (
            lambda: check_count("2", "n", "F"),
            "The 'n' of F must be a whole number of at least 1. Got '2' instead.",
        ),
        (
            lambda: check_positive(torch.tensor([[1.0, 2.0], [-3.0, 0.0]]), "std", "P", "Pass a scale."),
            "The 'std' of P must be positive and finite. Got -3.0 instead. Pass a scale.",
        ),
        (
            lambda: check_finite(torch.tensor([[0.0, 1.0], [float("nan"), float("inf")]]), "X", "fit"),
            "The 'X' of fit must be finite. Got 2 NaN or infinite values, the first at (1, 0), instead. "
            "Impute or drop those rows first.",
        ),
        (
            lambda: check_rows([("X", 3), ("y", 3), ("weight", 4)], "fit"),
            "The 'weight' of fit must be as long as 'X' (3 rows). Got 4 rows instead. "
            "Every array needs one row per example.",
        ),
        (
            lambda: check_rows([("X", 0), ("y", 0)], "fit"),
            "The 'X' of fit must be of at least one row. Got an empty batch instead. "
            "Check the filter before.",
        ),
    ],
)
def test_messages(check, message):
    """Every check's whole message."""
    with pytest.raises(InvalidInput) as error:
        check()
    assert str(error.value) == message
