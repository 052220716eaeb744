"""Selection from replicates and mixtures: probabilities, drawn inputs, refusals, credible sets."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.selection import input_inclusion, path_probability, promised_by_one, sample_inputs, select


def network(probs, hidden=None):
    """One layer with these inclusions, or two whose first has them in every row."""
    made = sparsebnn.mlp([len(probs), 1] if hidden is None else [len(probs), hidden, 1])
    first = next(m for m in made.modules() if isinstance(m, sparsebnn.Linear))
    with torch.no_grad():
        first.weights.inclusion_logit.copy_(torch.logit(torch.tensor(probs)).expand_as(first.weights.mean))
    return made


def test_drawn_inputs_have_the_path_probabilities():
    for deep in (network([0.2, 0.6, 0.9]), network([0.2, 0.6, 0.9], hidden=2)):
        exact = path_probability(deep).prob.numpy()
        drawn = sample_inputs(deep, 4000)
        assert np.abs(drawn.mean(0) - exact).max() < 4 * 0.5 / np.sqrt(4000)


def test_a_mixture_draws_by_weight_and_replicates_equally():
    networks = [network([0.999, 0.001]), network([0.001, 0.999])]
    mixed = SimpleNamespace(networks=networks, weights=torch.tensor([0.75, 0.25]))
    assert input_inclusion(mixed).tolist() == pytest.approx([0.7495, 0.2505], abs=1e-4)
    assert input_inclusion(networks).tolist() == pytest.approx([0.5, 0.5], abs=1e-4)
    drawn = sample_inputs(mixed, 1000)
    assert drawn.mean(0) == pytest.approx([0.75, 0.25], abs=0.02)
    # They replace each other: one set of both, though neither is certain.
    x = np.random.default_rng(0).standard_normal((50, 1))
    found = select(mixed, rule="credible_sets", X=np.hstack([x, x + 0.1]), names=["a", "b"])
    assert [one.names for one in found.sets] == [("a", "b")]
    assert found.variables == ("a", "b")


def test_a_copy_that_no_replicate_chose_is_a_member():
    x = np.random.default_rng(0).standard_normal((50, 2))
    chosen = select(network([0.999, 0.0001, 0.001]), rule="credible_sets", X=x[:, [0, 0, 1]])
    (one,) = chosen.sets
    assert one.members == (0, 1)
    assert one.purity == pytest.approx(1.0)
    assert one.coverage >= one.inclusion[0] > 0.99


def test_replicates_that_disagree_are_refused():
    apart = [network([0.999, 0.001, 0.001]), network([0.001, 0.999, 0.001])]
    with pytest.raises(InvalidInput, match="credible sets") as caught:
        select(apart, rule="fdr", level=0.1)
    assert "50% wrong" in str(caught.value)
    assert select(apart, rule="threshold", threshold=0.6).variables == ()
    alike = [network([0.99, 0.01, 0.02]), network([0.98, 0.02, 0.01])]
    assert select(alike, rule="fdr", level=0.1).variables == ("x1",)
    assert promised_by_one([0.985, 0.015], [[0.99, 0.01], [0.98, 0.02]], 0.1) == pytest.approx(0.015)


def test_a_single_network_is_refused_if_its_choice_has_a_stand_in():
    sure = network([0.99, 0.01, 0.98])
    rng = np.random.default_rng(0)
    apart = rng.standard_normal((200, 3))
    near = apart.copy()
    near[:, 1] = -near[:, 0] + 0.3 * near[:, 1]
    assert select(sure, rule="fdr", X=torch.from_numpy(apart)).variables == ("x1", "x3")
    with pytest.raises(InvalidInput, match=r"chooses 'a' but not 'b': they correlate by 0\.9") as caught:
        select(sure, rule="fdr", X=near, names=["a", "b", "c"])
    assert "credible sets" in str(caught.value)
    with pytest.warns(UserWarning, match=r"Pass the rows \(X=\.\.\.\)"):
        assert select(sure, rule="fdr").variables == ("x1", "x3")
    # Inputs that are chosen together are not confused, and nothing chosen is nothing wrong.
    assert select(network([0.99, 0.98, 0.01]), rule="fdr", X=near).variables == ("x1", "x2")
    assert select(network([0.3, 0.2, 0.1]), rule="fdr").variables == ()
    with pytest.raises(InvalidInput, match="'X'"):
        select(sure, rule="fdr", X=apart[:, :2])


def test_replicates_of_a_model_that_disagree_are_warned_of():
    model = SimpleNamespace(inclusion_=np.array([0.55, 0.45, 0.99]), names_=("a", "b", "c"))
    model.replicate_inclusion_ = np.array([[0.99, 0.01, 0.99], [0.11, 0.89, 0.99]])
    with pytest.warns(UserWarning, match="what each chooses is 2.% wrong"):
        assert select(model, rule="fdr", level=0.1).variables == ("c",)
    model.replicate_inclusion_ = np.array([[0.57, 0.43, 0.99], [0.53, 0.47, 0.99]])
    assert select(model, rule="fdr", level=0.1).variables == ("c",)


def test_networks_need_rows_for_sets_and_other_sources_are_refused():
    with pytest.raises(InvalidInput, match="X"):
        select(network([0.9, 0.1]), rule="credible_sets")
    with pytest.raises(InvalidInput, match="sample_inputs"):
        sample_inputs(object())


@torch.no_grad()
def test_dependent_inclusions_are_drawn_together():
    # Opposite signs of the factor: nearly always exactly one of two.
    made = sparsebnn.mlp([2, 1], family="dependent", family_options={"rank": 1})
    family = made[0].weights
    family.inclusion_logit.zero_()
    family.factor.copy_(torch.tensor([[[40.0, -40.0]]]))
    drawn = sample_inputs(made, 400)
    assert (drawn.sum(1) == 1).mean() > 0.9
    assert input_inclusion(made).tolist() == pytest.approx([0.5, 0.5])
    deep = sparsebnn.mlp([2, 3, 1], family="dependent")
    found = path_probability(deep, n_draws=300)
    assert (found.prob - path_probability(deep, n_draws=300, seed=1).prob).abs().max() < 0.2
    assert float(found.error.max()) > 0.0 or bool((found.prob == 1).all())
