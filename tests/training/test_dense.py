"""Gradients written out, against those that PyTorch finds."""

import pytest
import torch

from sparsebnn import mlp
from sparsebnn.likelihoods import Gaussian
from sparsebnn.posteriors.learned_priors import EmpiricalPrior
from sparsebnn.training import Settings, train
from sparsebnn.training.dense import DenseGradients

LEARNED = EmpiricalPrior(0.2, learn_inclusion=True)
CAPPED = EmpiricalPrior(0.2, learn_inclusion=True, learn_std=False, max_inclusion=0.3)
NETWORKS = {
    "a chain": {},
    "input skip": {"input_skip": True},
    "no inclusions": {"family": "gaussian"},
    "a learned prior": {"input_skip": True, "prior": LEARNED},
    "a learned rate": {"prior": CAPPED},
}


def trained(monkeypatch, written_out, network, likelihood, y, varied):
    if not written_out:
        monkeypatch.setattr(DenseGradients, "of", classmethod(lambda cls, objective: None))
    x = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    settings = Settings(epochs=4, batch_size=16, learning_rate=0.02, warmup=0.5)
    run = train(
        network,
        (x, y, weight),
        likelihood=likelihood,
        settings=settings,
        replicates=3,
        per_replicate={"temperature": [1.0, 0.5, 0.1], **varied},
        mode="eager",
        progress=False,
    )
    monkeypatch.undo()
    assert (run._engine._dense is not None) == written_out
    return run


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("likelihood", ["gaussian", "categorical", "bernoulli"])
def test_twenty_steps_are_those_of_automatic_differentiation(kind, likelihood, monkeypatch):
    y = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    y = {"gaussian": y, "categorical": (y * 2).long().clamp(0, 2), "bernoulli": (y > 0).double()}[likelihood]
    network = mlp([6, 8, 5, 3 if likelihood == "categorical" else 1], dtype=torch.float64, **NETWORKS[kind])
    varied = {} if kind == "no inclusions" else {"weights.prior.inclusion_prob": [0.1, 0.2, 0.3]}
    one = trained(monkeypatch, True, network, likelihood, y, varied)
    other = trained(monkeypatch, False, network, likelihood, y, varied)
    for name, values in one.replicates.parameters.items():
        torch.testing.assert_close(values, other.replicates.parameters[name], rtol=0.0, atol=1e-10)
    for mine, its in zip(one.history, other.history):
        assert mine.loss == pytest.approx(its.loss, rel=1e-10)
        assert mine.kl == pytest.approx(its.kl, rel=1e-10)


@pytest.mark.parametrize(
    "network",
    [
        mlp([4, 3, 1], family="flow", family_options={"hidden": (4,)}),
        mlp([4, 3, 1], activation="tanh"),
        mlp([4, 3, 1], sampling="weights"),
        mlp([4, 3, 1], family_options={"group_by": "input"}),
    ],
    ids=["flow", "tanh", "drawn weights", "groups"],
)
def test_other_networks_are_left_to_pytorch(network):
    x, y = torch.randn(20, 4), torch.randn(20)
    run = train(network, (x, y), likelihood=Gaussian(), settings=Settings(epochs=1), replicates=2)
    assert run._engine._dense is None
