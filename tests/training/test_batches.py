"""batches.py: every row once an epoch, in an order that the seed alone decides."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsebnn import counter
from sparsebnn.likelihoods import Categorical, Gaussian
from sparsebnn.training.batches import Batches, gather

CPU = torch.device("cpu")


def batches(rows=10, size=4, weight=None, dtype=torch.float32):
    x = torch.arange(rows * 2).reshape(rows, 2).to(dtype)
    data = (x, torch.arange(rows) % 3) + (() if weight is None else (weight,))
    return Batches.of(data, Categorical(3), size, CPU, torch.float64)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 40), size=st.integers(1, 50), epoch=st.integers(0, 5), shuffle=st.booleans())
def test_an_epoch_is_every_row_once(rows, size, epoch, shuffle):
    made = batches(rows, size)
    seeds = counter.seed_tensor([3, 8])
    order, masks = made.order(seeds, epoch, shuffle), made.masks(torch.float64)
    assert made.size == min(size, rows)
    assert order.shape == (2, made.per_epoch * made.size)
    assert masks.shape == (made.per_epoch, made.size)
    assert int(masks.sum()) == rows
    real = masks.flatten().bool()
    for row in order:
        assert sorted(row[real].tolist()) == list(range(rows))


def test_the_order_depends_on_seed_and_epoch_alone():
    made = batches(30)
    many = made.order(counter.seed_tensor([5, 7, 9]), 2, True)
    alone = made.order(counter.seed_tensor([7]), 2, True)
    assert torch.equal(many[1], alone[0])
    assert not torch.equal(many[0], many[1])
    assert not torch.equal(alone, made.order(counter.seed_tensor([7]), 3, True))
    assert torch.equal(made.order(counter.seed_tensor([1]), 0, False)[0, :30], torch.arange(30))


def test_gather():
    weight = torch.linspace(0.0, 1.8, 10)
    made = batches(weight=weight)
    index = torch.tensor([[2, 9, 2, 0], [1, 1, 3, 4]])
    mask = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    batch = gather(made.tensors(), index, mask)
    assert torch.equal(batch.x, made.x[index])
    assert torch.equal(batch.y, index % 3)
    torch.testing.assert_close(batch.weight, weight[index].double() * mask)
    assert batch.rows == 3


def test_without_weights_the_mask_is_the_weight():
    index = torch.tensor([[0, 1, 2, 0]])
    mask = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    batch = gather(batches().tensors(), index, mask)
    assert batch.weight.tolist() == [[1.0, 1.0, 1.0, 0.0]]


def test_pixels_stay_bytes_until_they_are_gathered():
    made = batches(dtype=torch.uint8)
    assert made.x.dtype == torch.uint8
    batch = gather(made.tensors(), torch.tensor([[9]]), torch.ones(1, dtype=torch.float64))
    assert batch.x.dtype == torch.float64
    assert batch.x.tolist() == [[[18 / 255, 19 / 255]]]


def test_targets_take_the_type_of_the_network():
    x, y = torch.zeros(3, 2), torch.zeros(3)
    assert Batches.of((x, y), Gaussian(), 2, CPU, torch.float64).y.dtype == torch.float64
    assert Batches.of((x, y.long()), Categorical(3), 2, CPU, torch.float64).y.dtype == torch.int64


@pytest.mark.parametrize("rows", [10, 23])
def test_numpy_arrays_are_taken(rows):
    x, y = torch.zeros(rows, 2).numpy(), torch.zeros(rows, dtype=torch.int64).numpy()
    assert Batches.of((x, y), Categorical(3), 100, CPU, torch.float32).size == rows
