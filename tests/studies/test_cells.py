"""Cells of the tables, in their small version: rows, resumption, saved networks, older files."""

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
from sparsebnn.io import saving
from sparsebnn.io.data import load
from studies.runner import read_rows
from studies.tables import cells, command, evaluation
from studies.tables.cells import Job, read_cells
from studies.tables.paper import LBBNN_LOGITS

MEASURES = {f"{n}_{m}" for n in ("accuracy", "nll", "ece", "brier") for m in ("average", "median")}


def words(folder: Path, *more: str) -> list[str]:
    own = ["--quick", "--methods", "lrt", "--epochs", "2", "--draws", "3", "--trace", "1", "--device", "cpu"]
    return [*own, "--out", str(folder), "--runs", str(folder / "runs"), *more]


def rows(folder: Path) -> list[dict]:
    return read_rows(folder / "results" / "table1" / "rows.jsonl")


def result(folder: Path) -> dict:
    return read_cells(folder / "results" / "table1", ["digits-lrt"])["digits-lrt"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A finished run of one cell."""
    folder = tmp_path_factory.mktemp("whole")
    command.table1(words(folder))
    return folder


def test_a_row_has_measures_and_provenance(whole):
    assert [row["seed"] for row in rows(whole)] == [0, 1]
    sizes = [64 * 50, 50 * 50, 50 * 10]
    for row in rows(whole):
        assert set(row) > MEASURES | {"commit", "versions", "device", "train_seconds", "settings"}
        assert row["command"].startswith("python -m studies table1 --epochs 2 --draws 3")
        kept = sum(n * share for n, share in zip(sizes, row["density_per_layer"]))
        assert row["density"] == pytest.approx(kept / sum(sizes), abs=1e-12)
    content = result(whole)
    assert (content["dataset"], content["architecture"], content["method"]) == ("digits", "fc", "lrt")
    assert content["settings"]["settings"]["epochs"] == 2
    assert [line["epoch"] for line in content["history"]] == [0, 1]
    last = content["history"][-1]
    assert last["density"] == pytest.approx(sum(row["density"] for row in rows(whole)) / 2, rel=1e-4)
    # Temperature 0.1; the KL's mean over batches counts the short last one fully, the loss does not.
    assert last["loss"] == pytest.approx(last["nll"] + 0.1 * last["kl"], rel=5e-3)
    assert {"accuracy_average", "accuracy_median"} <= set(last)


def test_the_saved_network_gives_the_measures_of_its_row(whole):
    (job,) = command.jobs("fc", command.table_arguments("table1", "", words(whole)))
    data = load("digits")
    for row in rows(whole):
        path = next(whole.glob(f"runs/table1/*/network-{row['seed']}.safetensors"))
        network = saving.load(path, job.cell.network()).network.eval()
        x, y = evaluation.test_rows(data, job.cell, torch.device("cpu"))
        again = evaluation.evaluate(network, x, y, job.cell, job.draws, row["seed"])
        assert again == {name: row[name] for name in again}


KILLED = """
import os, signal, sys
from studies.tables import cells, command
from sparsebnn.training import checkpoint
cells.Trace.on_epoch_end = lambda self, run, epoch: epoch.epoch == 1 and os.kill(os.getpid(), signal.SIGKILL)
real = cells.train
cells.train = lambda *given, **options: real(*given, **{**options, "checkpoint_seconds": 0.0})
command.table1(sys.argv[1:])
"""


def test_killed_and_resumed_gives_the_same_replicates_bit_for_bit(whole, tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, *words(tmp_path)], capture_output=True)
    assert killed.returncode == -9
    assert not rows(tmp_path)
    _, header = sparsebnn.training.checkpoint.read(
        next(tmp_path.glob("runs/table1/*/checkpoint.safetensors"))
    )
    assert (header["epoch"], header["position"]) == (1, 13)  # one step before the end of the second epoch
    command.table1(words(tmp_path))
    for ours, theirs in zip(rows(tmp_path), rows(whole), strict=True):
        assert {name: ours[name] for name in MEASURES} == {name: theirs[name] for name in MEASURES}


def test_only_what_is_missing_is_run(whole, tmp_path, monkeypatch, capsys):
    command.table1(words(tmp_path, "--replicates", "1", "--epochs", "1"))
    first = rows(tmp_path)
    command.table1(words(tmp_path, "--replicates", "0,2", "--epochs", "1"))
    assert [row["seed"] for row in rows(tmp_path)] == [0, 2]
    assert rows(tmp_path)[:1] == first
    assert len(result(tmp_path)["replicates"]) == 2
    monkeypatch.setattr(cells, "train", None)
    command.table1(words(whole))
    assert "already there" in capsys.readouterr().out


def test_other_settings_are_other_rows_and_the_latest_count(tmp_path):
    for draws in ("3", "2"):
        command.table1(words(tmp_path, "--replicates", "1", "--epochs", "1", "--draws", draws))
    assert [row["settings"]["draws"] for row in rows(tmp_path)] == [3, 2]
    assert result(tmp_path)["settings"]["draws"] == 2
    assert len(result(tmp_path)["replicates"]) == 1


def test_a_stopped_replicate_has_a_row_without_measures(tmp_path, monkeypatch, capsys):
    """At a temperature that float32 cannot hold, a replicate stops at its first step."""
    real = cells.train

    def train(*given, **options):
        heat = [1e300 if seed == 1 else 0.1 for seed in options["replicates"]]
        return real(*given, **options, per_replicate={"temperature": heat})

    monkeypatch.setattr(cells, "train", train)
    command.table1(words(tmp_path, "--epochs", "1"))
    assert "seed 1) stopped at step 0" in capsys.readouterr().out
    content = result(tmp_path)
    assert [row["seed"] for row in content["replicates"]] == [0]
    assert content["stopped_seeds"] == [1]
    monkeypatch.setattr(cells, "train", None)  # the same seed would stop again
    command.table1(words(tmp_path, "--epochs", "1"))


def test_an_older_file_of_a_cell_is_read_and_extended(whole, tmp_path):
    folder = tmp_path / "results" / "table1"
    folder.mkdir(parents=True)
    old = {**result(whole), "replicates": result(whole)["replicates"][:1]}
    (folder / "digits-lrt.json").write_text(json.dumps(old))
    command.table1(words(tmp_path))
    assert [row["seed"] for row in rows(tmp_path)] == [1]
    assert [row["seed"] for row in result(tmp_path)["replicates"]] == [0, 1]
    empty = {**old, "replicates": []}
    (folder / "digits-flow.json").write_text(json.dumps(empty))
    assert read_cells(folder, ["digits-flow"]) == {}


@pytest.mark.parametrize("text", ["0", "x", "3-1", "1,1", "-2"])
def test_replicates_that_make_no_sense(text):
    with pytest.raises(InvalidInput, match="'--replicates'"):
        cells.seeds_of(text)


def _lbbnn_job(*words: str, dataset: str = "kmnist") -> Job:
    argv = ["--methods", "lbbnn", "--datasets", dataset, *words]
    (job,) = command.jobs("lenet", command.table_arguments("table2", "", argv))
    return job


def test_the_schedule_of_lbbnn_can_be_given():
    """Another start, rate or steadiness is another cell; the table's own, given explicitly, is not."""
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
    with pytest.raises(InvalidInput, match="'lbbnn_start'"):
        _lbbnn_job("--lbbnn-start", "10", "-15")


def test_images_for_the_convolutional_network():
    lenet = cells.quick_cell("lenet", "lrt")
    x = torch.arange(64.0).reshape(1, 64)
    image = evaluation.inputs(x, lenet, (8, 8))
    assert image.shape == (1, 1, 28, 28)
    assert float(image.sum()) == 9 * float(x.sum())
    assert float(image[0, 0, 2 + 3 * 5, 2 + 3 * 1]) == 41.0
