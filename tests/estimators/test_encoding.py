"""Tables to inputs: against values computed by hand, and against scikit-learn's scaler."""

import datetime
import json
import math
import warnings

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import ColumnWarning, SparseBNNClassifier, SparseBNNRegressor
from sparsebnn.estimators.columns import middle_and_std
from sparsebnn.estimators.encoding import Encoder, Table


def table(**columns):
    values = []
    for listed in columns.values():
        column = np.empty(len(listed), dtype=object)
        column[:] = listed
        values.append(column)
    return Table(tuple(columns), tuple(values), (False,) * len(values))


def learned(given, weight=None):
    return Encoder.learned(given, np.ones(len(given)) if weight is None else weight)


def test_numbers_as_scikit_learn_scales_them():
    x = np.random.RandomState(0).lognormal(size=(50, 4))
    ours = learned(Table.of(x)).transform(Table.of(x))
    np.testing.assert_allclose(ours, StandardScaler().fit_transform(x), rtol=1e-10)


@pytest.mark.parametrize("unit", [1e300, 1e-300])
def test_numbers_at_the_ends_of_the_range(unit):
    given = Table.of(unit * np.array([[1.0], [3.0]]))
    np.testing.assert_allclose(learned(given).transform(given), [[-1.0], [1.0]], rtol=1e-10)


def test_a_weight_of_two_is_two_rows():
    x = np.random.RandomState(1).randn(20, 3)
    twice = Table.of(np.concatenate([x, x[:5]]))
    weight = np.ones(20)
    weight[:5] = 2.0
    one, other = learned(Table.of(x), weight), learned(twice)
    np.testing.assert_allclose(one.columns[0].centre, other.columns[0].centre, rtol=1e-12)
    np.testing.assert_allclose(one.columns[2].scale, other.columns[2].scale, rtol=1e-12)


def test_gaps_become_the_average_and_an_indicator():
    given = table(a=[1.0, None, 3.0, float("nan")])
    encoder = learned(given)
    assert encoder.input_names == ["a", "a missing"]
    np.testing.assert_allclose(encoder.transform(given), [[-1, -1], [0, 1], [1, -1], [0, 1]])


def test_gaps_that_training_never_saw_count_as_the_average():
    encoder = learned(table(a=[1.0, 3.0]))
    assert encoder.transform(table(a=[None])).tolist() == [[0.0]]


def test_words_by_level_and_unknown_words_by_none():
    given = table(town=["b", "a", "c", "a"])
    encoder = learned(given)
    assert encoder.input_names == ["town=a", "town=b", "town=c"]
    column = encoder.columns[0]
    raw = encoder.transform(given) * column.scale + column.centre
    np.testing.assert_allclose(raw, [[0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0]], atol=1e-12)
    unknown = encoder.transform(table(town=["elsewhere"])) * column.scale + column.centre
    np.testing.assert_allclose(unknown, [[0, 0, 0]], atol=1e-12)


def test_unknown_words_stand_between_two_levels():
    given = table(arm=["drug", "control", "control", None])
    encoder = learned(given)
    assert encoder.input_names == ["arm=drug", "arm missing"]
    inputs = encoder.transform(table(arm=["control", "drug", "placebo", None]))
    np.testing.assert_allclose(inputs[2, 0], 0.0)
    assert inputs[0, 0] < inputs[2, 0] < inputs[1, 0]
    assert inputs[3, 0] == 0.0
    assert inputs[2, 1] == inputs[0, 1] < inputs[3, 1]  # unknown is not missing


@pytest.mark.parametrize("seed", [0, 1])
def test_predictions_for_unknown_words_are_in_between(seed):
    random = np.random.RandomState(seed)
    arm = np.array(["control", "drug"])[(random.rand(150) < 0.4).astype(int)]
    y = random.rand(150) < np.where(arm == "drug", 0.9, 0.1)
    model = SparseBNNClassifier(random_state=0, epochs=150, replicates=2, n_draws=20).fit(table(arm=arm), y)
    control, drug, placebo = model.predict_proba(table(arm=["control", "drug", "placebo"]))[:, 1]
    assert control + 0.1 < placebo < drug - 0.1


def test_dates_as_time_and_season():
    days = [datetime.date(2020, 1, 1), "2020-07-01", datetime.datetime(2021, 1, 1, 12)]
    encoder = learned(table(day=days))
    column = encoder.columns[0]
    assert column.kind == "date"
    raw = encoder.transform(table(day=days)) * column.scale + column.centre
    expected = [
        (d - datetime.datetime(1970, 1, 1)).total_seconds() / 86400
        for d in (
            datetime.datetime(2020, 1, 1),
            datetime.datetime(2020, 7, 1),
            datetime.datetime(2021, 1, 1, 12),
        )
    ]
    np.testing.assert_allclose(raw[:, 0], expected, rtol=1e-12)
    np.testing.assert_allclose((raw[:, 1:] ** 2).sum(1), 1.0, rtol=1e-10)


@pytest.mark.parametrize(
    ("values", "constant"),
    [
        ([5.0] * 4, True),
        (["x"] * 4, True),
        ([None] * 4, False),
        ([f"id{i}" for i in range(100)], False),
    ],
)
def test_columns_without_information_are_dropped(values, constant):
    column = learned(table(a=values)).columns[0]
    assert (column.kind, column.constant, column.inputs) == ("dropped", constant, ())


def test_numeric_strings_are_numbers():
    assert learned(table(a=["1", "2.5", "-3e2"])).columns[0].kind == "number"


def raw(encoder, given):
    """The inputs of the first column before they were standardised."""
    column = encoder.columns[0]
    return encoder.transform(given) * np.array(column.scale) + np.array(column.centre)


def test_decimal_commas():
    encoder = learned(table(a=["1,5", "2", None, "-0,25"]))
    assert (encoder.columns[0].kind, encoder.columns[0].form) == ("number", "comma")
    new = raw(encoder, table(a=["1,234", "7", "7.5", 3.5]))
    np.testing.assert_allclose(new[:, 0], [1.234, 7.0, 7.5, 3.5])
    assert "decimal commas" in encoder.notes[0]


def test_commas_that_may_stand_before_thousands_are_not_guessed():
    column = learned(table(a=[f"{k},000" for k in range(1, 80)])).columns[0]
    assert column.kind == "dropped"
    assert "thousands" in column.note


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["31/12/2023", "1/2/2024", "15/2/2024 06:00"], "dates are read as day/month/year"),
        (["31.12.2023", "01.02.2024", "15.02.2024 06:00:00"], "dates are read as day/month/year"),
        (["12/31/2023", "2/1/2024", "2/15/2024 06:00"], "dates are read as month/day/year"),
        (["2023-12-31T00:00:00Z", "2024-02-01T00:00Z", "2024-02-15T08:00:00+02:00"], ""),
        (["2023-12-31 00:00", "2024-02-01", "2024-02-15T03:00:00.000-0300"], ""),
    ],
)
def test_dates_are_read_in_the_usual_spellings(words, note):
    given = table(d=words)
    encoder = learned(given)
    assert (encoder.columns[0].kind, encoder.columns[0].note) == ("date", note)
    moments = [
        datetime.datetime(2023, 12, 31),
        datetime.datetime(2024, 2, 1),
        datetime.datetime(2024, 2, 15, 6),
    ]
    expected = [(m - datetime.datetime(1970, 1, 1)).total_seconds() / 86400 for m in moments]
    np.testing.assert_allclose(raw(encoder, given)[:, 0], expected, rtol=1e-12)
    np.testing.assert_allclose(raw(encoder, table(d=["2024-02-01"]))[:, 0], expected[1], rtol=1e-12)


def test_day_and_month_that_no_row_tells_apart_are_noted():
    encoder = learned(table(d=["01/02/2024", "03/04/2024", "05/12/2024"]))
    assert "day/month/year" in encoder.notes[0]
    with pytest.raises(InvalidInput) as error:
        encoder.transform(table(d=["12/31/2024"]))
    assert str(error.value) == (
        "The 'd' of the table must be dates. Got '12/31/2024' instead. "
        "In training this column held dates only, such as 31/05/2024 or 2024-05-31."
    )


def test_durations_and_periods_of_frames():
    pl, pd = pytest.importorskip("polars"), pytest.importorskip("pandas")
    spans = [datetime.timedelta(hours=1), None, datetime.timedelta(seconds=0.5)]
    frames = [
        pd.DataFrame({"d": pd.to_timedelta(pd.Series(spans))}),
        pd.DataFrame({"d": pd.Series(spans, dtype=object)}),
        pl.DataFrame({"d": spans}),
    ]
    for frame in frames:
        encoder = learned(Table.of(frame))
        assert (encoder.columns[0].kind, encoder.columns[0].gaps) == ("number", True)
        np.testing.assert_allclose(raw(encoder, Table.of(frame))[[0, 2], 0], [3600.0, 0.5])
    months = pd.DataFrame({"m": pd.PeriodIndex(["2020-01", "2020-02", None], freq="M")})
    encoder = learned(Table.of(months))
    assert (encoder.columns[0].kind, encoder.columns[0].gaps) == ("date", True)
    np.testing.assert_allclose(np.diff(raw(encoder, Table.of(months))[:2, 0]), 31.0)


def test_columns_left_out_are_named(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"id": [f"id{k}" for k in range(80)], "same": 1.0, "x": np.arange(80.0)})
    model = SparseBNNClassifier(random_state=0, epochs=2, replicates=1, hidden=(4,), n_draws=2)
    with pytest.warns(ColumnWarning) as caught:
        model.fit(frame, [0, 1] * 40)
    (warning,) = caught
    assert "'id'" in str(warning.message)
    assert "'same'" not in str(warning.message)
    assert warning.filename == __file__
    assert [note.split("'")[1] for note in model.notes_] == ["id", "same"]
    again = SparseBNNClassifier.load(model.save(tmp_path / "m.safetensors"))
    assert again.notes_ == model.notes_
    # The command line, which hands over such a table, shows the notes itself: no warning.
    assert model.fit(Table.of(frame), [0, 1] * 40).notes_ == again.notes_


def test_survives_json():
    given = table(a=[1.0, None, 3.0], b=["x", "y", "z"], c=["2020-01-01", "2020-01-02", "2020-03-01"])
    encoder = learned(given)
    again = Encoder.of_record(json.loads(json.dumps(encoder.record())))
    assert again == encoder
    assert (again.transform(given) == encoder.transform(given)).all()


def test_frames_of_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "n": pandas.array([1, None, 3], dtype="Int64"),
            "c": pandas.Categorical([1, 2, 1]),
            "d": pandas.to_datetime(["2020-01-01", None, "2021-01-01"]),
            "s": ["a", None, "b"],
        }
    )
    encoder = learned(Table.of(frame))
    assert [c.kind for c in encoder.columns] == ["number", "category", "date", "category"]
    assert [c.gaps for c in encoder.columns] == [True, False, True, True]
    assert np.isfinite(encoder.transform(Table.of(frame))).all()


def test_polars_frames():
    pl = pytest.importorskip("polars")
    days = [datetime.date(2020, 1, 1), None, datetime.date(2021, 5, 5)]
    frame = pl.DataFrame(
        {
            "n": [1, None, 3],
            "f": [0.5, float("nan"), None],
            "s": ["a", "b", None],
            "c": pl.Series(["u", None, "u"], dtype=pl.Categorical),
            "e": pl.Series(["u", "v", "u"], dtype=pl.Enum(["u", "v"])),
            "b": [True, None, False],
            "d": days,
            "t": pl.Series(days).cast(pl.Datetime),
            "empty": pl.Series([None, None, None], dtype=pl.Null),
        }
    )
    encoder = learned(Table.of(frame))
    found = [(c.name, c.kind, c.gaps) for c in encoder.columns]
    assert found[:5] == [
        ("n", "number", True),
        ("f", "number", True),
        ("s", "category", True),
        ("c", "category", True),
        ("e", "category", False),
    ]
    assert [kind for _, kind, _ in found[6:]] == ["date", "date", "dropped"]
    assert np.isfinite(encoder.transform(Table.of(frame))).all()


def test_polars_and_pandas_say_the_same():
    pl, pd = pytest.importorskip("polars"), pytest.importorskip("pandas")
    random, start = np.random.RandomState(0), datetime.datetime(2020, 1, 1)
    columns = {
        "n": [None if random.rand() < 0.2 else float(v) for v in random.randn(60)],
        "i": random.randint(0, 9, 60).tolist(),
        "s": random.choice(["a", "b", "c"], 60).tolist(),
        "b": (random.rand(60) > 0.5).tolist(),
        "d": [start + datetime.timedelta(days=int(k)) for k in random.randint(0, 900, 60)],
    }
    label = ["yes" if i > 4 else "no" for i in columns["i"]]
    frames = pl.DataFrame(columns), pd.DataFrame(columns)
    probs = []
    for frame, y in zip(frames, (pl.Series(label), pd.Series(label))):
        model = SparseBNNClassifier(random_state=0, epochs=10, replicates=2).fit(frame, y)
        probs.append(model.predict_proba(frame))
        assert list(model.feature_names_in_) == list(columns)
    np.testing.assert_array_equal(*probs)


def test_names_of_polars_frames_are_those_of_training():
    """With every scikit-learn: some of them read no names from a polars frame."""
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"a": np.arange(20.0), "b": np.arange(20.0)[::-1] ** 2})
    quick = {"epochs": 2, "replicates": 1, "hidden": (4,), "n_draws": 2}
    model = SparseBNNClassifier(**quick).fit(frame, [0, 1] * 10)
    assert model.predict(frame).shape == (20,)
    for other, got in ((frame.select("b", "a"), "b, a"), (frame.rename({"b": "c"}), "a, c")):
        with pytest.raises(InvalidInput) as caught:
            model.predict(other)
        assert "'columns'" in str(caught.value)
        assert got in str(caught.value)


def test_a_table_for_a_network_trained_on_an_array():
    """There are no names to compare: the columns are taken in their order, and must be as many."""
    x = np.random.RandomState(0).randn(20, 2)
    quick = {"epochs": 2, "replicates": 1, "hidden": (4,), "n_draws": 2}
    model = SparseBNNClassifier(**quick).fit(x, [0, 1] * 10)
    np.testing.assert_array_equal(model.predict_proba(table(a=x[:, 0], b=x[:, 1])), model.predict_proba(x))
    with pytest.raises(InvalidInput, match="'number of columns'"):
        model.predict(table(a=x[:, 0]))


@pytest.mark.parametrize(
    ("training", "new"),
    [([1.0, 2.0], "often"), (["2020-01-01", "2020-01-02"], "soon"), ([1.0, 2.0], float("inf"))],
)
def test_values_that_do_not_fit_their_column_are_rejected(training, new):
    encoder = learned(table(a=training))
    with pytest.raises(InvalidInput, match="The 'a' of the table"):
        encoder.transform(table(a=[new]))


def test_leading_zeros_do_not_make_a_category():
    encoder = learned(table(n=["02139", "10115", "007", None]))
    assert [column.kind for column in encoder.columns] == ["number"]
    plain = learned(table(n=[2139.0, 10115.0, 7.0, np.nan]))
    np.testing.assert_array_equal(
        encoder.transform(table(n=["007", "7", "02139"])), plain.transform(table(n=[7.0, 7.0, 2139.0]))
    )


# -- values far off -----------------------------------------------------------------------------------


def ordinary(rows=300, seed=0):
    return np.random.RandomState(seed).randn(rows, 3)


@pytest.mark.parametrize("value", [1e12, -1e12, 1e300])
def test_a_value_far_off_does_not_hide_the_others(value):
    """The others are told apart as they are without it; the far one stays at the end of its side."""
    x = ordinary()
    x[7, 1] = value
    encoder = learned(Table.of(x))
    found = encoder.transform(Table.of(x))
    others = np.delete(np.arange(300), 7)
    plain = learned(Table.of(x[others])).transform(Table.of(x[others]))
    assert np.corrcoef(found[others, 1], plain[:, 1])[0, 1] > 1.0 - 1e-9
    assert 0.5 < found[others, 1].std() < 1.0
    assert np.abs(found[7, 1]) == np.abs(found[:, 1]).max() < 20.0
    assert np.sign(found[7, 1]) == np.sign(value)
    (note,) = encoder.notes
    assert "'x1'" in note
    again = Encoder.of_record(json.loads(json.dumps(encoder.record())))
    np.testing.assert_array_equal(again.transform(Table.of(x)), found)


def test_the_limits_by_hand():
    x = np.append(np.arange(101.0), [1e12, 1e12])[:, None]
    column = learned(Table.of(x)).columns[0]
    # Of 103 rows the 11th and the 93rd have a tenth and nine tenths of the rows up to them.
    assert column.limits == (10.0 - 10 * 82.0, 92.0 + 10 * 82.0)
    cut = np.minimum(x, 912.0)
    assert column.centre[0] == pytest.approx(cut.mean())
    assert column.scale[0] == pytest.approx(cut.std())
    assert "-810 to 912" in column.note


@pytest.mark.parametrize(
    "make",
    [
        lambda r: r.randn(500),
        lambda r: r.lognormal(sigma=2.0, size=500),
        lambda r: r.standard_cauchy(500).clip(-1e3, 1e3),
        lambda r: r.poisson(0.05, 500).astype(float),
        lambda r: np.where(r.rand(500) < 0.97, 0.0, 1e5 * r.rand(500)),
        lambda r: r.choice([0.0, 1e12], 500),
        lambda r: 1e6 + r.rand(500),
    ],
    ids=["normal", "lognormal", "heavy", "counts", "mostly zero", "two values", "far from zero"],
)
def test_ordinary_columns_are_left_as_they_are(make):
    x = make(np.random.RandomState(0))[:, None]
    column = learned(Table.of(x)).columns[0]
    assert (column.limits, column.note) == ((), "")
    assert column.centre[0] == pytest.approx(x.mean())
    assert column.scale[0] == pytest.approx(x.std())


def test_a_row_of_weight_two_counts_twice_where_values_are_far_off():
    x = np.append(np.random.RandomState(0).randn(40), 1e12)[:, None]
    weight = 1.0 + (np.arange(41) % 3 == 0)
    twice = np.repeat(x, weight.astype(int), axis=0)
    one, two = learned(Table.of(x), weight).columns[0], learned(Table.of(twice)).columns[0]
    assert one.limits == two.limits
    assert one.centre == pytest.approx(two.centre)
    assert one.scale == pytest.approx(two.scale)


def test_a_date_far_off_is_shown_as_a_date():
    days = np.datetime64("2020-01-01") + np.arange(4000) % 50
    days[5] = np.datetime64("9999-12-31")
    days[6] = np.datetime64("0001-01-01")
    column = learned(Table(("when",), (days,), (False,))).columns[0]
    # Of 80 rows a day, the 400th is of 5 January and the 3600th of 15 February, 41 days later.
    assert "2018-11-21 to 2021-03-31" in column.note


@pytest.mark.parametrize("gap", [False, True])
def test_the_estimator_learns_from_the_rest_and_warns(gap):
    x = ordinary()
    y = x[:, 0] > 0
    x[5, 0] = 1e12
    if gap:
        x[9, 0] = np.nan
    with pytest.warns(ColumnWarning) as caught:
        model = SparseBNNClassifier(random_state=0, epochs=30, replicates=1).fit(x, y)
    (told,) = caught
    assert "'x0'" in str(told.message)
    assert told.filename == __file__
    assert model.score(x, y) > 0.95
    x[:, 0] = 1e30
    assert np.isfinite(model.predict_proba(x)).all()


def test_a_target_far_off_is_named_and_not_changed():
    x = ordinary()
    y = x[:, 0].copy()
    y[3] = 1e12
    with pytest.warns(ColumnWarning) as caught:
        model = SparseBNNRegressor(random_state=0, epochs=2, replicates=1).fit(x, y)
    (told,) = caught
    assert "target" in str(told.message)
    assert told.filename == __file__
    assert model.notes_ == [str(told.message)]
    assert model._y_mean[0] == pytest.approx(y.mean())
    # A row that does not count does not count here either.
    weight = np.where(np.arange(len(y)) == 3, 0.0, 1.0)
    assert (
        SparseBNNRegressor(random_state=0, epochs=2, replicates=1).fit(x, y, sample_weight=weight).notes_
        == []
    )


def test_a_column_with_gaps_keeps_the_sign_of_its_effect():
    """Its second input only says where gaps are. A column of several levels has none, as the legend says."""
    rng = np.random.RandomState(0)
    x = rng.randn(300)
    y = np.where(x < 0, "well", "ill")
    given = np.where(rng.rand(300) < 0.1, np.nan, x)
    columns = table(age=given.tolist(), town=rng.choice(["A", "B", "C"], 300).tolist())
    model = SparseBNNClassifier(random_state=0, epochs=40, replicates=1).fit(columns, y)
    effects = model.effects_
    assert effects.direction == ("-", None)
    assert effects.high[0] < 0.0 < effects.low[1]
    lines = model.summary().splitlines()
    age, town = (next(line for line in lines if line.startswith(name)).split() for name in ("age", "town"))
    assert age[3].startswith("-")
    assert town[3][0].isdigit()
    assert "        without a sign, of a column of several inputs: its mean absolute contribution" in lines
    alone = SparseBNNClassifier(random_state=0, epochs=5, replicates=1).fit(x[:, None], y)
    assert "without a sign" not in alone.summary()


def test_an_explanation_adds_up():
    x = ordinary(60)
    wide = np.hstack([x, ordinary(60, 1), ordinary(60, 2), ordinary(60, 3)])
    model = SparseBNNClassifier(random_state=0, epochs=3, replicates=1).fit(wide, x[:, 0] > 0)
    lines = model.explain(wide[:1]).table(most=4).splitlines()[1:]
    assert lines[4].split()[:2] == ["8", "others"]
    numbers = [float(line.split()[1]) for line in lines[:4]] + [float(lines[4].split()[2])]
    base, total = float(lines[5].split()[1]), float(lines[6].split()[-1])
    assert sum(numbers) + base == pytest.approx(total, abs=0.005)
    assert "others" not in model.explain(wide[:1]).table(most=12)


# -- numbers that may stand for a missing value -------------------------------------------------------


@pytest.mark.parametrize(("word", "share"), [(-999.0, 0.3), (9999.0, 0.05), (-9.0, 0.5)])
def test_a_number_of_nines_far_from_the_others_is_pointed_out(word, share):
    """It is read as the number it is: only the table's owner can know."""
    x = ordinary()
    x[: int(300 * share), 1] = word
    with pytest.warns(ColumnWarning) as caught:
        model = SparseBNNClassifier(random_state=0, epochs=2, replicates=1).fit(x, x[:, 0] > 0)
    assert len(caught) == 1
    assert f"'x1' ({word:g} in {share:.1%}" in str(caught[0].message)
    assert any("'x1'" in note for note in model.notes_)
    column = model._encoder.columns[1]
    assert column.sentinel == word
    assert column.centre[0] == pytest.approx(x[:, 1].mean())


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 3.0, 9.0, 9.0],  # 9 may be a number like any other
        [97.0, 98.0, 99.0, 99.0],  # the end of a scale
        [1.0, 2.0, 3.0, 99.0],  # once
        [0.0, 0.0, 99.0, 99.0],  # one of two levels
        [1.0, 2.0, 150.0, 150.0],
        [1.0, 2.0, 99.5, 99.5],
        [math.nan, 1.0, 2.0, 3.0],
    ],
)
def test_other_numbers_are_not_pointed_out(values):
    assert learned(Table.of(np.array(values)[:, None])).notes == []


# -- scales ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 1.7e18, -1.7e9, 1e12])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e9])
def test_numbers_far_from_zero_beside_their_spread_are_scaled(shift, size):
    """Times in nanoseconds, ids: what floats can tell apart, the network can."""
    x = shift + size * np.arange(200.0)
    if np.unique(x).size < 150:
        pytest.skip("floats cannot tell these apart")
    found = learned(Table.of(x[:, None])).transform(Table.of(x[:, None]))[:, 0]
    assert found.std() == pytest.approx(1.0, rel=1e-6)
    assert abs(found.mean()) < 1e-3
    assert np.corrcoef(found, np.arange(200.0))[0, 1] > 0.999


@pytest.mark.parametrize("scale", [1e-200, 1e200])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_scale_of_very_large_and_very_small_numbers(scale, weighted):
    x = np.random.RandomState(0).randn(300)
    weight = 1.0 + weighted * (np.arange(300) % 3)
    middle, std = middle_and_std(scale * x, weight)
    mean = np.average(x, weights=weight)
    assert middle / scale == pytest.approx(mean)
    assert std / scale == pytest.approx(math.sqrt(np.average((x - mean) ** 2, weights=weight)))


def test_a_spread_of_last_digits_is_not_blown_up():
    x = np.where(np.arange(100) % 2, 0.1 + 0.2, 0.3)[:, None]
    assert np.abs(learned(Table.of(x)).transform(Table.of(x))).max() < 1e-12


@pytest.mark.parametrize("scale", [1e-3, 1e-200])
def test_a_target_far_from_zero_is_learned(scale):
    x = np.random.RandomState(0).randn(200, 2)
    shift = 1e9 if scale == 1e-3 else 0.0
    model = SparseBNNRegressor(random_state=0, replicates=2, epochs=60).fit(x, shift + scale * x[:, 0])
    found = (model.predict(x) - shift) / scale
    assert np.corrcoef(found, x[:, 0])[0, 1] > 0.9


def test_weights_that_sum_to_one_are_pointed_out():
    x = ordinary()
    with pytest.warns(ColumnWarning, match="weights"):
        model = SparseBNNClassifier(random_state=0, epochs=2, replicates=1).fit(
            x, x[:, 0] > 0, np.full(300, 1 / 300)
        )
    assert any("weights" in note for note in model.notes_)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SparseBNNClassifier(random_state=0, epochs=2, replicates=1).fit(x, x[:, 0] > 0, np.full(300, 0.5))
