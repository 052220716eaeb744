"""batches.py: every row once an epoch, in an order that the seed alone decides."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsebnn.checks import InvalidInput
from sparsebnn.likelihoods import Categorical, Gaussian
from sparsebnn.random import noise as counter
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


@pytest.mark.parametrize("weighted", [True, False])
def test_gather(weighted):
    weight = torch.linspace(0.0, 1.8, 10)
    made = batches(weight=weight if weighted else None)
    index = torch.tensor([[2, 9, 2, 0], [1, 1, 3, 4]])
    mask = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    batch = gather(made.tensors(), index, mask)
    assert torch.equal(batch.x, made.x[index])
    assert torch.equal(batch.y, index % 3)
    expected = weight[index].double() * mask if weighted else mask.expand(2, 4)
    torch.testing.assert_close(batch.weight.expand(2, 4), expected)
    assert batch.rows == 3


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


# --- moved images -----------------------------------------------------------------------------------


def images(rows=6, channels=2, height=5, width=4, dtype=torch.uint8):
    x = torch.arange(1, rows * channels * height * width + 1).reshape(rows, channels, height, width).to(dtype)
    return Batches.of((x, torch.arange(rows) % 3), Categorical(3), 3, CPU, torch.float64)


def moved_by_hand(image, down, right):
    """Framed by zeros, then cut out again elsewhere."""
    _, height, width = image.shape
    framed = torch.nn.functional.pad(image, (9, 9, 9, 9))
    return framed[:, 9 - down : 9 - down + height, 9 - right : 9 - right + width]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
@pytest.mark.parametrize("most", [1, 3])
def test_images_are_moved_and_zeros_come_in(dtype, most):
    made, seeds = images(dtype=dtype), counter.seed_tensor([3, 8])
    order, shifts = made.order(seeds, 0, True), made.shifts(seeds, 0, most)
    batch = gather(made.tensors(), order, torch.ones(6, dtype=torch.float64), shifts)
    assert batch.x.shape == (2, 6, 2, 5, 4)
    for k in range(2):
        for place, row in enumerate(order[k].tolist()):
            wanted = moved_by_hand(made.x[row], *shifts[k, place].tolist())
            wanted = wanted.double() / (255.0 if dtype == torch.uint8 else 1.0)
            assert torch.equal(batch.x[k, place], wanted)
    one = gather(made.tensors(), order[0], torch.ones(6, dtype=torch.float64), shifts[0])
    assert torch.equal(one.x, batch.x[0])


def test_shifts_depend_on_seed_and_epoch_alone():
    made = images(rows=3000)
    many = made.shifts(counter.seed_tensor([5, 7]), 2, 2)
    alone = made.shifts(counter.seed_tensor([7]), 2, 2)
    assert torch.equal(many[1], alone[0])
    assert not torch.equal(many[0], many[1])
    assert not torch.equal(alone, made.shifts(counter.seed_tensor([7]), 3, 2))
    pairs = (many + 2) @ torch.tensor([5, 1])
    seen = torch.bincount(pairs.flatten(), minlength=25).double()
    expected = pairs.numel() / 25
    # Chi-square of 24 degrees of freedom: 60 is beyond one in ten thousand.
    assert float(((seen - expected) ** 2 / expected).sum()) < 60.0


def test_only_images_can_be_moved_and_stay_in_sight():
    made = images()
    made.check_shift(3)
    batches().check_shift(0)
    one = dataclasses.replace(made, x=made.x[:, 0])
    for bad, shift, match in (
        (made, 4, "less than the sides"),
        (batches(), 1, "Flatten"),
        (one, 1, r"x\[:, None\]"),
    ):
        with pytest.raises(InvalidInput, match=rf"(?s)'shift' of Settings must be .*{match}"):
            bad.check_shift(shift)
