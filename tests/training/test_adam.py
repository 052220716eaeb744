"""optimizers.py: both forms of Adam against torch.optim.Adam, one replicate at a time."""

import pytest
import torch

from contracts.members import generator
from sparsebnn.training.optimizers import adam, adam_eager, corrected

K = 3
SHAPES = {"a.weight": (5, 4), "a.bias": (7,), "b.scale": ()}
GROUP_OF = {"a.weight": 0, "a.bias": 1, "b.scale": 0}


def plain(*arguments):
    *tensors, rates, group_of, count, alive = arguments
    rates, root = corrected(rates, torch.tensor(count))
    adam(*tensors, rates, group_of, root, alive)


FORMS = {"plain": plain, "eager": adam_eager}


class Problem:
    """Stacked parameters, and gradients that change sign and size from step to step."""

    def __init__(self, rates, dtype=torch.float64):
        g = generator(1)
        self.rates = torch.tensor(rates, dtype=dtype)
        self.start = {n: torch.randn(K, *s, generator=g, dtype=torch.float64) for n, s in SHAPES.items()}
        self.gradients = [
            {
                n: (torch.randn(K, *s, generator=g, dtype=torch.float64) * 10.0 ** (step % 5 - 3)).to(dtype)
                for n, s in SHAPES.items()
            }
            for step in range(20)
        ]
        self.values = {n: p.to(dtype, copy=True) for n, p in self.start.items()}
        self.first = {n: torch.zeros_like(p) for n, p in self.values.items()}
        self.second = {n: torch.zeros_like(p) for n, p in self.values.items()}

    def go(self, form, steps, alive=(True,) * K):
        for t in range(steps):
            FORMS[form](
                self.values,
                self.gradients[t],
                self.first,
                self.second,
                self.rates,
                GROUP_OF,
                t + 1,
                torch.tensor(alive),
            )
        return self

    def reference(self, steps, k):
        values = {n: p[k].clone() for n, p in self.start.items()}
        groups = [
            {"params": [p for n, p in values.items() if GROUP_OF[n] == i], "lr": float(self.rates[i, k])}
            for i in range(2)
        ]
        optimiser = torch.optim.Adam(groups)
        for t in range(steps):
            for name, p in values.items():
                p.grad = self.gradients[t][name][k].double()
            optimiser.step()
        return values


SAME = [[0.1] * K, [0.02] * K]
DIFFERENT = [[0.1, 0.0, 0.003], [0.02, 0.5, 0.02]]


@pytest.mark.parametrize("rates", [SAME, DIFFERENT], ids=["same", "per_replicate"])
@pytest.mark.parametrize("steps", [1, 20])
@pytest.mark.parametrize("form", FORMS)
def test_against_torch(form, steps, rates):
    ours = Problem(rates).go(form, steps)
    for k in range(K):
        for name, expected in ours.reference(steps, k).items():
            torch.testing.assert_close(ours.values[name][k], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 20])
@pytest.mark.parametrize("form", FORMS)
def test_single_precision_corrects_the_bias_as_well(form, steps):
    """1 − 0.999ᵗ loses four digits in float32; the whole way moved is right to 2e-6 all the same."""
    ours = Problem(SAME, torch.float32).go(form, steps)
    for k in range(K):
        for name, expected in ours.reference(steps, k).items():
            start = ours.start[name][k]
            moved = (ours.values[name][k].double() - start - (expected - start)).abs().max()
            # Storing values of size 3 in float32 costs 2.4e-7 a step at most.
            assert float(moved) <= 2e-6 * float((expected - start).abs().max()) + 2.4e-7 * steps**0.5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alive", [(True, False, True), (False,) * K])
def test_the_dead_keep_their_values(form, alive):
    """Parameters and moments, even when their gradients are not finite; the others do not notice."""
    ours = Problem(SAME)
    for gradients in ours.gradients:
        for gradient in gradients.values():
            gradient[1] = float("nan")
    ours.go(form, 5, alive=alive)
    for k in range(K):
        for name, expected in ours.reference(5, k).items():
            if alive[k]:
                torch.testing.assert_close(ours.values[name][k], expected, rtol=0, atol=1e-12)
                continue
            assert torch.equal(ours.values[name][k], ours.start[name][k])
            assert float(ours.first[name][k].abs().max()) == 0.0
            assert float(ours.second[name][k].abs().max()) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", FORMS)
def test_a_neighbours_death_changes_no_bit(form, dtype):
    """Stepping around a dead replicate gives the others exactly what stepping together gives."""
    together = Problem(SAME, dtype).go(form, 10)
    apart = Problem(SAME, dtype).go(form, 10, alive=(True, False, True))
    for name in SHAPES:
        for k in (0, 2):
            assert torch.equal(apart.values[name][k], together.values[name][k])
