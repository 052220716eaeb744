"""calibration.py: one number that corrects how sure predictions are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from sparsebnn import metrics
from sparsebnn.calibration import sharpened, sharpness
from sparsebnn.checks import InvalidInput


def rows(seed: int, count: int = 400, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    probs = torch.softmax(2.0 * torch.randn(count, classes, generator=random, dtype=torch.float64), -1)
    return probs, torch.multinomial(probs, 1, generator=random)[:, 0]


@pytest.mark.parametrize("power", [0.3, 1.0, 2.5])
def test_it_minimises_the_nll(power):
    """Oracle: SciPy's scalar minimiser on the NLL, written with NumPy."""
    probs, labels = rows(1)
    given = sharpened(probs, power)

    def loss(log_s: float) -> float:
        p = given.numpy() ** np.exp(log_s)
        p = p / p.sum(1, keepdims=True)
        return float(-np.log(p[np.arange(len(p)), labels.numpy()]).mean())

    wanted = np.exp(minimize_scalar(loss, bounds=(-4.0, 4.0), method="bounded", options={"xatol": 1e-9}).x)
    assert sharpness(given, labels) == pytest.approx(wanted, rel=1e-5)


def test_it_undoes_a_power():
    """Labels drawn from p: whatever power p was taken to, its inverse comes back, but for chance."""
    probs, labels = rows(2, count=20_000)
    log_p = torch.log(probs)
    # The information of s at s = 1: the variance of log p under p.
    information = ((probs * log_p**2).sum(-1) - (probs * log_p).sum(-1) ** 2).sum()
    error = float(information) ** -0.5
    for power in (0.5, 1.0, 3.0):
        assert abs(power * sharpness(sharpened(probs, power), labels) - 1.0) < 4.0 * error


def test_too_sure_predictions_are_corrected():
    probs, labels = rows(3, count=5_000)
    sure = sharpened(probs, 3.0)
    mended = sharpened(sure, sharpness(sure, labels))
    assert metrics.nll(mended, labels) < metrics.nll(sure, labels) - 0.05
    assert metrics.calibration_error(mended, labels) < 0.3 * metrics.calibration_error(sure, labels)
    assert torch.equal(mended.argmax(-1), sure.argmax(-1))


@given(st.floats(0.05, 10.0), st.integers(2, 6), st.integers(0, 10_000))
def test_sharpened_probabilities_are_probabilities_in_the_same_order(s, classes, seed):
    random = torch.Generator().manual_seed(seed)
    probs = torch.softmax(torch.randn(5, classes, generator=random), -1)
    found = sharpened(probs, s)
    assert found.dtype == probs.dtype
    assert torch.allclose(found.sum(-1), torch.ones(5), atol=1e-6)
    assert bool((found.gather(-1, probs.argsort(-1)).diff(dim=-1) >= 0.0).all())


def test_certain_and_wrong_stays_finite():
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    found = sharpness(probs, torch.tensor([0, 0, 1]))
    assert sharpened(probs, found)[0, 0] == pytest.approx(2 / 3, abs=1e-3)
    # Always right: as sure as is allowed.
    assert sharpness(torch.tensor([[0.9, 0.1]] * 3), torch.tensor([0, 0, 0])) == pytest.approx(64.0)


def test_messages():
    with pytest.raises(InvalidInput, match="The 's' of sharpened must be greater than 0"):
        sharpened(torch.tensor([[0.5, 0.5]]), 0.0)
    with pytest.raises(InvalidInput, match="labels"):
        sharpness(torch.tensor([[0.5, 0.5]]), torch.tensor([2]))
