"""schedules.py: the factors, epoch by epoch."""

import math

import pytest

from sparsebnn.training.settings import Constant, Cosine, Steps, schedule


def factors(of, epochs):
    return [of.factor(e, epochs) for e in range(epochs)]


def test_constant():
    assert factors(Constant(), 5) == [1.0] * 5


def test_steps():
    assert factors(Steps((1, 3), 0.5), 5) == [1.0, 0.5, 0.5, 0.25, 0.25]
    assert factors(Steps((0,), 0.5), 2) == [0.5, 0.5]
    assert factors(Steps(()), 2) == [1.0, 1.0]


def test_cosine():
    expected = [0.5 * (1 + math.cos(math.pi * e / 10)) for e in range(10)]
    assert factors(Cosine(0.0), 10) == pytest.approx(expected)
    assert factors(Cosine(0.3), 10) == pytest.approx([max(0.3, f) for f in expected])
    assert all(a >= b for a, b in zip(factors(Cosine(), 30), factors(Cosine(), 30)[1:]))


@pytest.mark.parametrize(("epochs", "at"), [(4, 2), (5, 2), (1, 0)])
def test_steps_by_name_falls_to_a_tenth_halfway(epochs, at):
    """With one epoch there is no first half, but there should be a rate."""
    expected = [1.0 if e < at else 0.1 for e in range(epochs)]
    assert factors(schedule("steps"), epochs) == expected


def test_a_schedule_passes_through():
    mine = Steps((3,))
    assert schedule(mine) is mine
    assert isinstance(schedule("constant"), Constant)
    assert schedule("cosine") == Cosine()
