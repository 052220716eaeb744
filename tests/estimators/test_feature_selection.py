"""The worth of columns, compared with whole networks, and false discoveries among noise columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor, feature_selection
from sparsebnn.estimators.feature_selection import _Evaluator, _mean_and_p, worth
from sparsebnn.likelihoods import Bernoulli
from sparsebnn.nn.layers import Linear
from sparsebnn.nn.networks import mlp
from sparsebnn.nn.passes import LocalPass, noise_size
from sparsebnn.random.noise import NoiseBuffer

FAMILIES = ["spike_slab", "concrete", "gaussian", "flow", "input-skip"]


def network(family: str, inputs: int = 5, seed: int = 0):
    torch.manual_seed(seed)
    options = {"hidden": (8, 8)} if family == "flow" else None
    skip = family == "input-skip"
    sizes = [inputs, 6, 4, 1] if skip else [inputs, 6, 1]
    family = "spike_slab" if skip else family
    made = mlp(sizes, family=family, family_options=options, input_skip=skip)
    with torch.no_grad():
        for module in made.modules():
            if isinstance(module, Linear) and module.family != "gaussian":
                getattr(module.weights, "conditional", module.weights).inclusion_logit.normal_(0.0, 2.0)
    return made


def data(rows: int, inputs: int = 5, seed: int = 0):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=random)
    return x, (torch.rand(rows, generator=random) < 0.5).float(), torch.ones(rows)


def plain_nll(made, x, y):
    """The whole network at zero noise."""
    own = made.double()
    size = noise_size(own, x, LocalPass)
    zeros = [torch.zeros(n, dtype=torch.float64) for n in (size.normal, size.logistic)]
    with LocalPass(NoiseBuffer(*zeros)), torch.no_grad():
        return Bernoulli().nll(own(x), y)


@pytest.mark.parametrize("family", FAMILIES)
def test_changed_columns_are_those_of_the_whole_network(family):
    made, (x, y, weight) = network(family), data(40)
    asker = _Evaluator(made, Bernoulli(), (x, y, weight), torch.arange(40), 1.0, 0)
    new = x.double().clone()
    new[:, [1, 3]] = torch.randn(40, 2, dtype=torch.float64)
    found = asker._changed(torch.tensor([1, 3]), new[:, [1, 3]])
    torch.testing.assert_close(asker.with_it, plain_nll(made, x.double(), y.double()), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found, plain_nll(made, new, y.double()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("together", [1, 100, 4096])
def test_shuffles_in_one_pass_are_shuffles_one_by_one(family, together, monkeypatch):
    monkeypatch.setattr(feature_selection, "_ROWS_TOGETHER", together)
    made, rows = network(family), data(40)
    columns = [torch.tensor([1, 3]), torch.tensor([0])]
    ours, other = (_Evaluator(made, Bernoulli(), rows, torch.arange(40), 1.3, 0) for _ in range(2))
    for inputs in columns:
        lost, totals = ours.shuffled(inputs)
        orders = [torch.randperm(40, generator=other.random) for _ in range(other.shuffles)]
        each = [other._changed(inputs, other.x[:, inputs][order]) - other.with_it for order in orders]
        expected = torch.stack(each)
        torch.testing.assert_close(lost, expected.mean(0), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(totals, (expected * other.weight).sum(1), rtol=1e-10, atol=1e-10)


def test_little_effort_asks_fewer_networks_and_shuffles_less(monkeypatch):
    asked = []

    class Counted(_Evaluator):
        def shuffled(self, inputs):
            asked.append(self.shuffles)
            return super().shuffled(inputs)

    monkeypatch.setattr(feature_selection, "_Evaluator", Counted)
    networks, forms = [network("gaussian", seed=k) for k in range(4)], [Bernoulli()] * 4
    unseen = [torch.arange(k, 200, 4) for k in range(4)]
    calls = {}
    for effort in (1.0, 0.5, 0.25, 0.05):
        asked.clear()
        found = worth(networks, forms, data(200), unseen, np.arange(5), 5, effort=effort)
        assert found.used.shape == (5,)
        calls[effort] = (len(asked), set(asked))
    assert calls == {1.0: (20, {20}), 0.5: (20, {10}), 0.25: (20, {5}), 0.05: (5, {5})}


@pytest.mark.parametrize("family", ["spike_slab", "concrete", "gaussian"])
def test_the_columns_prices_add_up_to_the_layers_divergence(family):
    made = network(family)
    asker = _Evaluator(made, Bernoulli(), data(30), None, 1.0, 0)
    total = sum(asker.price(torch.tensor([j])) for j in range(5))
    assert total == pytest.approx(float(made.double()[0].weights.closed_form_kl().detach()), rel=1e-10)


# (A standard error over rows, which few shuffles leave, is too small where a few of them decide.)
@pytest.mark.parametrize(("rare", "effort"), [(False, 1), (False, 1000), (True, 1000)])
def test_columns_that_do_not_matter_are_rarely_found(rare, effort):
    """A network that uses every column, targets that depend on none: p-values are no smaller than uniform."""
    inputs, found = 60, []
    for seed in range(5):
        made, rows = network("gaussian", inputs, seed), data(300, inputs, seed)
        if rare:
            y = (torch.rand(300, generator=torch.Generator().manual_seed(seed)) < 0.05).float()
            # The rare class as heavy as the other.
            rows = (rows[0], y, torch.where(y > 0, 19.0, 1.0))
        asker = _Evaluator(made, Bernoulli(), rows, torch.arange(300), 1.0, seed, effort)
        for j in range(inputs):
            lost, totals = asker.shuffled(torch.tensor([j]))
            found.append(_mean_and_p(lost, rows[2].double(), totals)[1])
    for level in (0.1, 0.01):
        share = float(np.mean(np.array(found) < level))
        assert share < level + 4.0 * np.sqrt(level * (1 - level) / len(found))


def test_a_column_that_matters_is_told_by_its_shuffles():
    """Against the share of many shuffles that lose as little as the rows as they are."""
    made, rows = network("gaussian", 5), data(200)
    asker = _Evaluator(made, Bernoulli(), rows, torch.arange(200), 1.0, 0)
    for j in range(5):
        lost, totals = asker.shuffled(torch.tensor([j]))
        assert float(lost.sum()) == pytest.approx(float(totals.mean()))
        p = _mean_and_p(lost, rows[2].double(), totals)[1]
        asker.shuffles = 4000
        many = asker.shuffled(torch.tensor([j]))[1]
        asker.shuffles = len(totals)
        exact = (1.0 + float((many <= 0.0).sum())) / 4001.0
        assert abs(norm.isf(p) - norm.isf(exact)) < 1.2


def test_weights_count_as_equal_rows():
    lost = torch.tensor([0.3, -0.1, 0.2, 0.5], dtype=torch.float64)
    doubled = torch.cat([lost, lost[:1]])
    weight = torch.tensor([2.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    mean, _ = _mean_and_p(lost, weight, torch.ones(1, dtype=torch.float64))
    assert mean == pytest.approx(float(doubled.mean()))


def test_inputs_of_one_column_are_judged_together():
    made, rows = network("spike_slab"), data(60)
    column_of = np.array([0, 0, 2, 2, 2])
    found = worth([made], [Bernoulli()], rows, [torch.arange(60)], column_of, 4)
    assert found.gain.shape == (4,)
    assert found.gain[1] == found.gain[3] == 0.0
    assert not found.used[[1, 3]].any()
    again = worth([made], [Bernoulli()], rows, [torch.arange(60)], column_of, 4)
    assert (again.gain == found.gain).all()


@pytest.mark.parametrize("kind", [SparseBNNClassifier, SparseBNNRegressor])
def test_real_columns_are_chosen_and_noise_is_not(kind, tmp_path):
    random = np.random.RandomState(1)
    x = random.randn(300, 12)
    signal = 2.0 * x[:, 2] - 1.5 * x[:, 7] + 0.3 * random.randn(300)
    model = kind(epochs=60).fit(x, signal if kind is SparseBNNRegressor else signal > 0.0)
    chosen = set(model.selected_features_)
    assert {"x2", "x7"} <= chosen
    assert len(chosen) <= 3
    assert model.gain_[[2, 7]].min() > 4.0 * np.delete(model.gain_, [2, 7]).max()
    path = model.save(tmp_path / "model.safetensors")
    loaded = kind.load(path)
    assert (loaded.used_ == model.used_).all()
    assert (loaded.gain_ == model.gain_).all()
    assert list(loaded.selected_features_) == list(model.selected_features_)


def test_held_out_rows_of_early_stopping_are_asked(monkeypatch):
    asked = {}

    def spy(networks, forms, rows, unseen, *others):
        asked["unseen"] = unseen
        return worth(networks, forms, rows, unseen, *others)

    monkeypatch.setattr(feature_selection, "worth", spy)
    x = np.random.RandomState(0).randn(100, 3)
    options = {"epochs": 5, "replicates": 2, "early_stopping": True, "validation_fraction": 0.3}
    SparseBNNClassifier(**options).fit(x, x[:, 0] > 0)
    rows = torch.cat(asked["unseen"])
    assert len(rows) == 30
    assert len(set(rows.tolist())) == 30


@pytest.mark.parametrize(("rows", "left_out"), [(20, False), (100, True)])
def test_regression_leaves_a_fifth_of_the_rows_out_when_it_can_spare_them(rows, left_out, monkeypatch):
    asked = {}

    def spy(networks, forms, data, unseen, *others):
        asked["unseen"] = unseen
        return worth(networks, forms, data, unseen, *others)

    monkeypatch.setattr(feature_selection, "worth", spy)
    x = np.random.RandomState(0).randn(rows, 3)
    model = SparseBNNRegressor(random_state=0, epochs=3).fit(x, x[:, 0])
    assert (asked["unseen"] is not None) == left_out
    if left_out:
        assert [len(each) for each in asked["unseen"]] == [rows // 5] * len(model.networks_)
    assert (model.logit_scale_ != 1.0) == left_out
