"""Every format gives the library's predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import models
import numpy as np
import pandas as pd
import pytest
import readers
import torch

import sparsebnn
from sparsebnn.deploy import export, from_pretrained
from sparsebnn.deploy.predictor import plain
from sparsebnn.estimators.checks import checked_table
from sparsebnn.inference.prediction import RealPrediction
from sparsebnn.likelihoods import Gaussian
from sparsebnn.nn.compaction import Take, compact

CLOSE = 1e-5
COMPILERS = [c for c in ("gcc", "clang") if readers.can_sanitize(c)]
FAST = {
    ("mlp spike_slab", "average"),
    ("input skip", "median"),
    ("strided", "median"),
    ("table spike_slab", "average"),
    ("several targets", "median"),
    ("leaves inputs out", "median"),
    ("one sparse network", "median"),
}


def _cases(names: Any) -> list[Any]:
    """Every model as an average and as a median; most of them slow tests."""
    every = [(name, model) for name in names for model in ("average", "median")]
    return [pytest.param(*case, marks=() if case in FAST else pytest.mark.slow) for case in every]


def _wanted(network: models.Network, model: str) -> dict[str, np.ndarray]:
    """What the library predicts: from its draws of weights, or from the compacted median model."""
    form = network.likelihood
    if model == "average":
        found = sparsebnn.predict(network.module, network.x, form, 9, draws="weights", seed=5)
        if isinstance(found, RealPrediction):
            return {"mean": found.mean.numpy(), "std": found.std.numpy()}
        return {
            "probabilities": found.probs.numpy(),
            "entropy": found.entropy.numpy(),
            "mutual_information": found.mutual_information.numpy(),
        }
    chained = isinstance(network.module, torch.nn.Sequential | sparsebnn.nn.InputSkip)
    small = compact(network.module).network if chained else plain(network.module)
    with torch.no_grad():
        outputs = small(network.x)
        if isinstance(form, Gaussian):
            mean, std = form.mean_and_std(outputs)
            return {"mean": mean.numpy(), "std": std.numpy()}
        if outputs.shape[1] == 1:
            yes = torch.sigmoid(outputs)
            return {"probabilities": torch.cat([1 - yes, yes], 1).numpy()}
        return {"probabilities": torch.softmax(outputs, 1).numpy()}


def _assert_close(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    for name, values in want.items():
        np.testing.assert_allclose(got[name], values, atol=CLOSE, rtol=CLOSE, err_msg=name)


def _c_parts(numbers: np.ndarray, want: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if "probabilities" in want:
        return {"probabilities": numbers}
    third = numbers.shape[1] // 3
    return {"mean": numbers[:, :third], "std": numbers[:, third : 2 * third]}


@pytest.mark.parametrize(("name", "model"), _cases(models.NETWORKS))
def test_networks(name: str, model: str, tmp_path: Path) -> None:
    network = models.NETWORKS[name]()
    want = _wanted(network, model)
    options = {
        "model": model,
        "likelihood": network.likelihood,
        "example": network.x[:1],
        **({"n_draws": 9, "seed": 5} if model == "average" else {}),
    }
    path = export(network.module, tmp_path / "model.onnx", **options)
    _assert_close(readers.by_onnx(path, network.x.numpy()), want)
    _assert_close({k: v[:1] for k, v in readers.by_onnx(path, network.x[:1].numpy()).items()},
                  {k: v[:1] for k, v in want.items()})  # fmt: skip
    path = export(network.module, tmp_path / "model.pt2", **options)
    _assert_close(readers.by_pt2(path, network.x), want)
    if name not in models.CHAINS:
        for place in ("model.c", "folder"):
            with pytest.raises(ValueError, match="Sequential"):
                export(network.module, tmp_path / place, **options)
        return
    path = export(network.module, tmp_path / "model.c", **options)
    for compiler in COMPILERS:
        few = network.x[:10].numpy()
        found = _c_parts(readers.by_c(path, few, None, compiler), want)
        _assert_close(found, {k: v[:10] for k, v in want.items() if k in found})
    loaded = from_pretrained(export(network.module, tmp_path / "folder", **options))
    _assert_close(loaded.predict(network.x), want)
    path = export(network.module, tmp_path / "mlflow", format="mlflow", **options)
    _assert_close(_by_mlflow(path, network.x.numpy()), want)


def test_some_median_models_leave_inputs_out() -> None:
    """Their index of inputs is not a number of single precision."""
    network = models.NETWORKS["leaves inputs out"]().module
    (estimated,) = models.ESTIMATORS["one sparse network"]()[0].networks_
    for each in (network, estimated):
        assert isinstance(compact(each).network[0], Take)


def _by_mlflow(path: Path, X: Any) -> dict[str, np.ndarray]:
    pyfunc = pytest.importorskip("mlflow.pyfunc")
    frame = pyfunc.load_model(str(path)).predict(X)
    found: dict[str, np.ndarray] = {}
    for name in ("probabilities", "mean", "std", "entropy", "mutual_information"):
        columns = [c for c in frame.columns if c == name or c.startswith(f"{name}_")]
        if columns:
            values = frame[columns].to_numpy()
            found[name] = values[:, 0] if name in ("entropy", "mutual_information") else values
    return found


def _estimator_wanted(model: Any, X: Any, kind: str) -> dict[str, np.ndarray]:
    if kind == "average" and hasattr(model, "classes_"):
        found = model.predict_uncertainty(X)
        return {
            "probabilities": model.predict_proba(X),
            "entropy": found["entropy"],
            "mutual_information": found["epistemic"],
        }
    if kind == "average":
        mean, std = model.predict(X, return_std=True)
        scale = np.reshape(model._y_std, (1, -1))
        return {"mean": np.reshape(mean, (len(X), -1)) / scale, "std": np.reshape(std, (len(X), -1)) / scale}
    # The median models at their posterior means, averaged over replicates.
    table = checked_table(model, X, reset=False)
    with torch.no_grad():
        networks = [compact(network).network for network in model._ensemble.doubled()]
        outputs, farther = (
            torch.stack([network(torch.from_numpy(x)) for network in networks])
            for x in (model._encoder.transform(table), model._encoder.transform(table, free=True))
        )
        if hasattr(model, "classes_"):
            return {"probabilities": model._ensemble.probs(outputs).mean(0).numpy()}
        mean, std = model._ensemble.means_and_stds(outputs.unsqueeze(1))
        growth = mean.mean(0) - model._ensemble.means_and_stds(farther.unsqueeze(1))[0].mean(0)
        total = (mean.var(0, correction=0) + (std**2).mean(0) + growth**2).sqrt()
        return {
            "mean": (mean.mean(0) + torch.as_tensor(model._y_mean / model._y_std)).numpy(),
            "std": total.numpy(),
        }


def _in_units(found: dict[str, np.ndarray], model: Any) -> dict[str, np.ndarray]:
    """Real targets in units of their standard deviation, so that 1e-5 means the same for all."""
    scale = np.reshape(getattr(model, "_y_std", 1.0), (1, -1))
    return {k: v / scale if k in ("mean", "std") else v for k, v in found.items()}


@pytest.mark.parametrize(("name", "kind"), _cases(models.ESTIMATORS))
def test_estimators(name: str, kind: str, tmp_path: Path) -> None:
    model, X = models.ESTIMATORS[name]()
    X = models.strange(X) if isinstance(X, pd.DataFrame) else np.concatenate([X, 40.0 * X[:5]])
    want = _estimator_wanted(model, X, kind)
    paths = {s: export(model, tmp_path / f"model.{s}", model=kind) for s in ("onnx", "pt2", "c")}
    found = readers.by_onnx(paths["onnx"], X)
    _assert_close(_in_units(found, model), want)
    if hasattr(model, "classes_"):
        best = want["probabilities"].argmax(1)
        clear = np.sort(want["probabilities"], 1)[:, -2:] @ [-1.0, 1.0] > 1e-4
        assert (found["label"] == model.classes_[best])[clear].all()
    _assert_close(_in_units(readers.by_pt2(paths["pt2"], X), model), want)
    for compiler in COMPILERS:
        numbers = readers.by_c(paths["c"], X, model._encoder.columns, compiler)
        parts = _in_units(_c_parts(numbers, want), model)
        _assert_close(parts, {k: v for k, v in want.items() if k in parts})
    stored = from_pretrained(export(model, tmp_path / "folder", model=kind))
    _assert_close(_in_units(stored.predict(X), model), want)
    path = export(model, tmp_path / "mlflow", model=kind, format="mlflow")
    _assert_close(_in_units(_by_mlflow(path, X), model), want)


def test_text_that_is_numbers_has_a_unit_in_files(tmp_path: Path) -> None:
    """The library reads text; a file takes the numbers, in the unit that its description names."""
    random = np.random.RandomState(0)
    rate, hour, month = random.rand(80) * 100.0, random.randint(0, 24, 80), random.randint(1, 13, 80)
    text = pd.DataFrame(
        {
            "rate": [f"{value:.2f}%" for value in rate],
            "hour": [f"{value:02d}:30" for value in hour],
            "month": [f"2024-{value:02d}" for value in month],
            "sex": [f" {value} " for value in random.choice(["f", "m"], 80)],
        }
    )
    numbers = pd.DataFrame(
        {
            "rate": rate.round(2),
            "hour": hour + 0.5,
            "month": pd.to_datetime(text["month"] + "-01"),
            "sex": text["sex"].str.strip(),
        }
    )
    model = sparsebnn.SparseBNNClassifier(epochs=8, replicates=2, n_draws=8, random_state=0)
    model.fit(text, np.where(rate + hour > 60.0, "yes", "no"))
    want = {"probabilities": model.predict_proba(text)}
    assert np.ptp(want["probabilities"]) > 0.1
    path = export(model, tmp_path / "model.onnx")
    _assert_close(readers.by_onnx(path, numbers), want)
    path = export(model, tmp_path / "model.pt2")
    _assert_close(readers.by_pt2(path, numbers), want)
    extra = {"sparsebnn.json": ""}
    torch.export.load(path, extra_files=extra)
    about = json.loads(extra["sparsebnn.json"])
    assert [column.get("unit") for column in about["columns"]] == ["percent", "hours", None, None]
    path = export(model, tmp_path / "model.c")
    assert "rate, percent; NaN" in path.with_suffix(".h").read_text()
    for compiler in COMPILERS:
        _assert_close(
            _c_parts(readers.by_c(path, numbers[:9], model._encoder.columns, compiler), want),
            {"probabilities": want["probabilities"][:9]},
        )
    stored = from_pretrained(export(model, tmp_path / "folder"))
    for frame in (text, numbers):
        _assert_close(stored.predict(frame), want)
