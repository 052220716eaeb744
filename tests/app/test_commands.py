"""``sparsebnn fit | predict | info`` on awkward files: the right result or one clear line, no traceback."""

import csv
import functools
import gzip
import io
import json
import re
import shlex
import sqlite3
import subprocess
import sys

import numpy as np
import polars
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from app.calls import call, refused, write, write_excel
from sparsebnn.app.commands import reading, running
from sparsebnn.app.commands.reading import read_table
from sparsebnn.app.commands.splitting import posed, spellings
from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import Encoder, SparseBNNRegressor, Table, load
from sparsebnn.nn import compact

QUICK = ["--epochs", "8", "--replicates", "2", "--quiet"]


def awkward(path, rows=80, seed=0):
    """Strings, gaps, a date, a constant, five columns of one name, two spellings of a class."""
    rng = np.random.RandomState(seed)
    cells = []
    for _ in range(rows):
        age, town = rng.randint(20, 80), rng.choice(["Oslo", "Bærum", ""])
        yes = rng.choice(["Yes", "yes "], p=[0.8, 0.2])
        row = [age if rng.rand() > 0.1 else "NA", town, f"2020-0{rng.randint(1, 9)}-11", 7]
        cells.append([*row, *rng.randn(5).round(3), yes if age > 45 else "no"])
    return write(path, ["age", "town", "joined", "flat", *"xxxxx", "outcome"], cells)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    done = call("fit", awkward(folder / "p.csv"), "--target", "outcome", "--out", folder / "run", *QUICK)
    assert done.exit_code == 0, done.output
    return folder


def test_an_awkward_file_is_fitted(run):
    record = json.loads((run / "run" / "record.json").read_text(encoding="utf-8"))
    assert record["classes"] == ["Yes", "no"]
    named = [re.findall("'(.*?)'", note) for note in record["notes"]]
    assert named == [["x", "x", "x.2", "x.3", "x.4", "x.5"], ["Yes", "yes", "Yes"], ["flat"]]
    kinds = {c["name"]: c["kind"] for c in record["data"]["columns"]}
    assert kinds == {
        "age": "number", "town": "category", "joined": "date", "flat": "dropped",
        "x": "number", "x.2": "number", "x.3": "number", "x.4": "number", "x.5": "number",
    }  # fmt: skip
    assert record["data"]["train_rows"] + record["data"]["test_rows"] == 80
    for measures in (record["metrics"]["average"], record["metrics"]["median"]):
        for figure in measures.values():
            assert figure["low"] <= figure["value"] + 1e-9
    names = ["majority", "logistic regression", "gradient boosting"]
    assert [b["name"] for b in record["baselines"]] == names
    assert len(record["certain"]) == len(record["uncertain"]) == 5
    sizes = record["network"]["layers"]
    assert all(e[1] < sizes[e[0]] and e[2] < sizes[e[0] + 1] for e in record["network"]["edges"])
    assert len(record["inputs"]) == 8  # without the column that is left out
    assert {each["name"] for each in record["effects"]} <= {each["name"] for each in record["inputs"]}
    assert np.sum(record["confusion"]) == record["data"]["test_rows"]


def test_predictions_of_the_folder_and_of_the_command_agree(run):
    done = call("predict", run / "run", run / "p.csv")
    assert done.exit_code == 0
    new = list(csv.DictReader(done.output.splitlines()))
    with (run / "run" / "predictions.csv").open(encoding="utf-8") as file:
        for held in csv.DictReader(file):
            assert new[int(held["row"]) - 1]["probability of no"] == held["probability of no"]


def test_predicting_from_standard_input_to_a_file(run):
    text = (run / "p.csv").read_text(encoding="utf-8")
    out = run / "predicted.csv"
    assert call("predict", run / "run" / "model.safetensors", "-", "--out", out, input=text).exit_code == 0
    assert len(out.read_text(encoding="utf-8").splitlines()) == 81
    refused(call("predict", run / "run", run / "p.csv", "--out", out), "--force")


def test_fit_trains_as_many_networks_as_the_estimators_do():
    shown = re.sub(r"\s+", " ", call("fit", "--help", env={"COLUMNS": "200"}).output)
    assert f"[default: {SparseBNNRegressor().replicates}]" in shown.split("--replicates")[1].split("--")[0]


def test_info_says_what_the_model_is(run):
    assert "SparseBNNClassifier: 2 classes: Yes, no" in call("info", run / "run").output
    assert json.loads(call("info", run / "run", "--json").output)["class"] == "SparseBNNClassifier"


def test_a_small_model_is_a_formula(run, tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 2))
    options = {"replicates": 1, "hidden": (), "epochs": 20, "random_state": 0}
    model = SparseBNNRegressor(**options).fit(x, 2 * x[:, 0] + 1)
    path = model.save(tmp_path / "model.safetensors")
    assert call("info", path, "--formula").output.startswith("target = ")
    query = call("info", path, "--formula", "--as", "sql").output.removeprefix("target = ")
    with sqlite3.connect(":memory:") as base:
        (value,) = base.execute(f"SELECT {query} FROM (SELECT 1.0 AS x0, 0.5 AS x1)").fetchone()
    row = torch.from_numpy(model._encoder.transform(Table.of([[1.0, 0.5]]))).float()
    mean = float(compact(model.networks_[0]).network(row).detach())
    assert value == pytest.approx(mean * model._y_std[0] + model._y_mean[0], abs=1e-4)
    refused(call("info", run / "run", "--formula"), "of formula must be")
    refused(call("info", path, "--formula", "--as", "word"), "--as")


def test_an_existing_folder_is_kept_without_force(run):
    before = (run / "run" / "record.json").read_bytes()
    words = ["fit", run / "p.csv", "--target", "outcome", "--out", run / "run", *QUICK]
    refused(call(*words), "--force")
    assert (run / "run" / "record.json").read_bytes() == before
    assert call(*words, "--force", "--seed", "1").exit_code == 0
    assert (run / "run" / "record.json").read_bytes() != before
    assert not list(run.glob(".run.*"))


def test_force_replaces_run_folders_only(run, tmp_path):
    (tmp_path / "precious.txt").write_text("mine", encoding="utf-8")
    done = call("fit", run / "p.csv", "--target", "outcome", "--out", tmp_path, "--force", *QUICK)
    assert done.exit_code == 1
    assert (tmp_path / "precious.txt").exists()


def test_a_number_is_a_regression_with_intervals(tmp_path):
    rng = np.random.RandomState(0)
    x = rng.randn(60, 2)
    np.savez(tmp_path / "d.npz", x=x, y=x[:, 0] + 0.1 * rng.randn(60))
    done = call("fit", tmp_path / "d.npz", "--target", "y", "--out", tmp_path / "r", "--json", *QUICK)
    record = json.loads(done.output)
    assert record["task"] == "regression"
    assert record["calibration"]["level"] == [0.5, 0.8, 0.9, 0.95]
    rows = list(csv.DictReader(call("predict", tmp_path / "r", tmp_path / "d.npz").output.splitlines()))
    assert all(float(r["low (5%)"]) < float(r["prediction"]) < float(r["high (95%)"]) for r in rows)


def test_a_likelihood_decides_the_task(tmp_path):
    rng = np.random.RandomState(0)
    x = rng.randn(80, 1)
    rows = np.hstack([x, rng.poisson(np.exp(0.5 * x))]).tolist()  # few values: without it, classes
    data = write(tmp_path / "counts.csv", ["x", "n"], rows)
    words = ["fit", data, "--target", "n", "--out", tmp_path / "run", *QUICK]
    assert call(*words, "--likelihood", "poisson").exit_code == 0
    record = json.loads((tmp_path / "run" / "record.json").read_text(encoding="utf-8"))
    assert record["task"] == "regression"
    model = load(tmp_path / "run" / "model.safetensors")
    assert model.likelihood == "poisson"
    low, high = model.predict_interval(polars.DataFrame({"x": [0.0]})).T
    assert low == low.round()
    assert high == high.round()  # quantiles of counts
    refused(call(*words, "--task", "classification", "--likelihood", "poisson"), "'likelihood'")


def test_columns_that_replace_each_other_form_a_set(tmp_path):
    rng = np.random.RandomState(0)
    z = rng.randn(160, 1)
    x = np.hstack([z + 0.05 * rng.randn(160, 2), rng.randn(160, 2)])
    np.savez(tmp_path / "d.npz", x=x, y=x[:, 1] + x[:, 2] + rng.randn(160))
    words = ("--out", tmp_path / "r", "--json", "--epochs", "420")
    record = json.loads(call("fit", tmp_path / "d.npz", "--target", "y", *words).output)
    (found,) = [each for each in record["credible_sets"] if len(each["names"]) > 1]
    assert sorted(found["names"]) == ["x0", "x1"]
    assert found["coverage"] >= 0.95
    assert found["purity"] > 0.9
    assert "At least one of these 2 columns matters" in (tmp_path / "r" / "report.html").read_text("utf-8")


BAD = {
    "header only": (b"a,b,y\n", "no rows"),
    "one row": (b"a,y\n1,2\n", "'data'"),
    "no target": (b"a,b\n" + b"1,2\n" * 20, "'target'"),
    "target twice": (b"a,y,y\n" + b"1,2,3\n" * 20, "'target'"),
    "one class": (b"a,y\n" + b"1,no\n" * 20, "'target'"),
    "only a target": (b"y\n" + b"1\n2\n" * 20, "'data'"),
    "no labels": (b"a,y\n" + b"1,\n" * 20, "'data'"),
    "own classes": (b"a,y\n" + b"".join(b"1,word%d\n" % i for i in range(12)), "'target'"),
    "infinite": (b"a,y\n" + b"inf,no\n1,yes\n" * 20, "finite"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_give_one_line(name, tmp_path):
    content, message = BAD[name]
    path = tmp_path / "d.csv"
    path.write_bytes(content)
    refused(call("fit", path, "--target", "y", "--out", tmp_path / "r", *QUICK), message)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "nowhere.csv", "--target", "y"], "There is no file nowhere.csv."),
        (["predict", "nowhere", "d.csv"], "There is no estimator at nowhere."),
        (["info", "nowhere"], "There is no estimator at nowhere."),
        (["predict", "new.csv", "run"], "The 'model' of"),
    ],
)
def test_missing_files_give_one_line(words, message):
    refused(call(*words), message)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("task", "guess"),
        ("likelihood", "poison"),
        ("family", "flo"),
        ("epochs", "0"),
        ("replicates", "0"),
        ("time-budget", "-1"),
        ("test-share", "2"),
        ("seed", "-1"),
        ("seed", str(2**32)),
        ("device", "tpu"),
        ("device", "cuda"),
        ("device", "cuda:77"),
    ],
)
def test_options_are_checked_before_the_file_is_read(option, value, monkeypatch):
    """The error is not the missing file."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    done = call("fit", "nowhere.csv", "--target", "y", f"--{option}", value)
    refused(done, f"The '{option}' of sparsebnn fit must be", value)


def test_new_rows_need_the_columns_in_use_only(run, tmp_path):
    """The model says which these are; here they are set by hand."""
    model = load(run / "run" / "model.safetensors")
    with reading.column_notes():
        rows = read_table(str(run / "p.csv")).drop("outcome")
    model.used_ = np.array([name in ("age", "x") for name in rows.columns])
    model.gain_ = np.where(model.used_, 0.1, 0.0)
    found, notes = reading.matched(model, rows.select("x", "age").with_columns(other=1))
    assert found.columns == rows.columns
    assert found["town"].null_count() == len(rows)
    assert notes == [notes[0]]
    assert "'town', 'joined'" in notes[0]
    assert "flat" not in notes[0]  # training left it out
    with pytest.raises(InvalidInput, match="no column 'age'"):
        reading.matched(model, rows.drop("age"))
    model.used_ = np.zeros(len(rows.columns), dtype=bool)  # none is certain, but predictions need two
    with pytest.raises(InvalidInput, match="no column 'age'"):
        reading.matched(model, rows.drop("age"))
    (tmp_path / "new.csv").write_text("other\n3\n", encoding="utf-8")
    refused(call("predict", run / "run", tmp_path / "new.csv"), "'data'")


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """A table with a row number, an identifier and a code; fitted with options for its columns."""
    folder = tmp_path_factory.mktemp("clinic")
    random = np.random.RandomState(0)
    rows = [
        [k, f"p{k:03d}", zone := random.randint(3), x := round(random.randn(), 3), int(x + zone > 1)]
        for k in range(90)
    ]
    write(folder / "d.csv", ["", "patient", "zone", "x", "ill"], rows)
    words = ["--target", "ill", "--categorical", "zone", "--id", "patient", "--out", folder / "run"]
    done = call("fit", folder / "d.csv", *words, *QUICK)
    assert done.exit_code == 0, done.output
    return folder


def test_columns_are_read_as_asked(clinic):
    record = json.loads((clinic / "run" / "record.json").read_text())
    kinds = {each["name"]: each["kind"] for each in record["data"]["columns"]}
    assert kinds == {"column 1": "dropped", "patient": "dropped", "zone": "category", "x": "number"}
    assert "--categorical zone" in record["command"]
    assert any("'column 1' is left out" in note for note in record["notes"])


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["--drop", "zome"], ["'drop'", "'zone'"]),
        (["--numeric", "ill"], ["'numeric'", "target"]),
        (["--drop", "x", "--id", "x"], ["'id'", "--drop x"]),
        (["--numeric", "patient"], ["'patient'", "'p0"]),
    ],
)
def test_wrong_columns_are_named(clinic, words, fragments):
    done = call("fit", clinic / "d.csv", "--target", "ill", "--out", clinic / "r", *words, *QUICK)
    refused(done, *fragments)


def test_identifiers_are_carried_to_the_predictions(clinic):
    header, first, *_ = (clinic / "run" / "predictions.csv").read_text().splitlines()
    assert header.startswith("row,column 1,patient,truth,prediction")
    row, number, patient, *_ = first.split(",")
    assert (int(row), int(number)) == (int(patient[1:]) + 1, int(patient[1:]))
    done = call("predict", clinic / "run", clinic / "d.csv", "--id", "x")
    assert done.stdout.splitlines()[0].startswith("row,x,prediction")
    refused(call("predict", clinic / "run", clinic / "d.csv", "--id", "xx"), "'id'")


@pytest.mark.parametrize("suffix", ["parquet", "csv.gz", "tsv"])
def test_predictions_in_other_formats(clinic, suffix):
    out = clinic / f"predictions.{suffix}"
    plain = call("predict", clinic / "run", clinic / "d.csv").stdout
    assert call("predict", clinic / "run", clinic / "d.csv", "--out", out).exit_code == 0
    found = polars.read_parquet(out) if suffix == "parquet" else read_table(str(out))
    want = polars.read_csv(plain.encode())
    assert found.columns == want.columns
    np.testing.assert_allclose(found["entropy"].cast(float), want["entropy"], rtol=1e-12)


@pytest.mark.parametrize("suffix", ["csv.gz", "tsv", "xlsx"])
def test_the_same_rows_in_other_formats(clinic, suffix):
    rows = polars.read_csv(clinic / "d.csv", has_header=True)
    path = clinic / f"d.{suffix}"
    if suffix == "xlsx":
        pytest.importorskip("fastexcel")
        write_excel(path, [rows.columns, *rows.rows()])
    elif suffix == "tsv":
        rows.write_csv(path, separator="\t")
    else:
        path.write_bytes(gzip.compress((clinic / "d.csv").read_bytes()))
    want = call("predict", clinic / "run", clinic / "d.csv", "--id", "patient").stdout
    assert call("predict", clinic / "run", path, "--id", "patient").stdout == want


def test_labels_of_numbers_are_left_alone():
    assert spellings(np.array([1, 2]))[1] == []


CELLS = st.one_of(
    st.sampled_from(
        ["", "NA", "1", "-2.5", "1e300", "yes", "Yes ", "2020-02-30", "2020-01-01", "inf", "é", "0"]
    ),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=4),
)


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=25), st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_frame_is_encoded_or_refused_in_words(tmp_path_factory, rows, again):
    """Whatever the cells: a finite matrix that a JSON round trip repeats, or InvalidInput."""
    path = tmp_path_factory.mktemp("frames") / "d.csv"
    write(path, ["a", "a", "y"], rows)
    try:
        with reading.column_notes():
            problem = posed(read_table(str(path)), "y", "auto", 0.25, 0)
        inputs = Table.of(problem.inputs)
        encoder = Encoder.learned(inputs, np.ones(len(problem.y)))
        encoded = encoder.transform(inputs)
    except InvalidInput:
        return
    assert np.isfinite(encoded).all()
    assert set(problem.training).isdisjoint(problem.test)
    assert len(problem.training) + len(problem.test) == len(problem.y)
    if problem.task == "classification":
        assert set(problem.y[problem.test]) <= set(problem.y[problem.training])
    if again:
        restored = Encoder.of_record(json.loads(json.dumps(encoder.record())))
        assert (restored.transform(inputs) == encoded).all()


@pytest.mark.slow
@given(st.integers(0, 10_000), st.integers(10, 30), st.sampled_from(["a", "b", "c"]))
@settings(max_examples=15, deadline=None)
def test_any_generated_frame_is_fitted_and_predicted(tmp_path_factory, seed, rows, target):
    rng, folder = np.random.RandomState(seed), tmp_path_factory.mktemp("fits")
    pools = [["u", "v", ""], ["1", "2", "3.5", "NA"], ["2020-01-01", "2021-05-05"], ["7"]]
    columns = [rng.choice(pools[rng.randint(4)], rows) for _ in range(3)]
    write(folder / "d.csv", ["a", "b", "c"], zip(*columns))
    try:
        running.fit(str(folder / "d.csv"), target, folder / "r", quiet=True, epochs=2, replicates=1)
    except InvalidInput:
        return
    running.predict(folder / "r", str(folder / "d.csv"), folder / "p.csv")
    assert len((folder / "p.csv").read_text(encoding="utf-8").splitlines()) == rows + 1


def _as_parquet(path, target):
    """The CSV's rows as polars writes them, with types of their own."""
    import polars as pl

    frame = pl.read_csv(path, null_values=["NA", ""], infer_schema_length=None)
    frame = frame.with_columns(pl.col("joined").str.to_date(), pl.col("town").cast(pl.Categorical))
    frame.write_parquet(target)
    return target


def test_parquet_says_what_the_same_rows_say_as_csv(tmp_path):
    plain = awkward(tmp_path / "p.csv")
    path = _as_parquet(plain, tmp_path / "p [1].parquet")
    for file, out in ((plain, "plain"), (path, "run")):
        done = call("fit", file, "--target", "outcome", "--out", tmp_path / out, *QUICK)
        assert done.exit_code == 0, done.output
    of_csv, of_parquet = (json.loads((tmp_path / f / "record.json").read_text()) for f in ("plain", "run"))
    kinds = [{c["name"]: c["kind"] for c in r["data"]["columns"]} for r in (of_csv, of_parquet)]
    assert list(kinds[0].values()) == list(kinds[1].values())
    assert of_parquet["metrics"]["average"]["accuracy"] == of_csv["metrics"]["average"]["accuracy"]
    done = call("predict", tmp_path / "run", path, "--out", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    assert len((tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()) == 81


def test_the_line_on_a_terminal(tmp_path, monkeypatch):
    """What a terminal receives: a bar of epochs with figures, then the other stages, then nothing."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(running, "stages", functools.partial(running.stages, console=console))
    # Fast machines would skip frames: every refresh is drawn.
    monkeypatch.setattr(running.Stages, "on_epoch_end", _drawn(running.Stages.on_epoch_end))
    path = awkward(tmp_path / "p.csv")
    running.fit(str(path), "outcome", tmp_path / "run", epochs=4, replicates=2)
    seen = screen.getvalue()
    assert "training" in seen
    assert "━" in seen
    assert re.search(r"nll \d\.\d{3}  density \d\.\d\d", seen)


def _drawn(method):
    def wrapped(self, run, epoch):
        method(self, run, epoch)
        self.progress.refresh()

    return wrapped


@pytest.mark.parametrize("words", [[], ["--quiet"], ["--json"]])
def test_nothing_moves_where_there_is_no_terminal(tmp_path, words):
    path = awkward(tmp_path / "p.csv")
    few = ["--epochs", "2", "--replicates", "2"]
    done = call("fit", path, "--target", "outcome", "--out", tmp_path / "run", *few, *words)
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output + done.stderr
    assert "training" not in done.stderr
    if words == ["--json"]:
        assert json.loads(done.stdout)["task"] == "classification"
    if words == ["--quiet"]:
        assert done.stdout == ""


# -- the command in the record --------------------------------------------------------------------------


def _without_clock(record):
    return {name: value for name, value in record.items() if name not in ("seconds", "commit")}


def test_the_recorded_command_does_the_same_again(tmp_path, monkeypatch):
    """Every option that matters is there, quoted for a shell."""
    monkeypatch.chdir(tmp_path)
    x = np.random.RandomState(0).randn(60, 2)
    (tmp_path / "my data").mkdir()
    write(tmp_path / "my data" / "d.csv", ["a", "b", "it's y"], zip(*x.T, np.where(x[:, 0] > 0, "1", "2")))
    words = ["--task", "regression", "--family", "dense", "--epochs", "3", "--replicates", "2"]
    words += ["--test-share", "0.3", "--device", "cpu", "--seed", "5", "--out", "runs/first"]
    done = call("fit", "my data/d.csv", "--target", "it's y", *words, "--json")
    first = json.loads(done.stdout)
    assert first["command"] == (
        """sparsebnn fit 'my data/d.csv' --target 'it'"'"'s y' --out runs/first --task regression """
        "--family dense --epochs 3 --replicates 2 --test-share 0.3 --device cpu --seed 5"
    )
    typed = shlex.split(first["command"])[1:]
    refused(call(*typed), "runs/first")
    again = call(*typed, "--force", "--json")
    assert _without_clock(json.loads(again.stdout)) == _without_clock(first)


def test_options_at_their_defaults_are_not_in_the_command(monkeypatch):
    told = []
    monkeypatch.setattr(running, "fit", lambda *words, command, **more: told.append(command))
    call("fit", "-", "--target", "y", "--seed", "0", "--force", "--quiet")
    call("fit", "d.csv", "--target", "y", "--time-budget", "2.5", "--quiet")
    assert told == ["sparsebnn fit - --target y", "sparsebnn fit d.csv --target y --time-budget 2.5"]


def test_a_budget_that_is_too_short_is_told_and_recorded(tmp_path):
    data, out = awkward(tmp_path / "d.csv"), tmp_path / "run"
    words = ("--target", "outcome", "--out", out, "--epochs", "100000", "--time-budget", "0.3")
    done = call("fit", data, *words, "--replicates", "1")
    assert done.exit_code == 0, done.output
    record = json.loads((out / "record.json").read_text(encoding="utf-8"))
    note, *after = (each for each in record["notes"] if each.startswith("the time budget"))
    assert all("after training" in each for each in after)
    epochs = int(re.search(r"(\d+) of 100000", note)[1])
    assert 1 <= epochs <= record["settings"]["epochs"]
    assert record["curves"][-1]["epoch"] <= epochs - 1  # long curves are thinned
    assert record["settings"]["full_epochs"] == 100000
    assert f"Note: {note}." in done.stderr
    assert note in (out / "report.html").read_text(encoding="utf-8")
    assert f"{epochs} of 100000 epochs" in call("info", out).stdout


def test_a_model_without_columns_says_so(tmp_path):
    x = np.random.RandomState(0).randn(60)
    path = write(tmp_path / "d.csv", ["a", "y"], zip(x, ["u", "v"] * 30))
    done = call("fit", path, "--target", "y", "--out", tmp_path / "r", "--epochs", "1")
    assert "Columns in use: 0 of 1: none\n" in done.stdout


def test_a_reader_that_has_seen_enough(run):
    """``sparsebnn predict run rows.csv | head -1``: no complaint."""
    words = [sys.executable, "-m", "sparsebnn", "predict", str(run / "run"), str(run / "many.csv")]
    rows = (run / "p.csv").read_text(encoding="utf-8").splitlines()
    (run / "many.csv").write_text("\n".join([rows[0], *rows[1:] * 100]) + "\n", encoding="utf-8")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("row,")
        process.stdout.close()
        told = process.stderr.read()
    assert (process.returncode, told) == (0, "")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_wants_nothing_of_info(run, options):
    words = [sys.executable, "-m", "sparsebnn", "info", str(run / "run"), *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        told = process.stderr.read()
    assert (process.returncode, told) == (0, "")
