"""What ``sparsebnn fit | predict | info`` must not do: guess in silence, lose files, show tracebacks."""

import csv
import json
import re
import shutil
import warnings

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from scipy.stats import binomtest

from app.calls import call, numbers, refused, write
from sparsebnn import metrics
from sparsebnn.app.commands import measuring, running, writing
from sparsebnn.app.commands.reading import column_notes, read_table
from sparsebnn.app.commands.splitting import posed
from sparsebnn.checks import InvalidInput
from sparsebnn.estimators import persistence
from sparsebnn.io import storage
from sparsebnn.training import Interrupted

TINY = ["--epochs", "2", "--replicates", "1"]


@pytest.fixture(scope="module")
def coded(tmp_path_factory):
    """A run whose column of codes says everything: 001 is 'hi'."""
    folder = tmp_path_factory.mktemp("coded")
    codes = np.random.RandomState(1).choice(["001", "002", "A1"], 60)
    rows = zip(codes, numbers(), np.where(codes == "001", "hi", "lo"))
    data = write(folder / "codes.csv", ["code", "b", "y"], rows)
    words = ["--epochs", "60", "--replicates", "1", "--quiet"]
    done = call("fit", data, "--target", "y", "--out", folder / "run", *words)
    assert done.exit_code == 0, done.output
    return folder / "run"


# -- a row means the same in every file ---------------------------------------------------------------


def test_a_row_is_predicted_alike_in_every_file(coded, tmp_path):
    alone = write(tmp_path / "1.csv", ["code", "b"], [["001", "0.0"]])
    beside = write(tmp_path / "2.csv", ["code", "b"], [["001", "0.0"], ["A1", "0.0"]])
    outputs = [call("predict", coded, file).output.splitlines() for file in (alone, beside)]
    one, two = (next(csv.DictReader(lines)) for lines in outputs)
    assert one.pop("prediction") == two.pop("prediction") == "hi"
    assert {k: float(v) for k, v in one.items()} == pytest.approx({k: float(v) for k, v in two.items()})


def test_words_that_training_did_not_have_are_told(coded, tmp_path):
    """On standard error, so the predictions stay a table; words of training and gaps are no news."""
    rows = [["a1", "0.0"], ["a1", "1.0"], ["001", "0.0"], ["", "0.0"], *([f"b{i}", "0.0"] for i in range(5))]
    done = call("predict", coded, write(tmp_path / "new.csv", ["code", "b"], rows))
    assert done.exit_code == 0
    assert len(list(csv.DictReader(done.stdout.splitlines()))) == len(rows)
    named = re.findall("'(.*?)'", done.stderr)
    assert named == ["code", "a1", "b0", "b1", "b2", "b3", "A1"]
    assert "7 of 9 rows" in done.stderr
    assert call("predict", coded, write(tmp_path / "old.csv", ["code", "b"], [["A1", ""]])).stderr == ""


# -- the target ---------------------------------------------------------------------------------------


def problem(tmp_path, cells, task="auto", delimiter=","):
    path = write(tmp_path / "d.csv", ["a", "y"], zip(numbers(len(cells)), cells), delimiter)
    return posed(read_table(str(path), target="y"), "y", task, 0.2, 0)


def test_words_such_as_none_are_classes(tmp_path):
    posed_ = problem(tmp_path, ["none", "mild", "severe", "NA", ""] * 12)
    assert sorted(set(posed_.y)) == ["NA", "mild", "none", "severe"]
    assert len(posed_.y) == 48
    assert [re.findall(r"'.*?'|\d+", note) for note in posed_.notes] == [
        ["12"],
        ["'none'", "12"],
        ["'NA'", "12"],
    ]


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_every_column_that_is_left_out_is_named(tmp_path, words):
    """On the terminal or in the JSON, and in the record."""
    rows = zip(numbers(), [7] * 60, [f"id{i}" for i in range(60)], [""] * 60, ["none", "mild", ""] * 20)
    path = write(tmp_path / "d.csv", ["a", "flat", "id", "void", "y"], rows)
    done = call("fit", path, "--target", "y", "--out", tmp_path / "r", *TINY, *words)
    assert done.exit_code == 0, done.output
    notes = json.loads((tmp_path / "r" / "record.json").read_text(encoding="utf-8"))["notes"]
    named = [re.findall(r"'.*?'", note) for note in notes]
    assert named == [[], ["'none'"], ["'flat'"], ["'id'"], ["'void'"]]
    if words:
        assert json.loads(done.stdout)["notes"] == notes
        assert "Note: " not in done.stderr
    else:
        assert done.stderr == "".join(f"Note: {note}.\n" for note in notes)


def test_what_the_estimator_notes_is_noted_once(tmp_path, monkeypatch):
    """Its sentences become notes; a column that they name is not named again."""

    class Noting(running.SparseBNNClassifier):
        def fit(self, *data):
            super().fit(*data)
            self.notes_ = ["Column 'flat' is left out: no news.", "The training was cut short."]
            warnings.warn("Column 'flat' is left out.", UserWarning, stacklevel=2)
            return self

    monkeypatch.setattr(running, "SparseBNNClassifier", Noting)
    path = write(tmp_path / "d.csv", ["a", "flat", "y"], zip(numbers(), [7] * 60, ["u", "v"] * 30))
    record = running.fit(str(path), "y", tmp_path / "r", quiet=True, epochs=2, replicates=1)
    assert record["notes"] == ["column 'flat' is left out: no news", "the training was cut short"]


def test_a_word_among_numbers_stops_the_fit(tmp_path):
    prices = [f"{v:.1f}" for v in numbers(60)]
    prices[3], prices[8], prices[9] = "unknown", "$1,000", "unknown"
    path = write(tmp_path / "d.csv", ["a", "y"], zip(numbers(), prices))
    done = call("fit", path, "--target", "y", "--out", tmp_path / "r", *TINY)
    refused(done, "The 'target' of", "'unknown' (2×), '$1,000' (1×)", "--task classification")
    assert problem(tmp_path, prices, "classification").task == "classification"


@pytest.mark.parametrize("form", ["${:,.0f}", "{:.1f} %", "€{:.2f}"])
def test_numbers_written_for_people_are_not_classes(tmp_path, form):
    with pytest.raises(InvalidInput, match=r"The 'target' of .* numbers"):
        problem(tmp_path, [form.format(1000 * v) for v in numbers()])


@pytest.mark.parametrize("form", ["{0:02d}:{1:02d}", "2024-{2:02d}-{0:02d}", "{0:02d}/12/{3}"])
def test_times_and_dates_are_no_targets(tmp_path, form):
    """Few of them are classes; of many, each would be a class of a row or two."""
    cells = [form.format(k % 24 + 1, k % 60, k % 11 + 1, 2000 + k) for k in range(60)]
    with pytest.raises(InvalidInput, match=f"The 'target' of .* Got '{cells[0]}'"):
        problem(tmp_path, cells)
    assert problem(tmp_path, cells[:3] * 20).task == "classification"
    assert problem(tmp_path, cells + cells, "classification").task == "classification"


def test_gaps_among_numbers_are_gaps(tmp_path):
    cells = [str(v) for v in numbers()]
    cells[2], cells[5] = "NA", ""
    found = problem(tmp_path, cells)
    assert found.task == "regression"
    assert found.notes == ("2 rows have no y and are left out",)
    assert found.y.tolist() == [float(c) for i, c in enumerate(cells) if i not in (2, 5)]
    cells[2] = "none"
    with pytest.raises(InvalidInput, match="Got 'none'"):
        problem(tmp_path, cells)


def test_a_name_that_looks_like_a_second_one(tmp_path):
    x = numbers()
    path = write(tmp_path / "d.csv", ["a", "score", "score.2"], zip(x, x + 1.0, x + 2.0))
    for target, shift in (("score", 1.0), ("score.2", 2.0)):
        found = posed(read_table(str(path), target=target), target, "auto", 0.2, 0)
        assert np.allclose(found.y, x + shift)
    path = write(tmp_path / "d.csv", ["score", "score", "score.2"], zip(x, x + 1.0, x + 2.0))
    with column_notes() as notes:
        found = posed(read_table(str(path), target="score.2"), "score.2", "auto", 0.2, 0)
    assert "'score', 'score.3'" in notes[0]
    assert np.allclose(found.y, x + 2.0)
    with pytest.raises(InvalidInput, match=r"The 'target' of .*'score'"):
        read_table(str(path), target="score")


def test_columns_of_one_name_are_noted(tmp_path):
    """In training and in new rows: the first of them keeps its name, which may be the wrong one."""
    path = write(tmp_path / "d.csv", ["a", "a", "y"], zip(numbers(), numbers(seed=1), ["u", "v"] * 30))
    done = call("fit", path, "--target", "y", "--out", tmp_path / "r", *TINY)
    note = "Note: several columns are named 'a': they are read as 'a', 'a.2'.\n"
    assert (done.exit_code, done.stderr) == (0, note)
    record = json.loads((tmp_path / "r" / "record.json").read_text(encoding="utf-8"))
    assert record["notes"] == [note[6:-2]]
    assert call("predict", tmp_path / "r", path).stderr == note


def test_identifiers_named_like_outputs_are_kept(tmp_path):
    """None of the two columns replaces the other."""
    ids = [f"n{k}" for k in range(60)]
    data = write(tmp_path / "d.csv", ["row", "a", "y"], zip(ids, numbers(), ["u", "v"] * 30))
    done = call("fit", data, "--target", "y", "--out", tmp_path / "r", "--quiet", *TINY)
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(call("predict", tmp_path / "r", data).stdout.splitlines()))
    assert [(row["row"], row["row.2"]) for row in rows] == [(str(k + 1), ids[k]) for k in range(60)]
    held = list(csv.DictReader((tmp_path / "r" / "predictions.csv").read_text().splitlines()))
    assert all(ids[int(row["row"]) - 1] == row["row.2"] for row in held)
    new = write(tmp_path / "n.csv", ["a", "prediction"], zip(numbers(), ids))
    rows = list(
        csv.DictReader(call("predict", tmp_path / "r", new, "--id", "prediction").stdout.splitlines())
    )
    assert [row["prediction.2"] for row in rows] == ids
    assert {row["prediction"] for row in rows} <= {"u", "v"}


# -- files that are not ours --------------------------------------------------------------------------


def fit_again(folder, data, *words):
    return call("fit", data, "--target", "y", "--out", folder, "--force", "--quiet", *TINY, *words)


def test_force_replaces_what_fit_writes_and_nothing_else(coded, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(coded, run)
    data = shutil.copy(coded.parent / "codes.csv", run / "input.csv")
    (run / "notes").mkdir()
    (run / "notes" / "mine.txt").write_text("mine", encoding="utf-8")
    before = {name: (run / name).read_bytes() for name in writing.FILES}
    assert fit_again(run, data).exit_code == 0
    assert all((run / name).read_bytes() != content for name, content in before.items())
    assert (run / "notes" / "mine.txt").read_text(encoding="utf-8") == "mine"
    assert sorted(p.name for p in run.iterdir()) == sorted([*writing.FILES, "input.csv", "notes"])
    refused(fit_again(run, run / "predictions.csv"), "The 'data' of")


def test_a_run_into_the_folder_one_stands_in(coded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = fit_again(".", coded.parent / "codes.csv")
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(writing.FILES)


@pytest.mark.parametrize("out", ["file/run", "x" * 250])
def test_a_folder_that_cannot_be_written_is_told_before_the_work(coded, tmp_path, monkeypatch, out):
    monkeypatch.setattr(running, "read_table", None)  # the work
    (tmp_path / "file").write_text("a file", encoding="utf-8")
    data = coded.parent / "codes.csv"
    done = call("fit", data, "--target", "y", "--out", tmp_path / out)
    refused(done, "cannot be written (")
    refused(call("predict", coded, data, "--out", tmp_path / out), "cannot be written (")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_predicting_into_a_folder_leaves_nothing(coded, tmp_path):
    (tmp_path / "o").mkdir()
    words = ["predict", coded, coded.parent / "codes.csv", "--force", "--out"]
    refused(call(*words, tmp_path / "o"), "is a folder")
    assert [p.name for p in tmp_path.iterdir()] == ["o"]
    assert call(*words, tmp_path / "new" / "p.csv").exit_code == 0
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["p.csv"]


def test_a_predictions_file_that_fails_half_way_leaves_nothing(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        writing.write_csv(tmp_path / "p.csv", {"a": ["fine", "\ud800"]})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted("in epoch 3. No folder was given.")])
def test_an_interrupted_fit_has_its_own_words(coded, tmp_path, monkeypatch, error):
    def stopped(*_):
        raise error

    monkeypatch.setattr(running, "_fitted", stopped)
    done = call("fit", coded.parent / "codes.csv", "--target", "y", "--out", tmp_path / "r")
    assert done.exit_code == 130
    assert done.stderr.strip().startswith(f"Interrupted. Nothing was written to {tmp_path / 'r'}.")
    assert list(tmp_path.iterdir()) == []


# -- one line, no traceback ---------------------------------------------------------------------------


EDITS = {
    "a parameter": lambda h: h["parameters"].update(spare=1),
    "a family": lambda h: h["plan"].update(family="zz"),
    "a size": lambda h: h["plan"].update(hidden=[10**9]),
    "a kind of column": lambda h: h["columns"][1].update(kind="zz"),
    "one class": lambda h: h["targets"].update(classes=["hi"]),
    "a type of class": lambda h: h["targets"].update(dtype="<i8"),
    "a shorter list": lambda h: h.update(inclusion=h["inclusion"][:1]),
    "a name": lambda h: h.update(names=h["names"][:1]),
    "a scale": lambda h: h["columns"][0].update(scale=[1.0, 1.0]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_header_edited_by_hand_gives_one_line(coded, tmp_path, edit):
    with safetensors.safe_open(str(coded / "model.safetensors"), framework="pt") as file:
        meta, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header = json.loads(meta["json"])
    EDITS[edit](header)
    path = tmp_path / "m.safetensors"
    meta["json"] = json.dumps(header)
    safetensors.torch.save_file(tensors, path, metadata=meta)
    refused(call("info", path), "checksum")
    # An edit that also updates the checksum.
    storage.write(persistence._KIND, path, tensors, header)
    refused(call("info", path), f"{path} is damaged (")
    refused(call("predict", path, coded.parent / "codes.csv"), f"{path} is damaged (")


def test_the_last_resort_is_one_line_and_its_own_status(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("never\nforeseen")

    monkeypatch.setattr(running, "info", broken)
    done = call("info", "run")
    assert done.exit_code == 70
    assert done.stderr.startswith("Error: ZeroDivisionError: never foreseen (--debug")
    assert done.stderr.count("\n") == 1
    assert isinstance(call("info", "run", "--debug").exception, ZeroDivisionError)


# -- intervals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "rows"), [(2, 2), (0, 3), (17, 40), (990, 1000)])
def test_the_interval_of_accuracy_is_wilsons(right, rows):
    probs = np.tile([0.4, 0.6], (rows, 1))
    codes = (np.arange(rows) < right).astype(np.int64)
    found = measuring.class_measures(probs, codes, 0)["accuracy"]
    exact = binomtest(right, rows).proportion_ci(0.95, method="wilson")
    assert found["value"] == pytest.approx(right / rows)
    assert [found["low"], found["high"]] == pytest.approx([exact.low, exact.high], abs=1e-12)


def test_the_interval_of_calibration_is_its_own():
    """Perfect probabilities: percentiles of resampled rows would not reach 0."""
    random = np.random.RandomState(0)
    p = random.uniform(0.5, 1.0, 400)
    codes = (random.rand(400) > p).astype(np.int64)
    probs = np.stack([p, 1.0 - p], axis=1)
    found = measuring.class_measures(probs, codes, 3)["ece"]
    low, high = metrics.calibration_interval(torch.from_numpy(probs), torch.from_numpy(codes), seed=3)
    assert (found["low"], found["high"]) == (low, high)
    assert found["low"] == 0.0 < found["value"] < found["high"]


# -- codes and other numbers that come back as they were written ----------------------------------------


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (["001", "002", "010"], ["001", "002", "010"]),
        (["1", "01", "2"], ["01", "1", "2"]),
        (["1.0", "2.0", "10.0"], ["1.0", "10.0", "2.0"]),
        (["1.0", "2.0", ""], ["1.0", "2.0"]),
        (["+1", "-1"], ["+1", "-1"]),
        (["1e3", "2e3"], ["1e3", "2e3"]),
        (["1", "2", "10"], [1, 2, 10]),
        (["1", "2", "3", "4+"], ["1", "2", "3", "4+"]),
        (["10.5", "low"], ["10.5", "low"]),
        ([str(10**19), str(2 * 10**19)], [str(10**19), str(2 * 10**19)]),
        (["1.0", "2.0", "1", "1.0"], ["1.0", "2.0"]),
        (["1000", "1E3", "A"], ["1000", "1E3", "A"]),  # numbers among words are words
    ],
)
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_labels_come_back_as_they_were_written(tmp_path, cells, classes, delimiter):
    found = problem(tmp_path, cells * 20, delimiter=delimiter)
    assert (found.task, np.unique(found.y).tolist()) == ("classification", classes)


@pytest.mark.parametrize("form", ["{:.2f}", "{:08.3f}", "{:+.1f}", "{:e}"])
def test_a_regression_does_not_mind_how_numbers_are_written(tmp_path, form):
    cells = [form.format(v) for v in numbers()]
    found = problem(tmp_path, cells)
    assert found.task == "regression"
    assert found.y.tolist() == [float(cell) for cell in cells]


def test_many_codes_are_a_regression_as_other_whole_numbers_are(tmp_path):
    cells = [f"{v:04d}" for v in range(1, 100)]
    assert problem(tmp_path, cells).task == "regression"
    assert problem(tmp_path, cells * 2, "classification").y[:2].tolist() == ["0001", "0002"]


def test_codes_as_target_from_file_to_prediction(tmp_path):
    x = numbers(80)
    data = write(tmp_path / "d.csv", ["a", "y"], zip(x, np.where(x > 0, "001", "002")))
    words = ["--target", "y", "--out", tmp_path / "r", "--epochs", "60", "--replicates", "1", "--quiet"]
    assert call("fit", data, *words).exit_code == 0
    record = json.loads((tmp_path / "r" / "record.json").read_text(encoding="utf-8"))
    assert record["classes"] == ["001", "002"]
    with (tmp_path / "r" / "predictions.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["truth"] for row in rows} == {"001", "002"}
    new = write(tmp_path / "n.csv", ["a"], [["3.0"], ["-3.0"]])
    predicted = csv.DictReader(call("predict", tmp_path / "r", new).stdout.splitlines())
    assert [row["prediction"] for row in predicted] == ["001", "002"]


def test_a_number_may_have_zeros_before_it_in_new_rows(tmp_path):
    data = write(tmp_path / "d.csv", ["a", "y"], zip(range(60), np.where(np.arange(60) > 30, "hi", "lo")))
    words = ["--target", "y", "--out", tmp_path / "r", "--epochs", "30", "--replicates", "1", "--quiet"]
    assert call("fit", data, *words).exit_code == 0
    files = [write(tmp_path / f"{i}.csv", ["a"], [[cell]]) for i, cell in enumerate(["7", "007"])]
    one, two = (call("predict", tmp_path / "r", file).stdout for file in files)
    assert one == two
