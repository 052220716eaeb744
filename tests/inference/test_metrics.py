"""metrics.py: against scikit-learn and plain numpy."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from contracts.members import generator
from sparsebnn.checks import InvalidInput
from sparsebnn.inference.metrics import accuracy, brier, calibration_error, entropy, nll

LABELS = torch.randint(4, (300,), generator=generator(2))
PROBS = torch.softmax(
    2.0 * torch.randn(300, 4, generator=generator(1), dtype=torch.float64)
    + 1.5 * torch.nn.functional.one_hot(LABELS, 4),
    dim=-1,
)


def test_accuracy():
    assert accuracy(PROBS, LABELS) == sk.accuracy_score(LABELS, PROBS.argmax(-1))


def test_nll():
    assert nll(PROBS, LABELS) == pytest.approx(sk.log_loss(LABELS, PROBS.numpy()), rel=1e-12)


def test_nll_of_an_impossible_label_is_finite():
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
    from scipy import stats

    np.testing.assert_allclose(entropy(PROBS).numpy(), stats.entropy(PROBS.numpy(), axis=1), rtol=1e-12)
    assert entropy(torch.tensor([0.0, 1.0])).item() == 0.0
    assert entropy(torch.full((8,), 0.125)).item() == pytest.approx(np.log(8))
    assert entropy(PROBS.reshape(3, 100, 4)).shape == (3, 100)


@pytest.mark.parametrize("metric", [accuracy, nll, brier, calibration_error])
@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (
            torch.tensor([[0.5, float("nan")], [0.5, 0.5]]),
            torch.tensor([0, 1]),
            "The 'probs' of {} must be finite. Got 1 NaN or infinite values, the first at (0, 1), instead. "
            "Impute or drop those rows first.",
        ),
        (
            torch.full((2, 2), 0.5),
            torch.tensor([0, 2]),
            "The 'labels' of {} must be from 0 to 1. Got labels from 0 to 2 instead.",
        ),
        (
            torch.full((2, 2), 0.5),
            torch.tensor([-1, 0]),
            "The 'labels' of {} must be from 0 to 1. Got labels from -1 to 0 instead.",
        ),
        (
            torch.full((2, 2), 0.5),
            torch.tensor([0.7, 1.0]),
            "The 'labels' of {} must be whole numbers. Got torch.float32 instead.",
        ),
        (
            torch.empty(0, 2),
            torch.empty(0, dtype=torch.int64),
            "The 'probs' of {} must be of at least one row. Got an empty batch instead. "
            "Check the filter before.",
        ),
        (
            torch.full((2, 2), 0.5),
            torch.tensor([0, 1, 1]),
            "The 'labels' of {} must be as long as 'probs' (2 rows). Got 3 rows instead. "
            "Every array needs one row per example.",
        ),
        (
            torch.full((2,), 0.5),
            torch.tensor([0, 1]),
            "The 'probs' of {} must be of shape (rows, classes) with a vector of labels. "
            "Got shapes (2,) and (2,) instead.",
        ),
    ],
)
def test_messages(metric, probs, labels, message):
    with pytest.raises(InvalidInput) as error:
        metric(probs, labels)
    assert str(error.value) == message.format(metric.__name__)


@pytest.mark.parametrize("metric", [nll, brier, calibration_error])
@pytest.mark.parametrize(
    ("probs", "expected", "got"),
    [
        (torch.tensor([[2.0, -1.0], [0.0, 0.5]]), "from 0 to 1", "values from -1 to 2"),
        (torch.tensor([[0.5, 0.5], [0.5, 0.52]]), "rows with the sum 1", "a row with the sum 1.02"),
        (torch.tensor([[0.3], [0.6]]), "rows with the sum 1", "a row with the sum 0.3"),
    ],
)
def test_what_is_no_probability_is_refused(metric, probs, expected, got):
    with pytest.raises(InvalidInput) as error:
        metric(probs, torch.tensor([0, 0]))
    assert str(error.value) == (
        f"The 'probs' of {metric.__name__} must be {expected}. Got {got} instead. "
        "Pass probabilities, such as softmax(logits), not logits or log probabilities."
    )


def test_what_counts_is_the_order_for_accuracy_and_precision_may_be_low():
    assert accuracy(torch.tensor([[2.0, -1.0], [0.0, 0.5]]), torch.tensor([0, 1])) == 1.0
    assert nll(PROBS.bfloat16(), LABELS) == pytest.approx(nll(PROBS, LABELS), rel=0.02)
    assert nll([[1, 0], [0, 1]], [0, 1]) == 0.0


@pytest.mark.parametrize("kind", [np.asarray, list])
def test_arrays_and_lists_will_do(kind):
    probs, labels = PROBS[:20], LABELS[:20]
    own = [kind(each) for each in (probs.numpy().tolist(), labels.numpy().tolist())]
    for metric in (accuracy, nll, brier, calibration_error):
        assert metric(*own) == pytest.approx(metric(probs, labels), rel=1e-6)
    np.testing.assert_allclose(entropy(own[0]), entropy(probs), rtol=1e-12)


def test_a_bad_number_of_bins():
    with pytest.raises(InvalidInput) as error:
        calibration_error(PROBS, LABELS, 0)
    assert str(error.value) == (
        "The 'n_bins' of calibration_error must be a whole number of at least 1. Got 0 instead."
    )
