"""early_stopping.py: training ends when the objective no longer falls, whatever the number of rows."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor, early_stopping
from sparsebnn.estimators.early_stopping import StopTraining
from sparsebnn.estimators.plan import planned
from sparsebnn.training import Epoch, Settings


def ended(objective, sets=1, last=200, rows=100, per_epoch=10, decay=20):
    """The epochs of release and end, if ``objective(epoch)`` gives the nats of every replicate."""
    plateau = early_stopping.Plateau(decay)
    callback = early_stopping.Convergence(plateau, [1.0] * 2 * sets, 2)
    run = SimpleNamespace(
        settings=Settings(epochs=last, warmup=0.1), batches=SimpleNamespace(rows=rows, per_epoch=per_epoch)
    )
    for number in range(last):
        loss = objective(number)
        try:
            callback.on_epoch_end(run, Epoch(number, loss, loss, [0.0] * len(loss), [0.1] * len(loss), 0.0))
        except StopTraining:
            return plateau.released[0], number + 1
    return plateau.released[0], last


def test_a_flat_objective_ends_after_the_warm_up_two_windows_and_the_decay():
    # 200 steps are 20 epochs; the warm-up takes 20.
    assert ended(lambda epoch: [5.0, 6.0]) == (60, 80)


def test_the_rate_is_held_while_the_objective_falls():
    # 0.03 nats per row and window until epoch 100: a look every 10 epochs, the first quiet enough at 120,
    # where the windows of epochs 80–100 and 100–120 differ by half of it, 0.015, and the next at 130.
    released, end = ended(lambda epoch: [100.0 - 0.15 * min(epoch, 100)] * 2)
    assert (released, end) == (130, 150)


def test_every_set_of_replicates_must_have_converged():
    falling = lambda epoch: [5.0, 5.0, 100.0 - 0.2 * epoch, 100.0 - 0.2 * epoch]  # noqa: E731
    assert ended(falling, sets=2) == (180, 200)


def test_a_replicate_that_stopped_does_not_count():
    assert ended(lambda epoch: [5.0, float("nan")]) == (60, 80)


def test_fits_converge_and_say_so():
    random = np.random.RandomState(0)
    x = random.randn(120, 3)
    model = SparseBNNRegressor(random_state=0, replicates=2).fit(x, x[:, 0])
    assert model.stopped_because_ == early_stopping.CONVERGED
    assert model.n_epochs_ == len(model.history_) < model.plan_.most_epochs
    assert "until it converged" in model.summary()
    fixed = SparseBNNRegressor(random_state=0, replicates=2, epochs=3).fit(x, x[:, 0])
    assert (fixed.n_epochs_, fixed.plan_.most_epochs) == (3, None)


def test_a_training_that_does_not_converge_is_noted(monkeypatch):
    monkeypatch.setattr(early_stopping, "_TOLERANCE", -1e9)
    monkeypatch.setattr("sparsebnn.estimators.plan._STEPS", {"classification": 20, "regression": 20})
    x = np.random.RandomState(0).randn(100, 2)
    model = SparseBNNRegressor(random_state=0, replicates=2).fit(x, x[:, 0])
    assert model.n_epochs_ == model.plan_.most_epochs
    assert any("had not converged" in note for note in model.notes_)


@pytest.mark.parametrize(
    "option", [{"early_stopping": True}, {"target_density": 0.1}, {"family": "gaussian"}]
)
def test_fixed_lengths_stay_fixed(option):
    given = {**SparseBNNClassifier().get_params(), **option}
    assert planned(given, 5000, "classification", "SparseBNNClassifier").most_epochs is None


@pytest.mark.parametrize(("rows", "converges"), [(1999, False), (2000, True)])
def test_small_classifications_train_for_a_fixed_number_of_steps(rows, converges):
    plan = planned(SparseBNNClassifier().get_params(), rows, "classification", "SparseBNNClassifier")
    assert (plan.most_epochs is not None) == converges


def test_large_tables_train_for_the_planned_epochs_at_most():
    plan = planned(SparseBNNRegressor().get_params(), 2000, "regression", "SparseBNNRegressor")
    assert plan.within_reason(2000, 5) == plan
    assert plan.most_epochs == 4 * plan.settings.epochs
    large = plan.within_reason(2000, 3000)
    assert large.most_epochs == plan.settings.epochs


def test_the_decay_starts_at_the_full_rate():
    plateau = early_stopping.Plateau(decay=10)
    assert plateau.factor(7, 100) == 1.0
    plateau.released.append(5)
    factors = torch.tensor([plateau.factor(epoch, 100) for epoch in range(5, 16)])
    assert factors[0] == 1.0
    assert factors[-1] == plateau.last
    assert (factors.diff() < 0).all()
