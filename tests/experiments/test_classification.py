"""The tables' runner, on its small version: files, parts, resumption, saved networks, several processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.data import load
from sparsebnn.experiments import cells, classification, evaluation, provenance, table1, table2, watching
from sparsebnn.experiments.paper import LBBNN_LOGITS

MEASURES = {
    f"{name}_{model}" for name in ("accuracy", "nll", "ece", "brier") for model in ("average", "median")
}


def words(folder: Path, *more: str) -> list[str]:
    common = [
        "--quick",
        "--methods",
        "lrt",
        "--epochs",
        "2",
        "--draws",
        "3",
        "--trace",
        "1",
        "--device",
        "cpu",
    ]
    return [*common, "--out", str(folder), "--runs", str(folder / "runs"), *more]


def result(folder: Path, name: str = "digits-lrt") -> dict:
    return json.loads((folder / "results" / "table1" / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A finished run of one cell."""
    folder = tmp_path_factory.mktemp("whole")
    table1.main(words(folder))
    return folder


def test_a_result_has_what_the_tables_need(whole):
    content = result(whole)
    assert (content["dataset"], content["architecture"], content["method"]) == ("digits", "fc", "lrt")
    assert [row["seed"] for row in content["replicates"]] == [0, 1]
    for row in content["replicates"]:
        assert set(row) == MEASURES | {"seed", "prediction_seed", "density", "density_per_layer"}
        assert 0.0 < row["accuracy_median"] < 1.0
        assert len(row["density_per_layer"]) == 3
    sizes = [64 * 50, 50 * 50, 50 * 10]
    for row in content["replicates"]:
        kept = sum(n * share for n, share in zip(sizes, row["density_per_layer"]))
        assert row["density"] == pytest.approx(kept / sum(sizes), abs=1e-12)
    for name in ("train_seconds", "compile_seconds", "evaluation_seconds"):
        assert content[name] >= 0.0
    assert content["train_seconds"] > 0.0
    assert content["command"] == (
        "python -m sparsebnn.experiments.table1 --quick --datasets digits --methods lrt "
        "--replicates 2 --epochs 2 --draws 3"
    )
    assert content["versions"]["torch"] == torch.__version__
    assert content["settings"]["settings"]["epochs"] == 2
    assert content["settings"]["settings"]["schedule"]["kind"] == "Steps"


def test_the_history_tells_density_and_accuracy_along_training(whole):
    history = result(whole)["history"]
    assert [line["epoch"] for line in history] == [0, 1]
    last = history[-1]
    final = [row["density"] for row in result(whole)["replicates"]]
    assert last["density"] == pytest.approx(sum(final) / 2, rel=1e-4)
    # Temperature 0.1; the KL's mean over batches counts the short last one fully, the loss does not.
    assert last["loss"] == pytest.approx(last["nll"] + 0.1 * last["kl"], rel=5e-3)
    assert {"accuracy_average", "accuracy_median"} <= set(last)


def test_the_median_model_from_disk_gives_the_accuracy_of_the_file(whole):
    given = parsed(words(whole))
    job = classification.jobs("fc", given)[0]
    folder = whole / "runs" / "table1" / f"digits-lrt.0-1.{job.key()}"
    data = load("digits")
    for row in result(whole)["replicates"]:
        network = classification.load_network(folder, job, row["seed"])
        x, y = evaluation.test_rows(data, job.cell, torch.device("cpu"))
        again = evaluation.evaluate(network, x, y, job.cell, job.draws, row["prediction_seed"])
        assert again == {name: row[name] for name in again}
        other = evaluation.evaluate(network, x, y, job.cell, job.draws, row["prediction_seed"] + 7)
        assert other["nll_median"] != row["nll_median"]


def parsed(argv):
    return classification.table_options("table1", "", argv)


KILLED = """
import os, signal, sys
from sparsebnn.experiments import table1, watching
def die(self, run, epoch):
    if epoch.epoch == 1:
        os.kill(os.getpid(), signal.SIGKILL)
watching.Trace.on_epoch_end = die
table1.main(sys.argv[1:])
"""


def test_killed_and_resumed_gives_the_same_replicates_bit_for_bit(whole, tmp_path):
    argv = words(tmp_path, "--checkpoint-seconds", "0")
    killed = subprocess.run([sys.executable, "-c", KILLED, *argv], capture_output=True)
    assert killed.returncode == -9
    assert not list(tmp_path.glob("results/*/*.json"))
    checkpoint = next(tmp_path.glob("runs/table1/*/checkpoint.safetensors"))
    _, header = sparsebnn.training.checkpoint.read(checkpoint)
    assert (header["epoch"], header["position"]) == (1, 13)  # one step before the end of the second epoch
    table1.main(argv)
    assert result(tmp_path)["replicates"] == result(whole)["replicates"]
    assert len(result(tmp_path)["history"]) == 2


def test_finished_cells_are_not_run_again(whole, monkeypatch, capsys):
    monkeypatch.setattr(classification, "train", None)
    table1.main(words(whole))
    assert capsys.readouterr().out == "[1/1] digits-lrt: already there\n"
    table1.main(words(whole, "--replicates", "1"))
    assert capsys.readouterr().out == "[1/1] digits-lrt: already there\n"


def test_other_settings_and_force_are_run_again(tmp_path, capsys):
    for more in (
        ["--epochs", "1"],
        ["--epochs", "1", "--draws", "2"],
        ["--epochs", "1", "--draws", "2", "--force"],
    ):
        table1.main(words(tmp_path, "--replicates", "1", *more))
        assert "median" in capsys.readouterr().out
    assert result(tmp_path)["settings"]["draws"] == 2


def test_parts_are_merged_when_all_are_there(whole, tmp_path):
    table1.main(words(tmp_path, "--replicates", "1-1"))
    results = tmp_path / "results" / "table1"
    assert [path.name for path in results.iterdir()] == ["digits-lrt.1.json"]
    second = result(tmp_path, "digits-lrt.1")
    assert second["command"].endswith("--replicates 1-1 --epochs 2 --draws 3")
    table1.main(words(tmp_path, "--replicates", "0-0"))
    assert [path.name for path in results.iterdir()] == ["digits-lrt.json"]
    merged = result(tmp_path)
    assert [row["seed"] for row in merged["replicates"]] == [0, 1]
    assert merged["replicates"][1] == second["replicates"][0]
    assert [part["seeds"] for part in merged["parts"]] == [[0], [1]]
    assert merged["train_seconds"] == pytest.approx(
        sum(p["train_seconds"] for p in merged["parts"]), abs=1e-3
    )
    # A replicate is the same alone or beside another, so parts and whole agree.
    for ours, theirs in zip(merged["replicates"], result(whole)["replicates"]):
        assert ours["accuracy_average"] == pytest.approx(theirs["accuracy_average"], abs=0.02)
        assert ours["density"] == pytest.approx(theirs["density"], abs=0.002)


def test_missing_replicates_are_added_to_a_cell(tmp_path):
    table1.main(words(tmp_path, "--replicates", "1", "--epochs", "1"))
    first = result(tmp_path)["replicates"]
    table1.main(words(tmp_path, "--replicates", "3", "--epochs", "1"))
    assert [row["seed"] for row in result(tmp_path)["replicates"]] == [0, 1, 2]
    assert result(tmp_path)["replicates"][0] == first[0]


def _part(seeds, density, **more):
    rows = [{"seed": seed, "density": density} for seed in seeds]
    common = {"device": "d", "versions": {}, "commit": "c", "command": f"run {seeds}", "stopped": []}
    seconds = {"train_seconds": 1.0, "compile_seconds": 2.0, "evaluation_seconds": 3.0}
    history = [{"epoch": 0, "density": density, **more}]
    return {**common, **seconds, "replicates": rows, "history": history}


def test_merged_histories_weigh_by_replicates():
    merged = cells.merged([_part([2, 3, 4], 0.1, accuracy_median=0.5), _part([0], 0.5)])
    assert merged["history"] == [{"epoch": 0, "density": pytest.approx(0.2), "accuracy_median": 0.5}]
    assert [row["seed"] for row in merged["replicates"]] == [0, 2, 3, 4]
    assert (merged["train_seconds"], merged["device"]) == (2.0, "d")
    assert merged["command"] == "run [2, 3, 4] + run [0]"


@pytest.mark.parametrize("text", ["0", "x", "3-1", "1,1", "-2", "1-"])
def test_replicates_that_make_no_sense(text):
    if text == "1-":
        assert cells.seeds_of(text) == ([1], True)
        return
    with pytest.raises(InvalidInput) as error:
        cells.seeds_of(text)
    assert str(error.value) == (
        "The '--replicates' of the command must be a count (10), a range (0-4) or seeds (0,3,7). "
        f"Got '{text}' instead."
    )


def test_without_safetensors_the_results_are_still_written(tmp_path, monkeypatch, capsys):
    real = classification.importlib.util.find_spec
    monkeypatch.setattr(
        classification.importlib.util, "find_spec", lambda name: None if name == "safetensors" else real(name)
    )
    table1.main(words(tmp_path, "--epochs", "1"))
    assert len(result(tmp_path)["replicates"]) == 2
    assert not list(tmp_path.glob("runs/**/*.safetensors"))
    assert "No 'safetensors' here" in capsys.readouterr().err


def test_a_cell_that_another_process_runs_is_left_to_it(tmp_path, capsys):
    given = parsed(words(tmp_path))
    job = classification.jobs("fc", given)[0]
    with cells.locked(tmp_path / "runs" / "table1" / f".digits-lrt.0-1.{job.key()}.lock"):
        table1.main(words(tmp_path))
    assert capsys.readouterr().out == "[1/1] digits-lrt: another process is at it\n"
    assert not list(tmp_path.glob("results/*/*.json"))


def test_training_waits_for_its_turn_and_compiling_does_not(tmp_path, monkeypatch):
    """The lock is free while the step is made ready, held in every epoch and while networks are measured."""
    path, seen = tmp_path / "gpu.lock", []

    def look(where):
        with cells.locked(path, wait=False) as free:
            seen.append((where, free))

    from sparsebnn.training.engine import Engine

    real = Engine.prepare
    monkeypatch.setattr(Engine, "prepare", lambda self, ready: (look("compile"), real(self, ready))[1])
    monkeypatch.setattr(watching.Trace, "on_epoch_end", lambda self, run, epoch: look("train"))
    measure = evaluation.evaluate
    monkeypatch.setattr(evaluation, "evaluate", lambda *a: (look("evaluate"), measure(*a))[1])
    table1.main(words(tmp_path, "--gpu-lock", str(path)))
    assert seen == [
        ("compile", True),
        ("train", False),
        ("train", False),
        ("evaluate", False),
        ("evaluate", False),
    ]
    look("after")
    assert seen[-1] == ("after", True)


def test_a_cell_that_fails_does_not_cost_the_others(tmp_path, monkeypatch, capsys):
    real = classification.train

    def train(network, *rest, **options):
        if network[0].family == "concrete":
            raise FloatingPointError("Every replicate stopped.")
        return real(network, *rest, **options)

    monkeypatch.setattr(classification, "train", train)
    with pytest.raises(SystemExit) as left:
        table1.main(words(tmp_path, "--epochs", "1", "--methods", "lbbnn", "lrt"))
    assert left.value.code == 1
    printed = capsys.readouterr().out
    assert "[1/2] digits-lbbnn failed: Every replicate stopped." in printed
    assert len(result(tmp_path)["replicates"]) == 2


@pytest.mark.slow
def test_workers_share_the_cells(tmp_path, capfd):
    """Two processes and forced anew: each cell is run once, and nothing that one finished is lost."""
    argv = words(tmp_path, "--epochs", "1", "--methods", "lbbnn", "lrt", "--workers", "2", "--force")
    table1.main(argv)
    printed = capfd.readouterr().out
    assert printed.count("digits-lbbnn: median") == printed.count("digits-lrt: median") == 1
    assert printed.splitlines()[-2:] == [
        "[1/2] digits-lbbnn: already there",
        "[2/2] digits-lrt: already there",
    ]


def test_a_replicate_that_stopped_does_not_cost_the_others(tmp_path, monkeypatch):
    """One replicate's parameters are not numbers at the end; the other is measured and the file says so."""
    from sparsebnn.training import Stopped

    real = classification.train

    def train(*given, **options):
        run = real(*given, **options)
        run.replicas.parameters["network.0.weights.mean"][1].fill_(float("nan"))
        run.stopped.append(Stopped(1, 1, 7, "the value of 0.weights.mean was not finite"))
        return run

    monkeypatch.setattr(classification, "train", train)
    table1.main(words(tmp_path, "--epochs", "1", "--trace", "0"))
    content = result(tmp_path)
    assert [row["seed"] for row in content["replicates"]] == [0]
    assert content["stopped"][0].startswith("Replicate 1 (seed 1) stopped at step 7")


def test_the_commit_can_be_told_where_there_is_no_git(monkeypatch):
    monkeypatch.setattr(provenance, "_git", lambda *words: None)
    assert provenance.commit_and_source() == (None, None)
    monkeypatch.setenv("SPARSEBNN_COMMIT", "abc")
    assert provenance.commit_and_source() == ("abc", "SPARSEBNN_COMMIT")


@pytest.mark.slow
def test_the_rate_of_lbbnns_logits_can_be_given():
    """A rate of one's own is a cell of its own; the table's rate, given, is the table's cell."""

    def key(*words: str) -> str:
        argv = ["--methods", "lbbnn", "--datasets", "kmnist", *words]
        (job,) = classification.jobs("lenet", classification.table_options("table2", "", argv))
        return job.key()

    table = LBBNN_LOGITS["lenet"].rate
    assert key("--lbbnn-rate", str(table)) == key()
    assert key("--lbbnn-rate", str(2 * table)) != key()


def test_the_quick_tables_run(tmp_path):
    """Both small tables as they stand; the linear-time method must read digits far better than chance."""
    for study in (table1, table2):
        study.main(["--quick", "--out", str(tmp_path), "--runs", str(tmp_path / "runs"), "--device", "cpu"])
    for name in ("table1", "table2"):
        files = sorted((tmp_path / "results" / name).iterdir())
        assert [file.name for file in files] == ["digits-flow.json", "digits-lbbnn.json", "digits-lrt.json"]
        rows = json.loads(files[2].read_text())["replicates"]
        assert min(row["accuracy_average"] for row in rows) > 0.8


def test_images_for_the_convolutional_network():
    cell = classification.quick_cell("lenet", "lrt")
    x = torch.arange(64.0).reshape(1, 64)
    image = evaluation.inputs(x, cell, (8, 8))
    assert image.shape == (1, 1, 28, 28)
    assert float(image.sum()) == 9 * float(x.sum())
    assert float(image[0, 0, 2 + 3 * 5, 2 + 3 * 1]) == 41.0
    pixels = torch.zeros(3, 784, dtype=torch.uint8)
    assert evaluation.inputs(pixels, cell, (28, 28)).shape == (3, 1, 28, 28)
