"""What ``export`` refuses, and that it writes whole files or none."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import models
import numpy as np
import pandas as pd
import pytest
import readers
import torch

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.deploy import export, formats, from_pretrained
from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor, SparseBNNSurvival
from sparsebnn.likelihoods import Categorical, Likelihood


@pytest.fixture(scope="module")
def fitted() -> Any:
    return models.ESTIMATORS["array"]()[0]


@pytest.fixture
def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return sparsebnn.mlp([4, 6, 3])


class Own(Likelihood):
    """A likelihood that the exporter does not know."""


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"model": "mean"}, "model"),
        ({"n_draws": 0}, "n_draws"),
        ({"n_draws": 2.5}, "n_draws"),
        ({"format": "tflite"}, "format"),
        ({"likelihood": None}, "likelihood"),
        ({"likelihood": Own()}, "likelihood"),
        ({"seed": 1.5}, "seed"),
        ({"example": torch.full((1, 4), torch.nan)}, "x"),
        ({"example": torch.zeros(1, 5)}, "example"),
        ({"example": torch.zeros(4)}, "example"),
        ({"example": "a row"}, "example"),
    ],
)
def test_bad_options(network: Any, tmp_path: Path, options: dict[str, Any], parameter: str) -> None:
    with pytest.raises(InvalidInput, match=f"'{parameter}' of"):
        export(network, tmp_path / "model.pt2", **{"likelihood": Categorical(3), **options})
    assert not list(tmp_path.iterdir())


def test_bad_models(tmp_path: Path, fitted: Any) -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(3, 2))
    with pytest.raises(InvalidInput, match="Bayesian layers"):
        export(plain, tmp_path / "model.pt2", likelihood=Categorical(2))
    with pytest.raises(InvalidInput, match="'model' of export"):
        export({"a": 1}, tmp_path / "model.pt2")
    with pytest.raises(InvalidInput, match="'example' of export"):
        export(sparsebnn.lenet(), tmp_path / "model.pt2", likelihood=Categorical(10))
    with pytest.raises(ValueError, match="not fitted"):
        export(SparseBNNClassifier(), tmp_path / "model.onnx")
    with pytest.raises(InvalidInput, match="'likelihood' of export"):
        export(fitted, tmp_path / "model.onnx", likelihood=Categorical(2))
    X, quick = np.random.RandomState(0).randn(40, 2), {"epochs": 2, "replicates": 1}
    counts = SparseBNNRegressor(likelihood="poisson", **quick).fit(X, np.arange(40) % 3)
    with pytest.raises(InvalidInput, match=r"'likelihood' of export.*Poisson"):
        export(counts, tmp_path / "model.onnx")
    survival = SparseBNNSurvival(**quick).fit(X, np.arange(40.0) + 1.0)
    with pytest.raises(InvalidInput, match=r"'model' of export.*SparseBNNSurvival"):
        export(survival, tmp_path / "model.onnx")
    grouped = torch.nn.Sequential(sparsebnn.nn.Conv2d(2, 4, 3, groups=2), torch.nn.Flatten())
    with pytest.raises(InvalidInput, match="groups"):
        export(grouped, tmp_path / "m.c", likelihood=Categorical(64), example=torch.zeros(1, 2, 6, 6))
    assert not list(tmp_path.iterdir())


def test_bad_paths(tmp_path: Path, network: Any) -> None:
    form = Categorical(3)
    for name in ("model.txt", "2nd.c", "int.c", "a-b.c"):
        with pytest.raises(InvalidInput, match="'path' of export"):
            export(network, tmp_path / name, likelihood=form)
    there = tmp_path / "model.pt2"
    there.write_text("mine")
    with pytest.raises(InvalidInput, match="overwrite"):
        export(network, there, likelihood=form)
    assert there.read_text() == "mine"
    export(network, there, likelihood=form, n_draws=2, overwrite=True)
    assert there.stat().st_size > 1000


@pytest.mark.parametrize(("name", "missing"), [("m.onnx", "onnxscript"), ("folder", "huggingface_hub")])
def test_missing_packages(
    name: str, missing: str, tmp_path: Path, network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == missing else known(n, *a))
    with pytest.raises(ImportError, match=rf"{missing}.*pip install 'sparsebnn\["):
        export(network, tmp_path / name, likelihood=Categorical(3))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["pt2", "c", "hub"])
def test_nothing_is_left_of_a_failed_export(
    format: str, tmp_path: Path, network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        export(network, tmp_path / "model", format=format, likelihood=Categorical(3), n_draws=2)
    assert not list(tmp_path.iterdir())


def test_runs_are_exported_with_all_their_replicates(tmp_path: Path) -> None:
    x = torch.randn(60, 5)
    settings = sparsebnn.Settings(epochs=2)
    run = sparsebnn.train(
        sparsebnn.mlp([5, 6, 2]), (x, (x[:, 0] > 0).long()), settings=settings, replicates=2
    )
    path = export(run, tmp_path / "run.pt2", n_draws=8, seed=3)
    each = [
        sparsebnn.predict(network, x, form, 4, draws="weights", seed=3).probs
        for network, form in zip(run.networks, run.likelihoods)
    ]
    found = readers.by_pt2(path, x)["probabilities"]
    np.testing.assert_allclose(found, torch.stack(each).mean(0).numpy(), atol=1e-5)


def test_pixels_are_given_as_numbers_from_0_to_1(tmp_path: Path) -> None:
    network, form = sparsebnn.lenet(), Categorical(10)
    pixels = torch.randint(0, 256, (3, 1, 28, 28), dtype=torch.uint8)
    path = export(network, tmp_path / "m.pt2", likelihood=form, example=pixels[:1], n_draws=2)
    want = sparsebnn.predict(network, pixels, form, 2, draws="weights").probs.numpy()
    found = readers.by_pt2(path, pixels.float() / 255.0)["probabilities"]
    np.testing.assert_allclose(found, want, atol=1e-5)
    loaded = from_pretrained(
        export(network, tmp_path / "hub", likelihood=form, example=pixels[:1], n_draws=2)
    )
    np.testing.assert_allclose(loaded.predict(pixels)["probabilities"], want, atol=1e-5)


def test_columns_may_have_the_names_of_outputs(tmp_path: Path) -> None:
    random = np.random.RandomState(0)
    frame = pd.DataFrame(random.randn(60, 3), columns=["entropy", "label", "table"])
    model = SparseBNNClassifier(epochs=3, replicates=1).fit(frame, frame["label"] > 0.0)
    path = export(model, tmp_path / "model.onnx")
    found = readers.by_onnx(path, frame)
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(frame), atol=1e-5)
    np.testing.assert_allclose(
        found["predicted_entropy"], model.predict_uncertainty(frame)["entropy"], atol=1e-5
    )
    assert found["predicted_label"].dtype == bool


def test_the_hub_folder_has_a_card_and_nothing_pickled(tmp_path: Path, fitted: Any) -> None:
    folder = export(fitted, tmp_path / "hub")
    assert {p.name for p in folder.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    card = (folder / "README.md").read_text()
    assert "library_name: sparsebnn" in card
    assert "classification" in card
    config = json.loads((folder / "config.json").read_text())
    config["spec"]["layers"][0]["module"] = "Evil"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(KeyError, match="Evil"):
        from_pretrained(folder)


def test_formats_are_chosen_by_suffix() -> None:
    for name, chosen in (("a.onnx", "onnx"), ("a.pt2", "pt2"), ("a.c", "c"), ("folder", "hub")):
        assert formats._format(Path(name), "auto") == chosen


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("kind", models.ONE_NETWORK)
def test_integers_of_8_bits(kind: str, tmp_path: Path) -> None:
    model, X = models.ONE_NETWORK[kind]()
    paths = [export(model, tmp_path / "a.c", model="median")]
    paths.append(export(model, tmp_path / "b.c", model="median", int8=X))
    whole, small = (readers.by_c(path, X, model._encoder.columns, "gcc") for path in paths)
    assert 0.0 < np.abs(whole - small).max() < 0.05
    assert paths[1].with_suffix(".o").stat().st_size < paths[0].with_suffix(".o").stat().st_size
    with pytest.raises(InvalidInput, match="'int8' of export"):
        export(model, tmp_path / "c.onnx", int8=X)
