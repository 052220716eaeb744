"""Data sets by name: what they hold, that the split is fixed, and what is said when it cannot be had."""

import builtins
import dataclasses

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from sparsebnn.checks import InvalidInput
from sparsebnn.data import load


def test_digits_are_scikit_learns_pixels_divided_by_16():
    data, (pixels, labels) = load("digits"), load_digits(return_X_y=True)
    ours = torch.cat([data.x_train, data.x_test]).numpy() * 16.0
    targets = torch.cat([data.y_train, data.y_test]).numpy()
    expected, got = np.c_[pixels, labels], np.c_[ours, targets]
    order, other = np.lexsort(expected.T), np.lexsort(got.T)
    assert (expected[order] == got[other]).all()
    assert (data.x_train.dtype, data.y_train.dtype) == (torch.float32, torch.int64)
    assert float(data.x_train.max()) == 1.0
    assert data.image_shape == (8, 8)
    assert data.class_names[3] == "3"


def test_a_quarter_is_held_out_evenly_over_the_digits():
    data = load("digits")
    assert len(data.y_test) == 450
    held = torch.bincount(data.y_test) / (torch.bincount(data.y_train) + torch.bincount(data.y_test))
    assert float((held - 0.25).abs().max()) < 0.005


def test_the_split_is_fixed():
    first, second = load("digits"), load("digits")
    assert torch.equal(first.x_test, second.x_test)
    # The rows themselves, so that a change of the split cannot go unnoticed.
    assert first.y_test[:12].tolist() == [2, 0, 4, 9, 4, 1, 2, 4, 6, 7, 9, 1]
    assert float(first.x_test.double().sum()) == 8794.5625


def test_the_record_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load("digits").name = "other"


def test_an_unknown_name():
    with pytest.raises(InvalidInput) as error:
        load("digit")
    assert str(error.value) == (
        "The 'name' of data.load must be one of 'mnist', 'fmnist', 'kmnist', 'digits'. Got 'digit' instead. "
        "Did you mean 'digits'?"
    )


def test_without_scikit_learn(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **options):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError) as error:
        load("digits")
    assert str(error.value) == "The data set 'digits' needs scikit-learn: pip install 'sparsebnn[data]'"
