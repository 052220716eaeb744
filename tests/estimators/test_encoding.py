"""Tables to inputs: against values computed by hand, and against scikit-learn's scaler."""

import datetime
import functools
import json
import math
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import ColumnWarning, Encoder, SparseBNNClassifier, SparseBNNRegressor, Table
from sparsebnn.estimators.columns import encode, learn, middle_and_std
from sparsebnn.estimators.encoding import warn_of_columns
from sparsebnn.estimators.target_codes import signal
from sparsebnn.io.cells import to_objects

QUICK = {"random_state": 0, "epochs": 2, "replicates": 1, "hidden": (4,), "n_draws": 2}


def frame(**columns):
    """Columns of Python objects, as a reader of text gives them."""
    return pd.DataFrame({name: pd.Series(list(values), dtype=object) for name, values in columns.items()})


def learned(x, weight=None):
    given = Table.of(x)
    return Encoder.learned(given, np.ones(len(given)) if weight is None else weight)


def encoded(encoder, x):
    return encoder.transform(Table.of(x))


def raw(encoder, x):
    """The inputs of the first column before they were standardized."""
    column = encoder.columns[0]
    return encoded(encoder, x) * np.array(column.scale) + np.array(column.centre)


def ordinary(rows=300, seed=0):
    return np.random.RandomState(seed).randn(rows, 3)


# -- numbers ------------------------------------------------------------------------------------------


def test_numbers_as_scikit_learn_scales_them():
    x = np.random.RandomState(0).lognormal(size=(50, 4))
    np.testing.assert_allclose(encoded(learned(x), x), StandardScaler().fit_transform(x), rtol=1e-10)


def test_a_weight_of_two_is_two_rows():
    x = np.random.RandomState(1).randn(20, 3)
    one, other = learned(x, 1.0 + (np.arange(20) < 5)), learned(np.concatenate([x, x[:5]]))
    np.testing.assert_allclose(one.columns[0].centre, other.columns[0].centre, rtol=1e-12)
    np.testing.assert_allclose(one.columns[2].scale, other.columns[2].scale, rtol=1e-12)


def test_gaps_become_the_average_and_an_indicator():
    given = frame(a=[1.0, None, 3.0, float("nan")])
    encoder = learned(given)
    assert encoder.input_names == ["a", "a missing"]
    np.testing.assert_allclose(encoded(encoder, given), [[-1, -1], [0, 1], [1, -1], [0, 1]])
    # Training without gaps has no indicator.
    assert encoded(learned(frame(a=[1.0, 3.0])), frame(a=[None])).tolist() == [[0.0]]


# -- text ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["1", "2.5", "-3e2"], [1.0, 2.5, -300.0]),
        (["00200", "?", " 00043"], [200.0, np.nan, 43.0]),  # A14 of the UCI credit approval table
        (["01", "02", "NA", ""], [1.0, 2.0, np.nan, np.nan]),
        ([1, "2", None], [1.0, 2.0, np.nan]),
    ],
)
@pytest.mark.parametrize("kind", [frame, lambda a: pl.DataFrame({"a": a}, strict=False)])
def test_text_that_holds_numbers(cells, numbers, kind):
    encoder = learned(kind(a=cells))
    assert encoder.columns[0].kind == "number"
    gaps = np.isnan(numbers)
    np.testing.assert_allclose(raw(encoder, kind(a=cells))[~gaps, 0], np.array(numbers)[~gaps])
    assert encoder.columns[0].gaps == gaps.any()
    assert (encoded(encoder, kind(a=cells))[gaps, 0] == 0.0).all()


@pytest.mark.parametrize("cells", [["1,5", "2,5", "1,5"], ["2000_01", "2000_02"], ["12:30", "7"], ["?", "x"]])
def test_other_text_is_a_category(cells):
    column = learned(frame(a=cells)).columns[0]
    assert column.kind == "category"
    assert {*column.levels, column.reference} - {None} == set(cells)


@pytest.mark.parametrize(
    ("cells", "numbers", "unit"),
    [
        (["45%", " 4.5 %", "?"], [45.0, 4.5, np.nan], "percent"),
        (["14:30", "9:05", None], [14.5, 9 + 5 / 60, np.nan], "hours"),
        (["14:30:36", "00:00:00.0"], [14.51, 0.0], "hours"),
        ([datetime.time(14, 30, 36), None, datetime.time(1)], [14.51, np.nan, 1.0], "hours"),
    ],
)
@pytest.mark.parametrize("kind", [frame, lambda a: pl.DataFrame({"a": a})])
@pytest.mark.parametrize("asked", [None, "number"])
def test_percentages_and_times_are_numbers(cells, numbers, unit, kind, asked):
    encoder = Encoder.learned(Table.of(kind(a=cells)), np.ones(len(cells)), {"a": asked} if asked else None)
    assert encoder.columns[0].kind == "number"
    assert unit in encoder.notes[0]
    there = ~np.isnan(numbers)
    np.testing.assert_allclose(raw(encoder, kind(a=cells))[there, 0], np.array(numbers)[there], atol=1e-12)
    np.testing.assert_allclose(raw(encoder, frame(a=[numbers[0]]))[:, 0], numbers[0])
    with pytest.raises(InvalidInput, match="The 'a' of the table"):  # text without a sign has another unit
        encoded(encoder, frame(a=["0.45"]))


@pytest.mark.parametrize(
    ("cells", "named"),
    [
        (["7", "8", "9.5"] * 6 + ["unknown"], "'unknown' (1×)"),
        (["$1,200", "$900"] * 6, "'$1,200' (6×), '$900' (6×)"),
        (["45%", "0.3"] * 6, "'45%' (6×)"),
    ],
)
def test_words_and_signs_among_numbers_are_pointed_out(cells, named):
    encoder = learned(frame(a=cells))
    assert encoder.columns[0].kind == "category"
    with pytest.warns(ColumnWarning, match="'a'") as caught:
        warn_of_columns(encoder)
    assert named in str(caught[0].message)
    assert learned(frame(a=["low", "7", "8"] * 6)).notes == []


MOMENTS = [datetime.datetime(2023, 12, 31), datetime.datetime(2024, 2, 1), datetime.datetime(2024, 2, 15, 6)]


@pytest.mark.parametrize(
    "cells",
    [
        ["31/12/2023 00:00", "1/2/2024 0:00", "15/2/2024 06:00"],
        ["31.12.2023 00:00:00", "01.02.2024 00:00:00", "15.02.2024 06:00:00"],
        ["12/31/2023 0:00", "2/1/2024 0:00", "2/15/2024 6:00"],
        ["2023-12-31T00:00:00Z", "2024-02-01T00:00Z", "2024-02-15T08:00:00+02:00"],
        ["2023-12-31 00:00", "2024-02-01", "2024-02-15T03:00:00.000-0300"],
        [datetime.date(2023, 12, 31), "2024-02-01", datetime.datetime(2024, 2, 15, 6)],
        [m.replace(tzinfo=datetime.timezone.utc) for m in MOMENTS],
        MOMENTS,
    ],
)
def test_dates_as_time_and_season(cells):
    given = frame(d=cells)
    encoder = learned(given)
    assert encoder.columns[0].kind == "date"
    found = raw(encoder, given)
    expected = [(m - datetime.datetime(1970, 1, 1)).total_seconds() / 86400 for m in MOMENTS]
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-12)
    np.testing.assert_allclose(found[:, 1], np.sin(2 * np.pi * np.array(expected) / 365.2425), atol=1e-9)
    np.testing.assert_allclose((found[:, 1:] ** 2).sum(1), 1.0, rtol=1e-10)
    np.testing.assert_allclose(raw(encoder, frame(d=["2024-02-01"]))[:, 0], expected[1], rtol=1e-12)


@pytest.mark.parametrize("cells", [["2023-12", "2024-02"], ["2023/12", "2024/02"], ["12/2023", "02/2024"]])
def test_months_are_their_first_day(cells):
    encoder = learned(frame(d=cells))
    assert encoder.columns[0].kind == "date"
    days = [
        (np.datetime64(day) - np.datetime64("1970-01-01")).astype(int) for day in ("2023-12-01", "2024-02-01")
    ]
    np.testing.assert_allclose(raw(encoder, frame(d=cells))[:, 0], days)
    assert learned(frame(d=["2023-24", "2024-25"])).columns[0].kind == "category"


def test_dates_with_the_year_first_and_slashes():
    cells = ["2023/12/31", "2024/02/01"]
    np.testing.assert_array_equal(
        encoded(learned(frame(d=cells)), frame(d=cells)),
        encoded(learned(frame(d=["2023-12-31", "2024-02-01"])), frame(d=["2023-12-31", "2024-02-01"])),
    )


def test_dates_without_an_order_of_day_and_month_are_left_out():
    column = learned(frame(d=["01/02/2024", "03/04/2024", "05/12/2024"])).columns[0]
    assert (column.kind, column.constant) == ("dropped", False)
    assert learned(frame(d=["01.02.2024", "03.04.2024"])).columns[0].form == "%d.%m.%Y"


@pytest.mark.parametrize(
    ("training", "new"),
    [
        ([1.0, 2.0], "often"),
        ([1.0, 2.0], float("inf")),
        ([1.0, 2.0], datetime.datetime(2020, 1, 1)),
        (["2020-01-01", "2020-01-02"], "soon"),
        (["2020-01-01", "2020-01-02"], 5.0),
        (["2020-01-01", "2020-01-02"], "2020-02-30"),
        (["31/01/2020", "02/01/2020"], "12/31/2020"),
    ],
)
def test_values_of_another_kind_are_rejected(training, new):
    with pytest.raises(InvalidInput, match="The 'a' of the table"):
        encoded(learned(frame(a=training)), frame(a=[new]))


def test_text_in_a_column_asked_for_as_numbers():
    """Before there is a training, a message must not refer to it."""
    with pytest.raises(InvalidInput, match=r"'a' of the table .*as asked for.*'low'") as caught:
        Encoder.learned(Table.of(frame(a=["1", "low"])), np.ones(2), {"a": "number"})
    assert "in training" not in str(caught.value)
    encoder = Encoder.learned(Table.of(frame(a=["1", "2"])), np.ones(2), {"a": "number"})
    with pytest.raises(InvalidInput, match="as in training"):
        encoded(encoder, frame(a=["low"]))


# -- categories ---------------------------------------------------------------------------------------


def test_words_by_level_and_unknown_words_by_none():
    given = frame(town=["b", "a", "c", "a"])
    encoder = learned(given)
    assert encoder.input_names == ["town=a", "town=b", "town=c"]
    np.testing.assert_allclose(raw(encoder, given), [[0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0]], atol=1e-12)
    np.testing.assert_allclose(raw(encoder, frame(town=["elsewhere"])), [[0, 0, 0]], atol=1e-12)


@pytest.mark.parametrize("kind", [list, pd.Categorical])
def test_white_space_around_words_does_not_matter(kind):
    given = pd.DataFrame({"town": kind(["b", "a ", " b", "a", "c", "c\t"])})
    encoder = learned(given)
    assert encoder.input_names == ["town=a", "town=b", "town=c"]
    inputs = encoded(encoder, given)
    np.testing.assert_array_equal(inputs[::2], inputs[[2, 0, 4]])
    np.testing.assert_array_equal(inputs[1], inputs[3])
    np.testing.assert_array_equal(inputs[4], inputs[5])


def test_unknown_words_stand_between_two_levels():
    encoder = learned(frame(arm=["drug", "control", "control", None]))
    assert encoder.input_names == ["arm=drug", "arm missing"]
    inputs = encoded(encoder, frame(arm=["control", "drug", "placebo", None]))
    assert inputs[0, 0] < inputs[2, 0] == 0.0 == inputs[3, 0] < inputs[1, 0]
    assert inputs[2, 1] == inputs[0, 1] < inputs[3, 1]  # unknown is not missing


@pytest.mark.parametrize("seed", [0, 1])
def test_predictions_for_unknown_words_are_in_between(seed):
    random = np.random.RandomState(seed)
    arm = np.array(["control", "drug"])[(random.rand(150) < 0.4).astype(int)]
    y = random.rand(150) < np.where(arm == "drug", 0.9, 0.1)
    model = SparseBNNClassifier(random_state=0, epochs=150, replicates=2, n_draws=20).fit(frame(arm=arm), y)
    control, drug, placebo = model.predict_proba(frame(arm=["control", "drug", "placebo"]))[:, 1]
    assert control + 0.1 < placebo < drug - 0.1


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
    column = learned(frame(a=values)).columns[0]
    assert (column.kind, column.constant, column.inputs) == ("dropped", constant, ())


# -- many levels: the mean of the target, of other rows --------------------------------------------------


def towns(rows=400, levels=50, seed=0):
    random = np.random.RandomState(seed)
    place = random.randint(0, levels, rows)
    return [f"t{k}" for k in place], place, random.randn(levels)[place] + random.randn(rows)


def coded(cells, y, classes=False):
    """The encoder of one column, its training inputs before standardizing, and the folds."""
    given = functools.partial(signal, torch.as_tensor(y), 5, 0, classes)
    table = Table.of(frame(a=cells))
    encoder = Encoder.learned(table, np.ones(len(y)), None, given)
    column = encoder.columns[0]
    x = encoder.transform_training(table, np.ones(len(y)), given)
    return encoder, x * np.array(column.scale) + np.array(column.centre), given().fold


def test_a_training_row_is_coded_by_rows_of_other_folds():
    """Each code, computed row by row from the formula; and it does not move with the row's own target."""
    cells, place, y = towns()
    _, raw, fold = coded(cells, y)
    for i in (0, 17, 200):
        others = fold != fold[i]
        own, all_ = y[others & (place == place[i])], y[others]
        groups = [y[others & (place == k)] for k in np.unique(place[others])]
        within = sum(((g - g.mean()) ** 2).sum() for g in groups) / (len(all_) - len(groups))
        sizes = np.array([len(g) for g in groups])
        spread = sum(len(g) * (g.mean() - all_.mean()) ** 2 for g in groups) / (len(groups) - 1)
        size = (len(all_) - (sizes**2).sum() / len(all_)) / (len(groups) - 1)
        m = within / ((spread - within) / size)
        assert raw[i, 0] == pytest.approx((own.sum() + m * all_.mean()) / (len(own) + m), rel=1e-10)
        changed = y.copy()
        changed[i] += 100.0
        assert coded(cells, changed)[1][i, 0] == pytest.approx(raw[i, 0], rel=1e-10)


def test_levels_that_do_not_differ_have_nearly_one_code():
    cells, _, _ = towns()
    encoder, _, _ = coded(cells, np.random.RandomState(5).randn(400))
    assert np.ptp(encoder.columns[0].codes) < 0.4
    assert encoded(encoder, frame(a=cells)).std() < 3.0  # noise is not scaled up to 1 and more


def test_classes_have_a_code_each_and_new_levels_are_average():
    cells, place, _ = towns()
    encoder, raw, _ = coded(cells, place % 3, classes=True)
    column = encoder.columns[0]
    assert encoder.input_names == [f"a (by target {k})" for k in (1, 2, 3)]
    codes = dict(zip(column.levels, column.codes))
    assert all(int(np.argmax(codes[f"t{k}"])) == k % 3 for k in range(50))
    assert np.abs(raw).max() < 10.0
    assert encoded(encoder, frame(a=["new", None])).tolist() == [[0.0] * 3] * 2
    assert Encoder.of_record(json.loads(json.dumps(encoder.record()))) == encoder
    assert "50 levels" in encoder.notes[0]


def test_merged_levels_are_counted():
    cells = [f"w{k}" for k in range(40) for _ in range(50 - k)]
    column = learned(frame(a=cells)).columns[0]
    assert set(column.levels) == {f"w{k}" for k in range(30)}
    assert column.merged == 10
    assert f"the 10 rarest merged ({sum(50 - k for k in range(30, 40))} rows)" in column.note


# -- identifiers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["rownames", "Unnamed: 0", "", "ID", "patient_id", "customerID", "row.id", "index"]
)
@pytest.mark.parametrize(
    "values", [np.arange(1, 41), [f"{k:04d}" for k in range(40)], np.arange(40.0) * 7 % 41]
)
def test_names_of_rows_are_left_out(name, values):
    column = learned(pd.DataFrame({name: values, "x": np.arange(40) % 3})).columns[0]
    assert (column.kind, column.identifier) == ("dropped", True)
    assert "identifier" in column.note


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("id", np.arange(40) // 2),  # repeated: it may be a group
        ("acid", np.arange(40) * 3),
        ("covid", np.arange(40)[::-1]),
        ("id", np.arange(40) + 0.5),
        ("year", np.arange(1980, 2020)),
        ("number", 1000 - 3 * np.arange(40)),  # of survivors: Halley's life table
        ("time", np.arange(40) * 5.0),
        ("width", np.arange(40)[::-1]),
    ],
)
def test_measurements_stay(name, values):
    column = learned(pd.DataFrame({name: values})).columns[0]
    assert (column.kind, column.identifier) == ("number", False)


def test_a_column_that_counts_rows_is_pointed_out_and_stays():
    given = pd.DataFrame({"case": np.arange(1, 61)[np.arange(60) % 5 > 0], "x": np.arange(48) % 5})
    column = learned(given).columns[0]
    assert (column.kind, column.identifier, len(column.inputs)) == ("number", True, 1)
    assert "counts the rows" in column.note
    assert not learned(given.to_numpy()).columns[0].identifier  # an array has no names


def test_kinds_that_are_asked_for():
    given = pd.DataFrame({"id": range(40), "zip": np.arange(40) % 3, "x": range(40), "y": range(40)})
    kinds = {"id": "number", "zip": "category", "x": "drop", "y": "id"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what was asked for needs no warning
        model = SparseBNNClassifier(**QUICK, column_kinds=kinds).fit(given, [0, 1] * 20)
    assert [c.kind for c in model._encoder.columns] == ["number", "category", "dropped", "dropped"]
    assert [c.identifier for c in model._encoder.columns] == [False, False, False, True]
    with pytest.raises(InvalidInput, match="column_kinds"):
        SparseBNNClassifier(**QUICK, column_kinds={"zipp": "category"}).fit(given, [0, 1] * 20)
    with pytest.raises(InvalidInput, match="column_kinds"):
        SparseBNNClassifier(**QUICK, column_kinds={"zip": "text"}).fit(given, [0, 1] * 20)


# -- frames -------------------------------------------------------------------------------------------


def test_columns_left_out_are_named(tmp_path):
    given = pd.DataFrame({"id": [f"id{k}" for k in range(80)], "same": 1.0, "x": np.arange(80.0) % 7})
    model = SparseBNNClassifier(**QUICK)
    with pytest.warns(ColumnWarning) as caught:
        model.fit(given, [0, 1] * 40)
    (warning,) = caught
    assert "'id'" in str(warning.message)
    assert "'same'" not in str(warning.message)
    assert warning.filename == __file__
    assert [note.split("'")[1] for note in model.notes_] == ["id", "same"]
    assert SparseBNNClassifier.load(model.save(tmp_path / "m.safetensors")).notes_ == model.notes_


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("gap", [[], [None]])
def test_large_whole_numbers_are_levels_of_their_own(make, gap):
    """Beyond 2**53 floats skip whole numbers; text has them all, so files of text name the same levels."""
    ids = [2**60 + k for k in range(4)]
    x = make({"u": pd.array(3 * ids + gap, dtype="Int64") if make is pd.DataFrame else 3 * ids + gap})
    encoder = Encoder.learned(Table.of(x), np.ones(len(x)), {"u": "category"})
    assert encoder.columns[0].levels == tuple(map(str, ids))
    again = Encoder.of_record(json.loads(json.dumps(encoder.record())))
    text = make({"u": [str(i) for i in 3 * ids] + gap})
    np.testing.assert_array_equal(encoded(again, text), encoded(encoder, x))
    small = Encoder.learned(Table.of(pd.DataFrame({"u": [1.0, 2, 3] * 4})), np.ones(12), {"u": "category"})
    assert small.columns[0].levels == ("1", "2", "3")


def test_survives_json():
    given = frame(a=[1.0, None, 3.0], b=["x", "y", "z"], c=["31/12/2020", "1/2/2020", "1/3/2020"])
    encoder = learned(given)
    record = json.loads(json.dumps(encoder.record()))
    again = Encoder.of_record([{**entry, "of_an_older_release": 1} for entry in record])
    assert again == encoder
    assert (encoded(again, given) == encoded(encoder, given)).all()


def test_types_of_pandas():
    given = pd.DataFrame(
        {
            "n": pd.array([1, None, 3], dtype="Int64"),
            "c": pd.Categorical([1, 2, 1]),
            "d": pd.to_datetime(["2020-01-01", None, "2021-01-01"]),
            "s": ["a", None, "b"],
            "m": pd.PeriodIndex(["2020-01", "2020-02", None], freq="M"),
            "t": pd.to_timedelta(["1h", None, "0.5s"]),
            "o": pd.Series([datetime.timedelta(hours=1), None, datetime.timedelta(seconds=1)], dtype=object),
        }
    )
    encoder = learned(given)
    kinds = ["number", "category", "date", "category", "date", "number", "number"]
    assert [c.kind for c in encoder.columns] == kinds
    assert [c.gaps for c in encoder.columns] == [True, False, True, True, True, True, True]
    assert np.isfinite(encoded(encoder, given)).all()
    np.testing.assert_allclose(raw(learned(given[["t"]]), given[["t"]])[[0, 2], 0], [3600.0, 0.5])
    np.testing.assert_allclose(np.diff(raw(learned(given[["m"]]), given[["m"]])[:2, 0]), 31.0)


def test_types_of_polars():
    days = [datetime.date(2020, 1, 1), None, datetime.date(2021, 5, 5)]
    given = pl.DataFrame(
        {
            "n": [1, None, 3],
            "f": [0.5, float("nan"), None],
            "s": ["a", "b", None],
            "c": pl.Series(["u", None, "u"], dtype=pl.Categorical),
            "e": pl.Series(["u", "v", "u"], dtype=pl.Enum(["u", "v"])),
            "b": [True, None, False],
            "d": days,
            "t": pl.Series(days).cast(pl.Datetime),
            "p": [datetime.timedelta(hours=1), None, datetime.timedelta(seconds=1)],
            "empty": pl.Series([None, None, None], dtype=pl.Null),
        }
    )
    encoder = learned(given)
    found = {c.name: (c.kind, c.gaps) for c in encoder.columns}
    kinds = [*["number"] * 2, *["category"] * 3, "number", "date", "date", "number", "dropped"]
    assert [kind for kind, _ in found.values()] == kinds
    assert [name for name, (_, gaps) in found.items() if not gaps] == ["e", "empty"]
    assert np.isfinite(encoded(encoder, given)).all()


def test_polars_and_pandas_say_the_same():
    random, start = np.random.RandomState(0), datetime.datetime(2020, 1, 1)
    columns = {
        "n": [None if random.rand() < 0.2 else float(v) for v in random.randn(60)],
        "i": random.randint(0, 9, 60).tolist(),
        "s": random.choice(["a", "b", "c"], 60).tolist(),
        "b": (random.rand(60) > 0.5).tolist(),
        "d": [start + datetime.timedelta(days=int(k)) for k in random.randint(0, 900, 60)],
    }
    label = ["yes" if i > 4 else "no" for i in columns["i"]]
    probs = []
    for given, y in ((pl.DataFrame(columns), pl.Series(label)), (pd.DataFrame(columns), pd.Series(label))):
        model = SparseBNNClassifier(random_state=0, epochs=10, replicates=2).fit(given, y)
        probs.append(model.predict_proba(given))
        assert list(model.feature_names_in_) == list(columns)
    np.testing.assert_array_equal(*probs)


def test_a_table_of_text_as_an_array_and_as_a_frame():
    """Columns like those of the UCI credit approval table: leading zeros, and ? for missing."""
    random = np.random.RandomState(0)
    rows = np.array(
        [
            [random.choice(["a", "b", "?"]), f"{k % 7:02d}", f"{40 * (k % 50):05d}" if k % 9 else "?"]
            for k in range(120)
        ],
        dtype=object,
    )
    y = np.where(np.arange(120) % 7 > 3, "+", "-")
    found = []
    for given in (rows, rows.tolist(), pd.DataFrame(rows), pl.DataFrame(rows.tolist(), orient="row")):
        model = SparseBNNClassifier(**QUICK).fit(given, y)
        assert [c.kind for c in model._encoder.columns] == ["category", "number", "number"]
        found.append(model.predict_proba(given))
    for probs in found[1:]:
        np.testing.assert_array_equal(probs, found[0])


def test_names_of_polars_frames_are_those_of_training():
    """With every scikit-learn: some of them read no names from a polars frame."""
    given = pl.DataFrame({"a": np.arange(20.0) ** 2, "b": np.arange(20.0)[::-1] ** 2})
    model = SparseBNNClassifier(**QUICK).fit(given, [0, 1] * 10)
    assert model.predict(given).shape == (20,)
    for other, said in (
        (given.select("b", "a"), "another order .*feature_names_in_"),
        (given.rename({"b": "c"}), "no column 'b' and the new column 'c'"),
        (given.with_columns(c=1.0), "the new column 'c' .*feature_names_in_"),
    ):
        with pytest.raises(InvalidInput, match=f"'columns'.*{said}"):
            model.predict(other)
    np.testing.assert_array_equal(
        model.predict(given.select("b", "a")[list(model.feature_names_in_)]), model.predict(given)
    )


@pytest.mark.parametrize("names", [[0, 1, 2], [("a", 1), ("a", 2), ("b", 1)]])
def test_names_that_are_no_text_keep_their_order(names):
    """scikit-learn does not look at such names: rows of another order would be predicted in silence."""
    given = pd.DataFrame(ordinary(40))
    given.columns = pd.MultiIndex.from_tuples(names) if isinstance(names[0], tuple) else names
    model = SparseBNNClassifier(**QUICK).fit(given, [0, 1] * 20)
    assert model.predict(given).shape == model.predict(given.to_numpy()).shape
    with pytest.raises(InvalidInput, match=r"'columns'.*another order"):
        model.predict(given.iloc[:, ::-1])


def test_a_frame_for_a_network_trained_on_an_array():
    """There are no names to compare: the columns are taken in their order, and must be as many."""
    x = np.random.RandomState(0).randn(20, 2)
    model = SparseBNNClassifier(**QUICK).fit(x, [0, 1] * 10)
    np.testing.assert_array_equal(model.predict_proba(pl.DataFrame(x)), model.predict_proba(x))
    with pytest.raises(InvalidInput, match="'number of columns'"):
        model.predict(pl.DataFrame(x[:, :1]))


@pytest.mark.parametrize(
    ("bad", "advice"),
    [
        ({"a": [1.0], "b": [2.0]}, "pd.DataFrame"),
        ([{"a": 1.0, "b": 2.0}], "pd.DataFrame"),
        ([1.0, "x"], "pd.DataFrame"),
        ("table.csv", "read_csv"),
        (pd.Series([1.0, 2.0]), "iloc"),
        (pl.Series([1.0, 2.0]), "iloc"),
        (pl.LazyFrame({"a": [1.0], "b": [2.0]}), "collect"),
        (iter([1.0]), "pd.DataFrame"),
    ],
)
def test_what_is_no_table_is_named(bad, advice):
    model = SparseBNNClassifier(**QUICK).fit(pd.DataFrame({"a": np.arange(20.0) ** 2, "b": 1.0}), [0, 1] * 10)
    for call in (model.predict, lambda X: SparseBNNClassifier(**QUICK).fit(X, [0])):
        with pytest.raises(InvalidInput, match=f"The 'X' of SparseBNNClassifier must be a frame.*{advice}"):
            call(bad)


def test_frames_without_columns_are_refused():
    with pytest.raises(ValueError, match=r"0 feature\(s\) .* minimum of 1 is required"):
        SparseBNNClassifier(**QUICK).fit(pd.DataFrame(index=range(20)), [0, 1] * 10)


def test_cells_that_are_arrays_are_text():
    """A column of embeddings is left out, with a warning."""
    given = frame(a=[np.arange(k, k + 3) for k in range(40)], b=[[k] for k in range(40)])
    assert [column.kind for column in learned(given).columns] == ["dropped", "dropped"]


# -- values far off -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1e12, -1e12, 1e300])
def test_a_value_far_off_does_not_hide_the_others(value):
    """The others are told apart as they are without it; the far one stays at the end of its side."""
    x = ordinary()
    x[7, 1] = value
    encoder = learned(x)
    found = encoded(encoder, x)
    others = np.delete(np.arange(300), 7)
    plain = encoded(learned(x[others]), x[others])
    assert np.corrcoef(found[others, 1], plain[:, 1])[0, 1] > 1.0 - 1e-9
    assert 0.5 < found[others, 1].std() < 1.0
    assert np.abs(found[7, 1]) == np.abs(found[:, 1]).max() < 20.0
    assert np.sign(found[7, 1]) == np.sign(value)
    (note,) = encoder.notes
    assert "'x1'" in note
    again = Encoder.of_record(json.loads(json.dumps(encoder.record())))
    np.testing.assert_array_equal(encoded(again, x), found)


def test_the_limits_by_hand():
    x = np.append(np.arange(101.0), [1e12, 1e12])[:, None]
    column = learned(x).columns[0]
    # Of 103 rows the 11th and the 93rd have a tenth and nine tenths of the rows up to them.
    assert column.limits == (10.0 - 10 * 82.0, 92.0 + 10 * 82.0)
    cut = np.minimum(x, 912.0)
    assert column.centre[0] == pytest.approx(cut.mean())
    assert column.scale[0] == pytest.approx(cut.std())


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
    column = learned(x).columns[0]
    assert (column.limits, column.note) == ((), "")
    assert column.centre[0] == pytest.approx(x.mean())
    assert column.scale[0] == pytest.approx(x.std())


def test_a_date_far_off_is_clipped():
    days = np.datetime64("2020-01-01") + np.arange(4000) % 50
    days[5] = np.datetime64("9999-12-31")
    days[6] = np.datetime64("0001-01-01")
    column = learned(pl.DataFrame({"when": days})).columns[0]
    # Of 80 rows a day, the 400th is of 5 January and the 3600th of 15 February, 41 days later.
    assert [str(np.datetime64(int(day), "D")) for day in column.limits] == ["2018-11-21", "2021-03-31"]


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
    columns = frame(age=given, town=rng.choice(["A", "B", "C"], 300))
    model = SparseBNNClassifier(random_state=0, epochs=40, replicates=1).fit(columns, y)
    effects = model.effects_
    assert effects.direction == ("-", None)
    assert effects.high[0] < 0.0 <= effects.low[1] < effects.value[1]
    lines = model.summary().splitlines()
    age, town = (next(line for line in lines if line.startswith(name)).split() for name in ("age", "town"))
    assert age[3].startswith("-")
    assert town[3][0].isdigit()
    assert "        without a sign, of a column of several inputs: its mean absolute contribution" in lines
    alone = SparseBNNClassifier(random_state=0, epochs=5, replicates=1).fit(x[:, None], y)
    assert "without a sign" not in alone.summary()


@pytest.mark.parametrize("cells", [["True", "False", ""], ["true", "false", None], [True, False, None]])
def test_truth_values_are_read_as_text_too(cells):
    """A CSV file has them as text; a column of text stays a category."""
    column = learn("smoker", np.array([True, False, True]), np.ones(3))
    given = encode(column, to_objects(cells))
    np.testing.assert_array_equal(given[:2], encode(column, np.array([True, False])))
    assert given[2] == 0.0
    assert learn("smoker", to_objects(["True", "False"]), np.ones(2)).kind == "category"
    with pytest.raises(InvalidInput, match="'smoker' of the table must be numbers"):
        encode(column, to_objects(["True", "yes"]))


def test_an_explanation_adds_up():
    x = ordinary(60)
    wide = np.hstack([x, ordinary(60, 1), ordinary(60, 2), ordinary(60, 3)])
    model = SparseBNNClassifier(random_state=0, epochs=3, replicates=1).fit(wide, x[:, 0] > 0)
    lines = model.explain(wide[:1]).table(most=4).splitlines()[1:]
    assert lines[4].split()[:2] == ["8", "others"]
    numbers = [float(line.split()[1]) for line in lines[:4]] + [float(lines[4].split()[2])]
    base, total = float(lines[5].split()[1]), float(lines[6].split()[-1])
    assert sum(numbers) + base == pytest.approx(total, abs=0.005)
    assert "other" not in model.explain(wide[:1]).table(most=12)
    assert model.explain(wide[:1]).table(most=11).splitlines()[12].split()[:2] == ["1", "other"]


# -- scales ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 1.7e18, -1.7e9, 1e12])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e9])
def test_numbers_far_from_zero_beside_their_spread_are_scaled(shift, size):
    """Times in nanoseconds, ids: what floats can tell apart, the network can."""
    x = shift + size * np.arange(200.0)
    if np.unique(x).size < 150:
        pytest.skip("floats cannot tell these apart")
    found = encoded(learned(x[:, None]), x[:, None])[:, 0]
    assert found.std() == pytest.approx(1.0, rel=1e-6)
    assert abs(found.mean()) < 1e-3
    assert np.corrcoef(found, np.arange(200.0))[0, 1] > 0.999


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e300])
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
    assert np.abs(encoded(learned(x), x)).max() < 1e-12


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


# -- numbers that may stand for a missing value -------------------------------------------------------


@pytest.mark.parametrize(("word", "share"), [(-999.0, 0.3), (9999.0, 0.05), (-9.0, 0.5)])
def test_a_number_of_nines_far_from_the_others_is_pointed_out(word, share):
    """It is read as the number it is: only the table's owner can know."""
    x = np.random.RandomState(0).randn(300, 1)
    x[: int(300 * share), 0] = word
    encoder = Encoder.learned(Table.of(x), np.ones(300))
    with pytest.warns(ColumnWarning, match=f"'x0': {word:g} in {share:.1%}"):
        warn_of_columns(encoder)
    assert encoder.columns[0].centre[0] == pytest.approx(x.mean())


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 3.0, 9.0, 9.0],  # 9 may be a number like any other
        [97.0, 98.0, 99.0, 99.0],  # the end of a scale
        [1.0, 2.0, 3.0, 99.0],  # once
        [0.0, 0.0, 99.0, 99.0],  # one of two levels
        [1.0, 2.0, 150.0, 150.0],
        [np.nan, 1.0, 2.0, 3.0],
    ],
)
def test_other_numbers_are_not_pointed_out(values):
    assert Encoder.learned(Table.of(np.array(values)[:, None]), np.ones(4)).notes == []
