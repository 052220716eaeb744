"""Out-of-distribution detection on a few small pictures: what is trained, what is reported."""

import numpy as np
import pytest
import torch

from sparsebnn.training import Callback
from studies.image_ood import command as image_ood
from studies.image_ood.command import NAMES, PROGRAMS, Spec, read, run, training
from studies.image_ood.judge import shaped
from studies.runner import read_rows


def pictures(kind: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten classes, each a bright square at its own place; ``kind`` turns the picture."""
    rng = np.random.default_rng(kind)
    labels = np.arange(rows) % 10
    x = rng.integers(0, 60, (rows, 28, 28), dtype=np.uint8)
    for row, label in enumerate(labels):
        at = 2 * int(label) + 4
        x[row, at : at + 4, 6 * kind : 6 * kind + 8] = 250
    return x, labels.astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("images")
    for kind, name in enumerate(NAMES):
        (x, y), (x_test, y_test) = pictures(kind, 60), pictures(kind, 40)
        np.savez(path / f"{name}.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return path


SMALL = ["--epochs", "1", "--plain-epochs", "6", "--replicates", "2", "--members", "2", "--draws", "3"]


def test_a_plain_network_is_the_first_member_of_its_ensemble(folder):
    sets = read(folder)
    options = {"train_on": ("mnist",), "plain_epochs": 2, "replicates": 2, "n_draws": 1}
    both = run(Spec(methods=("plain", "ensemble"), members=2, **options), sets)
    alone = run(Spec(methods=("plain",), seed=2, **{**options, "replicates": 1}), sets)
    # Seeds 0 and 1 make the first ensemble, 2 and 3 the second.
    assert both[0]["nll"][1] == pytest.approx(alone[0]["nll"][0], rel=1e-4)
    assert both[0]["epistemic"] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert min(both[1]["epistemic"]) > 1e-4


def test_a_network_that_has_learned_notices_other_pictures(folder):
    spec = Spec(train_on=("mnist",), methods=("ensemble",), plain_epochs=25, replicates=1, members=3)
    (row,) = run(spec, read(folder))
    assert row["accuracy"][0] > 0.9
    for found in row["foreign"].values():
        assert found["entropy"]["auroc"][0] > 0.8
        assert found["entropy"]["flagged_outside"][0] > found["entropy"]["flagged_inside"][0]


class Poison(Callback):
    """Networks whose first parameter is no number before the first step."""

    def __init__(self, numbers):
        self.numbers = numbers

    @torch.no_grad()
    def on_train_start(self, run):
        for number in self.numbers:
            next(iter(run.replicates.parameters.values()))[number] = float("nan")


@pytest.mark.parametrize(
    ("numbers", "left"),
    [
        ((), {"plain": [0, 1, 2], "ensemble": [0, 1, 2]}),
        ((3,), {"plain": [0, 1, 2], "ensemble": [0, 2]}),  # the second member of the second ensemble
        ((2,), {"plain": [0, 2], "ensemble": [0, 2]}),
        ((0, 2, 5), {"plain": [2]}),
    ],
)
def test_a_replicate_that_stopped_is_no_result(numbers, left, folder, monkeypatch, capsys):
    real = image_ood.train

    def train(*given, **more):
        return real(*given, callbacks=[Poison(numbers)], **more)

    options = {"train_on": ("mnist",), "plain_epochs": 2, "replicates": 3, "members": 2, "n_draws": 1}
    spec = Spec(methods=("plain", "ensemble"), **options)
    whole = {row["method"]: row for row in run(spec, read(folder))}
    monkeypatch.setattr(image_ood, "train", train)
    capsys.readouterr()
    found = {row["method"]: row for row in run(spec, read(folder))}
    assert list(found) == list(left)
    for method, kept in left.items():
        assert found[method]["nll"] == [whole[method]["nll"][k] for k in kept]
        mine = [n for n in numbers if method == "ensemble" or n % 2 == 0]
        assert found[method]["stopped_seeds"] == mine
        assert len(found[method]["stopped"]) == len(mine)
    told = capsys.readouterr().out
    for method in ("plain", "ensemble"):
        count = len(left.get(method, []))
        assert (f"mnist {method}: not finished, {count} of 3 replicates. Replicate" in told) == (count < 3)


@pytest.mark.parametrize("architecture", ["fc", "lenet"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_network_takes_its_images(program, architecture, folder):
    spec = Spec(architecture=architecture, epochs=10)
    network, settings, count = training(spec, program)
    data = read(folder)["mnist"]
    x = shaped(data.x_train[:2].float(), data, architecture)
    assert network(x).shape == (2, 10)
    assert count == (50 if program == "plain" else 10)
    if program in ("lrt", "flow", "dense"):
        # The paper's milestones, at the same share of the epochs.
        share = {"fc": [0.5], "lenet": [0.4, 0.8] if program == "flow" else [0.32, 0.64]}[architecture]
        assert list(settings.schedule.milestones) == [round(10 * s) for s in share]
        assert settings.learning_rate == 1e-4


def test_only_missing_rows_are_run(folder, tmp_path, monkeypatch, capsys):
    argv = ["--data", str(folder), "--out", str(tmp_path), "--device", "cpu", *SMALL, "--train-on", "mnist"]
    image_ood.main([*argv, "--methods", "dropout"])
    image_ood.main([*argv, "--methods", "dropout", "plain"])
    assert "mnist dropout: already there" in capsys.readouterr().out
    rows = read_rows(tmp_path / "results/image_ood/rows.jsonl")
    assert [row["method"] for row in rows] == ["dropout", "plain"]
    assert rows[0]["command"].endswith(
        "--methods dropout --epochs 1 --plain-epochs 6 --replicates 2 --members 2 --draws 3"
    )
    for found in rows[0]["foreign"].values():
        assert all(0.0 <= value <= 1.0 for value in found["entropy"]["auroc"])
        assert len(found["entropy"]["auroc"]) == 2
    record = image_ood.read_record(tmp_path / "results/image_ood")
    assert record["spec"]["methods"] == ["dropout", "plain"]
    image_ood.main([*argv, "--methods", "plain", "--seed", "5"])  # another study
    assert image_ood.read_record(tmp_path / "results/image_ood")["spec"]["seed"] == 5
