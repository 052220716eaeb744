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
from sparsebnn.init import Uniform
from sparsebnn.io.data import load
from sparsebnn.io.locking import locked
from studies import (
    cell_command,
    cells,
    classification,
    evaluation,
    provenance,
    table1,
    table2,
    watching,
)
from studies.cells import Job
from studies.paper import LBBNN_LOGITS, cell

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
        "python -m studies table1 --quick --datasets digits --methods lrt --replicates 2 --epochs 2 --draws 3"
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
    job = cell_command.jobs("fc", given)[0]
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
    return cell_command.table_options("table1", "", argv)


KILLED = """
import os, signal, sys
from studies import table1, watching
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


def test_a_rehearsal_never_replaces_a_result(whole, tmp_path, monkeypatch):
    """Not even by force; said before any work."""
    monkeypatch.setattr(classification, "train", None)
    path = tmp_path / "results/table1/digits-lrt.json"
    path.parent.mkdir(parents=True)
    content = result(whole)
    path.write_text(json.dumps({**content, "command": content["command"].replace(" --quick", "")}))
    before = path.read_text()
    with pytest.raises(InvalidInput, match="must be a result of --quick too"):
        table1.main(words(tmp_path, "--draws", "2", "--force"))
    assert path.read_text() == before


def test_a_file_of_other_settings_is_replaced_only_by_force(tmp_path, monkeypatch, capsys):
    table1.main(words(tmp_path, "--replicates", "1", "--epochs", "1"))
    before = (tmp_path / "results/table1/digits-lrt.json").read_text()
    other = words(tmp_path, "--replicates", "1", "--epochs", "1", "--draws", "2")
    parts = words(tmp_path, "--replicates", "1-1", "--epochs", "1", "--draws", "2")
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(classification.datasets, "load", None)
        patch.setattr(classification, "train", None)
        for argv in (other, parts, [*other, "--workers", "2"], [*other, "--merge"]):
            with pytest.raises(InvalidInput) as error:
                table1.main(argv)
            assert str(error.value) == (
                f"The '{tmp_path / 'results/table1/digits-lrt.json'}' of the command must be a result of the "
                "settings asked for. Got draws 3 where 2 is asked for instead. Give another --out, or "
                "--force to run it again and replace the file."
            )
    assert (tmp_path / "results/table1/digits-lrt.json").read_text() == before
    assert capsys.readouterr().out == ""
    table1.main([*other, "--force"])
    assert result(tmp_path)["settings"]["draws"] == 2
    kept = tmp_path / "runs/table1/replaced/digits-lrt.0.json"
    assert kept.read_text() == before
    assert f"digits-lrt.json: what it had is kept as {kept}" in capsys.readouterr().out


def test_force_runs_the_seeds_asked_for_and_no_others(tmp_path, monkeypatch, capsys):
    """The second seed of a cell, of its networks and of its origin stay when the first is run again."""
    table1.main(words(tmp_path, "--epochs", "1"))
    before, trained, real = result(tmp_path), [], classification.train

    def train(*given, **options):
        trained.append(options["replicates"])
        return real(*given, **options)

    monkeypatch.setattr(classification, "train", train)
    table1.main(words(tmp_path, "--epochs", "1", "--force", "--replicates", "0-0"))
    after = result(tmp_path)
    assert trained == [[0]]
    assert [path.name for path in (tmp_path / "results/table1").iterdir()] == ["digits-lrt.json"]
    assert [row["seed"] for row in after["replicates"]] == [0, 1]
    assert after["replicates"][1] == before["replicates"][1]
    assert [part["seeds"] for part in after["parts"]] == [[1], [0]]
    assert len(list(tmp_path.glob("runs/table1/digits-lrt.*/network-1.safetensors"))) == 1
    table1.main(words(tmp_path, "--epochs", "1", "--force", "--replicates", "1-1"))
    assert [part["seeds"] for part in result(tmp_path)["parts"]] == [[0], [1]]
    # What is forced and then fails is not lost.
    monkeypatch.setattr(classification, "train", None)
    with pytest.raises(SystemExit):
        table1.main(words(tmp_path, "--epochs", "1", "--force"))
    kept = sorted((tmp_path / "runs/table1/replaced").iterdir())
    assert [row["seed"] for row in json.loads(kept[-1].read_text())["replicates"]] == [0, 1]


def test_the_committed_tables_are_finished(tmp_path, monkeypatch, capsys):
    """The default command in the repository finds its nine cells and trains nothing."""
    root = Path(__file__).resolve().parents[2]
    before = {path.name: path.read_text() for path in (root / "results/table1").iterdir()}
    monkeypatch.setattr(classification, "train", None)
    monkeypatch.setattr(classification.datasets, "load", None)
    monkeypatch.setattr(cells, "write_json", None)
    table1.main(["--out", str(root), "--runs", str(tmp_path)])
    assert capsys.readouterr().out.count(": already there\n") == 9
    with pytest.raises(InvalidInput, match="epochs 250 where 5 is asked for"):
        table1.main(["--out", str(root), "--runs", str(tmp_path), "--epochs", "5"])
    assert {path.name: path.read_text() for path in (root / "results/table1").iterdir()} == before


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
    job = cell_command.jobs("fc", given)[0]
    with locked(tmp_path / "runs" / "table1" / f".digits-lrt.0-1.{job.key()}.lock"):
        table1.main(words(tmp_path))
    assert capsys.readouterr().out == "[1/1] digits-lrt: another process is at it\n"
    assert not list(tmp_path.glob("results/*/*.json"))


def test_training_waits_for_its_turn_and_compiling_does_not(tmp_path, monkeypatch):
    """The lock is free while the step is made ready, held in every epoch and while networks are measured."""
    path, seen = tmp_path / "gpu.lock", []

    def look(where):
        with locked(path, wait=False) as free:
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


def _stops(monkeypatch, seed: int) -> None:
    """The replicate of that seed is at a temperature that float32 cannot hold: it stops at its first step."""
    real = classification.train

    def train(*given, **options):
        seeds = options["replicates"]
        heat = [1e300 if s == seed else 0.1 for s in seeds]
        return real(*given, **options, per_replicate={"temperature": heat})

    monkeypatch.setattr(classification, "train", train)


def test_a_replicate_that_stopped_is_no_result(tmp_path, monkeypatch, capsys):
    """The other one is measured; the file and the command say which is missing, then and later."""
    argv = words(tmp_path, "--epochs", "1", "--trace", "1")
    with monkeypatch.context() as patch:
        _stops(patch, 1)
        table1.main(argv)
        said = "[1/1] digits-lrt: not finished, 1 of 2 replicates. Replicate 1 (seed 1) stopped at step 0: "
        assert said in capsys.readouterr().out
        content = result(tmp_path)
        assert [row["seed"] for row in content["replicates"]] == [0]
        assert content["stopped_seeds"] == [1]
        assert content["stopped"][0].startswith("Replicate 1 (seed 1) stopped at step 0")
        assert content["history"][0]["loss"] > 0.0
        patch.setattr(classification, "train", None)
        table1.main(argv)
        again = capsys.readouterr().out
        assert said in again
        assert again.endswith("Run it again with --force, or other seeds with --replicates.\n")
    table1.main([*argv, "--force", "--replicates", "1-1"])
    assert "not finished" not in capsys.readouterr().out
    content = result(tmp_path)
    assert [row["seed"] for row in content["replicates"]] == [0, 1]
    assert (content["stopped"], content["stopped_seeds"]) == ([], [])


def test_parts_are_merged_though_a_replicate_stopped(tmp_path, monkeypatch, capsys):
    argv = words(tmp_path, "--epochs", "1", "--trace", "0")
    with monkeypatch.context() as patch:
        _stops(patch, 1)
        table1.main([*argv, "--replicates", "1,2"])
    table1.main([*argv, "--replicates", "0-0"])
    content = result(tmp_path)
    assert [row["seed"] for row in content["replicates"]] == [0, 2]
    assert content["stopped_seeds"] == [1]


def test_a_cell_of_nothing_but_stopped_replicates_is_not_shown(tmp_path):
    part = {**_part([], 0.1), "stopped": ["Replicate 0 (seed 0) stopped"], "stopped_seeds": [0]}
    (tmp_path / "digits-lrt.json").write_text(json.dumps(part))
    assert cells.read_results(tmp_path, ["digits-lrt"]) == {}


def test_the_commit_can_be_told_where_there_is_no_git(monkeypatch):
    monkeypatch.setattr(provenance, "_git", lambda *words: None)
    assert provenance.commit_and_source() == (None, None)
    monkeypatch.setenv("SPARSEBNN_COMMIT", "abc")
    assert provenance.commit_and_source() == ("abc", "SPARSEBNN_COMMIT")


def _lbbnn_job(*words: str, dataset: str = "kmnist") -> Job:
    argv = ["--methods", "lbbnn", "--datasets", dataset, *words]
    (job,) = cell_command.jobs("lenet", cell_command.table_options("table2", "", argv))
    return job


def test_the_schedule_of_lbbnn_can_be_given():
    """A start, a rate or steadiness of one's own is another cell; the table's, given, is the table's."""
    table = LBBNN_LOGITS["lenet"]
    start = ["--lbbnn-start", str(table.start.low), str(table.start.high)]
    assert _lbbnn_job("--lbbnn-rate", str(table.rate), *start).key() == _lbbnn_job().key()
    others = (["--lbbnn-rate", str(2 * table.rate)], ["--lbbnn-start", "-15", "10"], ["--lbbnn-steady"])
    assert len({_lbbnn_job().key(), *(_lbbnn_job(*words).key() for words in others)}) == 4
    own = _lbbnn_job("--lbbnn-start", "-15", "10", "--lbbnn-rate", "2e-4", "--lbbnn-steady").cell
    assert own.initial.inclusion_logit == own.dense_initial.inclusion_logit == Uniform(-15.0, 10.0)
    rates = [own.settings.rate(group, epoch) for epoch in (0, 249) for group in ("mean", "inclusion_logit")]
    assert rates[:3] == [1e-4, 2e-4, 1e-4]
    assert rates[3] < 1e-4


def test_a_data_set_may_have_a_schedule_of_its_own():
    """FMNIST's LeNet-5 has; told to take KMNIST's, it is KMNIST's cell."""
    table = LBBNN_LOGITS["lenet"]
    usual = ["--lbbnn-rate", str(table.rate), "--no-lbbnn-steady"]
    usual += ["--lbbnn-start", str(table.start.low), str(table.start.high)]
    own, told = _lbbnn_job(dataset="fmnist"), _lbbnn_job(*usual, dataset="fmnist")
    assert own.cell == cell("lenet", "lbbnn", "fmnist") != told.cell
    assert told.cell == _lbbnn_job().cell
    assert own.cell.settings.rate("mean", 249) == 1e-4 > told.cell.settings.rate("mean", 249)


def test_an_upside_down_start_is_refused():
    with pytest.raises(InvalidInput, match="must be two numbers, the lower first"):
        _lbbnn_job("--lbbnn-start", "10", "-15")


def test_a_given_schedule_is_in_the_cells_command(tmp_path, monkeypatch):
    """Whoever runs the recorded command gets the same cell."""
    seen = []
    monkeypatch.setattr(cell_command, "execute", lambda study, given, todo, words, argv: seen.append(words))
    argv = ["--methods", "lbbnn", "lrt", "--datasets", "kmnist", "--lbbnn-start", "-15", "10"]
    argv += ["--lbbnn-rate", "2e-4", "--lbbnn-steady"]
    table2.main(argv)
    jobs = cell_command.jobs("lenet", cell_command.table_options("table2", "", argv))
    again = cell_command.jobs("lenet", cell_command.table_options("table2", "", seen[0](jobs[0])))
    assert [job.key() for job in again] == [jobs[0].key()]
    assert not any("lbbnn" in word for word in seen[0](jobs[1]))


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
