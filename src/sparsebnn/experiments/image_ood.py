"""Images of another kind: networks trained on one of MNIST, FMNIST, KMNIST, asked about the other two.

Entropy, mutual information and the maximum model-averaged output, each as a score that should be larger
for images of another kind (AUROC, FPR@95, and the share above the 95% quantile of the training rows).
The maximum output is taken as in the cluster study, large means foreign; an AUROC below one half says
that the opposite sign is the better detector.

Run: ``python -m sparsebnn.experiments.image_ood --data FOLDER``, where FOLDER holds ``mnist.npz``,
``fmnist.npz`` and ``kmnist.npz`` with x_train, y_train, x_test, y_test. Needs torch and numpy alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn import metrics
from sparsebnn.baselines.deterministic import plain_lenet, plain_mlp
from sparsebnn.baselines.ensemble import predict_ensemble
from sparsebnn.checks import check_choice, check_count, invalid
from sparsebnn.experiments.paper import ARCHITECTURES, cell
from sparsebnn.experiments.provenance import Study
from sparsebnn.experiments.uncertainty_measures import SCORES, interval
from sparsebnn.likelihoods import Categorical
from sparsebnn.networks import density
from sparsebnn.prediction import ClassPrediction, predict
from sparsebnn.training import Settings, Steps, train

__all__ = ["Images", "METHODS", "Spec", "main", "read", "run"]

NAMES = ("mnist", "fmnist", "kmnist")
METHODS = ("lrt", "flow", "dense", "dropout", "plain", "ensemble")
_LIKELIHOOD = Categorical(10)


@dataclass(frozen=True)
class Images:
    """One data set, pixels in uint8: training rows with labels, test rows with labels."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


@dataclass(frozen=True)
class Spec:
    """The study. ``rate`` None is the paper's 1e-4; milestones shrink with the epochs."""

    architecture: str = "fc"
    train_on: tuple[str, ...] = NAMES
    methods: tuple[str, ...] = METHODS
    epochs: int = 250
    plain_epochs: int = 20
    rate: float | None = None
    rows: int | None = None
    test_rows: int | None = None
    replicates: int = 10
    members: int = 5
    n_draws: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(self.architecture, ARCHITECTURES, "architecture", "image_ood")
        for name in self.train_on:
            check_choice(name, NAMES, "train_on", "image_ood")
        for name in self.methods:
            check_choice(name, METHODS, "methods", "image_ood")
        for what in ("epochs", "plain_epochs", "replicates", "members", "n_draws"):
            check_count(getattr(self, what), what, "image_ood")


def read(folder: Path, name: str) -> Images:
    """The arrays of ``<folder>/<name>.npz``."""
    path = folder / f"{name}.npz"
    if not path.exists():
        expected = f"a folder that holds {name}.npz"
        raise invalid("data", "image_ood", expected, repr(str(folder)), "Pass it with --data.")
    with np.load(path) as found:
        x_train, y_train, x_test, y_test = (
            torch.from_numpy(found[key]) for key in ("x_train", "y_train", "x_test", "y_test")
        )
    return Images(x_train, y_train.long(), x_test, y_test.long())


def _shaped(x: Tensor, architecture: str) -> Tensor:
    return x.flatten(1) if architecture == "fc" else x.unsqueeze(1)


def _training(spec: Spec, method: str) -> tuple[nn.Module, Settings, int]:
    """Network, settings and number of networks of a method."""
    if method in ("lrt", "flow", "dense"):
        like = cell(spec.architecture, "flow" if method == "flow" else "lrt")
        options: dict[str, Any] = {"family": "gaussian", "prior": None} if method == "dense" else {}
        settings = like.settings
        assert isinstance(settings.schedule, Steps)
        milestones = [m * spec.epochs // settings.epochs for m in settings.schedule.milestones]
        settings = replace(
            settings,
            epochs=spec.epochs,
            learning_rate=spec.rate or settings.learning_rate,
            schedule=Steps(tuple(milestones)),
        )
        return like.network(**options), settings, spec.replicates
    dropout = 0.5 if method == "dropout" else 0.0
    fc = spec.architecture == "fc"
    network = plain_mlp([784, 400, 600, 10], dropout=dropout) if fc else plain_lenet(dropout=dropout)
    settings = Settings(epochs=spec.plain_epochs, batch_size=100, learning_rate=1e-3)
    return network, settings, spec.replicates * (spec.members if method == "ensemble" else 1)


def _fit(spec: Spec, method: str, data: Images, device: str) -> tuple[list[list[nn.Module]], float]:
    """Predictors (each a list of members), and the seconds that training took."""
    network, settings, count = _training(spec, method)
    x, y = data.x_train[: spec.rows], data.y_train[: spec.rows]
    trained = train(
        network,
        (_shaped(x, spec.architecture), y),
        likelihood=_LIKELIHOOD,
        settings=settings,
        replicates=list(range(spec.seed, spec.seed + count)),
        device=device,
        progress=False,
    )
    networks = trained.networks
    size = len(networks) // spec.replicates
    grouped = [networks[k * size : (k + 1) * size] for k in range(spec.replicates)]
    return grouped, trained.train_seconds


def _ask(spec: Spec, method: str, networks: list[nn.Module], x: Tensor) -> ClassPrediction:
    rows = _shaped(x, spec.architecture)
    if method == "ensemble":
        return predict_ensemble(networks, rows, _LIKELIHOOD, seed=spec.seed)
    n_draws = 1 if method == "plain" else spec.n_draws
    found = predict(networks[0], rows, _LIKELIHOOD, n_draws, seed=spec.seed)
    assert isinstance(found, ClassPrediction)
    return found


def _judge(
    spec: Spec, method: str, networks: list[nn.Module], home: str, sets: Mapping[str, Images]
) -> dict[str, Any]:
    """One predictor: how good it is at home, how well it notices the others."""
    data = sets[home]
    labels = data.y_test[: spec.test_rows]
    # As many training rows as there are test rows are enough for a quantile.
    known = _ask(spec, method, networks, data.x_train[: spec.rows][: len(labels)])
    inside = _ask(spec, method, networks, data.x_test[: spec.test_rows])
    probs = inside.probs.cpu()
    low, high = metrics.calibration_interval(probs, labels, n_resamples=200, seed=spec.seed)
    row: dict[str, Any] = {
        "accuracy": metrics.accuracy(probs, labels),
        "nll": metrics.nll(probs, labels),
        "brier": metrics.brier(probs, labels),
        "ece": metrics.calibration_error(probs, labels),
        "ece_low": low,
        "ece_high": high,
        "rejection_area": metrics.rejection_area(probs, labels),
        "aleatoric": float(inside.expected_entropy.mean()),
        "epistemic": float(inside.mutual_information.mean()),
        "density": density(networks[0]).overall,
        "foreign": {},
    }
    for other in (name for name in sets if name != home):
        outside = _ask(spec, method, networks, sets[other].x_test[: spec.test_rows])
        found: dict[str, Any] = {
            "aleatoric": float(outside.expected_entropy.mean()),
            "epistemic": float(outside.mutual_information.mean()),
        }
        for name, score in SCORES.items():
            a, b = score(inside).double().cpu(), score(outside).double().cpu()
            threshold = torch.quantile(score(known).double().cpu(), 0.95)
            found[name] = {
                "auroc": metrics.auroc(a, b),
                "fpr95": metrics.fpr_at_tpr(a, b),
                "flagged_inside": float((a > threshold).double().mean()),
                "flagged_outside": float((b > threshold).double().mean()),
            }
        row["foreign"][other] = found
    return row


def run(spec: Spec, sets: Mapping[str, Images], device: str = "cpu") -> list[dict[str, Any]]:
    """A row per data set trained on, method and replicate."""
    rows = []
    for home in spec.train_on:
        for method in spec.methods:
            predictors, seconds = _fit(spec, method, sets[home], device)
            for k, networks in enumerate(predictors):
                where = {"train_on": home, "method": method, "replicate": k, "train_seconds": seconds}
                rows.append({**where, **_judge(spec, method, networks, home, sets)})
            print(_line(home, method, rows[-len(predictors) :]), flush=True)
    return rows


def _line(home: str, method: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """One line: accuracy at home, AUROC of each score for each of the others, means over replicates."""
    words = [f"{home:>6} {method:>9}: accuracy {interval([row['accuracy'] for row in rows])['mean']:.4f}"]
    for other in rows[0]["foreign"]:
        means = [interval([row["foreign"][other][name]["auroc"] for row in rows])["mean"] for name in SCORES]
        words.append(f"{other} " + " ".join(f"{mean:.3f}" for mean in means))
    return "  ".join(words)


def _command(spec: Spec) -> str:
    """The command of a spec; folders are left out, they name a machine."""
    words = ["python -m sparsebnn.experiments.image_ood"]
    for name, value in vars(spec).items():
        if value != getattr(Spec, name):
            option = "draws" if name == "n_draws" else name.replace("_", "-")
            given = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words.append(f"--{option} {given}")
    return " ".join(words)


def _name_of(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m sparsebnn.experiments.image_ood``"""
    parser = argparse.ArgumentParser(
        prog="python -m sparsebnn.experiments.image_ood",
        description="Out-of-distribution detection between MNIST, FMNIST and KMNIST.",
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the .npz files")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder that receives results/")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--architecture", default=Spec.architecture, help="fc or lenet")
    parser.add_argument("--train-on", nargs="+", default=list(NAMES), help="data sets to train on")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--epochs", type=int, default=Spec.epochs, help="of the Bayesian networks")
    parser.add_argument("--plain-epochs", type=int, default=Spec.plain_epochs, help="of the others")
    parser.add_argument("--rate", type=float, help="learning rate of the Bayesian networks (paper: 1e-4)")
    parser.add_argument("--rows", type=int, help="training rows (all)")
    parser.add_argument("--test-rows", type=int, help="test rows of each data set (all)")
    parser.add_argument("--replicates", type=int, default=Spec.replicates)
    parser.add_argument("--members", type=int, default=Spec.members, help="networks of an ensemble")
    parser.add_argument("--draws", type=int, default=Spec.n_draws)
    parser.add_argument("--seed", type=int, default=Spec.seed)
    given = parser.parse_args(argv)
    spec = Spec(
        given.architecture,
        tuple(given.train_on),
        tuple(given.methods),
        given.epochs,
        given.plain_epochs,
        given.rate,
        given.rows,
        given.test_rows,
        given.replicates,
        given.members,
        given.draws,
        given.seed,
    )
    given.quick = False
    study = Study("image_ood", given)
    device = given.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    sets = {name: read(given.data, name) for name in NAMES}
    rows = run(spec, sets, device)
    origin = study.provenance(range(spec.seed, spec.seed + spec.replicates))
    origin.update(command=_command(spec), device=_name_of(device))
    path = study.save(spec, origin["seeds"], provenance=origin, rows=rows)
    print(f"Written to {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
