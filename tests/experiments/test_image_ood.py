"""experiments/image_ood.py on pictures small in number: what is trained, what is reported, what is said."""

import json

import numpy as np
import pytest
import torch

from sparsebnn.checks import InvalidInput
from sparsebnn.experiments import image_ood
from sparsebnn.experiments.image_ood import METHODS, NAMES, Images, Spec, _training, read, run


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


def test_the_command_writes_a_row_for_everything(folder, tmp_path):
    argv = ["--data", str(folder), "--out", str(tmp_path), "--device", "cpu", *SMALL]
    argv += ["--train-on", "mnist", "--methods", "lrt", "dense", "dropout", "ensemble", "--rows", "60"]
    assert image_ood.main(argv) == 0
    record = json.loads((tmp_path / "results/image_ood/image_ood.json").read_text())
    assert [(row["method"], row["replicate"]) for row in record["rows"]] == [
        (method, k) for method in ("lrt", "dense", "dropout", "ensemble") for k in range(2)
    ]
    for row in record["rows"]:
        assert set(row["foreign"]) == {"fmnist", "kmnist"}
        for found in row["foreign"].values():
            assert 0.0 <= found["entropy"]["auroc"] <= 1.0
    assert record["spec"]["epochs"] == 1
    assert record["provenance"]["device"] == "cpu"
    assert record["provenance"]["command"] == (
        "python -m sparsebnn.experiments.image_ood --train-on mnist --methods lrt dense dropout ensemble "
        "--epochs 1 --plain-epochs 6 --rows 60 --replicates 2 --members 2 --draws 3"
    )


def test_a_network_that_has_learned_notices_other_pictures(folder):
    sets = {name: read(folder, name) for name in NAMES}
    spec = Spec(train_on=("mnist",), methods=("ensemble",), plain_epochs=25, replicates=1, members=3)
    (row,) = run(spec, sets)
    assert row["accuracy"] > 0.9
    for found in row["foreign"].values():
        assert found["entropy"]["auroc"] > 0.8
        assert found["entropy"]["flagged_outside"] > found["entropy"]["flagged_inside"]


@pytest.mark.parametrize("architecture", ["fc", "lenet"])
@pytest.mark.parametrize("method", METHODS)
def test_every_network_takes_its_images(method, architecture):
    spec = Spec(architecture=architecture, epochs=10)
    network, settings, count = _training(spec, method)
    x = image_ood._shaped(torch.zeros(2, 28, 28), architecture)
    assert network(x).shape == (2, 10)
    assert count == (50 if method == "ensemble" else 10)
    if method in ("lrt", "flow", "dense"):
        # The paper's milestones, at the same share of the epochs.
        share = {"fc": [0.5], "lenet": [0.4, 0.8] if method == "flow" else [0.32, 0.64]}[architecture]
        assert list(settings.schedule.milestones) == [int(10 * s) for s in share]
        assert settings.learning_rate == 1e-4


def test_messages(tmp_path):
    with pytest.raises(InvalidInput) as error:
        read(tmp_path, "mnist")
    assert str(error.value) == (
        "The 'data' of image_ood must be a folder that holds mnist.npz. "
        f"Got {str(tmp_path)!r} instead. Pass it with --data."
    )
    with pytest.raises(InvalidInput) as error:
        Spec(train_on=("mnst",))
    assert str(error.value) == (
        "The 'train_on' of image_ood must be one of 'mnist', 'fmnist', 'kmnist'. "
        "Got 'mnst' instead. Did you mean 'mnist'?"
    )


def test_images_are_tensors(folder):
    data = read(folder, "kmnist")
    assert isinstance(data, Images)
    assert data.x_train.dtype == torch.uint8
    assert data.y_test.dtype == torch.int64
