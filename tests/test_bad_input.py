"""What users pass by mistake gets a message that names it; what is merely unusual works."""

import math

import numpy as np
import pytest
import torch

from sparsebnn import Linear, Settings, metrics, mlp, predict, train
from sparsebnn.checks import InvalidInput, check_seed
from sparsebnn.estimators import SparseBNNClassifier
from sparsebnn.inference.prediction import predict_all
from sparsebnn.init import He, Normal, Uniform
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.networks import initialize
from sparsebnn.posteriors.learned_priors import EmpiricalPrior
from sparsebnn.posteriors.priors import GaussianPrior, SpikeSlabPrior
from sparsebnn.selection import agreement, expected_fdr, input_inclusion, select
from sparsebnn.training import Cosine, Steps

ONCE = Settings(epochs=1)
X = np.random.RandomState(0).standard_normal((20, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


def fit(x=X, y=Y, settings=ONCE, **options):
    return train(mlp([4, 2]), (x, y), settings=settings, progress=False, **options)


def weights(run):
    return torch.cat([p.flatten() for p in run.network.parameters()])


def vary(name):
    return lambda bad: fit(replicates=2, per_replicate={name: [0.5, bad]})


# --- arrays -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view", [lambda a: a[::-1].copy()[::-1], lambda a: a.astype(a.dtype.newbyteorder(">"))]
)
def test_arrays_of_any_stride_and_byte_order_are_read(view):
    """Reversed views and foreign byte orders give the numbers they hold."""
    x, y = view(X), view(Y)
    assert torch.equal(weights(fit(x, y)), weights(fit()))
    network = fit().network
    ours, plain = (predict(network, each, Categorical(2), 5).probs for each in (x, X))
    assert torch.equal(ours, plain)


def test_reversed_arrays_in_every_place():
    flipped = np.array([0.4, 0.3, 0.2, 0.1])[::-1]
    assert Linear(4, 2, prior=SpikeSlabPrior(flipped)).weights.prior.inclusion_prob[0] == pytest.approx(0.1)
    fit(replicates=4, per_replicate={"temperature": flipped, "prior.inclusion_prob": flipped})
    probs, labels = np.array([[0.2, 0.8], [0.6, 0.4]])[::-1], np.array([1, 0])[::-1]
    assert metrics.accuracy(probs, labels) == 1.0
    assert metrics.auroc(flipped, flipped) == 0.5
    assert metrics.entropy(probs).shape == (2,)
    assert metrics.entropy_parts(probs[None]).total.shape == (2,)
    assert len(metrics.rejection_curve(probs, labels, flipped[:2])[0]) == 2
    assert expected_fdr(flipped, np.array([True, False, False, False])[::-1]) == pytest.approx(0.6)
    assert agreement(np.eye(2)[::-1]).replicates == 2


@pytest.mark.parametrize(
    "layout", [torch.Tensor.to_sparse, lambda x: torch.nested.nested_tensor([x[:5], x[5:]])]
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_layouts_other_than_dense_are_named(layout):
    x = layout(torch.from_numpy(X))
    with pytest.raises(InvalidInput, match="The 'x' of train must be a dense tensor"):
        fit(x)
    with pytest.raises(InvalidInput, match="The 'x' of predict must be a dense tensor"):
        predict(mlp([4, 2]), x, Categorical(2), 2)
    with pytest.raises(InvalidInput, match="The 'y' of train must be a dense tensor"):
        fit(y=torch.from_numpy(Y).to_sparse())
    with pytest.raises(InvalidInput, match="The 'std' of GaussianPrior must be a dense tensor"):
        GaussianPrior(std=torch.ones(3).to_sparse())


# --- seeds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [2**63, 2**64, -(2**63) - 1, 1.5, "1", None, True])
@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("seed", lambda seed: fit(seed=seed)),
        ("replicates", lambda seed: fit(replicates=[seed])),
        ("seed", lambda seed: predict(mlp([4, 2]), X, Categorical(2), 2, seed=seed)),
        ("seed", lambda seed: predict_all([mlp([4, 2])], X, Categorical(2), 2, seed=seed)),
        ("seed", lambda seed: initialize(mlp([4, 2]), seed)),
        ("seed", lambda seed: select(mlp([4, 2]), seed=seed)),
        ("seed", lambda seed: input_inclusion(mlp([4, 2]), seed=seed)),
        (
            "flow_seed",
            lambda seed: Linear(4, 2, family="flow", family_options={"flow_seed": seed, "hidden": (4,)}),
        ),
    ],
)
def test_seeds_that_no_generator_takes_are_named(what, call, seed):
    with pytest.raises(InvalidInput, match=f"The '{what}' of .* must be a whole number"):
        call(seed)


def test_seeds_at_the_limits():
    for seed in (-(2**63), -1, 2**63 - 1):
        assert len(fit(seed=seed).history) == 1
        predict(mlp([4, 2]), X, Categorical(2), 2, seed=seed)
    with pytest.raises(InvalidInput, match="The 'seed' of the last replicate"):
        fit(seed=2**63 - 1, replicates=2)
    assert check_seed(np.uint8(3), "seed", "f") == check_seed(torch.tensor(3), "seed", "f") == 3


# --- numbers that are not finite --------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize(
    ("what", "build"),
    [
        ("learning_rate", lambda bad: Settings(learning_rate=bad)),
        ("mean", lambda bad: Settings(learning_rates={"mean": bad})),
        ("temperature", lambda bad: Settings(temperature=bad)),
        (
            "refit_temperature_factor",
            lambda bad: Settings(refit=0.2, refit_temperature_factor=bad),
        ),
        ("factor_each", lambda bad: Steps((1,), bad)),
        ("milestones", lambda bad: Steps((bad,))),
        ("last", Cosine),
        ("std", lambda bad: Normal(0.0, bad)),
        ("mean", lambda bad: Normal(bad, 1.0)),
        ("low", lambda bad: Uniform(bad, 1.0)),
        ("high", lambda bad: Uniform(0.0, bad)),
        ("gain", He),
        ("strength", lambda bad: EmpiricalPrior(strength=bad)),
        ("inclusion_strength", lambda bad: EmpiricalPrior(inclusion_strength=bad)),
        ("std", lambda bad: SpikeSlabPrior(std=bad)),
        ("mean", lambda bad: GaussianPrior(mean=bad)),
        ("relaxation", lambda bad: Linear(4, 2, family="concrete", family_options={"relaxation": bad})),
        *((rf"per_replicate\[{n}\]", vary(n)) for n in ("temperature", "learning_rate")),
        *((rf"per_replicate\[{n}\]", vary(n)) for n in ("prior.std", "prior.mean")),
    ],
)
def test_numbers_that_are_not_finite_are_named(what, build, bad):
    with pytest.raises(InvalidInput, match=f"The '{what}' of "):
        build(bad)


def test_other_values_that_cannot_be_are_named():
    for what, build in (
        ("high", lambda: Uniform(1.0, 0.0)),
        ("std", lambda: Normal(0.0, -1.0)),
        ("milestones", lambda: Steps(3)),
        *(
            ("random_state", lambda seed=seed: SparseBNNClassifier(epochs=1, random_state=seed).fit(X, Y))
            for seed in (2**32, 2**63, -1)
        ),
    ):
        with pytest.raises(InvalidInput, match=f"The '{what}' of "):
            build()
