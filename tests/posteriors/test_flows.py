"""flows.py: how a chain orders its variables, and what it refuses."""

import re

import pytest
import torch

from sparsebnn.checks import InvalidInput
from sparsebnn.posteriors.flows import AutoregressiveStep, CouplingStep, flow

KINDS = ["autoregressive", "coupling"]


def orderings(chain):
    return [step.ordering for step in chain.steps]


@pytest.mark.parametrize("kind", KINDS)
def test_shared_ordering(kind):
    """One permutation for all steps, a different one for another seed."""
    orders = orderings(flow(9, 3, (4,), kind, "shared", seed=3))
    assert orders[0] == orders[1] == orders[2]
    assert sorted(orders[0]) == list(range(9))
    assert orderings(flow(9, 1, (4,), kind, "shared", seed=4))[0] != orders[0]


def test_shared_steps_have_the_same_hidden_degrees():
    """The paper's experiments: every step of both flows has one ordering and the same hidden degrees."""
    first, second = flow(6, 2, (8, 8), ordering="shared", seed=1).steps
    for a, b in zip(first.layers, second.layers):
        assert torch.equal(a.in_degree, b.in_degree)
        assert torch.equal(a.out_degree, b.out_degree)


@pytest.mark.parametrize("kind", KINDS)
def test_alternate_ordering(kind):
    """Every other step sees the variables backwards."""
    first, second, third = orderings(flow(7, 3, (4,), kind, "alternate", seed=3))
    assert first == third
    assert [a + b for a, b in zip(first, second)] == [6] * 7


@pytest.mark.parametrize("kind", KINDS)
def test_random_ordering(kind):
    """A new permutation per step."""
    orders = orderings(flow(9, 3, (4,), kind, "random", seed=3))
    assert len(set(orders)) == 3
    assert all(sorted(order) == list(range(9)) for order in orders)


@pytest.mark.parametrize("kind", KINDS)
def test_explicit_ordering(kind):
    """The permutations as given, one per step."""
    given = [(0, 2, 1), (1, 0, 2)]
    assert orderings(flow(3, 2, (4,), kind, given)) == given


def test_default_orderings():
    """Autoregressive steps share an order; coupling steps alternate, or half of z would never move."""
    first, second = orderings(flow(6, 2, (4,), "autoregressive"))
    assert first == second
    first, second = orderings(flow(6, 2, (4,), "coupling"))
    assert first == tuple(5 - place for place in second)


def test_orderings_are_frozen():
    """Orders come from NumPy's frozen legacy stream: a saved network keeps its masks for ever."""
    assert flow(6, 1, (4,), seed=0).steps[0].ordering == (5, 2, 1, 3, 0, 4)


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
    """Bad flows are refused with the whole message."""
    with pytest.raises(InvalidInput, match=re.escape(f"The {named} must be ")):
        build()
