"""Inputs with names: from arrays, tensors and data frames, and what is refused."""

import numpy as np
import pytest
import torch

from sparsebnn.checks import InvalidInput
from studies.data.columns import columns, duplicated, refuse_constant, standardised


def complaint(x, **options):
    with pytest.raises(InvalidInput) as error:
        columns(x, "fit", **options)
    return str(error.value)


def test_arrays_tensors_and_lists_give_the_same_numbers():
    rows = [[1, 2], [3, 4]]
    for x in (rows, np.array(rows), torch.tensor(rows), torch.tensor(rows, dtype=torch.float32)):
        table = columns(x, "fit")
        assert table.values.tolist() == [[1.0, 2.0], [3.0, 4.0]]
        assert table.values.dtype == np.float64
        assert table.names == ("x1", "x2")
    assert columns(rows, "fit", ["a", "b"]).names == ("a", "b")


def test_a_data_frame_keeps_its_names():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [1.5, 2.5], "smoker": [True, False], "visits": [3, 4]})
    table = columns(frame, "fit")
    assert table.names == ("age", "smoker", "visits")
    assert table.values.tolist() == [[1.5, 1.0, 3.0], [2.5, 0.0, 4.0]]
    assert columns(frame, "fit", ["a", "b", "c"]).names == ("a", "b", "c")


def test_a_data_frame_with_text_or_holes_is_refused_by_name():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [1.5, 2.5], "town": ["Bergen", "Oslo"]})
    assert complaint(frame) == (
        "The 'x' of fit must be numeric. Got columns of other kinds, 'town', instead. "
        "Encode categories as 0/1 columns, or drop them."
    )
    category = pandas.DataFrame({"age": [1.5, 2.5], "town": pandas.Categorical(["a", "b"])})
    assert "'town'" in complaint(category)
    holes = pandas.DataFrame({"age": [1.5, 2.5], "visits": pandas.array([1, None], dtype="Int64")})
    assert "Got 1 missing or infinite values in 'visits' instead." in complaint(holes)


def test_what_is_not_a_table_is_refused():
    assert "of shape (rows, inputs). Got shape (3,) instead." in complaint(np.ones(3))
    assert "Got shape (0, 3) instead." in complaint(np.ones((0, 3)))
    assert "one name per column (2). Got 1 names instead." in complaint(np.ones((2, 2)), names=["a"])
    assert "Got 'a' more than once instead." in complaint(np.ones((2, 2)), names=["a", "a"])
    assert "Got an array of object instead." in complaint(np.array([[1, None]], dtype=object))


def test_constants_and_duplicates_are_found():
    table = columns([[1.0, 2.0, -0.0, 1.0, 0.0], [1.0, 3.0, 1.0, 1.0, 1.0]], "fit")
    assert duplicated(table) == [("x1", "x4"), ("x3", "x5")]
    with pytest.raises(InvalidInput, match=r"free of constant columns. Got 'x1', 'x4' instead"):
        refuse_constant(table, "fit")


def test_standardised_columns():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 3)) * [1.0, 5.0, 9.0] + 3.0
    scaled = standardised(x, slice(1, 3))
    np.testing.assert_array_equal(scaled[:, 0], x[:, 0])
    np.testing.assert_allclose(scaled[:, 1:].mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(scaled[:, 1:].var(0, ddof=1), 1.0)
