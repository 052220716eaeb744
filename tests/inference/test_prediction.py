"""prediction.py: averages of probabilities, the median model, uncertainty; what draws depend on."""

import copy
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
    """Outputs for the local reparametrization, whole weights for the concrete family."""
    for family, expected in (("spike_slab", "local"), ("concrete", "weights")):
        made = network(family)
        ours = predict(made, X, CLASSES, 5).probs
        assert torch.equal(ours, predict(made, X, CLASSES, 5, draws=expected).probs)


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


@pytest.mark.parametrize(("model", "draws"), SETTINGS)
def test_same_seed_same_result(model, draws):
    made = network("flow")
    options = {"n_draws": 5, "model": model, "draws": draws}
    first = predict(made, X, CLASSES, seed=1, **options).probs
    torch.rand(3)
    assert torch.equal(first, predict(made, X, CLASSES, seed=1, **options).probs)
    assert not torch.equal(first, predict(made, X, CLASSES, seed=2, **options).probs)


@pytest.mark.parametrize(("model", "draws"), SETTINGS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch_size", [1, 4, 11, 100])
def test_predictions_do_not_depend_on_the_batch_size(family, model, draws, batch_size):
    made = network(family)
    options = {"n_draws": 4, "model": model, "draws": draws}
    whole = predict(made, X, CLASSES, **options)
    parts = predict(made, X, CLASSES, batch_size=batch_size, **options)
    torch.testing.assert_close(parts.probs, whole.probs, rtol=0, atol=1e-6)
    torch.testing.assert_close(parts.expected_entropy, whole.expected_entropy, rtol=0, atol=1e-6)


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


def test_keys_of_rows_are_those_of_their_values():
    """-0 is 0, and positions count."""
    keys = counter.content_keys(torch.tensor([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0]]))
    assert keys[0] == keys[1] != keys[2]


class Switching(nn.Module):
    """Behaves differently in training mode, and slowly enough for threads to meet."""

    def __init__(self):
        super().__init__()
        self.layer = sparsebnn.Linear(4, 3, dtype=torch.float64)

    def forward(self, x):
        return self.layer(x) + (100.0 * x[:, :3] if self.training else 0.0)


def test_threads_predict_with_a_network_in_training_mode():
    """Predictions leave the network's mode alone: four threads and the training thread do not meet."""
    made = Switching().train()
    expected = predict(copy.deepcopy(made).eval(), X, CLASSES, 4).probs
    found, modes = [], []

    def work():
        for _ in range(30):
            found.append(predict(made, X, CLASSES, 4).probs)
            modes.append(made.training)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 120
    assert all(torch.equal(probs, expected) for probs in found)
    assert all(modes)


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
    grouped = list(draw_outputs(made, x, memory=1 << 24, **options))
    assert [rows for rows, _ in grouped] == [rows for rows, _ in alone]
    for (_, ours), (_, other) in zip(grouped, alone):
        assert ours.shape == other.shape
        assert torch.allclose(ours, other, rtol=0, atol=1e-12)
    pair = list(draw_outputs_of_all([made, made], x, memory=1 << 24, **options))
    for (_, ours), (_, other) in zip(pair, alone):
        assert torch.allclose(ours, other.expand_as(ours), rtol=0, atol=1e-12)


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


@pytest.mark.parametrize(("model", "draws"), SETTINGS)
@pytest.mark.parametrize("memory", [1, 4000, 1 << 20])
def test_memory_changes_nothing_but_memory(model, draws, memory):
    made = network("flow")
    options = {"n_draws": 7, "model": model, "draws": draws, "batch_size": 6}
    whole = list(draw_outputs(made, X, **options))
    parts = list(draw_outputs(made, X, memory=memory, **options))
    assert [rows for rows, _ in parts] == [rows for rows, _ in whole] == [slice(0, 6), slice(6, 11)]
    for (_, ours), (_, other) in zip(parts, whole):
        assert ours.shape == other.shape == (7, *other.shape[1:])
        torch.testing.assert_close(ours, other, rtol=0, atol=1e-12)


def test_the_network_and_the_generator_stay_as_they_are():
    made = network("flow").train()
    before, state = {n: t.clone() for n, t in made.state_dict().items()}, torch.get_rng_state()
    ours = predict(made, X, CLASSES, 3)
    assert made.training
    assert not ours.probs.requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(t, before[n]) for n, t in made.state_dict().items())


def test_pixels_are_scaled_as_in_training():
    """Bytes are pixels: divided by 255, as the training batches are."""
    made = network()
    pixels = torch.randint(256, (5, 4), generator=generator(1), dtype=torch.uint8)
    ours = predict(made, pixels, CLASSES, 3).probs
    torch.testing.assert_close(ours, predict(made, pixels.double() / 255.0, CLASSES, 3).probs)


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
    ("act", "message"),
    [
        (
            lambda: predict(network(), X, CLASSES, 0),
            "The 'n_draws' of predict must be a whole number of at least 1. Got 0 instead.",
        ),
        (
            lambda: predict(network(), X, CLASSES, 2.5),
            "The 'n_draws' of predict must be a whole number of at least 1. Got 2.5 instead.",
        ),
        (
            lambda: predict(network(), X, CLASSES, batch_size=0),
            "The 'batch_size' of predict must be a whole number of at least 1. Got 0 instead.",
        ),
        (
            lambda: predict(network(), NAN, CLASSES),
            "The 'x' of predict must be finite. Got 1 NaN or infinite values, the first at (2, 1), instead. "
            "Impute or drop those rows first.",
        ),
        (
            lambda: predict(network(), X[:0], CLASSES),
            "The 'x' of predict must be of at least one row. Got an empty batch instead. "
            "Check the filter before.",
        ),
        (
            lambda: predict(network(), X[0], CLASSES),
            "The 'x' of predict must be of shape (rows, …). Got shape (4,) instead.",
        ),
        (
            lambda: predict(network(), X, CLASSES, model="avrage"),
            "The 'model' of predict must be one of 'average', 'median'. Got 'avrage' instead. "
            "Did you mean 'average'?",
        ),
        (
            lambda: predict(network(), X, CLASSES, draws="weight"),
            "The 'draws' of predict must be one of 'auto', 'local', 'weights'. Got 'weight' instead. "
            "Did you mean 'weights'?",
        ),
        (
            lambda: predict(network(), X, Other()),
            "The 'likelihood' of predict must be Categorical, Bernoulli or Gaussian. Got Other instead.",
        ),
        (
            lambda: predict(network(), X, Gaussian(3).double(), 2).quantiles([0.5, 1.0]),
            "The 'levels' of quantiles must be strictly between 0 and 1. Got 1.0 instead.",
        ),
    ],
)
def test_messages(act, message):
    with pytest.raises(InvalidInput) as error:
        act()
    assert str(error.value) == message


# --- many networks at once --------------------------------------------------------------------------


def replicates(family="spike_slab", count=3, **layer):
    """Networks of one shape with different parameters."""
    made = [network(family, **layer) for _ in range(count)]
    for seed, each in enumerate(made):
        sparsebnn.nn.initialize(each, seed)
    return made


@pytest.mark.parametrize(("model", "draws"), SETTINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_many_networks_predict_as_each_does_alone(family, model, draws):
    """One program for all replicates, the same draws for each."""
    networks = replicates(family)
    options = {"model": model, "draws": draws, "seed": 5, "batch_size": 4}
    together = predict_all(networks, X, CLASSES, 7, **options)
    for ours, each in zip(together, networks):
        alone = predict(each, X, CLASSES, 7, **options)
        for name in ("probs", "expected_entropy", "outputs"):
            assert float((getattr(ours, name) - getattr(alone, name)).abs().max()) < 1e-12
        assert ours.n_draws == 7


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


def test_little_memory_changes_nothing():
    """Chunks of draws give the same outputs."""
    networks = replicates()
    whole = [out for _, out in draw_outputs_of_all(networks, X, 9, draws="weights")]
    parts = [out for _, out in draw_outputs_of_all(networks, X, 9, draws="weights", memory=1)]
    assert whole[0].shape == (3, 9, 11, 3)
    assert float((whole[0] - parts[0]).abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: predict_all([], X, CLASSES),
            "The 'networks' of predict_all must be at least one network. Got none instead.",
        ),
        (
            lambda: predict_all([network(), sparsebnn.mlp([4, 5, 3], dtype=torch.float64)], X, CLASSES),
            "The 'networks' of predict_all must be of one shape. Got another one at place 1 instead. "
            "Networks of different shapes or options are predicted one by one.",
        ),
        (
            lambda: predict_all(replicates(), X, [CLASSES]),
            "The 'likelihoods' of predict_all must be one for all or one each (3). Got 1 instead.",
        ),
    ],
)
def test_messages_for_many(call, message):
    with pytest.raises(InvalidInput) as error:
        call()
    assert str(error.value) == message


def test_networks_that_bend_otherwise_are_not_alike():
    one, other = (sparsebnn.mlp([4, 5, 3]) for _ in range(2))
    other[1] = torch.nn.Tanh()
    with pytest.raises(InvalidInput, match=r"of one shape\. Got another one at place 1"):
        predict_all([one, other], torch.zeros(2, 4), Categorical(3))


def test_every_replicates_own_likelihood():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    settings = sparsebnn.Settings(epochs=3, batch_size=10, learning_rate=0.05)
    run = sparsebnn.train(
        sparsebnn.mlp([3, 1]),
        (x, x[:, :1]),
        likelihood="gaussian",
        settings=settings,
        replicates=2,
        progress=False,
    )
    every = predict_all(run.networks, x, run.likelihoods, n_draws=5)
    for network, likelihood, found in zip(run.networks, run.likelihoods, every):
        assert torch.allclose(found.std, predict(network, x, likelihood, n_draws=5).std, atol=1e-5)
    assert not torch.allclose(every[1].std, predict_all(run.networks, x, run.likelihood, n_draws=5)[1].std)


@pytest.mark.parametrize(
    "likelihood", [Gaussian(1), Bernoulli(), Categorical(5), Gaussian(1, "heteroscedastic")]
)
def test_a_likelihood_for_other_outputs_is_refused(likelihood):
    expected = "must be for as many outputs as the network has"
    with pytest.raises(InvalidInput, match=expected):
        predict(sparsebnn.mlp([4, 3]), torch.randn(5, 4), likelihood, n_draws=2)


def test_arrays_are_taken():
    network, x = sparsebnn.mlp([4, 3]), torch.randn(5, 4)
    ours = predict(network, x.numpy(), Categorical(3), n_draws=3)
    assert torch.equal(ours.probs, predict(network, x, Categorical(3), n_draws=3).probs)
    with pytest.raises(InvalidInput, match="must be a tensor or an array of numbers"):
        predict(network, {"x": 1}, Categorical(3))


def test_norms_and_dropout_predict_whatever_mode_they_are_in():
    """And stay in it; nothing that they remember moves."""
    network = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), sparsebnn.Linear(4, 3))
    x = torch.randn(6, 4)
    expected = predict(copy.deepcopy(network).eval(), x, Categorical(3), n_draws=4).probs
    network[1].eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    assert torch.equal(predict(network, x, Categorical(3), n_draws=4).probs, expected)
    assert [module.training for module in network] == [True, False, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


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
