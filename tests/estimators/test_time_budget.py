"""A fit in a given time: what is planned, what is done, and what is said about it."""

import dataclasses
import time

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes

from sparsebnn import SparseBNNClassifier, SparseBNNRegressor
from sparsebnn.estimators import early_stopping, load
from sparsebnn.estimators.early_stopping import LEAST_EFFORT, Budget, Pace
from sparsebnn.estimators.plan import planned

FITTED = "the time budget allowed no more"


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(early_stopping, "time", made)
    return made


@pytest.fixture
def own_time(monkeypatch):
    """Seconds are those this process works: what else the machine does makes no difference."""
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, time.process_time)


def plan_of(rows, **given):
    return planned({**SparseBNNClassifier().get_params(), **given}, rows, "classification", "test")


# -- what fits in -------------------------------------------------------------------------------------


def test_a_plan_that_fits_stays_as_it_is(clock):
    plan = plan_of(500)
    assert Budget(100.0).shortened(plan, 500, Pace(0.01, 0.0, 0.1), plan_of) is plan


def test_fewer_epochs_where_not_all_fit(clock):
    """Of 10 s, 1 gone before and 2 for what follows, nine tenths of 7 are for steps of 0.1 s, 4 an epoch."""
    plan, budget = plan_of(500), Budget(10.0)
    clock.now += 1.0
    short = budget.shortened(plan, 500, Pace(0.1, 0.0, 1.0), plan_of)
    assert short == dataclasses.replace(plan.with_settings(epochs=15), full_epochs=200, most_epochs=None)
    assert (short.planned_epochs, plan.planned_epochs) == (200, 200)
    # 800 steps, the second gone, and all of what follows.
    assert budget.needed(plan, 500, Pace(0.1, 0.0, 1.0)) == pytest.approx(1.0 + 80.0 / 0.9 + 20.0)


def test_fewer_rows_where_not_even_a_few_epochs_fit(clock):
    """72 steps of 1024 rows: ten epochs of seven batches."""
    plan = plan_of(200_000)
    short = Budget(10.0).shortened(plan, 200_000, Pace(0.1, 0.0, 1.0), plan_of)
    assert (short.train_rows, short.settings.epochs, short.settings.batch_size) == (7168, 10, 1024)
    assert short.full_epochs == plan.settings.epochs == 21
    assert short.settings.warmup == plan_of(7168).settings.warmup > plan.settings.warmup


@pytest.mark.parametrize(("density", "least"), [(None, 1), (0.1, 4)])
@pytest.mark.parametrize("rows", [300, 5000])
def test_there_is_always_something_to_train(density, least, rows, clock):
    budget = Budget(1.0)
    clock.now += 2.0
    short = budget.shortened(plan_of(rows, target_density=density), rows, Pace(0.1, 0.0, 1.0), plan_of)
    assert short.settings.epochs == least
    assert short.train_rows == (None if rows == 300 else 1000)
    assert budget.effort(Pace(0.1, 0.0, 1.0)) == LEAST_EFFORT


def test_what_follows_the_training_has_the_time_that_is_left(clock):
    """At most 20 times what the rehearsal with a twentieth of the work took."""
    budget, pace = Budget(10.0), Pace(0.1, 0.0, 0.5)
    assert budget.after(pace) == 2.0
    assert budget.after(Pace(0.1, 0.0, 0.01)) == pytest.approx(0.2)
    assert budget.after(Pace(0.1, 0.0, 4.5)) == pytest.approx(5.0)
    assert budget.effort(pace) == pytest.approx(0.9)
    clock.now += 8.0
    assert budget.effort(pace) == pytest.approx(0.18)


# -- fits ---------------------------------------------------------------------------------------------


def test_a_budget_is_kept_and_what_it_left_out_is_said(own_time, tmp_path):
    x, y = load_breast_cancer(return_X_y=True)
    model = SparseBNNClassifier(random_state=0, time_budget=2.0, epochs=2400)
    began = time.process_time()
    with pytest.warns(UserWarning, match="of 2400 planned epochs.*raise time_budget"):
        model.fit(x, y)
    # Everything counts: training, calibration, columns and effects.
    assert time.process_time() - began <= 1.2 * 2.0
    assert model.planned_epochs_ == 2400
    assert 5 < model.n_epochs_ < 600  # the warning is for less than a quarter
    assert model.stopped_because_ in (FITTED, "the time budget is spent")
    said = f"The time budget of 2 s allowed {model.n_epochs_} of 2400 planned epochs; the whole training"
    epochs, effort = model.notes_[-2:]
    assert epochs.startswith(said)
    assert effort.startswith("The time budget of 2 s left ")
    assert f"{model.n_epochs_} of 2400 epochs" in model.summary()
    # The schedule ends where the training ends.
    settings = model.plan_.settings
    assert settings.rate("", settings.epochs - 1) < 0.1 * settings.learning_rate
    assert model.score(x, y) > 0.9
    again = load(model.save(tmp_path / "m.safetensors"))
    assert (again.planned_epochs_, again.n_epochs_) == (2400, model.n_epochs_)
    assert again.notes_ == model.notes_
    assert again.summary() == model.summary()


def test_a_budget_for_all_epochs_changes_nothing_but_the_clock(own_time):
    x, y = load_diabetes(return_X_y=True)
    quick = {"epochs": 4, "replicates": 2, "hidden": (5,), "random_state": 0}
    plain, timed = (SparseBNNRegressor(**quick, time_budget=t).fit(x, y) for t in (None, 60.0))
    np.testing.assert_array_equal(plain.predict(x), timed.predict(x))
    np.testing.assert_array_equal(plain.gain_, timed.gain_)
    np.testing.assert_array_equal(plain.effects_.value, timed.effects_.value)
    assert timed.stopped_because_ == plain.stopped_because_ == "all epochs are done"
    assert timed.planned_epochs_ == timed.n_epochs_ == 4
    assert timed.notes_ == plain.notes_ == []


@pytest.mark.filterwarnings("ignore:The fit took")  # on a busy machine
def test_rows_that_are_not_trained_on_are_said_and_judge_the_columns():
    rng = np.random.RandomState(0)
    x = rng.randn(3000, 4)
    y = 3.0 * x[:, 0] + rng.randn(3000)
    model = SparseBNNRegressor(random_state=0, time_budget=0.05, replicates=2)
    with pytest.warns(UserWarning, match=r"on \d+ of 3000 rows") as told:
        model.fit(x, y)
    rows = model.plan_.train_rows  # as many as this machine can do in the time
    assert f"on {rows} of 3000 rows" in str(told[0].message)
    assert len(model._kept_rows) == rows < 3000
    assert model.n_rows_ == 3000
    assert f"on {rows} rows" in model.summary()


def test_a_budget_that_no_fit_keeps_is_said():
    x, y = load_diabetes(return_X_y=True)
    with pytest.warns(UserWarning, match="time budget") as told:
        model = SparseBNNRegressor(random_state=0, time_budget=1e-3, replicates=1).fit(x, y)
    said = [str(each.message) for each in told]
    assert [each.split(",")[0].split(" allowed")[0] for each in said] == [
        "The time budget of 0.001 s",
        f"The fit took {said[1].split()[3]} s",
    ]
    assert [model.notes_[0], model.notes_[-1]] == said
    assert "left 5% of the work after training" in model.notes_[1]
    assert {each.filename for each in told} == {__file__}
