"""metrics.py: against scikit-learn, scipy, plain numpy and simulation."""

import re

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from contracts.members import generator
from sparsebnn.checks import InvalidInput
from sparsebnn.inference.metrics import (
    accuracy,
    auroc,
    brier,
    calibration_error,
    calibration_interval,
    entropy,
    entropy_parts,
    fpr_at_tpr,
    nll,
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


def test_nll():
    assert nll(PROBS, LABELS) == pytest.approx(sk.log_loss(LABELS, PROBS.numpy()), rel=1e-12)
    # An impossible label's is finite.
    assert nll(torch.tensor([[1.0, 0.0]]), torch.tensor([1])) == pytest.approx(-np.log(1e-12), rel=1e-6)


def test_brier():
    ours = brier(PROBS, LABELS)
    assert ours == pytest.approx(sk.brier_score_loss(LABELS, PROBS.numpy(), scale_by_half=False), rel=1e-12)
    two = PROBS[:, :2] / PROBS[:, :2].sum(-1, keepdim=True)
    y = (LABELS > 1).long()
    assert brier(two, y) == pytest.approx(2.0 * sk.brier_score_loss(y, two[:, 1].numpy()), rel=1e-12)


@pytest.mark.parametrize("n_bins", [1, 10, 15, 37])
def test_calibration_error(n_bins):
    """Bin by bin, as the formula says."""
    p, y = PROBS.numpy(), LABELS.numpy()
    confidence, correct = p.max(1), p.argmax(1) == y
    expected = 0.0
    for b in range(n_bins):
        inside = (confidence > b / n_bins) & (confidence <= (b + 1) / n_bins)
        if inside.any():
            expected += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    assert calibration_error(PROBS, LABELS, n_bins) == pytest.approx(expected, rel=1e-10)


def test_calibration_error_of_extremes():
    sure = torch.eye(4)[LABELS]
    assert calibration_error(sure, LABELS) == 0.0
    assert calibration_error(sure, (LABELS + 1) % 4) == 1.0
    # A confidence on an edge belongs to the bin below: (0.4, 0.5], not (0.5, 0.6].
    half = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.55, 0.45]], dtype=torch.float64)
    expected = (2 * abs(0.5 - 0.5) + abs(0.0 - 0.55)) / 3
    assert calibration_error(half, torch.tensor([0, 1, 1]), 10) == pytest.approx(expected)


def test_entropy():
    np.testing.assert_allclose(entropy(PROBS).numpy(), stats.entropy(PROBS.numpy(), axis=1), rtol=1e-12)
    assert entropy(torch.tensor([0.0, 1.0])).item() == 0.0
    assert entropy(torch.full((8,), 0.125)).item() == pytest.approx(np.log(8))
    assert entropy(PROBS.reshape(3, 100, 4)).shape == (3, 100)


@pytest.mark.parametrize("metric", [accuracy, nll, brier, calibration_error])
@pytest.mark.parametrize(
    ("probs", "labels", "named"),
    [
        (torch.tensor([[0.5, float("nan")], [0.5, 0.5]]), torch.tensor([0, 1]), "'probs'"),
        (torch.full((2, 2), 0.5), torch.tensor([0, 2]), "'labels'"),
        (torch.full((2, 2), 0.5), torch.tensor([-1, 0]), "'labels'"),
        (torch.full((2, 2), 0.5), torch.tensor([0.7, 1.0]), "'labels'"),
        (torch.empty(0, 2), torch.empty(0, dtype=torch.int64), "'probs'"),
        (torch.full((2, 2), 0.5), torch.tensor([0, 1, 1]), "'labels'"),
        (torch.full((2,), 0.5), torch.tensor([0, 1]), "'probs'"),
    ],
)
def test_messages(metric, probs, labels, named):
    with pytest.raises(InvalidInput, match=f"The {named} of {metric.__name__} must be "):
        metric(probs, labels)


@pytest.mark.parametrize("metric", [nll, brier, calibration_error])
@pytest.mark.parametrize("probs", [[[2.0, -1.0], [0.0, 0.5]], [[0.5, 0.5], [0.5, 0.52]], [[0.3], [0.6]]])
def test_what_is_no_probability_is_refused(metric, probs):
    with pytest.raises(InvalidInput, match=f"'probs' of {metric.__name__} must be .*not logits"):
        metric(torch.tensor(probs), torch.tensor([0, 0]))


def test_what_counts_is_the_order_for_accuracy_and_precision_may_be_low():
    assert accuracy(PROBS, LABELS) == sk.accuracy_score(LABELS, PROBS.argmax(-1))
    assert accuracy(torch.tensor([[2.0, -1.0], [0.0, 0.5]]), torch.tensor([0, 1])) == 1.0
    assert nll(PROBS.bfloat16(), LABELS) == pytest.approx(nll(PROBS, LABELS), rel=0.02)
    assert nll([[1, 0], [0, 1]], [0, 1]) == 0.0
    with pytest.raises(InvalidInput, match="'n_bins' of calibration_error"):
        calibration_error(PROBS, LABELS, 0)


@pytest.mark.parametrize("kind", [np.asarray, list])
def test_arrays_and_lists_will_do(kind):
    probs, labels = PROBS[:20], LABELS[:20]
    own = [kind(each) for each in (probs.numpy().tolist(), labels.numpy().tolist())]
    for metric in (accuracy, nll, brier, calibration_error):
        assert metric(*own) == pytest.approx(metric(probs, labels), rel=1e-6)
    np.testing.assert_allclose(entropy(own[0]), entropy(probs), rtol=1e-12)


# --- calibration intervals, rejection, detection, entropy parts ------------------------------------------

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
    # Mutual information by another formula: the mean divergence from the average.
    divergence = (draws * (draws / draws.mean(0)).log()).sum(-1).mean(0)
    np.testing.assert_allclose(parts.epistemic, divergence, rtol=1e-10)
    np.testing.assert_allclose(parts.aleatoric + parts.epistemic, parts.total, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: auroc(torch.zeros(2, 2), torch.zeros(3)), "'inside' of auroc"),
        (lambda: fpr_at_tpr(torch.zeros(3), torch.zeros(3), 0.0), "'tpr' of fpr_at_tpr"),
        (lambda: calibration_interval(PROBS, LABELS, level=1.0), "'level' of calibration_interval"),
        (lambda: rejection_curve(PROBS, LABELS, torch.zeros(300, 1)), "'uncertainty' of rejection_curve"),
        (lambda: rejection_curve(PROBS, LABELS, torch.zeros(299)), "'uncertainty' of rejection_curve"),
        (lambda: entropy_parts(PROBS), "'draws' of entropy_parts"),
    ],
)
def test_messages_of_intervals_and_detection(call, named):
    with pytest.raises(InvalidInput, match=re.escape(f"The {named} must be ")):
        call()
