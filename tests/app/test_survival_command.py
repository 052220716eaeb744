"""``sparsebnn fit trial.csv --time days --event died``: files, report and errors."""

import json

import numpy as np
import pytest

from app.calls import call, refused
from sparsebnn.app import report

QUICK = ("--epochs", "20", "--replicates", "2", "--seed", "0")


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    random = np.random.RandomState(0)
    dose, age = random.randn(200), random.randint(30, 80, 200)
    time, limit = random.exponential(100 * np.exp(-dose)), random.exponential(200, 200)
    rows = [
        f"{d:.4f},{a},{max(min(t, c), 0.01):.3f},{int(t <= c)}" for d, a, t, c in zip(dose, age, time, limit)
    ]
    path = tmp_path_factory.mktemp("trial") / "trial.csv"
    path.write_text("dose,age,days,died\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def run(trial, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    done = call("fit", trial, "--time", "days", "--event", "died", "--out", out, *QUICK)
    assert done.exit_code == 0, done.output
    return out, done.output


def test_the_run_folder(run):
    out, text = run
    record = json.loads((out / "record.json").read_text())
    assert record["task"] == "survival"
    assert record["metrics"]["average"]["concordance"]["value"] > 0.6
    assert "--time days --event died" in record["command"]
    groups = record["survival"]["groups"]
    assert sum(group["rows"] for group in groups) == record["data"]["test_rows"]
    # The group of the highest risk survives least, as observed and as predicted.
    for kind in ("observed", "predicted"):
        middle = [np.mean(group[kind]) for group in groups]
        assert middle[0] > middle[-1]
    assert "concordance" in text
    header = (out / "predictions.csv").read_text().splitlines()[0]
    assert header.startswith("row,event,time,risk,risk std,median time,survival at ")


def test_the_report(run):
    out, _ = run
    page = (out / "report.html").read_text()
    assert "Who is at risk, and when" in page
    assert "Kaplan–Meier" in page
    assert "log hazard" in page
    assert "chance" in page
    record = json.loads((out / "record.json").read_text())
    record["survival"]["groups"][0]["low"].pop()
    with pytest.raises(ValueError, match="survival"):
        report.render(record)


def test_predict_and_info(run, trial, tmp_path):
    out, _ = run
    assert call("predict", out, trial, "--out", tmp_path / "new.csv").exit_code == 0
    assert len((tmp_path / "new.csv").read_text().splitlines()) == 201
    assert "times until an event" in call("info", out).output


@pytest.mark.parametrize(
    ("options", "change", "named"),
    [
        (("--time", "days"), None, "'target'"),
        ((), None, "'target'"),
        (("--target", "age", "--time", "days", "--event", "died"), None, "'target'"),
        (("--time", "day", "--event", "died"), None, "'time'"),
        (("--time", "days", "--event", "died"), (3, "dead"), "'event'"),
        (("--time", "days", "--event", "died"), (2, "-3"), "'time'"),
        (("--time", "days", "--event", "died"), (3, None), "'event'"),
    ],
)
def test_errors_in_one_line(trial, tmp_path, options, change, named):
    lines = trial.read_text().splitlines()
    if change is not None:
        place, value = change
        cells = [line.split(",") for line in lines[1:]]
        for row in cells if value is None else cells[:1]:
            row[place] = "0" if value is None else value
        lines = [lines[0], *(",".join(row) for row in cells)]
    path = tmp_path / "changed.csv"
    path.write_text("\n".join(lines) + "\n")
    done = call("fit", path, "--out", tmp_path / "run", *options, *QUICK)
    refused(done, named)
    assert not (tmp_path / "run").exists()
