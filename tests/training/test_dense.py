"""Gradients written out, against those that PyTorch finds."""

import pytest
import torch
from torch import nn

from sparsebnn import Linear, mlp
from sparsebnn.checks import InvalidInput
from sparsebnn.kernels import training as kernels
from sparsebnn.kernels.compiler import find_compiler
from sparsebnn.likelihoods import (
    Categorical,
    Gaussian,
    NegativeBinomial,
    NoisyCategorical,
    Poisson,
    StudentT,
)
from sparsebnn.posteriors.learned_priors import EmpiricalPrior
from sparsebnn.posteriors.priors import SpikeSlabPrior
from sparsebnn.training import Settings, train
from sparsebnn.training.captured import CapturedDense, MeanField
from sparsebnn.training.captured_flow import Flow
from sparsebnn.training.dense import DenseGradients
from sparsebnn.training.objective import Objective
from training.runs import Halt, Stop

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
        monkeypatch.setattr(DenseGradients, "of", classmethod(lambda *_: None))
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


LIKELIHOODS = {
    "gaussian": ("gaussian", 1, lambda y: y),
    "categorical": ("categorical", 3, lambda y: (y * 2).long().clamp(0, 2)),
    "bernoulli": ("bernoulli", 1, lambda y: (y > 0).double()),
    "counts": (NegativeBinomial(2.0).double(), 1, lambda y: (2 * y).round().abs()),
    "heavy tails": (StudentT().double(), 1, lambda y: y),
    "wrong labels": (NoisyCategorical(3).double(), 3, lambda y: (y * 2).long().clamp(0, 2)),
    "many zeros": (Poisson(2.0, zero_inflated=True).double(), 2, lambda y: (2 * y).round().clamp_min(0)),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(k, n) for k in NETWORKS for n in LIKELIHOODS if k == "a chain" or n in list(LIKELIHOODS)[:3]],
)
def test_twenty_steps_are_those_of_automatic_differentiation(kind, name, monkeypatch):
    likelihood, outputs, targets = LIKELIHOODS[name]
    y = targets(torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))
    network = mlp([6, 8, 5, outputs], dtype=torch.float64, **NETWORKS[kind])
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


# -- by compiled loops ------------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler was found")


def in_mode(mode, kind="input skip", replicates=3, epochs=12, **more):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 6, generator=generator)
    y = x[:, :2].sum(1) + 0.1 * torch.randn(50, generator=generator)
    network = mlp([6, 8, 5, 1], **NETWORKS[kind])
    settings = Settings(epochs=epochs, batch_size=16, learning_rate=0.01, warmup=0.5)
    options = {"likelihood": "gaussian", "settings": settings, "progress": False, **more}
    return train(network, (x, y), replicates=replicates, mode=mode, **options)


@needs_compiler
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("replicates", [1, 3])
def test_fused_steps_are_the_eager_ones(kind, replicates):
    varied = {"temperature": [1.0, 0.3, 0.1], "learning_rate": [0.01, 0.02, 0.005]}
    more = {"per_replicate": varied} if replicates == 3 else {}
    fused, eager = (in_mode(mode, kind, replicates, **more) for mode in ("fused", "eager"))
    assert (fused.mode, eager.mode) == ("fused", "eager")
    for mine, its in zip(fused.history, eager.history):
        assert mine.loss == pytest.approx(its.loss, rel=1e-5)
        assert mine.kl == pytest.approx(its.kl, rel=1e-5)
    for name, values in fused.replicates.parameters.items():
        torch.testing.assert_close(values, eager.replicates.parameters[name], rtol=0.0, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("replicates", [2, 3])
def test_priors_of_the_inputs_are_not_those_of_the_replicates(replicates):
    """Three inputs, each with its own prior, and as many replicates."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 3, generator=generator), torch.randint(2, (40,), generator=generator)
    prior = SpikeSlabPrior(0.3, std=torch.tensor([0.01, 1.0, 100.0]))
    network = nn.Sequential(Linear(3, 5, prior=prior), nn.ReLU(), Linear(5, 2))
    given = {"replicates": replicates, "settings": Settings(epochs=2, batch_size=20), "progress": False}
    run = train(network, (x, y), device="cpu", **given)
    eager = train(network, (x, y), device="cpu", mode="eager", **given)
    assert run.mode == "eager"
    assert run.history[-1].kl == eager.history[-1].kl
    alone = train(network, (x, y), device="cpu", **{**given, "replicates": 1})
    assert run.history[-1].kl[0] == pytest.approx(alone.history[-1].kl[0], rel=1e-6)


@needs_compiler
def test_fused_is_what_auto_takes_and_a_resumed_run_is_the_same(tmp_path):
    whole = in_mode("auto", epochs=6)
    assert whole.mode == "fused"
    given = {"folder": tmp_path, "checkpoint_seconds": 0.0}
    with pytest.raises(Halt):
        in_mode("auto", epochs=6, callbacks=[Stop(9)], **given)
    resumed = in_mode("auto", epochs=6, resume=True, **given)
    assert resumed.mode == "fused"
    for name, values in whole.replicates.parameters.items():
        assert torch.equal(values, resumed.replicates.parameters[name])


@needs_compiler
def test_a_fused_run_that_is_resumed_without_a_compiler_says_so(tmp_path, monkeypatch, caplog):
    given = {"folder": tmp_path, "checkpoint_seconds": 0.0}
    with pytest.raises(Halt):
        in_mode("auto", epochs=6, callbacks=[Stop(9)], **given)
    monkeypatch.setattr(kernels, "available", lambda: False)
    with caplog.at_level("WARNING", "sparsebnn"):
        resumed = in_mode("auto", epochs=6, resume=True, **given)
    assert resumed.mode == "eager"
    assert "interrupted in mode='fused'" in caplog.text


@needs_compiler
def test_a_replicate_that_is_not_finite_stops_alone_and_names_its_gradient():
    run = in_mode("fused", per_replicate={"learning_rate": [0.01, 1e30, 0.01]})
    assert [stop.replicate for stop in run.stopped] == [1]
    alone = in_mode("fused", replicates=[0])
    for name, values in alone.replicates.parameters.items():
        torch.testing.assert_close(run.replicates.parameters[name][0], values[0], rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("kind", ["another precision", "no compiler", "another activation"])
def test_fused_is_refused_where_it_cannot_be(kind, monkeypatch):
    network = mlp([4, 3, 1], activation="tanh" if kind == "another activation" else "relu")
    x = torch.randn(20, 4)
    if kind == "another precision":
        network, x = network.double(), x.double()
    if kind == "no compiler":
        monkeypatch.setattr(kernels, "available", lambda: False)
    given = {"likelihood": Gaussian(), "settings": Settings(epochs=1), "progress": False}
    reason = "no C compiler" if kind == "no compiler" else "another network"
    with pytest.raises(InvalidInput, match=f"'mode' of train .* with {reason}"):
        train(network, (x, x[:, 0]), mode="fused", **given)
    assert train(network, (x, x[:, 0]), **given).mode == "eager"


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({}, [MeanField, MeanField]),
        ({"family": "gaussian"}, [MeanField, MeanField]),
        ({"family": "flow"}, [Flow, Flow]),
        ({"family": "mnf", "input_skip": True}, [Flow, Flow]),
        ({"family": "flow", "family_options": {"hidden": (8,)}}, None),  # too small to be folded
        ({"family": "flow", "family_options": {"kind": "coupling"}}, None),
        ({"family": "flow", "family_options": {"auxiliary": "drawn"}}, None),
        ({"family": "flow", "family_options": {"squash": "tanh"}}, None),
        ({"family": "flow", "family_options": {"z_per": "example"}}, None),
        ({"family": "flow", "family_options": {"length": 0}}, None),
        ({"family": "flow", "family_options": {"group_by": "input"}}, None),
        ({"family": "concrete"}, None),
        ({"activation": "tanh"}, None),
    ],
    ids=str,
)
def test_kernels_of_captured_steps_take_the_networks_that_they_know(options, kinds):
    objective = Objective(mlp([20, 12, 3], **options), Categorical(3), 100)
    found = CapturedDense.of(objective)
    assert (None if found is None else [type(each) for each in found.weights]) == kinds
