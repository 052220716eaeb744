"""density.py: the target is reached, the structure stays fixed, and neither is lost by an interruption."""

import re

import pytest
import torch
from torch import nn

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.posteriors.learned_priors import HierarchicalPrior
from sparsebnn.training import Callback, Settings
from sparsebnn.training.density import controlled, fix_structure
from training.runs import fit, make_data, make_network, parameters, same, stopped_and_resumed

LOGITS = "inclusion_logit"
SETTINGS = Settings(
    epochs=20, batch_size=8, learning_rate=1e-2, learning_rates={LOGITS: 0.1}, target_density=0.25, refit=0.25
)


@pytest.fixture(scope="module")
def uninterrupted():
    return fit(make_network(), make_data(), SETTINGS, replicates=2)


def logits_of(run):
    return {n: p for n, p in run.replicates.parameters.items() if n.endswith(LOGITS)}


def kept(run):
    """Densities of the network and of each layer, per replicate."""
    share = torch.stack([(p > 0).flatten(1).double().mean(1) for p in logits_of(run).values()], 1)
    sizes = torch.stack([counts.sum() for counts in run.replicates.weights_per_logit().values()])
    return (share * sizes).sum(1) / sizes.sum(), share


@pytest.mark.parametrize("family", ["spike_slab", "concrete", "flow"])
def test_the_controller_reaches_the_target_without_fixing_anything(family):
    """The whole network within a tenth of its target, or one weight, after the last epoch."""
    settings = Settings(epochs=20, batch_size=8, learning_rates={LOGITS: 0.05}, target_density=0.2)
    network = make_network(family=family)
    run = fit(network, make_data(), settings, replicates=3)
    weights = sum(p[0].numel() for p in logits_of(run).values())
    share, _ = kept(run)
    assert float((share - 0.2).abs().max()) <= max(0.02, 1.0 / weights)
    assert all(abs(d - 0.2) <= max(0.02, 1.0 / weights) for d in run.history[-1].density)


def test_one_target_per_layer():
    settings = Settings(epochs=20, batch_size=8, target_density=(0.5, 0.2), refit=0.2)
    run = fit(make_network(), make_data(), settings)
    _, share = kept(run)
    sizes = [p[0].numel() for p in logits_of(run).values()]
    assert share[0].tolist() == [round(0.5 * sizes[0]) / sizes[0], round(0.2 * sizes[1]) / sizes[1]]


def test_targets_along_the_replicates():
    """Each replicate its own, as one program; replicate k as it is alone."""
    settings = Settings(epochs=10, batch_size=8, learning_rates={LOGITS: 0.05}, refit=0.2)
    targets = [0.1, 0.3, 1.0]
    run = fit(make_network(), make_data(), settings, replicates=3, per_replicate={"target_density": targets})
    weights = sum(p[0].numel() for p in logits_of(run).values())
    share, _ = kept(run)
    assert share.tolist() == [round(t * weights) / weights for t in targets]
    alone = fit(
        make_network(), make_data(), settings, replicates=[1], per_replicate={"target_density": targets[1:2]}
    )
    for name, p in alone.replicates.parameters.items():
        assert float((p[0] - run.replicates.parameters[name][1]).abs().max()) < 1e-10


def test_logits_and_odds_move_by_the_same_number():
    """What the docstring says, from the values: one c per replicate, and the wanted share above zero."""
    run = fit(make_network(), make_data(), Settings(epochs=2, batch_size=8), replicates=2)
    replicates = run.replicates
    replicates.make_per_replicate("prior.inclusion_prob")
    before = {n: p.clone() for n, p in {**logits_of(run), **replicates.varied}.items()}
    controlled(replicates, torch.tensor([[0.3], [0.6]]), progress=0.5)
    share, _ = kept(run)
    weights = sum(p[0].numel() for p in logits_of(run).values())
    wanted = torch.tensor([0.3, 0.6], dtype=torch.float64) ** 0.5
    assert float((share - wanted).abs().max()) <= 0.5 / weights
    moves = [(before[n] - p).flatten(1) for n, p in logits_of(run).items()]
    for k in range(2):
        c = float(moves[0][k, 0])
        assert all(torch.allclose(m[k], torch.tensor(c, dtype=m.dtype), atol=1e-6) for m in moves)
        for name, now in replicates.varied.items():
            odds = torch.logit(before[name][k]) - torch.logit(now[k])
            assert abs(float(odds) - c) < 1e-6


def test_the_structure_is_fixed_for_the_refit():
    """In the last epochs logits stand still, at certainty; the slabs go on; averaging is the median model."""
    seen = []

    class Watch(Callback):
        def on_epoch_end(self, run, epoch):
            seen.append(parameters(run))

    x, y = make_data()
    run = fit(make_network(), (x, y), SETTINGS, replicates=2, callbacks=[Watch()])
    start = SETTINGS.refit_from
    assert start == 15
    for name, last in seen[-1].items():
        if name.endswith(LOGITS):
            assert torch.equal(last, seen[start][name])
            assert set(last.unique().tolist()) == {-30.0, 30.0}
            assert not torch.equal(seen[start][name], seen[start - 1][name])
        elif "weights.mean" in name:
            assert not torch.equal(last, seen[start][name])
    ours = [
        sparsebnn.predict(run.networks[0], x, run.likelihood, 4000, model=model, draws="weights").probs
        for model in ("average", "median")
    ]
    # The same weights are there in every draw; the draws differ, so this is a Monte Carlo comparison.
    spread = (0.25 / 4000) ** 0.5
    assert float((ours[0] - ours[1]).abs().max()) < 4 * 2**0.5 * spread


@pytest.mark.parametrize("checkpoints", [10, 45, 46, 50])
def test_interrupted_runs_end_the_same(tmp_path, checkpoints, uninterrupted):
    """Stopped in the approach, right before the structure is fixed, and after it."""
    run = stopped_and_resumed(make_network(), make_data(), SETTINGS, tmp_path, checkpoints, replicates=2)
    assert same(parameters(run), parameters(uninterrupted))
    assert same(run.replicates.varied, uninterrupted.replicates.varied)


@pytest.mark.parametrize("k", [1, 3])
def test_compiled_is_eager(k, monkeypatch):
    """The controller changes tensors that the compiled step reads; here as it is recorded."""
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    settings = Settings(epochs=5, batch_size=8, learning_rates={LOGITS: 0.05}, target_density=0.3, refit=0.4)
    eager, fast = (
        fit(make_network(), make_data(), settings, replicates=k, mode=mode) for mode in ("eager", "compiled")
    )
    assert fast.mode == "compiled"
    for name, p in eager.replicates.parameters.items():
        assert float((p - fast.replicates.parameters[name]).abs().max()) < 1e-8


def test_weights_without_inclusions_count_in_the_history():
    """In a network of both kinds the history's density is that of density()."""
    network = nn.Sequential(
        sparsebnn.Linear(4, 6, family="gaussian"), nn.ReLU(), sparsebnn.Linear(6, 3, family="spike_slab")
    ).double()
    run = fit(network, make_data(), Settings(epochs=4, batch_size=8, target_density=0.5))
    assert run.history[-1].density[0] == pytest.approx(sparsebnn.density(run.network).overall)
    assert run.history[-1].density[0] == pytest.approx((24 + 9) / (24 + 18))


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ({}, {"target_density": (0.1, 0.1, 0.1)}, "one number, or one per layer with inclusions (2)"),
        ({"family": "gaussian"}, {"target_density": 0.1}, "weights that can be excluded"),
        (
            {"family": "concrete", "prior": HierarchicalPrior()},
            {"target_density": 0.1},
            "a prior inclusion probability that can be moved",
        ),
    ],
)
def test_targets_that_cannot_be_reached(options, settings, message):
    with pytest.raises(InvalidInput, match=re.escape(message)) as error:
        fit(make_network(**options), make_data(), Settings(**settings))
    assert "'target_density' of train" in str(error.value)
    with pytest.raises(InvalidInput, match=r"'per_replicate\[target_density\]' of train"):
        fit(make_network(), make_data(), Settings(), per_replicate={"target_density": [2.0]})


def test_which_weights_stay():
    """The median model's without a target; of logits that are all alike the first, as many as wanted."""
    run = fit(make_network(), make_data(), Settings(epochs=3, batch_size=8), replicates=2)
    before = {n: p > 0 for n, p in logits_of(run).items()}
    fix_structure(run.replicates, None)
    assert all(torch.equal(p > 0, before[n]) for n, p in logits_of(run).items())
    for p in logits_of(run).values():
        p.fill_(1.0)
    fix_structure(run.replicates, torch.tensor([[0.5], [0.3]]))
    weights = sum(p[0].numel() for p in logits_of(run).values())
    share, _ = kept(run)
    assert share.tolist() == [round(0.5 * weights) / weights, round(0.3 * weights) / weights]
