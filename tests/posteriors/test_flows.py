"""flows.py: how a chain orders its variables, and what it refuses."""

import re

import pytest
import torch

from sparsebnn.checks import InvalidInput
from sparsebnn.posteriors.flows import AutoregressiveStep, CouplingStep, flow

KINDS = ["autoregressive", "coupling"]


def orderings(chain):
    return [step.ordering for step in chain.steps]


def test_shared_steps_have_the_same_hidden_degrees():
    """The paper's experiments: every step of both flows has one ordering and the same hidden degrees."""
    first, second = flow(6, 2, (8, 8), ordering="shared", seed=1).steps
    for a, b in zip(first.layers, second.layers):
        assert torch.equal(a.in_degree, b.in_degree)
        assert torch.equal(a.out_degree, b.out_degree)


def test_default_orderings():
    """Autoregressive steps share an order; coupling steps alternate, or half of z would never move.

    Orders come from NumPy's frozen legacy stream: a saved network keeps its masks for ever.
    """
    first, second = orderings(flow(6, 2, (4,), "autoregressive"))
    assert first == second == (5, 2, 1, 3, 0, 4)
    first, second = orderings(flow(6, 2, (4,), "coupling"))
    assert first == tuple(5 - place for place in second)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: flow(3, kind="coupled"), "'kind' of flow"),
        (lambda: flow(3, kind="xyz"), "'kind' of flow"),
        (lambda: flow(3, ordering="alternating"), "'ordering' of flow"),
        (lambda: flow(3, 2, ordering=[(0, 1, 2)]), "'ordering' of flow"),
        (lambda: flow(3, 1, ordering=[(0, 1, 1)]), "'ordering' of AutoregressiveStep"),
        (lambda: CouplingStep(3, ordering=(1, 2, 3)), "'ordering' of CouplingStep"),
        (lambda: flow(3, -1), "'length' of flow"),
        (lambda: AutoregressiveStep(0), "'dim' of AutoregressiveStep"),
        (lambda: AutoregressiveStep(3, hidden=(0,)), "'hidden' of AutoregressiveStep"),
        (lambda: CouplingStep(3, hidden=(2.5,)), "'hidden' of CouplingStep"),
    ],
)
def test_messages(build, named):
    with pytest.raises(InvalidInput, match=re.escape(f"The {named} must be ")):
        build()


@pytest.mark.parametrize("kind", KINDS)
def test_orderings(kind):
    """Shared: one for all steps; alternate: every other one backwards; random: a new one per step."""

    def made(ordering, seed=3, length=3, dim=9):
        return orderings(flow(dim, length, (4,), kind, ordering, seed=seed))

    first, second, third = made("shared")
    assert first == second == third
    assert sorted(first) == list(range(9))
    assert made("shared", seed=4)[0] != first
    first, second, third = made("alternate")
    assert first == third
    assert [a + b for a, b in zip(first, second)] == [8] * 9
    drawn = made("random")
    assert len(set(drawn)) == 3
    assert all(sorted(order) == list(range(9)) for order in drawn)
    given = [(0, 2, 1), (1, 0, 2)]
    assert made(given, length=2, dim=3) == given
