"""calibration.py: two numbers that correct how sure predictions are."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from sparsebnn import metrics
from sparsebnn.checks import InvalidInput
from sparsebnn.inference.calibration import CentralLevels, Correction, HeldOut, Joined, correction
from sparsebnn.likelihoods import Bernoulli, Categorical, Gaussian, NoisyCategorical

HALVES = torch.tensor([[0.5, 0.5]] * 2)


def rows(seed: int, count: int = 400, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    probs = torch.softmax(2.0 * torch.randn(count, classes, generator=random, dtype=torch.float64), -1)
    return probs, torch.multinomial(probs, 1, generator=random)[:, 0]


def mislabelled(labels: torch.Tensor, share: float, classes: int = 4) -> torch.Tensor:
    """A share of the labels replaced by any of the classes."""
    random = torch.Generator().manual_seed(7)
    anyone = torch.randint(classes, labels.shape, generator=random)
    return torch.where(torch.rand(labels.shape, generator=random) < share, anyone, labels)


@pytest.mark.parametrize("power", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_it_maximises_the_posterior(power, share):
    """Oracle: SciPy's minimiser of both numbers at once, on the log posterior in NumPy, several starts."""
    probs, labels = rows(1)
    y = mislabelled(labels, share).numpy()
    given = Correction(power)(probs)

    def loss(at: np.ndarray) -> float:
        p = given.numpy() ** np.exp(at[0])
        p = p / p.sum(1, keepdims=True)
        nll = -np.log((1.0 - at[1]) * p[np.arange(len(p)), y] + at[1] / 4).sum()
        return float(nll + 2.0 * at[0] ** 2 - np.log(1.0 - at[1])) / len(p)

    starts = [(s, e) for s in (-1.0, 0.0, 1.0) for e in (0.01, 0.2)]
    bounds = [(-4.0, 4.0), (0.0, 0.999)]
    wanted = min(minimize(loss, start, bounds=bounds, tol=1e-12).fun for start in starts)
    found = correction(given, torch.from_numpy(y))
    assert loss(np.array([np.log(found.logit_scale), found.uniform_mix])) == pytest.approx(wanted, abs=1e-8)
    own = (2.0 * np.log(found.logit_scale) ** 2 - np.log(1.0 - found.uniform_mix)) / len(y)
    assert metrics.nll(found(given), torch.from_numpy(y)) + own == pytest.approx(wanted, abs=1e-8)
    assert metrics.nll(found(given), torch.from_numpy(y)) <= metrics.nll(given, torch.from_numpy(y))


def test_it_undoes_a_power():
    """Labels drawn from p: whatever power p was taken to, its inverse comes back, but for chance."""
    probs, labels = rows(2, count=20_000)
    log_p = torch.log(probs)
    # What the rows tell of s at s = 1: the variance of log p under p; uniform_mix shares that with it.
    information = ((probs * log_p**2).sum(-1) - (probs * log_p).sum(-1) ** 2).sum()
    error = float(information) ** -0.5
    for power in (0.5, 3.0):
        given = Correction(power)(probs)
        found = correction(given, labels)
        assert abs(power * found.logit_scale - 1.0) < 6.0 * error
        assert found.uniform_mix < 0.01
        assert torch.equal(found(given).argmax(-1), given.argmax(-1))


def test_it_finds_labels_that_are_anybodys_guess():
    """A tenth of the labels replaced: that share comes back, but for chance, and the logit_scale stays."""
    probs, labels = rows(2, count=20_000)
    found = correction(probs, mislabelled(labels, 0.1))
    assert found.uniform_mix == pytest.approx(0.1, abs=0.015)
    assert found.logit_scale == pytest.approx(1.0, abs=0.06)


def test_a_few_confident_errors_do_not_decide_for_all():
    """One row in a hundred is wrong at 1 − 1e-9, the others are calibrated and stay so."""
    probs, labels = rows(4, count=10_000)
    certain = torch.full((100, 4), 1e-9 / 3, dtype=torch.float64)
    certain[:, 0] = 1.0 - 1e-9
    given = torch.cat([probs, certain])
    y = torch.cat([labels, torch.ones(100, dtype=torch.long)])
    found = correction(given, y)
    assert metrics.calibration_error(found(probs), labels) < 0.02
    assert found.logit_scale > 0.8


@given(st.floats(0.05, 10.0), st.floats(0.0, 0.9), st.integers(2, 6), st.integers(0, 10_000))
def test_corrected_probabilities_are_probabilities_in_the_same_order(s, uniform_mix, classes, seed):
    """Of any shape; and left alone where there is nothing to correct."""
    random = torch.Generator().manual_seed(seed)
    probs = torch.softmax(torch.randn(2, 5, classes, generator=random), -1)
    correct = Correction(s, uniform_mix)
    found = correct(probs)
    assert found.dtype == probs.dtype
    assert torch.allclose(found.sum(-1), torch.ones(2, 5), atol=1e-6)
    assert bool((found.gather(-1, probs.argsort(-1)).diff(dim=-1) >= 0.0).all())
    assert torch.equal(found, torch.stack([correct(each) for each in probs]))
    assert torch.equal(correct(probs[0, 0]), found[0, 0])
    assert torch.allclose(Correction()(probs), probs)


def test_certain_and_wrong_stays_finite():
    probs = torch.tensor([[1.0, 0.0]] * 3000)
    found = correction(probs, torch.tensor([0, 0, 1] * 1000))
    assert found(probs)[0, 0] == pytest.approx(2 / 3, abs=1e-3)
    # One row that is wrong does not end all trust.
    found = correction(torch.tensor([[0.99, 0.01]]), torch.tensor([1]))
    assert 0.6 < float(found(torch.tensor([[0.99, 0.01]]))[0, 0]) < 0.9


@pytest.mark.parametrize("count", [1, 40])
def test_few_rows_that_are_all_right_tell_little(count):
    """Without a prior they would have all predictions certain; many tell more."""
    right = torch.tensor([[0.9, 0.1]])
    few, many = (correction(right.repeat(n, 1), torch.zeros(n, dtype=torch.long)) for n in (count, 4000))
    assert few.uniform_mix == many.uniform_mix == 0.0
    assert 1.0 < few.logit_scale < 2.5 < many.logit_scale


def test_predictions_that_tell_nothing():
    """The same for all rows, right as often as they say; and worse than chance."""
    even = torch.full((6, 2), 0.5)
    assert correction(even, torch.tensor([0, 1] * 3)) == Correction()
    wrong = torch.softmax(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), -1)
    found = correction(wrong, wrong.argmin(-1))
    assert found.uniform_mix <= 0.999
    assert metrics.nll(found(wrong), wrong.argmin(-1)) < metrics.nll(wrong, wrong.argmin(-1))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: Correction(0.0), "'logit_scale' of Correction"),
        (lambda: Correction(uniform_mix=1.0), "'uniform_mix' of Correction"),
        (lambda: correction(HALVES, torch.tensor([2, 0])), "labels"),
        (lambda: correction(HALVES, ["a", "b"]), "an array of numbers"),
        (lambda: correction(SimpleNamespace(probs=HALVES), torch.tensor([0, 1])), "the .probs of"),
        (lambda: Correction()(torch.tensor([[3.0, -1.0]])), "not logits"),
        (lambda: Correction()(torch.zeros(0, 4)), "at least one row"),
    ],
)
def test_messages(call, match):
    with pytest.raises(InvalidInput, match=match):
        call()


def test_other_types_will_do():
    found = Correction(uniform_mix=0.1)(torch.tensor([[1, 0]]))
    assert torch.allclose(found, torch.tensor([[0.95, 0.05]], dtype=torch.float64))
    assert correction(HALVES, torch.tensor([0, 1], dtype=torch.uint16)) == Correction()


def test_central_intervals_hold_what_they_say_with_heavy_tails():
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(8000, 1, generator=generator, dtype=torch.float64)
    square = torch.randn(8000, 3, generator=generator, dtype=torch.float64).square().mean(1, keepdim=True)
    error = normal / square.sqrt()  # Student's t with 3 degrees of freedom
    pit = torch.special.ndtr(error / error.std())
    levels = CentralLevels.of(pit[:4000], torch.ones(4000))
    for share in (0.5, 0.9):
        low, high = levels(0.5 - share / 2.0), levels(0.5 + share / 2.0)
        assert low == pytest.approx(1.0 - high)
        inside = float(((pit[4000:] > low) & (pit[4000:] < high)).double().mean())
        assert abs(inside - share) < 4.0 * (share * (1.0 - share) / 4000.0) ** 0.5 + 0.015
        plain = ((pit[4000:] - 0.5).abs() < share / 2.0).double().mean()
        assert share == 0.9 or float(plain) > 0.6
    assert CentralLevels()(0.3) == 0.3
    few = CentralLevels.of(torch.full((3, 1), 0.5, dtype=torch.float64), torch.ones(3))
    assert abs(few.shift) < 1.5


@pytest.mark.parametrize("form", [Bernoulli, lambda: Categorical(3), lambda: NoisyCategorical(3), Gaussian])
def test_joined_draws_are_those_of_one_set(form):
    """The mean over all draws, of which each row has those of two networks with their own likelihoods."""
    random = torch.Generator().manual_seed(0)
    forms, rows = [form() for _ in range(4)], 9
    for place, each in enumerate(forms):
        for parameter in each.parameters():
            parameter.data += 0.3 * place
    outputs_each = forms[0].n_outputs(torch.zeros(rows, 1))
    y = torch.randint(0, 2, (rows,), generator=random).float()
    y = y[:, None] if form is Gaussian else y
    weight, parts = torch.rand(rows, generator=random, dtype=torch.float64), []
    for _ in range(2):
        outputs = torch.randn(5, rows, outputs_each, generator=random, dtype=torch.float64)
        parts.append((outputs, torch.randint(0, 4, (rows,), generator=random).expand(5, -1)))
    each = [HeldOut(outputs, y, weight, forms, own) for outputs, own in parts]
    both, own = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    whole, joined = HeldOut(both, y, weight, forms, own), Joined(each)
    # Draw by draw and row by row, as the definition says.
    log = torch.empty(10, rows, dtype=torch.float64)
    for d in range(10):
        for i in range(rows):
            if form is Gaussian:
                _, std = forms[own[d, i]].mean_and_std(both[d, i : i + 1].float())
                normal = torch.distributions.Normal(both[d, i, 0], 1.5 * std[0, 0].double())
                log[d, i] = normal.log_prob(y[i, 0].double()) + 0.5 * math.log(2.0 * math.pi)
            else:
                label = y[i : i + 1].long() if outputs_each > 1 else y[i : i + 1]
                log[d, i] = -forms[own[d, i]].nll(1.5 * both[d, i : i + 1], label)
    expected = -(torch.logsumexp(log, 0) - math.log(10)).detach()
    torch.testing.assert_close(whole.by_row(math.log(1.5)), expected, rtol=1e-5, atol=1e-6)
    for log_s in (0.0, math.log(1.5)):
        torch.testing.assert_close(joined.by_row(log_s), whole.by_row(log_s), rtol=1e-10, atol=1e-12)
    if form is Gaussian:
        torch.testing.assert_close(joined.pit(1.5), whole.pit(1.5), rtol=1e-10, atol=1e-12)
