"""SparseBNNSurvival: scikit-survival's conventions, units of time, edge cases and bad input."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone

from estimators.quick import QUICK
from sparsebnn import metrics
from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import SparseBNNSurvival, load
from sparsebnn.estimators.survival_targets import columns_of

FAST = {**QUICK, "epochs": 60, "temperature": 1.0}


def simulated(rows=160, seed=0):
    """Exponential times, hazard exp(1.2 x₀), a third censored."""
    random = np.random.RandomState(seed)
    x = random.randn(rows, 3)
    time, censored = random.exponential(np.exp(-1.2 * x[:, 0])), random.exponential(2.0, rows)
    y = np.zeros(rows, dtype=[("died", bool), ("days", float)])
    y["died"], y["days"] = time <= censored, np.minimum(time, censored)
    return x, y


X, Y = simulated()
NEW_X, NEW_Y = simulated(seed=1)


@pytest.fixture(scope="module", params=["piecewise_exponential", "discrete_hazard", "cox"])
def model(request):
    return SparseBNNSurvival(**FAST, likelihood=request.param).fit(X, Y)


def test_the_risk_orders_new_rows(model):
    score = model.score(NEW_X, NEW_Y)
    best = metrics.concordance(
        torch.from_numpy(NEW_X[:, 0]),
        torch.from_numpy(NEW_Y["days"].copy()),
        torch.from_numpy(NEW_Y["died"].copy()),
    )
    assert score > best - 0.06
    assert model.selected_features_.tolist() == ["x0"] or model.used_[0]


def test_the_score_is_scikit_survivals(model):
    sksurv = pytest.importorskip("sksurv.metrics")
    tied = np.round(model.predict(NEW_X), 1)
    days = np.round(NEW_Y["days"], 1)
    expected = sksurv.concordance_index_censored(NEW_Y["died"], days, tied)[0]
    found = metrics.concordance(
        *(torch.from_numpy(np.ascontiguousarray(v)) for v in (tied, days, NEW_Y["died"]))
    )
    assert found == pytest.approx(expected, abs=1e-12)


def test_survival_functions(model):
    functions = model.predict_survival_function(NEW_X[:4])
    values = model.predict_survival_function(NEW_X[:4], return_array=True)
    times = model.unique_times_
    assert (np.diff(times) > 0).all()
    np.testing.assert_array_equal(np.stack([f(times) for f in functions]), values)
    assert functions[0](0.0) == 1.0
    assert (np.diff(values, axis=1) <= 1e-12).all()
    hazards = model.predict_cumulative_hazard_function(NEW_X[:4], return_array=True)
    np.testing.assert_allclose(np.exp(-hazards), values, rtol=1e-9)
    np.testing.assert_allclose(model.predict_survival_function(NEW_X[:4], times=times[3:5]), values[:, 3:5])


@pytest.mark.parametrize("likelihood", ["cox", "discrete_hazard"])
def test_every_time_counts_its_own_event(likelihood, tmp_path):
    """Steps lie at the times of events, which have no exact value in single precision or in other units.

    With a hazard per event, −log S is the sum of 1 / (rows still at risk), up to what a useless column adds.
    """
    days = 7.0 * np.arange(1, 41)
    x = np.random.RandomState(0).randn(40, 1)
    model = SparseBNNSurvival(**{**FAST, "epochs": 150}, likelihood=likelihood, intervals=40).fit(x, days)
    again = load(model.save(tmp_path / "model.safetensors"))
    for each in (model, again):
        at = each.predict_cumulative_hazard_function(x, times=days)
        before = each.predict_cumulative_hazard_function(x, times=days * (1.0 - 1e-9))
        jumps = (at > before).all(0)
        # The cuts of the 40 intervals leave out the first time, which is within the first interval.
        assert jumps.sum() == 40 if likelihood == "cox" else jumps[1:].all()
        np.testing.assert_allclose(before[:, 1:], at[:, :-1], rtol=1e-12)
    if likelihood == "cox":
        expected = np.cumsum(1.0 / np.arange(40, 0, -1))
        np.testing.assert_allclose(at.mean(0), expected, rtol=0.15)
    median = model.predict_quantiles(x, 0.5)
    assert np.isin(np.round(median, 6), days).all()
    reached = [model.predict_survival_function(row[None], times=[t])[0, 0] for row, t in zip(x, median)]
    assert (np.array(reached) <= 0.5 + 1e-9).all()


def test_steps_are_those_of_kaplan_meier():
    """Times of censored rows between those of events are no steps."""
    model = SparseBNNSurvival(**{**FAST, "epochs": 20}, likelihood="cox").fit(X, Y)
    at, survival, _ = metrics.kaplan_meier(*(torch.from_numpy(Y[name].copy()) for name in ("days", "died")))
    assert model.unique_times_.tolist() == at[torch.diff(survival, prepend=torch.ones(1)) < 0].tolist()
    every = np.sort(Y["days"])
    steps = np.diff(model.predict_survival_function(X, times=every).mean(0), prepend=1.0)
    np.testing.assert_array_equal(every[steps < 0.0], model.unique_times_)


def test_quantiles_are_times_at_which_the_survival_function_crosses(model):
    median = model.predict_quantiles(NEW_X[:20], 0.5)
    for row, time in zip(NEW_X[:20], median):
        if np.isfinite(time):
            around = model.predict_survival_function(row[None], times=[time * (1 - 1e-6), time * (1 + 1e-6)])[
                0
            ]
            assert around[0] >= 0.5 - 1e-3 or model.likelihood != "piecewise_exponential"
            assert around[1] <= 0.5 + 1e-3


def test_survival_is_calibrated_against_kaplan_meier(model):
    """The mean predicted survival of new rows is inside four standard errors of Kaplan–Meier."""
    times, survival, error = (
        v.numpy()
        for v in metrics.kaplan_meier(
            torch.from_numpy(NEW_Y["days"].copy()), torch.from_numpy(NEW_Y["died"].copy())
        )
    )
    at = [np.searchsorted(times, t) for t in np.quantile(times, [0.25, 0.5, 0.75])]
    predicted = model.predict_survival_function(NEW_X, times=times[at]).mean(0)
    assert (np.abs(predicted - survival[at]) < 4.0 * error[at] + 0.03).all()


def test_save_and_load(model, tmp_path):
    again = load(model.save(tmp_path / "model.safetensors"))
    assert isinstance(again, SparseBNNSurvival)
    np.testing.assert_array_equal(again.predict(NEW_X), model.predict(NEW_X))
    np.testing.assert_array_equal(
        again.predict_survival_function(NEW_X, return_array=True),
        model.predict_survival_function(NEW_X, return_array=True),
    )
    assert "times until an event" in again.summary()


def test_kaplan_meier_is_scikit_survivals():
    nonparametric = pytest.importorskip("sksurv.nonparametric")
    days, entry = np.ceil(NEW_Y["days"] * 4), np.floor(NEW_Y["days"])
    for start in (None, entry):
        their_times, theirs = nonparametric.kaplan_meier_estimator(NEW_Y["died"], days, time_enter=start)
        given = None if start is None else torch.from_numpy(start)
        times, survival, _ = metrics.kaplan_meier(
            torch.from_numpy(days), torch.from_numpy(NEW_Y["died"].copy()), given
        )
        np.testing.assert_allclose(survival.numpy(), theirs[np.isin(their_times, times.numpy())], rtol=1e-12)


@pytest.mark.parametrize("likelihood", ["piecewise_exponential", "discrete_hazard", "cox"])
def test_units_of_time_do_not_matter(likelihood):
    """By a power of two bit for bit; in days instead of years up to rounding."""
    fits = []
    for unit in (1.0, 1024.0, 365.25):
        y = Y.copy()
        y["days"] *= unit
        fits.append(SparseBNNSurvival(**{**FAST, "epochs": 10}, likelihood=likelihood).fit(X, y))
    np.testing.assert_array_equal(fits[0].predict(NEW_X), fits[1].predict(NEW_X))
    np.testing.assert_allclose(fits[0].predict(NEW_X), fits[2].predict(NEW_X), atol=1e-3)
    median = fits[0].predict_quantiles(NEW_X, 0.5)
    np.testing.assert_allclose(1024.0 * median, fits[1].predict_quantiles(NEW_X, 0.5), rtol=1e-12)


@pytest.mark.parametrize(
    "y",
    [
        pd.DataFrame({"days": Y["days"], "died": Y["died"]}),
        pd.DataFrame({"died": Y["died"].astype(int), "days": Y["days"]}),
        pl.DataFrame({"time": Y["days"], "event": Y["died"]}),
        np.stack([Y["days"], Y["died"]], axis=1),
        pd.DataFrame({"entry": 0.0 * Y["days"], "status": Y["died"] * 1.0, "futime": Y["days"]}),
    ],
    ids=["pandas", "numbers", "polars", "array", "entry"],
)
def test_other_forms_of_targets(y):
    np.testing.assert_array_equal(columns_of(y), np.stack([Y["days"], Y["died"], 0.0 * Y["days"]], axis=1))


@pytest.mark.parametrize("name", ["censored", "cens", "is_censored", "Right-censored", "CENSORING"])
def test_a_field_of_censored_rows_is_no_field_of_events(name):
    """It is the opposite in most tables: read as events, it turns the risks around without a note."""
    y = pd.DataFrame({"days": Y["days"], name: ~Y["died"]})
    for given in (y, y.astype({name: int}), y.to_records(index=False)):
        with pytest.raises(InvalidInput, match=rf"'event' .*'{name}'.*not {name}"):
            SparseBNNSurvival(**FAST).fit(X, given)
    expected = np.stack([Y["days"], Y["died"], 0.0 * Y["days"]], axis=1)
    for event in ("died", "status"):  # next to a clear field of events it does no harm
        np.testing.assert_array_equal(columns_of(y.assign(**{event: Y["died"] * 1})), expected)
    np.testing.assert_array_equal(
        columns_of(pd.DataFrame({"days": Y["days"], "uncensored": Y["died"]})), expected
    )


@pytest.mark.parametrize("events", [1, 2, 12])
def test_discrete_hazards_of_few_events(events):
    """One interval would end at the last time of all, and nobody would have the event before."""
    days = np.arange(1.0, 31.0)
    y = pd.DataFrame({"time": days, "event": days <= events})
    x = np.random.RandomState(0).randn(30, 1)
    model = SparseBNNSurvival(**{**FAST, "epochs": 200}, likelihood="discrete_hazard").fit(x, y)
    curve = model.predict_survival_function(x, times=days).mean(0)
    falls = np.flatnonzero(np.diff(curve, prepend=1.0)[:events] < -1e-3)
    assert len(falls) >= min(4, (events + 1) // 2)
    assert curve[events - 1] < 1.0 - 0.8 * events / 30.0
    # Nobody is censored before the last event, so survival is the share of rows that is left.
    np.testing.assert_allclose(curve[falls], 1.0 - days[falls] / 30.0, atol=0.05)


def test_all_events_and_vectors_of_times():
    whole = SparseBNNSurvival(**{**FAST, "epochs": 5})
    events = np.array([(True, t) for t in Y["days"]], dtype=Y.dtype)
    one, other = clone(whole).fit(X, events), clone(whole).fit(X, Y["days"])
    np.testing.assert_array_equal(one.predict(NEW_X), other.predict(NEW_X))


@pytest.mark.parametrize(
    ("likelihood", "events"),
    [(name, len(X)) for name in ("piecewise_exponential", "discrete_hazard", "cox")]
    + [("piecewise_exponential", 1), ("cox", 1)],
)
def test_one_event_and_only_events(likelihood, events):
    """With one event among many rows nearly all survive; with events only, hardly anybody the last time."""
    y = Y.copy()
    y["died"] = np.arange(len(y)) >= len(y) - events
    model = SparseBNNSurvival(**{**FAST, "epochs": 200 if events == 1 else 30}, likelihood=likelihood)
    model.fit(X, y)
    assert np.isfinite(model.predict(NEW_X)).all()
    at_last = model.predict_survival_function(X, times=[y["days"].max()]).mean()
    assert at_last > 0.9 if events == 1 else at_last < 0.1


def test_left_truncation_changes_the_hazard():
    """Rows that enter late are known to have survived until then: ignoring it gives too low a hazard."""
    random = np.random.RandomState(0)
    time, entry = random.exponential(1.0, 4000), random.uniform(0.0, 1.5, 4000)
    seen = time > entry
    y = pd.DataFrame({"time": time[seen], "event": True, "entry": entry[seen]})
    x = random.randn(seen.sum(), 1)
    settings = {**FAST, "replicates": 1, "intervals": 1, "epochs": 30}
    right = SparseBNNSurvival(**settings).fit(x, y).predict_survival_function(x, times=[1.0]).mean()
    wrong = (
        SparseBNNSurvival(**settings)
        .fit(x, y[["time", "event"]])
        .predict_survival_function(x, times=[1.0])
        .mean()
    )
    assert right == pytest.approx(np.exp(-1.0), abs=0.03)
    assert wrong > right + 0.1


def _changed(**fields):
    y = pd.DataFrame({"time": Y["days"].copy(), "event": Y["died"].copy()})
    for name, value in fields.items():
        y[name] = value
    return y


@pytest.mark.parametrize(
    ("y", "named"),
    [
        (_changed(time=-Y["days"]), "'time'"),
        (_changed(time=np.where(Y["days"] > 1, np.nan, Y["days"])), "'time'"),
        (_changed(time="long"), "'time'"),
        (_changed(event=False), "'event'"),
        (_changed(event=np.where(Y["died"], "yes", "no")), "'event'"),
        (_changed(event=Y["died"] + 1.0), "'event'"),
        (_changed(entry=Y["days"]), "'entry'"),
        (_changed(entry=-1.0), "'entry'"),
        (np.ones((len(X), 5)), "'y'"),
        (pd.DataFrame({"a": Y["days"], "b": Y["days"]}), "'y'"),
    ],
)
def test_bad_targets(y, named):
    with pytest.raises(InvalidInput, match=named):
        SparseBNNSurvival(**FAST).fit(X, y)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"likelihood": "weibull"}, "'likelihood'"),
        ({"intervals": 0}, "'intervals'"),
        ({"likelihood": "cox", "proportional": False}, "'proportional'"),
    ],
)
def test_bad_settings(settings, named):
    with pytest.raises(InvalidInput, match=named):
        SparseBNNSurvival(**FAST, **settings).fit(X, Y)


def test_entries_and_cox():
    """The message quotes the table's numbers, not those of internal units."""
    entry = np.minimum(0.25, 0.5 * Y["days"])
    assert entry.max() == 0.25
    with pytest.raises(InvalidInput, match=r"'entry' .*Got 0\.25 instead"):
        SparseBNNSurvival(**FAST, likelihood="cox").fit(X, _changed(entry=entry))
