"""A target density: reached by every family and in every way that training ends."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from estimators.quick import QUICK, two_classes
from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor, early_stopping, load, training
from sparsebnn.nn.description import prior_values


@pytest.mark.parametrize("asked", [0.02, pytest.param(0.1, marks=pytest.mark.slow)])
def test_a_target_density_is_reached(asked):
    x, y = load_breast_cancer(return_X_y=True)
    held = np.arange(len(x)) % 5 == 0
    model = SparseBNNClassifier(random_state=0, target_density=asked).fit(x[~held], y[~held])
    assert model.density_ == pytest.approx(asked, rel=0.1)
    assert model.score(x[held], y[held]) > 0.93
    assert model.stopped_because_ == "all epochs are done"
    assert model.notes_ == []
    assert "as given: slab std 1, inclusion 0.1" in model.summary()


@pytest.mark.filterwarnings("ignore:The time budget", "ignore:The fit took")
@pytest.mark.parametrize(
    "more",
    [
        {"family": "flow"},
        {"family": "lbbnn"},
        {"early_stopping": True, "patience": 1},
        {"time_budget": 0.5},
        {"temperature": 5.0},
    ],
)
def test_a_target_density_is_reached_in_every_way(more, tmp_path):
    x, y = two_classes()
    settings = {**QUICK, "hidden": (20,), "n_draws": 4}
    model = SparseBNNClassifier(**settings, target_density=0.1, **more).fit(x, y)
    assert model.density_ == pytest.approx(0.1, rel=0.1)
    again = load(model.save(tmp_path / "m.safetensors"))
    assert again.plan_ == model.plan_
    assert (again.predict_proba(x) == model.predict_proba(x)).all()


def test_training_cut_short_has_its_density_all_the_same(monkeypatch):
    class Now(early_stopping.TimeBudget):
        def on_epoch_end(self, run, epoch):
            if epoch.epoch == 4:
                raise early_stopping.StopTraining(run, "the time budget is spent")

    monkeypatch.setattr(training, "TimeBudget", Now)
    model = SparseBNNClassifier(**{**QUICK, "hidden": (20,)}, target_density=0.1, time_budget=60.0)
    with pytest.warns(
        UserWarning, match=f"The time budget of 60 s allowed 5 of {QUICK['epochs']} planned epochs"
    ):
        model.fit(*two_classes())
    assert model.n_epochs_ == 5
    assert model.density_ == pytest.approx(0.1)
    assert model.stopped_because_ == "the time budget is spent"
    assert "before the refit" in model.notes_[0]


def test_a_density_that_a_small_network_cannot_have_is_noted():
    model = SparseBNNClassifier(**QUICK, target_density=0.01)
    with pytest.warns(UserWarning, match="The density is 0.025, not 0.01: the network has 40 weights."):
        model.fit(*two_classes())
    assert model.notes_ == ["The density is 0.025, not 0.01: the network has 40 weights."]


def test_early_stopping_does_not_end_on_the_way_down():
    """The validation ELBO falls while weights are taken away; what it watches is the refit."""
    settings = {**QUICK, "hidden": (20,)}
    model = SparseBNNClassifier(**settings, target_density=0.02, early_stopping=True, patience=1)
    model.fit(*two_classes())
    assert model.n_epochs_ > model.plan_.settings.refit_from
    assert model.density_ == pytest.approx(0.02)


def test_columns_pay_by_the_prior_that_was_stated():
    x = np.random.RandomState(0).randn(150, 4)
    y = x[:, 0] - x[:, 1] + 0.3 * np.random.RandomState(1).randn(150)
    model = SparseBNNRegressor(
        random_state=0, epochs=100, replicates=2, hidden=(10,), target_density=0.2
    ).fit(x, y)
    for network in model.networks_:
        assert [value.inclusion_prob for value in prior_values(network)] == pytest.approx([0.1, 0.1])
    assert list(model.selected_features_) == ["x0", "x1"]
