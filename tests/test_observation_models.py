"""Counts, Student-t, ordinal, noisy and multilabel targets against SciPy and statsmodels.

Values to 1e-8 or better; draws against the distribution that they come from.
"""

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import nn

import sparsebnn
from contracts.members import generator
from sparsebnn.checks import InvalidInput
from sparsebnn.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Likelihood,
    Multilabel,
    NegativeBinomial,
    NoisyCategorical,
    Ordinal,
    Poisson,
    StudentT,
    likelihood,
)

G = generator(3)
F = torch.randn(40, 2, generator=G, dtype=torch.float64)
COUNTS = torch.poisson(torch.exp(1.0 + F[:, 0]), generator=G)
COUNTS[::3] = 0.0
EXPOSURE = 0.5 + 3.0 * torch.rand(40, generator=G, dtype=torch.float64)
LABELS = torch.arange(40) % 4
LEVELS = torch.tensor([0.05, 0.3, 0.5, 0.9, 0.99], dtype=torch.float64)


def close(found, expected, tolerance=1e-8):
    np.testing.assert_allclose(np.asarray(found.detach()), expected, rtol=tolerance, atol=tolerance)


def counts(kind, zero_inflated, exposure=True):
    """A likelihood in double precision, and SciPy's log pmf, cdf, mean and variance for the same rows."""
    form = kind(rate=2.5, exposure=exposure, zero_inflated=zero_inflated).double().requires_grad_(False)
    size = 1.0 / float(nn.functional.softplus(form.raw_dispersion)) if kind is NegativeBinomial else None
    rate = np.exp(float(form.log_rate)) * np.exp(F[:, 0].numpy())
    rate = rate * EXPOSURE.numpy() if exposure else rate
    plain = stats.poisson(rate) if size is None else stats.nbinom(size, size / (size + rate))
    zero = special.expit(float(form.zero_logit) + F[:, 1].numpy()) if zero_inflated else 0.0 * rate
    return form, plain, zero


KINDS = [(kind, zeros) for kind in (Poisson, NegativeBinomial) for zeros in (False, True)]


@pytest.mark.parametrize(("kind", "zeros"), KINDS)
def test_counts_with_exposure(kind, zeros):
    form, plain, zero = counts(kind, zeros)
    y = form.prepare(torch.stack([COUNTS, EXPOSURE], dim=1))
    outputs = F[:, : form.n_outputs(y)]
    n = COUNTS.numpy()
    pmf = (1.0 - zero) * plain.pmf(n) + zero * (n == 0)
    close(form.nll(outputs, y), -np.log(pmf))
    shifted = form.with_exposure(outputs, EXPOSURE)
    mean = (1.0 - zero) * plain.mean()
    close(form.mean(shifted)[:, 0], mean)
    close(form.variance(shifted)[:, 0], (1.0 - zero) * (plain.var() + plain.mean() ** 2) - mean**2)
    for k in (-1.0, 0.0, 1.0, 7.0):
        expected = np.where(k < 0, 0.0, zero + (1.0 - zero) * plain.cdf(k))
        close(form.cdf(shifted, torch.tensor(k, dtype=torch.float64))[:, 0], expected)
    for level in LEVELS:
        rest = (float(level) - zero) / (1.0 - zero)
        expected = np.where(rest <= 0.0, 0.0, plain.ppf(np.clip(rest, 0.0, 1.0)))
        close(form.quantile(shifted, level)[:, 0], np.maximum(expected, 0.0))


def test_statsmodels_agrees_on_the_dispersion():
    """The same parametrization as statsmodels' NB2, variance μ + α μ²."""
    discrete = pytest.importorskip("statsmodels.discrete.discrete_model")
    form, _, _ = counts(NegativeBinomial, False, exposure=False)
    alpha = float(nn.functional.softplus(form.raw_dispersion))
    model = discrete.NegativeBinomial(COUNTS.numpy(), np.stack([np.ones(40), F[:, 0].numpy()], axis=1))
    expected = model.loglikeobs(np.array([float(form.log_rate), 1.0, np.log(alpha)]))
    close(form.nll(F[:, :1], COUNTS[:, None]), -expected)


@pytest.mark.parametrize(("kind", "zeros"), KINDS)
def test_draws_of_counts(kind, zeros):
    """Draws have the probabilities of the model: a chi-squared test per kind at p > 0.001."""
    form, _, _ = counts(kind, zeros, exposure=False)
    noise = torch.randn(4000, 1, generator=G, dtype=torch.float64)
    drawn = form.sample(F[:1, : form.n_outputs(COUNTS)].expand(4000, -1), noise)[:, 0].detach().numpy()
    edges = torch.arange(0.0, 8.0, dtype=torch.float64)
    cdf = np.array([float(form.cdf(F[:1, : form.n_outputs(COUNTS)], k).detach()) for k in edges])
    expected = np.diff([0.0, *cdf, 1.0])
    seen = np.array([*((drawn == k).sum() for k in range(8)), (drawn >= 8).sum()])
    enough = expected * 4000 > 5
    seen, expected = seen[enough], expected[enough] / expected[enough].sum()
    assert stats.chisquare(seen, expected * seen.sum()).pvalue > 0.001


def test_student_t():
    form = StudentT(2, scale=0.7, df=4.5).double()
    scale, df = (v.detach().numpy() for v in form.scale_and_df())
    t = stats.t(df, loc=F.numpy(), scale=scale)
    y = form.prepare(F.flip(0) * 3.0)
    close(form.nll(F, y), -t.logpdf(y.numpy()).sum(1))
    close(form.mean(F), t.mean())
    close(form.variance(F), t.var())
    close(form.cdf(F, y), t.cdf(y.numpy()))
    for level in LEVELS:
        close(form.quantile(F, level), t.ppf(float(level)))
        # The base class inverts the cdf numerically.
        close(Likelihood.quantile(form, F, level), t.ppf(float(level)), 1e-7)
    drawn = form.sample(F[:1].expand(3000, -1), torch.randn(3000, 2, generator=G, dtype=torch.float64))
    assert (
        stats.kstest(drawn[:, 0].detach().numpy(), stats.t(df, F[0, 0].item(), scale[0]).cdf).pvalue > 0.001
    )


def test_ordinal():
    """Against statsmodels' cumulative logit model at the same thresholds."""
    form = Ordinal(4).double().requires_grad_(False)
    form.first.fill_(-0.8)
    form.raw_gaps.copy_(torch.tensor([0.3, -0.5]))
    f = F[:, :1] * 2.0
    cumulative = special.expit(form.thresholds.detach().numpy() - f.numpy())
    expected = np.diff(np.concatenate([np.zeros((40, 1)), cumulative, np.ones((40, 1))], axis=1), axis=1)
    close(form.probs(f), expected, 1e-12)
    close(form.nll(f, LABELS), -np.log(expected[np.arange(40), LABELS]), 1e-10)
    miscmodels = pytest.importorskip("statsmodels.miscmodels.ordinal_model")
    model = miscmodels.OrderedModel(LABELS.numpy(), f.numpy(), distr="logit")
    gaps = np.log(np.diff(form.thresholds.detach().numpy()))
    theirs = model.loglikeobs(np.array([1.0, float(form.first.detach()), *gaps]))
    close(form.nll(f, LABELS), -theirs)
    extreme = form.nll(torch.tensor([[60.0], [-60.0]], dtype=torch.float64), torch.tensor([0, 3]))
    assert torch.isfinite(extreme).all()


def test_noisy_labels():
    form = NoisyCategorical(4, rate=0.2).double()
    outputs = torch.cat([F, F.flip(0)], dim=1)
    p = special.softmax(outputs.numpy(), axis=1)
    expected = 0.8 * p + 0.2 * (1.0 - p) / 3.0
    close(form.probs(outputs), expected, 1e-7)  # the rate is stored in float32
    close(form.nll(outputs, LABELS), -np.log(expected[np.arange(40), LABELS]), 1e-7)
    sure = torch.tensor([[60.0, 0.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    form.nll(sure, torch.tensor([0])).sum().backward()
    assert torch.isfinite(sure.grad).all()


def test_multilabel():
    form, y = Multilabel(2), (F.flip(0) > 0).double()
    close(form.nll(F, y), -stats.bernoulli(special.expit(F.numpy())).logpmf(y.numpy()).sum(1), 1e-10)


@pytest.mark.parametrize("form", [Categorical(4), Ordinal(4), NoisyCategorical(4)])
def test_draws_of_classes(form):
    outputs = F[:1].repeat(1, 2)[:, : form.n_outputs(LABELS)].expand(4000, -1)
    drawn = form.double().sample(outputs, torch.randn(4000, 1, generator=G, dtype=torch.float64))[:, 0]
    expected = form.probs(outputs[:1])[0].detach().numpy()
    assert stats.chisquare(np.bincount(drawn, minlength=4), expected * 4000).pvalue > 0.001


# -- prediction -------------------------------------------------------------------------------------------


class Exponential(Likelihood):
    """Waiting times; the output is the logarithm of their mean."""

    def prepare(self, y):
        return y.float().reshape(-1, 1)

    def n_outputs(self, y):
        return 1

    def nll(self, outputs, y):
        return (outputs + y * torch.exp(-outputs)).squeeze(-1)

    def mean(self, outputs):
        return torch.exp(outputs)

    def variance(self, outputs):
        return torch.exp(2.0 * outputs)

    def cdf(self, outputs, y):
        return -torch.expm1(-y.clamp_min(0.0) * torch.exp(-outputs))


def test_a_likelihood_of_twenty_lines_is_trained_and_predicted():
    x = torch.randn(300, 2, generator=G)
    y = torch.exp(0.5 + x[:, 0]) * -torch.log(torch.rand(300, generator=G))
    settings = sparsebnn.Settings(epochs=60, learning_rate=0.05)
    run = sparsebnn.train(sparsebnn.mlp([2, 1]), (x, y), likelihood=Exponential(), settings=settings)
    found = sparsebnn.predict(run.network, x, run.likelihood, n_draws=400)
    weight = run.network[0].weights
    slope = (weight.inclusion_prob() * weight.mean)[0, 0].item()
    assert abs(slope - 1.0) < 0.25
    truth = torch.exp(0.5 + x[:, 0])
    assert ((found.mean[:, 0] / truth).log().abs()).mean() < 0.3
    # An exponential distribution has the median log 2 · mean and a std equal to its mean.
    ratio = (found.quantiles([0.5])[0] / found.mean).mean().item()
    assert abs(ratio - np.log(2.0)) < 0.08
    assert abs((found.std / found.mean).mean().item() - 1.0) < 0.15


def test_predict_needs_an_observation_model():
    class Bare(Exponential):
        mean = Likelihood.mean

    with pytest.raises(InvalidInput, match="observation model"):
        sparsebnn.predict(sparsebnn.mlp([2, 1]), torch.zeros(2, 2), Bare())


def test_predictions_of_counts_and_labels():
    x = torch.randn(6, 3, generator=G)
    found = sparsebnn.predict(sparsebnn.mlp([3, 4, 1]), x, NegativeBinomial(rate=3.0), n_draws=50)
    assert bool((found.samples == found.samples.round()).all())
    assert bool((found.std**2 > found.mean).all())
    several = sparsebnn.predict(sparsebnn.mlp([3, 4, 2]), x, Multilabel(2), n_draws=50)
    assert several.probs.shape == several.mutual_information.shape == (6, 2)
    torch.testing.assert_close(several.entropy, several.expected_entropy + several.mutual_information)


# -- targets that are refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "y", "named"),
    [
        (Poisson(), torch.tensor([1.0, -1.0]), "'y'"),
        (Poisson(), torch.tensor([1.0, 0.5]), "'y'"),
        (NegativeBinomial(), torch.tensor([1.0, float("nan")]), "'y'"),
        (Poisson(), torch.ones(3, 2), "'y'"),
        (Poisson(exposure=True), torch.tensor([[1.0, 0.0]]), "'exposure'"),
        (Poisson(exposure=True), torch.tensor([[1.0, -2.0]]), "'exposure'"),
        (Ordinal(3), torch.tensor([0, 3]), "'y'"),
        (Multilabel(2), torch.tensor([[0, 2]]), "'y'"),
        (StudentT(2), torch.ones(3), "'y'"),
    ],
)
def test_impossible_targets(form, y, named):
    with pytest.raises(InvalidInput, match=named):
        form.prepare(y)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Poisson(rate=0.0),
        lambda: NegativeBinomial(dispersion=-1.0),
        lambda: StudentT(df=2.0),
        lambda: NoisyCategorical(3, rate=0.5),
        lambda: likelihood("poison", COUNTS),
    ],
)
def test_impossible_options(make):
    with pytest.raises(InvalidInput):
        make()


NAMES = [
    ("student_t", torch.randn(9, 2)),
    ("negative_binomial", COUNTS[:9]),
    ("zero_inflated_poisson", COUNTS[:9]),
    ("ordinal", LABELS[:9]),
    ("noisy_categorical", LABELS[:9]),
    ("multilabel", torch.ones(9, 3)),
    ("piecewise_exponential", torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]])),
    ("discrete_hazard", torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]])),
    ("cox", torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]])),
]


@pytest.mark.parametrize(("name", "y"), NAMES)
def test_every_name_trains_and_is_saved(name, y, tmp_path):
    x = torch.randn(len(y), 3, generator=G)
    form = likelihood(name, y)
    network = sparsebnn.mlp([3, form.n_outputs(y)])
    run = sparsebnn.train(network, (x, y), likelihood=name, settings=sparsebnn.Settings(epochs=2))
    path = sparsebnn.save(run, tmp_path / "model.safetensors")
    loaded = sparsebnn.load(path, sparsebnn.mlp([3, form.n_outputs(y)]))
    for (name, value), (other, again) in zip(
        run.likelihood.state_dict().items(), loaded.likelihood.state_dict().items()
    ):
        assert name == other
        torch.testing.assert_close(value, again)


def test_the_gaussian_observation_model():
    form = Gaussian(2, std=0.5).double().requires_grad_(False)
    n = stats.norm(F.numpy(), float(form.mean_and_std(F)[1][0, 0]))
    for level in LEVELS:
        close(form.quantile(F, level), n.ppf(float(level)), 1e-12)
    close(form.cdf(F, F.flip(0)), n.cdf(F.flip(0).numpy()), 1e-12)
    assert Bernoulli().probs(F[:, :1]).shape == (40, 2)
