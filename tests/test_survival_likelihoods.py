"""Survival likelihoods against statsmodels, scikit-survival and integrals, to 1e-8."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import sparsebnn
from contracts.members import generator
from sparsebnn.checks import InvalidInput
from sparsebnn.likelihoods import Cox, DiscreteHazard, PiecewiseExponential, ProportionalHazards

G = generator(11)
N = 60
X = torch.randn(N, 3, generator=G, dtype=torch.float64)
BETA = torch.tensor([0.8, -0.5, 0.0], dtype=torch.float64)
F = (X @ BETA)[:, None]
TIMES = torch.rand(N, generator=G, dtype=torch.float64) * 5.0 + 0.1
TIED = torch.ceil(TIMES * 2.0) / 2.0  # many ties
EVENT = (torch.rand(N, generator=G) < 0.6).double()
ENTRY = 0.4 * TIMES * torch.rand(N, generator=G, dtype=torch.float64)
CUTS = [0.7, 1.9, 3.3]


def close(found, expected, tolerance=1e-8):
    np.testing.assert_allclose(np.asarray(found.detach()), expected, rtol=tolerance, atol=tolerance)


def piecewise(proportional=True):
    form = PiecewiseExponential(CUTS, proportional).double().requires_grad_(False)
    form.cut = torch.tensor(CUTS, dtype=torch.float64)
    form.baseline.copy_(torch.tensor([-1.0, 0.3, -0.4, 0.1]))
    outputs = F if proportional else torch.cat([F, -F, 0.5 * F, F], dim=1)
    return form, outputs


def _pieces(start, end):
    ends = [start, *(c for c in CUTS if start < c < end), end]
    return [(a + 1e-15, b - 1e-15) for a, b in zip(ends, ends[1:])]


# -- piecewise exponential -------------------------------------------------------------------------------


@pytest.mark.parametrize("proportional", [True, False])
def test_piecewise_exponential_against_the_integral_of_its_hazard(proportional):
    """−log p = ∫ h − event · log h(time), with the integral done numerically."""
    form, outputs = piecewise(proportional)
    y = form.prepare(torch.stack([TIMES, EVENT, ENTRY], dim=1))
    log_hazard = (form.baseline + outputs).expand(N, 4).numpy()
    for i in range(0, N, 7):

        def hazard(t, i=i):
            return math.exp(log_hazard[i, np.searchsorted(CUTS, t)])

        total = sum(
            integrate.quad(hazard, a, b, epsabs=1e-12)[0]
            for a, b in _pieces(float(ENTRY[i]), float(TIMES[i]))
        )
        expected = total - float(EVENT[i]) * math.log(hazard(float(TIMES[i])))
        close(form.nll(outputs, y)[i], expected)


def test_piecewise_exponential_is_a_poisson_regression():
    """The classic identity, through statsmodels: events are Poisson counts with the time as exposure."""
    api = pytest.importorskip("statsmodels.api")
    form, _ = piecewise()
    y = form.prepare(torch.stack([TIMES, EVENT], dim=1))
    ends = [0.0, *CUTS, math.inf]
    rows = [
        (i, k, min(float(t), high) - low, float(d) * (low < t <= high))
        for i, (t, d) in enumerate(zip(TIMES, EVENT))
        for k, (low, high) in enumerate(zip(ends, ends[1:]))
        if t > low
    ]
    design = np.stack([np.concatenate([np.eye(4)[k], X[i].numpy()]) for i, k, _, _ in rows])
    spent, died = np.array([r[2] for r in rows]), np.array([r[3] for r in rows])
    model = api.GLM(died, design, family=api.families.Poisson(), offset=np.log(spent))
    expected = model.loglike(np.concatenate([form.baseline.numpy(), BETA.numpy()]), scale=1.0)
    found = -float(form.nll(F, y).sum()) + float((died * np.log(spent)).sum())
    assert abs(found - expected) < 1e-8


def test_without_cuts_it_is_the_exponential_distribution():
    form = PiecewiseExponential([]).double().requires_grad_(False)
    y = form.prepare(torch.stack([TIMES, EVENT], dim=1))
    e = stats.expon(scale=np.exp(-F[:, 0].numpy()))
    expected = -np.where(EVENT == 1, e.logpdf(TIMES), e.logsf(TIMES))
    close(form.nll(F, y), expected)
    close(form.mean(F)[:, 0], e.mean())
    level = torch.tensor(0.3, dtype=torch.float64)
    close(form.quantile(F, level)[:, 0], e.ppf(0.3))


@pytest.mark.parametrize("proportional", [True, False])
def test_the_observation_model_of_the_piecewise_exponential(proportional):
    form, outputs = piecewise(proportional)
    times = torch.linspace(0.05, 8.0, 40, dtype=torch.float64)
    survival = form.survival(outputs, times)
    close(1.0 - form.cdf(outputs[:, None], times[None, :, None])[..., 0], survival, 1e-10)
    for level in (0.05, 0.5, 0.99):
        at = form.quantile(outputs, torch.tensor(level, dtype=torch.float64))
        close(form.cdf(outputs, at), np.full((N, 1), level), 1e-10)
    fine = torch.linspace(0.0, 400.0, 400_001, dtype=torch.float64)
    mean = np.trapezoid(form.survival(outputs[:3], fine).numpy(), fine.numpy(), axis=1)
    close(form.mean(outputs[:3])[:, 0], mean, 1e-4)
    drawn = form.sample(outputs[:1].expand(3000, -1), torch.randn(3000, 1, generator=G, dtype=torch.float64))
    cdf = form.cdf(outputs[:1].expand(3000, -1), drawn)[:, 0].numpy()
    assert stats.kstest(cdf, "uniform").pvalue > 0.001


def test_units_of_time_do_not_matter():
    """With times in other units, the nll changes by events · log(unit) and nothing else."""
    unit = 365.25
    y = torch.stack([TIMES, EVENT], dim=1)
    one, other = PiecewiseExponential.of(y), PiecewiseExponential.of(y * torch.tensor([unit, 1.0]))
    other.baseline.data -= math.log(unit)
    a, b = (f.double().requires_grad_(False) for f in (one, other))
    found = b.nll(F, b.prepare(y * torch.tensor([unit, 1.0]))) - a.nll(F, a.prepare(y))
    close(found, (EVENT * math.log(unit)).numpy(), 1e-5)  # cuts are stored in float32


# -- discrete time -----------------------------------------------------------------------------------------


def test_discrete_hazards_are_a_logistic_regression_of_person_periods():
    api = pytest.importorskip("statsmodels.api")
    cuts = [1.0, 2.0, 3.0, 4.0]
    form = DiscreteHazard(cuts).double().requires_grad_(False)
    form.baseline.copy_(torch.tensor([-1.0, 0.3, -0.4, 0.1]))
    time, entry = torch.ceil(TIMES), torch.floor(ENTRY)  # periods 1, 2, …; beyond 4 is censored at 4
    y = form.prepare(torch.stack([time, EVENT, entry], dim=1))
    rows = [
        (i, k, float(d) * (t == k))
        for i, (t, d, e) in enumerate(zip(time.tolist(), EVENT, entry.tolist()))
        for k in range(int(e) + 1, int(min(t, 4)) + 1)
    ]
    design = np.stack([np.concatenate([np.eye(4)[k - 1], X[i].numpy()]) for i, k, _ in rows])
    model = api.Logit(np.array([r[2] for r in rows]), design)
    expected = model.loglike(np.concatenate([form.baseline.numpy(), BETA.numpy()]))
    assert abs(-float(form.nll(F, y).sum()) - expected) < 1e-8
    hazard = torch.sigmoid(form.baseline + F)
    close(form.survival(F, torch.tensor([2.0, 4.5])), np.cumprod(1 - hazard.numpy(), axis=1)[:, [1, 3]])


def test_draws_of_discrete_times():
    form = DiscreteHazard([1.0, 2.0]).double().requires_grad_(False)
    drawn = form.sample(F[:1].expand(4000, -1), torch.randn(4000, 1, generator=G, dtype=torch.float64))[:, 0]
    h = float(torch.sigmoid(F[0, 0]))
    seen = [int((drawn == t).sum()) for t in (1.0, 2.0, math.inf)]
    assert stats.chisquare(seen, 4000 * np.array([h, h * (1 - h), (1 - h) ** 2])).pvalue > 0.001


# -- Cox ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [TIMES, TIED], ids=["no ties", "ties"])
@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_cox_against_statsmodels(time, ties):
    phreg = pytest.importorskip("statsmodels.duration.hazard_regression").PHReg
    model = phreg(time.numpy(), X.numpy(), status=EVENT.numpy(), ties=ties)
    form = Cox(ties)
    found = form.nll(F, form.prepare(torch.stack([time, EVENT], dim=1))).sum()
    assert abs(-float(found) - model.loglike(BETA.numpy())) < 1e-8


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_cox_gradients_are_scikit_survivals(ties):
    """At scikit-survival's maximum our gradient vanishes."""
    linear = pytest.importorskip("sksurv.linear_model")
    y = np.array(list(zip(EVENT.numpy() == 1, TIED.numpy())), dtype=[("event", bool), ("time", float)])
    fitted = linear.CoxPHSurvivalAnalysis(ties=ties, tol=1e-14, n_iter=200).fit(X.numpy(), y)
    beta = torch.tensor(fitted.coef_, requires_grad=True)
    form = Cox(ties)
    form.nll((X @ beta)[:, None], form.prepare(torch.stack([TIED, EVENT], dim=1))).sum().backward()
    assert float(beta.grad.abs().max()) < 1e-8
    if ties == "breslow":
        risk = torch.exp(X @ beta.detach())
        ours = form.with_baseline(risk, torch.stack([TIED, EVENT], dim=1))
        theirs = fitted.predict_survival_function(X.numpy())
        times = ours.times.numpy()
        expected = np.stack([f(times) for f in theirs])
        close(ours.survival(torch.log(risk)[:, None], ours.times), expected)


def test_cox_ignores_rows_of_weight_zero_and_counts_doubled_rows_twice():
    form = Cox("breslow")
    y = torch.stack([TIED, EVENT], dim=1)
    weight = torch.ones(N, dtype=torch.float64)
    weight[::4], weight[1::4] = 0.0, 2.0
    rows = torch.repeat_interleave(torch.arange(N), weight.long())
    expected = form.nll(F[rows], y[rows]).sum()
    torch.testing.assert_close(form.weighted_nll(F, y, weight).sum(), expected)
    kept = weight > 0
    efron = Cox("efron")
    ones = kept.double()
    torch.testing.assert_close(efron.weighted_nll(F, y, ones).sum(), efron.nll(F[kept], y[kept]).sum())


def test_cox_runs_under_vmap_and_with_extreme_scores():
    form = Cox()
    y = torch.stack([TIED, EVENT], dim=1)
    both = torch.func.vmap(form.nll, in_dims=(0, None))(torch.stack([F, 2.0 * F]), y)
    torch.testing.assert_close(both[1], form.nll(2.0 * F, y))
    wild = (300.0 * F).requires_grad_()
    form.nll(wild, y).sum().backward()
    assert torch.isfinite(wild.grad).all()


def test_a_cox_model_is_trained_in_full_batches_and_predicts_with_its_baseline():
    time = -torch.log(torch.rand(N, generator=G)) * torch.exp(-2.0 * X[:, 0]).float()
    y = torch.stack([time, EVENT.float()], dim=1)
    settings = sparsebnn.Settings(epochs=150, batch_size=N, learning_rate=0.05)
    run = sparsebnn.train(sparsebnn.mlp([3, 1]), (X.float(), y), likelihood="cox", settings=settings)
    found = sparsebnn.predict(run.network, X.float(), run.likelihood, n_draws=50)
    assert np.corrcoef(found.risk.numpy(), X[:, 0].numpy())[0, 1] > 0.9
    with pytest.raises(InvalidInput, match="baseline"):
        found.survival([1.0])
    form = run.likelihood.with_baseline(torch.exp(found.outputs[..., 0]).mean(0), y)
    assert isinstance(form, ProportionalHazards)
    whole = sparsebnn.predict(run.network, X.float(), form, n_draws=50)
    curve = whole.survival(form.times)
    assert bool((curve.diff(dim=1) <= 0).all())
    median = whole.quantiles([0.5])[0]
    at = torch.stack(
        [curve[i, int((form.times <= m).sum()) - 1] for i, m in enumerate(median) if m.isfinite()]
    )
    assert bool((at <= 0.5 + 1e-6).all())


# -- edge cases --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [0.0, 1.0], ids=["censored only", "all events"])
def test_edge_cases(event):
    events = torch.full((N,), event, dtype=torch.float64)
    y = torch.stack([TIED, events], dim=1)
    form, outputs = piecewise()
    full = form.nll(outputs, form.prepare(y))
    total = form.cumulative_hazard(outputs, TIED).diagonal()
    if not event:
        close(full, total.numpy(), 1e-10)
        assert float(Cox().nll(F, y).abs().sum()) == 0.0
    else:
        own = torch.tensor([form.baseline[int(np.searchsorted(CUTS, t))] for t in TIED.tolist()]) + F[:, 0]
        close(full, (total - own).numpy(), 1e-10)
        assert torch.isfinite(Cox().nll(F, y)).all()


def test_predictions_of_times():
    form = PiecewiseExponential([1.0, 2.0])
    found = sparsebnn.predict(sparsebnn.mlp([3, 4, 1]), X[:5].float(), form, n_draws=60)
    curve = found.survival([0.5, 1.0, 3.0])
    assert bool((curve.diff(dim=1) < 0).all())
    median = found.quantiles([0.5])[0]
    mass = form.cdf(found.outputs.double(), median[:, None]).mean(0)[:, 0]
    close(mass, np.full(5, 0.5), 1e-6)
    torch.testing.assert_close(found.cumulative_hazard([1.0]), -torch.log(found.survival([1.0])))


@pytest.mark.parametrize(
    ("form", "y", "named"),
    [
        (Cox(), [[0.0, 1.0]], "'time'"),
        (PiecewiseExponential([1.0]), [[-1.0, 1.0]], "'time'"),
        (PiecewiseExponential([1.0]), [[1.0, 2.0]], "'event'"),
        (DiscreteHazard([1.0]), [[1.0, 1.0, 1.0]], "'entry'"),
        (PiecewiseExponential([1.0]), [[2.0, 1.0, -1.0]], "'entry'"),
        (Cox(), [[2.0, 1.0, 0.5]], "'entry'"),
        (Cox(), [[float("inf"), 1.0]], "'y'"),
    ],
)
def test_impossible_times(form, y, named):
    with pytest.raises(InvalidInput, match=named):
        form.prepare(torch.tensor(y))


def test_intervals_need_events_and_rising_cuts():
    with pytest.raises(InvalidInput, match="event"):
        PiecewiseExponential.of(torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
    with pytest.raises(InvalidInput, match="'cuts'"):
        PiecewiseExponential([2.0, 1.0])
