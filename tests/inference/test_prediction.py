"""prediction.py: averages of probabilities, the median model, uncertainty; what draws depend on."""

import copy
import functools
import math
import threading

import pytest
import torch
from torch import nn

import sparsebnn
from contracts.members import generator
from sparsebnn.checks import InvalidInput
from sparsebnn.inference import sampling
from sparsebnn.inference.metrics import entropy
from sparsebnn.inference.prediction import predict, predict_all
from sparsebnn.inference.sampling import draw_outputs, draw_outputs_of_all
from sparsebnn.kernels import training
from sparsebnn.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from sparsebnn.nn.networks import bayesian_layers
from sparsebnn.nn.passes import LocalPass, MedianPass, WeightPass, measure
from sparsebnn.random import noise as counter
from sparsebnn.random.noise import NoiseBuffer, NoiseCounter

FAMILIES = {
    "gaussian": {},
    "spike_slab": {},
    "concrete": {"relaxation": 0.5},
    "flow": {"hidden": (5, 4)},
}
X = torch.randn(11, 4, generator=generator(0), dtype=torch.float64)
CLASSES = Categorical(3)
SETTINGS = [("average", "local"), ("average", "weights"), ("median", "auto")]


def network(family="spike_slab", **layer):
    """Inclusions on both sides of one half and a visible spread."""
    start = sparsebnn.init.Initial(
        raw_std=sparsebnn.init.Normal(-1.0, 0.1), inclusion_logit=sparsebnn.init.Uniform(-2.0, 2.0)
    )
    layer = {"family": family, "family_options": FAMILIES[family], "initial": start, **layer}
    made = sparsebnn.mlp([4, 6, 3], dtype=torch.float64, **layer)
    sparsebnn.nn.initialize(made, 3)
    return made.eval()


def bent():
    made = network()
    made[1] = nn.Tanh()
    return made


# --- the average ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "draws"), SETTINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_probabilities_are_averaged_one_draw_after_another(family, model, draws):
    """A plain loop over draws with the same numbers; the average of probabilities, not of logarithms."""
    made, n_draws, seed = network(family), 9, 12
    kind = MedianPass if model == "median" else {"local": LocalPass, "weights": WeightPass}[draws]
    shared, own = NoiseCounter(), NoiseCounter()
    measure(made, X[:1], kind, shared, own)
    seeds = counter.seed_tensor([seed])

    def tape(stream, key, size):
        streams = [counter.stream_id(f"{stream} {kind}") for kind in ("normal", "logistic")]
        normal = counter.normals(seeds, streams[0], key, size.normal, torch.float64)
        logistic = counter.logistics(seeds, streams[1], key, size.logistic, torch.float64)
        return NoiseBuffer(normal[0], logistic[0])

    probs = torch.empty(n_draws, len(X), 3, dtype=torch.float64)
    for d in range(n_draws):
        for i, row in enumerate(X):
            noise = tape("prediction", d, shared.size)
            of_row = tape("prediction row", counter.content_keys(row[None]) + d, own.size)
            with torch.no_grad(), kind(noise, of_row):
                probs[d, i] = torch.softmax(made(row[None]), dim=-1)[0]
    ours = predict(made, X, CLASSES, n_draws, model=model, draws=draws, seed=seed)
    torch.testing.assert_close(ours.probs, probs.mean(0), rtol=0, atol=1e-10)
    torch.testing.assert_close(ours.expected_entropy, entropy(probs).mean(0), rtol=0, atol=1e-10)
    of_logs = torch.softmax(torch.log(probs).mean(0), dim=-1)
    assert float((ours.probs - of_logs).abs().max()) > 1e-4
    assert ours.n_draws == n_draws
    assert torch.equal(ours.labels, probs.mean(0).argmax(-1))


def test_auto_draws_as_the_family_trains():
    """Outputs for the local reparametrization, whole weights for the concrete family.

    Arrays are taken, and bytes are pixels: divided by 255, as the training batches are.
    """
    pixels = torch.randint(256, (5, 4), generator=generator(1), dtype=torch.uint8)
    for family, expected in (("spike_slab", "local"), ("concrete", "weights")):
        made = network(family)
        ours = predict(made, pixels.numpy(), CLASSES, 5).probs
        same = predict(made, pixels.double() / 255.0, CLASSES, 5, draws=expected).probs
        torch.testing.assert_close(ours, same)


def test_bernoulli_gives_both_classes():
    made = sparsebnn.mlp([4, 1], dtype=torch.float64)
    ours = predict(made, X, Bernoulli(), 6)
    yes = torch.cat([torch.sigmoid(outputs).mean(0) for _, outputs in draw_outputs(made, X, 6)])
    torch.testing.assert_close(ours.probs, torch.cat([1.0 - yes, yes], dim=1))


def test_total_uncertainty_is_the_sum_of_its_parts():
    ours = predict(network(), X, CLASSES, 20)
    torch.testing.assert_close(ours.entropy, ours.expected_entropy + ours.mutual_information)
    assert float(ours.mutual_information.min()) > 1e-4
    once = predict(network(), X, CLASSES, 1)
    torch.testing.assert_close(once.mutual_information, torch.zeros(11).double(), rtol=0, atol=1e-12)


# --- the median model -------------------------------------------------------------------------------


@torch.no_grad()
def certain(made, logits):
    """No spread left, inclusions decided; returns the deterministic network this leaves."""
    plain = []
    for (_, layer), logit in zip(bayesian_layers(made), logits):
        layer.weights.raw_std.fill_(-80.0)
        layer.weights.inclusion_logit.copy_(logit)
        layer.biases.raw_std.fill_(-80.0)
        linear = nn.Linear(layer.weights.shape[1], layer.weights.shape[0], dtype=torch.float64)
        linear.weight.copy_(layer.weights.mean * (logit > 0))
        linear.bias.copy_(layer.biases.mean)
        plain.append(linear)
    return nn.Sequential(plain[0], nn.ReLU(), plain[1])


@pytest.mark.parametrize("family", ["spike_slab", "concrete"])
def test_a_certain_posterior_is_a_deterministic_network(family):
    made = network(family)
    g = generator(4)
    logits = [40.0 * torch.sign(torch.randn(shape, generator=g)) for shape in ((6, 4), (3, 6))]
    plain = certain(made, logits)
    expected = torch.softmax(plain(X), dim=-1).detach()
    for model in ("median", "average"):
        ours = predict(made, X, CLASSES, 3, model=model)
        torch.testing.assert_close(ours.probs, expected, rtol=0, atol=1e-7)
    assert float(ours.mutual_information.max()) < 1e-7


def test_the_median_model_rounds_inclusions():
    """At probability 0.6 a weight is always there, at 0.4 never; the average mixes."""
    made = network()
    logits = [torch.where(torch.rand(s) > 0.5, 0.4, -0.4).double() for s in ((6, 4), (3, 6))]
    expected = torch.softmax(certain(made, logits)(X), dim=-1).detach()
    median = predict(made, X, CLASSES, 2, model="median").probs
    torch.testing.assert_close(median, expected, rtol=0, atol=1e-10)
    assert float((predict(made, X, CLASSES, 50).probs - expected).abs().max()) > 1e-2


# --- what draws depend on ---------------------------------------------------------------------------


class TimeFirst(nn.Module):
    """Puts positions before rows, so that no layer has its rows along the first axis."""

    def __init__(self):
        super().__init__()
        self.inner = sparsebnn.Linear(1, 5, dtype=torch.float64)
        self.last = sparsebnn.Linear(5, 3, dtype=torch.float64)

    def forward(self, x):
        return self.last(torch.tanh(self.inner(x.T.unsqueeze(-1))).mean(0))


@pytest.mark.parametrize("draws", ["local", "weights"])
@pytest.mark.parametrize("make", [network, TimeFirst], ids=["mlp", "time first"])
def test_a_prediction_depends_on_its_row_alone(make, draws):
    """Any rows around it, in any order and batch: the same prediction; other rows have other noise."""
    made, options = make(), {"n_draws": 6, "draws": draws, "seed": 4}
    whole = predict(made, X, CLASSES, **options).probs
    some = torch.tensor([7, 2, 9, 2])
    for batch_size in (1, 3, 100):
        part = predict(made, X[some], CLASSES, batch_size=batch_size, **options).probs
        torch.testing.assert_close(part, whole[some], rtol=0, atol=1e-12)
    real = predict(made, X, Gaussian(3, "fixed").double(), **options)
    part = predict(made, X[some], Gaussian(3, "fixed").double(), batch_size=2, **options)
    torch.testing.assert_close(part.samples, real.samples[:, some], rtol=0, atol=1e-12)
    eps = real.samples - real.samples.mean(0)
    assert float(torch.corrcoef(torch.stack([eps[:, 0, 0], eps[:, 1, 0]]))[0, 1].abs()) < 0.999


class Switching(nn.Module):
    """Behaves differently in training mode: itself, its norm and its dropout."""

    def __init__(self):
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(4).double(), nn.Dropout(0.5)
        self.layer = sparsebnn.Linear(4, 3, dtype=torch.float64)

    def forward(self, x):
        return self.layer(self.dropout(self.norm(x))) + (100.0 * x[:, :3] if self.training else 0.0)


def test_threads_predict_with_a_network_in_training_mode():
    """Predictions leave the network's mode alone: four threads and the training thread do not meet."""
    made = Switching().train()
    made.dropout.eval()
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    expected = predict(copy.deepcopy(made).eval(), X, CLASSES, 4).probs
    found, modes = [], []

    def work():
        for _ in range(10):
            found.append(predict(made, X, CLASSES, 4).probs)
            modes.append([module.training for module in (made, made.norm, made.dropout)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    assert all(torch.equal(probs, expected) for probs in found)
    assert modes == [[True, True, False]] * 40
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.state_dict().items())


@pytest.mark.parametrize("family", [*FAMILIES, "flow per example", "conv"])
@pytest.mark.parametrize(("model", "draws"), SETTINGS)
def test_draws_at_a_time_are_as_alone(family, model, draws):
    """Draw by draw or all at once, one network or two: the same outputs."""
    x = X
    if family == "conv":
        made = nn.Sequential(
            sparsebnn.nn.Conv2d(1, 2, 2, family="flow", family_options={"hidden": (5, 4)}), nn.Flatten()
        ).to(torch.float64)
        sparsebnn.nn.initialize(made, 3)
        x = X.reshape(11, 1, 2, 2)
    elif family == "flow per example":
        made = network("flow", family_options={"hidden": (5, 4), "z_per": "example"})
    else:
        made = network(family)
    if family == "concrete" and draws == "local":
        pytest.skip("concrete weights are drawn")
    options = {"n_draws": 3, "model": model, "draws": draws, "batch_size": 4}
    alone = list(draw_outputs(made, x, memory=1, **options))
    for memory in (4000, 1 << 24):
        grouped = list(draw_outputs(made, x, memory=memory, **options))
        assert [rows for rows, _ in grouped] == [rows for rows, _ in alone]
        for (_, ours), (_, other) in zip(grouped, alone):
            assert ours.shape == other.shape
            assert torch.allclose(ours, other, rtol=0, atol=1e-12)
    pair = list(draw_outputs_of_all([made, made], x, memory=1 << 24, **options))
    for (_, ours), (_, other) in zip(pair, alone):
        assert torch.allclose(ours, other.expand_as(ours), rtol=0, atol=1e-12)


def test_networks_are_run_in_another_precision():
    made = [network().float(), network("spike_slab").float()]
    sparsebnn.nn.initialize(made[1], 8)
    options = {"n_draws": 3, "draws": "weights"}
    ((_, ours),) = draw_outputs_of_all(made, X, like=X, **options)
    assert next(made[0].parameters()).dtype == torch.float32  # left as it was
    for outputs, one in zip(ours, made):
        ((_, alone),) = draw_outputs(copy.deepcopy(one).double(), X, **options)
        torch.testing.assert_close(outputs, alone, rtol=0.0, atol=1e-12)


def test_the_first_layer_sees_every_row_once_for_all_draws(monkeypatch):
    """Where memory is short, rows are divided. Draws of a flow have their z in common: draws are divided."""
    x = torch.randn(50, 4, dtype=torch.float64)
    seen = []

    def watched(layer, x, *rest):
        seen.append(len(x))
        return type(layer).output_moments(layer, x, *rest)

    for family in ("spike_slab", "flow"):
        made = network(family)
        ((_, whole),) = draw_outputs(made, x, 20, memory=1 << 24)
        monkeypatch.setattr(made[0], "output_moments", functools.partial(watched, made[0]))
        seen.clear()
        ((_, ours),) = draw_outputs(made, x, 20, memory=16_000)
        torch.testing.assert_close(ours, whole, rtol=0.0, atol=1e-12)
        del seen[:2]  # of the first row, to measure
        assert len(seen) > 1
        if family == "flow":
            assert set(seen) == {50}
        else:
            assert sum(seen) == 50


def test_moments_without_noise_are_computed_once(monkeypatch):
    made, calls = network(), []
    moments = made[0].weights.moments
    monkeypatch.setattr(made[0].weights, "moments", lambda *given: calls.append(1) or moments(*given))
    list(draw_outputs(made, X, 3, memory=1))
    few = len(calls)
    list(draw_outputs(made, X.repeat(10, 1), 3, memory=1))
    assert len(calls) == 2 * few


@pytest.mark.parametrize("family", ["spike_slab", "flow"])
def test_noise_of_compiled_loops_is_that_of_pytorch(family, monkeypatch):
    if not training.available():
        pytest.skip("there is no C compiler")
    made, x, found = network(family).float(), torch.randn(30, 4), []
    for many in (0, 1 << 60):
        monkeypatch.setattr(sampling, "_MANY_NUMBERS", many)
        found.append(torch.cat([outputs for _, outputs in draw_outputs(made, x, 7)], dim=1))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert not torch.equal(*found)  # so both were used


def test_what_the_layers_put_out_counts_towards_the_memory(monkeypatch):
    """Whole weights of a convolution need little noise and put out much."""
    made = sparsebnn.lenet(family="spike_slab")
    x = torch.rand(20, 1, 28, 28)
    # Outputs of one draw: 32 × 24² + 48 × 8² + 256 + 84 + 10 numbers a row.
    outputs = 20 * (32 * 24**2 + 48 * 8**2 + 256 + 84 + 10) * 4
    at_once = []
    normals = sampling.counter.normals

    def watched(seeds, stream, keys, *rest, **options):
        at_once.append(len(keys))
        return normals(seeds, stream, keys, *rest, **options)

    monkeypatch.setattr(sampling.counter, "normals", watched)
    parts = list(draw_outputs(made, x, 10, model="median", batch_size=20, memory=3 * outputs))
    assert at_once == [3, 3, 3, 1]
    whole = next(draw_outputs(made, x, 10, model="median", memory=1 << 30))[1]
    torch.testing.assert_close(parts[0][1], whole)


# --- real targets -----------------------------------------------------------------------------------


def regression(n_draws, draws):
    """A Bayesian linear layer: the predictive is N(x·m + b, x²·s² + s_b² + σ²), known exactly."""
    layer = sparsebnn.Linear(4, 2, family="gaussian", dtype=torch.float64)
    with torch.no_grad():
        layer.weights.raw_std.uniform_(-1.0, 0.0)
        layer.biases.mean.normal_()
        layer.biases.raw_std.uniform_(-1.0, 0.0)
        mean = X @ layer.weights.mean.T + layer.biases.mean
        spread = X**2 @ layer.weights.std.T**2 + layer.biases.std**2
    form = Gaussian(2, noise="fixed", std=0.8).double()
    return predict(layer, X, form, n_draws, draws=draws), mean, spread, spread + 0.8**2


@pytest.mark.parametrize("draws", ["local", "weights"])
def test_regression_against_the_exact_predictive(draws):
    """Mean, stds and quantiles within 4 standard errors."""
    n = 6000
    ours, mean, epistemic, total = regression(n, draws)
    assert ours.samples.shape == (n, 11, 2)
    assert float(((ours.mean - mean).abs() / (epistemic / n).sqrt()).max()) < 4.0
    # The variance of n Gaussian draws has standard error var·√(2/n).
    error = math.sqrt(2.0 / n)
    assert float(((ours.epistemic_std**2 / epistemic - 1.0).abs() / error).max()) < 4.0
    assert float(((ours.std**2 - total).abs() / (epistemic * error)).max()) < 4.0
    levels = [0.1, 0.5, 0.9]
    normal = torch.distributions.Normal(mean, total.sqrt())
    for level, quantile in zip(levels, ours.quantiles(levels)):
        exact = normal.icdf(torch.full_like(mean, level))
        # A quantile's standard error is √(p(1−p)/n) over the density there.
        se = math.sqrt(level * (1 - level) / n) / normal.log_prob(exact).exp()
        assert float(((quantile - exact).abs() / se).max()) < 4.0


def test_heteroscedastic_noise_is_in_the_predictive_std():
    made = sparsebnn.mlp([4, 2], family="gaussian", dtype=torch.float64)
    form = Gaussian(1, noise="heteroscedastic").double()
    ours = predict(made, X, form, 50)
    outputs = torch.cat([o for _, o in draw_outputs(made, X, 50)], dim=1)
    mean, std = form.mean_and_std(outputs)
    expected = (mean.var(0, correction=0) + (std**2).mean(0)).sqrt()
    torch.testing.assert_close(ours.std, expected.detach())
    assert not ours.std.requires_grad
    assert not ours.samples.requires_grad


# --- bad input --------------------------------------------------------------------------------------


class Other(Likelihood):
    """Not one that predict knows."""


NAN = X.clone()
NAN[2, 1] = float("nan")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: predict(network(), X, CLASSES, 0), "'n_draws' of predict"),
        (lambda: predict(network(), X, CLASSES, 2.5), "'n_draws' of predict"),
        (lambda: predict(network(), X, CLASSES, batch_size=0), "'batch_size' of predict"),
        (lambda: predict(network(), NAN, CLASSES), "'x' of predict"),
        (lambda: predict(network(), X[:0], CLASSES), "'x' of predict"),
        (lambda: predict(network(), X[0], CLASSES), "'x' of predict"),
        (lambda: predict(network(), {"x": 1}, CLASSES), "'x' of predict"),
        (lambda: predict(network(), X, CLASSES, model="avrage"), "'model' of predict"),
        (lambda: predict(network(), X, CLASSES, draws="weight"), "'draws' of predict"),
        (lambda: predict(network(), X, Other()), "'likelihood' of predict"),
        (lambda: predict(network(), X, Gaussian(1)), "'likelihood' of predict"),
        (lambda: predict(network(), X, Gaussian(1, "heteroscedastic")), "'likelihood' of predict"),
        (lambda: predict(network(), X, Bernoulli()), "'likelihood' of predict"),
        (lambda: predict(network(), X, Categorical(5)), "'likelihood' of predict"),
        (lambda: predict(network(), X, Gaussian(3).double(), 2).quantiles([1.0]), "'levels' of quantiles"),
        (lambda: predict_all([], X, CLASSES), "'networks' of predict_all"),
        (lambda: predict_all([network(), sparsebnn.mlp([4, 5, 3])], X, CLASSES), "'networks' of predict_all"),
        (lambda: predict_all([network(), bent()], X, CLASSES), "'networks' of predict_all"),
        (lambda: predict_all(replicates(), X, [CLASSES]), "'likelihoods' of predict_all"),
    ],
)
def test_messages(call, named):
    with pytest.raises(InvalidInput, match=f"The {named} must be "):
        call()


# --- many networks at once --------------------------------------------------------------------------


def replicates(family="spike_slab", count=3, **layer):
    """Networks of one shape with different parameters."""
    made = [network(family, **layer) for _ in range(count)]
    for seed, each in enumerate(made):
        sparsebnn.nn.initialize(each, seed)
    return made


@pytest.mark.parametrize(("model", "draws"), SETTINGS)
def test_with_a_seed_each_networks_draw_what_they_draw_alone(model, draws):
    networks, options = replicates(), {"model": model, "draws": draws}
    together = draw_outputs_of_all(networks, X, 7, seed=[3, 1, 4], **options)
    found = torch.cat([outputs for _, outputs in together], dim=2)
    for ours, each, seed in zip(found, networks, (3, 1, 4)):
        alone = torch.cat([o for _, o in draw_outputs(each, X, 7, seed=seed, **options)], dim=1)
        torch.testing.assert_close(ours, alone, rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidInput, match="The 'seed' of predict_all must be "):
        next(draw_outputs_of_all(networks, X, 7, seed=[1, 2]))


@pytest.mark.parametrize(("model", "draws"), SETTINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_many_networks_predict_as_each_does_alone(family, model, draws):
    """One program for all replicates, the same draws for each, in batches of any size.

    The seed alone decides; the networks and torch's generator stay as they are.
    """
    networks = replicates(family)
    before = [{n: t.clone() for n, t in each.state_dict().items()} for each in networks]
    state = torch.get_rng_state()
    options = {"model": model, "draws": draws, "seed": 5}
    together = predict_all(networks, X, CLASSES, 7, batch_size=4, **options)
    for ours, each in zip(together, networks):
        alone = predict(each, X, CLASSES, 7, **options)
        for name in ("probs", "expected_entropy", "outputs"):
            assert float((getattr(ours, name) - getattr(alone, name)).abs().max()) < 1e-12
        assert ours.n_draws == 7
        assert not ours.probs.requires_grad
    other = predict(networks[0], X, CLASSES, 7, model=model, draws=draws, seed=6)
    assert not torch.equal(other.probs, together[0].probs)
    assert torch.equal(torch.get_rng_state(), state)
    for each, values in zip(networks, before):
        assert all(torch.equal(t, values[n]) for n, t in each.state_dict().items())


def test_many_networks_predict_real_targets():
    """Each with its own noise."""
    networks = replicates()
    forms = [Gaussian(3) for _ in networks]
    with torch.no_grad():
        for k, form in enumerate(forms):
            for parameter in form.parameters():
                parameter.fill_(0.3 * k)
    for ours, each, form in zip(predict_all(networks, X, forms, 6, batch_size=4), networks, forms):
        alone = predict(each, X, form, 6, batch_size=4)
        for name in ("mean", "std", "epistemic_std", "samples"):
            assert torch.allclose(getattr(ours, name), getattr(alone, name), rtol=1e-6)


# --- recurrent modules ---------------------------------------------------------------------------------


class _Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first, self.reader, self.last = (
            sparsebnn.Linear(2, 4),
            kind(4, 5, batch_first=True),
            sparsebnn.Linear(5, 3),
        )

    def forward(self, x):
        return self.last(self.reader(self.first(x))[0][:, -1])


@pytest.mark.parametrize("draws", ["local", "weights"])
@pytest.mark.parametrize("batch_size", [4, 7])
def test_one_by_one_is_what_one_program_gives(monkeypatch, draws, batch_size):
    """Batches of a group, draws and networks: in a loop the same numbers, bit for bit or nearly."""
    networks = [sparsebnn.mlp([2, 6, 3], dtype=torch.float64) for _ in range(2)]
    x = torch.randn(13, 2, dtype=torch.float64, generator=generator(0))
    how = {"n_draws": 3, "draws": draws, "batch_size": batch_size}

    def both():
        alone = predict(networks[1], x, Categorical(3), **how).probs
        return alone, torch.stack([one.probs for one in predict_all(networks, x, Categorical(3), **how)])

    together = both()
    whole = sampling._Plan.__init__

    def slowly(plan, *given, **options):
        whole(plan, *given, **options)
        plan.one_by_one = True

    monkeypatch.setattr(sampling._Plan, "__init__", slowly)
    for ours, wanted in zip(both(), together):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("model", ["average", "median"])
def test_networks_with_recurrent_modules_predict(kind, model):
    """Both models, in several batches; several networks as one by one."""
    networks = [_Recurrent(kind).double().eval() for _ in range(2)]
    x = torch.randn(9, 4, 2, dtype=torch.float64, generator=generator(1))
    how = {"n_draws": 4, "model": model, "batch_size": 4}
    each = [predict(network, x, Categorical(3), **how) for network in networks]
    assert all(one.probs.shape == (9, 3) for one in each)
    assert float((each[0].probs - each[1].probs).abs().max()) > 1e-3
    for ours, wanted in zip(predict_all(networks, x, Categorical(3), **how), each):
        torch.testing.assert_close(ours.probs, wanted.probs, rtol=0, atol=1e-14)
