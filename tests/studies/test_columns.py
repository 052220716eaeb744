"""Inputs with names: from arrays, tensors and data frames, and what is refused."""

import numpy as np
import pytest
import torch

from sparsebnn.checks import InvalidInput
from studies.data.columns import columns, duplicated, refuse_constant, standardised


def test_arrays_tensors_and_lists_give_the_same_numbers():
    rows = [[1, 2], [3, 4]]
    for x in (rows, np.array(rows), torch.tensor(rows), torch.tensor(rows, dtype=torch.float32)):
        table = columns(x, "fit")
        assert table.values.tolist() == [[1.0, 2.0], [3.0, 4.0]]
        assert table.values.dtype == np.float64
        assert table.names == ("x1", "x2")


def test_names_are_those_given_or_those_of_the_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [1.5, 2.5], "smoker": [True, False], "visits": [3, 4]})
    table = columns(frame, "fit")
    assert table.names == ("age", "smoker", "visits")
    assert table.values.tolist() == [[1.5, 1.0, 3.0], [2.5, 0.0, 4.0]]
    assert columns(frame, "fit", ["a", "b", "c"]).names == ("a", "b", "c")
    for names in (["a"], ["a", "a", "b"]):
        with pytest.raises(InvalidInput, match="'names'"):
            columns(frame, "fit", names)


@pytest.mark.parametrize("x", [np.ones(3), np.ones((0, 3)), [[1.0, None]], [["Oslo", 1.0]], [[np.inf, 1.0]]])
def test_what_is_not_a_table_of_numbers_is_refused(x):
    with pytest.raises(ValueError, match=r"array|NaN|convert|infinity"):
        columns(x, "fit")


def test_constants_and_duplicates_are_found():
    table = columns([[1.0, 2.0, -0.0, 1.0, 0.0], [1.0, 3.0, 1.0, 1.0, 1.0]], "fit")
    assert duplicated(table) == [("x1", "x4"), ("x3", "x5")]
    with pytest.raises(InvalidInput, match=r"x1, x4"):
        refuse_constant(table, "fit")


def test_standardised_columns():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 3)) * [1.0, 5.0, 9.0] + 3.0
    scaled = standardised(x, slice(1, 3))
    np.testing.assert_array_equal(scaled[:, 0], x[:, 0])
    np.testing.assert_allclose(scaled[:, 1:].mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(scaled[:, 1:].var(0, ddof=1), 1.0)
