"""Calibration intervals, rejection, detection and entropy parts: against scikit-learn and simulation."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from contracts.members import generator
from sparsebnn.checks import InvalidInput
from sparsebnn.inference.metrics import (
    auroc,
    calibration_error,
    calibration_interval,
    entropy_parts,
    fpr_at_tpr,
    rejection_area,
    rejection_curve,
    reliability,
)

LABELS = torch.randint(4, (300,), generator=generator(2))
PROBS = torch.softmax(
    2.0 * torch.randn(300, 4, generator=generator(1), dtype=torch.float64)
    + 1.5 * torch.nn.functional.one_hot(LABELS, 4),
    dim=-1,
)
INSIDE = torch.randn(400, generator=generator(3)).round(decimals=1)
OUTSIDE = (torch.randn(300, generator=generator(4)) + 1.0).round(decimals=1)


def test_reliability_is_the_calibration_curve_of_the_most_probable_class():
    found = reliability(PROBS, LABELS, 10)
    confidence = PROBS.max(-1).values.numpy()
    correct = (PROBS.argmax(-1) == LABELS).numpy()
    share, mean = calibration_curve(correct, confidence, n_bins=10)
    full = found.rows > 0
    np.testing.assert_allclose(found.accuracy[full], share, rtol=1e-12)
    np.testing.assert_allclose(found.confidence[full], mean, rtol=1e-12)
    assert bool(found.accuracy[~full].isnan().all())
    assert int(found.rows.sum()) == 300
    gap = (found.rows.double() / 300 * (found.accuracy - found.confidence).abs())[full].sum()
    assert calibration_error(PROBS, LABELS, 10) == pytest.approx(float(gap), rel=1e-12)


def simulate(rows: int, shift: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes; the first is announced with probability c above one half and true with c − shift."""
    rng = generator(seed)
    c = 0.6 + 0.4 * torch.rand(rows, generator=rng, dtype=torch.float64)
    wrong = torch.rand(rows, generator=rng, dtype=torch.float64) >= (c - shift).clamp(0.0, 1.0)
    return torch.stack([c, 1.0 - c], dim=-1), wrong.long()


@pytest.mark.parametrize(("shift", "truth"), [(0.0, 0.0), (0.05, 0.05), (0.15, 0.15)])
def test_the_interval_covers_the_calibration_error_behind_the_rows(shift, truth):
    """Within 4 standard errors of 95%, from below; percentiles alone cover 0 never."""
    trials, hits = 100, 0
    for seed in range(trials):
        low, high = calibration_interval(*simulate(400, shift, seed), 10, n_resamples=100, seed=seed)
        hits += low <= truth <= high
    assert hits / trials >= 0.95 - 4.0 * np.sqrt(0.95 * 0.05 / trials)


def test_the_interval_leaves_out_what_is_not_so():
    low, high = calibration_interval(*simulate(2000, 0.2, 5), 10)
    assert 0.1 < low < high < 0.3
    assert calibration_interval(*simulate(400, 0.0, 1), seed=3) == calibration_interval(
        *simulate(400, 0.0, 1), seed=3
    )


def test_rejection_curve():
    """Row by row: sort by entropy, count what is right."""
    order = np.argsort(stats.entropy(PROBS.numpy(), axis=1))
    correct = (PROBS.argmax(-1) == LABELS).numpy()[order]
    kept, accuracy = rejection_curve(PROBS, LABELS)
    np.testing.assert_allclose(accuracy, np.cumsum(correct) / np.arange(1, 301), rtol=1e-12)
    np.testing.assert_allclose(kept, np.arange(1, 301) / 300)
    assert rejection_area(PROBS, LABELS) == pytest.approx(float(accuracy.mean()))
    last = float((PROBS.argmax(-1) == LABELS).double().mean())
    assert float(accuracy[-1]) == pytest.approx(last)


def test_rejection_does_not_depend_on_the_order_of_ties():
    score = torch.zeros(300)
    flipped = rejection_area(PROBS.flip(0), LABELS.flip(0), score)
    assert rejection_area(PROBS, LABELS, score) == pytest.approx(flipped, rel=1e-12)
    assert flipped == pytest.approx(sk.accuracy_score(LABELS, PROBS.argmax(-1)), rel=1e-12)


def test_auroc():
    y = np.r_[np.zeros(400), np.ones(300)]
    assert auroc(INSIDE, OUTSIDE) == pytest.approx(sk.roc_auc_score(y, torch.cat([INSIDE, OUTSIDE])))
    assert auroc(INSIDE.tolist(), OUTSIDE.numpy()) == auroc(INSIDE, OUTSIDE)
    assert auroc(INSIDE, INSIDE) == 0.5
    assert auroc(-INSIDE, -OUTSIDE) == pytest.approx(1.0 - auroc(INSIDE, OUTSIDE))


@pytest.mark.parametrize("tpr", [0.5, 0.8, 0.95, 1.0])
def test_fpr_at_tpr(tpr):
    """The inside rows are the positives; they are positive when their score is low."""
    y = np.r_[np.ones(400), np.zeros(300)]
    fpr, found, _ = sk.roc_curve(y, -torch.cat([INSIDE, OUTSIDE]), drop_intermediate=False)
    assert fpr_at_tpr(INSIDE, OUTSIDE, tpr) == pytest.approx(fpr[np.argmax(found >= tpr - 1e-12)])


def test_entropy_parts():
    draws = torch.softmax(3.0 * torch.randn(20, 7, 4, generator=generator(6), dtype=torch.float64), -1)
    parts = entropy_parts(draws)
    np.testing.assert_allclose(parts.total, stats.entropy(draws.mean(0).numpy(), axis=1), rtol=1e-12)
    # Mutual information as a mean divergence from the average, a formula of its own.
    divergence = (draws * (draws / draws.mean(0)).log()).sum(-1).mean(0)
    np.testing.assert_allclose(parts.epistemic, divergence, rtol=1e-10)
    np.testing.assert_allclose(parts.aleatoric + parts.epistemic, parts.total, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: auroc(torch.zeros(2, 2), torch.zeros(3)),
            "The 'inside' of auroc must be a vector of scores. Got shape (2, 2) instead.",
        ),
        (
            lambda: fpr_at_tpr(torch.zeros(3), torch.zeros(3), 0.0),
            "The 'tpr' of fpr_at_tpr must be above 0 and at most 1. Got 0.0 instead.",
        ),
        (
            lambda: calibration_interval(PROBS, LABELS, level=1.0),
            "The 'level' of calibration_interval must be strictly between 0 and 1. Got 1.0 instead.",
        ),
        (
            lambda: rejection_curve(PROBS, LABELS, torch.zeros(300, 1)),
            "The 'uncertainty' of rejection_curve must be a vector, one number per row. "
            "Got shape (300, 1) instead.",
        ),
        (
            lambda: rejection_curve(PROBS, LABELS, torch.zeros(299)),
            "The 'uncertainty' of rejection_curve must be as long as 'probs' (300 rows). "
            "Got 299 rows instead. Every array needs one row per example.",
        ),
        (
            lambda: entropy_parts(PROBS),
            "The 'draws' of entropy_parts must be of shape (draws, rows, classes). "
            "Got shape (300, 4) instead.",
        ),
    ],
)
def test_messages(call, message):
    with pytest.raises(InvalidInput) as error:
        call()
    assert str(error.value) == message
