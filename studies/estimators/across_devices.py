"""A model saved on one device and loaded on another: the same draws, the same predictions.

``python -m studies across_devices --device cuda --out FOLDER`` trains a small network of every
family there, saves each, and writes what each predicts. On another machine
``python -m studies across_devices --check FOLDER`` loads them on its CPU, predicts the same
rows and prints the largest difference. Predictions are in double precision, so nothing but the file counts.
If scikit-learn is installed, an estimator is trained, saved and loaded, too; it predicts in single precision.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn.app.provenance import commit, commit_and_source, device_name, rounded, versions
from sparsebnn.checks import InvalidInput
from sparsebnn.inference.prediction import ClassPrediction, predict
from sparsebnn.io.saving import load, save
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.networks import mlp
from sparsebnn.training import Settings, train
from studies.runner import arguments, write_json

__all__ = ["check", "main", "make"]

FAMILIES = ("spike_slab", "flow", "concrete", "gaussian")
_SIZES = [8, 20, 3]
_EPOCHS = 30
# Far above rounding in double precision, far below what one changed weight would do.
_TOLERANCE = 1e-9
_ESTIMATOR, _SINGLE_TOLERANCE = "estimator", 1e-5


def _network(family: str) -> nn.Sequential:
    options = {"hidden": (10, 10)} if family == "flow" else None
    return mlp(_SIZES, family=family, family_options=options)


def _rows() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(200, _SIZES[0], generator=random)
    return x, x[:, :3].argmax(1)


def _predicted(network: nn.Module) -> list[list[float]]:
    double = copy.deepcopy(network).double()
    found = predict(double, _rows()[0][:50].double(), Categorical(3), 10, draws="weights")
    assert isinstance(found, ClassPrediction)
    return found.probs.cpu().tolist()


def _estimate(folder: Path, device: str, epochs: int) -> list[list[float]]:
    """Fit and save an estimator; the probabilities it predicts here."""
    from sparsebnn.estimators import SparseBNNClassifier

    x, y = (t.numpy() for t in _rows())
    fitted = SparseBNNClassifier(epochs=epochs, device=device, random_state=0).fit(x, y)
    fitted.save(folder / f"{_ESTIMATOR}.safetensors")
    return fitted.predict_proba(x[:50]).tolist()


def _estimated(path: Path) -> list[list[float]]:
    """What a saved estimator predicts here."""
    from sparsebnn.estimators import SparseBNNClassifier

    return SparseBNNClassifier.load(path).predict_proba(_rows()[0][:50].numpy()).tolist()


def make(folder: Path, device: str, epochs: int = _EPOCHS) -> None:
    """Train, save, and write what each network predicts where it was trained."""
    expected: dict[str, Any] = {}
    where = torch.device("cpu")
    for family in FAMILIES:
        settings = Settings(epochs=epochs, batch_size=50, learning_rate=0.02)
        run = train(_network(family), _rows(), settings=settings, device=device, mode="eager", progress=False)
        where = run.batches.x.device
        save(run, folder / f"{family}.safetensors", family=family)
        expected[family] = _predicted(run.network)
    with contextlib.suppress(ImportError):  # no scikit-learn: no estimators
        expected[_ESTIMATOR] = _estimate(folder, str(where), epochs)
    made: dict[str, Any] = {"device": device_name(where), "epochs": epochs}
    made |= {"commit": commit_and_source()[0], "versions": versions()}
    write_json(folder / "expected.json", {"made": made, "probs": expected})
    print(f"Saved {len(expected)} models of {made['device']} in {folder}.")


def check(folder: Path) -> dict[str, Any]:
    """Load every network on this CPU and compare its predictions with the stored ones."""
    path = folder / "expected.json"
    if not path.exists():
        raise InvalidInput(f"There is no {path}. Make it with --out {folder} on the other machine first.")
    stored = json.loads(path.read_text(encoding="utf-8"))
    apart: dict[str, float] = {}
    for family, probs in stored["probs"].items():
        path = folder / f"{family}.safetensors"
        if family == _ESTIMATOR:
            predicted = _estimated(path)
        else:
            predicted = _predicted(load(path, _network(family)).network)
        here, there = (torch.tensor(found, dtype=torch.float64) for found in (predicted, probs))
        apart[family] = float((here - there).abs().max())
        print(f"{family:>10}: largest difference {apart[family]:.1e}")
    limits = {family: _SINGLE_TOLERANCE if family == _ESTIMATOR else _TOLERANCE for family in apart}
    same = all(apart[family] < limit for family, limit in limits.items())
    return {"made": stored["made"], "largest_difference": apart, "same": same}


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies across_devices``"""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--device", default="auto", help="where to train: auto, cpu or cuda")
    options.add_argument("--check", type=Path, metavar="FOLDER", help="load and compare, on this CPU")
    given = arguments("across_devices", "A model saved on one device, loaded on another.", argv, [options])
    if given.check is None:
        make(Path(given.out), given.device, epochs=3 if given.quick else _EPOCHS)
        return 0
    path = Path(given.out) / "results" / "across_devices" / "across_devices.json"
    found = check(given.check)
    found["loaded"] = {"device": device_name(torch.device("cpu")), "commit": commit(), "versions": versions()}
    write_json(path, rounded({"experiment": "across_devices", **found}))
    print(f"{'The same predictions' if found['same'] else 'DIFFERENT predictions'}; wrote {path}.")
    return 0 if found["same"] else 1
